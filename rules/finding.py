"""One thing that is wrong with a stack file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from models.deployment import Deployment

PROJECT = "kthena-pd"
Path = tuple[str | int, ...]
"""Keys from the top of the stack file's ``config``, for example ``("deployments", "deepseekv4-pd", "ratio")``"""

_PLAIN_KEY = re.compile(r"[\w-]+")


@dataclass(frozen=True)
class Finding:
    """An error: code, place, what is wrong, what would be right."""

    code: str
    path: Path
    problem: str
    remedy: str

    file: str = ""
    """name of the stack file, where the line is known"""
    line: int = 0
    """from 1"""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line} " if self.line else ""
        return f"{self.code} {place}{dotted(self.path)}: {self.problem}\n      -> {self.remedy}"


class StackError(Exception):
    """The stack file can't be deployed as it is; the message shows every finding, in the order of the file."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(sorted(findings, key=lambda finding: (finding.line, str(finding.path), finding.code)))
        count = len(self.findings)
        heading = f"{count} mistake{'s' if count > 1 else ''} in the stack file; nothing was changed:"
        super().__init__("\n".join([heading, *(f"  {finding}" for finding in self.findings)]))


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


def one_of(names: Iterable[str]) -> str:
    """A list of names for a remedy."""
    return ", ".join(sorted(names)) or "(none)"
