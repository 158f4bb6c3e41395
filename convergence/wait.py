"""Waiting until a deployment serves: the loop around the pure verdict."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from convergence.diagnosis import NAMES_SHOWN, Ready, Stuck, Waiting, diagnose, remember
from convergence.goal import Goal
from convergence.history import History
from convergence.outlast import Say, Sleep, outlast
from convergence.standing import Slot
from convergence.symptoms import Cause, NotConvergedError
from live import paths
from live.api import Api, ApiRefusedError, ClusterError, Object
from live.pods import is_ready
from live.resources import read_room
from live.snapshot import Snapshot, read_snapshot
from render.names import CONTROLLER_NAME, ENTRY_LABEL, GROUP_LABEL, NAME_LABEL, ROLE_ID_LABEL, ROLE_LABEL, selector

POLL_SECONDS = (0.2, 1.0)
"""between two looks: from short, for what is nearly done, to long within ten seconds"""
TIMES_ASKING = 2
"""at least so many times as long as the answers took: a cluster that has much to do is asked less often"""
SAY_SECONDS = 10.0
EVENTS_AFTER = 15.0
"""what starts as it should has no events worth asking for"""
ASK_AGAIN_SECONDS = 10.0
READY_LOOKS = 2
"""a status that is written while an update comes in has the update's generation beside the figures of before"""
SETTLE_SECONDS = {"RoleRollingUpdate": 1.0}
"""between these looks, by rollout strategy: while roles are replaced the status may be right by chance for longer (measured)"""
_CONFLICT = 409


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
    watch = _Watch(api, goal, say, clock)
    return await outlast(watch.look, say=watch.tell, pause=watch.pause, clock=clock, sleep=sleep)


class _Watch:
    """One ModelServing, and what has been seen of it."""

    def __init__(self, api: Api, goal: Goal, say: Say, clock: Callable[[], float]) -> None:
        self._api, self._goal, self._clock = api, goal, clock
        self._began = self._asked = clock()
        self._history = History(progress_at=self._began)
        self._said, self._said_at = "", float("-inf")
        self._say = say
        self._events: tuple[Object, ...] = ()
        self._events_at = float("-inf")
        self._ready = 0
        self._settling = 0.0

    async def look(self) -> Snapshot | None:
        """What is there, once it was ready in several looks.

        Raises:
            NotConvergedError: it will not converge.
            ClusterError: the cluster refuses or does not answer.
        """
        seen = await self._read()
        now = self._clock()
        self._history = remember(self._goal, self._history, seen, now)
        verdict = diagnose(self._goal, seen, self._history, now)
        match verdict:
            case Stuck(causes):
                raise NotConvergedError(await _with_room(self._api, causes))
            case Ready():
                self._ready, self._settling = self._ready + 1, _settling(self._goal, seen)
                return seen if self._ready >= READY_LOOKS else None
            case Waiting():
                self._ready = 0
                self.tell(verdict.progress)
                if verdict.is_controller_silent and now - self._asked >= ASK_AGAIN_SECONDS:
                    self._asked = now
                    self._history = await _look_closer(self._api, self._goal, seen, verdict.lacking, self._history)
                return None

    def pause(self, took: float) -> float:
        """Seconds until the next look, by those that the last one took."""
        shortest, longest = POLL_SECONDS
        poll = min(longest, max(shortest, (self._clock() - self._began) / 10))
        return self._settling if self._ready else max(TIMES_ASKING * took, poll)

    def tell(self, line: str) -> None:
        """Say what has changed, and that not too often."""
        if line != self._said and self._clock() - self._said_at >= SAY_SECONDS:
            self._say(line)
            self._said, self._said_at = line, self._clock()

    async def _read(self) -> Snapshot:
        started = self._clock()
        is_due = started >= max(self._events_at + ASK_AGAIN_SECONDS, self._history.progress_at + EVENTS_AFTER)
        kept = self._goal.partition not in {0, "0%"}  # only who keeps a revision has to look it up
        seen = await read_snapshot(self._api, self._goal.namespace, self._goal.deployment, events=is_due, revisions=kept)
        if is_due:
            self._events, self._events_at = seen.events, started
        return replace(seen, events=self._events)


def _settling(goal: Goal, seen: Snapshot) -> float:
    serving = next(one for one in seen.model_servings if one["metadata"]["name"] == goal.model_serving)
    strategy = (serving["spec"].get("rolloutStrategy") or {}).get("type", "")
    return SETTLE_SECONDS.get(strategy, POLL_SECONDS[0])


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
        pods = await api.list(paths.pods(namespace), selector(deployment["spec"]["selector"]["matchLabels"]))
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
    found = read_room(nodes, pods)
    for resource in resources:
        if "/" not in resource:
            continue  # cpu and memory are no whole numbers
        free = Counter({node: left[resource] for node, left in found.free.items() if resource in left})
        held = Counter({namespace: asked[resource] for namespace, asked in found.held.items() if resource in asked})
        left = ", ".join(f"{count} on {node}" for node, count in free.most_common(NAMES_SHOWN)) or "none"
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
