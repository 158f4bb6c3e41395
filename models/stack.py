"""The whole stack file."""

from models.base import Declaration
from models.cluster import Cluster
from models.deployment import Deployment


class Stack(Declaration):
    """What one ``Pulumi.<stack>.yaml`` declares."""

    cluster: Cluster
    deployments: dict[str, Deployment]
