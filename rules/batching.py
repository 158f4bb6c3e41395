"""What fills an engine's steps: batch limits, the prefix cache, and the graphs that are captured for them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import catalog
from models.stack import Stack
from render.arguments import tokens_per_decode_step
from rules.architecture import architecture_of
from rules.finding import Problem, in_deployment, roles, rule
from rules.given import options

GRID = 8
LARGEST_DECODE_BATCH = 4096
FULL_DECODE_ONLY_MENDED = "0.12.0rc1"


@rule("PD500", source="vLLM SchedulerConfig")
def batch_holds_the_longest_prompt_where_prompts_are_not_chunked(stack: Stack) -> Iterator[Problem]:
    """vLLM refuses to start: a longer prompt could never be scheduled."""
    for deployment, name, role in roles(stack):
        tokens, longest = role.batching.max_num_batched_tokens, deployment.model.max_model_len
        chunked = [option for option in options(deployment, name) if option.flag == "--enable-chunked-prefill"]
        if tokens < longest and chunked and chunked[-1].written.startswith("--no"):
            yield Problem(
                in_deployment(deployment, name, "batching", "maxNumBatchedTokens"),
                f"{tokens} is less than maxModelLen {longest}, with {chunked[-1].written}",
                f"at least {longest}, or leave {chunked[-1].written} out",
            )


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


@rule("PD505", source="vLLM-Ascend P/D recipes", severity="warning")
def decode_batch_is_sized_for_decoding(stack: Stack) -> Iterator[Problem]:
    """Activations and the exchange between experts get memory for the largest batch, which is lost to the KV cache."""
    for deployment in stack.deployments.values():
        batching, step = deployment.decode.batching, tokens_per_decode_step(deployment, "decode")
        largest = max(LARGEST_DECODE_BATCH, step or 0)
        if deployment.decode.parallelism.expert_parallel and batching.max_num_batched_tokens > largest:
            yield Problem(
                in_deployment(deployment, "decode", "batching", "maxNumBatchedTokens"),
                f"{batching.max_num_batched_tokens} on decode",
                f"{step}, a full step" if step else f"at most {LARGEST_DECODE_BATCH}",
            )


@rule("PD507", source="vLLM-Ascend P/D recipes; vllm-ascend#13439", severity="warning")
def prefix_cache_is_off_on_decode(stack: Stack) -> Iterator[Problem]:
    """Decode computes no prompts, so there is nothing to find; garbled answers have been seen with it."""
    for deployment in stack.deployments.values():
        architecture = architecture_of(deployment)
        hybrid = architecture is not None and architecture.hybrid  # refused
        if deployment.decode.prefix_caching and not hybrid:
            yield Problem(in_deployment(deployment, "decode", "prefixCaching"), "true on decode", "false, or leave it out")


@rule("PD508", source="vllm-ascend#4466", severity="warning")
def full_decode_graphs_are_not_of_release_0_11(stack: Stack) -> Iterator[Problem]:
    """In these releases decode crashes under load with graphs of whole steps."""
    for deployment, name, role in roles(stack):
        version = deployment.engine.version
        affected = catalog.before(version, FULL_DECODE_ONLY_MENDED) and not catalog.before(version, "0.11.0rc0")
        if role.graph == "FULL_DECODE_ONLY" and affected:
            path = in_deployment(deployment, name, "graph")
            yield Problem(path, f"FULL_DECODE_ONLY in release {version}", f"engine version v{FULL_DECODE_ONLY_MENDED} or newer")


@rule("PD509", source="vllm-ascend#3905, #3909 and #8392", severity="warning")
def captured_drafts_have_a_declared_number_of_sequences(stack: Stack) -> Iterator[Problem]:
    """The captured size is derived from it. The engine's own sizes need not hold whole drafts, or the largest batch: a crash."""
    for deployment, name, role in roles(stack):
        if role.graph != "eager" and role.speculative and role.batching.max_num_seqs is None:
            tokens = role.speculative.num_speculative_tokens + 1
            yield Problem(
                in_deployment(deployment, name, "batching"),
                f"no maxNumSeqs, with graph {role.graph} and {role.speculative.num_speculative_tokens} draft tokens",
                f"maxNumSeqs: {max(role.batching.max_num_batched_tokens // tokens, 1)}",
            )
