"""``pd check``: findings of stack files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from catalog import CatalogError
from cli.formats import FORMATS
from rules import Finding, StackError, read_file

NOTHING, FOUND, UNREADABLE = 0, 1, 2
"""exit codes"""


def run(files: Sequence[Path], style: str, *, strict: bool) -> int:
    """Print the findings of all ``files``, or of those in the current directory; what can't be opened goes to standard error.

    Returns:
        The exit code.
    """
    given = files or sorted(Path().glob("Pulumi.*.yaml"))
    if not given:
        print("error: no Pulumi.*.yaml in this directory; name a stack file", file=sys.stderr)
        return UNREADABLE
    found: list[Finding] = []
    unreadable = 0
    for file in given:
        try:
            found += findings(file)
        except OSError as error:
            print(f"error: {file}: {error.strerror}", file=sys.stderr)
            unreadable += 1
        except CatalogError as error:
            print(f"error: the catalogue is wrong:\n{error}", file=sys.stderr)
            return UNREADABLE
    if unreadable < len(given):
        print(FORMATS[style](found, len(given) - unreadable), end="")
    if unreadable:
        return UNREADABLE
    return FOUND if any(strict or finding.severity == "error" for finding in found) else NOTHING


def findings(file: Path) -> list[Finding]:
    """Everything that is wrong with one stack file, in its order.

    Raises:
        OSError: there is no such file, or it may not be read.
    """
    try:
        return read_file(file)[1]
    except StackError as error:
        return list(error.findings)
