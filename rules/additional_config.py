"""vLLM-Ascend's own settings, ``additionalConfig``: those that a role, a size or the model rules out.

Names that are not here are nobody's business: they come and go with the releases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pydantic import JsonValue

from models.deployment import Deployment
from models.role import Role, RoleName
from models.stack import Stack
from rules.architecture import architecture_of
from rules.finding import Path, Problem, in_deployment, roles, rule
from rules.given import environment

ONLY_ROLE: Mapping[str, RoleName] = {
    "short_request_first_config": "prefill",
    "dyntra_lb_config": "decode",
    "enable_kv_nz": "decode",
    "enable_reduce_sample": "decode",
}
"""Settings that the engine refuses on the other role"""
WITH_EXPERT_AND_TENSOR_PARALLELISM = ("enable_shared_expert_dp", "enable_flashcomm1")
LMHEAD, OPROJ, EMBEDDING, MLP = (f"{part}_tensor_parallel_size" for part in ("lmhead", "oproj", "embedding", "mlp"))


class Setting(NamedTuple):
    """A setting of one role, with its place in the stack file."""

    deployment: Deployment
    name: RoleName
    role: Role
    path: Path
    value: JsonValue

    @property
    def enabled(self) -> bool:
        """Whether it is switched on, in any of the ways in which the engine reads it."""
        value = self.value.get("enabled", False) if isinstance(self.value, dict) else self.value
        return value.lower() in {"true", "1", "yes", "on"} if isinstance(value, str) else bool(value)


def _settings(stack: Stack, setting: str) -> Iterator[Setting]:
    """Where ``setting`` stands: among those of the scheduler, where newer releases look first, or by itself."""
    for deployment, name, role in roles(stack):
        settings, place = role.additional_config, in_deployment(deployment, name, "additionalConfig")
        scheduler = settings.get("scheduler_config")
        if isinstance(scheduler, dict) and setting in scheduler:
            settings, place = scheduler, (*place, "scheduler_config")
        if setting in settings:
            yield Setting(deployment, name, role, (*place, setting), settings[setting])


@rule("PD531", source="vllm-ascend ascend_config.py and platform.py")
def settings_stand_on_the_role_that_has_them(stack: Stack) -> Iterator[Problem]:
    """The engine refuses them on the other role, at its start."""
    for setting, only in ONLY_ROLE.items():
        for given in _settings(stack, setting):
            if given.enabled and given.name != only:
                yield Problem(given.path, f"{setting} on {given.name}", f"leave it out here, it is for {only}")


@rule("PD532", source="vllm-ascend PR #11265 and #11537", severity="warning")
def recompute_scheduler_is_on_decode_only(stack: Stack) -> Iterator[Problem]:
    """On prefill it made answers worse; from release 0.23.0 on it is ignored there, and some builds in between refuse it."""
    for given in _settings(stack, "recompute_scheduler_enable"):
        if given.enabled and given.name == "prefill":
            yield Problem(given.path, "true on prefill", "leave it out here, it is for decode")


@rule("PD533", source="vllm-ascend#8975; scheduler checks of vLLM-Ascend")
def balance_scheduling_is_off(stack: Stack) -> Iterator[Problem]:
    """It is for engines that do both, prefill and decode. Newer releases refuse it with a KV connector, older ones get stuck."""
    remedy = "leave it out"
    for given in _settings(stack, "enable_balance_scheduling"):
        if given.enabled:
            yield Problem(given.path, f"balance scheduling on {given.name}", remedy)
    for deployment, name, _ in roles(stack):
        variable = environment(deployment, name).get("VLLM_ASCEND_BALANCE_SCHEDULING")
        if variable and variable.value == "1":
            yield Problem(variable.path, "balance scheduling with a KV connector", remedy)


@rule("PD534", source="vllm-ascend ascend_config.py")
def profiled_chunks_need_a_pipeline(stack: Stack) -> Iterator[Problem]:
    """The engine refuses it: chunks are timed to keep the stages of a pipeline equally busy."""
    for given in _settings(stack, "profiling_chunk_config"):
        if given.enabled and given.role.parallelism.pp == 1:
            remedy = "leave it out, or prefill parallelism with pp of at least 2"
            yield Problem(given.path, f"enabled with pp 1 on {given.name}", remedy)


@rule("PD535", source="vllm-ascend ascend_config.py")
def kv_cache_in_nz_layout_needs_plain_mla(stack: Stack) -> Iterator[Problem]:
    """The engine refuses the layout for every other attention."""
    for given in _settings(stack, "enable_kv_nz"):
        architecture = architecture_of(given.deployment)
        if architecture and given.enabled and (architecture.attention != "MLA" or architecture.sparse):
            kind = "sparse attention" if architecture.sparse else architecture.attention
            yield Problem(given.path, f"true for {architecture.name}, which has {kind}", "false, or leave it out")


def _finegrained(stack: Stack) -> Iterator[tuple[Setting, str, int]]:
    """Sizes in ``finegrained_tp_config`` that are in use."""
    for given in _settings(stack, "finegrained_tp_config"):
        sizes = given.value if isinstance(given.value, dict) else {}
        for size in (LMHEAD, OPROJ, EMBEDDING, MLP):
            number = sizes.get(size)
            if isinstance(number, int) and number > 0:
                yield given._replace(path=(*given.path, size)), size, number


@rule("PD536", source="vllm-ascend ascend_config.py, FinegrainedTPConfig")
def finegrained_tp_splits_the_data_parallel_ranks_of_an_expert_model(stack: Stack) -> Iterator[Problem]:
    """The groups are made of data-parallel ranks, which a dense model has not; the engine refuses groups of unequal size."""
    for given, _, number in _finegrained(stack):
        architecture, dp = architecture_of(given.deployment), given.role.parallelism.dp
        if architecture and architecture.experts is None:
            yield Problem(given.path, f"{number} for a dense model", "leave it out")
        elif dp % number:
            fitting = max(size for size in range(1, min(number, dp) + 1) if dp % size == 0)
            yield Problem(given.path, f"{number} does not divide dp {dp}", f"{fitting}, for example")


@rule("PD537", source="vllm-ascend ascend_config.py, FinegrainedTPConfig")
def output_projection_is_split_in_decode_graphs(stack: Stack) -> Iterator[Problem]:
    """Its exchange buffers are captured with the graphs of decode; the engine refuses it elsewhere."""
    for given, size, number in _finegrained(stack):
        wrong = [
            *(["on prefill"] if given.name == "prefill" else []),
            *(["without graphs"] if given.role.graph == "eager" else []),
        ]
        if size == OPROJ and wrong:
            yield Problem(given.path, f"{number} {', '.join(wrong)}", "leave it out, or decode with graph FULL_DECODE_ONLY")


@rule("PD562", source="vllm-ascend ascend_config.py, FinegrainedTPConfig of v0.10.1rc1 and of main", severity="warning")
def output_projection_is_split_without_tp(stack: Stack) -> Iterator[Problem]:
    """What tensor parallelism has split already does not fit these groups. Old and new releases refuse both together, those in
    between do not look."""
    for given, size, number in _finegrained(stack):
        tp = given.role.parallelism.tp
        if size == OPROJ and tp > 1:
            yield Problem(given.path, f"{number} with tp {tp}", f"leave it out, or tp 1 with dp {given.role.parallelism.dp * tp}")


@rule("PD530", source="vllm-ascend ascend_config.py", severity="warning")
def finegrained_tp_that_exchanges_tokens_has_the_recompute_scheduler(stack: Stack) -> Iterator[Problem]:
    """All ranks of a group must bring equally many tokens, or they wait for each other for ever; newer releases refuse it."""
    balanced = {(given.deployment.name, given.name) for given in _settings(stack, "recompute_scheduler_enable") if given.enabled}
    for given, size, number in _finegrained(stack):
        if size in (OPROJ, EMBEDDING) and given.name == "decode" and (given.deployment.name, given.name) not in balanced:
            yield Problem(given.path, f"{number} without recompute_scheduler_enable", "set that to true, too")


@rule("PD538", source="vllm-ascend ascend_config.py", severity="warning")
def settings_of_split_experts_have_expert_and_tensor_parallelism(stack: Stack) -> Iterator[Problem]:
    """Without both the engine switches the setting off, and says nothing."""
    for given in (given for setting in WITH_EXPERT_AND_TENSOR_PARALLELISM for given in _settings(stack, setting)):
        parallelism, architecture = given.role.parallelism, architecture_of(given.deployment)
        experts = architecture is None or architecture.experts is not None
        lacking = [
            *(["no expert parallelism"] if experts and not parallelism.expert_parallel else []),
            *(["tp 1"] if parallelism.tp == 1 else []),
        ]
        if given.enabled and lacking:
            yield Problem(given.path, f"has no effect with {' and '.join(lacking)}", "leave it out")


@rule("PD539", source="vllm-ascend#17202", severity="warning")
def fused_experts_hold_the_tokens_of_a_full_batch(stack: Stack) -> Iterator[Problem]:
    """What a rank receives beyond the limit is dropped, or ends the engine at the first long prompt (error 507057).

    A full batch gives each rank maxNumBatchedTokens x experts per token / tp tokens where the load is even, and more where it
    isn't."""
    for given in _settings(stack, "mega_moe_max_tokens"):
        architecture = architecture_of(given.deployment)
        if architecture and architecture.experts_per_token and isinstance(given.value, int):
            parallelism = given.role.parallelism
            tokens = given.role.batching.max_num_batched_tokens * architecture.experts_per_token
            even = math.ceil(tokens / parallelism.tp)
            if given.value < even:
                remedy = f"well above {even}; {tokens * parallelism.dp} holds any load"
                yield Problem(given.path, f"{given.value} for {even} tokens of an even load", remedy)


@rule("PD560", source="vllm-ascend ascend_config.py")
def reduced_sampling_has_the_whole_language_model_head(stack: Stack) -> Iterator[Problem]:
    """The engine refuses both: either the logits are reduced before they are gathered, or the head is split over other ranks."""
    split = {(given.deployment.name, given.name) for given, size, _ in _finegrained(stack) if size == LMHEAD}
    for given in _settings(stack, "enable_reduce_sample"):
        if given.enabled and (given.deployment.name, given.name) in split:
            yield Problem(given.path, f"true with {LMHEAD}", "one of the two")


@rule("PD561", source="vllm-ascend dyntra_lb_config")
def dynamic_balancing_is_among_the_ranks_of_one_pod(stack: Stack) -> Iterator[Problem]:
    """It moves requests between data-parallel ranks that share a server; the engine refuses it where there are none."""
    for given in _settings(stack, "dyntra_lb_config"):
        dp, pods = given.role.parallelism.dp, given.role.pods
        if given.enabled and (dp == 1 or pods > 1):
            yield Problem(given.path, f"enabled with dp {dp} in {pods} pods", "leave it out, or dp of at least 2 in one pod")
