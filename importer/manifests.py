"""Kubernetes manifests as they are given: objects, each with the places of what stands in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

Keys = tuple[str | int, ...]
"""From the top of an object, for example ``("spec", "template", "roles", 0)``"""

MANIFEST = "IM000"
"""code of what is no manifest"""
_BLOCK = "|"
_SERVER_FIELDS = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid")
"""Of metadata: the API server writes them, nobody declares them"""
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_TAG = "tag:yaml.org,2002:"
_MOST = 1_000_000
"""keys and items of an object: one of the largest that etcd takes (1.5 MB) has fewer, and aliases of aliases have no bound"""


class Place(NamedTuple):
    """Where something stands."""

    file: str
    line: int
    """from 1"""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class ManifestError(Exception):
    """A file is no manifest; the message says why and where."""

    def __init__(self, place: Place, problem: str) -> None:
        self.place, self.problem = place, problem
        super().__init__(f"{place}: {problem}")


@dataclass(frozen=True)
class Manifest:
    """One object."""

    body: dict[str, Any]
    """without what the API server writes"""
    file: str
    lines: Mapping[Keys, int]
    """line of each key and of each item"""

    @property
    def kind(self) -> str:
        """For example ``ModelServing``."""
        return str(self.body.get("kind", ""))

    @property
    def name(self) -> str:
        """Of the object."""
        return str(self.metadata.get("name", ""))

    @property
    def namespace(self) -> str:
        """Of the object; where none is given, that of kubectl's context, which is taken for ``default``."""
        return str(self.metadata.get("namespace") or "default")

    @property
    def metadata(self) -> dict[str, Any]:
        """Of the object."""
        found = self.body.get("metadata")
        return found if isinstance(found, dict) else {}

    @property
    def spec(self) -> dict[str, Any]:
        """Of the object."""
        found = self.body.get("spec")
        return found if isinstance(found, dict) else {}

    def place(self, *keys: str | int, offset: int = 0) -> Place:
        """Where ``keys`` stand, or the nearest thing around them; ``offset``: lines into a text that begins there."""
        around = next(keys[:end] for end in range(len(keys), -1, -1) if keys[:end] in self.lines)
        return Place(self.file, self.lines[around] + (offset if around == keys else 0))

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the fast one where it is built
    """YAML as kubectl reads it: a date is a text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def read_manifests(name: str, text: str) -> list[Manifest]:
    """All objects of a file, those inside of Lists too.

    Raises:
        ManifestError: it is not YAML, or something in it is no object.
    """
    found: list[Manifest] = []
    try:
        for node in yaml.compose_all(text, Loader=_Loader):
            body = yaml.constructor.SafeConstructor().construct_document(node)
            if body is not None:
                found += _objects(name, body, node)
    except RecursionError:
        raise ManifestError(Place(name, 1), "nested too deep, or an anchor is used inside of itself") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = min(mark.line + 1, len(text.splitlines())) if mark else 1
        raise ManifestError(Place(name, line), _explained(text, error)) from None
    except yaml.YAMLError as error:
        raise ManifestError(Place(name, 1), f"not YAML: {' '.join(str(error).split())}") from None
    return found


def _explained(text: str, error: yaml.MarkedYAMLError) -> str:
    hint = "; it looks like a Helm template: give what `helm template` makes of it" if "{{" in text else ""
    return f"not YAML: {error.problem}{hint}"


def _objects(name: str, body: Any, node: yaml.Node) -> Iterator[Manifest]:
    place = Place(name, node.start_mark.line + 1)
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str) or not isinstance(body.get("apiVersion"), str):
        raise ManifestError(place, "not a Kubernetes object: apiVersion and kind are missing")
    if body["kind"].endswith("List") and "items" in body and body["items"] is None:
        return
    if body["kind"].endswith("List") and isinstance(body.get("items"), list):
        nodes = next(value.value for key, value in reversed(node.value) if key.value == "items")
        for item, inside in zip(body["items"], nodes, strict=True):
            yield from _objects(name, item, inside)
        return
    lines: dict[Keys, int] = {(): place.line}
    _note(node, (), lines)
    if len(lines) > _MOST:
        raise ManifestError(place, "its aliases make too much of it")
    yield Manifest(_declared(body), name, lines)


def _without_nulls(value: Any) -> Any:
    """To the API server a null is what is absent; Go's types are written with some."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _declared(whole: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = _without_nulls(whole)
    metadata = body.get("metadata")
    if not isinstance(metadata, dict):
        return body
    kept = {key: value for key, value in metadata.items() if key not in _SERVER_FIELDS}
    if isinstance(annotations := kept.pop("annotations", None), dict):
        annotations.pop(_APPLIED, None)
    return {key: value for key, value in body.items() if key != "status"} | {
        "metadata": {**kept, **({"annotations": annotations} if annotations else {})}
    }


def _note(node: yaml.Node, keys: Keys, lines: dict[Keys, int]) -> None:
    """The line of each key and item below ``node``; of a block of text, that of its first line."""
    if isinstance(node, yaml.MappingNode):
        inside: Iterable[tuple[str | int, int, yaml.Node]] = (
            (str(key.value), key.start_mark.line, value) for key, value in node.value
        )
    elif isinstance(node, yaml.SequenceNode):
        inside = ((index, item.start_mark.line, item) for index, item in enumerate(node.value))
    else:
        return
    for key, line, value in inside:
        block = isinstance(value, yaml.ScalarNode) and value.style == _BLOCK
        lines[*keys, key] = (value.start_mark.line + 1 if block else line) + 1
        if len(lines) > _MOST:
            return
        _note(value, (*keys, key), lines)
