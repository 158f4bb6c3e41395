"""NPUs: the family and what the cluster has of it."""

from __future__ import annotations

from collections.abc import Iterator

import catalog
from models.deployment import ROLES, Deployment
from models.stack import Stack
from rules.finding import Finding, in_deployment, one_of


def npu_family_is_in_the_catalogue(stack: Stack) -> Iterator[Finding]:
    """PD101. The family decides resource name, mounts, image; the device plugin the resource's name. Source: catalog/npu."""
    npu, families = stack.cluster.npu, catalog.npu_families()
    if npu.family not in families:
        yield Finding("PD101", ("cluster", "npu", "family"), f"no NPU family {npu.family!r}", f"one of {one_of(families)}")
    elif npu.device_plugin not in families[npu.family].resource_names:
        known = one_of(families[npu.family].resource_names)
        yield Finding("PD101", ("cluster", "npu", "devicePlugin"), f"no device plugin {npu.device_plugin!r}", f"one of {known}")


def cluster_has_the_npus(stack: Stack) -> Iterator[Finding]:
    """PD102. Pods go whole onto servers; one that finds none stays Pending and `up` waits. Source: Kubernetes scheduling."""
    dies = catalog.npu_families()[stack.cluster.npu.family].dies_per_node
    fits = True
    for deployment in stack.deployments.values():
        for role in ROLES:
            npus = deployment.role(role).parallelism.npus
            if npus > dies:
                fits = False
                yield Finding(
                    "PD102",
                    in_deployment(deployment, role, "parallelism"),
                    f"dp x tp = {npus} NPUs for one pod, a server of family {stack.cluster.npu.family} has {dies}",
                    f"make dp x tp at most {dies}",
                )
    nodes = stack.cluster.npu.nodes
    if nodes is None or not fits:
        return
    free = [dies] * nodes
    for deployment in stack.deployments.values():
        for group in range(deployment.groups):
            if not _place(_pods(deployment), free):
                yield Finding(
                    "PD102",
                    in_deployment(deployment, "ratio" if group == 0 else "groups"),
                    f"group {group} of {deployment.ratio} needs {sum(_pods(deployment))} NPUs in pods of "
                    f"{' + '.join(map(str, _pods(deployment)))}; the cluster has {nodes} servers of {dies}, "
                    f"and {sum(free)} NPUs are left for it",
                    "lower the ratio, groups or parallelism, or raise kthena-pd:cluster.npu.nodes if there are more servers",
                )
                break


def _pods(deployment: Deployment) -> list[int]:
    """NPUs of each pod of one group."""
    return [deployment.role(role).parallelism.npus for role in ROLES for _ in range(deployment.ratio.of(role))]


def _place(pods: list[int], free: list[int]) -> bool:
    """Put pods on servers, largest first, each where it leaves least; ``free`` keeps what is left."""
    left = list(free)
    for pod in sorted(pods, reverse=True):
        candidates = [index for index, npus in enumerate(left) if npus >= pod]
        if not candidates:
            return False
        left[min(candidates, key=left.__getitem__)] -= pod
    free[:] = left
    return True
