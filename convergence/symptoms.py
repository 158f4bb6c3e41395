"""Signs that a deployment will not become ready by waiting, and for how long each has to last before it is certain."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from convergence.goal import Goal
from convergence.history import History, Key, Termination, terminations
from convergence.standing import Standing, plural
from live.api import Object
from live.pods import is_ready, is_terminating, label, status_of, uid
from live.resources import requests
from live.snapshot import Snapshot
from render.names import CONTROLLER_NAME, ROLE_HASH_LABEL, ROLE_LABEL

FOREIGN_SECONDS = 3.0
"""lists are read from the API server's own store: what they say twice is no relic"""
DEFINITE_IMAGE_SECONDS = 20.0
"""a registry that says that it has no such image, or not for you: one more attempt, for it may be pushed right now"""
IMAGE_SECONDS = 120.0
"""a registry that does not answer: kubelet has asked about five times by then (10, 20, 40 s between)"""
CONFIGURATION_SECONDS = 60.0
"""what a pod refers to may be made at the same time by somebody else; kubelet tries again every few seconds"""
REFUSED_SECONDS = 30.0
"""a quota may be used up by pods of others that are about to go"""
CONTROLLER_SECONDS = 60.0
"""a controller that starts anew has missed nothing; the first start of Kthena's ends once by design (its certificate)"""
LOOK_SECONDS = 20.0
"""Kthena's controller acts within a second; with its default limits and 100 deployments at once within 140 s (measured)"""
SILENCE_SECONDS = 300.0
"""twice that"""
ENOUGH_ENDS = 3
"""once may be chance, twice may be a slow neighbour"""
_LOG_LINES = 8
_LOG_WIDTH = 240

_DEFINITE = re.compile(r"not found|manifest unknown|unauthorized|denied|authentication required|no such image", re.IGNORECASE)
_CERTAIN_AT_ONCE = ("InvalidImageName", "ErrImageNeverPull")
_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed")
NO_CONTAINER = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "PreCreateHookError",
    "PostStartHookError",
)
_NO_VOLUME = ("FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox")
_NO_NODE = re.compile(
    r"0/(?P<total>\d+) nodes are available: (?P<why>.*?)\.?( no new claims to deallocate,)?( preemption: .*)?", re.DOTALL
)
"""the words about claims: kube-scheduler 1.34"""
_FINDING = re.compile(r"(\d+) (.+)", re.DOTALL)
NO_NODE_SECONDS = 60.0
"""for somebody who is about to label a node: no pod that ends makes room on nodes that all don't match"""
_NOWHERE = re.compile(r"0/(\d+) nodes are available: \1 node\(s\) didn't match Pod's node affinity/selector\b")
_INSUFFICIENT = re.compile(r"Insufficient (\S+)")
_BACK_OFF = re.compile(r'Back-off pulling image ".*?": (?P<reason>\w+): ')


@dataclass(frozen=True)
class Cause:
    """Why a deployment does not become ready."""

    kind: str
    object: str
    """kind and name of what is stuck"""
    problem: str
    remedy: str
    short: tuple[str, ...] = ()
    """resources of which no node has enough left"""

    def __str__(self) -> str:
        return f"{self.object}: {self.problem}\n      -> {self.remedy}"


class NotConvergedError(Exception):
    """A deployment will not become ready."""

    def __init__(self, causes: Sequence[Cause]) -> None:
        self.causes = tuple(causes)
        super().__init__("it can't become ready:" + "".join(f"\n  {cause}" for cause in self.causes))


@dataclass(frozen=True)
class Symptom:
    """What speaks for a cause; certain when it has been there for ``patience`` seconds."""

    key: Key
    patience: float
    cause: Cause


def symptoms(goal: Goal, standing: Standing, seen: Snapshot, history: History) -> Iterator[Symptom]:
    """All that a snapshot and what was before it give reason to fear."""
    yield from _foreign(goal, standing)
    if standing.model_serving is None or standing.converged:
        return
    if standing.observed:  # before that, pods that fail may be those that are about to be replaced
        for pod in standing.unready:
            yield from _unscheduled(goal, pod, freeing=bool(standing.freeing))
            yield from _containers(goal, pod)
            yield from _volumes(goal, pod, seen)
        yield from _too_slow(goal, standing, history)
        yield from _ends(goal, standing, history)
    yield from _controller(goal, standing, history)


def owed(goal: Goal, standing: Standing) -> Key | None:
    """What the controller has to act on, None where it waits for pods as it should; another key with each of its acts."""
    serving = standing.model_serving
    if serving is None or standing.converged or standing.freeing:
        return None
    if standing.observed and not standing.lacking and standing.unready:
        return None
    acts = sorted(uid(pod) for pod in (*standing.current, *standing.outdated))
    ready = sum(map(is_ready, standing.current))
    status = {key: value for key, value in status_of(serving).items() if key != "conditions"}
    return (
        "owed",
        goal.model_serving,
        *acts,
        str(ready),
        str(serving["metadata"].get("generation")),
        repr(sorted(status.items())),
    )


def _foreign(goal: Goal, standing: Standing) -> Iterator[Symptom]:
    name, serving = _serving(goal), standing.model_serving
    if serving is None:
        yield Symptom(("gone",), FOREIGN_SECONDS, Cause("gone", name, "is not there (any more)", "run pulumi up again"))
    elif is_terminating(serving):
        cause = Cause("gone", name, "is being deleted", "wait until it is gone, then run pulumi up again")
        yield Symptom(("deleted",), FOREIGN_SECONDS, cause)
    elif standing.contested:
        remedy = (
            "declare in the stack file what is meant and run pulumi up again; two that write one object undo each other's work"
        )
        yield Symptom(
            ("contested", standing.contested),
            FOREIGN_SECONDS,
            Cause("contested", name, f"has been changed meanwhile: {standing.contested}", remedy),
        )


def _unscheduled(goal: Goal, pod: Object, *, freeing: bool) -> Iterator[Symptom]:
    if pod["spec"].get("nodeName") or freeing:
        return
    condition = next((one for one in status_of(pod).get("conditions") or () if one["type"] == "PodScheduled"), None)
    scheduler = pod["spec"].get("schedulerName", "default-scheduler")
    if condition is None:
        problem = f"no scheduler has looked at it: it asks for {scheduler}"
        remedy = f"is {scheduler} installed, and does it run? cluster.scheduler says which one pods ask for"
    elif condition["status"] == "True":
        return
    elif condition.get("reason") == "SchedulingGated":
        problem = (
            f"is held back by scheduling gates: {', '.join(one['name'] for one in pod['spec'].get('schedulingGates') or ())}"
        )
        remedy = "whoever has set them has to take them away"
    else:
        problem, remedy = explain_scheduling(pod, condition.get("message", ""))
    message = (condition or {}).get("message", "")
    patience = min(goal.scheduling_timeout, NO_NODE_SECONDS) if _NOWHERE.match(message) else goal.scheduling_timeout
    problem += f" (for more than {_span(patience)})"
    short = tuple(_INSUFFICIENT.findall(message.partition(". ")[0].replace(",", " ")))
    cause = Cause("unschedulable", _pod(goal, pod), problem, remedy, short)
    yield Symptom(("unschedulable", uid(pod)), patience, cause)


def explain_scheduling(pod: Object, message: str) -> tuple[str, str]:
    """Problem and remedy of a pod that no node can take, from the scheduler's message."""
    summary = _NO_NODE.fullmatch(message)
    said = (summary["why"] if summary else message).strip()
    found = [_FINDING.fullmatch(part) for part in re.split(r", (?=\d+ )", said)] if summary else []
    if not summary or not all(found):
        remedy = "the claim has to be bound" if "persistentvolumeclaim" in said.lower() else "kubectl describe pod says more"
        return f"no node can take it: {said or 'the scheduler gives no reason'}", remedy
    words = [_finding(pod, match[1], summary["total"], match[2]) for match in found if match]
    return f"no node can take it: {'; '.join(words)}", _scheduling_remedy([match[2] for match in found if match])


def _finding(pod: Object, count: str, total: str, reason: str) -> str:
    resource = _INSUFFICIENT.fullmatch(reason)
    if resource:
        return f"{resource[1]}: asks {requested(pod, resource[1])}, too few are free on {count} of {total} nodes"
    if reason.startswith("node(s) "):
        selector = pod["spec"].get("nodeSelector") if "selector" in reason else None
        asked = f" ({', '.join(f'{key}={value}' for key, value in selector.items())})" if selector else ""
        return f"{count} of {total} nodes {reason.removeprefix('node(s) ')}{asked}"
    return f"{reason} on {count} of {total} nodes"


def _scheduling_remedy(reasons: list[str]) -> str:
    remedies = {
        "Insufficient": "free some, add nodes, or declare fewer groups or instances",
        "taint": "tolerate the taint in podTemplate.spec.tolerations, or take it off the nodes",
        "affinity/selector": "label nodes, or change nodeSelector and affinity in podTemplate.spec",
        "volume": "the volume has to be reachable from a node that has room",
        "free ports": "with host network a node has one pod of a port, and all have theirs: free a node, or declare other ports",
        "unschedulable": "uncordon nodes",
    }
    fitting = [remedy for word, remedy in remedies.items() if any(word in reason for reason in reasons)]
    return "; ".join(fitting) or "kubectl describe pod says more"


def requested(pod: Object, resource: str) -> str:
    """What the containers of a pod ask for together, as they write it where only one does."""
    if devices := requests(pod["spec"])[resource]:
        return str(devices)
    asked = []
    for container in pod["spec"].get("containers") or ():
        resources = container.get("resources") or {}
        amount = (resources.get("requests") or {}).get(resource, (resources.get("limits") or {}).get(resource))
        if amount is not None:
            asked.append(str(amount))
    if len(asked) > 1 and all(amount.isdecimal() for amount in asked):
        return str(sum(map(Decimal, asked)))
    return " + ".join(asked) or "none"


def _containers(goal: Goal, pod: Object) -> Iterator[Symptom]:
    for one in _statuses(pod):
        waiting = _waiting(one)
        reason, message = waiting.get("reason", ""), waiting.get("message", "").strip()
        # kubelet says in turn that pulling failed, and that it waits until it pulls again and why: that is one cause for all pods
        if back_off := _BACK_OFF.match(message):
            reason, message = back_off["reason"], message[back_off.end() :]
        said = f"container {one['name']}: {reason}" + (f": {cut(message)}" if message else "")
        if (patience := image_patience(reason, message)) is not None:
            image = next((it["image"] for it in _specs(pod) if it["name"] == one["name"]), one.get("image", ""))
            problem = f"image {image} of {said.removeprefix('container ')}"
            remedy = "correct engine.version or engine.image, or give credentials in podTemplate.spec.imagePullSecrets"
            yield Symptom(("image", uid(pod), one["name"]), patience, Cause("image", _pod(goal, pod), problem, remedy))
        elif reason in NO_CONTAINER:
            remedy = "make the Secret, ConfigMap or key that is missing, or correct its name in the stack file"
            cause = Cause("configuration", _pod(goal, pod), said, remedy)
            yield Symptom(("configuration", uid(pod), one["name"]), CONFIGURATION_SECONDS, cause)


def image_patience(reason: str, message: str) -> float | None:
    """How long an image may be out of reach before it is certain that it is; None where a container waits for something else."""
    if reason in _CERTAIN_AT_ONCE:
        return 0.0
    if reason in _NO_IMAGE:
        return DEFINITE_IMAGE_SECONDS if _DEFINITE.search(message) else IMAGE_SECONDS
    return None


def _volumes(goal: Goal, pod: Object, seen: Snapshot) -> Iterator[Symptom]:
    problem = volume_problem(pod, seen)
    if problem:
        remedy = (
            "make the volume, ConfigMap, Secret or directory that is missing on the node, or correct its name in the stack file"
        )
        cause = Cause("configuration", _pod(goal, pod), problem, remedy)
        yield Symptom(("volume", uid(pod)), CONFIGURATION_SECONDS, cause)


def volume_problem(pod: Object, seen: Snapshot) -> str:
    """Why a pod does not get its volumes; empty as far as is known."""
    states = [one.get("state") or {} for one in _statuses(pod)]
    if any("running" in state or "terminated" in state for state in states):
        return ""  # events outlive what they tell of
    told = [
        event for event in seen.events if event["involvedObject"].get("uid") == uid(pod) and event.get("reason") in _NO_VOLUME
    ]
    newest = max(told, key=event_time, default=None)
    return f"{newest['reason']}: {cut(newest.get('message', ''))}" if newest else ""


def _relevant(standing: Standing, history: History) -> Iterator[Termination]:
    """Ends of pods of the template that is declared now, in roles that do not serve, less those that serve meanwhile."""
    hashes = defaultdict(set)
    for pod in standing.current:
        hashes[label(pod, ROLE_LABEL)].add(label(pod, ROLE_HASH_LABEL))
    serving = {pod["metadata"]["name"] for pod in standing.current if is_ready(pod)}
    for one in history.terminations.values():
        is_now = one.revision == standing.revision or one.role_hash in hashes[one.role]
        if is_now and one.pod not in serving and standing.ready(one.role) < (standing.wanted or {}).get(one.role, 0):
            yield one


def _too_slow(goal: Goal, standing: Standing, history: History) -> Iterator[Symptom]:
    for one in _relevant(standing, history):
        if one.too_slow:
            slow = f"{one.container} did not serve in {_span(one.seconds)} and was killed by its startup probe"
            problem = slow + log_lines(one.message)
            remedy = (
                f"give it longer: readiness.loadTimeout (now {_span(goal.load_timeout)}); or see in its log what it waits for"
            )
            yield Symptom(
                ("probe", one.uid, one.finished), 0.0, Cause("probe", f"Pod {goal.namespace}/{one.pod}", problem, remedy)
            )


def _ends(goal: Goal, standing: Standing, history: History) -> Iterator[Symptom]:
    """Kthena deletes a pod that has restarted and makes another: ends are counted over all that have had one place."""
    by_pod: dict[tuple[str, str], list[Termination]] = defaultdict(list)
    by_role: dict[tuple[str, str], list[Termination]] = defaultdict(list)
    for one in _relevant(standing, history):
        by_pod[one.pod, one.container].append(one)
        by_role[one.role, one.container].append(one)
    told = set()
    for (pod, container), ends in by_pod.items():
        if len(ends) >= ENOUGH_ENDS:
            told.add(ends[0].role)
            yield _crash_loop(goal, pod, container, ends)
    for (role, container), ends in by_role.items():
        # among so many ends of so many pods one place has seen enough, though its pods were named anew
        places = (standing.wanted or {}).get(role, 0)
        if role not in told and len(ends) > (ENOUGH_ENDS - 1) * places:
            told.add(role)
            yield _crash_loop(goal, max(ends, key=lambda end: end.finished).pod, container, ends)
    for pod_now in standing.unready:
        if label(pod_now, ROLE_LABEL) not in told:
            yield from _backing_off(goal, pod_now, history)
    for (name, revision), uids in history.pods.items():
        again = len(uids) - 1
        mine = [pod for pod in standing.unready if pod["metadata"]["name"] == name]
        if revision == standing.revision and again >= ENOUGH_ENDS and mine and label(mine[0], ROLE_LABEL) not in told:
            remedy = f"kubectl get events -n {goal.namespace} --field-selector involvedObject.name={name}"
            problem = f"has been made anew {again} times: Kthena deletes a pod that fails or restarts"
            yield Symptom(("anew", name), 0.0, Cause("crash-loop", f"Pod {goal.namespace}/{name}", problem, remedy))


def _backing_off(goal: Goal, pod: Object, history: History) -> Iterator[Symptom]:
    """Where Kthena lets containers restart, kubelet counts, also what was before anybody waited.

    One end has to be new: the cause of the earlier ones may be mended, which shows when the back-off is over.
    """
    counts = {
        one["name"]: one.get("restartCount", 0) for one in _statuses(pod) if _waiting(one).get("reason") == "CrashLoopBackOff"
    }
    for one in terminations(pod):
        is_new = (one.uid, one.container, one.finished) in history.terminations
        if is_new and counts.get(one.container, 0) >= ENOUGH_ENDS:
            yield _crash_loop(goal, one.pod, one.container, [one] * counts[one.container])


def _crash_loop(goal: Goal, pod: str, container: str, ends: list[Termination]) -> Symptom:
    last = max(ends, key=lambda end: end.finished)
    what = f"init container {container}" if last.initial else f"container {container}" if container else "the pod"
    after = f" after {_span(last.seconds)}" if container else f": {cut(last.message)}" if last.message else ""
    problem = f"{what} {last.ending}{after}, {len(ends)} times so far{log_lines(last.message) if container else ''}"
    if last.reason == "OOMKilled":
        remedy = f"give the role more memory: {last.role}.resources"
    else:
        remedy = (
            f"mend what its log says: kubectl logs -n {goal.namespace} {pod} {f'-c {container} ' if container else ''}--previous"
        )
    kind = "init" if last.initial else "crash-loop"
    return Symptom((kind, pod, container), 0.0, Cause(kind, f"Pod {goal.namespace}/{pod}", problem, remedy))


def _controller(goal: Goal, standing: Standing, history: History) -> Iterator[Symptom]:
    key = owed(goal, standing)
    if key is None:
        return
    name = _serving(goal)
    log = f"its log knows why: kubectl logs -n {goal.control_plane} deployment/{CONTROLLER_NAME} | grep {goal.model_serving}"
    if history.controller:
        cause = Cause(
            "controller", name, f"Kthena's controller does not work on it: {history.controller}", "repair it, then pulumi up"
        )
        patience = 0.0 if history.controller_is_off else CONTROLLER_SECONDS
        yield Symptom(("controller", history.controller), patience, cause)
    if standing.lacking and history.refusal:
        pod = f"Pod {goal.namespace}/{standing.lacking[0].name(goal.model_serving)}"
        remedy = "change what the refusal names: the quota, the policy, or the value in the stack file"
        yield Symptom(
            ("refused", history.refusal), REFUSED_SECONDS, Cause("refused", pod, f"is refused: {history.refusal}", remedy)
        )
    remedy = f"do two controllers run? {log}" if _is_beyond_it(standing) else log
    yield Symptom(key, SILENCE_SECONDS, Cause("silent", name, f"{undone(standing)} for {_span(SILENCE_SECONDS)}", remedy))


def _is_beyond_it(standing: Standing) -> bool:
    """Whether there is more than the controller counts: by its status of now all is as it should be, so it has not made that."""
    return bool(standing.surplus) and standing.observed and standing.reported and any((standing.wanted or {}).values())


def undone(standing: Standing) -> str:
    """What the controller has not done yet."""
    if not standing.observed:
        return "Kthena's controller has not taken notice of it"
    if standing.lacking:
        return f"Kthena's controller has not made {plural(len(standing.lacking), 'pod')} of it"
    if standing.surplus:
        return f"Kthena's controller has not taken away {', '.join(standing.surplus)}"
    if standing.outdated:
        return f"Kthena's controller has not replaced {plural(len(standing.outdated), 'outdated pod')}"
    return "all pods serve, but Kthena's controller does not report it as available"


def event_time(event: Object) -> str:
    """When it was last seen: one of the places where that stands."""
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")


def _specs(pod: Object) -> list[Object]:
    return [*(pod["spec"].get("initContainers") or ()), *(pod["spec"].get("containers") or ())]


def _statuses(pod: Object) -> list[Object]:
    status = status_of(pod)
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _waiting(container: Object) -> Object:
    return (container.get("state") or {}).get("waiting") or {}


def log_lines(message: str) -> str:
    """The last lines of a log, below the problem."""
    lines = [line.rstrip() for line in message.splitlines() if line.strip()][-_LOG_LINES:]
    return "".join(f"\n        | {cut(line)}" for line in lines)


def cut(text: str) -> str:
    """As much of a message as a line holds."""
    text = text.strip()
    return text if len(text) <= _LOG_WIDTH else f"{text[: _LOG_WIDTH - 3]}..."


def _serving(goal: Goal) -> str:
    return f"ModelServing {goal.namespace}/{goal.model_serving}"


def _pod(goal: Goal, pod: Object) -> str:
    return f"Pod {goal.namespace}/{pod['metadata']['name']}"


def _span(seconds: float) -> str:
    """A time as people say it."""
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")  # noqa: PLR2004
