"""What ends a command with a message."""

from __future__ import annotations

from collections.abc import Sequence

from rules.finding import Finding


class UnreadableError(Exception):
    """The stack file or the cluster can't be read; the text is for the user."""


class MistakesError(UnreadableError):
    """The stack file can be read, and can't be deployed as it is."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = findings
        super().__init__("\n".join(["there are mistakes in the stack file:", *(f"  {finding}" for finding in findings)]))
