"""What has been seen of a deployment while it is waited for: what one snapshot can't tell."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from convergence.standing import Standing
from live.api import Object
from live.pods import is_ready, is_terminating, label, status_of, uid
from render.names import REVISION_LABEL, ROLE_HASH_LABEL, ROLE_LABEL

Key = tuple[str, ...]
"""what stays the same of a symptom from one snapshot to the next"""

_SIGNAL_BASE = 128
"""a shell's and the kubelet's way to say in an exit code which signal has ended a program"""
_GRACE_SECONDS = 30.0
"""Kubernetes' default"""


@dataclass(frozen=True)
class Termination:
    """The end of a container, or of a pod that has failed as a whole."""

    uid: str
    container: str
    """empty: the pod failed"""
    finished: str
    """time, with which a container's ends are told apart"""
    pod: str
    role: str
    revision: str
    role_hash: str
    initial: bool
    """an init container"""
    code: int
    reason: str
    message: str
    """last lines of its log"""
    seconds: float
    """that it had run"""
    too_slow: bool
    """its startup probe ran out of attempts"""

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        if not self.container:
            return f"failed ({self.reason or 'no reason given'})"
        if self.reason == "OOMKilled":
            return "ended for lack of memory (OOMKilled)"
        number = self.code - _SIGNAL_BASE
        named = f" ({signal.Signals(number).name})" if number in {int(one) for one in signal.Signals} else ""
        return f"ended with exit code {self.code}{named}"


@dataclass(frozen=True)
class History:
    """Everything that is remembered. Times are of the one who waits, so a cluster's clock that is off does no harm."""

    progress_at: float
    """when a pod was last seen to serve for the first time, or an outdated one to be gone"""
    freeing_at: float = float("-inf")
    """when a pod of the deployment was last seen to be ending"""
    grace: float = 0
    """seconds that such pods may take, the most of all"""
    since: Mapping[Key, float] = field(default_factory=dict)
    """when each symptom that is there now was first seen"""
    earlier: frozenset[tuple[str, str, str]] | None = None
    """ends that were there from the start: of them it is not known whether they would come again"""
    terminations: Mapping[tuple[str, str, str], Termination] = field(default_factory=dict)
    """(uid, container, time) -> all others"""
    pods: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    """(name, revision) -> uids of the pods that have had this name"""
    served: frozenset[str] = frozenset()
    """uids of pods that have been ready"""
    outdated: frozenset[str] = frozenset()
    refusal: str = ""
    """why the API server would not take a pod that is missing; empty if it would, or has not been asked"""
    controller: str = ""
    """what keeps Kthena's controller from working; empty if nothing does, or nobody has looked"""
    controller_is_off: bool = False
    """and it will not come back by itself"""
    woken: bool = False
    """it has been made to try again"""


def add(history: History, standing: Standing, now: float) -> History:
    """``history`` with what a snapshot says of pods; symptoms are not in it yet."""
    pods = (*standing.current, *standing.outdated, *standing.terminating)
    ends = {(one.uid, one.container, one.finished): one for pod in pods for one in terminations(pod)}
    earlier = frozenset(ends) if history.earlier is None else history.earlier
    served = history.served | {uid(pod) for pod in standing.current if is_ready(pod)}
    outdated = frozenset(uid(pod) for pod in standing.outdated)
    names = dict(history.pods)
    for pod in pods:
        key = pod["metadata"]["name"], label(pod, REVISION_LABEL)
        names[key] = names.get(key, frozenset()) | {uid(pod)}
    progress = served != history.served or history.outdated - outdated
    graces = (float(pod["metadata"].get("deletionGracePeriodSeconds") or 0) for pod in standing.freeing)
    return replace(
        history,
        progress_at=now if progress else history.progress_at,
        freeing_at=now if standing.freeing else history.freeing_at,
        grace=max((history.grace, *graces)),
        earlier=earlier,
        terminations={**history.terminations, **{key: one for key, one in ends.items() if key not in earlier}},
        pods=names,
        served=served,
        outdated=outdated,
    )


def terminations(pod: Object) -> Iterator[Termination]:
    """What has ended in a pod without being told to."""
    status, metadata = status_of(pod), pod["metadata"]
    for initial, statuses in ((True, "initContainerStatuses"), (False, "containerStatuses")):
        for one in status.get(statuses) or ():
            ends = [(one.get("lastState") or {}).get("terminated")]
            now = (one.get("state") or {}).get("terminated")
            # what ends after its pod was told to end has not failed
            if now and (not is_terminating(pod) or _time(now.get("finishedAt")) < _asked_to_end(metadata)):
                ends.append(now)
            for end in ends:
                if end and (end.get("exitCode") or not initial):
                    yield _termination(pod, one["name"], end, initial=initial)
    if status.get("phase") == "Failed" and not is_terminating(pod) and status.get("reason"):
        end = {"reason": status["reason"], "message": status.get("message", "")}
        yield _termination(pod, "", end, initial=False)


def _termination(pod: Object, container: str, end: Object, *, initial: bool) -> Termination:
    seconds = (_time(end.get("finishedAt")) - _time(end.get("startedAt"))).total_seconds()
    return Termination(
        uid=uid(pod),
        container=container,
        finished=end.get("finishedAt") or "",
        pod=pod["metadata"]["name"],
        role=label(pod, ROLE_LABEL),
        revision=label(pod, REVISION_LABEL),
        role_hash=label(pod, ROLE_HASH_LABEL),
        initial=initial,
        code=end.get("exitCode", 0),
        reason=end.get("reason", ""),
        message=(end.get("message") or "").strip(),
        seconds=seconds,
        too_slow=_is_too_slow(pod, container, seconds),
    )


def _is_too_slow(pod: Object, container: str, seconds: float) -> bool:
    """Whether a container has run for just as long as its startup probe lets it: who is killed by that ends then."""
    specs: dict[str, Object] = {one["name"]: one for one in pod["spec"].get("containers") or ()}
    probe = specs.get(container, {}).get("startupProbe")
    if not probe:
        return False
    period = probe.get("periodSeconds", 10)
    attempts = probe.get("initialDelaySeconds", 0) + period * (probe.get("failureThreshold", 3) - 1)
    grace = probe.get("terminationGracePeriodSeconds", pod["spec"].get("terminationGracePeriodSeconds", _GRACE_SECONDS))
    slack = 2 * period + probe.get("timeoutSeconds", 1) + grace
    return bool(attempts <= seconds <= attempts + slack)


def _asked_to_end(metadata: Object) -> datetime:
    """When deletion was asked for: the timestamp is that of its end."""
    return _time(metadata["deletionTimestamp"]) - timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)


def _time(text: str | None) -> datetime:
    return datetime.fromisoformat(text) if text else datetime.fromtimestamp(0, UTC)


def elapsed(text: str | None, now: float) -> float:
    """Seconds from a time of the cluster until ``now``."""
    return max(0.0, now - _time(text).timestamp()) if text else 0.0
