"""What a stack would change of its deployments, asked of the API server without changing anything."""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from live import paths
from live.api import Api, ApiRefusedError, Object
from live.snapshot import Snapshot, read_snapshots
from models.autoscaling import Autoscaling
from models.deployment import Deployment
from models.role import ROLES
from models.stack import Stack
from render import render_deployment
from render.deployment import serving_name
from render.names import labels
from render.ownership import owned

DEPLOYMENT_LABEL, MANAGED_LABEL = labels("")
_FORBIDDEN, _NOT_FOUND = 403, 404
_AT_ONCE = 20
"""requests; the API server's own fairness begins to queue a client beyond some dozens"""
_NOT_DECLARED = ("apiVersion", "kind", "metadata", "status")


@dataclass(frozen=True)
class Compared:
    """One object as the stack applies it, as it is, and as it would be stored."""

    declared: Object
    now: Object | None
    stored: Object
    scaling: Autoscaling | None = None
    """of a ModelServing: what its numbers are as the autoscaler has chosen them in ``stored``"""

    @property
    def is_changed(self) -> bool:
        """Whether anything of it would be another; metadata doesn't count."""
        return self.now is None or _content(self.now) != _content(self.stored)


@dataclass(frozen=True)
class Edit:
    """One deployment as it is and as the stack wants it."""

    deployment: str
    namespace: str
    before: Snapshot
    after: tuple[Object, ...] = ()
    """its ModelServings as the API server would store them; none: the stack does not declare the deployment any more"""
    changes: tuple[str, ...] = ()
    """kind and name of the objects that would be created or changed, or of those that would be deleted; metadata doesn't count"""
    objects: tuple[Compared, ...] = ()
    """all that the deployment renders and the API server takes"""
    refusals: tuple[str, ...] = ()
    """why the API server would not take an object: its kind, its name, and the server's own words"""


async def read_edits(api: Api, stack: Stack, manager: str) -> tuple[Edit, ...]:
    """The edits of a stack's deployments in its order, and then of those that it declares no more.

    Args:
        api: of the stack's cluster
        stack: whose deployments the rules have passed
        manager: the stack's field manager, ``pulumi-<project>-<stack>``: of what others own, nothing is deleted

    Raises:
        ClusterError: the cluster does not answer, or does not let us read.
    """
    wanted = defaultdict(set)
    for name, deployment in stack.deployments.items():
        wanted[deployment.namespace].add(name)
    snapshots, undeclared = await asyncio.gather(read_snapshots(api, wanted), _undeclared(api, wanted, manager))
    dry_run = _DryRun(api, manager, asyncio.Semaphore(_AT_ONCE))
    edits = await asyncio.gather(
        *(_edit(dry_run, stack, one, snapshots[one.namespace, name]) for name, one in stack.deployments.items())
    )
    return (*edits, *undeclared)


async def read_nodes_and_pods(api: Api) -> tuple[list[Object], list[Object]] | None:
    """All nodes and pods of the cluster; None where we may not read them.

    Raises:
        ClusterError: the cluster does not answer.
    """
    try:
        nodes, pods = await asyncio.gather(api.list(paths.nodes()), api.list(paths.pods()))
    except ApiRefusedError as error:
        if error.code == _FORBIDDEN:
            return None
        raise
    return nodes, pods


async def retire_autoscalers(api: Api, stack: Stack, manager: str) -> None:
    """Delete the AutoscalingPolicies that the stack has made and declares no more.

    Pulumi would delete them last, and until then the autoscaler could undo the numbers that are the stack's again (seen).

    Raises:
        ClusterError: the cluster does not answer, or refuses.
    """
    selector = f"{MANAGED_LABEL}={labels('')[MANAGED_LABEL]}"
    namespaces = {deployment.namespace for deployment in stack.deployments.values()}
    lists = await asyncio.gather(*(api.list(paths.autoscaling_policies(namespace), selector) for namespace in namespaces))
    scaled = {
        (version.namespace, serving_name(version, stack.cluster))
        for deployment in stack.deployments.values()
        for version in (deployment, deployment.candidate)
        if version and version.autoscaling
    }
    for item in (item for items in lists for item in items):
        metadata = item["metadata"]
        is_ours = metadata["labels"].get(DEPLOYMENT_LABEL) in stack.deployments and manager in _managers(item)
        if is_ours and (metadata["namespace"], metadata["name"]) not in scaled:
            await api.delete(paths.of(item))


@dataclass(frozen=True)
class _DryRun:
    api: Api
    manager: str
    slots: asyncio.Semaphore

    async def __call__(self, declared: Object, scaling: Autoscaling | None) -> Compared:
        """Ask what would become of an object.

        Raises:
            ApiRefusedError: it would not be taken.
        """
        async with self.slots:
            now = await self.api.get(paths.of(declared))
            # an `up` leaves the numbers alone that the autoscaler decides
            wanted = with_scale_of(now, declared, scaling) if now and scaling else declared
            return Compared(declared, now, await self.api.apply(wanted, self.manager, dry_run=True), scaling)


async def _edit(dry_run: _DryRun, stack: Stack, deployment: Deployment, before: Snapshot) -> Edit:
    others = {name: stack.deployments[name] for name in deployment.route.targets & stack.deployments.keys()}
    rendered = render_deployment(deployment, stack.cluster, others)
    versions = {rendered.stable.name: deployment}
    if rendered.candidate and deployment.candidate:
        versions[rendered.candidate.name] = deployment.candidate

    async def part(item: Object) -> Compared | str:
        """One object, or why it is refused."""
        name = item["metadata"]["name"]
        scaling = versions[name].autoscaling if item["kind"] == "ModelServing" else None
        declared = owned(item, dry_run.manager)
        try:
            return await dry_run(declared, scaling)
        except ApiRefusedError as error:
            if error.code != _NOT_FOUND or deployment.namespace not in stack.cluster.namespaces:
                return f"{item['kind']} {name}: {error.message}"
            return Compared(declared, None, declared, scaling)  # its namespace comes with this stack

    parts = await asyncio.gather(*map(part, rendered.objects))
    objects = tuple(one for one in parts if isinstance(one, Compared))
    unwanted = {item["metadata"]["name"] for item in before.model_servings} - versions.keys()
    return Edit(
        deployment.name,
        deployment.namespace,
        before,
        after=tuple(one.stored for one in objects if one.declared["kind"] == "ModelServing"),
        changes=(
            *(
                f"{item['kind']} {item['metadata']['name']}"
                for item, one in zip(rendered.objects, parts, strict=True)
                if isinstance(one, str) or one.is_changed
            ),
            *(f"ModelServing {name}" for name in sorted(unwanted)),
        ),
        objects=objects,
        refusals=tuple(one for one in parts if isinstance(one, str)),
    )


async def _undeclared(api: Api, declared: dict[str, set[str]], manager: str) -> list[Edit]:
    """Edits that delete: deployments that this stack has made and does not declare any more."""
    selector = f"{MANAGED_LABEL}={labels('')[MANAGED_LABEL]}"
    try:
        found = await api.list(paths.model_servings(), selector)
    except ApiRefusedError as error:
        if error.code != _FORBIDDEN:
            raise
        # where we may not look at the whole cluster, in the namespaces that are left to the stack
        lists = await asyncio.gather(*(api.list(paths.model_servings(namespace), selector) for namespace in declared))
        found = [item for items in lists for item in items]
    gone = defaultdict(set)
    for item in found:
        namespace, name = item["metadata"]["namespace"], item["metadata"]["labels"].get(DEPLOYMENT_LABEL, "")
        if name not in declared.get(namespace, ()) and manager in _managers(item):
            gone[namespace].add(name)
    snapshots = await read_snapshots(api, gone)
    return [
        Edit(
            name, namespace, snapshot, changes=tuple(f"ModelServing {one['metadata']['name']}" for one in snapshot.model_servings)
        )
        for (namespace, name), snapshot in sorted(snapshots.items(), key=lambda item: item[0])
    ]


def _managers(item: Object) -> Iterable[str]:
    return {entry.get("manager", "") for entry in item["metadata"].get("managedFields") or ()}


def with_scale_of(live: Object, declared: Object, scaling: Autoscaling) -> Object:
    """``declared`` with the numbers that the autoscaler decides as they are in ``live``."""
    declared = copy.deepcopy(declared)
    if scaling.groups:
        declared["spec"]["replicas"] = live["spec"].get("replicas", 1)
    of_role = {role["name"]: role.get("replicas", 1) for role in live["spec"]["template"]["roles"]}
    scaled = [name for name in ROLES if scaling.role(name)]
    for role in declared["spec"]["template"]["roles"]:
        if role["name"] in scaled and role["name"] in of_role:
            role["replicas"] = of_role[role["name"]]
    return declared


def _content(item: Object) -> Object:
    return {key: value for key, value in item.items() if key not in _NOT_DECLARED}
