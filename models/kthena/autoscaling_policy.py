"""workload.serving.volcano.sh/v1alpha1 AutoscalingPolicy."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from models.base import Declaration, OneOf
from models.kthena.meta import Metadata
from models.quantities import Duration, Port, Quantity, amount, seconds

_LONGEST_WINDOW = 30 * 60
"""seconds, by Kthena's webhook"""


def _positive(value: str) -> str:
    if amount(value) <= 0:
        raise ValueError(f"{value!r} is no target; write a number above 0")
    return value


def _window(value: str) -> str:
    if seconds(value) > _LONGEST_WINDOW:
        raise ValueError(f"{value!r} is longer than Kthena allows; at most 30m")
    return value


TargetValue = Annotated[Quantity, AfterValidator(_positive)]
Window = Annotated[Duration, AfterValidator(_window)]

Replicas = Annotated[int, Field(ge=0, le=1_000_000)]
MostReplicas = Annotated[int, Field(ge=1, le=1_000_000)]
Percent = Annotated[int, Field(ge=0, le=1000)]


class ObjectReference(Declaration):
    """What is scaled: a ModelServing of the policy's namespace."""

    api_version: str | None = None
    kind: Literal["ModelServing"] | None = None
    name: Annotated[str, Field(min_length=1)]
    namespace: str | None = None
    field_path: str | None = None
    resource_version: str | None = None
    uid: str | None = None


class MatchExpression(Declaration):
    """One requirement of a label selector."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] | None = None


class LabelSelector(Declaration):
    """Which pods are asked."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[MatchExpression, ...] | None = None


class PodSource(Declaration):
    """A metric that the pods themselves publish."""

    name: str | None = None
    uri: str | None = None
    port: Port | None = None
    label_selector: LabelSelector | None = None


class PrometheusAuthentication(Declaration):
    """Without a field in v1.0.0."""


class PrometheusSource(Declaration):
    """A metric that a Prometheus query yields."""

    server_url: Annotated[str, Field(pattern=r"^https?://.", alias="serverURL")]
    query: Annotated[str, Field(min_length=1)]
    auth: PrometheusAuthentication | None = None


class MetricSource(OneOf):
    """Where a metric comes from."""

    pod: PodSource | None = None
    prometheus: PrometheusSource | None = None


class Metric(Declaration):
    """A metric and what it should be on average."""

    name: Annotated[str, Field(min_length=1)]
    target_value: TargetValue


class Target(Declaration):
    """A ModelServing and where its metrics come from."""

    target_ref: ObjectReference
    metric_sources: dict[str, MetricSource] | None = None


class HomogeneousTarget(Declaration):
    """Scales the groups of one ModelServing."""

    target: Target
    min_replicas: Replicas
    max_replicas: MostReplicas


class HeterogeneousParameter(Declaration):
    """One of several ModelServings that share the load."""

    target: Target
    cost: Annotated[int, Field(ge=0)] | None = None
    min_replicas: Replicas
    max_replicas: MostReplicas


class HeterogeneousTarget(Declaration):
    """Scales the groups of several ModelServings by their cost."""

    params: Annotated[tuple[HeterogeneousParameter, ...], Field(min_length=1)]
    cost_expansion_rate_percent: Annotated[int, Field(ge=0)] | None = None


class RoleScaling(Declaration):
    """Bounds and metrics of one role; equal bounds keep it as it is and need no metrics."""

    min_replicas: Replicas
    max_replicas: MostReplicas
    metrics: Annotated[tuple[Metric, ...], Field(min_length=1)] | None = None
    metric_sources: dict[str, MetricSource] | None = None


class RatioConstraint(Declaration):
    """Bounds of numerator / denominator."""

    numerator_role: str
    denominator_role: str
    min_ratio: Quantity
    max_ratio: Quantity


class DisaggregatedTarget(Declaration):
    """Scales the roles inside the groups of one ModelServing."""

    target_ref: ObjectReference
    roles: Annotated[dict[str, RoleScaling], Field(min_length=1, max_length=2)]
    ratio_constraint: RatioConstraint | None = None


class StablePolicy(Declaration):
    """How far one step may go, and how long it looks back."""

    instances: Annotated[int, Field(ge=0)] | None = None
    percent: Percent | None = None
    period: Window | None = None
    select_policy: Literal["Or", "And"] | None = None
    stabilization_window: Window | None = None


class PanicPolicy(Declaration):
    """A sudden rise."""

    percent: Percent | None = None
    period: Window
    panic_threshold_percent: Annotated[int, Field(ge=110, le=1000)] | None = None
    panic_mode_hold: Window | None = None


class ScaleUp(Declaration):
    """How fast replicas are added."""

    stable_policy: StablePolicy | None = None
    panic_policy: PanicPolicy | None = None


class Behavior(Declaration):
    """How fast replicas change."""

    scale_up: ScaleUp | None = None
    scale_down: StablePolicy | None = None


class AutoscalingPolicySpec(Declaration):
    """Spec of an AutoscalingPolicy: exactly one target, which Kthena's webhook wants."""

    tolerance_percent: Annotated[int, Field(ge=0, le=100)] | None = None
    metrics: tuple[Metric, ...] | None = None
    behavior: Behavior | None = None
    homogeneous_target: HomogeneousTarget | None = None
    heterogeneous_target: HeterogeneousTarget | None = None
    disaggregated_target: DisaggregatedTarget | None = None


class AutoscalingPolicy(Declaration):
    """When Kthena's autoscaler changes replicas."""

    api_version: Literal["workload.serving.volcano.sh/v1alpha1"] = "workload.serving.volcano.sh/v1alpha1"
    kind: Literal["AutoscalingPolicy"] = "AutoscalingPolicy"
    metadata: Metadata
    spec: AutoscalingPolicySpec
