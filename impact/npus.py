"""NPUs and other extended resources: what pods ask for, and what nodes have left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from models.quantities import amount

_ENDED = ("Succeeded", "Failed")


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


def free(nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Extended resources that schedulable nodes have left, by resource name; one without any left is not in it.

    Args:
        nodes: all of the cluster
        pods: all of the cluster; one that is terminating holds its devices until it has ended
    """
    left: Counter[str] = Counter()
    schedulable = set()
    for node in nodes:
        if not node.get("spec", {}).get("unschedulable"):
            schedulable.add(node["metadata"]["name"])
            left.update(_extended(node.get("status", {}).get("allocatable") or {}))
    for pod in pods:
        if pod["spec"].get("nodeName") in schedulable and pod.get("status", {}).get("phase") not in _ENDED:
            left.subtract(requests(pod["spec"]))
    return +left


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
