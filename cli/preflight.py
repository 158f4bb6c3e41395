"""``pd preflight``: what the cluster lacks for a stack."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from cli.edits import define_arguments, reading
from cli.errors import MistakesError
from cli.formats import Format, json_text, text
from live.api import Api
from live.plan import Plan
from live.survey import Survey, read_survey
from preflight import preflight
from rules import Finding
from rules.layers import declared

FITS, LACKS = 0, 1
"""exit codes"""

HELP = """\
Say what the cluster lacks for a stack: permissions, Kthena's release, scheduler and queue, namespaces, Secrets and claims,
quotas, NPUs in pieces that the pods fit into, their generation and the hosts' architecture. Nothing is changed. `pulumi preview`
and `pulumi up` do the same before anything else, unless cluster.preflight is false."""

HELP_MORE = """\
examples:
  pd preflight Pulumi.prod.yaml
  pd preflight --format json Pulumi.prod.yaml | jq -r '.findings[] | select(.severity == "error") | .problem'

exit code:
  0  no errors: warnings are what may stop it, or could not be looked at
  1  the stack can't run on the cluster as both are, or has mistakes: then these are shown, and the cluster is not asked
  2  the stack file or the cluster can't be read, or the command line is wrong

The codes are in docs/preflight.md."""

FORMATS: Mapping[str, Format] = {"text": text, "json": json_text}


def define(command: argparse.ArgumentParser) -> None:
    """Arguments and help."""
    command.description, command.epilog = HELP, HELP_MORE
    define_arguments(command, FORMATS, run)


def run(stack_file: Path, style: str) -> int:
    """Print what the cluster lacks for the stack of one stack file, or else what is wrong with that.

    Returns:
        The exit code.

    Raises:
        UnreadableError: it, or the cluster, can't be read.
    """
    found = _findings(stack_file)
    print(FORMATS[style](found, 1), end="")
    return LACKS if any(finding.severity == "error" for finding in found) else FITS


def _findings(stack_file: Path) -> Sequence[Finding]:
    """All findings with their places in the file; where it has mistakes, these.

    Raises:
        UnreadableError: it, or the cluster, can't be read.
    """
    try:
        with reading(stack_file) as (stack, source):
            plan = Plan(stack)
            survey = asyncio.run(_survey(plan))
    except MistakesError as error:
        return error.findings
    whole = declared(source.config, source)
    return [whole.placed(finding) for finding in preflight(plan, survey)]


async def _survey(plan: Plan) -> Survey:
    return await read_survey(await Api.connect(plan.stack.cluster.context), plan)
