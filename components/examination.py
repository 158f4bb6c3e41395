"""What a run of the program is about to do to the cluster: looked at before anything is registered."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

import pulumi

from impact.drift import drift_of, reverted, taken_over
from impact.report import Impact, assess, text, two_steps
from live import paths
from live.api import Api, ApiRefusedError, ClusterError, MissingKindError, Object, UnknownKindError
from live.edits import Edit, read_edits, read_free, retire_autoscalers, revert
from live.plan import Plan
from live.survey import read_survey
from models.cluster import Cluster
from models.stack import Stack
from preflight import missing_kinds, missing_namespaces, preflight
from render import control_plane_identity, render_control_plane, render_monitoring, render_namespace
from render.ownership import MANAGER, annotation, field_manager, owned
from rules import Finding

T = TypeVar("T")


class RefusedEditError(Exception):
    """What is declared can't be done as it is; the text is for the user."""


def examine(stack: Stack, placed: Callable[[Finding], Finding] = lambda finding: finding) -> tuple[Edit, ...]:
    """Tell what the edit does to the pods (in a preview) and what others wrote that it reverts; stop it if it can't be done.

    Args:
        stack: what is declared
        placed: gives a finding its place in the stack file

    Returns:
        The edits, for :func:`make_way`.

    Raises:
        RefusedEditError: the cluster lacks what the stack needs, the API server would refuse an object, another stack declares
            one too, or Kthena would make pods only to delete them again.
    """
    manager = field_manager(pulumi.get_project(), pulumi.get_stack())
    try:
        impacts, free, warnings = _in_thread(_examine(stack, manager, placed))
    except ClusterError as error:
        raise RefusedEditError(str(error)) from error
    for finding in warnings:
        pulumi.log.warn(str(finding))
    edits = tuple(impact.edit for impact in impacts)
    for line in reverted(drift_of(edits, manager)):
        pulumi.log.warn(line)
    if foreign := taken_over(edits, manager):
        objects = f"{len(foreign)} object{'s' * (len(foreign) != 1)}"
        pulumi.log.info(f"takes over {objects} that others have made: {', '.join(foreign)}; `pd drift` shows each field")
    if pulumi.runtime.is_dry_run():
        pulumi.log.info(text(impacts, free))
    return edits


def foretell_control_plane(cluster: Cluster, chart: Sequence[Object]) -> None:
    """In a preview tell which pods of Kthena's own are replaced: of an edit of the router Pulumi shows that there is one.

    Args:
        cluster: what is declared
        chart: objects of Kthena's chart, as :func:`components.template` gives them

    Raises:
        ChartError: the chart is not that of the declared version.
        RefusedEditError: the cluster does not answer.
    """
    if not pulumi.runtime.is_dry_run():
        return
    deployments = [item for item in render_control_plane(cluster, chart) if item["kind"] == "Deployment"]
    manager = field_manager(pulumi.get_project(), pulumi.get_stack())
    try:
        for line in _in_thread(_restarts(cluster.context, deployments, manager)):
            pulumi.log.info(line)
    except ClusterError as error:
        raise RefusedEditError(str(error)) from error


async def _restarts(context: str | None, deployments: Sequence[Object], manager: str) -> list[str]:
    """A line for each Deployment whose pods get another template; nothing of one that is new or that we may not see."""
    api = await Api.connect(context)

    async def restart(declared: Object) -> str:
        try:
            now = await api.get(paths.of(declared))
            stored = await api.apply(owned(declared, manager), manager, dry_run=True) if now else None
        except ApiRefusedError:
            return ""
        if now is None or stored is None or now["spec"]["template"] == stored["spec"]["template"]:
            return ""
        pods, strategy = now["spec"].get("replicas", 1), stored["spec"].get("strategy", {})
        surge = strategy.get("type") != "Recreate" and strategy.get("rollingUpdate", {}).get("maxSurge") != 0
        gap = "" if surge or pods > 1 else "; until the new one is ready, there is none"
        return f"{declared['metadata']['name']}: its {pods} pod{'' if pods == 1 else 's'} will be replaced{gap}"

    return [line for line in await asyncio.gather(*map(restart, deployments)) if line]


def make_way(stack: Stack, edits: Sequence[Edit]) -> None:
    """Take away, and bring back, what must be so before an ``up``; in a preview nothing.

    Raises:
        RefusedEditError: the cluster refuses, or does not answer.
    """

    async def work() -> None:
        api = await Api.connect(stack.cluster.context)
        with suppress(MissingKindError):  # of kinds that come with this stack there is nothing to take away
            await retire_autoscalers(api, stack, manager)
        await revert(api, edits, manager)

    if pulumi.runtime.is_dry_run():
        return
    manager = field_manager(pulumi.get_project(), pulumi.get_stack())
    try:
        _in_thread(work())
    except ClusterError as error:
        raise RefusedEditError(str(error)) from error


async def _examine(
    stack: Stack, manager: str, placed: Callable[[Finding], Finding]
) -> tuple[list[Impact], Mapping[str, int] | None, list[Finding]]:
    """What the edits do, in a preview what they have room for, and what may keep them from it."""
    api = await Api.connect(stack.cluster.context)
    looking = asyncio.ensure_future(_look(api, stack, placed))
    looking.add_done_callback(lambda task: task.cancelled() or task.exception())  # where both fail, one is told
    try:
        edits, shared = await asyncio.gather(read_edits(api, stack, manager), _read_shared(api, stack.cluster))
    except MissingKindError:
        _refuse(_errors(await looking))  # where Kthena is missing, other things may be, too
        raise
    seen = await looking
    impacts = [assess(edit) for edit in edits]
    objects = [*shared, *(one.now for edit in edits for one in edit.objects if one.now)]
    _refuse(
        [
            *_errors(seen),
            *(
                problem
                for edit in edits
                if edit.namespace not in seen.missing_namespaces
                for problem in edit.problems(without=seen.missing_kinds)
            ),
            *_of_other_stacks(objects, manager),
            *(_protected(edits, stack) if stack.cluster.protect else ()),
            *(problem for impact in impacts if (problem := two_steps(impact, pulumi.get_stack()))),
        ]
    )
    free = seen.free
    if free is None and pulumi.runtime.is_dry_run():
        free = await read_free(api)
    return impacts, free, [finding for finding in seen.findings if finding.severity == "warning"]


@dataclass(frozen=True)
class _Seen:
    """What preflight has found; nothing where it is switched off."""

    findings: Sequence[Finding] = ()
    missing_namespaces: frozenset[str] = frozenset()
    missing_kinds: frozenset[str] = frozenset()
    free: Mapping[str, int] | None = None
    """extended resource -> number that no pod holds"""


async def _look(api: Api, stack: Stack, placed: Callable[[Finding], Finding]) -> _Seen:
    if not stack.cluster.preflight:
        return _Seen()
    plan = Plan(stack)
    survey = await read_survey(api, plan)
    findings = [placed(finding) for finding in preflight(plan, survey)]
    return _Seen(findings, missing_namespaces(plan, survey), missing_kinds(plan, survey), survey.free)


def _errors(seen: _Seen) -> list[str]:
    return [str(finding) for finding in seen.findings if finding.severity == "error"]


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise RefusedEditError("\n".join(["nothing was changed:", *(f"  {problem}" for problem in problems)]))


async def _read_shared(api: Api, cluster: Cluster) -> list[Object]:
    """The control plane and the namespaces that the stack declares, as they are; without what we may not see."""

    async def seen(declared: Object) -> Object | None:
        try:
            return await api.get(paths.of(declared))
        except (ApiRefusedError, UnknownKindError):
            return None

    declared = [*control_plane_identity(cluster), *render_monitoring(cluster), *map(render_namespace, cluster.namespaces)]
    return [item for item in await asyncio.gather(*map(seen, declared)) if item]


def _protected(edits: Sequence[Edit], stack: Stack) -> Iterator[str]:
    """What would go of a protected stack. Pulumi finds that only in a preview, and without one when others have gone already."""
    for edit in edits:
        is_declared = edit.deployment in stack.deployments and not edit.moved_to
        gone = [item for item in edit.deleted if not is_declared or item["kind"] == "ModelRoute"]
        if gone:
            names = ", ".join(f"{item['kind']} {item['metadata']['name']}" for item in gone)
            yield (
                f"{edit.deployment}: {names} would be deleted, and cluster.protect is true\n"
                "      -> declare it again; or set cluster.protect to false, without other edits, and run `pulumi up` once before"
            )


def _of_other_stacks(objects: Sequence[Object], manager: str) -> Iterator[str]:
    """Both would be content, each with what the other has made, until one of them is destroyed."""
    found = defaultdict(list)
    for item in objects:
        metadata = item["metadata"]
        other = annotation(item, MANAGER)
        if other is not None and other != manager:
            found[other].append(" ".join([item["kind"], "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))]))
    for other, names in found.items():
        yield (
            f"{', '.join(names)}: made by another stack, of field manager {other}\n"
            "      -> declare each object in one stack only; the control plane: controlPlane.install: false in the others;\n"
            "         what watches the router: monitoring.router: false in the others\n"
            "      -> if that stack was renamed or is gone, take them over one by one:\n"
            f"         kubectl annotate KIND NAME {MANAGER}-"
        )


def _in_thread(work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, in a loop of its own: the program is run inside of one that can't be entered again."""
    with ThreadPoolExecutor(1) as thread:
        # which run of which stack this is, the SDK keeps in the context
        return thread.submit(copy_context().run, asyncio.run, work).result()
