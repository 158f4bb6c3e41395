"""The CRD schemas of Kthena v1.0.0, read from the pinned Go module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from local import toolchain
from tests.render.crds import Crds


@pytest.fixture(scope="session")
def kthena_module() -> Path:
    return toolchain.upstream_directory(toolchain.KTHENA)


@pytest.fixture(scope="session")
def crds(kthena_module: Path) -> Crds:
    files = sorted(kthena_module.glob("charts/kthena/charts/*/crds/*.yaml"))
    documents: list[dict[str, Any]] = [yaml.load(path.read_text(), Loader=yaml.CSafeLoader) for path in files]
    found = Crds({document["spec"]["names"]["kind"]: document["spec"]["versions"][0] for document in documents})
    assert {"ModelServing", "ModelServer", "ModelRoute"} <= found.versions.keys()
    jsonschema.Draft202012Validator.check_schema(found.strict_schema("ModelServing"))
    return found
