"""How the model can be split, where the stack file names its architecture."""

from __future__ import annotations

from collections.abc import Iterator

import catalog
from catalog.types import ModelArchitecture
from models.deployment import Deployment, RoleName
from models.role import Parallelism
from models.stack import Stack
from rules.finding import Problem, in_deployment, one_of, roles, rule


@rule("PD204", source="catalog/models")
def model_architecture_is_in_the_catalogue(stack: Stack) -> Iterator[Problem]:
    """A name that is not there would silently switch off every check of parallelism against the model."""
    for deployment in stack.deployments.values():
        name = deployment.model.architecture
        if name is not None and name not in catalog.models():
            path = in_deployment(deployment, "model", "architecture")
            yield Problem(path, f"no model architecture {name!r}", f"one of {one_of(catalog.models())}, or leave it out")


@rule("PD511", source="vllm-ascend#8344 and #8345; vLLM core sets data parallelism to 1 for dense models")
def dense_model_has_no_data_parallelism(stack: Stack) -> Iterator[Problem]:
    """The engine ends with "conflicting data parallel size. Expected 1": more instances are the way to scale it."""
    for deployment, name, parallelism, architecture in _split(stack):
        if architecture.experts is None and parallelism.dp > 1:
            path = in_deployment(deployment, name, "parallelism", "dp")
            yield Problem(path, f"{parallelism.dp} for a dense model", "1, and a ratio with more instances")


@rule("PD512", source="vLLM model parallel configuration; vllm-ascend mooncake_connector.py")
def heads_divide_among_tensor_parallel_ranks(stack: Stack) -> Iterator[Problem]:
    """Each rank computes whole attention heads; fewer key-value heads than ranks are copied, evenly."""
    for deployment, name, parallelism, architecture in _split(stack):
        if not _divides(architecture, parallelism.tp):
            heads, pairs = architecture.attention_heads, architecture.key_value_heads
            both = f"{heads} attention heads" + (f" and {pairs} key-value heads" if pairs else "")
            allowed = [str(tp) for tp in range(1, heads + 1) if _divides(architecture, tp)]
            path = in_deployment(deployment, name, "parallelism", "tp")
            yield Problem(path, f"{both} do not divide among {parallelism.tp} ranks", f"one of {', '.join(allowed)}")


def _divides(architecture: ModelArchitecture, tp: int) -> bool:
    pairs = architecture.key_value_heads
    return architecture.attention_heads % tp == 0 and (pairs is None or pairs % tp == 0 or tp % pairs == 0)


@rule("PD513", source="vLLM --enable-expert-parallel")
def expert_parallelism_needs_experts(stack: Stack) -> Iterator[Problem]:
    """A dense model has nothing to distribute."""
    for deployment, name, parallelism, architecture in _split(stack):
        if parallelism.expert_parallel and architecture.experts is None:
            path = in_deployment(deployment, name, "parallelism", "expertParallel")
            yield Problem(path, "the model is dense", "false, or leave it out")


@rule("PD514", source="vLLM expert parallelism: experts / (tp x dp) on each rank", severity="warning")
def experts_divide_among_all_ranks(stack: Stack) -> Iterator[Problem]:
    """Without redundant experts some ranks would hold more than others, and all wait for them."""
    for deployment, name, parallelism, architecture in _split(stack):
        experts, ranks = architecture.experts, parallelism.npus
        if parallelism.expert_parallel and experts is not None and experts % ranks:
            path = in_deployment(deployment, name, "parallelism")
            yield Problem(path, f"{experts} experts do not divide among {ranks} ranks", f"dp x tp that divides {experts}")


def _split(stack: Stack) -> Iterator[tuple[Deployment, RoleName, Parallelism, ModelArchitecture]]:
    for deployment, name, role in roles(stack):
        architecture = catalog.models().get(deployment.model.architecture or "")
        if architecture is not None:
            yield deployment, name, role.parallelism, architecture
