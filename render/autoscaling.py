"""When Kthena's autoscaler changes replicas: the AutoscalingPolicy of a deployment."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction

from models.autoscaling import Autoscaling, Scaling
from models.deployment import Deployment
from models.kthena import AutoscalingPolicy
from models.kthena.autoscaling_policy import (
    AutoscalingPolicySpec,
    Behavior,
    DisaggregatedTarget,
    HomogeneousTarget,
    Metric,
    MetricSource,
    ObjectReference,
    PanicPolicy,
    PodSource,
    RatioConstraint,
    RoleScaling,
    ScaleUp,
    StablePolicy,
    Target,
)
from models.role import ROLES, RoleName
from render.names import metadata

# What Kthena's mutating webhook fills in (pkg/autoscaler/webhook/autoscalingpolicy_mutator.go). Written out, because without a
# webhook an absent window is none, and the autoscaler then scales down at the first quiet moment.
_SCALE_DOWN = StablePolicy(instances=0, percent=100, period="1m", select_policy="Or", stabilization_window="5m")
_SCALE_UP = StablePolicy(instances=4, percent=100, period="1m", select_policy="Or", stabilization_window="0s")
_PANIC = PanicPolicy(percent=0, period="0s", panic_threshold_percent=200, panic_mode_hold="0s")

_NANO = Decimal("1e-9")
"""the finest step of a Kubernetes quantity"""


def autoscaling_policy(deployment: Deployment, serving: str) -> AutoscalingPolicy | None:
    """The policy of a deployment that is scaled; ``serving`` is the name of its ModelServing."""
    scaling = deployment.autoscaling
    if scaling is None:
        return None
    target = ObjectReference(api_version="workload.serving.volcano.sh/v1alpha1", kind="ModelServing", name=serving)
    groups = scaling.groups
    return AutoscalingPolicy(
        metadata=metadata(deployment, serving),
        spec=AutoscalingPolicySpec(
            tolerance_percent=scaling.tolerance_percent,
            behavior=_behavior(scaling.behavior or Behavior()),
            metrics=_metrics(groups) if groups else None,
            homogeneous_target=HomogeneousTarget(
                target=Target(target_ref=target, metric_sources=metric_sources(deployment, groups)),
                min_replicas=groups.min,
                max_replicas=groups.max,
            )
            if groups
            else None,
            disaggregated_target=None
            if groups
            else DisaggregatedTarget(
                target_ref=target,
                roles={role: _role(deployment, role) for role in ROLES},
                ratio_constraint=_ratio_constraint(deployment, scaling),
            ),
        ),
    )


def ratio_bounds(deployment: Deployment, scaling: Autoscaling) -> tuple[Fraction, Fraction] | None:
    """Bounds of prefill to decode that the autoscaler keeps; None where it keeps none."""
    if scaling.ratio:
        return Fraction(str(scaling.ratio.min)), Fraction(str(scaling.ratio.max))
    if scaling.prefill and scaling.decode:
        declared = Fraction(deployment.ratio.prefill, deployment.ratio.decode)
        return declared, declared
    return None


def _role(deployment: Deployment, role: RoleName) -> RoleScaling:
    scaling = deployment.autoscaling.role(role) if deployment.autoscaling else None
    fewest, most = deployment.instance_bounds(role)
    return RoleScaling(
        min_replicas=fewest,
        max_replicas=most,
        metrics=_metrics(scaling) if scaling else None,
        metric_sources=metric_sources(deployment, scaling) if scaling else None,
    )


def _metrics(scaling: Scaling) -> tuple[Metric, ...]:
    return tuple(Metric(name=name, target_value=value) for name, value in scaling.metrics.items())


def metric_sources(deployment: Deployment, scaling: Scaling) -> dict[str, MetricSource]:
    """Kthena asks entry pods only, and of a role that is scaled the role's own: it adds these labels to any selector."""
    return {name: _with_port(scaling.metric_sources.get(name), deployment.port) for name in scaling.metrics}


def _with_port(source: MetricSource | None, port: int) -> MetricSource:
    if source and source.prometheus:
        return source
    pod = source.pod if source and source.pod else PodSource(uri="/metrics")
    return MetricSource(pod=pod.model_copy(update={"port": pod.port or port}))


def _ratio_constraint(deployment: Deployment, scaling: Autoscaling) -> RatioConstraint | None:
    bounds = ratio_bounds(deployment, scaling)
    if bounds is None:
        return None
    low, high = bounds
    return RatioConstraint(
        numerator_role="prefill",
        denominator_role="decode",
        # Outwards, because a quantity has nine decimals and 1P3D must not lie outside its own bounds.
        min_ratio=_quantity(low, ROUND_FLOOR),
        max_ratio=_quantity(high, ROUND_CEILING),
    )


def _quantity(ratio: Fraction, rounding: str) -> str:
    exact = Decimal(ratio.numerator) / Decimal(ratio.denominator)
    return f"{exact.quantize(_NANO, rounding=rounding).normalize():f}"


def _behavior(declared: Behavior) -> Behavior:
    up = declared.scale_up or ScaleUp()
    return Behavior(
        scale_up=ScaleUp(stable_policy=_filled(up.stable_policy, _SCALE_UP), panic_policy=up.panic_policy or _PANIC),
        scale_down=_filled(declared.scale_down, _SCALE_DOWN),
    )


def _filled(declared: StablePolicy | None, default: StablePolicy) -> StablePolicy:
    policy = declared or default
    window = policy.stabilization_window or default.stabilization_window
    return policy.model_copy(update={"stabilization_window": window})
