"""One P/D deployment as the stack file declares it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, model_validator

from models.base import Declaration
from models.quantities import DnsLabel, Duration, EnvName, HostDirectory, Port, PositiveDuration, Quantity

RoleName = Literal["prefill", "decode"]
ROLES: tuple[RoleName, ...] = ("prefill", "decode")
"""In the order in which they stand in the ModelServing: the order is part of Kthena's revision hash"""

RATIO = re.compile(r"([1-9]\d*)P([1-9]\d*)D")


class Ratio(Declaration):
    """How many prefill and decode instances a serving group has; written ``2P1D`` or ``{prefill: 2, decode: 1}``."""

    prefill: Annotated[int, Field(ge=1)]
    decode: Annotated[int, Field(ge=1)]

    @model_validator(mode="before")
    @classmethod
    def _from_shorthand(cls, value: Any) -> Any:
        if isinstance(value, dict | Ratio):
            return value
        found = RATIO.fullmatch(str(value))
        if not found:
            raise ValueError(
                f"{value!r} is not a ratio; write <prefill>P<decode>D with both numbers at least 1, for example 2P1D"
            )
        return {"prefill": int(found[1]), "decode": int(found[2])}

    def __str__(self) -> str:
        return f"{self.prefill}P{self.decode}D"

    def of(self, role: RoleName) -> int:
        """Instances of ``role`` in one group."""
        return self.prefill if role == "prefill" else self.decode


class Parallelism(Declaration):
    """How one instance of a role spreads over NPUs."""

    dp: Annotated[int, Field(ge=1, description="data-parallel size (vLLM --data-parallel-size)")] = 1
    tp: Annotated[int, Field(ge=1, description="tensor-parallel size (vLLM --tensor-parallel-size)")]
    expert_parallel: Annotated[bool, Field(description="vLLM --enable-expert-parallel")] = False

    @property
    def npus(self) -> int:
        """Dies that one instance needs: every data-parallel rank is a tensor-parallel group of its own."""
        return self.dp * self.tp


class Batching(Declaration):
    """Batch limits of one engine (per data-parallel rank)."""

    max_num_batched_tokens: Annotated[int, Field(ge=1)]
    max_num_seqs: Annotated[int | None, Field(ge=1, description="engine default where absent")] = None


class Speculative(Declaration):
    """Speculative decoding (vLLM --speculative-config)."""

    method: str
    num_speculative_tokens: Annotated[int, Field(ge=1)]


class CpuAndMemory(Declaration):
    """CPU and memory of the engine container; NPUs are derived from the parallelism."""

    cpu: Quantity
    memory: Quantity


class Resources(Declaration):
    """Kubernetes requests and limits of the engine container."""

    requests: CpuAndMemory
    limits: CpuAndMemory


class Role(Declaration):
    """One of the two roles."""

    parallelism: Annotated[Parallelism, Field(examples=[{"dp": 2, "tp": 8}])]
    batching: Annotated[Batching, Field(examples=[{"maxNumBatchedTokens": 8192, "maxNumSeqs": 4}])]
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    graph: Annotated[
        Literal["eager", "FULL_DECODE_ONLY"],
        Field(description="eager: no graph capture; otherwise vLLM's cudagraph_mode, capture size derived"),
    ] = "eager"
    async_scheduling: bool = False
    speculative: Speculative | None = None
    additional_config: Annotated[dict[str, JsonValue], Field(description="vLLM-Ascend's own settings (--additional-config)")] = {}
    env: Annotated[dict[EnvName, str], Field(description="environment of the engine, beside what is derived")] = {}
    extra_args: Annotated[tuple[str, ...], Field(description="more vLLM arguments; a derived one can't be given here")] = ()
    resources: Annotated[
        Resources,
        Field(
            examples=[{"requests": {"cpu": "64", "memory": "700Gi"}, "limits": {"cpu": "188", "memory": "1800Gi"}}],
        ),
    ]


class HostPath(Declaration):
    """A directory of the node."""

    host_path: HostDirectory


class Claim(Declaration):
    """Weights on a PersistentVolumeClaim that is there already, NFS for example."""

    name: DnsLabel
    path: Annotated[HostDirectory, Field(description="where the container sees the weights")]
    sub_path: Annotated[str | None, Field(pattern=r"^[^/].*$", description="directory inside the volume")] = None


class Download(Declaration):
    """Weights that Kthena's downloader fetches into a node's cache before the engine starts."""

    source: Annotated[str, Field(min_length=1, description="Hugging Face id, or hf://, ms://, s3://, pvc:// URI")]
    cache: HostPath
    credentials: Annotated[
        DnsLabel | None,
        Field(description="Secret with what the source wants: HF_AUTH_TOKEN, MS_TOKEN, ACCESS_KEY and SECRET_KEY, ENDPOINT"),
    ] = None
    image: Annotated[str | None, Field(description="whole image reference where it isn't Kthena's downloader")] = None


class Weights(Declaration):
    """Where the weights come from: exactly one of the three."""

    host_path: HostDirectory | None = None
    claim: Claim | None = None
    download: Download | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if sum(given is not None for given in (self.host_path, self.claim, self.download)) != 1:
            raise ValueError("not exactly one source; give one of hostPath, claim and download")
        return self

    @property
    def path(self) -> str:
        """Path of the weights in the container; on the node too where they lie there."""
        if self.claim:
            return self.claim.path
        return self.download.cache.host_path if self.download else str(self.host_path)


class Model(Declaration):
    """The model and how every engine of the deployment loads it."""

    served: Annotated[str, Field(min_length=1, max_length=256, description="name that clients ask for")]
    architecture: Annotated[
        str | None, Field(description="key of catalog/models: parallelism is checked against its heads and experts")
    ] = None
    weights: Weights
    max_model_len: Annotated[int, Field(ge=1)]
    quantization: Annotated[Literal["ascend"] | None, Field(description="ascend for ModelSlim weights")] = None
    chat_template: Annotated[str | None, Field(pattern=r"^[\w.-]+$", description="file name inside the weights directory")] = None
    trust_remote_code: bool = False
    prefix_caching: bool = False
    hybrid_kv_cache_manager: Annotated[
        bool | None, Field(description="true: --no-disable-hybrid-kv-cache-manager; absent: the engine decides")
    ] = None
    seed: int | None = None


class Engine(Declaration):
    """The vLLM-Ascend release; the image tag follows from it and from the NPU family."""

    version: Annotated[
        str, Field(pattern=r"^v\d+\.\d+\.\d+(rc\d+|\.post\d+)?$", description="vLLM-Ascend release, for example v0.13.0rc3")
    ]
    image: Annotated[str | None, Field(description="whole image reference where it isn't the official one")] = None


class KVTransfer(Declaration):
    """How the KV cache gets from prefill to decode."""

    connector: Literal["MooncakeConnectorV1"] = "MooncakeConnectorV1"
    port: Annotated[Port, Field(description="first port of the side channel; each rank takes the next one")] = 36000


class Recovery(Declaration):
    """What Kthena does when an engine fails."""

    policy: Literal["ServingGroupRecreate", "RoleRecreate", "None"] = "ServingGroupRecreate"
    restart_grace_period_seconds: Annotated[int, Field(ge=0)] = 60


class Retry(Declaration):
    """ModelServer retry policy."""

    attempts: Annotated[int, Field(ge=0)]
    retry_interval: Duration = "100ms"


class Traffic(Declaration):
    """ModelServer traffic policy. Kthena v1.0.0 stores it and reads it nowhere (kthena#1498)."""

    timeout: Duration = "300s"
    retry: Retry | None = None


class Readiness(Declaration):
    """Probe budget."""

    load_timeout: Annotated[
        PositiveDuration, Field(description="longest time from container start to a loaded model; later is a failure")
    ] = "30m"
    termination_grace_period: Annotated[
        Duration, Field(description="longest time a running request may still take when the pod is stopped")
    ] = "60s"


class Deployment(Declaration):
    """A P/D deployment: one ModelServing with its scripts, ModelServer and ModelRoute. ``name`` is its key in the stack file."""

    name: DnsLabel
    recipe: Annotated[str | None, Field(description="catalogue entry that everything here overrides")] = None
    accept: Annotated[
        dict[Annotated[str, Field(pattern=r"^PD\d{3}$")], Annotated[str, Field(min_length=1)]],
        Field(description="warnings that are meant: rule code -> reason"),
    ] = {}
    namespace: DnsLabel = "default"
    engine: Annotated[Engine, Field(examples=[{"version": "v0.13.0rc3"}])]
    model: Annotated[
        Model,
        Field(examples=[{"served": "my-model", "weights": {"hostPath": "/models/my-model"}, "maxModelLen": 65536}]),
    ]
    ratio: Annotated[Ratio, Field(examples=["1P1D"])]
    groups: Annotated[int, Field(ge=1, description="serving groups; 2 with ratio 1P1D is 2x(1P1D)")] = 1
    prefill: Role
    decode: Role
    kv_transfer: KVTransfer = KVTransfer()
    port: Annotated[Port, Field(description="engines' API port")] = 8000
    data_parallel_rpc_port: Annotated[Port, Field(description="vLLM --data-parallel-rpc-port")] = 12321
    host_network: bool = False
    network_interface: Annotated[
        str | None,
        Field(description="NIC for HCCL and Gloo; absent: the one that carries the pod's IP, found at start"),
    ] = None
    shared_memory: Annotated[Quantity, Field(description="size of /dev/shm")] = "16Gi"
    runtime_sidecar: Annotated[bool, Field(description="Kthena's runtime beside each engine, port 8100")] = False
    runtime_image: Annotated[str | None, Field(description="whole image reference where it isn't Kthena's runtime")] = None
    recovery: Recovery = Recovery()
    traffic: Traffic = Traffic()
    readiness: Readiness = Readiness()

    def role(self, name: RoleName) -> Role:
        """The declaration of one role."""
        return self.prefill if name == "prefill" else self.decode

    @property
    def npus(self) -> int:
        """Dies of the whole deployment."""
        return self.groups * sum(self.ratio.of(name) * self.role(name).parallelism.npus for name in ROLES)
