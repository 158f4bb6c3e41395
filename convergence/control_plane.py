"""Waiting until Kthena's controller and router work, and their admission webhooks answer the API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from convergence.history import Key
from convergence.outlast import Say, Sleep, outlast
from convergence.symptoms import (
    CONFIGURATION_SECONDS,
    NO_CONTAINER,
    Cause,
    NotConvergedError,
    Symptom,
    cut,
    explain_scheduling,
    image_patience,
    log_lines,
    volume_problem,
)
from live import paths
from live.api import Api, MissingKindError, Object
from live.pods import is_ready, is_terminating, label, status_of
from live.snapshot import Snapshot
from live.webhooks import unanswered
from models.cluster import ControlPlane
from render.names import CONTROLLER_NAME, ROUTER_NAME, selector
from render.ownership import annotation

START_SECONDS = 300.0
"""in which both Deployments have to be available: images are pulled, certificates made and mounted, caches filled"""
SPARE_SECONDS = 60.0
"""for the others, where one pod of each serves already: what a dead node holds is no reason to let nobody change anything"""
WEBHOOK_SECONDS = 60.0
"""in which webhooks have to answer whose pods are available: Endpoints and CA bundle have to arrive"""
CRASH_SECONDS = 30.0
"""the cause of the last ends may be mended, which shows at the next start"""
ENOUGH_RESTARTS = 3
"""once is what Kthena's programs do themselves where their certificate is late"""
SAY_SECONDS = 10.0
POLL_SECONDS = 0.5

_DEPLOYMENTS = (CONTROLLER_NAME, ROUTER_NAME)
_REVISION = "deployment.kubernetes.io/revision"
_TEMPLATE_HASH = "pod-template-hash"


async def wait_for_control_plane(
    api: Api,
    control_plane: ControlPlane,
    *,
    say: Say,
    clock: Callable[[], float] = time.time,
    sleep: Sleep = asyncio.sleep,
) -> bool:
    """Wait until objects of Kthena can be created: before that the API server takes none, and nobody acts on any.

    Args:
        api: The cluster.
        control_plane: What is declared of it.
        say: Called with what it waits for, when that lasts.
        clock: Seconds since the epoch.
        sleep: Waits for some seconds.

    Returns:
        True.

    Raises:
        NotConvergedError: it does not start, or its webhooks do not answer.
        ClusterError: the cluster refuses, or does not answer for a minute.
    """
    watch = _Watch(api, control_plane, say, clock)
    return await outlast(watch.look, say=watch.tell, pause=lambda _: POLL_SECONDS, clock=clock, sleep=sleep)


class _Watch:
    """The control plane, and since when what is in its way."""

    def __init__(self, api: Api, control_plane: ControlPlane, say: Say, clock: Callable[[], float]) -> None:
        self._api, self._control_plane, self._say, self._clock = api, control_plane, say, clock
        self._since: dict[Key, float] = {}
        self._serving: set[str] = set()
        """Deployments of which a pod of the latest template is available"""
        self._said_at = clock()

    async def look(self) -> bool | None:
        """True once everything serves.

        Raises:
            NotConvergedError: it will not.
            ClusterError: the cluster refuses or does not answer.
        """
        # webhooks of pods that only start would be waited for half a minute each
        found = await self._starting() or await self._silent()
        now = self._clock()
        self._since = {one.key: self._since.get(one.key, now) for one in found}
        if certain := [one.cause for one in found if now - self._since[one.key] >= one.patience]:
            if len(self._serving) < len(_DEPLOYMENTS) or await self._silent():
                raise NotConvergedError(certain)
            self._say(f"goes on with a part of Kthena's replicas: {NotConvergedError(certain)}")
            return True
        if found:
            self.tell(f"waits for Kthena: {found[0].cause.object} {found[0].cause.problem}")
        return None if found else True

    def tell(self, line: str) -> None:
        """Say it, but not at once and not too often."""
        if self._clock() - self._said_at >= SAY_SECONDS:
            self._say(line)
            self._said_at = self._clock()

    async def _starting(self) -> list[Symptom]:
        """What of both Deployments is not, in full, what is declared."""
        found = await asyncio.gather(*map(self._of_deployment, _DEPLOYMENTS))
        return [symptom for symptoms in found for symptom in symptoms]

    async def _of_deployment(self, name: str) -> list[Symptom]:
        namespace = self._control_plane.namespace
        who = f"Deployment {namespace}/{name}"
        deployment = await self._api.get(paths.deployments(namespace, name))
        if deployment is None:
            cause = Cause("gone", who, "is not there any more", "pulumi up --refresh makes it anew")
            return [Symptom(("gone", who), CONFIGURATION_SECONDS, cause)]
        if is_rolled_out(deployment):
            self._serving.add(name)
            return []
        chosen = selector(deployment["spec"]["selector"]["matchLabels"])
        pods, sets, events = await asyncio.gather(
            self._api.list(paths.pods(namespace), chosen),
            self._api.list(paths.replica_sets(namespace), chosen),
            self._api.list(paths.events(namespace), fields="involvedObject.kind=Pod"),
        )
        now = newest(deployment, sets, pods)
        late = [pod for pod in now if not is_ready(pod)]
        (self._serving.add if len(late) < len(now) else self._serving.discard)(name)
        known = [symptom for pod in late for symptom in _of_pod(namespace, pod, events)]
        problem = f"is not available yet: {len(late)} of {deployment['spec']['replicas']} pods are being started"
        remedy = f"kubectl describe pods -n {namespace} -l {chosen}"
        # another key, for the others get their time from when the first serves
        key, patience = ("spare", SPARE_SECONDS) if name in self._serving else ("late", START_SECONDS)
        return [*known, Symptom((key, who), patience, Cause("late", who, problem, remedy))]

    async def _silent(self) -> list[Symptom]:
        """Kinds of which the API server takes no objects."""
        try:
            found = await unanswered(self._api, self._control_plane.namespace)
        except MissingKindError as error:
            found = {"Kthena": str(error)}  # a CRD that has just been made is served a moment later
        return [_silence(self._control_plane, found)] if found else []


def is_rolled_out(deployment: Object) -> bool:
    """Whether all of its pods, and no others, are of its template, and available."""
    status, wanted = status_of(deployment), deployment["spec"].get("replicas", 1)
    counts = (status.get(f"{kind}Replicas", 0) for kind in ("updated", "available"))
    is_seen = status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
    return is_seen and all(count == wanted for count in (*counts, status.get("replicas", 0)))


def newest(deployment: Object, sets: Iterable[Object], pods: Iterable[Object]) -> list[Object]:
    """The pods of its latest template: what keeps others from being ready is about to go."""
    if status_of(deployment).get("observedGeneration", 0) < deployment["metadata"]["generation"]:
        return []
    revision = annotation(deployment, _REVISION)
    hashes = {label(one, _TEMPLATE_HASH) for one in sets if annotation(one, _REVISION) == revision}
    return [pod for pod in pods if label(pod, _TEMPLATE_HASH) in hashes and not is_terminating(pod)]


def _of_pod(namespace: str, pod: Object, events: Sequence[Object]) -> Iterator[Symptom]:
    """What keeps a pod of the control plane from being ready that won't pass by itself."""
    status, name = status_of(pod), pod["metadata"]["name"]
    who = f"Pod {namespace}/{name}"

    def symptom(kind: str, patience: float, problem: str, remedy: str) -> Symptom:
        return Symptom((kind, who), patience, Cause(kind, who, problem, remedy))

    for condition in status.get("conditions") or ():
        if (condition["type"], condition["status"]) == ("PodScheduled", "False"):
            yield symptom("unschedulable", START_SECONDS, *explain_scheduling(pod, condition.get("message", "")))
    if problem := volume_problem(pod, Snapshot(events=tuple(events))):
        remedy = "make the Secret or ConfigMap that is missing, or correct its name in cluster.controlPlane"
        yield symptom("configuration", CONFIGURATION_SECONDS, problem, remedy)
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason, message = waiting.get("reason", ""), waiting.get("message", "").strip()
        said = f"container {container['name']}: {reason}" + (f": {cut(message)}" if message else "")
        if (patience := image_patience(reason, message)) is not None:
            remedy = "correct controller.image or router.image of cluster.controlPlane, or let the nodes reach its registry"
            yield symptom("image", patience, said, remedy)
        elif reason in NO_CONTAINER:
            remedy = "make the Secret, ConfigMap or key that is missing, or correct its name in cluster.controlPlane"
            yield symptom("configuration", CONFIGURATION_SECONDS, said, remedy)
        elif reason == "CrashLoopBackOff" and container.get("restartCount", 0) >= ENOUGH_RESTARTS:
            last = (container.get("lastState") or {}).get("terminated") or {}
            ends = f"container {container['name']} ends again and again, last with exit code {last.get('exitCode')}"
            remedy = f"mend what its log says: kubectl logs -n {namespace} {name} --previous"
            yield symptom("crash-loop", CRASH_SECONDS, ends + log_lines(last.get("message", "")), remedy)


def _silence(control_plane: ControlPlane, found: Mapping[str, str]) -> Symptom:
    who = f"the API server takes no {', no '.join(sorted(found))}:"
    namespace = control_plane.namespace
    message = next(iter(found.values()))
    remedy = f"does what serves it run, and can the API server reach it? kubectl get pods,endpoints -n {namespace}"
    if "x509" in message or "certificate" in message:
        remedy = (
            f"caBundle in the webhook configurations has to be ca.crt of the Secrets {CONTROLLER_NAME}-webhook-certs and "
            f"{ROUTER_NAME}-webhook-certs in namespace {namespace}; Kthena fills it only where it is empty, at its start: "
            f"empty it, and kubectl rollout restart -n {namespace} deployment"
        )
    return Symptom(("webhooks",), WEBHOOK_SECONDS, Cause("webhooks", who, message, remedy))
