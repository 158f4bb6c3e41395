"""What a check of the cluster is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from live.plan import Plan
from live.survey import Survey
from rules.finding import Check, Finding, Problem, Severity


@dataclass(frozen=True)
class Situation:
    """A stack, and the cluster that it is to run on."""

    plan: Plan
    survey: Survey


@dataclass(frozen=True)
class Probe(Check):
    """A check of a stack against its cluster."""

    find: Callable[[Situation], Iterator[Problem]]

    def __call__(self, situation: Situation) -> Iterator[Finding]:
        """Findings of this check."""
        # once: what both roles need is found for each
        for path, what, remedy in dict.fromkeys(self.find(situation)):
            yield Finding(self.code, path, what, remedy, self.severity)


PROBES: list[Probe] = []
"""All checks of the modules that are imported: :mod:`preflight.run` imports each"""


def probe(code: str, source: str, severity: Severity = "error") -> Callable[[Callable[[Situation], Iterator[Problem]]], Probe]:
    """Make a check of a function: its name says what holds, its docstring what goes wrong otherwise."""

    def register(find: Callable[[Situation], Iterator[Problem]]) -> Probe:
        name, why = find.__name__.replace("_", " "), inspect.cleandoc(find.__doc__ or "")
        PROBES.append(made := Probe(code, severity, source, name, why, find))
        return made

    return register
