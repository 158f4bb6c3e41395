"""Whether the servers hold what is declared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import catalog
from models.deployment import Deployment
from models.quantities import LAST_PORT
from models.role import ROLES, Role, RoleName
from models.stack import Stack
from rules.finding import Problem, in_deployment, roles, rule
from rules.npu import family_of
from rules.parallelism import PREFILL_PODS_SINCE
from rules.ports import declared_ports


@rule("PD102", source="Kubernetes scheduling")
def cluster_has_the_npus(stack: Stack) -> Iterator[Problem]:
    """Pods go whole onto servers; one that finds none stays Pending and `up` waits."""
    family = family_of(stack)
    for deployment, name, role in roles(stack):
        if family and _is_split(role) and role.npus_per_pod > family.dies_per_node:
            yield Problem(
                in_deployment(deployment, name, "parallelism"),
                f"{role.npus_per_pod} NPUs for one pod, a server of family {family.family} has {family.dies_per_node}",
                _smaller_pods(deployment, name, family.dies_per_node),
            )
    yield from (shortage.problem for shortage in _shortages(stack) if shortage.certain)


@rule("PD106", source="Kubernetes scheduling", severity="warning")
def pods_can_be_placed_on_the_servers(stack: Stack) -> Iterator[Problem]:
    """There are enough NPUs, but no way was found to put all pods whole onto the servers, the largest of each group first. The
    scheduler looks no harder: what is left over lies in pieces that are too small, and a pod stays Pending."""
    yield from (shortage.problem for shortage in _shortages(stack) if not shortage.certain)


class _Shortage(NamedTuple):
    problem: Problem
    certain: bool
    """whatever the order in which the pods are placed"""


def _shortages(stack: Stack) -> Iterator[_Shortage]:
    """The first group of each deployment that finds no place."""
    family, nodes = family_of(stack), stack.cluster.npu.nodes
    dies = family.dies_per_node if family else 0
    if nodes is None or any(not _is_split(role) or role.npus_per_pod > dies for _, _, role in roles(stack)):
        return
    servers, taken = Servers((), nodes, dies), Counter[Room]()
    everything = Counter[Room]()
    for deployment in stack.deployments.values():
        everything.update({pod: count * deployment.groups for pod, count in _pods(deployment).items()})
    enough = max(nodes + 1, _fewest_servers(everything, dies))
    for deployment in stack.deployments.values():
        pods = _pods(deployment)
        for group in range(deployment.groups):
            certain = _fewest_servers(taken + pods, dies) > nodes
            placed = None if certain else servers.less(pods)
            if placed is None:
                alone = " on a server of its own, as they share the host's ports" if deployment.host_network else ""
                problem = Problem(
                    in_deployment(deployment, "ratio" if group == 0 else "groups"),
                    f"group {group + 1} of {deployment.groups} ({deployment.ratio}) needs "
                    f"{deployment.npus // deployment.groups} NPUs in pods of {_counted(deployment)}, "
                    f"each{alone or ' whole on one server'}; "
                    f"the cluster has {nodes} servers of {dies}, and {servers.free} NPUs are left for it",
                    f"{_fewer_pods(deployment, dies)}a lower ratio, fewer groups or less parallelism; or "
                    f"kthena-pd:cluster.npu.nodes of at least {enough} if there are more servers",
                )
                yield _Shortage(problem, certain)
                break
            servers, taken = placed, taken + pods


@rule("PD105", source="Kubernetes scheduling; Kthena v1.0.0 autoscaler", severity="warning")
def servers_are_there_for_what_autoscaling_may_ask(stack: Stack) -> Iterator[Problem]:
    """Pods beyond the servers stay Pending, just when the load is highest."""
    family, nodes = family_of(stack), stack.cluster.npu.nodes
    dies = family.dies_per_node if family else 0
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
    pods = _fewest_pods(role, dies)
    early = name == "prefill" and catalog.before(deployment.engine.version, PREFILL_PODS_SINCE)
    release = f" from engine.version v{PREFILL_PODS_SINCE} on" if early else ""
    return (f"pods: {pods}{release}, or " if pods else "") + f"dp x tp x pp of at most {dies * role.pods}"


def _fewest_pods(role: Role, dies: int) -> int | None:
    """Pods of one instance that have an equal share of its ranks, each on a server."""
    parallelism = role.parallelism
    enough = range(-(-parallelism.npus // dies), min(parallelism.dp, LAST_PORT) + 1)  # each rank has a port
    return next((pods for pods in enough if parallelism.dp % pods == 0), None)


def _fewer_pods(deployment: Deployment, dies: int) -> str:
    fewest = {name: _fewest_pods(deployment.role(name), dies) for name in ROLES}
    fewer = [f"{name}.pods: {pods}" for name, pods in fewest.items() if pods and pods < deployment.role(name).pods]
    return f"{' and '.join(fewer)}, or " if fewer else ""


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


def _fewest_servers(pods: Counter[Room], dies: int) -> int:
    """A number of servers below which the pods can't be placed in any way."""
    sizes, ports = Counter[int](), Counter[int]()
    for pod, count in pods.items():
        sizes[pod.dies] += count
        ports.update(dict.fromkeys(pod.host_ports, count))
    return max([0, *(_servers_of_pods_from(size, sizes, dies) for size in sizes), *ports.values()])


def _servers_of_pods_from(size: int, sizes: Counter[int], dies: int) -> int:
    """Servers that the pods of at least this size need, by their dies and by how many of them a server holds."""
    least = min(size, max(dies // 2, 1))
    alone = sum(count for other, count in sizes.items() if other > dies - least)  # no other of them fits beside it
    together = {other: count for other, count in sizes.items() if least <= other <= dies - least}
    filled = -(-sum(other * count for other, count in together.items()) // dies)
    return alone + max(filled, -(-sum(together.values()) // (dies // least)))


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

    def less(self, pods: Counter[Room]) -> Servers | None:
        """What is left after pods were put on them, largest first, each where it leaves least; None where one found no place."""
        begun, unused = list(self.begun), self.unused
        for pod in sorted(pods.elements(), key=lambda pod: -pod.dies):
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


def _pods(deployment: Deployment) -> Counter[Room]:
    """What each pod of one group takes. With the host's network every declared port is a port of the server."""
    pods = Counter[Room]()
    for name in ROLES:
        role, instances = deployment.role(name), deployment.ratio.of(name)
        for worker, count in ((False, instances), (True, instances * (role.pods - 1))):
            ports = declared_ports(deployment, name, worker=worker) if deployment.host_network else frozenset()
            pods[Room(role.npus_per_pod, ports)] += count
    return +pods
