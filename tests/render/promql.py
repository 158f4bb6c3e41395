"""What a PromQL expression asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import promql_parser

_PARTS = ("expr", "lhs", "rhs", "vector_selector")


class Selected(NamedTuple):
    """One selector of series."""

    metric: str
    matchers: tuple[tuple[str, str], ...]
    """labels, and the values or patterns that they are to match"""


def selected(expression: str) -> set[Selected]:
    """The selectors of an expression; variables of Grafana stand for themselves.

    Raises:
        ValueError: Prometheus' grammar has no such expression.
    """
    return set(_selected(promql_parser.parse(expression.replace("$__rate_interval", "5m"))))


def _selected(expression: Any) -> Iterator[Selected]:
    if isinstance(expression, promql_parser.VectorSelector):
        matchers = ((matcher.name, matcher.value) for matcher in expression.matchers.matchers)
        yield Selected(str(expression.name), tuple(sorted(matchers)))
    for part in _PARTS:
        if (inner := getattr(expression, part, None)) is not None:
            yield from _selected(inner)
    for argument in getattr(expression, "args", ()):
        yield from _selected(argument)
