"""``pd check``: findings of stack files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from catalog import CatalogError
from cli.formats import FORMATS
from rules import Finding, StackError, read_file

NOTHING, FOUND, UNREADABLE = 0, 1, 2
"""exit codes"""


HELP = """\
Check stack files as `pulumi up` would, each with its base, without a cluster, Pulumi or its state. Two things are left to Pulumi:
whether the kubeconfig has the declared context, and settings that come from Pulumi.yaml or from an environment of Pulumi ESC."""

HELP_MORE = """\
examples:
  pd check                                       all Pulumi.*.yaml of this directory
  pd check --strict --format sarif Pulumi.prod.yaml > findings.sarif

exit code:
  0  no errors; with --strict no warnings either
  1  findings that stop a deployment
  2  a file could not be opened, or the command line is wrong

Each code has a page in docs/rules."""


def define(command: argparse.ArgumentParser) -> None:
    """Arguments and help."""
    command.description, command.epilog = HELP, HELP_MORE
    command.add_argument("files", nargs="*", type=Path, metavar="STACKFILE", help="default: all Pulumi.*.yaml of this directory")
    command.add_argument("--format", choices=FORMATS, default="text", help="github: annotations of GitHub Actions")
    command.add_argument("--strict", action="store_true", help="warnings count as errors")
    command.set_defaults(run=lambda given: run(given.files, given.format, strict=given.strict))


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
