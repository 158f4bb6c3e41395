"""What a run of the program is about to do to the cluster: looked at before anything is registered."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pulumi

from impact import free
from impact.drift import drift_of, reverted
from impact.report import assess, text, two_steps
from live.api import Api, ClusterError
from live.edits import read_edits, read_nodes_and_pods, retire_autoscalers
from models.stack import Stack
from render.ownership import field_manager

T = TypeVar("T")


class RefusedEditError(Exception):
    """What is declared can't be done as it is; the text is for the user."""


def examine(stack: Stack) -> None:
    """Tell what the edit does to the pods (in a preview) and what others wrote that it reverts; stop it if it can't be done.

    Raises:
        RefusedEditError: the API server would refuse an object, another stack declares one too, or Kthena would make pods only to
            delete them again.
    """
    manager = field_manager(pulumi.get_project(), pulumi.get_stack())
    try:
        edits, left = _in_thread(_read(stack, manager))
    except ClusterError as error:
        raise RefusedEditError(str(error)) from error
    impacts = [assess(edit) for edit in edits]
    problems = [
        *(f"{edit.deployment}: the API server refuses {refusal}" for edit in edits for refusal in edit.refusals),
        *(problem for impact in impacts if (problem := two_steps(impact, pulumi.get_stack()))),
    ]
    found = drift_of(edits, manager)
    others = [one for one in found if one.kind == "other stack" and one.manager.startswith(f"pulumi-{pulumi.get_project()}-")]
    problems += [f"{one.object} {one}\n  -> take it out of one of the two stacks" for one in others]
    if problems:
        raise RefusedEditError("\n".join(["nothing was changed:", *(f"  {problem}" for problem in problems)]))
    for line in reverted(found):
        pulumi.log.warn(line)
    if not pulumi.runtime.is_dry_run():
        _in_thread(_retire(stack, manager))
    else:
        pulumi.log.info(text(impacts, free(*left) if left else None))


async def _read(stack: Stack, manager: str) -> Any:
    api = await Api.connect(stack.cluster.context)
    return await asyncio.gather(read_edits(api, stack, manager), read_nodes_and_pods(api))


async def _retire(stack: Stack, manager: str) -> None:
    await retire_autoscalers(await Api.connect(stack.cluster.context), stack, manager)


def _in_thread(work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, in a loop of its own: the program is run inside of one that can't be entered again."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
