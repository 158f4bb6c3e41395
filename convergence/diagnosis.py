"""The verdict on a deployment: ready, waiting, or stuck."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from convergence.goal import Goal
from convergence.history import History, add, elapsed
from convergence.standing import Slot, Standing, stand
from convergence.symptoms import LOOK_SECONDS, Cause, cut, event_time, explain_scheduling, owed, symptoms, undone, volume_problem
from live.api import Object
from live.pods import status_of
from live.snapshot import Snapshot

EVENTS_SHOWN = 3
NAMES_SHOWN = 3


@dataclass(frozen=True)
class Ready:
    """It is what is declared, and serves."""


@dataclass(frozen=True)
class Waiting:
    """It may become ready by itself."""

    progress: str
    """how far it is, and what it waits for"""
    is_controller_silent: bool = False
    """the controller ought to have acted: look whether it runs"""
    lacking: Slot | None = None
    """and whether the API server would take this pod"""


@dataclass(frozen=True)
class Stuck:
    """It will not become ready."""

    causes: tuple[Cause, ...]


Verdict = Ready | Waiting | Stuck


def remember(goal: Goal, history: History, seen: Snapshot, now: float) -> History:
    """``history`` with one more snapshot; ``now`` in seconds since the epoch."""
    standing = stand(goal, seen)
    history = add(history, standing, now)
    keys = [symptom.key for symptom in symptoms(goal, standing, seen, history)]
    return replace(history, since={key: history.since.get(key, now) for key in keys})


def diagnose(goal: Goal, seen: Snapshot, history: History, now: float) -> Verdict:
    """Judge a snapshot that ``history`` already has."""
    standing = stand(goal, seen)
    if standing.converged:
        return Ready()

    def lasts(key: tuple[str, ...]) -> float:
        return now - history.since.get(key, now)

    suspected = list(symptoms(goal, standing, seen, history))
    certain = {(one.cause.kind, one.cause.problem) for one in suspected if lasts(one.key) >= one.patience}
    if certain:
        # what is certain of one pod is the cause of those as well that have shown it for less long
        causes = [one.cause for one in suspected]
        return Stuck(_together(cause for cause in causes if (cause.kind, cause.problem) in certain))
    # what ends has its grace period, and then its successor the time to get a node and to load
    began = max(history.progress_at, min(history.freeing_at, history.progress_at + history.grace))
    if now - began >= goal.scheduling_timeout + goal.load_timeout:
        minutes = round((now - history.progress_at) / 60)
        problem = f"no progress in {minutes} min: {_progress(goal, standing, seen, history, now)}{_told(seen)}"
        return Stuck((Cause("timeout", f"ModelServing {goal.namespace}/{goal.model_serving}", problem, _remedy(standing)),))
    key = owed(goal, standing)
    silent = key is not None and lasts(key) >= LOOK_SECONDS
    lacking = standing.lacking[0] if silent and standing.lacking else None
    return Waiting(_progress(goal, standing, seen, history, now), silent, lacking)


def _together(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    """One cause for all objects that share it."""
    objects: dict[tuple[str, str], list[Cause]] = defaultdict(list)
    for cause in causes:
        objects[cause.kind, cause.problem].append(cause)
    return tuple(replace(same[0], object=_listed([cause.object for cause in same])) for same in objects.values())


def _listed(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _told(seen: Snapshot) -> str:
    """The newest warnings, below the problem."""
    newest = sorted((event for event in seen.events if event.get("type") == "Warning"), key=event_time)[-EVENTS_SHOWN:]
    return "".join(
        f"\n        | {event['involvedObject'].get('name')}: {event.get('reason')}: {event.get('message', '').strip()}"
        for event in newest
    )


def _remedy(standing: Standing) -> str:
    if standing.freeing:
        return (
            f"{_pods(standing.freeing)} should have ended by now: is there a finalizer, does the node run (kubectl get nodes)? "
            "pulumi up goes on from here"
        )
    return "where it only needs longer, raise readiness.loadTimeout; pulumi up goes on from here"


def _progress(goal: Goal, standing: Standing, seen: Snapshot, history: History, now: float) -> str:
    if standing.model_serving is None:
        return f"ModelServing {goal.namespace}/{goal.model_serving} is not there yet"
    counts = ", ".join(f"{role} {standing.ready(role)}/{number}" for role, number in (standing.wanted or {}).items())
    return f"{counts} ready; {_waits_for(goal, standing, seen, history, now)}"


def _waits_for(goal: Goal, standing: Standing, seen: Snapshot, history: History, now: float) -> str:
    """The one thing that has to happen first."""
    if standing.contested:
        return f"the ModelServing is not as declared: {standing.contested}"
    if not standing.observed:
        return f"{undone(standing)} yet"
    if standing.lacking and history.refusal:
        return f"{standing.lacking[0].name(goal.model_serving)} is refused: {history.refusal}"
    if standing.unready:
        states = sorted(
            ((*_state(pod, seen, now), pod["metadata"]["name"]) for pod in standing.unready), key=lambda one: (one[0], one[2])
        )
        _, state, name = states[0]
        return f"{name} {state}"
    if standing.terminating:
        return f"{_pods(standing.terminating)} {'are' if len(standing.terminating) > 1 else 'is'} ending"
    return undone(standing) if standing.complete else f"{undone(standing)} yet"


def _state(pod: Object, seen: Snapshot, now: float) -> tuple[int, str]:
    """How far a pod is that does not serve, the less the lower, and that in words."""
    status = status_of(pod)
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    if status.get("phase") == "Failed":
        return 0, f"has failed ({status.get('reason') or 'a container ended'})"
    if scheduled.get("status") != "True" and not pod["spec"].get("nodeName"):
        problem, _ = (
            explain_scheduling(pod, scheduled.get("message", "")) if scheduled.get("message") else ("it waits for a node", "")
        )
        return 1, f"is not scheduled: {problem}"
    of_init, of_main = (list(status.get(key) or ()) for key in ("initContainerStatuses", "containerStatuses"))
    for one in of_init + of_main:
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            why = f": {cut(waiting['message'])}" if waiting.get("message") else ""
            return 2, f"does not start: container {one['name']}: {waiting['reason']}{why}"
    for one in of_init:
        running = (one.get("state") or {}).get("running")
        if running and not one.get("started"):
            return 3, f"runs init container {one['name']} ({elapsed(running.get('startedAt'), now):.0f} s)"
    loading = [one for one in of_main if not one.get("ready") and (one.get("state") or {}).get("running")]
    if loading:
        running = elapsed(loading[0]["state"]["running"].get("startedAt"), now)
        restarts = loading[0].get("restartCount", 0)
        again = f", restarted {restarts} times" if restarts else ""
        return 5, f"is loading (running {running:.0f} s, not ready{again})"
    problem, placed = volume_problem(pod, seen), elapsed(scheduled.get("lastTransitionTime"), now)
    return (
        (2, f"does not start: {problem}")
        if problem
        else (4, f"is being started (on its node for {placed:.0f} s: volumes, image)")
    )


def _pods(pods: tuple[Object, ...]) -> str:
    return _listed([pod["metadata"]["name"] for pod in pods])
