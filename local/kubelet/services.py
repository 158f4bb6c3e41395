"""Services: ClusterIPs are forwarded, those of type LoadBalancer get the machine's own address, headless ones a name.

``http://127.0.0.1:<port>`` reaches a pod that listens on all addresses wherever the Service's port is its target port, as
with Kthena's router. The API does not allow loopback addresses in Endpoints, and nothing here reads them; but Pulumi waits
for the Endpoints of a Service to exist and to hold still. So all Services have some, which are empty. There is no cluster
DNS: containers find headless Services, such as those that Kthena makes for entry pods, in their ``/etc/hosts``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from local.api import Object, holds

LOCALHOST = "127.0.0.1"


class Address(NamedTuple):
    """Where something listens."""

    host: str
    port: int


def wants_address(service: Object) -> bool:
    """Whether the cloud has to give ``service`` an address."""
    return service["spec"].get("type") == "LoadBalancer" and bool(service["spec"].get("selector"))


def endpoints(service: Object) -> Object | None:
    """Endpoints that ``service`` should have, None if none are made for it; they go when it goes."""
    if not service["spec"].get("selector"):
        return None
    metadata = service["metadata"]
    owner = {"apiVersion": "v1", "kind": "Service", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "ownerReferences": [owner]},
    }


def current(service: Object) -> str:
    """Address that ``service`` has, empty if none."""
    ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress") or [{}]
    return str(ingress[0].get("ip", ""))


def host_names(services: Iterable[Object], pods: Iterable[Object]) -> str:
    """Lines of ``/etc/hosts`` for headless Services: what a cluster's DNS would answer to the short and the long forms."""
    pods = list(pods)
    lines = []
    for service in services:
        if service["spec"].get("clusterIP") != "None":
            continue
        name = f"{service['metadata']['name']}.{service['metadata']['namespace']}"
        known = f"{name} {name}.svc {name}.svc.cluster.local"
        unready_too = service["spec"].get("publishNotReadyAddresses", False)
        found = [pod for pod in pods if _selects(service, pod) and (is_ready(pod) or (unready_too and _has_address(pod)))]
        lines += [f"{pod['status']['podIP']} {known}\n" for pod in found]
    return "".join(sorted(lines))


def address(service: Object, pods: Iterable[Object]) -> str:
    """Address that ``service`` should have: the machine's own once a pod is ready, and from then on for ever."""
    return LOCALHOST if any(_selects(service, pod) and is_ready(pod) for pod in pods) else current(service)


def forwards(services: Iterable[Object], pods: Iterable[Object]) -> dict[Address, tuple[Address, ...]]:
    """For every TCP port of every ClusterIP, where the ready pods of its Service listen; left out where there are none."""
    pods = [pod for pod in pods if is_ready(pod)]
    result: dict[Address, tuple[Address, ...]] = {}
    for service in services:
        host = service["spec"].get("clusterIP", "None")
        serving = [pod for pod in pods if host not in ("", "None") and _selects(service, pod)]
        for port in service["spec"].get("ports") or []:
            if port.get("protocol", "TCP") == "TCP":
                targets = [Address(pod["status"]["podIP"], number) for pod in serving if (number := _target(port, pod))]
                result |= {Address(host, port["port"]): tuple(targets)} if targets else {}
    return result


def _target(port: Object, pod: Object) -> int | None:
    """The port of ``pod`` that the Service's ``port`` stands for, None if it has none of that name."""
    wanted = port.get("targetPort", port["port"])
    if isinstance(wanted, int):
        return wanted
    spec = pod["spec"]
    declared = [
        one for container in [*spec["containers"], *(spec.get("initContainers") or [])] for one in container.get("ports") or []
    ]
    found = (one["containerPort"] for one in declared if one.get("name") == wanted and one.get("protocol", "TCP") == "TCP")
    return next(found, None)


def _selects(service: Object, pod: Object) -> bool:
    selector, labels = service["spec"].get("selector") or {}, pod["metadata"].get("labels") or {}
    there = pod["metadata"]["namespace"] == service["metadata"]["namespace"]
    return there and bool(selector) and selector.items() <= labels.items()


def _has_address(pod: Object) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and bool(pod.get("status", {}).get("podIP"))


def is_ready(pod: Object) -> bool:
    """Whether ``pod`` is ready and not about to end."""
    return holds(pod, "Ready") and _has_address(pod)
