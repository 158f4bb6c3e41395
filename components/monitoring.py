"""Monitoring: what watches the router, and the dashboard."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi

from components.kubernetes_object import KubernetesObject
from models.cluster import Cluster
from render import render_monitoring


@dataclass(frozen=True)
class MonitoringArgs:
    """What a Monitoring is made from."""

    cluster: Cluster


class Monitoring(pulumi.ComponentResource):
    """Owns the router's monitor and alerts and the dashboard, also where controller and router are somebody else's.

    What watches a deployment belongs to its PDDeployment.
    """

    def __init__(self, name: str, args: MonitoringArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("kthena-pd:platform:Monitoring", name, {}, opts)
        for rendered in render_monitoring(args.cluster):
            resource = f"{name}-{rendered['metadata']['name']}"
            # Nothing is served by it: it may be replaced and go, whatever protects the rest.
            KubernetesObject(resource, rendered, pulumi.ResourceOptions(parent=self, protect=False))
        self.register_outputs({})
