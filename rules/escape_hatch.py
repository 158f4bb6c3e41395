"""What extraArgs and env may not say: what is derived from the declaration, what Kthena sets, what vLLM does not understand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from models.role import ROLES
from models.stack import Stack
from render.arguments import derived_flags
from render.pods import derived_env
from rules.finding import Problem, did_you_mean, roles, rule
from rules.given import MOST_VALUES, Option, arguments, environment, is_flag, kinds, long_flag, options

KTHENA_ENV = frozenset({"ENTRY_ADDRESS", "GROUP_SIZE", "WORKER_INDEX"})
"""Set by Kthena in every container, over the user's (v1.0.0 model_serving_controller)"""
FIELDS = {
    # a dot at the beginning: below the role
    "--additional-config": ".additionalConfig",
    "--async-scheduling": ".asyncScheduling",
    "--block-size": "model.blockSize",
    "--chat-template": "model.chatTemplate",
    "--compilation-config": ".graph",
    "--data-parallel-rpc-port": "dataParallelRpcPort",
    "--data-parallel-size": ".parallelism.dp",
    "--data-parallel-size-local": ".pods",
    "--decode-context-parallel-size": ".parallelism.dcp",
    "--disable-hybrid-kv-cache-manager": "model.hybridKvCacheManager",
    "--enable-expert-parallel": ".parallelism.expertParallel",
    "--enable-lora": "model.lora",
    "--enable-prefix-caching": ".prefixCaching",
    "--enforce-eager": ".graph",
    "--gpu-memory-utilization": ".gpuMemoryUtilization",
    "--kv-transfer-config": "kvTransfer",
    "--lora-modules": "model.lora.adapters",
    "--max-lora-rank": "model.lora.maxRank",
    "--max-loras": "model.lora.maxLoaded",
    "--max-model-len": "model.maxModelLen",
    "--max-num-batched-tokens": ".batching.maxNumBatchedTokens",
    "--max-num-seqs": ".batching.maxNumSeqs",
    "--model": "model.weights",
    "--nnodes": ".pods",
    "--pipeline-parallel-size": ".parallelism.pp",
    "--port": "port",
    "--quantization": "model.quantization",
    "--seed": "model.seed",
    "--served-model-name": "model.served",
    "--speculative-config": ".speculative",
    "--tensor-parallel-size": ".parallelism.tp",
    "--trust-remote-code": "model.trustRemoteCode",
}
"""Derived flag -> the field of a deployment that decides it, where it is one"""
OF_BOTH_ROLES = frozenset(
    {
        "--code-revision",
        "--config-format",
        "--dtype",
        "--hf-config-path",
        "--hf-overrides",
        "--kv-cache-dtype",
        "--mm-processor-kwargs",
        "--prefix-caching-hash-algo",
        "--revision",
        "--rope-scaling",
        "--rope-theta",
        "--tokenizer",
        "--tokenizer-mode",
        "--tokenizer-revision",
    }
)
"""They decide what a prompt's KV cache contains, and how it is laid out"""


@rule("PD301", source="vLLM's FlexibleArgumentParser and engine arguments")
def extra_args_repeat_no_derived_flag(stack: Stack) -> Iterator[Problem]:
    """vLLM takes the last of two equal flags, so one number would stand in two places.

    It reads ``_`` as ``-``, ``--no-X`` as the opposite of ``--X``, ``--X.key=value`` as a part of the JSON of ``--X``, and has
    short forms."""
    for deployment, role, _ in roles(stack):
        derived = derived_flags(deployment, role)
        for word in arguments(deployment, role):
            flag = long_flag(word.value)
            if flag in derived or f"--no-{flag[2:]}" in derived:
                yield Problem(word.path, f"{word.value}: {flag} follows from the declaration", _declared_by(flag, word.place))


def _declared_by(flag: str, place: str) -> str:
    field = FIELDS.get(flag)
    if field is None:
        return "leave it out"
    if field.startswith("."):
        field = f"{field[1:]} of prefill and decode" if place == "engine" else f"{place}{field}"
    return f"declare {field} and leave it out here"


@rule("PD302", source="Kthena v1.0.0 pkg/model-serving-controller; render/scripts.py")
def env_sets_nothing_derived_or_reserved(stack: Stack) -> Iterator[Problem]:
    """Kthena replaces its own variables, and the start script sets the derived ones after these."""
    for deployment, role, _ in roles(stack):
        reserved = derived_env(deployment, role) | KTHENA_ENV
        for name, (_, path) in environment(deployment, role).items():
            if name in reserved:
                owner = "Kthena sets it" if name in KTHENA_ENV else "it follows from the declaration"
                yield Problem(path, owner, "leave it out")


@rule("PD311", source="vLLM-Ascend P/D guide: prefill and decode compute with one model, one layout of its KV cache")
def arguments_that_both_roles_must_agree_on_are_equal(stack: Stack) -> Iterator[Problem]:
    """Decode goes on from the KV cache that prefill has computed: of another type or from other tokens it is garbage, or the
    transfer fails."""
    for deployment in stack.deployments.values():
        given = {role: {option.flag: option for option in options(deployment, role)} for role in ROLES}
        for role, other in zip(ROLES, reversed(ROLES), strict=True):
            for flag, option in given[role].items():
                if flag in OF_BOTH_ROLES and option.place == role and not _are_equal(option, given[other].get(flag)):
                    remedy = f"give it to both: engine: {{extraArgs: [{', '.join(_words(option))}]}}"
                    yield Problem(option.path, f"{flag} of {role} is not that of {other}", remedy)


def _are_equal(one: Option, other: Option | None) -> bool:
    return other is not None and [word.value for word in one.values] == [word.value for word in other.values]


def _words(option: Option) -> list[str]:
    return [option.flag, *(word.value for word in option.values)]


@rule("PD312", source="vLLM's FlexibleArgumentParser: `vllm serve` takes one positional argument, the model")
def extra_args_are_flags_and_their_values(stack: Stack) -> Iterator[Problem]:
    """The engine ends at its start: it was given a word that belongs to no flag, or a flag without its value."""
    for deployment, role, _ in roles(stack):
        stray = list(takewhile(lambda word: not is_flag(word.value), arguments(deployment, role)))
        for option in options(deployment, role):
            most = MOST_VALUES.get(option.kind or "", len(option.values))
            stray += option.values[most:]
            if most and not option.values and option.kind != "optional" and option.flag not in derived_flags(deployment, role):
                yield Problem(option.path, f"{option.written} has no value", f"{option.written}=VALUE")
        for word, path in stray:
            yield Problem(path, f"{word!r} belongs to no flag", _as_flag(word))


def _as_flag(word: str) -> str:
    """What may be meant by a word that is no flag."""
    flag, _, value = word.partition(" ")
    if is_flag(flag):
        return f"two words: [{flag}, {value}]"
    flag = long_flag(f"--{word}")
    return f"{flag}, with its dashes" if flag in kinds() else "leave it out"


@rule("PD313", source="vLLM 0.10 to 0.25, catalog/flags.json", severity="warning")
def extra_args_are_known_to_vllm(stack: Stack) -> Iterator[Problem]:
    """The engine ends at its start on a flag that it does not have."""
    for deployment, role, _ in roles(stack):
        for option in options(deployment, role):
            if option.kind is None:
                remedy = did_you_mean(option.flag, kinds(), "leave it out, or accept it if the release has it")
                yield Problem(option.path, f"{option.written} is no flag of vLLM", remedy)
