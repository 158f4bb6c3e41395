"""The Kthena kinds, field for field as in the CRDs of v1.0.0."""

from models.kthena.autoscaling_policy import AutoscalingPolicy
from models.kthena.model_route import ModelRoute
from models.kthena.model_server import ModelServer
from models.kthena.model_serving import ModelServing

__all__ = ["AutoscalingPolicy", "ModelRoute", "ModelServer", "ModelServing"]
