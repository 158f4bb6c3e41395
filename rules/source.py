"""The stack file as text: what of it is the project's own, and on which lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from rules.finding import PROJECT, Path

_PREFIX = f"{PROJECT}:"


@dataclass(frozen=True)
class Source:
    """A stack file."""

    name: str
    """as it is shown, for example ``Pulumi.dev.yaml``"""
    text: str

    @property
    def config(self) -> dict[str, Any]:
        """The project's own keys; other projects' and providers' settings are theirs.

        Raises:
            yaml.YAMLError: it is not YAML.
        """
        content = yaml.safe_load(self.text)
        declared = content.get("config") if isinstance(content, dict) else None
        if not isinstance(declared, dict):
            return {}
        return {key.removeprefix(_PREFIX): value for key, value in declared.items() if str(key).startswith(_PREFIX)}

    def lines(self, config: Mapping[str, Any]) -> dict[Path, int]:
        """Line (from 1) of each path; nothing if this text is not what ``config`` was read from."""
        if self.config != dict(config):
            return {}
        root = yaml.compose(self.text, Loader=yaml.SafeLoader)
        top = next((value for key, value in root.value if key.value == "config"), None) if root else None
        if top is None:
            return {}
        return {
            (path[0].removeprefix(_PREFIX), *path[1:]): line
            for path, line in _lines(top)
            if isinstance(path[0], str) and path[0].startswith(_PREFIX)
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
