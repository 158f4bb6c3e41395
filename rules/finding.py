"""One thing that is wrong with a stack file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from models.deployment import ROLES, Deployment, Role, RoleName
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
    """name of the stack file, where the line is known"""
    line: int = 0
    """from 1"""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line} " if self.line else ""
        severity = "" if self.severity == "error" else f"{self.severity}: "
        return f"{self.code} {place}{dotted(self.path)}: {severity}{self.problem}\n      -> {self.remedy}"


@dataclass(frozen=True)
class Rule:
    """One rule; ``why`` and ``source`` are what its page says."""

    code: str
    severity: Severity
    source: str
    """where the rule is from"""
    find: Callable[[Stack], Iterator[Problem]]

    @property
    def name(self) -> str:
        """The rule as a phrase: what holds where it is kept."""
        return self.find.__name__.replace("_", " ")

    @property
    def why(self) -> str:
        """What goes wrong otherwise."""
        return inspect.cleandoc(self.find.__doc__ or "")

    def __call__(self, stack: Stack) -> Iterator[Finding]:
        """Findings of this rule in ``stack``."""
        for path, what, remedy in self.find(stack):
            yield Finding(self.code, path, what, remedy, self.severity)


def rule(code: str, source: str, severity: Severity = "error") -> Callable[[Callable[[Stack], Iterator[Problem]]], Rule]:
    """Make a rule of a function; its docstring says what goes wrong where the rule is broken."""
    return lambda find: Rule(code, severity, source, find)


class StackError(Exception):
    """The stack file can't be deployed as it is; the message shows every finding, in the order of the file."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(sorted(findings, key=lambda finding: (finding.line, str(finding.path), finding.code)))
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
        elif _PLAIN_KEY.fullmatch(key):
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


def one_of(names: Iterable[str]) -> str:
    """A list of names for a remedy."""
    return ", ".join(sorted(names)) or "(none)"
