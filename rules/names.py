"""Names: of pods, namespaces, models."""

from __future__ import annotations

from collections.abc import Iterator

from models.deployment import Deployment
from models.quantities import DNS_LABEL_LENGTH
from models.role import ROLES, RoleName
from models.stack import Stack
from render.names import longest_serving_name, pod_name
from rules.finding import Path, Problem, in_deployment, roles, rule

_GROWN_ORDINAL = 999


@rule("PD401", source="Kthena v1.0.0 webhook validGeneratedNameLength, which counts replicas instead of ordinals")
def pod_names_fit(stack: Stack) -> Iterator[Problem]:
    """Pod names are at most 63 characters, with as many groups and instances as the autoscaler may make."""
    for deployment in stack.deployments.values():
        longest = max((_highest_pod_name(deployment, role) for role in ROLES), key=len)
        over = len(longest) - DNS_LABEL_LENGTH
        if over > 0:
            yield Problem(
                in_deployment(deployment),
                f"pods would be named {longest}: {len(longest)} characters, at most {DNS_LABEL_LENGTH} are allowed",
                f"a name shorter by {over}",
            )


def _highest_pod_name(deployment: Deployment, role: RoleName) -> str:
    groups, instances = deployment.group_bounds()[1], deployment.instance_bounds(role)[1]
    return pod_name(longest_serving_name(deployment), groups, role, instances, deployment.role(role).pods - 1)


@rule("PD402", source="one object, one owner")
def namespaces_have_one_owner(stack: Stack) -> Iterator[Problem]:
    """The control plane's namespace is created with it; default is always there."""
    control_plane = stack.cluster.control_plane
    for index, namespace in enumerate(stack.cluster.namespaces):
        if namespace == "default" or (control_plane.install and namespace == control_plane.namespace):
            yield Problem(
                ("cluster", "namespaces", index),
                f"{namespace} exists without being created here",
                "leave it out",
            )
        elif namespace in stack.cluster.namespaces[:index]:
            yield Problem(("cluster", "namespaces", index), f"{namespace} stands here twice", "leave one out")


@rule("PD403", source="Kthena v1.0.0 pkg/kthena-router/datastore/store.go MatchModelServer")
def model_names_have_one_route(stack: Stack) -> Iterator[Problem]:
    """Of two ModelRoutes with one name the older takes all requests, silently; a served name goes before an adapter's."""
    taken: dict[tuple[str, str], tuple[str, Path]] = {}
    for deployment, name, path in (*_served_names(stack), *_adapter_names(stack)):
        for gateway in _gateways(deployment):
            other, first = taken.setdefault((gateway, name), (deployment.name, path))
            if first != path:
                shared = f"; or route.enabled: false here and a weight in {other}'s route" if other != deployment.name else ""
                remedy = f"another name, for example {name}-{deployment.name}{shared}"
                yield Problem(path, f"{name!r} leads to {other} already", remedy)
                break


def _served_names(stack: Stack) -> Iterator[tuple[Deployment, str, Path]]:
    for deployment in _routed(stack):
        yield deployment, deployment.model.served, in_deployment(deployment, "model", "served")


def _adapter_names(stack: Stack) -> Iterator[tuple[Deployment, str, Path]]:
    for deployment in _routed(stack):
        for name in deployment.model.lora.adapters if deployment.model.lora else ():
            yield deployment, name, in_deployment(deployment, "model", "lora", "adapters", name)


def _routed(stack: Stack) -> Iterator[Deployment]:
    return (deployment for deployment in stack.deployments.values() if deployment.route.enabled)


def _gateways(deployment: Deployment) -> list[str]:
    """Where a route is looked for; the router's own port is one place more."""
    parents = deployment.route.parent_refs
    return [f"{parent.namespace or deployment.namespace}/{parent.name}" for parent in parents] or [""]


@rule(
    "PD404",
    source="Kthena v1.0.0 model_serving_controller.go: a new replica gets the highest ordinal plus one",
    severity="warning",
)
def names_have_room_for_ordinals_that_grow(stack: Stack) -> Iterator[Problem]:
    """Scaled down and up, ordinals go on growing; where workers find their entry pod by a Service, its name ends at 63."""
    for deployment, name, role in roles(stack):
        entry = pod_name(longest_serving_name(deployment), _GROWN_ORDINAL, name, _GROWN_ORDINAL)
        over = len(entry) - DNS_LABEL_LENGTH
        if role.pods > 1 and over > 0:
            yield Problem(
                in_deployment(deployment),
                f"with three digits an entry pod's Service would be named {entry}: {len(entry)} characters, "
                f"at most {DNS_LABEL_LENGTH} are allowed",
                f"a name shorter by {over}",
            )
