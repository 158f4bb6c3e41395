"""Whether there is a place for each pod that is not there yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from live.servers import Footprint, HostPort, Node, Pod
from preflight.demand import Demand, by_key, demands
from preflight.eligibility import elsewhere, obstacle
from preflight.probe import Situation, probe
from render.pods import resource_name
from rules.finding import Problem, in_deployment


@probe("PF401", source="Kubernetes scheduling")
def nodes_have_room_for_the_pods(situation: Situation) -> Iterator[Problem]:
    """A pod that finds no node stays Pending, and `up` waits for it in vain. Counted is what no pod holds; the stack's own pods
    keep their places, and what is terminating is as good as gone."""
    yield from (shortage.problem for shortage in _shortages(situation) if shortage.is_certain)


@probe("PF402", source="Kubernetes scheduling", severity="warning")
def pods_can_be_placed_on_the_nodes(situation: Situation) -> Iterator[Problem]:
    """There is enough in sum, but no way was found to put all pods whole onto nodes, the largest first. One may stay Pending."""
    yield from (shortage.problem for shortage in _shortages(situation) if not shortage.is_certain)


@dataclass(frozen=True)
class Wanted:
    """Equal pods that have no node yet."""

    demand: Demand
    count: int
    nodes: Mapping[str, str]
    """node -> why it may not take one, empty if it may"""

    @property
    def footprint(self) -> Footprint:
        """Of each."""
        return self.demand.footprint

    @cached_property
    def eligible(self) -> frozenset[str]:
        """Nodes that may take one, as far as they have room."""
        return frozenset(name for name, why in self.nodes.items() if not why)


class Room(NamedTuple):
    """What is left of a node."""

    amounts: Mapping[str, int]
    host_ports: frozenset[HostPort]

    def times(self, pod: Footprint) -> int:
        """How many such pods fit."""
        if pod.host_ports & self.host_ports:
            return 0
        most = min(self.amounts.get(name, 0) // amount for name, amount in pod.amounts.items() if amount)
        return max(min(most, 1) if pod.host_ports else most, 0)

    def less(self, pod: Footprint, count: int) -> Room:
        """What is left when ``count`` pods are on it, fewer than none to take them away."""
        amounts = dict(self.amounts)
        for name, amount in pod.amounts.items():
            amounts[name] = amounts.get(name, 0) - amount * count
        ports = self.host_ports | pod.host_ports if count > 0 else self.host_ports - pod.host_ports
        return Room(amounts, ports)


Fleet = dict[str, Room]
"""node -> what no pod holds of it"""


class _Shortage(NamedTuple):
    problem: Problem
    is_certain: bool
    """whatever the order in which the pods are placed"""


def _shortages(situation: Situation) -> Iterator[_Shortage]:
    """One for each deployment that finds no place beside those above it."""
    survey, cluster = situation.survey, situation.plan.stack.cluster
    resource = resource_name(cluster) if situation.plan.versions else ""
    nodes = survey.nodes or ()
    if survey.pods is None or not any(node.allocatable.get(resource) for node in nodes):
        return  # PF301 and PF004 have said it
    fleet, wanted = _what_is_missing(demands(situation), nodes, survey.pods)
    if _placed(fleet, wanted, resource) is not None:
        return
    before: list[Wanted] = []
    for name, deployment in situation.plan.stack.deployments.items():
        own = [one for one in wanted if one.demand.version.deployment.name == name]
        most = _empty(nodes) if any(_may_push_others_out(one.demand) for one in own) else fleet
        certain = _exceeds(most, [*before, *own], resource)
        placed = None if certain else _placed(fleet, [*before, *own], resource)
        if placed is None:
            after = _placed(fleet, before, resource) or fleet
            path = in_deployment(deployment, "groups" if deployment.groups > 1 else "ratio")
            yield _Shortage(Problem(path, _problem(after, own, resource, situation), _remedy(cluster.scheduler)), certain)
        else:
            before += own


def _may_push_others_out(demand: Demand) -> bool:
    """With a priority class those below it; for a queue Volcano can be set to reclaim what other queues hold of its share."""
    return bool(demand.spec.get("priorityClassName") or demand.version.deployment.scheduling.queue)


def _empty(nodes: Iterable[Node]) -> Fleet:
    return {node.name: Room(node.allocatable, frozenset()) for node in nodes}


def _what_is_missing(all_of_them: Sequence[Demand], nodes: Sequence[Node], pods: Iterable[Pod]) -> tuple[Fleet, list[Wanted]]:
    """What is free once all pods that the stack's edit takes away are gone, and what then has to find a place."""
    holding = [pod for pod in pods if pod.node and not pod.is_terminating]
    own, by_name = by_key(holding), {node.name: node for node in nodes}
    released: set[int] = set()
    missing = []
    forbidden: dict[str, Mapping[str, str]] = {}
    for demand in all_of_them:
        constraints = demand.constraints
        if constraints not in forbidden:
            forbidden[constraints] = {node.name: obstacle(node, demand.spec) for node in nodes}
        there = own.get(demand.key, [])
        wanted = demand.wanted(len(there))
        staying = [pod for pod in there if _has_its_place(pod, demand, by_name)][:wanted]
        released |= {id(pod) for pod in there} - {id(pod) for pod in staying}
        if wanted > len(staying):
            missing.append(Wanted(demand, wanted - len(staying), forbidden[constraints]))
    fleet = _empty(nodes)
    for pod in holding:
        if id(pod) not in released and pod.node in fleet:
            fleet[pod.node] = fleet[pod.node].less(pod.footprint, 1)
    return fleet, missing


def _has_its_place(pod: Pod, demand: Demand, nodes: Mapping[str, Node]) -> bool:
    """Whether the pod, or a new one in its place, can be where it is. A cordon or a taint lets it stay."""
    has = pod.footprint.amounts
    grown = any(amount > has.get(name, 0) for name, amount in demand.footprint.amounts.items())
    node = nodes.get(pod.node)
    return not grown and not (node and elsewhere(node, demand.spec))


def _placed(fleet: Fleet, wanted: Iterable[Wanted], resource: str) -> Fleet | None:
    """What is left after all were put on nodes, the largest first, each where it leaves least; None where one found no place.

    Equal pods are put one after the other: the node where the first leaves least is the best for the second too.
    """
    left = dict(fleet)
    for one in sorted(wanted, key=lambda one: _size(one, resource), reverse=True):
        missing = one.count
        for name in sorted(one.eligible, key=lambda name: (left[name].amounts.get(resource, 0), name)):
            fitting = min(left[name].times(one.footprint), missing)
            if fitting:
                left[name] = left[name].less(one.footprint, fitting)
                missing -= fitting
            if not missing:
                break
        if missing:
            return None
    return left


def _exceeds(fleet: Fleet, wanted: Sequence[Wanted], resource: str) -> bool:
    """Whether the pods can't be placed in any way, by three bounds: of each kind by itself, of all that are at least as large,
    and of all that share a host port."""
    if any(sum(fleet[name].times(one.footprint) for name in one.eligible) < one.count for one in wanted):
        return True
    for size in {one.footprint.amounts.get(resource, 0) for one in wanted} - {0}:
        large = [one for one in wanted if one.footprint.amounts.get(resource, 0) >= size]
        on = frozenset().union(*(one.eligible for one in large))
        free = [max(fleet[name].amounts.get(resource, 0), 0) for name in on]
        asked = sum(one.footprint.amounts[resource] * one.count for one in large)
        if sum(one.count for one in large) > sum(amount // size for amount in free) or asked > sum(free):
            return True
    for port in frozenset().union(*(one.footprint.host_ports for one in wanted)):
        sharing = [one for one in wanted if port in one.footprint.host_ports]
        on = frozenset().union(*(one.eligible for one in sharing))
        if sum(one.count for one in sharing) > sum(port not in fleet[name].host_ports for name in on):
            return True
    return False


def _size(one: Wanted, resource: str) -> tuple[int, int]:
    return one.footprint.amounts.get(resource, 0), one.footprint.amounts.get("memory", 0)


def _problem(fleet: Fleet, own: Sequence[Wanted], resource: str, situation: Situation) -> str:
    """What has no place, what is free, and in which pieces."""
    pods = ", ".join(
        f"{one.count} {one.demand.role} {'' if one.demand.is_entry else 'worker '}pod{'' if one.count == 1 else 's'} of "
        f"{one.footprint.amounts.get(resource, 0) // 1000}"
        for one in own
    )
    offering = [node.name for node in situation.survey.nodes or () if node.allocatable.get(resource)]
    on = frozenset().union(*(one.eligible for one in own)) & {*offering}
    free = {name: max(fleet[name].amounts.get(resource, 0), 0) // 1000 for name in on}
    largest = max(free.values(), default=0)
    has_room = sum(amount > 0 for amount in free.values())
    whys = {
        (name, why)
        for one in own
        for name in offering
        if (why := one.nodes[name] or _lacking(fleet[name], one.footprint, resource))
    }
    reasons = ", ".join(f"{count} {why}" for why, count in Counter(why for _, why in whys).most_common())
    return (
        f"{pods} {resource} {'has' if sum(one.count for one in own) == 1 else 'have'} no node yet, and can't all be placed: "
        f"{sum(free.values())} are free on {has_room} of {len(offering)} nodes, at most {largest} on one"
        + (f"; nodes that can't take one: {reasons}" if reasons else "")
    )


def _lacking(room: Room, pod: Footprint, resource: str) -> str:
    """Why a pod does not fit on a node that may take it, as the scheduler says it."""
    if room.times(pod):
        return ""
    lacking = [name for name, amount in pod.amounts.items() if room.amounts.get(name, 0) < amount]
    if resource in lacking:
        return "without NPUs enough"
    return f"without {' and '.join(lacking)} enough" if lacking else "with a host port taken"


def _remedy(scheduler: str) -> str:
    gang = " Volcano starts no pod of a group that does not fit whole." if scheduler == "volcano" else ""
    return (
        "a lower ratio, fewer groups or less parallelism; or free NPUs (kubectl describe nodes says who holds them); "
        f"where nodes are added on demand: cluster.preflight: false.{gang}"
    )
