"""Batch limits and the graphs that are captured for them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from models.stack import Stack
from render.arguments import tokens_per_decode_step
from rules.finding import Problem, in_deployment, roles, rule

GRID = 8


@rule("PD502", source="vLLM SchedulerConfig")
def batch_holds_every_sequence(stack: Stack) -> Iterator[Problem]:
    """vLLM refuses max-num-batched-tokens < max-num-seqs."""
    for deployment, role, declared in roles(stack):
        batching = declared.batching
        if batching.max_num_seqs is not None and batching.max_num_batched_tokens < batching.max_num_seqs:
            yield Problem(
                in_deployment(deployment, role, "batching", "maxNumBatchedTokens"),
                f"{batching.max_num_batched_tokens} is less than maxNumSeqs {batching.max_num_seqs}",
                f"at least {batching.max_num_seqs}",
            )


@rule("PD503", source="vLLM-Ascend P/D recipes: maxNumBatchedTokens = maxNumSeqs x (draft tokens + 1)", severity="warning")
def decode_batch_holds_a_full_step(stack: Stack) -> Iterator[Problem]:
    """With a smaller batch not all running sequences advance in each step."""
    for deployment in stack.deployments.values():
        tokens, batching = tokens_per_decode_step(deployment, "decode"), deployment.decode.batching
        if tokens is not None and (batching.max_num_seqs or 0) <= batching.max_num_batched_tokens < tokens:
            yield Problem(
                in_deployment(deployment, "decode", "batching", "maxNumBatchedTokens"),
                f"{batching.max_num_batched_tokens} holds less than a step of all sequences, {tokens} tokens",
                f"{tokens}",
            )


@rule("PD504", source="vllm-ascend#16049", severity="warning")
def captured_graph_is_on_the_grid(stack: Stack) -> Iterator[Problem]:
    """A batch off the grid of 1, 2, 4, 8, 16, 24 ... runs without its graph, about 7.5 times slower, and says nothing."""
    for deployment, name, role in roles(stack):
        tokens = tokens_per_decode_step(deployment, name)
        if role.graph != "eager" and tokens is not None and tokens not in (1, 2, 4) and tokens % GRID:
            drafted = tokens // (role.batching.max_num_seqs or 1)
            step = GRID // math.gcd(GRID, drafted)
            fitting = -(-(role.batching.max_num_seqs or 1) // step) * step
            yield Problem(
                in_deployment(deployment, name, "batching", "maxNumSeqs"),
                f"a full step has {tokens} tokens, which is no multiple of {GRID}",
                f"{fitting}, for example, with {fitting * drafted} tokens",
            )


@rule("PD506", source="vLLM-Ascend P/D recipes", severity="warning")
def decode_captures_graphs_and_prefill_does_not(stack: Stack) -> Iterator[Problem]:
    """Decode without graphs spends its time on launching kernels; graphs of decode batches are of no use to prefill."""
    for deployment, name, role in roles(stack):
        usual = "eager" if name == "prefill" else "FULL_DECODE_ONLY"
        if role.graph != usual:
            yield Problem(in_deployment(deployment, name, "graph"), f"{role.graph} for {name}", usual)
