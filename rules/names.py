"""Names: of pods, namespaces, models."""

from __future__ import annotations

from collections.abc import Iterator

from models.deployment import ROLES, Deployment
from models.quantities import DNS_LABEL_LENGTH
from models.stack import Stack
from render.names import entry_pod_name
from rules.finding import Problem, in_deployment, rule


@rule("PD401", source="Kthena's webhook, which counts replicas instead of ordinals")
def pod_names_fit(stack: Stack) -> Iterator[Problem]:
    """Pod names are at most 63 characters."""
    for deployment in stack.deployments.values():
        longest = max(
            (entry_pod_name(deployment.name, deployment.groups, role, deployment.ratio.of(role)) for role in ROLES),
            key=len,
        )
        over = len(longest) - DNS_LABEL_LENGTH
        if over > 0:
            yield Problem(
                in_deployment(deployment),
                f"pods would be named {longest}: {len(longest)} characters, at most {DNS_LABEL_LENGTH} are allowed",
                f"a name shorter by {over}",
            )


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


@rule("PD403", source="Kthena v1.0.0 router")
def served_model_has_one_route(stack: Stack) -> Iterator[Problem]:
    """Of two ModelRoutes with one model name the older takes all requests, silently."""
    first: dict[str, Deployment] = {}
    for deployment in stack.deployments.values():
        other = first.setdefault(deployment.model.served, deployment)
        if other is not deployment:
            yield Problem(
                in_deployment(deployment, "model", "served"),
                f"{deployment.model.served!r} is served by {other.name} already",
                f"another name, for example {deployment.model.served}-{deployment.name}, or more groups of {other.name}",
            )
