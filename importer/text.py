"""A stack as the text of its file, in the order and the form in which people write it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rules.finding import PROJECT
from rules.shape import parse

SCHEMA = "# yaml-language-server: $schema=schema/stack-file.schema.json"
_WIDTH = 110
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./:-]*[A-Za-z0-9_/-]|[A-Za-z]")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
"""texts that YAML 1.1 or 1.2 takes for something else"""


def stack_text(config: Mapping[str, Any], about: Sequence[str] = ()) -> str:
    """``Pulumi.<stack>.yaml`` of a stack; ``about``: lines of comment at its beginning."""
    lines = [SCHEMA, *(f"# {line}" for line in about), "config:"]
    for key, value in _ordered(config).items():
        lines += _entry(f"{PROJECT}:{key}", value, 1)
    return "\n".join(lines) + "\n"


def _ordered(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keys in the order of the models, as far as they can be read."""
    stack, _ = parse(config)
    like = stack.model_dump(by_alias=True) if stack else {}
    return {key: _like(config[key], like.get(key)) for key in ("cluster", "deployments")}


def _like(value: Any, like: Any) -> Any:
    if not isinstance(value, dict) or not isinstance(like, dict):
        return value
    places = {key: index for index, key in enumerate(like)}
    return {key: _like(value[key], like.get(key)) for key in sorted(value, key=lambda key: places.get(key, len(places)))}


def _entry(key: str, value: Any, depth: int) -> Iterator[str]:
    indent = "  " * depth
    head = f"{indent}{_scalar(key)}:"
    if not isinstance(value, dict | list) or not value or _is_short(head, value, depth):
        yield f"{head} {_flow(value)}"
        return
    yield head
    if isinstance(value, dict):
        for inner, one in value.items():
            yield from _entry(inner, one, depth + 1)
        return
    for item in value:
        if isinstance(item, dict) and item and len(_flow(item)) + len(indent) + 4 > _WIDTH:
            first, *rest = [line for inner, one in item.items() for line in _entry(inner, one, depth + 2)]
            yield f"{indent}  - {first.strip()}"
            yield from rest
        else:
            yield f"{indent}  - {_flow(item)}"


def _is_short(head: str, value: Any, depth: int) -> bool:
    """Whether a map or a list goes on one line."""
    return depth > 1 and len(head) + 1 + len(_flow(value)) <= _WIDTH and _levels(value) <= 2  # noqa: PLR2004 - {a: {b: 1}}


def _levels(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_levels, inner), default=0) if isinstance(value, dict | list) else 0


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    if (
        isinstance(value, str)
        and re.fullmatch(r"v?[0-9]+([0-9a-zA-Z.]*[a-zA-Z][0-9a-zA-Z.]*)", value)
        and not re.match(r"0[xXoObB]|[0-9.]+[eE][0-9]", value)
    ):
        return value  # such as 64Gi, v0.13.0rc3, 1P1D
    return json.dumps(value, ensure_ascii=False)
