"""From a checked declaration to Kubernetes and Kthena objects: pure, and the only place that knows flags and scripts."""

from render.control_plane import render_control_plane, render_namespace
from render.deployment import RenderedDeployment, render_deployment
from render.names import model_route_name, router_service_host

__all__ = [
    "RenderedDeployment",
    "model_route_name",
    "render_control_plane",
    "render_deployment",
    "render_namespace",
    "router_service_host",
]
