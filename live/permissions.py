"""What an `up` does to the API server, as its authorizers call it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from live import paths
from live.api import Api, Object
from models.cluster import Cluster
from render import render_monitoring

_APPLIED = ("get", "create", "patch")
"""server-side apply wants all three"""
_OWN = (*_APPLIED, "delete")
_LISTED = (paths.model_servings, paths.model_servers, paths.model_routes, paths.autoscaling_policies)
"""among these is looked for what the stack has made and declares no more"""
_OF_CONTROL_PLANE: Mapping[str, tuple[str, ...]] = {
    "": ("services", "serviceaccounts", "configmaps"),
    "apps": ("deployments",),
    "rbac.authorization.k8s.io": ("roles", "rolebindings"),
}
"""API group -> resources in its namespace"""
_CLUSTER_WIDE: Mapping[str, tuple[str, ...]] = {
    "": ("namespaces",),
    "rbac.authorization.k8s.io": ("clusterroles", "clusterrolebindings"),
    "apiextensions.k8s.io": ("customresourcedefinitions",),
    "admissionregistration.k8s.io": ("validatingwebhookconfigurations", "mutatingwebhookconfigurations"),
}
_AT_ONCE = 20


class Permission(NamedTuple):
    """One verb of one resource."""

    verb: str
    group: str
    resource: str
    """with its subresource, as in ``pods/portforward``"""
    namespace: str
    """empty: of the whole cluster"""

    def __str__(self) -> str:
        qualified = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {qualified} {f'in namespace {self.namespace}' if self.namespace else 'in the cluster'}"


EVERYTHING = Permission("*", "*", "*", "")


def needed(cluster: Cluster, objects: Collection[Object]) -> Iterator[Permission]:
    """What an `up` of a stack needs, some of it more than once.

    Args:
        cluster: of the stack
        objects: of its deployments
    """
    control_plane = cluster.control_plane
    for item in (*objects, *render_monitoring(cluster)):
        group, _, _ = item["apiVersion"].rpartition("/")
        namespace = item["metadata"].get("namespace", "")
        resource = paths.collection(item).rpartition("/")[2]
        yield from (Permission(verb, group, resource, namespace) for verb in _OWN)
    for namespace in {item["metadata"]["namespace"] for item in objects}:
        for kind in _LISTED:
            yield Permission("list", kind.api_version.partition("/")[0], kind.plural, namespace)
        # Pulumi waits for it
        yield Permission("watch", paths.model_servings.api_version.partition("/")[0], "modelservings", namespace)
        yield Permission("list", "", "pods", namespace)
    if cluster.namespaces:
        yield from (Permission(verb, "", "namespaces", "") for verb in _OWN)
    # the router's view is asked for through a port-forward to its pod
    yield Permission("get", "apps", "deployments", control_plane.namespace)
    yield Permission("list", "", "pods", control_plane.namespace)
    yield Permission("get", "", "pods/portforward", control_plane.namespace)
    if control_plane.install:
        for kinds, namespace in ((_OF_CONTROL_PLANE, control_plane.namespace), (_CLUSTER_WIDE, "")):
            for group, resources in kinds.items():
                yield from (Permission(verb, group, resource, namespace) for resource in resources for verb in _APPLIED)
        yield from (Permission(verb, "apps", "deployments", control_plane.namespace) for verb in ("list", "watch"))
    if control_plane.install and control_plane.certificates == "cert-manager":
        for resource in ("issuers", "certificates"):
            yield from (Permission(verb, "cert-manager.io", resource, control_plane.namespace) for verb in _APPLIED)


async def denied(api: Api, permissions: Iterable[Permission]) -> tuple[Permission, ...]:
    """Those of ``permissions`` that the user has not; an administrator is asked for with one request.

    Raises:
        ClusterError: the cluster refuses or does not answer.
    """
    if await _is_allowed(api, EVERYTHING):
        return ()
    wanted = sorted(set(permissions))
    slots = asyncio.Semaphore(_AT_ONCE)

    async def ask(permission: Permission) -> bool:
        async with slots:
            return await _is_allowed(api, permission)

    allowed = await asyncio.gather(*map(ask, wanted))
    return tuple(permission for permission, is_allowed in zip(wanted, allowed, strict=True) if not is_allowed)


async def _is_allowed(api: Api, permission: Permission) -> bool:
    resource, _, subresource = permission.resource.partition("/")
    attributes = {
        "verb": permission.verb,
        "group": permission.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": permission.namespace,
    }
    review = {
        "apiVersion": paths.access_reviews.api_version,
        "kind": paths.access_reviews.kind,
        "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
    }
    return bool((await api.create(paths.access_reviews(), review))["status"]["allowed"])
