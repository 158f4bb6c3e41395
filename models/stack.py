"""The whole stack file."""

import graphlib
from typing import Annotated

from pydantic import Field

from models.base import Declaration
from models.cluster import Cluster
from models.deployment import Deployment


class Stack(Declaration):
    """What one ``Pulumi.<stack>.yaml`` declares, laid over what it shares with others."""

    base: Annotated[
        str | None,
        Field(
            min_length=1,
            description="file with the cluster and deployments that several stacks share, from the directory of the stack file; "
            "what stands here goes over it key by key",
            examples=["environments/base.yaml"],
        ),
    ] = None
    cluster: Cluster
    deployments: dict[str, Deployment]

    def targets(self, name: str) -> tuple[str, ...]:
        """The other deployments to which the route of one leads."""
        return tuple(sorted((self.deployments[name].route.targets & self.deployments.keys()) - {name}))

    def in_order(self) -> tuple[str, ...]:
        """Names of the deployments, each after its targets."""
        return tuple(graphlib.TopologicalSorter({name: self.targets(name) for name in self.deployments}).static_order())
