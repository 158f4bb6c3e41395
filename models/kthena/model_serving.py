"""workload.serving.volcano.sh/v1alpha1 ModelServing."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from models.base import Declaration
from models.kthena.meta import Metadata, PodTemplate
from models.quantities import DNS_LABEL

_PERCENTAGE = re.compile(r"(100|\d{1,2})%")


def _number_or_percentage(value: object) -> object:
    number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not number and not (isinstance(value, str) and _PERCENTAGE.fullmatch(value)):
        raise ValueError(f"{value!r} is neither a number from 0 on nor a percentage; write for example 1 or 50%")
    return value


IntOrString = Annotated[
    int | str,
    Field(description="a number, or a percentage such as 50%"),
    BeforeValidator(_number_or_percentage),
]
"""Kubernetes' int-or-string; the percentage is of the replicas, rounded down (partition: up)"""


def scaled(value: int | str, replicas: int) -> int:
    """``value`` in replicas, rounded down as Kthena does with maxUnavailable."""
    return value if isinstance(value, int) else int(value.removesuffix("%")) * replicas // 100


class TopologyConstraint(Declaration):
    """Where the pods of a group or of a role replica may lie in the network."""

    mode: Literal["hard", "soft"] | None = None
    highest_tier_allowed: Annotated[int, Field(ge=0)] | None = None
    highest_tier_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None

    @model_validator(mode="after")
    def _one_tier(self) -> Self:
        if self.highest_tier_allowed is not None and self.highest_tier_name is not None:
            raise ValueError("the highest tier by number and by name; give one of highestTierAllowed and highestTierName")
        return self


class NetworkTopology(Declaration):
    """Topology of groups and of role replicas."""

    group_policy: TopologyConstraint | None = None
    role_policy: TopologyConstraint | None = None


class GangPolicy(Declaration):
    """Gang scheduling; ``min_role_replicas`` is immutable once set."""

    min_role_replicas: Annotated[dict[str, Annotated[int, Field(ge=0)]], Field(min_length=1)]


class ServingRole(Declaration):
    """One role: ``replicas`` times (one entry pod and ``worker_replicas`` workers)."""

    name: Annotated[str, Field(max_length=12, pattern=DNS_LABEL)]
    replicas: Annotated[int, Field(ge=0)] | None = None
    worker_replicas: Annotated[int, Field(ge=0)]
    entry_template: PodTemplate
    worker_template: PodTemplate | None = None
    max_unavailable: IntOrString | None = None


class ServingGroupTemplate(Declaration):
    """What every serving group consists of."""

    restart_grace_period_seconds: int | None = None
    gang_policy: GangPolicy | None = None
    network_topology: NetworkTopology | None = None
    roles: Annotated[tuple[ServingRole, ...], Field(min_length=1, max_length=4)]


class RollingUpdateConfiguration(Declaration):
    """Limits of a rolling update by serving group."""

    max_unavailable: IntOrString | None = None
    partition: IntOrString | None = None


class RolloutStrategy(Declaration):
    """How a new template reaches the pods."""

    type: Literal["ServingGroupRollingUpdate", "RoleRollingUpdate"]
    rolling_update_configuration: RollingUpdateConfiguration | None = None


class PluginScope(Declaration):
    """Which pods a plugin touches."""

    roles: tuple[str, ...] | None = None
    target: Literal["All", "Entry", "Worker"] | None = None


class Plugin(Declaration):
    """A controller plugin."""

    name: str
    type: Literal["BuiltIn"] = "BuiltIn"
    config: Any = None
    scope: PluginScope | None = None


class ModelServingSpec(Declaration):
    """Spec of a ModelServing; ``replicas`` counts serving groups."""

    replicas: Annotated[int, Field(ge=0)] | None = None
    scheduler_name: str | None = None
    recovery_policy: Literal["ServingGroupRecreate", "RoleRecreate", "None"] | None = None
    rollout_strategy: RolloutStrategy | None = None
    plugins: tuple[Plugin, ...] | None = None
    template: ServingGroupTemplate


class ModelServing(Declaration):
    """The workload: serving groups of prefill and decode pods."""

    api_version: Literal["workload.serving.volcano.sh/v1alpha1"] = "workload.serving.volcano.sh/v1alpha1"
    kind: Literal["ModelServing"] = "ModelServing"
    metadata: Metadata
    spec: ModelServingSpec
