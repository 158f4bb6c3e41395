"""Stack files for the tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
CLUSTER: dict[str, Any] = {"npu": {"family": "A3", "devicePlugin": "cce", "nodes": 4}, "scheduler": "default-scheduler"}
RECIPE = "deepseek-v4-flash-w8a8-a3"


def stack_file(name: str) -> dict[str, Any]:
    """The config of ``Pulumi.<name>.yaml`` without the project's prefix."""
    content = yaml.safe_load((ROOT / f"Pulumi.{name}.yaml").read_text())
    return {key.removeprefix("kthena-pd:"): value for key, value in content["config"].items()}


def config(name: str = "deepseekv4-pd", /, *, cluster: Mapping[str, Any] | None = None, **deployment: Any) -> dict[str, Any]:
    """A stack with one deployment of the first seed's recipe and what differs from it."""
    return {"cluster": {**CLUSTER, **(cluster or {})}, "deployments": {name: {"recipe": RECIPE, **deployment}}}
