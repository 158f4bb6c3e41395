"""NPUs and other extended resources: what pods ask for, who holds them, and what nodes have left."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from models.quantities import amount

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
    """Extended resources that a pod holds from its scheduling to its end, by resource name.

    Of init containers, which run before the others, the largest counts where it is more than all others together.
    Source: Kubernetes, "Resource sharing within containers", "Extended resources".
    """
    together: Counter[str] = Counter()
    for container in pod_spec.get("containers") or ():
        together += _of(container)
    for container in pod_spec.get("initContainers") or ():
        together |= _of(container)
    return together


def is_placed(pod: Mapping[str, Any]) -> bool:
    """Whether a pod holds what it requests: from its scheduling to its end, also while it is terminating."""
    return bool(pod["spec"].get("nodeName")) and (pod.get("status") or {}).get("phase") not in _ENDED


def read_room(nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]) -> Room:
    """What the nodes have left, and who has the rest.

    Args:
        nodes: all of the cluster
        pods: all of the cluster
    """
    left = {
        node["metadata"]["name"]: _extended((node.get("status") or {}).get("allocatable") or {})
        for node in nodes
        if not node["spec"].get("unschedulable")
    }
    held: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for pod in pods:
        if is_placed(pod) and pod["spec"]["nodeName"] in left:
            asked = requests(pod["spec"])
            left[pod["spec"]["nodeName"]].subtract(asked)
            held[pod["metadata"]["namespace"]].update(asked)
    return Room({node: +resources for node, resources in left.items()}, held)


def _of(container: Mapping[str, Any]) -> Counter[str]:
    resources = container.get("resources") or {}
    # A pod's requests default to its limits; in a template nobody has filled them in.
    return _extended({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _extended(quantities: Mapping[str, Any]) -> Counter[str]:
    """Only names with a domain that is not Kubernetes' own are extended resources; they come in whole numbers."""
    return Counter(
        {
            name: int(amount(str(quantity)))
            for name, quantity in quantities.items()
            if "/" in name and "kubernetes.io/" not in name
        }
    )
