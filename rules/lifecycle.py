"""How engines start, end, and are replaced."""

from __future__ import annotations

from collections.abc import Iterator

from models.quantities import seconds
from models.stack import Stack
from rules.architecture import weight_size
from rules.finding import Problem, in_deployment, rule

LARGE = 200 * 2**30
"""bytes of weights from which a model loads for long"""
LOAD_SECONDS = 2800
"""vLLM-Ascend's nightly multi-node tests wait as long for such models"""


@rule("PD801", source="kthena#1661, fixed after v1.0.0", severity="warning")
def failed_engines_are_replaced(stack: Stack) -> Iterator[Problem]:
    """With recovery policy None the controller deletes a failed pod and makes no new one until something else changes."""
    for deployment in stack.deployments.values():
        if deployment.recovery.policy == "None":
            yield Problem(
                in_deployment(deployment, "recovery", "policy"),
                "Kthena v1.0.0 does not replace failed pods with it",
                "ServingGroupRecreate or RoleRecreate",
            )


@rule("PD840", source="vLLM-Ascend nightly multi-node tests: max_wait_seconds", severity="warning")
def large_model_has_time_to_load(stack: Stack) -> Iterator[Problem]:
    """The startup probe ends an engine that is still reading its weights, and the next one begins from the start."""
    for deployment in stack.deployments.values():
        size, time = weight_size(deployment) or 0, seconds(deployment.readiness.load_timeout)
        if size >= LARGE and time < LOAD_SECONDS:
            path = in_deployment(deployment, "readiness", "loadTimeout")
            problem = f"{deployment.readiness.load_timeout} for {size / 2**30:.0f}Gi of weights"
            yield Problem(path, problem, f"at least {LOAD_SECONDS}s, for example 60m")


@rule("PD843", source="Kubernetes pod termination", severity="warning")
def stopped_pods_may_end_their_requests(stack: Stack) -> Iterator[Problem]:
    """Without a grace period the kubelet kills at once: at each roll and each scale-down the pod's running requests fail."""
    for deployment in stack.deployments.values():
        if not seconds(deployment.readiness.termination_grace_period):
            path = in_deployment(deployment, "readiness", "terminationGracePeriod")
            yield Problem(path, "requests get no time to end", "60s, or the time of the longest answer")


@rule("PD844", source="Kubernetes pod termination: the grace period includes the preStop hook")
def engines_may_drain_before_they_are_killed(stack: Stack) -> Iterator[Problem]:
    """The wait for a time without requests takes part of the grace period; at its end the kubelet kills."""
    for deployment in stack.deployments.values():
        readiness = deployment.readiness
        grace = seconds(readiness.termination_grace_period)
        if 0 < grace <= seconds(readiness.drain_period):
            path = in_deployment(deployment, "readiness", "drainPeriod")
            problem = f"{readiness.drain_period} of a terminationGracePeriod of {readiness.termination_grace_period}"
            yield Problem(path, problem, f"less than {grace:g}s, or a longer grace period")
