"""When Kthena's autoscaler changes the number of instances or groups."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from models.base import Declaration
from models.kthena.autoscaling_policy import Behavior, MetricSource, MostReplicas, Replicas, TargetValue
from models.role import ROLES, RoleName


def _refuse_reversed(least: float, most: float) -> None:
    if least > most:
        raise ValueError(f"min {least} is above max {most}; write the smaller one as min")


class Scaling(Declaration):
    """Bounds of what is scaled, and what its metrics should be.

    Kthena v1.0.0 adds a metric up over all entry pods, and wants as many instances (or groups) as that sum holds targets: the
    target is the share of one instance, or of all pods of one group together. Of a histogram it takes the 95th percentile.
    """

    min: Replicas
    max: MostReplicas
    metrics: Annotated[
        dict[str, TargetValue],
        Field(
            min_length=1,
            description="metric of the engine -> target value of one instance, or of one group",
            examples=[{"vllm:num_requests_waiting": "10"}],
        ),
    ]
    metric_sources: Annotated[
        dict[str, MetricSource],
        Field(description="metric -> where it comes from; absent: each engine's own /metrics"),
    ] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _refuse_reversed(self.min, self.max)
        without_target = sorted(self.metric_sources.keys() - self.metrics.keys())
        if without_target:
            raise ValueError(f"sources without a target: {', '.join(without_target)}; name them in metrics too")
        return self


class RatioRange(Declaration):
    """Bounds of prefill instances / decode instances."""

    min: Annotated[float, Field(ge=0, le=1_000_000, description="0: no lower bound")]
    max: Annotated[float, Field(gt=0, le=1_000_000)]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _refuse_reversed(self.min, self.max)
        return self


class Autoscaling(Declaration):
    """Either whole groups are scaled, or the roles inside each group."""

    groups: Scaling | None = None
    prefill: Annotated[Scaling | None, Field(description="absent: stays at the declared ratio")] = None
    decode: Annotated[Scaling | None, Field(description="absent: stays at the declared ratio")] = None
    ratio: Annotated[
        RatioRange | None,
        Field(description="of prefill to decode; absent: the declared ratio where both are scaled, none where one is"),
    ] = None
    tolerance_percent: Annotated[int, Field(ge=0, le=100, description="deviation from a target that changes nothing")] = 10
    behavior: Annotated[Behavior | None, Field(description="how fast; what is absent is as Kthena's webhook fills it")] = None

    @model_validator(mode="after")
    def _groups_or_roles(self) -> Self:
        roles = self.prefill is not None or self.decode is not None
        if roles == (self.groups is not None):
            raise ValueError("not exactly one kind of scaling; give either groups, or prefill and decode or one of them")
        if self.groups and self.ratio:
            raise ValueError("a ratio while whole groups are scaled; leave ratio out, a group keeps the declared one")
        return self

    def role(self, name: RoleName) -> Scaling | None:
        """The declaration of one role."""
        return self.prefill if name == "prefill" else self.decode

    @property
    def scaled_roles(self) -> tuple[RoleName, ...]:
        """The roles whose instances the autoscaler decides; none where it decides the number of groups."""
        return tuple(role for role in ROLES if self.role(role))
