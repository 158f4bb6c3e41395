"""``pd COMMAND``: reads the command line, and says what is wrong with it or with the files that it names."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from cli import check
from cli.formats import FORMATS

CHECK = """\
Check stack files as `pulumi up` would, without a cluster, Pulumi or its state. Two things are left to Pulumi: whether the
kubeconfig has the declared context, and settings that come from Pulumi.yaml or from an environment of Pulumi ESC."""

CHECK_MORE = """\
examples:
  pd check                                       all Pulumi.*.yaml of this directory
  pd check --strict --format sarif Pulumi.prod.yaml > findings.sarif

exit code:
  0  no errors; with --strict no warnings either
  1  findings that stop a deployment
  2  a file could not be opened, or the command line is wrong

Each code has a page in docs/rules."""


def main() -> int:
    """Run one command; its exit code."""
    arguments = _parser().parse_args()
    # A name in a stack file may hold characters that a terminal's encoding has not.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # both are files here
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"error: the findings can't be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in it is not tried again at the end
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pd", description="Prefill/decode deployments on the command line.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "check",
        help="say what is wrong with stack files",
        description=CHECK,
        epilog=CHECK_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("files", nargs="*", type=Path, metavar="STACKFILE", help="default: all Pulumi.*.yaml of this directory")
    command.add_argument("--format", choices=FORMATS, default="text", help="github: annotations of GitHub Actions")
    command.add_argument("--strict", action="store_true", help="warnings count as errors")
    command.set_defaults(run=lambda given: check.run(given.files, given.format, strict=given.strict))
    return parser


if __name__ == "__main__":
    sys.exit(main())
