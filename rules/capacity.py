"""NPUs: the family and what the cluster has of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import catalog
from models.deployment import ROLES, Deployment
from models.stack import Stack
from rules.finding import Problem, in_deployment, one_of, rule


@rule("PD101", source="catalog/npu")
def npu_family_is_in_the_catalogue(stack: Stack) -> Iterator[Problem]:
    """The family decides resource name, mounts, image; the device plugin the resource's name."""
    npu, families = stack.cluster.npu, catalog.npu_families()
    if npu.family not in families:
        yield Problem(("cluster", "npu", "family"), f"no NPU family {npu.family!r}", f"one of {one_of(families)}")
    elif npu.device_plugin not in families[npu.family].device_plugins:
        known = one_of(families[npu.family].device_plugins)
        yield Problem(("cluster", "npu", "devicePlugin"), f"no device plugin {npu.device_plugin!r}", f"one of {known}")


@rule("PD103", source="vLLM-Ascend P/D feature status")
def npu_family_serves_prefill_and_decode(stack: Stack) -> Iterator[Problem]:
    """Nobody has shown P/D on it: no connector is tested there, and graphs and kernels that decode relies on are missing."""
    if not catalog.npu_families()[stack.cluster.npu.family].serves_prefill_decode:
        able = [name for name, family in catalog.npu_families().items() if family.serves_prefill_decode]
        yield Problem(("cluster", "npu", "family"), f"no P/D on {stack.cluster.npu.family}", f"one of {one_of(able)}")


@rule("PD102", source="Kubernetes scheduling")
def cluster_has_the_npus(stack: Stack) -> Iterator[Problem]:
    """Pods go whole onto servers; one that finds none stays Pending and `up` waits."""
    dies = catalog.npu_families()[stack.cluster.npu.family].dies_per_node
    fits = True
    for deployment in stack.deployments.values():
        for role in ROLES:
            npus = deployment.role(role).parallelism.npus
            if npus > dies:
                fits = False
                yield Problem(
                    in_deployment(deployment, role, "parallelism"),
                    f"dp x tp = {npus} NPUs for one pod, a server of family {stack.cluster.npu.family} has {dies}",
                    f"make dp x tp at most {dies}",
                )
    nodes = stack.cluster.npu.nodes
    if nodes is None or not fits:
        return
    servers = [Server(dies, frozenset()) for _ in range(nodes)]
    for deployment in stack.deployments.values():
        pods = _pods(deployment)
        for group in range(deployment.groups):
            placed = _place(pods, servers)
            if placed is None:
                free = sum(server.dies for server in servers)
                alone = " on a server of its own, as they share the host's ports" if deployment.host_network else ""
                yield Problem(
                    in_deployment(deployment, "ratio" if group == 0 else "groups"),
                    f"group {group} of {deployment.ratio} needs {sum(pod.dies for pod in pods)} NPUs in pods of "
                    f"{_counted(pods)}, each{alone or ' whole on one server'}; "
                    f"the cluster has {nodes} servers of {dies}, and {free} NPUs are left for it",
                    "lower the ratio, groups or parallelism, or raise kthena-pd:cluster.npu.nodes if there are more servers",
                )
                break
            servers = placed


def _counted(pods: list[Server]) -> str:
    sizes = Counter(pod.dies for pod in pods)
    return " + ".join(f"{count} x {dies}" for dies, count in sizes.items())


@dataclass(frozen=True)
class Server:
    """What is left of one server, or what a pod takes of it."""

    dies: int
    host_ports: frozenset[int]


def _pods(deployment: Deployment) -> list[Server]:
    """What each pod of one group takes. With the host's network every declared port is a port of the server."""
    ports = frozenset({deployment.port, deployment.kv_transfer.port} if deployment.host_network else ())
    return [Server(deployment.role(role).parallelism.npus, ports) for role in ROLES for _ in range(deployment.ratio.of(role))]


def _place(pods: list[Server], servers: list[Server]) -> list[Server] | None:
    """``servers`` after pods were put on them, largest first, each where it leaves least; None if they don't fit."""
    left = list(servers)
    for pod in sorted(pods, key=lambda pod: -pod.dies):
        fitting = [index for index, one in enumerate(left) if one.dies >= pod.dies and not one.host_ports & pod.host_ports]
        if not fitting:
            return None
        best = min(fitting, key=lambda index: left[index].dies)
        left[best] = Server(left[best].dies - pod.dies, left[best].host_ports | pod.host_ports)
    return left
