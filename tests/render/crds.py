"""CRD schemas as JSON Schema, stricter than the API server: an unknown field is an error instead of being pruned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jsonschema


@dataclass(frozen=True)
class Crds:
    versions: Mapping[str, Any]
    """kind -> CRD version with its schema"""

    def schema(self, kind: str) -> dict[str, Any]:
        schema: dict[str, Any] = self.versions[kind]["schema"]["openAPIV3Schema"]
        return schema

    def strict_schema(self, kind: str) -> dict[str, Any]:
        strict: dict[str, Any] = _strict(self.schema(kind))
        strict["properties"]["metadata"] = {"type": "object"}
        return strict

    def errors(self, rendered: Mapping[str, Any]) -> list[str]:
        validator = jsonschema.Draft202012Validator(self.strict_schema(rendered["kind"]))
        return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(rendered)]


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(value) for key, value in schema.items()}
    if strict.pop("x-kubernetes-int-or-string", False):
        strict.pop("type", None)
    if "properties" in strict and not strict.get("x-kubernetes-preserve-unknown-fields"):
        strict.setdefault("additionalProperties", False)
    return strict


def field_paths(schema: Mapping[str, Any], below: str = "") -> Iterator[str]:
    """Dotted paths of all fields of a schema, lists and maps entered."""
    for name, field in schema.get("properties", {}).items():
        path = f"{below}.{name}" if below else name
        yield path
        inner = field.get("items") or field.get("additionalProperties") or field
        if isinstance(inner, Mapping):
            yield from field_paths(inner, path)


def given_paths(value: Any, schema: Mapping[str, Any], below: str = "") -> Iterator[str]:
    """The paths of :func:`field_paths` that ``value`` has."""
    if isinstance(value, list):
        for item in value:
            yield from given_paths(item, schema.get("items", {}), below)
    elif isinstance(value, Mapping) and "properties" in schema:
        for name in value.keys() & schema["properties"].keys():
            path = f"{below}.{name}" if below else name
            yield path
            yield from given_paths(value[name], schema["properties"][name], path)
    elif isinstance(value, Mapping) and isinstance(schema.get("additionalProperties"), Mapping):
        for item in value.values():
            yield from given_paths(item, schema["additionalProperties"], below)
