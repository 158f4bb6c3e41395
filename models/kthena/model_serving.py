"""workload.serving.volcano.sh/v1alpha1 ModelServing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from models.base import Declaration
from models.kthena.meta import Metadata, PodTemplate
from models.quantities import DNS_LABEL

IntOrString = Annotated[int | str, Field(description="a number, or a percentage such as 50%")]


class TopologyConstraint(Declaration):
    """Where the pods of a group or of a role replica may lie in the network."""

    mode: Literal["hard", "soft"] | None = None
    highest_tier_allowed: Annotated[int, Field(ge=0)] | None = None
    highest_tier_name: Annotated[str, Field(max_length=253)] | None = None


class NetworkTopology(Declaration):
    """Topology of groups and of role replicas."""

    group_policy: TopologyConstraint | None = None
    role_policy: TopologyConstraint | None = None


class GangPolicy(Declaration):
    """Gang scheduling; ``min_role_replicas`` is immutable once set."""

    min_role_replicas: dict[str, int] | None = None


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
    type: Literal["BuiltIn"] | None = None
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
