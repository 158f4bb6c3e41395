"""Sizes of the two roles, alone and against each other."""

from __future__ import annotations

from collections.abc import Iterator

from models.deployment import ROLES
from models.stack import Stack
from rules.finding import Finding, in_deployment


def prefill_tp_is_a_multiple_of_decode_tp(stack: Stack) -> Iterator[Finding]:
    """PD501. A decode rank pulls from whole prefill ranks. Source: ValueError and assert in vllm-ascend mooncake_connector.py."""
    for deployment in stack.deployments.values():
        prefill, decode = deployment.prefill.parallelism.tp, deployment.decode.parallelism.tp
        if prefill < decode or prefill % decode:
            allowed = [tp for tp in range(1, prefill + 1) if prefill % tp == 0]
            yield Finding(
                "PD501",
                in_deployment(deployment, "decode", "parallelism", "tp"),
                f"prefill tp {prefill} is not a multiple of decode tp {decode}",
                f"a decode tp of {' or '.join(map(str, allowed))}, or a prefill tp that is a multiple of {decode}",
            )


def batch_holds_every_sequence(stack: Stack) -> Iterator[Finding]:
    """PD502. vLLM refuses max-num-batched-tokens < max-num-seqs. Source: vLLM SchedulerConfig."""
    for deployment in stack.deployments.values():
        for role in ROLES:
            batching = deployment.role(role).batching
            if batching.max_num_seqs is not None and batching.max_num_batched_tokens < batching.max_num_seqs:
                yield Finding(
                    "PD502",
                    in_deployment(deployment, role, "batching", "maxNumBatchedTokens"),
                    f"{batching.max_num_batched_tokens} is less than maxNumSeqs {batching.max_num_seqs}",
                    f"at least {batching.max_num_seqs}",
                )
