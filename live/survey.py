"""What a stack finds in its cluster before anything is made: all that can be known beforehand of whether it can run there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from live import paths
from live.api import FORBIDDEN, Api, ApiRefusedError, Object
from live.permissions import Permission, denied, needed
from live.plan import Plan
from live.pods import status_of
from live.references import Reference
from live.resources import room
from live.servers import Node, Pod, node_of, pod_of
from models.deployment import Deployment
from models.stack import Stack
from render.names import CONTROLLER_NAME, ROUTER_NAME

T = TypeVar("T")

WORKLOAD, NETWORKING = "workload.serving.volcano.sh/v1alpha1", "networking.serving.volcano.sh/v1alpha1"
VOLCANO = paths.queues.api_version
PROMETHEUS_OPERATOR = "monitoring.coreos.com/v1"
CERT_MANAGER = "cert-manager.io/v1"
DEFAULT_QUEUE = "default"
"""of Volcano, which makes it at its start"""
_POLICIES = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/autoscalingpolicies.workload.serving.volcano.sh"
_RUNNING = "status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True)
class Survey:
    """A cluster at one moment, as far as a stack depends on it. None: we may not see it; ``unseen`` says so."""

    version: str
    """of the API server, for example v1.34.4"""
    served: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """group and version -> plural names of its kinds, and ``kinds/subresource``; only of those that the stack needs"""
    denied: tuple[Permission, ...] = ()
    """what an `up` does and we may not"""
    unseen: tuple[str, ...] = ()
    """what we may not read, in the API server's words"""
    nodes: tuple[Node, ...] | None = ()
    pods: tuple[Pod, ...] | None = ()
    """of the whole cluster, less those that have ended"""
    control_planes: tuple[Object, ...] | None = ()
    """Deployments of the names that Kthena's have, in whatever namespace"""
    found: Mapping[Reference, Object | None] = field(default_factory=dict)
    """what the stack names -> what it is, None if there is none; of a Secret only that there is one; less what we may not see"""
    quotas: Mapping[str, tuple[Object, ...]] = field(default_factory=dict)
    """namespace -> its ResourceQuotas"""
    limits: Mapping[str, tuple[Object, ...]] = field(default_factory=dict)
    """namespace -> its LimitRanges"""
    policy_schema: Object | None = None
    """JSON Schema of an AutoscalingPolicy's spec, where the stack relies on it"""

    @property
    def free(self) -> Mapping[str, int] | None:
        """Extended resource -> number that no pod holds; None where we may not see it."""
        return None if self.nodes is None or self.pods is None else room(self.nodes, self.pods).left


async def read_survey(api: Api, plan: Plan) -> Survey:
    """Look at all that the stack depends on, concurrently; only nodes and pods can be many.

    Args:
        api: of the plan's cluster
        plan: of a stack that the rules have passed

    Raises:
        ClusterError: the cluster does not answer.
    """
    reader = _Reader(api)
    cluster, groups = plan.stack.cluster, _groups(plan.stack)
    namespaces = sorted({deployment.namespace for deployment in plan.stack.deployments.values()})
    (version, denials, served), (nodes, pods, control_planes), (found, quotas, limits, policies) = await asyncio.gather(
        asyncio.gather(
            api.get("/version"),
            reader.seen("create selfsubjectaccessreviews", denied(api, needed(cluster, plan.objects))),
            asyncio.gather(*map(api.served, groups)),
        ),
        asyncio.gather(
            reader.pages("nodes", paths.nodes(), node_of),
            reader.pages("pods", paths.pods(), pod_of, _RUNNING),
            reader.control_planes(cluster.control_plane.namespace),
        ),
        asyncio.gather(
            reader.objects(plan.references),
            reader.of_namespaces(paths.resource_quotas, namespaces),
            reader.of_namespaces(paths.limit_ranges, namespaces),
            reader.policy_schema() if _relies_on_policies(plan) else _nothing(),
        ),
    )
    seen = dict(zip(groups, served, strict=True))
    queues = _queues(plan.stack) if "queues" in seen.get(VOLCANO, ()) else ()
    classes = {Reference(paths.storage_classes, "", name) for claim in found.values() if claim and (name := _pending(claim))}
    found |= await reader.objects({*queues, *classes})
    return Survey(
        version=str((version or {}).get("gitVersion", "")),
        served=seen,
        denied=denials or (),
        unseen=tuple(sorted(set(reader.unseen))),
        nodes=nodes,
        pods=pods,
        control_planes=control_planes,
        found=found,
        quotas=quotas,
        limits=limits,
        policy_schema=policies,
    )


def queue_of(deployment: Deployment) -> Reference:
    """The Volcano queue of a deployment's pods."""
    return Reference(paths.queues, "", deployment.scheduling.queue or DEFAULT_QUEUE)


@dataclass(frozen=True)
class _Reader:
    """Reads, and keeps what it may not read."""

    api: Api
    unseen: list[str] = field(default_factory=list)

    async def seen(self, what: str, reading: Awaitable[T]) -> T | None:
        """What was read; None if we may not."""
        try:
            return await reading
        except ApiRefusedError as error:
            if error.code != FORBIDDEN:
                raise
            self.unseen.append(what)
            return None

    async def pages(self, what: str, path: str, part: Callable[[Object], T], fields: str = "") -> tuple[T, ...] | None:
        """``part`` of each object of a long list: no more than a page of whole ones is kept."""

        async def read(pages: AsyncIterator[Iterable[Object]]) -> tuple[T, ...]:
            return tuple([part(item) async for page in pages for item in page])

        return await self.seen(f"list {what} in the cluster", read(self.api.pages(path, fields=fields)))

    async def control_planes(self, namespace: str) -> tuple[Object, ...] | None:
        """Deployments with the names that Kthena's have: of the cluster, or where we may not list those, of ``namespace``."""

        async def read(path: str) -> tuple[Object, ...]:
            names = (CONTROLLER_NAME, ROUTER_NAME)
            lists = await asyncio.gather(*(self.api.list(path, fields=f"metadata.name={name}") for name in names))
            return tuple(item for items in lists for item in items)

        try:
            return await read(paths.deployments())
        except ApiRefusedError as error:
            if error.code != FORBIDDEN:
                raise
        return await self.seen(f"list deployments.apps in namespace {namespace}", read(paths.deployments(namespace)))

    async def objects(self, wanted: Iterable[Reference]) -> dict[Reference, Object | None]:
        """Each of ``wanted`` that we may see."""

        async def read(reference: Reference) -> Object | None:
            if reference.kind == paths.secrets:
                return {} if await self.api.metadata(reference.path) else None
            return await self.api.get(reference.path)

        async def with_name(reference: Reference) -> tuple[Reference, Object | None]:
            return reference, await read(reference)

        read_ones = await asyncio.gather(*(self.seen(f"get {one}", with_name(one)) for one in wanted))
        return dict(one for one in read_ones if one is not None)

    async def of_namespaces(self, kind: paths.Kind, namespaces: Iterable[str]) -> dict[str, tuple[Object, ...]]:
        """Namespace -> its objects of a kind."""

        async def read(namespace: str) -> tuple[str, tuple[Object, ...]]:
            found = await self.seen(f"list {kind.plural} in namespace {namespace}", self.api.list(kind(namespace)))
            return namespace, tuple(found or ())

        return dict(await asyncio.gather(*map(read, namespaces)))

    async def policy_schema(self) -> Object | None:
        """What Kthena's CRD says of an AutoscalingPolicy's spec; None too if there is no such CRD."""
        found = await self.seen("get customresourcedefinitions.apiextensions.k8s.io", self.api.get(_POLICIES))
        kept = [one for one in found["spec"]["versions"] if one["served"]] if found else []
        spec: Object | None = kept[0]["schema"]["openAPIV3Schema"]["properties"]["spec"] if kept else None
        return spec


async def _nothing() -> None:
    return None


def _relies_on_policies(plan: Plan) -> bool:
    """With its own control plane the stack brings the CRD of its version."""
    return not plan.stack.cluster.control_plane.install and any(one.deployment.autoscaling for one in plan.versions)


def _groups(stack: Stack) -> tuple[str, ...]:
    """API groups that the stack's objects, or those of its control plane, are of, beside Kubernetes' own."""
    cluster = stack.cluster
    wanted = {
        WORKLOAD: True,
        NETWORKING: True,
        VOLCANO: cluster.scheduler == "volcano",
        PROMETHEUS_OPERATOR: cluster.monitoring is not None,
        CERT_MANAGER: cluster.control_plane.install and cluster.control_plane.certificates == "cert-manager",
    }
    return tuple(group for group, is_wanted in wanted.items() if is_wanted)


def _queues(stack: Stack) -> set[Reference]:
    return {queue_of(deployment) for deployment in stack.deployments.values()}


def _pending(found: Object) -> str:
    """The class of a claim that has no volume yet; empty for anything else."""
    is_claim = status_of(found).get("phase") == "Pending" and "accessModes" in found.get("spec", {})
    return str(found["spec"].get("storageClassName") or "") if is_claim else ""
