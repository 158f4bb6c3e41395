"""Whether weights and buffers fit the memory of the dies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from catalog.types import ModelArchitecture
from models.deployment import Deployment
from models.quantities import amount
from models.role import Parallelism, Role, RoleName
from models.stack import Stack
from render.arguments import tokens_per_decode_step
from rules.architecture import architecture_of, data_parallel_sizes, known_architectures, tensor_parallel_sizes, weight_size
from rules.finding import Problem, in_deployment, roles, rule
from rules.given import Given, environment
from rules.npu import family_of

WEIGHTS_SHARE = 0.75
"""of what the engine may use: the rest is for the KV cache, activations and communication buffers"""
USUAL_UTILIZATION = 0.9
"""vLLM --gpu-memory-utilization where it is not declared"""
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
    server: int
    """dies of one server"""

    @property
    def problem(self) -> Problem:
        size, usual = self.weights * self.role.parallelism.npus, USUAL_UTILIZATION
        remedies = [self._parallelism_of(math.ceil(size / (WEIGHTS_SHARE * self.usable)))]
        if self.role.gpu_memory_utilization < usual and self.weights <= WEIGHTS_SHARE * self.memory * usual:
            remedies.append(f"gpuMemoryUtilization {usual}")
        if not self.deployment.model.weight_size:
            remedies.append(f"model.weightSize, if it is less than {size / _GI:.0f}Gi")
        return Problem(
            in_deployment(self.deployment, self.name, "parallelism"),
            f"{self.weights / _GI:.0f}Gi of weights on each die, of which gpuMemoryUtilization "
            f"{self.role.gpu_memory_utilization} leaves {self.usable / _GI:.0f} of {self.memory / _GI:.0f}Gi",
            ", or ".join(remedies),
        )

    def _parallelism_of(self, dies: int) -> str:
        """The smallest of at least ``dies`` into which the model can be split: more data parallelism, or tensor parallelism where
        the model is dense."""
        now, architecture = self.role.parallelism, architecture_of(self.deployment)
        larger: Iterator[Parallelism] = iter(())
        if architecture and architecture.experts:
            larger = (now.model_copy(update={"dp": dp}) for dp in data_parallel_sizes(architecture.experts, now.tp))
        elif architecture:
            larger = (now.model_copy(update={"dp": 1, "tp": tp}) for tp in tensor_parallel_sizes(architecture))
        fitting = next((one for one in larger if one.npus >= dies), None)
        if fitting is None:
            return f"dp x tp x pp of at least {dies}"
        pods = next((pods for pods in range(1, fitting.dp + 1) if self._is_split(fitting, pods)), 1)
        return f"dp {fitting.dp} with tp {fitting.tp}" + (f" and pods {pods}" if pods > 1 else "")

    def _is_split(self, parallelism: Parallelism, pods: int) -> bool:
        """Whether each of ``pods`` gets equally many data-parallel ranks, and no more than a server holds."""
        return parallelism.dp % pods == 0 and parallelism.npus <= pods * self.server


def _loads(stack: Stack) -> Iterator[_Load]:
    """The least that the dies of each role hold, where the size of the weights is known.

    That is an even share: experts are spread over all ranks, by expert parallelism or by their tensors. Attention is in each
    data-parallel rank, so there is more of it; a dense model has one such rank.
    """
    family = family_of(stack)
    if family is None:
        return
    memory = amount(family.chips.get(stack.cluster.npu.chip or "", family.memory))
    for deployment, name, role in roles(stack):
        size, usable = weight_size(deployment), memory * role.gpu_memory_utilization
        if size is not None:
            yield _Load(deployment, name, role, size / role.parallelism.npus, usable, memory, family.dies_per_node)


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
