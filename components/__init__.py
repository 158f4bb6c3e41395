"""The only room that imports Pulumi: components that own the rendered objects."""

from components.chart import template
from components.control_plane import KthenaControlPlane, KthenaControlPlaneArgs
from components.examination import RefusedEditError, examine, foretell_control_plane, make_way
from components.monitoring import Monitoring, MonitoringArgs
from components.outputs import placeholder
from components.pd_deployment import PDDeployment, PDDeploymentArgs

__all__ = [
    "KthenaControlPlane",
    "KthenaControlPlaneArgs",
    "Monitoring",
    "MonitoringArgs",
    "PDDeployment",
    "PDDeploymentArgs",
    "RefusedEditError",
    "examine",
    "foretell_control_plane",
    "make_way",
    "placeholder",
    "template",
]
