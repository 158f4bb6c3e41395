"""The examples of each rule, ``rules/examples/<code>.yaml``: what its page shows and the tests run.

``wrong`` is a stack that breaks this rule and no other, ``at`` the paths of its findings, ``right`` the same stack mended,
without any finding. ``cluster`` stands only where it is not that of :data:`CLUSTER`.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from rules.finding import PROJECT

CLUSTER: dict[str, Any] = {"npu": {"family": "A3", "devicePlugin": "cce", "nodes": 4}, "scheduler": "default-scheduler"}
_DIRECTORY = Path(__file__).resolve().parent / "examples"


@dataclass(frozen=True)
class Example:
    """Stacks as :func:`rules.read` takes them."""

    wrong: dict[str, Any]
    at: tuple[str, ...]
    right: dict[str, Any]


def codes() -> frozenset[str]:
    """Codes that have an example."""
    return frozenset(path.stem for path in _DIRECTORY.glob("*.yaml"))


@cache
def example(code: str) -> Example:
    """The example of one rule, clusters filled in."""
    content = declared(code)
    wrong, right = ({"cluster": CLUSTER, **content[side]} for side in ("wrong", "right"))
    return Example(wrong, tuple(content["at"]), right)


def declared(code: str) -> dict[str, Any]:
    """The example of one rule as its file has it."""
    content: dict[str, Any] = yaml.safe_load(_text(code))
    return content


def written(code: str, side: Literal["wrong", "right"]) -> str:
    """One side of an example as it would stand below ``config`` in a stack file."""
    text = _text(code)
    begin, end = next(
        (value.start_mark, value.end_mark)
        for key, value in yaml.compose(text, Loader=yaml.SafeLoader).value  # type: ignore[union-attr]  # declared() is a map
        if key.value == side
    )
    block = textwrap.dedent(" " * begin.column + text[begin.index : end.index]).rstrip()
    return re.sub(r"^(?=\w)", f"{PROJECT}:", block, flags=re.MULTILINE)


def _text(code: str) -> str:
    return (_DIRECTORY / f"{code}.yaml").read_text(encoding="utf-8")
