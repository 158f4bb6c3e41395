"""Where in a YAML file something stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import yaml

Path = tuple[str | int, ...]
T = TypeVar("T")


def nearest(path: Path, places: Mapping[Path, T]) -> T | None:
    """What ``places`` has for ``path``, or for the nearest thing around it; ``()`` is the whole file."""
    around = (path[:length] for length in range(len(path), -1, -1))
    return next((places[known] for known in around if known in places), None)


def lines(node: yaml.Node | None, below: Path = ()) -> Iterator[tuple[Path, int]]:
    """Path and line (from 1) of everything inside ``node``: keys of maps, numbers of list items; None is an empty file."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            path = (*below, key.value)
            yield path, key.start_mark.line + 1
            yield from lines(value, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*below, index), value.start_mark.line + 1
            yield from lines(value, (*below, index))
