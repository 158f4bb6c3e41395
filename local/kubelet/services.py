"""Services: those of type LoadBalancer get the machine's own address, and all get Endpoints.

``http://127.0.0.1:<port>`` reaches a pod that listens on all addresses wherever the Service's port is its target port, as
with Kthena's router. The API does not allow loopback addresses in Endpoints, and nothing here reads them; but Pulumi waits
for the Endpoints of a Service to exist and to hold still. So they exist, and are empty.
"""

from __future__ import annotations

from collections.abc import Iterable

from local.api import Object, holds

LOCALHOST = "127.0.0.1"


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


def address(service: Object, pods: Iterable[Object]) -> str:
    """Address that ``service`` should have: the machine's own once a pod is ready, and from then on for ever."""
    namespace, selector = service["metadata"]["namespace"], service["spec"]["selector"].items()
    serves = any(
        pod["metadata"]["namespace"] == namespace and selector <= (pod["metadata"].get("labels") or {}).items() and is_ready(pod)
        for pod in pods
    )
    return LOCALHOST if serves else current(service)


def is_ready(pod: Object) -> bool:
    """Whether ``pod`` is ready and not about to end."""
    return holds(pod, "Ready") and "deletionTimestamp" not in pod["metadata"] and bool(pod["status"].get("podIP"))
