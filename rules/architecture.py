"""How the model can be split, and what its attention asks for, where the stack file names its architecture."""

from __future__ import annotations

from collections.abc import Iterator

import catalog
from catalog.types import ModelArchitecture
from models.deployment import Deployment
from models.quantities import amount
from models.role import ROLES, Role, RoleName
from models.stack import Stack
from rules.finding import Problem, alternatives, in_deployment, one_of, rule
from rules.given import environment, options

DENSE_IS_RESET_SINCE = "0.14.0rc1"
MLA_GRAPH_HEADS = (32, 64, 128)
MLA_GRAPHS_OF_ANY_HEADS = "0.11.0rc0"
HYBRID_CONNECTOR = "MooncakeHybridConnector"
CONTEXT_FLAGS = ("--hf-overrides", "--rope-scaling")
LONGER_THAN_THE_MODEL = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def architecture_of(deployment: Deployment) -> ModelArchitecture | None:
    """What the catalogue knows of the model that ``deployment`` names."""
    return catalog.models().get(deployment.model.architecture or "")


def weight_size(deployment: Deployment) -> float | None:
    """Bytes of the weight files, at least: as declared, else the smallest that the catalogue has of the architecture. The
    declaration does not say in which precision they are: vLLM-Ascend finds out by itself (PR #6645)."""
    if deployment.model.weight_size is not None:
        return amount(deployment.model.weight_size)
    architecture = architecture_of(deployment)
    return min(map(amount, architecture.weights.values()), default=None) if architecture else None


def known_architectures(stack: Stack) -> Iterator[tuple[Deployment, ModelArchitecture]]:
    """The deployments whose model the catalogue knows."""
    for deployment in stack.deployments.values():
        architecture = architecture_of(deployment)
        if architecture is not None:
            yield deployment, architecture


def _split(stack: Stack) -> Iterator[tuple[Deployment, RoleName, Role, ModelArchitecture]]:
    for deployment, architecture in known_architectures(stack):
        for name in ROLES:
            yield deployment, name, deployment.role(name), architecture


def _hybrid(stack: Stack) -> Iterator[Deployment]:
    return (deployment for deployment, architecture in known_architectures(stack) if architecture.hybrid)


@rule("PD204", source="catalog/models")
def model_architecture_is_in_the_catalogue(stack: Stack) -> Iterator[Problem]:
    """A name that is not there would silently switch off every check of parallelism against the model."""
    for deployment in stack.deployments.values():
        name = deployment.model.architecture
        if name is not None and name not in catalog.models():
            path = in_deployment(deployment, "model", "architecture")
            yield Problem(path, f"no model architecture {name!r}", f"one of {one_of(catalog.models(), name)}, or leave it out")


@rule(
    "PD511",
    source="vllm-ascend#8344 and #8345; vLLM PR #30739, by its date (December 2025) first in v0.14 of both",
)
def dense_model_has_no_data_parallelism(stack: Stack) -> Iterator[Problem]:
    """vLLM sets the size to 1 for a dense model, and the engine ends with "conflicting data parallel size. Expected 1": more
    instances are the way to scale it."""
    for deployment, name, role, architecture in _split(stack):
        dp = role.parallelism.dp
        reset = not catalog.before(deployment.engine.version, DENSE_IS_RESET_SINCE)
        if architecture.experts is None and dp > 1 and reset:
            instances = deployment.ratio.of(name) * dp
            path = in_deployment(deployment, name, "parallelism", "dp")
            yield Problem(path, f"{dp} for a dense model", f"1, and a ratio with more instances: {instances} of {name}")


@rule("PD512", source="vLLM model parallel configuration; vllm-ascend mooncake_connector.py")
def heads_divide_among_tensor_parallel_ranks(stack: Stack) -> Iterator[Problem]:
    """Each rank computes whole attention heads; fewer key-value heads than ranks are copied, evenly."""
    for deployment, name, role, architecture in _split(stack):
        tp, heads, key_value_heads = role.parallelism.tp, architecture.attention_heads, architecture.key_value_heads
        if not _divides(architecture, tp):
            both = f"{heads} attention heads" + (f" and {key_value_heads} key-value heads" if key_value_heads else "")
            path = in_deployment(deployment, name, "parallelism", "tp")
            yield Problem(path, f"{both} do not divide among {tp} ranks", alternatives(tensor_parallel_sizes(architecture)))


def tensor_parallel_sizes(architecture: ModelArchitecture) -> Iterator[int]:
    """Those that the heads allow, the smallest first."""
    return (tp for tp in range(1, architecture.attention_heads + 1) if _divides(architecture, tp))


def data_parallel_sizes(experts: int, tp: int) -> Iterator[int]:
    """Those with which all ranks hold equally many experts, the smallest first."""
    return (dp for dp in range(1, experts // tp + 1) if experts % (dp * tp) == 0)


def _divides(architecture: ModelArchitecture, tp: int) -> bool:
    heads, key_value_heads = architecture.attention_heads, architecture.key_value_heads
    return heads % tp == 0 and (key_value_heads is None or key_value_heads % tp == 0 or tp % key_value_heads == 0)


@rule("PD513", source="vLLM ModelConfig, _verify_with_expert_parallelism")
def expert_parallelism_needs_experts(stack: Stack) -> Iterator[Problem]:
    """vLLM ends at its start: "Number of experts in the model must be greater than 0"."""
    for deployment, name, role, architecture in _split(stack):
        if role.parallelism.expert_parallel and architecture.experts is None:
            path = in_deployment(deployment, name, "parallelism", "expertParallel")
            yield Problem(path, "the model is dense", "false, or leave it out")


@rule("PD514", source="vLLM expert parallelism: experts / (tp x dp) on each rank", severity="warning")
def experts_divide_among_all_ranks(stack: Stack) -> Iterator[Problem]:
    """Without redundant experts some ranks would hold more than others, and all wait for them."""
    for deployment, name, role, architecture in _split(stack):
        experts, tp, dp = architecture.experts, role.parallelism.tp, role.parallelism.dp
        if role.parallelism.expert_parallel and experts is not None and experts % (dp * tp):
            fitting = alternatives(data_parallel_sizes(experts, tp))
            path = in_deployment(deployment, name, "parallelism")
            remedy = f"dp {fitting} with tp {tp}" if fitting else f"dp x tp that divides {experts}"
            yield Problem(path, f"{experts} experts do not divide among dp x tp = {dp * tp} ranks", remedy)


@rule("PD510", source="vLLM-Ascend FAQ: MLA with NPU graphs; ended by PR #2707", severity="warning")
def captured_mla_has_a_number_of_heads_that_its_kernel_takes(stack: Stack) -> Iterator[Problem]:
    """In old releases, the kernel that is captured for MLA takes 32, 64 or 128 heads on a rank, and refuses any other number."""
    for deployment, name, role, architecture in _split(stack):
        heads, tp = architecture.attention_heads, role.parallelism.tp
        captured = role.graph != "eager" and catalog.before(deployment.engine.version, MLA_GRAPHS_OF_ANY_HEADS)
        if architecture.attention == "MLA" and captured and heads % tp == 0 and heads // tp not in MLA_GRAPH_HEADS:
            fitting = alternatives(heads // fewer for fewer in reversed(MLA_GRAPH_HEADS) if heads % fewer == 0)
            yield Problem(
                in_deployment(deployment, name, "graph"),
                f"{role.graph} with {heads // tp} heads on each of {tp} tensor-parallel ranks",
                f"tp {fitting}, or eager" if fitting else "eager",
            )


@rule("PD515", source="vllm-ascend mooncake_hybrid_connector.py")
def hybrid_model_has_the_same_tp_on_both_roles(stack: Stack) -> Iterator[Problem]:
    """The hybrid connector hands over the Mamba state of a rank as it is, and refuses to start with other shares of it."""
    for deployment in _hybrid(stack):
        prefill, decode = deployment.prefill.parallelism.tp, deployment.decode.parallelism.tp
        # an unequal tp that does not even divide is refused for every model
        if deployment.kv_transfer.connector == HYBRID_CONNECTOR and prefill != decode and prefill % decode == 0:
            yield Problem(
                in_deployment(deployment, "decode", "parallelism", "tp"),
                f"{decode} with prefill tp {prefill}, for a model with Mamba layers on {HYBRID_CONNECTOR}",
                f"{prefill}",
            )


@rule("PD516", source="vllm-ascend#7944")
def hybrid_model_has_no_prefix_cache_on_decode(stack: Stack) -> Iterator[Problem]:
    """A cached prefix has no Mamba state to go with it: answers are wrong, and it won't be mended."""
    for deployment in _hybrid(stack):
        if deployment.decode.prefix_caching:
            path = in_deployment(deployment, "decode", "prefixCaching")
            yield Problem(path, "true for a model with Mamba layers", "false, or leave it out")


@rule("PD517", source="vllm-ascend mooncake_connector.py")
def hybrid_model_does_not_recompute_after_a_failed_load(stack: Stack) -> Iterator[Problem]:
    """The engine refuses the policy at its start: Mamba state can't be computed again from a block on."""
    for deployment in _hybrid(stack):
        if deployment.kv_transfer.load_failure_policy == "recompute":
            path = in_deployment(deployment, "kvTransfer", "loadFailurePolicy")
            yield Problem(path, "recompute for a model with Mamba layers", "fail, or leave it out")


@rule("PD518", source="vLLM ModelConfig.verify_with_parallel_config")
def context_parallel_ranks_share_copied_heads(stack: Stack) -> Iterator[Problem]:
    """With grouped heads, the ranks that share a sequence are those that would hold a copy of the same key-value head."""
    for deployment, name, role, architecture in _split(stack):
        heads, tp, dcp = architecture.key_value_heads, role.parallelism.tp, role.parallelism.dcp
        if architecture.attention == "GQA" and heads and dcp > 1 and tp % dcp == 0 and tp < heads * dcp:
            copies = max(tp // heads, 1)
            yield Problem(
                in_deployment(deployment, name, "parallelism", "dcp"),
                f"{dcp} with tp {tp} and {heads} key-value heads: there are {copies} copies of each",
                f"{copies}, or a tp of at least {heads * dcp}",
            )


@rule("PD519", source="vLLM-Ascend decode context parallelism with sparse attention (SFA, DSA)")
def sparse_attention_is_shared_by_all_tensor_parallel_ranks(stack: Stack) -> Iterator[Problem]:
    """The index of sparse attention is split over all of them or over none."""
    for deployment, name, role, architecture in _split(stack):
        tp, dcp = role.parallelism.tp, role.parallelism.dcp
        if architecture.sparse and dcp > 1 and dcp != tp and tp % dcp == 0:
            path = in_deployment(deployment, name, "parallelism", "dcp")
            yield Problem(path, f"{dcp} with tp {tp}, for a model with sparse attention", f"{tp}, or leave it out")


@rule("PD545", source="vLLM ModelConfig, _get_and_verify_max_len; catalog/models: maxModelLen")
def longest_sequence_is_one_that_the_model_can(stack: Stack) -> Iterator[Problem]:
    """vLLM ends at its start: "User-specified max_model_len is greater than the derived max_model_len". It derives that from the
    config.json beside the weights: where that was edited, the environment variable says that the length is meant."""
    for deployment, name, _, architecture in _split(stack):
        longest, given = deployment.model.max_model_len, environment(deployment, name).get(LONGER_THAN_THE_MODEL)
        extended = any(option.flag in CONTEXT_FLAGS for option in options(deployment, name))
        allowed = extended or (given is not None and given.value.lower() in ("1", "true"))
        if architecture.max_model_len is not None and longest > architecture.max_model_len and not allowed:
            yield Problem(
                in_deployment(deployment, "model", "maxModelLen"),
                f"{longest} for {architecture.name}, which can {architecture.max_model_len}",
                f"at most {architecture.max_model_len}, or scaled rope by {CONTEXT_FLAGS[0]}; "
                f'engine: {{env: {{{LONGER_THAN_THE_MODEL}: "1"}}}} where config.json has it already',
            )
