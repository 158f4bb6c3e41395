"""Data with its sources: NPU families, engine releases, models, recipes. Adding one is adding a YAML file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from packaging.version import Version
from pydantic import BaseModel, ValidationError

from catalog.lines import lines, nearest
from catalog.types import EngineCatalog, FlagCatalog, ModelArchitecture, NpuFamily, SettingsCatalog

_HERE = Path(__file__).resolve().parent
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Shape = TypeVar("Shape", bound=BaseModel)


class CatalogError(Exception):
    """A file of the catalogue is wrong; the message has a line for each mistake, with the file and its line."""


def read(path: Path) -> dict[str, Any]:
    """The map in a YAML file.

    Raises:
        CatalogError: it is no YAML, or no map.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise CatalogError(_mistake(path, mark.line + 1 if mark else 1, f"not YAML: {error.problem}")) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CatalogError(_mistake(path, 1, f"not YAML: {' '.join(str(error).split())}")) from None
    if not isinstance(content, dict):
        raise CatalogError(_mistake(path, 1, "not a map"))
    return content


def load(path: Path, shape: type[Shape], beside: Mapping[str, Any] | None = None) -> Shape:
    """A YAML file as ``shape``; ``beside`` is what a file does not say itself, such as a recipe's deployment name.

    Raises:
        CatalogError: with all mistakes of the file.
    """
    content = read(path)
    try:
        return shape.model_validate({**content, **(beside or {})}, by_name=False)
    except ValidationError as error:
        found = dict(lines(yaml.compose(path.read_text(encoding="utf-8"), Loader=_LOADER)))
        located = sorted(_located(found, details) for details in error.errors())
        raise CatalogError("\n".join(_mistake(path, *mistake) for mistake in located)) from None


def _located(found: Mapping[tuple[str | int, ...], int], details: Any) -> tuple[int, str]:
    """One mistake with the line of its key, or of the nearest thing around it that the file has."""
    location = tuple(key for key in details["loc"] if key != "[key]")  # pydantic's mark of a wrong key
    return nearest(location, found) or 1, f"{'.'.join(map(str, location))}: {details['msg']}"


def _mistake(path: Path, line: int, problem: str) -> str:
    shown = path.relative_to(_HERE.parent) if path.is_relative_to(_HERE.parent) else path
    return f"{shown}:{line} {problem}"


@cache
def files(kind: str) -> dict[str, Path]:
    """Files of one directory of the catalogue by their names: ``npu``, ``models`` or ``recipes``."""
    return {path.stem: path for path in sorted((_HERE / kind).glob("*.yaml"))}


@cache
def npu_families() -> dict[str, NpuFamily]:
    """NPU families by name, from ``catalog/npu/*.yaml``."""
    families = [load(path, NpuFamily) for path in files("npu").values()]
    return {family.family: family for family in families}


@cache
def models() -> dict[str, ModelArchitecture]:
    """Model architectures by name, from ``catalog/models/*.yaml``."""
    found = [load(path, ModelArchitecture) for path in files("models").values()]
    return {model.name: model for model in found}


@cache
def engine() -> EngineCatalog:
    """What depends on the vLLM-Ascend release, from ``catalog/engine.yaml``."""
    return load(_HERE / "engine.yaml", EngineCatalog)


@cache
def flags() -> FlagCatalog:
    """Flags of ``vllm serve``, from ``catalog/flags.json``, which the local cluster's stand-in of vLLM reads as well."""
    return load(_HERE / "flags.json", FlagCatalog)


@cache
def settings() -> SettingsCatalog:
    """Names of settings that the engine reads, from ``catalog/settings.yaml``."""
    return load(_HERE / "settings.yaml", SettingsCatalog)


@cache
def pod_spec_schema() -> dict[str, Any]:
    """JSON Schema of a Kubernetes PodSpec, from ``catalog/pod_spec.json``: that of Kthena's CRD, which refuses unknown fields."""
    schema: dict[str, Any] = json.loads((_HERE / "pod_spec.json").read_text(encoding="utf-8"))
    return schema


@cache
def valid_pod_spec_schema() -> dict[str, Any]:
    """:func:`pod_spec_schema` with :func:`pod_spec_values`: what Kthena's CRD takes, and so does the API server in a pod."""
    schema, values = deepcopy(pod_spec_schema()), pod_spec_values()
    for place, field in fields(schema):
        for pattern in values:
            if fnmatchcase(place, pattern):
                field.update(values[pattern])
    return schema


@cache
def pod_spec_values() -> dict[str, dict[str, Any]]:
    """Place in a PodSpec, as a glob pattern -> JSON Schema of what may stand there, from ``catalog/pod_spec_values.yaml``."""
    return read(_HERE / "pod_spec_values.yaml")


def fields(schema: dict[str, Any], place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Everything that has a name in a JSON Schema, and its dotted place; of a list its items."""
    for name, field in schema.get("properties", {}).items():
        below, one = f"{place}.{name}".lstrip("."), field.get("items", field)
        yield below, one
        yield from fields(one, below)


def recipe_names() -> tuple[str, ...]:
    """Names of the recipes: the file names in ``catalog/recipes``."""
    return tuple(files("recipes"))


@cache
def recipe(name: str) -> dict[str, Any]:
    """One recipe, in the shape of a deployment in the stack file.

    Raises:
        KeyError: there is none of this name.
    """
    return read(files("recipes")[name])


def before(release: str, limit: str) -> bool:
    """Whether vLLM-Ascend ``release`` (a tag such as v0.13.0rc3) is older than ``limit``."""
    return Version(release.removeprefix("v")) < Version(limit)
