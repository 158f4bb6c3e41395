"""One thing that is wrong with a stack file."""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from models.deployment import Deployment
from models.role import ROLES, Role, RoleName
from models.stack import Stack

PROJECT = "kthena-pd"
Path = tuple[str | int, ...]
"""Keys from the top of the stack file's ``config``, for example ``("deployments", "deepseekv4-pd", "ratio")``"""

_PLAIN_KEY = re.compile(r"[\w-]+")


Severity = Literal["error", "warning"]


class Problem(NamedTuple):
    """What a rule has found."""

    path: Path
    what: str
    remedy: str
    """what would be right"""


@dataclass(frozen=True)
class Finding:
    """A problem with its code and its place."""

    code: str
    path: Path
    problem: str
    remedy: str
    severity: Severity = "error"
    file: str = ""
    """name of the stack file, where the place is known"""
    line: int = 0
    """from 1"""
    column: int = 0
    """from 1, in characters"""

    def __str__(self) -> str:
        place = f" {self.file}:{self.line}:{self.column}" if self.line else ""
        path = f" {dotted(self.path)}" if self.path else ""
        severity = "" if self.severity == "error" else f"{self.severity}: "
        return f"{self.code}{place}{path}: {severity}{self.problem}\n      -> {self.remedy}"


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """``findings`` in the order of the files and of what stands in them."""
    return sorted(findings, key=lambda found: (found.file, found.line, found.column, str(found.path), found.code))


@dataclass(frozen=True)
class Check:
    """What a code stands for: what its page says."""

    code: str
    severity: Severity
    source: str
    """where it is from"""
    name: str
    """a phrase: what holds where it is kept"""
    why: str
    """what goes wrong otherwise"""


@dataclass(frozen=True)
class Rule(Check):
    """A check of a whole stack."""

    find: Callable[[Stack], Iterator[Problem]]

    def __call__(self, stack: Stack) -> Iterator[Finding]:
        """Findings of this rule in ``stack``."""
        # once: what both roles are given is found in each
        for path, what, remedy in dict.fromkeys(self.find(stack)):
            yield Finding(self.code, path, what, remedy, self.severity)


RULES: list[Rule] = []
"""All rules of the modules that are imported: :mod:`rules.check` imports each"""


def rule(code: str, source: str, severity: Severity = "error") -> Callable[[Callable[[Stack], Iterator[Problem]]], Rule]:
    """Make a rule of a function: its name says what holds, its docstring what goes wrong otherwise."""

    def register(find: Callable[[Stack], Iterator[Problem]]) -> Rule:
        name, why = find.__name__.replace("_", " "), inspect.cleandoc(find.__doc__ or "")
        RULES.append(made := Rule(code, severity, source, name, why, find))
        return made

    return register


class StackError(Exception):
    """The stack file can't be deployed as it is; the message shows every finding, in the order of the file."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(in_order(findings))
        count = sum(finding.severity == "error" for finding in self.findings)
        heading = f"{count} mistake{'s' if count > 1 else ''} in the stack file; nothing was changed:"
        super().__init__("\n".join([heading, *(f"  {finding}" for finding in self.findings)]))


def refuse_errors(findings: Sequence[Finding]) -> None:
    """Let warnings pass.

    Raises:
        StackError: there is an error among the findings; all of them are in it.
    """
    if any(finding.severity == "error" for finding in findings):
        raise StackError(findings)


def dotted(path: Path) -> str:
    """``path`` as ``pulumi config set --path`` takes it."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        elif _PLAIN_KEY.fullmatch(str(key)):  # in YAML a key may be null
            text += f".{key}" if text else key
        else:
            text += f'["{key}"]'
    return f"{PROJECT}:{text}"


def in_deployment(deployment: Deployment, *keys: str | int) -> Path:
    """Path of something in one deployment's declaration."""
    return ("deployments", deployment.name, *keys)


def roles(stack: Stack) -> Iterator[tuple[Deployment, RoleName, Role]]:
    """Both roles of every deployment."""
    for deployment in stack.deployments.values():
        for name in ROLES:
            yield deployment, name, deployment.role(name)


def alternatives(values: Iterable[object]) -> str:
    """Values of which any is right, for a remedy."""
    return " or ".join(map(str, values))


def shown(value: object) -> str:
    """A value as it stands in the stack file, no longer than a line."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - a line


def did_you_mean(given: object, names: Iterable[str], otherwise: str) -> str:
    """The name that looks like what was given, for a remedy; ``otherwise`` where none does."""
    nearest = difflib.get_close_matches(str(given), names, n=1)
    return f"did you mean {nearest[0]}?" if nearest else otherwise


def one_of(names: Iterable[str], given: object = "") -> str:
    """A list of names for a remedy, first those that look like what was given."""
    known = sorted(names)
    folded = {name.lower(): name for name in known}
    nearest = [folded[name] for name in difflib.get_close_matches(str(given).lower(), folded, n=3, cutoff=0.5)]
    return ", ".join(dict.fromkeys([*nearest, *known])) or "(none)"
