"""What a stack would change of its deployments, asked of the API server without changing anything."""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from live import paths
from live.api import FORBIDDEN, Api, ApiRefusedError, MissingKindError, Object, UnknownKindError
from live.resources import read_room
from live.snapshot import Snapshot, read_snapshots
from live.webhooks import is_unanswered
from models.autoscaling import Autoscaling
from models.cluster import Cluster
from models.deployment import Deployment
from models.stack import Stack
from render import RenderedDeployment, render_deployment
from render.deployment import serving_name
from render.names import DEPLOYMENT_LABEL, MANAGED, ROUTER_NAME, selector
from render.ownership import DECLARED, annotation, owned, writers

UNANSWERED = "\n      -> Kthena's webhook does not answer: do its controller and router run? kubectl get pods -A | grep kthena"
_KTHENAS = '.volcano.sh"'
"""how the names of its webhooks end in the API server's words"""
_NOT_FOUND = 404
_AT_ONCE = 20
"""requests; the API server's own fairness begins to queue a client beyond some dozens"""
_BESIDE = (paths.network_policies, paths.pod_monitors, paths.prometheus_rules)
"""kinds that a cluster may not have, and that nobody has to be allowed to see who does without them"""
_OF_DEPLOYMENTS = (paths.model_servings, paths.model_servers, paths.model_routes, paths.autoscaling_policies, *_BESIDE)
"""kinds of which something goes that the declaration has no more; scripts go with the pods that mount them"""
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
    def is_edited(self) -> bool:
        """Whether it was declared anew since it was last applied."""
        return self.now is None or annotation(self.now, DECLARED) != annotation(self.declared, DECLARED)

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
    """kind and name of the objects that would be created or changed; metadata doesn't count"""
    deleted: tuple[Object, ...] = ()
    """objects that the stack has made and declares no more, as they are"""
    unanswered: tuple[str, ...] = ()
    """names of models and adapters whose route would be deleted, and that no other route of the stack has"""
    moved_to: str = ""
    """namespace in which the stack declares a deployment of this name instead"""
    objects: tuple[Compared, ...] = ()
    """all that the deployment renders and the API server takes"""
    refusals: tuple[str, ...] = ()
    """why the API server would not take an object: its kind, its name, and the server's own words"""

    @property
    def is_nothing(self) -> bool:
        """Whether all is as declared."""
        return not (self.changes or self.deleted)

    def problems(self, without: Collection[str] = ()) -> tuple[str, ...]:
        """The refusals, for people, ``without`` those of objects of some kinds."""
        return tuple(
            f"{self.deployment}: the API server refuses {refusal}"
            for refusal in self.refusals
            if refusal.partition(" ")[0] not in without
        )


async def read_edits(api: Api, stack: Stack, manager: str) -> tuple[Edit, ...]:
    """The edits of a stack's deployments in its order, and then of those that it declares no more.

    Args:
        api: of the stack's cluster
        stack: whose deployments the rules have passed
        manager: the stack's field manager, ``pulumi-<project>-<stack>``: of what others own, nothing is deleted

    Raises:
        ClusterError: the cluster does not answer, or does not let us read.
    """
    rendered = {name: _rendered(stack, deployment) for name, deployment in stack.deployments.items()}
    try:
        return await _read_edits(api, stack, rendered, manager)
    except MissingKindError:
        if not stack.cluster.control_plane.install:
            raise
    # the stack brings Kthena's kinds: there is nothing of them yet
    return tuple(_made_anew(deployment, rendered[name], manager) for name, deployment in stack.deployments.items())


async def _read_edits(api: Api, stack: Stack, rendered: Mapping[str, RenderedDeployment], manager: str) -> tuple[Edit, ...]:
    wanted: dict[str, dict[str, str]] = defaultdict(dict)
    for name, deployment in stack.deployments.items():
        wanted[deployment.namespace][name] = serving_name(deployment, stack.cluster)
    declared = {paths.of(item): item for one in rendered.values() for item in one.objects}
    snapshots, undeclared = await asyncio.gather(
        read_snapshots(api, wanted), _undeclared(api, wanted.keys(), declared.keys(), manager)
    )
    answered = {name for item in declared.values() if item["kind"] == "ModelRoute" for name in _answered(item)}
    installs = stack.cluster.control_plane.install
    dry_run = _DryRun(api, manager, asyncio.Semaphore(_AT_ONCE), installs)

    async def edit(deployment: Deployment) -> Edit:
        place = (deployment.namespace, deployment.name)
        deleted = undeclared.pop(place, [])
        return await _edit(dry_run, stack, deployment, rendered[deployment.name], snapshots[place], deleted, answered)

    edits = await asyncio.gather(*map(edit, stack.deployments.values()))
    return (*edits, *await _leaving(api, stack, undeclared, answered))


async def read_free(api: Api) -> Mapping[str, int] | None:
    """Extended resource -> number that no pod holds; None where we may not read it.

    Raises:
        ClusterError: the cluster does not answer.
    """
    try:
        nodes, pods = await asyncio.gather(api.list(paths.nodes()), api.list(paths.pods()))
    except ApiRefusedError as error:
        if error.code == FORBIDDEN:
            return None
        raise
    return read_room(nodes, pods).left


async def revert(api: Api, edits: Iterable[Edit], manager: str) -> None:
    """Apply again what others have changed since.

    Pulumi compares in the shape of what it has applied: an item that somebody has added to a list is no difference to it, and in
    a pod template it would stay for ever.

    Raises:
        ClusterError: the cluster does not answer, or refuses.
    """
    for one in (one for edit in edits for one in edit.objects):
        if one.now and one.is_changed and not one.is_edited:
            await api.apply(with_scale_of(one.now, one.declared, one.scaling) if one.scaling else one.declared, manager)


async def retire_autoscalers(api: Api, stack: Stack, manager: str) -> None:
    """Delete the AutoscalingPolicies that the stack has made of ModelServings whose numbers it declares itself now.

    Pulumi would delete them last, and until then the autoscaler could undo these numbers (seen). That of a version which another
    one replaces is not among them: it scales what serves until the other does.

    Raises:
        ClusterError: the cluster does not answer, or refuses.
    """
    unscaled = {
        (version.namespace, serving_name(version, stack.cluster))
        for deployment in stack.deployments.values()
        for version in (deployment, deployment.candidate)
        if version and not version.autoscaling
    }
    namespaces = {namespace for namespace, _ in unscaled}
    lists = await asyncio.gather(*(api.list(paths.autoscaling_policies(one), selector(MANAGED)) for one in namespaces))
    for item in (item for items in lists for item in items):
        metadata = item["metadata"]
        if (metadata["namespace"], metadata["name"]) in unscaled and _has_written(manager, item):
            await api.delete(paths.of(item))


@dataclass(frozen=True)
class _DryRun:
    api: Api
    manager: str
    slots: asyncio.Semaphore
    installs: bool
    """whether this stack brings the webhooks: then they may answer once it has mended them"""

    async def __call__(self, declared: Object, scaling: Autoscaling | None) -> Compared:
        """Ask what would become of an object.

        Raises:
            ApiRefusedError: it would not be taken.
        """
        async with self.slots:
            now = await self.api.get(paths.of(declared))
            # an `up` leaves the numbers alone that the autoscaler decides
            wanted = with_scale_of(now, declared, scaling) if now and scaling else declared
            try:
                stored = await self.api.apply(wanted, self.manager, dry_run=True)
            except ApiRefusedError as error:
                if not (self.installs and is_unanswered(error)):
                    raise
                is_applied = now and annotation(now, DECLARED) == annotation(declared, DECLARED)
                stored = now if now and is_applied else declared
            return Compared(declared, now, stored, scaling)

    async def silence(self, declared: Object) -> str:
        """Why nobody can judge an object whose namespace is not there yet; empty where somebody can, whatever the answer is.

        It is asked in a namespace that every cluster has, and there only of Kthena's own webhooks, which ask nobody where it is.
        """
        if self.installs:
            return ""
        there = declared | {"metadata": declared["metadata"] | {"namespace": "default"}}
        async with self.slots:
            try:
                await self.api.create(paths.collection(there), there, dry_run=True)
            except ApiRefusedError as error:
                return error.message if is_unanswered(error) and _KTHENAS in error.message else ""
        return ""


async def _edit(  # noqa: PLR0913, PLR0917  # what is there, and what is wanted of it
    dry_run: _DryRun,
    stack: Stack,
    deployment: Deployment,
    rendered: RenderedDeployment,
    before: Snapshot,
    deleted: Collection[Object],
    answered: Collection[str],
) -> Edit:
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
        except UnknownKindError as error:
            return f"{item['kind']} {name}: {error}"
        except ApiRefusedError as error:
            if error.code != _NOT_FOUND or deployment.namespace not in _made(stack.cluster):
                hint = UNANSWERED if is_unanswered(error) else ""
                return f"{item['kind']} {name}: {error.message}{hint}"
            # its namespace comes with this stack
            if silence := await dry_run.silence(declared):
                return f"{item['kind']} {name}: {silence}{UNANSWERED}"
            return Compared(declared, None, declared, scaling)

    parts = await asyncio.gather(*map(part, rendered.objects))
    objects = tuple(one for one in parts if isinstance(one, Compared))
    return Edit(
        deployment.name,
        deployment.namespace,
        _less_others(before, (*rendered.objects, *deleted)),
        after=tuple(one.stored for one in objects if one.declared["kind"] == "ModelServing"),
        changes=tuple(
            f"{item['kind']} {item['metadata']['name']}"
            for item, one in zip(rendered.objects, parts, strict=True)
            if isinstance(one, str) or one.is_changed
        ),
        deleted=tuple(deleted),
        unanswered=_unanswered(deleted, answered),
        objects=objects,
        refusals=tuple(one for one in parts if isinstance(one, str)),
    )


def _made_anew(deployment: Deployment, rendered: RenderedDeployment, manager: str) -> Edit:
    objects = tuple(owned(item, manager) for item in rendered.objects)
    return Edit(
        deployment.name,
        deployment.namespace,
        Snapshot(),
        after=tuple(item for item in objects if item["kind"] == "ModelServing"),
        changes=tuple(f"{item['kind']} {item['metadata']['name']}" for item in objects),
        objects=tuple(Compared(item, None, item) for item in objects),
    )


async def _undeclared(
    api: Api, namespaces: Collection[str], declared: Collection[str], manager: str
) -> dict[tuple[str, str], list[Object]]:
    """What the stack has made and does not declare any more.

    Args:
        api: of the stack's cluster
        namespaces: of the declared deployments
        declared: paths of all declared objects: a deployment of another name may have taken over the route
        manager: the stack's field manager

    Returns:
        (namespace, deployment) -> its objects.
    """

    async def read(kind: paths.Kind) -> list[Object]:
        try:
            return await api.list(kind(), selector(MANAGED))
        except ApiRefusedError as error:
            if error.code != FORBIDDEN:
                raise
        # where we may not look at the whole cluster, in the namespaces that are left to the stack
        lists = await asyncio.gather(*(api.list(kind(namespace), selector(MANAGED)) for namespace in namespaces))
        return [item for items in lists for item in items]

    async def read_beside(kind: paths.Kind) -> list[Object]:
        try:
            return await read(kind)
        except UnknownKindError:
            return []
        except ApiRefusedError as error:
            if error.code != FORBIDDEN:
                raise
            return []

    lists = await asyncio.gather(*(read_beside(kind) if kind in _BESIDE else read(kind) for kind in _OF_DEPLOYMENTS))
    found = defaultdict(list)
    for item in (item for items in lists for item in items):
        metadata = item["metadata"]
        owner = metadata["labels"].get(DEPLOYMENT_LABEL, "")
        if paths.of(item) not in declared and owner != ROUTER_NAME and _has_written(manager, item):
            found[metadata["namespace"], owner].append(item)
    return found


async def _leaving(
    api: Api, stack: Stack, undeclared: Mapping[tuple[str, str], list[Object]], answered: Collection[str]
) -> list[Edit]:
    """Edits that delete: deployments that this stack has made and does not declare any more."""
    gone: dict[str, dict[str, str]] = defaultdict(dict)
    for namespace, name in undeclared:
        gone[namespace][name] = ""
    snapshots = await read_snapshots(api, gone)
    return [
        Edit(
            name,
            namespace,
            _less_others(snapshots[namespace, name], deleted),
            deleted=tuple(deleted),
            unanswered=_unanswered(deleted, answered),
            moved_to=stack.deployments[name].namespace if name in stack.deployments else "",
        )
        for (namespace, name), deleted in sorted(undeclared.items(), key=lambda item: item[0])
    ]


def _rendered(stack: Stack, deployment: Deployment) -> RenderedDeployment:
    others = {name: stack.deployments[name] for name in deployment.route.targets & stack.deployments.keys()}
    return render_deployment(deployment, stack.cluster, others)


def _less_others(seen: Snapshot, ours: Iterable[Object]) -> Snapshot:
    """Without ModelServings that another stack has made under the same labels."""
    known = {paths.of(item) for item in ours}
    return replace(seen, model_servings=tuple(one for one in seen.model_servings if paths.of(one) in known))


def _made(cluster: Cluster) -> set[str]:
    """Namespaces that the stack makes before its deployments."""
    return {*cluster.namespaces, *([cluster.control_plane.namespace] if cluster.control_plane.install else [])}


def _answered(route: Object) -> set[str]:
    """Names of models by which requests find a route."""
    spec = route["spec"]
    return {*filter(None, [spec.get("modelName")]), *(spec.get("loraAdapters") or ())}


def _unanswered(deleted: Iterable[Object], answered: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted({name for item in deleted if item["kind"] == "ModelRoute" for name in _answered(item)} - {*answered}))


def _has_written(manager: str, item: Object) -> bool:
    return any(entry.get("manager") == manager for entry in writers(item))


def with_scale_of(live: Object, declared: Object, scaling: Autoscaling) -> Object:
    """``declared`` with the numbers that the autoscaler decides as they are in ``live``."""
    declared = copy.deepcopy(declared)
    if scaling.groups:
        declared["spec"]["replicas"] = live["spec"].get("replicas", 1)
    of_role = {role["name"]: role.get("replicas", 1) for role in live["spec"]["template"]["roles"]}
    for role in declared["spec"]["template"]["roles"]:
        if role["name"] in scaling.scaled_roles and role["name"] in of_role:
            role["replicas"] = of_role[role["name"]]
    return declared


def _content(item: Object) -> Object:
    return {key: value for key, value in item.items() if key not in _NOT_DECLARED}
