"""The AutoscalingPolicy: bounds that can be reached, metrics that there are."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import catalog
from models.autoscaling import Autoscaling, Scaling
from models.deployment import Deployment
from models.role import ROLES
from models.stack import Stack
from render.autoscaling import ratio_bounds
from rules.finding import Path, Problem, in_deployment, one_of, rule

_VALIDATOR = "Kthena v1.0.0 pkg/autoscaler/webhook/autoscalingpolicy_validator.go"


def _scaled(stack: Stack) -> Iterator[tuple[Deployment, Autoscaling]]:
    for deployment in stack.deployments.values():
        if deployment.autoscaling:
            yield deployment, deployment.autoscaling


def _scalings(stack: Stack) -> Iterator[tuple[Path, str, Scaling, int]]:
    """Path, what is scaled, how, and how many of it are declared."""
    for deployment, scaling in _scaled(stack):
        declared = {"groups": (scaling.groups, deployment.groups)} | {
            role: (scaling.role(role), deployment.ratio.of(role)) for role in ROLES
        }
        for name, (scaled, count) in declared.items():
            if scaled:
                yield in_deployment(deployment, "autoscaling", name), name, scaled, count


@rule("PD830", source=f"Kthena v1.0.0 pkg/autoscaler/algorithm/recommendation.go; {_VALIDATOR}")
def declared_numbers_lie_within_the_bounds(stack: Stack) -> Iterator[Problem]:
    """The autoscaler changes within 15 seconds what lies outside; bounds that allow no ratio at all Kthena refuses."""
    for path, name, scaling, count in _scalings(stack):
        if not scaling.min <= count <= scaling.max:
            yield Problem(
                path,
                f"{count} declared, {scaling.min} to {scaling.max} allowed",
                f"bounds around {count}, or another {'number of groups' if name == 'groups' else 'ratio'}",
            )
    for deployment, declared in _scaled(stack):
        bounds = ratio_bounds(deployment, declared)
        ratio = Fraction(deployment.ratio.prefill, deployment.ratio.decode)
        if declared.ratio and bounds and not bounds[0] <= ratio <= bounds[1]:
            yield Problem(
                in_deployment(deployment, "autoscaling", "ratio"),
                f"{deployment.ratio} is {float(ratio):g}, {declared.ratio.min:g} to {declared.ratio.max:g} are allowed",
                f"bounds around {float(ratio):g}, or another ratio",
            )


@rule(
    "PD831",
    source="Kthena v1.0.0 pkg/autoscaler/util/client.go, GetMetricPods: pods are not told apart by group",
    severity="warning",
)
def roles_are_scaled_in_a_single_group(stack: Stack) -> Iterator[Problem]:
    """The autoscaler adds a role's metrics up over all groups, and gives every group as many instances as that sum asks for."""
    for deployment, declared in _scaled(stack):
        for role in ROLES:
            if declared.role(role) and deployment.groups > 1:
                yield Problem(
                    in_deployment(deployment, "autoscaling", role),
                    f"{deployment.groups} groups would each be scaled for the load of all",
                    f"groups: 1; or groups scaled instead; or accept it, with targets {deployment.groups} times as high",
                )


@rule("PD832", source="Kthena v1.0.0 pkg/autoscaler/algorithm/disaggregated_ratio.go, EnforceRoleRatio", severity="warning")
def each_role_can_reach_its_maximum(stack: Stack) -> Iterator[Problem]:
    """The other role's maximum holds it back: at full load some of what is declared is never used."""
    for deployment, declared in _scaled(stack):
        bounds = ratio_bounds(deployment, declared)
        if bounds is None or declared.groups:
            continue
        most = {role: deployment.instance_bounds(role)[1] for role in ROLES}
        reach = {
            "prefill": int(bounds[1] * most["decode"]),
            "decode": int(most["prefill"] / bounds[0]) if bounds[0] else most["decode"],
        }
        for role in ROLES:
            if declared.role(role) and reach[role] < most[role]:
                yield Problem(
                    in_deployment(deployment, "autoscaling", role, "max"),
                    f"{most[role]}, and the ratio allows {reach[role]} at most",
                    f"{reach[role]}, or a greater max of the other role, or a wider ratio",
                )


@rule("PD833", source=f"{_VALIDATOR}, validateDisaggregatedTarget")
def roles_go_to_zero_together(stack: Stack) -> Iterator[Problem]:
    """Prefill or decode alone serves nothing."""
    for deployment, declared in _scaled(stack):
        zero = [role for role in ROLES if deployment.instance_bounds(role)[0] == 0]
        if len(zero) == 1:
            yield Problem(
                in_deployment(deployment, "autoscaling", zero[0], "min"),
                f"0, and {'decode' if zero[0] == 'prefill' else 'prefill'} never goes to 0",
                "1, or 0 for both" if declared.prefill and declared.decode else "1",
            )


@rule("PD834", source="Kthena v1.0.0 pkg/autoscaler/autoscaler/metric_collector.go: without a pod there is no metric")
def what_goes_to_zero_comes_back(stack: Stack) -> Iterator[Problem]:
    """A metric of the pods is gone with the last pod, and the autoscaler then leaves everything as it is, for ever."""
    for path, _, scaling, _ in _scalings(stack):
        if scaling.min == 0 and not _sees_the_load_without_pods(scaling):
            yield Problem((*path, "min"), "0 with metrics of the pods only", "1, or a metric with a source in Prometheus")


def _sees_the_load_without_pods(scaling: Scaling) -> bool:
    return any(source.prometheus for source in scaling.metric_sources.values())


@rule("PD835", source="Kthena v1.0.0 pkg/kthena-router/router/router.go: no Ready pod is 404", severity="warning")
def there_is_always_somebody_to_answer(stack: Stack) -> Iterator[Problem]:
    """At zero the router keeps no request until a model is loaded again: each is answered with 404."""
    for path, _, scaling, _ in _scalings(stack):
        if scaling.min == 0 and _sees_the_load_without_pods(scaling):
            yield Problem((*path, "min"), "at 0 requests are refused until a model is loaded again", "1")


def _from_engines(stack: Stack) -> Iterator[tuple[Path, str]]:
    """Metrics that are read from the engines: where they are declared, and their name there."""
    for path, _, scaling, _ in _scalings(stack):
        for name in scaling.metrics:
            source = scaling.metric_sources.get(name)
            if source is None or (source.pod and source.pod.port is None):
                yield (*path, "metrics", name), (source.pod.name if source and source.pod else None) or name


@rule("PD836", source="catalog/engine.yaml: vLLM's metrics", severity="warning")
def metrics_are_the_engines(stack: Stack) -> Iterator[Problem]:
    """Of a metric that no pod shows nothing follows: without another one nothing is ever scaled, and no condition says so."""
    known = catalog.engine().metrics
    for path, name in _from_engines(stack):
        if name not in known.scalable and name not in known.counters:
            yield Problem(path, f"vLLM has no metric {name}", f"one of {one_of(known.scalable, name)}")


@rule("PD837", source="Kthena v1.0.0 pkg/autoscaler/autoscaler/metric_collector.go, extractMetricFromFamily")
def metrics_fall_again(stack: Stack) -> Iterator[Problem]:
    """Kthena takes a counter's value as it is: it only grows, and with it the number of instances, up to the maximum."""
    known = catalog.engine().metrics
    for path, name in _from_engines(stack):
        if name in known.counters:
            yield Problem(path, f"{name} is a counter", f"one of {one_of(known.scalable, name)}; or its rate by Prometheus")
