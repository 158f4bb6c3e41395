"""Nodes and pods in the sizes that a scheduler looks at: what there is, who holds it, and what a pod takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from live.api import Object
from live.pods import is_terminating, label
from models.quantities import amount
from render.names import ENTRY_LABEL, NAME_LABEL, ROLE_LABEL

HostPort = tuple[str, int]
"""protocol and port; on which address of the node makes no difference here"""
PODS = "pods"
"""the resource of which each pod takes one"""


@dataclass(frozen=True)
class Footprint:
    """What a pod takes of its node."""

    amounts: Mapping[str, int]
    """resource -> thousandths: millicores, and of memory thousandths of a byte, so that nothing is rounded"""
    host_ports: frozenset[HostPort] = frozenset()


@dataclass(frozen=True)
class Node:
    """A server as a scheduler sees it."""

    name: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, int]
    """resource -> thousandths"""
    taints: tuple[Object, ...] = ()
    """that keep pods away"""
    is_cordoned: bool = False


@dataclass(frozen=True)
class Pod:
    """A pod that has not ended."""

    namespace: str
    node: str
    """empty while it waits for one"""
    footprint: Footprint
    serving: str = ""
    """its ModelServing, empty if it has none"""
    role: str = ""
    is_entry: bool = False
    is_terminating: bool = False
    scheduler: str = ""
    programs: frozenset[str] = field(default=frozenset(), repr=False)
    """last parts of its images' repositories"""


def node_of(found: Object) -> Node:
    """A node less what no scheduler asks for."""
    spec = found.get("spec") or {}
    return Node(
        found["metadata"]["name"],
        found["metadata"].get("labels") or {},
        thousandths((found.get("status") or {}).get("allocatable") or {}),
        tuple(taint for taint in spec.get("taints") or () if taint.get("effect") in ("NoSchedule", "NoExecute")),
        bool(spec.get("unschedulable")),
    )


def pod_of(found: Object) -> Pod:
    """A pod less what no scheduler asks for."""
    spec = found["spec"]
    return Pod(
        found["metadata"]["namespace"],
        spec.get("nodeName") or "",
        footprint(spec),
        label(found, NAME_LABEL),
        label(found, ROLE_LABEL),
        label(found, ENTRY_LABEL) == "true",
        is_terminating(found),
        spec.get("schedulerName") or "",
        frozenset(_program(container.get("image") or "") for container in spec.get("containers") or ()),
    )


def footprint(pod_spec: Mapping[str, Any]) -> Footprint:
    """What a pod takes of its node, from the spec of a pod or of its template."""
    taken = sums(pod_spec, "requests") + Counter({PODS: 1000})
    on_host = bool(pod_spec.get("hostNetwork"))
    ports = frozenset(
        (port.get("protocol") or "TCP", number)
        for container in pod_spec.get("containers") or ()
        for port in container.get("ports") or ()
        # the API server fills in a host port for each port with the host's network; in a template nobody has
        if (number := port.get("hostPort") or (port["containerPort"] if on_host else 0))
    )
    return Footprint(taken, ports)


def sums(pod_spec: Mapping[str, Any], kind: Literal["requests", "limits"]) -> Counter[str]:
    """Thousandths of each resource that a pod requests or is limited to.

    Of init containers, which run one after the other, the largest counts where it is more than all others together; those that
    go on beside the others (restartPolicy Always) count with them.
    Source: Kubernetes, "Resource sharing within containers", "Sidecar containers".
    """
    together: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    for container in pod_spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            together += asked(container, kind)
        else:
            alone |= together + asked(container, kind)
    for container in pod_spec.get("containers") or ():
        together += asked(container, kind)
    return (together | alone) + Counter(thousandths(pod_spec.get("overhead") or {}))


def asked(container: Mapping[str, Any], kind: Literal["requests", "limits"]) -> Counter[str]:
    """Thousandths of each resource that a container requests or is limited to; requests default to limits."""
    resources = container.get("resources") or {}
    given = {**(resources.get("limits") or {}), **(resources.get(kind) or {})}
    return Counter(thousandths(given))


def thousandths(quantities: Mapping[str, Any]) -> dict[str, int]:
    """Quantities as whole numbers that can be added and compared without an error."""
    return {name: _thousandths(str(quantity)) for name, quantity in quantities.items()}


@cache
def _thousandths(quantity: str) -> int:
    return round(amount(quantity) * 1000)


@cache
def _program(image: str) -> str:
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]
