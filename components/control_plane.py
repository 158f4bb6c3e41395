"""KthenaControlPlane: Kthena's controller and router."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi

from components.kubernetes_object import KubernetesObject
from models.cluster import Cluster, ControlPlane, Router
from render import ROUTER_NAME, render_control_plane

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
        protected = pulumi.ResourceOptions(protect=args.cluster.protect or None)
        super().__init__("kthena-pd:platform:KthenaControlPlane", name, {}, pulumi.ResourceOptions.merge(opts, protected))
        control_plane = args.cluster.control_plane
        service = self._install(name, args.cluster) if control_plane.install else self._find_service(name, control_plane)
        self.router_url = (
            pulumi.Output.from_input(control_plane.router_url)
            if control_plane.router_url
            else pulumi.Output.all(service.spec, service.status).apply(lambda found: _url(control_plane, *found))
        )
        self.register_outputs({"routerUrl": self.router_url})

    def _install(self, name: str, cluster: Cluster) -> KubernetesObject:
        """Create everything; returns the router's Service."""
        created: dict[str, KubernetesObject] = {}
        for rendered in render_control_plane(cluster):
            kind = rendered["kind"]
            # Workloads come after all that they use, the rest after the namespace.
            needed = list(created.values())[: None if kind == "Deployment" else 1]
            resource = f"{name}-{rendered['metadata']['name']}"
            created[f"{kind} {resource}"] = KubernetesObject(
                resource,
                rendered,
                pulumi.ResourceOptions(
                    parent=self,
                    depends_on=needed,
                    # an immutable ConfigMap goes when its successor is there, whatever protects the rest
                    protect=False if kind == "ConfigMap" else None,
                    # so was it called before its name had its content in it
                    aliases=[pulumi.Alias(name=f"{name}-router-config")] if kind == "ConfigMap" else None,
                ),
                annotations=_service_readiness(cluster.control_plane.router) if kind == "Service" else None,
            )
        return created[f"Service {name}-{ROUTER_NAME}"]

    def _find_service(self, name: str, control_plane: ControlPlane) -> KubernetesObject:
        """The router's Service as whoever installed Kthena made it: looked up, not owned."""
        metadata = {"name": ROUTER_NAME, "namespace": control_plane.namespace}
        identity = f"{control_plane.namespace}/{ROUTER_NAME}"
        return KubernetesObject(
            f"{name}-{ROUTER_NAME}",
            {"apiVersion": "v1", "kind": "Service", "metadata": metadata},
            pulumi.ResourceOptions(parent=self, id=identity),
        )


def _service_readiness(router: Router) -> dict[str, str]:
    # Pulumi's own wait for a Service takes ten seconds more than needed (measured); the router's Deployment tells when it serves.
    if router.service_type == "LoadBalancer":
        address = json.dumps(["jsonpath={.status.loadBalancer.ingress[0]}"])
        return {"pulumi.com/waitFor": address, "pulumi.com/timeoutSeconds": str(LOAD_BALANCER_SECONDS)}
    return {"pulumi.com/skipAwait": "true"}


def _url(control_plane: ControlPlane, spec: Mapping[str, Any] | None, status: Mapping[str, Any] | None) -> str:
    """Where clients reach the Service: its load balancer's address if it has one, else its name inside the cluster."""
    port = ((spec or {}).get("ports") or [{}])[0].get("port", control_plane.router.port)
    ingress = (((status or {}).get("loadBalancer") or {}).get("ingress") or [{}])[0]
    host = ingress.get("ip") or ingress.get("hostname") or f"{ROUTER_NAME}.{control_plane.namespace}.svc"
    return f"http://{host}:{port:.0f}"
