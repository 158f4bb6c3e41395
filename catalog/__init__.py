"""Data with its sources: NPU families, engine releases, recipes. Adding one is adding a YAML file."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

from catalog.types import EngineCatalog, ModelArchitecture, NpuFamily

_HERE = Path(__file__).resolve().parent


def _read(path: Path) -> Any:
    return yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe


@cache
def npu_families() -> dict[str, NpuFamily]:
    """NPU families by name, from ``catalog/npu/*.yaml``."""
    families = [NpuFamily.model_validate(_read(path)) for path in sorted((_HERE / "npu").glob("*.yaml"))]
    return {family.family: family for family in families}


@cache
def models() -> dict[str, ModelArchitecture]:
    """Model architectures by name, from ``catalog/models/*.yaml``."""
    found = [ModelArchitecture.model_validate(_read(path)) for path in sorted((_HERE / "models").glob("*.yaml"))]
    return {model.name: model for model in found}


@cache
def engine() -> EngineCatalog:
    """What depends on the vLLM-Ascend release, from ``catalog/engine.yaml``."""
    return EngineCatalog.model_validate(_read(_HERE / "engine.yaml"))


def recipe_names() -> tuple[str, ...]:
    """Names of the recipes: the file names in ``catalog/recipes``."""
    return tuple(path.stem for path in sorted((_HERE / "recipes").glob("*.yaml")))


@cache
def recipe(name: str) -> dict[str, Any]:
    """One recipe, in the shape of a deployment in the stack file.

    Raises:
        KeyError: there is none of this name.
    """
    if name not in recipe_names():
        raise KeyError(name)
    content: dict[str, Any] = _read(_HERE / "recipes" / f"{name}.yaml")
    return content


def before(release: str, limit: str) -> bool:
    """Whether vLLM-Ascend ``release`` (a tag such as v0.13.0rc3) is older than ``limit``."""
    return Version(release.removeprefix("v")) < Version(limit)
