"""How requests reach deployments by the name of a model."""

from typing import Annotated

from pydantic import Field

from models.base import Declaration
from models.kthena.model_route import ModelMatch, ParentReference, RateLimit
from models.quantities import DnsLabel


class WeightedRule(Declaration):
    """Requests of one kind, shared out among deployments of the same stack and namespace."""

    name: Annotated[str | None, Field(min_length=1)] = None
    match: Annotated[ModelMatch | None, Field(description="absent: every request")] = None
    targets: Annotated[
        dict[DnsLabel, Annotated[int, Field(ge=0, le=100)]],
        Field(min_length=1, max_length=16, description="deployment -> weight", examples=[{"stable": 90, "canary": 10}]),
    ]


class Route(Declaration):
    """The ModelRoute of a deployment's served model."""

    enabled: Annotated[bool, Field(description="false: no route of its own, a target of other deployments' routes only")] = True
    rules: Annotated[
        tuple[WeightedRule, ...],
        Field(max_length=16, description="the first that matches decides; absent: everything goes to this deployment"),
    ] = ()
    rate_limit: Annotated[RateLimit | None, Field(description="token limits of the model name")] = None
    parent_refs: Annotated[
        tuple[ParentReference, ...], Field(description="Gateways, where the router serves the Gateway API")
    ] = ()

    @property
    def targets(self) -> frozenset[str]:
        """Deployments that the rules name, with any weight."""
        return frozenset(name for rule in self.rules for name in rule.targets)
