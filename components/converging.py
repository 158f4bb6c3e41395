"""Holds what comes after a ModelServing until it really serves, and says why where it can't."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pulumi

from components.kubernetes_object import KubernetesObject
from convergence.goal import Goal
from convergence.standing import entry_pods
from convergence.wait import NotConvergedError, outlast, wait, wait_for_router
from live.api import Api, ClusterError
from live.snapshot import read_snapshot
from models.cluster import Cluster
from models.deployment import Deployment
from models.quantities import seconds
from models.role import ROLES
from render.deployment import RenderedServing
from render.ownership import declared_hash

T = TypeVar("T")


@dataclass(frozen=True)
class Converging:
    """One ModelServing on its way to what is declared.

    It is looked at in every ``up``, whether something was changed or not. Pulumi's own wait is over for good once it has failed,
    is content with conditions that are true too early, and says nothing for as long as it lasts.
    """

    component: pulumi.Resource
    model_serving: KubernetesObject
    deployment: Deployment
    rendered: RenderedServing
    cluster: Cluster

    def served(self) -> pulumi.Output[str]:
        """Kthena's revision of the pods, known once they serve."""
        return self._after(self.model_serving, self._serve, _revision)

    def paired(self, model_server: KubernetesObject) -> pulumi.Output[bool]:
        """True once the router pairs the prefill and decode pods of the ModelServer."""
        return self._after(model_server, self._pair, lambda _: True)

    def _after(
        self,
        item: KubernetesObject,
        holds: Callable[[Api, str], Awaitable[T]],
        otherwise: Callable[[Mapping[str, Any] | None], T],
    ) -> pulumi.Output[T]:
        async def wait(known: Sequence[Any]) -> T:
            metadata, status = known
            # without an uid it was made by no API server, but by the mocks of a test
            if pulumi.runtime.is_dry_run() or not (metadata or {}).get("uid"):
                return otherwise(status)
            return await self._in_cluster(holds, str(metadata["namespace"]))

        return pulumi.Output.all(item.metadata, item.status).apply(wait)

    async def _in_cluster(self, holds: Callable[[Api, str], Awaitable[T]], namespace: str) -> T:
        try:
            api = await outlast(lambda: Api.shared(self.cluster.context))
            return await holds(api, namespace)
        except (ClusterError, NotConvergedError) as error:
            raise pulumi.RunError(f"{self.rendered.name} does not serve as declared: {error}") from None

    async def _serve(self, api: Api, namespace: str) -> str:
        readiness, scaling = self.deployment.readiness, self.deployment.autoscaling
        rendered = self.rendered.model_serving
        goal = Goal.of(
            # the namespace may be an Output in the declaration
            {**rendered, "metadata": {**rendered["metadata"], "namespace": namespace}},
            declared_hash(rendered),
            load_timeout=seconds(readiness.load_timeout),
            scheduling_timeout=seconds(readiness.scheduling_timeout),
            control_plane=self.cluster.control_plane.namespace,
            groups_are_scaled=bool(scaling and scaling.groups),
            scaled_roles=[role for role in ROLES if scaling and scaling.role(role)],
        )
        seen = await wait(api, goal, say=self._say)
        return next(_revision(one["status"]) for one in seen.model_servings if one["metadata"]["name"] == self.rendered.name)

    async def _pair(self, api: Api, namespace: str) -> bool:
        name, control_plane = self.rendered.name, self.cluster.control_plane
        seen = await outlast(lambda: read_snapshot(api, namespace, self.deployment.name, revisions=False))
        await wait_for_router(
            api,
            control_plane=control_plane.namespace,
            debug_port=control_plane.router.debug_port,
            namespace=namespace,
            model_server=name,
            prefill=entry_pods(seen, name, "prefill"),
            decode=entry_pods(seen, name, "decode"),
            say=self._say,
        )
        return True

    def _say(self, message: str) -> None:
        pulumi.log.info(message, self.component)


def _revision(status: Mapping[str, Any] | None) -> str:
    return str((status or {}).get("updateRevision", ""))
