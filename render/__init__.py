"""From a checked declaration to Kubernetes and Kthena objects: pure, and the only place that knows flags and scripts."""

from render.chart import ChartError
from render.control_plane import control_plane_identity, render_control_plane, render_namespace
from render.deployment import RenderedDeployment, render_deployment
from render.monitoring import render_monitoring
from render.names import ROUTER_NAME, model_route_name

__all__ = [
    "ROUTER_NAME",
    "ChartError",
    "RenderedDeployment",
    "control_plane_identity",
    "model_route_name",
    "render_control_plane",
    "render_deployment",
    "render_monitoring",
    "render_namespace",
]
