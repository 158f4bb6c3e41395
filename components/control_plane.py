"""KthenaControlPlane: Kthena's controller and router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi

from components.kubernetes_object import KubernetesObject, wait_for
from models.cluster import Cluster, Router
from render import render_control_plane, router_service_host

LOAD_BALANCER_SECONDS = 600


@dataclass(frozen=True)
class KthenaControlPlaneArgs:
    """What a KthenaControlPlane is made from."""

    cluster: Cluster


class KthenaControlPlane(pulumi.ComponentResource):
    """Owns namespace, accounts, configuration, Deployments and Service of controller and router; the CRDs are the cluster's.

    Where ``controlPlane.install`` is false it owns nothing and only says where the router is.
    """

    router_url: pulumi.Output[str]
    """where clients reach the router, without a path"""

    def __init__(self, name: str, args: KthenaControlPlaneArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("kthena-pd:platform:KthenaControlPlane", name, {}, opts)
        control_plane = args.cluster.control_plane
        router = control_plane.router
        host: pulumi.Input[str] = router_service_host(control_plane)
        previous: list[KubernetesObject] = []
        for rendered in render_control_plane(args.cluster):
            kind = rendered["kind"]
            created = KubernetesObject(
                # the ConfigMap's own name changes with its content
                f"{name}-router-config" if kind == "ConfigMap" else f"{name}-{rendered['metadata']['name']}",
                rendered,
                pulumi.ResourceOptions(parent=self, depends_on=_waits_for(kind, previous)),
                annotations=_service_readiness(router) if kind == "Service" else None,
            )
            previous.append(created)
            if kind == "Service" and router.service_type == "LoadBalancer":
                host = created.status.apply(_load_balancer_host)
        self.router_url = (
            pulumi.Output.from_input(control_plane.router_url)
            if control_plane.router_url
            else pulumi.Output.format("http://{0}:{1}", host, router.port)
        )
        self.register_outputs({"routerUrl": self.router_url})


def _waits_for(kind: str, previous: list[KubernetesObject]) -> list[pulumi.Resource]:
    """Workloads after all that they use; the rest after the namespace."""
    return [*previous] if kind == "Deployment" else [*previous[:1]]


def _service_readiness(router: Router) -> dict[str, str]:
    # Pulumi's own wait for a Service takes ten seconds more than needed (measured); the router's Deployment tells when it serves.
    address = ["jsonpath={.status.loadBalancer.ingress[0]}"] if router.service_type == "LoadBalancer" else []
    return wait_for(address, LOAD_BALANCER_SECONDS)


def _load_balancer_host(status: Mapping[str, Any] | None) -> str:
    ingress = ((status or {}).get("loadBalancer") or {}).get("ingress") or [{}]
    return str(ingress[0].get("ip") or ingress[0].get("hostname") or "pending")
