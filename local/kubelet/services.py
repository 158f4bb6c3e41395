"""Services: those of type LoadBalancer get the address of a pod that serves them, and all get Endpoints.

The pods of this cluster have addresses of the machine itself, so ``http://<address>:<port>`` works from it wherever the
Service's port is its target port. The API does not allow such addresses in Endpoints, and nothing here reads them; but
Pulumi waits for the Endpoints of a Service to exist and to hold still. So they exist, and are empty.
"""

from __future__ import annotations

from collections.abc import Iterable

from local.api import Object


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
    """Address that ``service`` should have: the one it has while a ready pod has it or none is ready, else another's."""
    namespace, selector = service["metadata"]["namespace"], service["spec"]["selector"].items()
    serving = [
        pod["status"]["podIP"]
        for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))
        if pod["metadata"]["namespace"] == namespace
        and selector <= (pod["metadata"].get("labels") or {}).items()
        and is_ready(pod)
    ]
    has = current(service)
    return has if has in serving or not serving else str(serving[0])


def is_ready(pod: Object) -> bool:
    """Whether ``pod`` is ready and not about to end."""
    conditions = pod.get("status", {}).get("conditions") or []
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"] and bool(pod["status"].get("podIP"))
