"""``pd drift``: what in the cluster is not as declared, by whom, and what `pulumi up` would do about it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from cli.edits import define_arguments, read_stack_edits
from impact.drift import Drift, drift_of

NOTHING, DRIFTED = 0, 1
"""exit codes"""
HELP = """\
Compare what a stack file declares with what the cluster has: who changed what since the last `pulumi up`, and what the next one
will do about it. Nothing is changed. It reads the cluster with your kubeconfig, and needs neither Pulumi nor its state."""

HELP_MORE = """\
examples:
  pd drift Pulumi.prod.yaml
  pd drift --format json Pulumi.prod.yaml | jq '.drift[] | select(.kind == "human")'

exit code:
  0  all is as declared; numbers that a declared autoscaler has chosen are shown, and are no drift
  1  something differs, or would be refused
  2  the stack file or the cluster can't be read, or the command line is wrong"""


def define(command: argparse.ArgumentParser) -> None:
    """Arguments and help."""
    command.description, command.epilog = HELP, HELP_MORE
    define_arguments(command, FORMATS, run)


def run(stack_file: Path, style: str) -> int:
    """Print what differs from one stack file.

    Returns:
        The exit code.

    Raises:
        UnreadableError: it, or the cluster, can't be read, or it has mistakes.
    """
    edits, _, manager = read_stack_edits(stack_file)
    problems = [problem for edit in edits for problem in edit.problems()]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    found = drift_of(edits, manager)
    print(FORMATS[style](found, sum(len(edit.objects) + len(edit.deleted) for edit in edits)), end="")
    return NOTHING if not problems and all(one.is_as_declared for one in found) else DRIFTED


def _text(found: Sequence[Drift], objects: int) -> str:
    """For people: each object with its fields, and their number."""
    blocks = ["\n".join([name, *(f"  {one}" for one in of_object)]) for name, of_object in groupby(found, lambda one: one.object)]
    drifted = sum(not one.is_as_declared for one in found)
    summary = f"{drifted or 'no'} difference{'' if drifted == 1 else 's'} in {objects} object{'' if objects == 1 else 's'}"
    return "\n\n".join([*blocks, summary]) + "\n"


def _json(found: Sequence[Drift], objects: int) -> str:
    """One object: ``objects`` is a number, ``drift`` a list of :class:`impact.drift.Drift`; a value of null is absent."""
    return json.dumps({"objects": objects, "drift": [asdict(one) for one in found]}, indent=2) + "\n"


FORMATS: Mapping[str, Callable[[Sequence[Drift], int], str]] = {"text": _text, "json": _json}
