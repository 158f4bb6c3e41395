"""Waiting until a deployment serves: the loop around the pure verdict."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from convergence.diagnosis import NAMES_SHOWN, Ready, Stuck, Waiting, diagnose, remember
from convergence.goal import Goal
from convergence.history import History
from convergence.standing import Slot, is_ready, status_of
from convergence.symptoms import Cause, requested
from live import paths
from live.api import Api, ApiRefusedError, ClusterError, Object, UnreachableError
from live.router import RouterView, read_router
from live.snapshot import Snapshot, read_snapshot
from render.names import CONTROLLER_NAME, ENTRY_LABEL, GROUP_LABEL, NAME_LABEL, ROLE_ID_LABEL, ROLE_LABEL

T = TypeVar("T")
Say = Callable[[str], None]
Sleep = Callable[[float], Awaitable[object]]

POLL_SECONDS = (0.2, 1.0)
"""between two looks: from short, for what is nearly done, to long within ten seconds"""
TIMES_ASKING = 2
"""at least so many times as long as the answers took: a cluster that has much to do is asked less often"""
SAY_SECONDS = 10.0
EVENTS_AFTER = 15.0
"""what starts as it should has no events worth asking for"""
ASK_AGAIN_SECONDS = 10.0
UNREACHABLE_SECONDS = 60.0
"""an API server that is being restarted is back by then"""
READY_LOOKS = 2
"""a status that is written while an update comes in has the update's generation beside the figures of before"""
SETTLE_SECONDS = {"RoleRollingUpdate": 1.0}
"""between these looks, by rollout strategy: while roles are replaced the status may be right by chance for longer (measured)"""
ROUTER_PATIENCE_SECONDS = 5.0
"""for a router that hears of every change"""
ROUTER_SECONDS = 30.0
TOUCHED_ANNOTATION = "kthena-pd/touched"
_TRANSIENT = (429, 500, 502, 503, 504)
_CONFLICT = 409
_ENDED = ("Succeeded", "Failed")


class NotConvergedError(Exception):
    """A deployment will not become ready."""

    def __init__(self, causes: Sequence[Cause]) -> None:
        self.causes = tuple(causes)
        super().__init__("it can't become ready:" + "".join(f"\n  {cause}" for cause in self.causes))


async def wait(
    api: Api,
    goal: Goal,
    *,
    say: Say,
    clock: Callable[[], float] = time.time,
    sleep: Sleep = asyncio.sleep,
) -> Snapshot:
    """Wait until a ModelServing is what is declared, and serves.

    Args:
        api: The cluster.
        goal: What it is to become.
        say: Called with how far it is, when that changes.
        clock: Seconds since the epoch.
        sleep: Waits for some seconds.

    Returns:
        What was there when it had converged.

    Raises:
        NotConvergedError: it will not converge, or has made no progress in its time.
        ClusterError: the cluster refuses, or does not answer for a minute.
    """
    began = answered = clock()
    history, news = History(progress_at=began), _News(say, clock)
    ready, asked, pause = 0, began, 0.0
    events: tuple[Object, ...] = ()
    events_at = float("-inf")
    while True:
        started = clock()
        try:
            is_due = started >= max(events_at + ASK_AGAIN_SECONDS, history.progress_at + EVENTS_AFTER)
            seen = await _read(api, goal, events=is_due)
            if is_due:
                events, events_at = seen.events, started
            seen = replace(seen, events=events)
            answered = clock()
            history = remember(goal, history, seen, answered)
            verdict = diagnose(goal, seen, history, answered)
            match verdict:
                case Ready():
                    ready, pause = ready + 1, _settling(goal, seen)
                    if ready >= READY_LOOKS:
                        return seen
                case Stuck(causes):
                    raise NotConvergedError(await _with_room(api, causes))
                case Waiting():
                    ready = 0
                    news.tell(verdict.progress)
                    if verdict.is_controller_silent and answered - asked >= ASK_AGAIN_SECONDS:
                        asked = answered
                        history = await _look_closer(api, goal, seen, verdict.lacking, history)
        except ClusterError as error:
            if not _may_pass(error) or clock() - answered >= UNREACHABLE_SECONDS:
                raise
            news.tell(f"the cluster does not answer: {error}")
        await sleep(pause if ready else max(TIMES_ASKING * (clock() - started), _poll(clock() - began)))


async def wait_for_router(  # noqa: PLR0913  # who, of whom, and what is expected
    api: Api,
    *,
    control_plane: str,
    debug_port: int,
    namespace: str,
    model_server: str,
    prefill: frozenset[str],
    decode: frozenset[str],
    say: Say,
    clock: Callable[[], float] = time.time,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Wait until every pod of the router has sorted exactly these pods, and help where it has not.

    A router of Kthena v1.0.0 that starts beside running pods sorts a pod into prefill or decode only if it hears of the
    ModelServer first; otherwise not before the pod's object changes (``store.AddOrUpdatePod``). So the pods get an annotation.

    Args:
        api: The cluster.
        control_plane: Namespace of the router.
        debug_port: Its debug port.
        namespace: Of the ModelServer.
        model_server: Its name.
        prefill: Names of the prefill pods that take requests.
        decode: Of the decode pods.
        say: Called once where the router can't be asked.
        clock: Seconds since the epoch.
        sleep: Waits for some seconds.

    Raises:
        NotConvergedError: the router knows other pods.
        ClusterError: the pods can't be annotated.
    """
    began, touched = clock(), False
    wanted = RouterView(prefill, decode)
    while True:
        try:
            views = await read_router(api, control_plane, debug_port, namespace, model_server)
        except ClusterError as error:
            if not _may_pass(error) or clock() - began >= ROUTER_PATIENCE_SECONDS:
                say(f"whether the router has paired the pods could not be looked at: {error}")
                return
        else:
            if all(view == wanted for view in views):
                return
            if clock() - began >= ROUTER_SECONDS:
                raise NotConvergedError((_unpaired(namespace, model_server, views, wanted),))
            if not touched and clock() - began >= ROUTER_PATIENCE_SECONDS:
                touched = True
                annotation = {"metadata": {"annotations": {TOUCHED_ANNOTATION: str(round(clock()))}}}
                await asyncio.gather(*(api.patch(paths.pods(namespace, pod), annotation) for pod in sorted(prefill | decode)))
        await sleep(POLL_SECONDS[1])


async def outlast(ask: Callable[[], Awaitable[T]], *, clock: Callable[[], float] = time.time, sleep: Sleep = asyncio.sleep) -> T:
    """What ``ask`` answers; asked again for a minute while the cluster does not answer.

    Raises:
        ClusterError: the cluster refuses, or does not answer for a minute.
    """
    began = clock()
    while True:
        try:
            return await ask()
        except ClusterError as error:
            if not _may_pass(error) or clock() - began >= UNREACHABLE_SECONDS:
                raise
        await sleep(POLL_SECONDS[1])


async def _read(api: Api, goal: Goal, *, events: bool) -> Snapshot:
    kept = goal.partition not in {0, "0%"}  # only who keeps a revision has to look it up
    return await read_snapshot(api, goal.namespace, goal.deployment, events=events, revisions=kept)


def _poll(waited: float) -> float:
    shortest, longest = POLL_SECONDS
    return min(longest, max(shortest, waited / 10))


def _settling(goal: Goal, seen: Snapshot) -> float:
    serving = next(one for one in seen.model_servings if one["metadata"]["name"] == goal.model_serving)
    strategy = (serving["spec"].get("rolloutStrategy") or {}).get("type", "")
    return SETTLE_SECONDS.get(strategy, POLL_SECONDS[0])


def _unpaired(namespace: str, model_server: str, views: list[RouterView], wanted: RouterView) -> Cause:
    def words(view: RouterView) -> str:
        return f"prefill {', '.join(sorted(view.prefill)) or 'none'}; decode {', '.join(sorted(view.decode)) or 'none'}"

    known = next(view for view in views if view != wanted)
    return Cause(
        "router",
        f"ModelServer {namespace}/{model_server}",
        f"after {ROUTER_SECONDS:.0f} s a router knows {words(known)}; it should know {words(wanted)}",
        "restart the router: kubectl rollout restart deployment/kthena-router in its namespace",
    )


class _News:
    """Says what changes, and not too often."""

    def __init__(self, say: Say, clock: Callable[[], float]) -> None:
        self._say, self._clock = say, clock
        self._said, self._at = "", float("-inf")

    def tell(self, line: str) -> None:
        if line != self._said and self._clock() - self._at >= SAY_SECONDS:
            self._say(line)
            self._said, self._at = line, self._clock()


def _may_pass(error: ClusterError) -> bool:
    return isinstance(error, UnreachableError) or (isinstance(error, ApiRefusedError) and error.code in _TRANSIENT)


async def _look_closer(api: Api, goal: Goal, seen: Snapshot, lacking: Slot | None, history: History) -> History:
    """Ask why the controller does nothing: does it run, and would the API server take the pod that is missing? Then wake it."""
    (controller, is_off), refusal = await asyncio.gather(_controller(api, goal.control_plane), _refusal(api, goal, seen, lacking))
    wakes = lacking is not None and not (controller or refusal or history.woken)
    if wakes:
        await _wake(api, goal, seen)
    woken = wakes or history.woken
    return replace(history, controller=controller, controller_is_off=is_off, refusal=refusal, woken=woken)


async def _wake(api: Api, goal: Goal, seen: Snapshot) -> None:
    """Have the controller try again now: after pods were refused it lets up to 1000 s pass (``AddRateLimited``).

    It takes up a ModelServing at once when its spec changes, and no plugins differ from an empty list of them (``DeepEqual``).
    """
    serving = next(one for one in seen.model_servings if one["metadata"]["name"] == goal.model_serving)
    if serving["spec"].get("plugins"):
        return
    with suppress(ApiRefusedError):  # who may only read waits longer
        path = paths.model_servings(goal.namespace, goal.model_serving)
        await api.patch(path, {"spec": {"plugins": []}})
        await api.patch(path, {"spec": {"plugins": None}})


async def _controller(api: Api, namespace: str) -> tuple[str, bool]:
    """What keeps Kthena's controller from working, and whether somebody has to act for it to come back.

    The first is empty if it works, or if that is not ours to see.
    """
    try:
        deployment = await api.get(paths.deployments(namespace, CONTROLLER_NAME))
        if deployment is None:
            return f"there is no Deployment {CONTROLLER_NAME} in namespace {namespace}", False
        if deployment["spec"].get("replicas") == 0:
            return f"Deployment {namespace}/{CONTROLLER_NAME} is scaled to 0", True
        if (deployment.get("status") or {}).get("availableReplicas"):
            return "", False
        selector = ",".join(f"{key}={value}" for key, value in deployment["spec"]["selector"]["matchLabels"].items())
        pods = await api.list(paths.pods(namespace), selector)
    except ApiRefusedError:
        return "", False
    reasons = [reason for pod in pods if not is_ready(pod) for reason in _reasons(pod)]
    because = f" ({'; '.join(reasons)})" if reasons else ""
    return f"no pod of Deployment {namespace}/{CONTROLLER_NAME} is available{because}", False


async def _with_room(api: Api, causes: Iterable[Cause]) -> tuple[Cause, ...]:
    """``causes``, and where what is short is and who has it, as far as we may see that."""
    causes = tuple(causes)
    if not any(cause.short for cause in causes):
        return causes
    try:
        nodes, pods = await asyncio.gather(api.list(paths.nodes()), api.list(paths.pods()))
    except ClusterError:
        return causes
    return tuple(
        replace(cause, problem=cause.problem + "".join(f"\n        | {line}" for line in room(cause.short, nodes, pods)))
        for cause in causes
    )


def room(resources: Iterable[str], nodes: Iterable[Object], pods: Iterable[Object]) -> Iterator[str]:
    """One line for each extended resource: what the nodes have left, and how much the pods of which namespace hold."""
    usable = {
        one["metadata"]["name"]: status_of(one).get("allocatable") or {} for one in nodes if not one["spec"].get("unschedulable")
    }
    placed = [one for one in pods if one["spec"].get("nodeName") in usable and status_of(one).get("phase") not in _ENDED]
    for resource in resources:
        if "/" not in resource:
            continue  # cpu and memory are no whole numbers
        free = Counter({node: int(allocatable.get(resource, 0)) for node, allocatable in usable.items()})
        held = Counter[str]()
        for pod in placed:
            asked = requested(pod, resource)
            if asked.isdecimal():
                free[pod["spec"]["nodeName"]] -= int(asked)
                held[pod["metadata"]["namespace"]] += int(asked)
        left = ", ".join(f"{count} on {node}" for node, count in free.most_common(NAMES_SHOWN) if count > 0) or "none"
        owners = ", ".join(f"{count} by namespace {name}" for name, count in held.most_common(NAMES_SHOWN)) or "none"
        yield f"{resource}: free {left}; held {owners}"


def _reasons(pod: Object) -> list[str]:
    status = pod.get("status") or {}
    waiting = [(one.get("state") or {}).get("waiting") or {} for one in status.get("containerStatuses") or ()]
    told = [": ".join(filter(None, (one.get("reason"), one.get("message")))) for one in waiting if one.get("reason")]
    return (
        told or [one["message"] for one in status.get("conditions") or () if one["status"] == "False" and one.get("message")][:1]
    )


async def _refusal(api: Api, goal: Goal, seen: Snapshot, lacking: Slot | None) -> str:
    """Why the API server would not take a pod that is missing; empty if it would."""
    serving = next((one for one in seen.model_servings if one["metadata"]["name"] == goal.model_serving), None)
    if lacking is None or serving is None:
        return ""
    try:
        await api.create(paths.pods(goal.namespace), pod_of(serving, lacking), dry_run=True)
    except ApiRefusedError as error:
        # that the user may not make pods says nothing of the controller, and one of this name may be there since
        about_the_user = error.code == _CONFLICT or "cannot create resource" in error.message
        return "" if about_the_user else error.message
    return ""


def pod_of(serving: Object, slot: Slot) -> Object:
    """The pod that Kthena would make, but for its environment."""
    metadata, spec = serving["metadata"], serving["spec"]
    role = next(one for one in spec["template"]["roles"] if one["name"] == slot.role)
    template = role["workerTemplate"] if slot.pod else role["entryTemplate"]
    given = template.get("metadata") or {}
    labels = {
        NAME_LABEL: metadata["name"],
        GROUP_LABEL: f"{metadata['name']}-{slot.group}",
        ROLE_LABEL: slot.role,
        ROLE_ID_LABEL: f"{slot.role}-{slot.replica}",
        **({} if slot.pod else {ENTRY_LABEL: "true"}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": slot.name(metadata["name"]),
            "namespace": metadata["namespace"],
            "labels": {**labels, **(given.get("labels") or {})},
            "annotations": given.get("annotations") or {},
        },
        "spec": {**template["spec"], "schedulerName": spec.get("schedulerName", "volcano")},
    }
