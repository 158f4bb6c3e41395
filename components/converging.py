"""Holds what comes after a ModelServing until it really serves, and says why where it can't."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pulumi

from components.kubernetes_object import KubernetesObject
from convergence.goal import Goal
from convergence.outlast import outlast
from convergence.router import wait_for_router
from convergence.symptoms import NotConvergedError
from convergence.wait import wait
from live.api import Api, ClusterError
from models.cluster import Cluster
from models.deployment import Deployment
from models.quantities import seconds
from render.deployment import RenderedServing
from render.ownership import declared_hash

T = TypeVar("T")

QUIET_LOOKS, QUIET_SECONDS = 3, 1.5
"""in which no deployment waits: time for the objects that come between two waits of one"""
_WAITING: set[asyncio.Task[Any] | None] = set()
"""what waits for the cluster, of all programs of this process"""


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
        task = asyncio.current_task()
        _WAITING.add(task)
        try:
            api = await outlast(lambda: Api.shared(self.cluster.context))
            return await holds(api, namespace)
        except (ClusterError, NotConvergedError) as error:
            pulumi.log.error(f"{self.rendered.name} does not serve as declared: {error}")
            _WAITING.discard(task)
            await _others_ended()
            raise pulumi.RunError("not all deployments serve as declared: their causes are above") from None
        finally:
            _WAITING.discard(task)

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
            scaled_roles=scaling.scaled_roles if scaling else (),
        )
        seen = await wait(api, goal, say=self._say)
        return next(_revision(one["status"]) for one in seen.model_servings if one["metadata"]["name"] == self.rendered.name)

    async def _pair(self, api: Api, namespace: str) -> bool:
        await wait_for_router(
            api,
            self.cluster.control_plane,
            namespace=namespace,
            deployment=self.deployment.name,
            model_server=self.rendered.name,
            say=self._say,
        )
        return True

    def _say(self, message: str) -> None:
        pulumi.log.info(message, self.component)


def _revision(status: Mapping[str, Any] | None) -> str:
    return str((status or {}).get("updateRevision", ""))


async def _others_ended() -> None:
    """Until no other deployment is on its way any more: the first that fails would end the program, and with it all of them."""
    quiet = 0
    while quiet < QUIET_LOOKS:
        others = {task for task in _WAITING if task and task.get_loop() is asyncio.get_running_loop()}
        if others:
            quiet = 0
            await asyncio.wait(others)
        else:
            quiet += 1
            await asyncio.sleep(QUIET_SECONDS / QUIET_LOOKS)
