"""From a checked declaration to Kubernetes and Kthena objects: pure, and the only place that knows flags and scripts."""

from render.control_plane import render_control_plane, render_namespace
from render.deployment import RenderedDeployment, render_deployment
from render.names import ROUTER_NAME, model_route_name

__all__ = [
    "ROUTER_NAME",
    "RenderedDeployment",
    "model_route_name",
    "render_control_plane",
    "render_deployment",
    "render_namespace",
]
