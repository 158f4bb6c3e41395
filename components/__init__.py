"""The only room that imports Pulumi: components that own the rendered objects."""

from components.control_plane import KthenaControlPlane, KthenaControlPlaneArgs
from components.examination import RefusedEditError, examine
from components.outputs import placeholder
from components.pd_deployment import PDDeployment, PDDeploymentArgs

__all__ = [
    "KthenaControlPlane",
    "KthenaControlPlaneArgs",
    "PDDeployment",
    "PDDeploymentArgs",
    "RefusedEditError",
    "examine",
    "placeholder",
]
