"""Where in a YAML file something stands."""

from __future__ import annotations

from collections.abc import Iterator

import yaml


def lines(node: yaml.Node | None, below: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], int]]:
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
