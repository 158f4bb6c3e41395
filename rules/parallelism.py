"""Sizes of the two roles, alone and against each other."""

from __future__ import annotations

from collections.abc import Iterator

from models.stack import Stack
from rules.finding import Problem, in_deployment, rule


@rule("PD501", source="ValueError and assert in vllm-ascend mooncake_connector.py")
def prefill_tp_is_a_multiple_of_decode_tp(stack: Stack) -> Iterator[Problem]:
    """A decode rank pulls from whole prefill ranks."""
    for deployment in stack.deployments.values():
        prefill, decode = deployment.prefill.parallelism.tp, deployment.decode.parallelism.tp
        if prefill < decode or prefill % decode:
            allowed = [tp for tp in range(1, prefill + 1) if prefill % tp == 0]
            yield Problem(
                in_deployment(deployment, "decode", "parallelism", "tp"),
                f"prefill tp {prefill} is not a multiple of decode tp {decode}",
                f"a decode tp of {' or '.join(map(str, allowed))}, or a prefill tp that is a multiple of {decode}",
            )
