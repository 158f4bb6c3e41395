"""Times that must fit each other."""

from __future__ import annotations

from collections.abc import Iterator

from models.deployment import Deployment
from models.quantities import amount, seconds
from models.stack import Stack
from rules.architecture import architecture_of
from rules.finding import Problem, in_deployment, rule
from rules.given import variable

LARGE = 200 * 2**30
"""bytes of weights from which a model loads for long"""
LOAD_SECONDS = 2800
"""vLLM-Ascend's nightly multi-node tests wait as long for such models"""
ABORT_SECONDS = 480
"""vLLM's default of VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"""
ANSWER_SECONDS = 60


@rule("PD840", source="vLLM-Ascend nightly multi-node tests: max_wait_seconds", severity="warning")
def large_model_has_time_to_load(stack: Stack) -> Iterator[Problem]:
    """The startup probe ends an engine that is still reading its weights, and the next one begins from the start."""
    for deployment in stack.deployments.values():
        size, time = _weights(deployment), seconds(deployment.readiness.load_timeout)
        if size >= LARGE and time < LOAD_SECONDS:
            path = in_deployment(deployment, "readiness", "loadTimeout")
            problem = f"{deployment.readiness.load_timeout} for {size / 2**30:.0f}Gi of weights"
            yield Problem(path, problem, f"at least {LOAD_SECONDS}s, for example 60m")


def _weights(deployment: Deployment) -> float:
    """Bytes of the weight files, at least; 0 where nothing says."""
    if deployment.model.weight_size:
        return amount(deployment.model.weight_size)
    architecture = architecture_of(deployment)
    return min(map(amount, architecture.weights.values()), default=0) if architecture else 0


@rule("PD841", source="vLLM VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT; vllm-ascend mooncake_connector.py", severity="warning")
def prefill_keeps_a_request_as_long_as_the_route(stack: Stack) -> Iterator[Problem]:
    """Prefill gives the KV cache of a request away that decode has not fetched by then: who still waits does so for nothing."""
    for deployment in stack.deployments.values():
        given = variable(deployment, "prefill", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT")
        kept = (given and given.number) or ABORT_SECONDS
        if seconds(deployment.traffic.timeout) > kept:
            path = in_deployment(deployment, "traffic", "timeout")
            remedy = f"at most {kept}s, or a longer VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT in engine.env"
            yield Problem(path, f"{deployment.traffic.timeout}, prefill keeps the KV cache for {kept} seconds", remedy)


@rule("PD842", source="the guide of Kthena on vLLM-Ascend: 10 s, too short for a long answer", severity="warning")
def route_waits_for_a_whole_answer(stack: Stack) -> Iterator[Problem]:
    """The time is that of queueing, prefill and all of decode: a thousand tokens at 50 ms each take most of a minute."""
    for deployment in stack.deployments.values():
        if seconds(deployment.traffic.timeout) < ANSWER_SECONDS:
            path = in_deployment(deployment, "traffic", "timeout")
            yield Problem(path, f"{deployment.traffic.timeout} for a whole answer", "300s, for example")


@rule("PD843", source="Kubernetes pod termination", severity="warning")
def stopped_pods_may_end_their_requests(stack: Stack) -> Iterator[Problem]:
    """Without a grace period the kubelet kills at once: at each roll and each scale-down the pod's running requests fail."""
    for deployment in stack.deployments.values():
        if not seconds(deployment.readiness.termination_grace_period):
            path = in_deployment(deployment, "readiness", "terminationGracePeriod")
            yield Problem(path, "requests get no time to end", "60s, or the time of the longest answer")
