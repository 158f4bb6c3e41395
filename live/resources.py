"""NPUs and other extended resources: what pods ask for, who holds them, and what nodes have left."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from live.api import Object
from live.servers import Node, Pod, node_of, pod_of, sums

_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Room:
    """Extended resources of schedulable nodes, by resource name."""

    free: Mapping[str, Counter[str]]
    """node -> what no pod holds of it; a resource of which nothing is left is not in it"""
    held: Mapping[str, Counter[str]]
    """namespace -> what its pods hold on these nodes"""

    @property
    def left(self) -> Counter[str]:
        """What is free on all nodes together."""
        return reduce(add, self.free.values(), Counter())


def requests(pod_spec: Mapping[str, Any]) -> Counter[str]:
    """Extended resources that a pod holds from its scheduling to its end, by resource name."""
    return _extended(sums(pod_spec, "requests"))


def is_placed(pod: Mapping[str, Any]) -> bool:
    """Whether a pod holds what it requests: from its scheduling to its end, also while it is terminating."""
    return bool(pod["spec"].get("nodeName")) and (pod.get("status") or {}).get("phase") not in _ENDED


def read_room(nodes: Iterable[Object], pods: Iterable[Object]) -> Room:
    """What the nodes have left, and who has the rest.

    Args:
        nodes: all of the cluster
        pods: all of the cluster
    """
    return room(map(node_of, nodes), map(pod_of, filter(is_placed, pods)))


def room(nodes: Iterable[Node], pods: Iterable[Pod]) -> Room:
    """The same of nodes and pods, less those that have ended, as a scheduler sees them."""
    left = {node.name: _extended(node.allocatable) for node in nodes if not node.is_cordoned}
    held: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for pod in pods:
        if pod.node in left:
            asked = _extended(pod.footprint.amounts)
            left[pod.node].subtract(asked)
            held[pod.namespace].update(asked)
    return Room({node: +resources for node, resources in left.items()}, held)


def _extended(thousandths: Mapping[str, int]) -> Counter[str]:
    """Only names with a domain that is not Kubernetes' own are extended resources; they come in whole numbers."""
    return Counter({name: amount // 1000 for name, amount in thousandths.items() if "/" in name and "kubernetes.io/" not in name})
