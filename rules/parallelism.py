"""Sizes of the two roles, alone and against each other."""

from __future__ import annotations

from collections.abc import Iterator

import catalog
from models.stack import Stack
from rules.architecture import HYBRID_CONNECTOR, known_architectures
from rules.finding import Problem, alternatives, in_deployment, roles, rule

PIPELINE_SINCE = "0.12.0rc1"
PREFILL_PODS_SINCE = "0.13.0rc2"


@rule("PD501", source="ValueError and assert in vllm-ascend mooncake_connector.py")
def prefill_tp_is_a_multiple_of_decode_tp(stack: Stack) -> Iterator[Problem]:
    """A decode rank pulls from whole prefill ranks."""
    for deployment in stack.deployments.values():
        prefill, decode = deployment.prefill.parallelism.tp, deployment.decode.parallelism.tp
        if prefill % decode:
            yield Problem(
                in_deployment(deployment, "decode", "parallelism", "tp"),
                f"prefill tp {prefill} is not a multiple of decode tp {decode}",
                f"a decode tp of {alternatives(_divisors(prefill))}, or a prefill tp that is a multiple of {decode}",
            )


@rule("PD550", source="vllm-ascend#11877", severity="warning")
def mla_has_the_same_tp_on_both_roles_in_0_22_1rc1(stack: Stack) -> Iterator[Problem]:
    """In this one release decode maps the KV groups of MLA wrongly where the sizes differ, and crashes."""
    for deployment, architecture in known_architectures(stack):
        prefill, decode = deployment.prefill.parallelism.tp, deployment.decode.parallelism.tp
        if (
            architecture.attention == "MLA"
            and deployment.engine.version == "v0.22.1rc1"
            and deployment.kv_transfer.connector == "MooncakeConnectorV1"
            and prefill != decode
        ):
            yield Problem(
                in_deployment(deployment, "engine", "version"),
                f"v0.22.1rc1 with prefill tp {prefill} and decode tp {decode}",
                f"a newer release, or decode tp {prefill}",
            )


@rule("PD551", source="vLLM --data-parallel-size-local: whole ranks on each node")
def data_parallel_ranks_divide_among_pods(stack: Stack) -> Iterator[Problem]:
    """Every pod of an instance runs as many ranks as the others; a rank never crosses pods."""
    for deployment, name, role in roles(stack):
        dp = role.parallelism.dp
        if dp % role.pods:
            path = in_deployment(deployment, name, "pods")
            yield Problem(path, f"dp {dp} does not divide among {role.pods} pods", alternatives(_divisors(dp)))


@rule("PD552", source="vllm-ascend PR #5961, found in #4866")
def prefill_of_several_pods_needs_a_release_that_finds_them(stack: Stack) -> Iterator[Problem]:
    """Before, decode knew one address of a prefill instance: the KV cache of its other pods was never fetched or released."""
    for deployment in stack.deployments.values():
        if deployment.prefill.pods > 1 and catalog.before(deployment.engine.version, PREFILL_PODS_SINCE):
            yield Problem(
                in_deployment(deployment, "prefill", "pods"),
                f"{deployment.prefill.pods} in release {deployment.engine.version}",
                f"1, or engine version v{PREFILL_PODS_SINCE} or newer",
            )


@rule("PD553", source="vllm-ascend mooncake_connector.py")
def pipeline_parallelism_is_on_prefill_only(stack: Stack) -> Iterator[Problem]:
    """The connector lets a decode rank fetch all layers, and refuses to start where it has a part of them."""
    for deployment in stack.deployments.values():
        parallelism = deployment.decode.parallelism
        if parallelism.pp > 1:
            path = in_deployment(deployment, "decode", "parallelism", "pp")
            yield Problem(path, f"{parallelism.pp} on decode", f"1, with dp {parallelism.dp * parallelism.pp} on the same dies")


@rule("PD554", source="vllm-ascend#4244")
def pipeline_parallelism_needs_a_release_that_counts_it_in_ports(stack: Stack) -> Iterator[Problem]:
    """Before, ranks of different pipeline stages listened at the same port of the side channel."""
    for deployment in stack.deployments.values():
        pp = deployment.prefill.parallelism.pp
        if pp > 1 and catalog.before(deployment.engine.version, PIPELINE_SINCE):
            yield Problem(
                in_deployment(deployment, "prefill", "parallelism", "pp"),
                f"{pp} in release {deployment.engine.version}",
                f"1, or engine version v{PIPELINE_SINCE} or newer",
            )


@rule("PD555", source="vLLM-Ascend chunked pipeline parallelism guide", severity="warning")
def pipeline_parallelism_goes_without_async_scheduling(stack: Stack) -> Iterator[Problem]:
    """Batches of a pipeline overlap by themselves; scheduling ahead of them makes prefill slower, and old releases refuse it."""
    for deployment in stack.deployments.values():
        prefill = deployment.prefill
        if prefill.async_scheduling and prefill.parallelism.pp > 1:
            path = in_deployment(deployment, "prefill", "asyncScheduling")
            yield Problem(path, f"true with pp {prefill.parallelism.pp}", "false, or leave it out")


@rule("PD556", source="vllm-ascend PR #16144", severity="warning")
def pipeline_and_context_parallelism_are_not_combined(stack: Stack) -> Iterator[Problem]:
    """Decode fetches the layers of the first pipeline stage only, and its answers are garbled; the fix is in no release yet."""
    for deployment in stack.deployments.values():
        parallelism = deployment.prefill.parallelism
        if parallelism.pp > 1 and parallelism.dcp > 1:
            path = in_deployment(deployment, "prefill", "parallelism", "dcp")
            yield Problem(path, f"{parallelism.dcp} with pp {parallelism.pp}", "1, or pp 1")


@rule("PD557", source="vLLM ParallelConfig")
def context_parallel_size_divides_tp(stack: Stack) -> Iterator[Problem]:
    """Context parallelism takes its ranks from tensor parallelism, in groups of equal size."""
    for deployment, name, role in roles(stack):
        tp, dcp = role.parallelism.tp, role.parallelism.dcp
        if tp % dcp:
            path = in_deployment(deployment, name, "parallelism", "dcp")
            yield Problem(path, f"{dcp} does not divide tp {tp}", alternatives(_divisors(tp)))


@rule("PD558", source="vllm-ascend mooncake_connector.py")
def prefill_context_parallel_size_is_a_multiple_of_decodes(stack: Stack) -> Iterator[Problem]:
    """A decode rank fetches whole shares of a sequence."""
    for deployment in stack.deployments.values():
        prefill, decode = deployment.prefill.parallelism.dcp, deployment.decode.parallelism.dcp
        if prefill % decode:
            yield Problem(
                in_deployment(deployment, "decode", "parallelism", "dcp"),
                f"prefill dcp {prefill} is not a multiple of decode dcp {decode}",
                f"a decode dcp of {alternatives(_divisors(prefill))}, or a prefill dcp that is a multiple of {decode}",
            )


@rule("PD559", source="vllm-ascend mooncake_hybrid_connector.py")
def hybrid_connector_has_no_context_parallelism(stack: Stack) -> Iterator[Problem]:
    """It refuses to start: it maps whole sequences only."""
    for deployment, name, role in roles(stack):
        if deployment.kv_transfer.connector == HYBRID_CONNECTOR and role.parallelism.dcp > 1:
            path = in_deployment(deployment, name, "parallelism", "dcp")
            yield Problem(path, f"{role.parallelism.dcp} with {HYBRID_CONNECTOR}", "1, or leave it out")


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
