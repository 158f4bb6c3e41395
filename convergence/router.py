"""Waiting until the router has paired the pods of a deployment."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from convergence.outlast import UNREACHABLE_SECONDS, Say, Sleep, may_pass, outlast
from convergence.symptoms import Cause, NotConvergedError
from live import paths
from live.api import FORBIDDEN, Api, ApiRefusedError, ClusterError, Object
from live.pods import is_ready, is_terminating, label
from live.router import NoRouterError, RouterView, read_router
from live.snapshot import Snapshot, read_snapshot
from models.cluster import ControlPlane
from render.names import ENTRY_LABEL, NAME_LABEL, ROLE_LABEL, ROUTER_NAME

PATIENCE_SECONDS = 5.0
"""for a router that hears of every change"""
ROUTER_SECONDS = 30.0
TOUCHED_ANNOTATION = "kthena-pd/touched"

Sorted = tuple[str, str]
"""role and pod; no pod: of its pods none is ready"""


async def wait_for_router(  # noqa: PLR0913  # who, and of whom
    api: Api,
    control_plane: ControlPlane,
    *,
    namespace: str,
    deployment: str,
    model_server: str,
    say: Say,
    clock: Callable[[], float] = time.time,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Wait until every pod of the router has sorted exactly the pods that are ready, and help where it has not.

    A router of Kthena v1.0.0 that starts beside running pods sorts a pod into prefill or decode only if it hears of the
    ModelServer first; otherwise not before the pod's object changes (``store.AddOrUpdatePod``). So the pods get an annotation.

    Args:
        api: The cluster.
        control_plane: Of this router.
        namespace: Of the ModelServer.
        deployment: Whose it is.
        model_server: Its name, and that of its ModelServing.
        say: Called once where the router can't be asked.
        clock: Seconds since the epoch.
        sleep: Waits for some seconds.

    Raises:
        NotConvergedError: the router knows other pods, or does not answer for a minute.
        ClusterError: the cluster refuses, or does not answer for a minute.
    """
    pairing = _Pairing(api, control_plane, namespace, deployment, model_server, say, clock)
    await outlast(pairing.look, clock=clock, sleep=sleep)


@dataclass
class _Pairing:
    """What is asked of the router, and what it has said so far."""

    api: Api
    control_plane: ControlPlane
    namespace: str
    deployment: str
    model_server: str
    say: Say
    clock: Callable[[], float]
    since: dict[Sorted, float] = field(default_factory=dict)
    """when each pod was first seen that is not sorted as it should be"""
    touched: set[str] = field(default_factory=set)
    silent_since: float | None = None

    async def look(self) -> bool | None:
        """True once it knows all pods, or where we may not see whether it does."""
        try:
            seen = await read_snapshot(self.api, self.namespace, self.deployment, revisions=False)
        except ClusterError:
            self.since, self.silent_since = {}, None  # of what happens meanwhile the router does not hear either
            raise
        where = self.control_plane.namespace, self.control_plane.router.debug_port
        try:
            views = await read_router(self.api, *where, self.namespace, self.model_server)
        except ClusterError as error:
            return self._unanswered(error)
        self.silent_since = None
        pods = _entry_pods(seen, self.model_server)
        there, ready = _view(pods), _view(filter(is_ready, pods))
        missing = frozenset[Sorted]().union(*(ready.pairs - view.pairs for view in views))
        unknown = frozenset[Sorted]().union(*(view.pairs - there.pairs for view in views))
        idle = {(role, "") for role, _ in there.pairs} - {(role, "") for role, _ in ready.pairs}
        now = self.clock()
        self.since = {key: self.since.get(key, now) for key in missing | unknown | idle}
        if not self.since:
            return True
        if late := [key for key, since in self.since.items() if now - since >= ROUTER_SECONDS]:
            raise NotConvergedError((self._cause(late, views, ready),))
        late_pods = {pod for role, pod in missing if now - self.since[role, pod] >= PATIENCE_SECONDS}
        await asyncio.gather(*map(self._touch, sorted(late_pods - self.touched)))
        return None

    def _unanswered(self, error: ClusterError) -> bool | None:
        is_forbidden = isinstance(error, ApiRefusedError) and error.code == FORBIDDEN
        if is_forbidden or (isinstance(error, NoRouterError) and not self.control_plane.install):
            self.say(f"whether the router has paired the pods could not be looked at: {error}")
            return True
        now = self.clock()
        if self.silent_since is None:
            self.silent_since = now
        if now - self.silent_since >= UNREACHABLE_SECONDS:
            problem = f"the router does not say which pods it knows: {error}"
            remedy = (
                f"does it run (kubectl get pods -n {self.control_plane.namespace}), "
                "and is cluster.controlPlane.router.debugPort its debug port?"
            )
            raise NotConvergedError((Cause("router", self._name, problem, remedy),))
        return None

    async def _touch(self, pod: str) -> None:
        try:
            now = str(round(self.clock()))
            await self.api.patch(paths.pods(self.namespace, pod), {"metadata": {"annotations": {TOUCHED_ANNOTATION: now}}})
        except ApiRefusedError as error:
            if may_pass(error):
                raise
            # who may not, or whose pod has just gone, waits for the router all the same
        self.touched.add(pod)

    def _cause(self, late: Collection[Sorted], views: Iterable[RouterView], ready: RouterView) -> Cause:
        for role, pod in late:
            if not pod:
                remedy = "run pulumi up again: it waits for them, and says what keeps them"
                return Cause("router", self._name, f"no {role} pod is ready any more", remedy)
        known = next(view for view in views if {*late} & (view.pairs ^ ready.pairs))
        return Cause(
            "router",
            self._name,
            f"after {ROUTER_SECONDS:.0f} s a router knows {_words(known)}; it should know {_words(ready)}",
            f"restart the router: kubectl rollout restart -n {self.control_plane.namespace} deployment/{ROUTER_NAME}",
        )

    @property
    def _name(self) -> str:
        return f"ModelServer {self.namespace}/{self.model_server}"


def _entry_pods(seen: Snapshot, model_serving: str) -> list[Object]:
    """Those that take requests once they are ready."""
    mine = (pod for pod in seen.pods if (label(pod, NAME_LABEL), label(pod, ENTRY_LABEL)) == (model_serving, "true"))
    return [pod for pod in mine if not is_terminating(pod)]


def _view(pods: Iterable[Object]) -> RouterView:
    names: dict[str, set[str]] = defaultdict(set)
    for pod in pods:
        names[label(pod, ROLE_LABEL)].add(pod["metadata"]["name"])
    return RouterView(frozenset(names["prefill"]), frozenset(names["decode"]))


def _words(view: RouterView) -> str:
    return f"prefill {', '.join(sorted(view.prefill)) or 'none'}; decode {', '.join(sorted(view.decode)) or 'none'}"
