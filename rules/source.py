"""Where in the stack file something is declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from rules.finding import PROJECT, Path


@dataclass(frozen=True)
class Source:
    """A stack file as text."""

    name: str
    """as it is shown, for example ``Pulumi.dev.yaml``"""
    text: str

    def lines(self, config: Mapping[str, Any]) -> dict[Path, int]:
        """Line (from 1) of each path; nothing if this text is not what ``config`` was read from."""
        root = yaml.compose(self.text, Loader=yaml.SafeLoader)
        declared = (yaml.safe_load(self.text) or {}).get("config") or {}
        if {key: declared.get(f"{PROJECT}:{key}") for key in config} != dict(config) or root is None:
            return {}
        top = next((value for key, value in root.value if key.value == "config"), None)
        if not isinstance(top, yaml.MappingNode):
            return {}
        prefix = f"{PROJECT}:"
        return {
            (path[0].removeprefix(prefix), *path[1:]): line
            for path, line in _lines(top)
            if isinstance(path[0], str) and path[0].startswith(prefix)
        }


def _lines(node: yaml.Node, below: Path = ()) -> Iterator[tuple[Path, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            path = (*below, key.value)
            yield path, key.start_mark.line + 1
            yield from _lines(value, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*below, index), value.start_mark.line + 1
            yield from _lines(value, (*below, index))
