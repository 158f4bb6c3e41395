"""One role: how an instance of it is split over NPUs and pods, and how its engine runs."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from models.base import Declaration
from models.kthena.meta import TemplateMetadata
from models.kthena.model_serving import IntOrString
from models.quantities import LAST_PORT, EnvName
from models.resources import Resources

RoleName = Literal["prefill", "decode"]
ROLES: tuple[RoleName, ...] = ("prefill", "decode")
"""In the order in which they stand in the ModelServing: the order is part of Kthena's revision hash"""


Size = Annotated[int, Field(ge=1, le=LAST_PORT)]
"""Of an instance: each of its ranks listens on a port of its own"""


class Parallelism(Declaration):
    """How one instance of a role spreads over NPUs."""

    dp: Annotated[Size, Field(description="data-parallel size (vLLM --data-parallel-size)")] = 1
    tp: Annotated[Size, Field(description="tensor-parallel size (vLLM --tensor-parallel-size)")]
    pp: Annotated[Size, Field(description="pipeline-parallel size (vLLM --pipeline-parallel-size); prefill only")] = 1
    dcp: Annotated[
        Size, Field(description="tp ranks that share one sequence's KV cache (vLLM --decode-context-parallel-size)")
    ] = 1
    expert_parallel: Annotated[bool, Field(description="vLLM --enable-expert-parallel")] = False

    @property
    def npus_per_rank(self) -> int:
        """Dies of one data-parallel rank, which never crosses pods. Context parallelism takes none of its own."""
        return self.tp * self.pp

    @property
    def npus(self) -> int:
        """Dies that one instance needs."""
        return self.dp * self.npus_per_rank


class Batching(Declaration):
    """Batch limits of one engine (per data-parallel rank)."""

    max_num_batched_tokens: Annotated[int, Field(ge=1)]
    max_num_seqs: Annotated[int | None, Field(ge=1, description="engine default where absent")] = None


class Speculative(Declaration):
    """Speculative decoding (vLLM --speculative-config)."""

    method: Annotated[str, Field(examples=["deepseek_mtp"])]
    num_speculative_tokens: Annotated[int, Field(ge=1)]
    model: Annotated[
        str | None,
        Field(
            min_length=1,
            description="directory of the draft model, if the method has one: inside that of the weights, or from the root",
        ),
    ] = None


class PodTemplatePatch(Declaration):
    """What is laid over the rendered pod template: maps key by key, lists of named things name by name.

    It adds; a value that is rendered already follows from another field and is not overridden.
    """

    metadata: TemplateMetadata | None = None
    spec: Annotated[dict[str, JsonValue], Field(description="of a Kubernetes PodSpec")] = {}


class Role(Declaration):
    """One of the two roles."""

    parallelism: Annotated[Parallelism, Field(examples=[{"dp": 2, "tp": 8}])]
    pods: Annotated[
        Size,
        Field(description="pods of one instance: an entry pod, which serves, and workers with their share of the dp ranks"),
    ] = 1
    batching: Annotated[Batching, Field(examples=[{"maxNumBatchedTokens": 8192, "maxNumSeqs": 4}])]
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    graph: Annotated[
        Literal["eager", "FULL_DECODE_ONLY", "PIECEWISE"],
        Field(description="eager: no graph capture; otherwise vLLM's cudagraph_mode, capture size derived"),
    ] = "eager"
    async_scheduling: bool = False
    prefix_caching: bool = False
    speculative: Speculative | None = None
    additional_config: Annotated[dict[str, JsonValue], Field(description="vLLM-Ascend's own settings (--additional-config)")] = {}
    env: Annotated[dict[EnvName, str], Field(description="environment of the engine, over that of both roles")] = {}
    extra_args: Annotated[tuple[str, ...], Field(description="more vLLM arguments; a derived one can't be given here")] = ()
    resources: Annotated[
        Resources,
        Field(
            description="of each pod",
            examples=[{"requests": {"cpu": "64", "memory": "700Gi"}, "limits": {"cpu": "188", "memory": "1800Gi"}}],
        ),
    ]
    max_unavailable: Annotated[
        IntOrString | None, Field(description="instances down at once in a RoleRollingUpdate: a number or a percentage")
    ] = None
    pod_template: PodTemplatePatch = PodTemplatePatch.model_construct()

    @property
    def data_parallel_ranks_per_pod(self) -> int:
        """vLLM --data-parallel-size-local."""
        return self.parallelism.dp // self.pods

    @property
    def npus_per_pod(self) -> int:
        """Dies that each pod of an instance asks for."""
        return self.data_parallel_ranks_per_pod * self.parallelism.npus_per_rank
