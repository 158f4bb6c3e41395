"""One P/D deployment as the stack file declares it."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from models.autoscaling import Autoscaling
from models.base import Declaration
from models.kthena.model_server import TrafficPolicy
from models.kthena.model_serving import GangPolicy, NetworkTopology, Plugin, RolloutStrategy
from models.model import Model
from models.quantities import (
    ADDRESS,
    DnsLabel,
    Duration,
    EnvName,
    ImageReference,
    Namespace,
    ObjectName,
    Port,
    PositiveDuration,
    Quantity,
)
from models.role import ROLES, Role, RoleName
from models.route import Route

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


class Engine(Declaration):
    """The vLLM-Ascend release, and what both roles give it."""

    version: Annotated[
        str,
        Field(
            pattern=r"^v[0-9]+\.[0-9]+\.[0-9]+(rc[0-9]+|\.post[0-9]+)?$",
            description="vLLM-Ascend release, for example v0.23.0",
        ),
    ]
    image: Annotated[ImageReference | None, Field(description="whole image reference where it isn't the official one")] = None
    env: Annotated[dict[EnvName, str], Field(description="environment of both roles' engines, beside what is derived")] = {}
    extra_args: Annotated[
        tuple[str, ...], Field(description="more vLLM arguments of both roles; a derived one can't be given")
    ] = ()


class KVPool(Declaration):
    """A KV cache pool beside the direct transfer: AscendStoreConnector with Mooncake, through vLLM's MultiConnector."""

    master: Annotated[
        str,
        Field(
            pattern=ADDRESS,
            description="address of the Mooncake master, which is there already: host:port",
        ),
    ]
    segment_size: Annotated[Quantity, Field(description="host memory that each rank gives to the pool; whole gibibytes")] = "1Gi"
    load_async: Annotated[bool, Field(description="blocks come from the pool while the engine goes on")] = False


class KVTransfer(Declaration):
    """How the KV cache gets from prefill to decode."""

    connector: Annotated[str, Field(description="KV connector, a key of connectors in catalog/engine.yaml")] = (
        "MooncakeConnectorV1"
    )
    port: Annotated[Port, Field(description="first port of the side channel; each rank takes the next one")] = 36000
    load_failure_policy: Annotated[
        Literal["fail", "recompute"] | None,
        Field(description="what decode does with a failed transfer; absent: the engine decides"),
    ] = None
    pool: KVPool | None = None


class Scheduling(Declaration):
    """How Volcano places the pods of a group; needs scheduler volcano."""

    queue: Annotated[ObjectName | None, Field(description="Volcano queue")] = None
    gang_policy: Annotated[
        GangPolicy | None,
        Field(description="fewest instances of a role that start a group, immutable; absent: all of the group together"),
    ] = None
    network_topology: NetworkTopology | None = None


class Recovery(Declaration):
    """What Kthena does when an engine fails."""

    policy: Literal["ServingGroupRecreate", "RoleRecreate", "None"] = "ServingGroupRecreate"
    restart_grace_period_seconds: Annotated[int, Field(ge=0)] = 60


class Readiness(Declaration):
    """Probe budget."""

    load_timeout: Annotated[
        PositiveDuration, Field(description="longest time from container start to a loaded model; later is a failure")
    ] = "30m"
    scheduling_timeout: Annotated[
        PositiveDuration,
        Field(description="longest time a pod may wait for a node while no other of the deployment ends; later `up` fails"),
    ] = "5m"
    drain_period: Annotated[
        PositiveDuration,
        Field(description="an engine stops once it had no request for so long; longer than the longest prefill"),
    ] = "10s"
    termination_grace_period: Annotated[
        Duration, Field(description="longest time a running request may still take when the pod is stopped")
    ] = "60s"


class Rollout(Declaration):
    """Two ModelServings with a ModelServer each, and the route's weights between them.

    BlueGreen: each edit of the pods makes new ones beside the old, the route changes over once they serve, and the old ones go;
    all in one `up`. Canary: the ``candidate`` gets the share of requests of the ``step`` that was reached; to promote it is to
    declare it as the deployment itself, to abort is to leave it out.
    """

    strategy: Literal["BlueGreen", "Canary"]
    candidate: Annotated[
        "Deployment | None",
        Field(
            description="Canary: what differs in the new version, laid over the deployment",
            examples=[{"engine": {"version": "v0.23.0"}}],
        ),
    ] = None
    steps: Annotated[
        tuple[Annotated[int, Field(ge=1, le=100)], ...],
        Field(min_length=1, description="Canary: percent of the requests that the candidate gets, step by step"),
    ] = (10, 50, 100)
    step: Annotated[int, Field(ge=0, description="Canary: steps that were taken; 0: the candidate runs and gets no request")] = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if list(self.steps) != sorted(set(self.steps)):
            raise ValueError(f"{list(self.steps)} does not rise from step to step; for example [10, 50, 100]")
        if self.step > len(self.steps):
            raise ValueError(f"step {self.step} of {len(self.steps)}; at most {len(self.steps)}, or more steps")
        if self.candidate is not None and self.strategy == "BlueGreen":
            raise ValueError("a candidate under BlueGreen; declare its values in the deployment itself, or strategy Canary")
        if self.candidate is None and self.step:
            raise ValueError(f"step {self.step} without a candidate; step 0, or declare the candidate")
        return self

    @property
    def percent(self) -> int:
        """Of the requests for the candidate."""
        return self.steps[self.step - 1] if self.candidate is not None and self.step else 0


class Deployment(Declaration):
    """A P/D deployment: one ModelServing with its scripts, ModelServer and ModelRoute. ``name`` is its key in the stack file."""

    name: DnsLabel
    recipe: Annotated[str | None, Field(description="catalogue entry that everything here overrides")] = None
    accept: Annotated[
        dict[
            Annotated[str, Field(pattern=r"^PD[0-9]{3}$", description="a code such as PD703, in capital letters")],
            Annotated[str, Field(min_length=1)],
        ],
        Field(description="warnings that are meant: rule code -> reason"),
    ] = {}
    namespace: Namespace = "default"
    engine: Annotated[Engine, Field(examples=[{"version": "v0.23.0"}])]
    model: Annotated[
        Model,
        Field(examples=[{"served": "my-model", "weights": {"hostPath": "/models/my-model"}, "maxModelLen": 65536}]),
    ]
    ratio: Annotated[Ratio, Field(examples=["1P1D"])]
    groups: Annotated[int, Field(ge=1, description="serving groups; 2 with ratio 1P1D is 2x(1P1D)")] = 1
    prefill: Role
    decode: Role
    kv_transfer: KVTransfer = KVTransfer.model_construct()
    port: Annotated[Port, Field(description="engines' API port")] = 8000
    data_parallel_rpc_port: Annotated[Port, Field(description="vLLM --data-parallel-rpc-port")] = 12321
    host_network: bool = False
    network_interface: Annotated[
        str | None,
        Field(description="NIC for HCCL and Gloo; absent: the one that carries the pod's IP, found at start"),
    ] = None
    shared_memory: Annotated[Quantity, Field(description="size of /dev/shm")] = "16Gi"
    runtime_sidecar: Annotated[bool, Field(description="Kthena's runtime beside each engine, port 8100")] = False
    runtime_image: Annotated[
        ImageReference | None, Field(description="whole image reference where it isn't Kthena's runtime")
    ] = None
    recovery: Recovery = Recovery.model_construct()
    rollout_strategy: Annotated[RolloutStrategy | None, Field(description="absent: ServingGroupRollingUpdate")] = None
    rollout: Annotated[Rollout | None, Field(description="absent: Kthena replaces the pods in place, see rolloutStrategy")] = None
    scheduling: Scheduling = Scheduling.model_construct()
    plugins: Annotated[tuple[Plugin, ...], Field(description="plugins of Kthena's controller")] = ()
    autoscaling: Autoscaling | None = None
    route: Route = Route.model_construct()
    traffic: TrafficPolicy = TrafficPolicy.model_construct(timeout="300s")
    readiness: Readiness = Readiness.model_construct()

    def role(self, name: RoleName) -> Role:
        """The declaration of one role."""
        return self.prefill if name == "prefill" else self.decode

    @property
    def candidate(self) -> "Deployment | None":
        """The version that is being tried beside this one."""
        return self.rollout.candidate if self.rollout else None

    def group_bounds(self) -> tuple[int, int]:
        """Fewest and most groups: the declared number, where no autoscaler changes it."""
        scaling = self.autoscaling.groups if self.autoscaling else None
        return (scaling.min, scaling.max) if scaling else (self.groups, self.groups)

    def instance_bounds(self, name: RoleName) -> tuple[int, int]:
        """Fewest and most instances of one role in a group: the declared number, where no autoscaler changes it."""
        scaling = self.autoscaling.role(name) if self.autoscaling else None
        return (scaling.min, scaling.max) if scaling else (self.ratio.of(name), self.ratio.of(name))

    @property
    def npus(self) -> int:
        """Dies of the whole deployment."""
        return self.groups * sum(self.ratio.of(name) * self.role(name).parallelism.npus for name in ROLES)
