"""``pd diff``: what `pulumi up` would do to the pods of a stack's deployments."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cli.edits import define_arguments, read_stack_edits
from impact.report import Impact, as_json, assess, text

NOTHING, CHANGES = 0, 1
"""exit codes, as those of ``diff``"""

HELP = """\
Say what `pulumi up` would do to the pods of a stack's deployments: which are added, removed or replaced, what can serve
meanwhile, which NPUs it takes and which the deployments above it leave free, and what goes with its pods or without them. The
API server is asked what it would store, and nothing is changed. It reads the cluster with your kubeconfig, and needs neither
Pulumi nor its state. Kthena's own controller and router, for which its chart is needed, are not looked at: `pulumi preview` says
whether their pods will be replaced."""

HELP_MORE = """\
examples:
  pd diff Pulumi.prod.yaml
  pd diff --format json Pulumi.prod.yaml | jq '.deployments[] | select(.capacity.lowest.groups == 0) | .name'

exit code:
  0  nothing to do: all deployments are as declared
  1  something would change, or be refused
  2  the stack file or the cluster can't be read, or the command line is wrong"""

FORMATS: Mapping[str, Callable[[Sequence[Impact], Mapping[str, int] | None], str]] = {"text": text, "json": as_json}


def define(command: argparse.ArgumentParser) -> None:
    """Arguments and help."""
    command.description, command.epilog = HELP, HELP_MORE
    define_arguments(command, FORMATS, run)


def run(stack_file: Path, style: str) -> int:
    """Print what the stack of one stack file would change.

    Returns:
        The exit code.

    Raises:
        UnreadableError: it, or the cluster, can't be read, or it has mistakes.
    """
    edits, left, _ = read_stack_edits(stack_file, room=True)
    impacts = [assess(edit) for edit in edits]
    print(FORMATS[style](impacts, left), end="")
    return NOTHING if all(edit.is_nothing for edit in edits) else CHANGES
