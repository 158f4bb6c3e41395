"""When Kthena's autoscaler changes the number of instances or groups."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from models.base import Declaration
from models.kthena.autoscaling_policy import Behavior
from models.quantities import Quantity


class Scaling(Declaration):
    """Bounds of what is scaled, and what the metrics of its pods should be on average."""

    min: Annotated[int, Field(ge=0, le=1_000_000)]
    max: Annotated[int, Field(ge=1, le=1_000_000)]
    metrics: Annotated[
        dict[str, Quantity],
        Field(
            min_length=1,
            description="metric of the engine -> target value",
            examples=[{"vllm:num_requests_waiting": "10"}],
        ),
    ]


class RatioRange(Declaration):
    """Bounds of prefill instances / decode instances."""

    min: Annotated[float, Field(gt=0)]
    max: Annotated[float, Field(gt=0)]


class Autoscaling(Declaration):
    """Either whole groups are scaled, or the roles inside them with their ratio kept in bounds."""

    groups: Scaling | None = None
    prefill: Annotated[Scaling | None, Field(description="absent: stays at the declared ratio")] = None
    decode: Annotated[Scaling | None, Field(description="absent: stays at the declared ratio")] = None
    ratio: Annotated[RatioRange | None, Field(description="of prefill to decode; absent: exactly the declared ratio")] = None
    tolerance_percent: Annotated[int, Field(ge=0, le=100, description="deviation from a target that changes nothing")] = 10
    behavior: Annotated[Behavior | None, Field(description="how fast; absent: Kthena's defaults")] = None

    @model_validator(mode="after")
    def _groups_or_roles(self) -> Self:
        roles = self.prefill is not None or self.decode is not None
        if roles == (self.groups is not None):
            raise ValueError("not exactly one kind of scaling; give either groups, or prefill and decode or one of them")
        if self.groups and self.ratio:
            raise ValueError("a ratio while whole groups are scaled; leave ratio out, a group keeps the declared one")
        return self
