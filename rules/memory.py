"""Whether weights and buffers fit the memory of the dies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import catalog
from catalog.types import ModelArchitecture
from models.cluster import Npu
from models.deployment import Deployment, RoleName
from models.quantities import amount
from models.role import Role
from models.stack import Stack
from render.arguments import tokens_per_decode_step
from rules.architecture import architecture_of, known_architectures
from rules.finding import Problem, in_deployment, roles, rule
from rules.given import Given, environment

WEIGHTS_SHARE = 0.75
"""of what the engine may use: the rest is for the KV cache, activations and communication buffers"""
DEFAULT_BUFFER = "200"
"""HCCL's buffer size where HCCL_BUFFSIZE is not set, in MB"""
_GI = 2**30


@rule("PD541", source="vLLM --gpu-memory-utilization; catalog/npu and catalog/models")
def weights_fit_the_memory_of_the_dies(stack: Stack) -> Iterator[Problem]:
    """Each die holds at least its even share of the weights: loading ends out of memory, after minutes."""
    for load in _loads(stack):
        if load.weights > load.usable:
            yield load.problem


@rule("PD542", source="weight sizes and layouts of the vLLM-Ascend P/D recipes", severity="warning")
def weights_leave_memory_to_the_kv_cache(stack: Stack) -> Iterator[Problem]:
    """Beside the weights each die needs room for activations, communication buffers and the KV cache; what is left of it may be
    nothing."""
    for load in _loads(stack):
        if WEIGHTS_SHARE * load.usable < load.weights <= load.usable:
            yield load.problem


class _Load(NamedTuple):
    """Weights and memory of one die, in bytes."""

    deployment: Deployment
    name: RoleName
    role: Role
    weights: float
    usable: float
    memory: float

    @property
    def problem(self) -> Problem:
        size = self.weights * self.role.parallelism.npus
        dies = math.ceil(size / (WEIGHTS_SHARE * self.usable))
        smaller = f", or model.weightSize, if it is less than {size / _GI:.0f}Gi" if not self.deployment.model.weight_size else ""
        return Problem(
            in_deployment(self.deployment, self.name, "parallelism"),
            f"{self.weights / _GI:.0f}Gi of weights on each die, of which gpuMemoryUtilization "
            f"{self.role.gpu_memory_utilization} leaves {self.usable / _GI:.0f} of {self.memory / _GI:.0f}Gi",
            f"dp x tp x pp of at least {dies}{smaller}",
        )


def _loads(stack: Stack) -> Iterator[_Load]:
    """The least that the dies of each role hold, where the size of the weights is known.

    That is an even share: experts are spread over all ranks, by expert parallelism or by their tensors. Attention is in each
    data-parallel rank, so there is more of it; a dense model has one such rank.
    """
    memory = _memory_of_a_die(stack.cluster.npu)
    for deployment, name, role in roles(stack):
        size = _weight_size(deployment)
        if size is not None:
            yield _Load(deployment, name, role, size / role.parallelism.npus, memory * role.gpu_memory_utilization, memory)


def _memory_of_a_die(npu: Npu) -> float:
    family = catalog.npu_families()[npu.family]
    chip = family.chips.get(npu.chip or "")
    return amount(chip.memory if chip else family.memory)


def _weight_size(deployment: Deployment) -> float | None:
    """Bytes of the weights: as declared, else the least that the architecture has in the declared precision."""
    if deployment.model.weight_size is not None:
        return amount(deployment.model.weight_size)
    architecture = architecture_of(deployment)
    fitting = ("w8a8", "w4a8") if deployment.model.quantization else ("bf16", "fp8")
    sizes = architecture.weights.items() if architecture else ()
    return min((amount(size) for precision, size in sizes if precision in fitting), default=None)


@rule("PD543", source="message of the MoE dispatch kernel, vllm-ascend PR #5287 and #2707", severity="warning")
def communication_buffer_holds_a_decode_step(stack: Stack) -> Iterator[Problem]:
    """Tokens of a step are exchanged between the experts' ranks through it; the kernel ends the engine where they don't fit.

    It needs 2 x (B x (2h + 512) x experts + B x 2h x (experts per token + shared experts)) bytes for B tokens on each rank and
    hidden size h. Recipes are known that work with half of that, so less than half is reported. The fused kernel needs less."""
    for deployment, architecture in known_architectures(stack):
        given, needed = environment(deployment, "decode"), _exchange_of_a_step(deployment, architecture)
        buffer = given.get("HCCL_BUFFSIZE", Given(DEFAULT_BUFFER, in_deployment(deployment, "decode", "env", "HCCL_BUFFSIZE")))
        fused = deployment.decode.additional_config.get("enable_fused_mc2") or (
            "VLLM_ASCEND_ENABLE_FUSED_MC2" in given and given["VLLM_ASCEND_ENABLE_FUSED_MC2"].value != "0"
        )
        # what is no number is another rule's
        if needed is not None and not fused and buffer.value.isdecimal() and int(buffer.value) < needed / 2:
            yield Problem(buffer.path, f"{buffer.value} MB for a step that exchanges {needed} MB", f"{needed}")


def _exchange_of_a_step(deployment: Deployment, architecture: ModelArchitecture) -> int | None:
    """MB that the dispatch kernel asks for on decode, None where nothing is exchanged or the batch is not declared."""
    decode, step = deployment.decode, tokens_per_decode_step(deployment, "decode")
    if step is None or not (decode.parallelism.expert_parallel and architecture.experts and architecture.experts_per_token):
        return None
    tokens = math.ceil(min(step, decode.batching.max_num_batched_tokens) / decode.parallelism.tp)
    token = 2 * architecture.hidden_size
    dispatched, combined = architecture.experts, architecture.experts_per_token + architecture.shared_experts
    return math.ceil(2 * tokens * ((token + 512) * dispatched + token * combined) / 2**20)
