"""NPUs: the family and what the cluster has of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import catalog
from models.deployment import ROLES, Deployment, Role, RoleName
from models.quantities import LAST_PORT
from models.stack import Stack
from rules.finding import Problem, in_deployment, one_of, roles, rule
from rules.parallelism import PREFILL_PODS_SINCE
from rules.ports import declared_ports


@rule("PD101", source="catalog/npu")
def npu_family_is_in_the_catalogue(stack: Stack) -> Iterator[Problem]:
    """The family decides resource name, mounts, image; the device plugin the resource's name."""
    npu, families = stack.cluster.npu, catalog.npu_families()
    if npu.family not in families:
        yield Problem(("cluster", "npu", "family"), f"no NPU family {npu.family!r}", f"one of {one_of(families, npu.family)}")
    elif npu.device_plugin not in families[npu.family].device_plugins:
        known = one_of(families[npu.family].device_plugins, npu.device_plugin)
        yield Problem(("cluster", "npu", "devicePlugin"), f"no device plugin {npu.device_plugin!r}", f"one of {known}")


@rule("PD103", source="vLLM-Ascend P/D feature status")
def npu_family_serves_prefill_and_decode(stack: Stack) -> Iterator[Problem]:
    """Nobody has shown P/D on it: no connector is tested there, and graphs and kernels that decode relies on are missing."""
    if not catalog.npu_families()[stack.cluster.npu.family].serves_prefill_decode:
        able = [name for name, family in catalog.npu_families().items() if family.serves_prefill_decode]
        yield Problem(("cluster", "npu", "family"), f"no P/D on {stack.cluster.npu.family}", f"one of {one_of(able)}")


@rule("PD104", source="catalog/npu: chips, and HAMi's resource names")
def npu_chip_is_known_where_it_matters(stack: Stack) -> Iterator[Problem]:
    """Of a family with several chips the chip decides the memory of a die; with HAMi the resource has its name, and without it
    no server has what the pods ask for."""
    npu = stack.cluster.npu
    family, path = catalog.npu_families()[npu.family], ("cluster", "npu", "chip")
    needed = "{chip}" in family.device_plugins[npu.device_plugin].resource
    if npu.chip is None and needed:
        yield Problem(path, f"the resource name of {npu.device_plugin} has the chip in it", f"one of {one_of(family.chips)}")
    elif npu.chip is not None and npu.chip not in family.chips:
        known = f"one of {one_of(family.chips, npu.chip)}" if family.chips else "leave it out"
        yield Problem(path, f"{npu.family} has no chip {npu.chip!r}", known)


@rule("PD102", source="Kubernetes scheduling")
def cluster_has_the_npus(stack: Stack) -> Iterator[Problem]:
    """Pods go whole onto servers; one that finds none stays Pending and `up` waits."""
    dies = catalog.npu_families()[stack.cluster.npu.family].dies_per_node
    fits = True
    for deployment, name, role in roles(stack):
        fits = fits and _is_split(role) and role.npus_per_pod <= dies
        if _is_split(role) and role.npus_per_pod > dies:
            yield Problem(
                in_deployment(deployment, name, "parallelism"),
                f"{role.npus_per_pod} NPUs for one pod, a server of family {stack.cluster.npu.family} has {dies}",
                _smaller_pods(deployment, name, dies),
            )
    nodes = stack.cluster.npu.nodes
    if nodes is None or not fits:
        return
    servers = Servers((), nodes, dies)
    total = sum(deployment.npus for deployment in stack.deployments.values())
    for deployment in stack.deployments.values():
        needed = deployment.npus // deployment.groups
        for group in range(deployment.groups):
            placed = servers.less(_pods(deployment)) if needed <= servers.free else None
            if placed is None:
                alone = " on a server of its own, as they share the host's ports" if deployment.host_network else ""
                yield Problem(
                    in_deployment(deployment, "ratio" if group == 0 else "groups"),
                    f"group {group} of {deployment.ratio} needs {needed} NPUs in pods of "
                    f"{_counted(deployment)}, each{alone or ' whole on one server'}; "
                    f"the cluster has {nodes} servers of {dies}, and {servers.free} NPUs are left for it",
                    "a lower ratio, fewer groups or less parallelism; or kthena-pd:cluster.npu.nodes of at least "
                    f"{max(nodes + 1, -(-total // dies))} if there are more servers",
                )
                break
            servers = placed


@rule("PD105", source="Kubernetes scheduling; Kthena v1.0.0 autoscaler", severity="warning")
def servers_are_there_for_what_autoscaling_may_ask(stack: Stack) -> Iterator[Problem]:
    """Pods beyond the servers stay Pending, just when the load is highest."""
    nodes, dies = stack.cluster.npu.nodes, catalog.npu_families()[stack.cluster.npu.family].dies_per_node
    declared = sum(deployment.npus for deployment in stack.deployments.values())
    most = {deployment.name: _most_npus(deployment) for deployment in stack.deployments.values()}
    total = sum(most.values())
    if nodes is None or not declared <= nodes * dies < total:
        return
    for deployment in stack.deployments.values():
        if deployment.autoscaling:
            yield Problem(
                in_deployment(deployment, "autoscaling"),
                f"up to {most[deployment.name]} NPUs, {total} with all deployments; the cluster has {nodes} servers of {dies}",
                f"a lower max; or kthena-pd:cluster.npu.nodes of at least {-(-total // dies)} if there are more servers",
            )


def _most_npus(deployment: Deployment) -> int:
    instances = {name: deployment.instance_bounds(name)[1] for name in ROLES}
    return deployment.group_bounds()[1] * sum(count * deployment.role(name).parallelism.npus for name, count in instances.items())


def _is_split(role: Role) -> bool:
    """Whether the pods of an instance have an equal share of its ranks; rules/parallelism.py has the rule."""
    return role.parallelism.dp % role.pods == 0


def _smaller_pods(deployment: Deployment, name: RoleName, dies: int) -> str:
    """What brings a pod of a role onto a server."""
    role, parallelism = deployment.role(name), deployment.role(name).parallelism
    if parallelism.npus_per_rank > dies:
        return f"a rank is never split over servers: make tp x pp at most {dies}"
    fewest = range(-(-parallelism.npus // dies), min(parallelism.dp, LAST_PORT) + 1)  # each rank has a port
    pods = next((pods for pods in fewest if parallelism.dp % pods == 0), None)
    early = name == "prefill" and catalog.before(deployment.engine.version, PREFILL_PODS_SINCE)
    release = f" from engine.version v{PREFILL_PODS_SINCE} on" if early else ""
    return (f"pods: {pods}{release}, or " if pods else "") + f"dp x tp x pp of at most {dies * role.pods}"


def _counted(deployment: Deployment) -> str:
    sizes: Counter[int] = Counter()
    for name in ROLES:
        role = deployment.role(name)
        sizes[role.npus_per_pod] += deployment.ratio.of(name) * role.pods
    return " + ".join(f"{count} x {dies}" for dies, count in sizes.items())


class Room(NamedTuple):
    """What is left of one server, or what a pod takes of it."""

    dies: int
    host_ports: frozenset[int]


@dataclass(frozen=True)
class Servers:
    """What is left of the cluster."""

    begun: tuple[Room, ...]
    """with pods on them, and dies left"""
    unused: int
    dies: int
    """of an unused one"""

    @property
    def free(self) -> int:
        """Dies that are left."""
        return self.unused * self.dies + sum(room.dies for room in self.begun)

    def less(self, pods: list[Room]) -> Servers | None:
        """What is left after pods were put on them, largest first, each where it leaves least; None if they don't fit."""
        begun, unused = list(self.begun), self.unused
        for pod in sorted(pods, key=lambda pod: -pod.dies):
            fitting = [room for room in begun if room.dies >= pod.dies and not room.host_ports & pod.host_ports]
            if fitting:
                best = min(fitting, key=lambda room: room.dies)
                begun.remove(best)
            elif unused:
                best = Room(self.dies, frozenset())
                unused -= 1
            else:
                return None
            if best.dies > pod.dies:
                begun.append(Room(best.dies - pod.dies, best.host_ports | pod.host_ports))
        return Servers(tuple(begun), unused, self.dies)


def _pods(deployment: Deployment) -> list[Room]:
    """What each pod of one group takes. With the host's network every declared port is a port of the server."""
    pods: list[Room] = []
    for name in ROLES:
        role, instances = deployment.role(name), deployment.ratio.of(name)
        for worker, count in ((False, instances), (True, instances * (role.pods - 1))):
            ports = declared_ports(deployment, name, worker=worker) if deployment.host_network else frozenset()
            pods += [Room(role.npus_per_pod, ports)] * count
    return pods
