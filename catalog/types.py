"""Shapes of the catalogue's files."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from models.base import Declaration
from models.quantities import Quantity


class HostFile(Declaration):
    """A file of the node that every engine container mounts at the same path, read-only."""

    name: str
    path: str
    type: Literal["File", "Directory"]


class DeviceNumbers(Declaration):
    """Where a pod finds the numbers that its dies have on the server: one of the two at least, the annotation first."""

    annotation: Annotated[str | None, Field(description="of the pod, with the names of the devices: Ascend910-0,Ascend910-1")] = (
        None
    )
    variable: Annotated[str | None, Field(description="of the container's environment, with their numbers: 0,1")] = None

    @model_validator(mode="after")
    def _one_at_least(self) -> Self:
        if self.annotation is None and self.variable is None:
            raise ValueError("an annotation, a variable, or both")
        return self


class WholeCards(Declaration):
    """Pods get one die, or cards of ``dies`` each: other numbers are refused with scheduler ``scheduler``."""

    dies: Annotated[int, Field(ge=2)]
    scheduler: Literal["volcano", "default-scheduler"]


class DevicePlugin(Declaration):
    """What a device plugin calls the dies of a family, what it leaves on pods, and what it wants of them."""

    resource: Annotated[
        str, Field(description="extended resource of which one unit is one die; {chip} stands for the chip's name")
    ]
    node_selector: Annotated[
        dict[str, str], Field(description="node labels that tell the family's servers from others with the same resource")
    ] = {}
    server_types: Annotated[
        tuple[str, ...], Field(description="what the node label accelerator-type says on the family's servers")
    ] = ()
    device_numbers: DeviceNumbers = DeviceNumbers.model_construct(annotation="huawei.com/AscendReal")
    whole_cards: Annotated[WholeCards | None, Field(description="absent: any number of dies of a server")] = None
    refuses_privileged: Annotated[
        Literal["volcano", "default-scheduler"] | None,
        Field(description="scheduler with which no pod with a privileged container gets dies"),
    ] = None


class NpuFamily(Declaration):
    """One generation of Ascend servers."""

    family: str
    serves_prefill_decode: Annotated[bool, Field(description="whether vLLM-Ascend supports P/D on it")] = True
    dies_per_node: Annotated[int, Field(ge=1, description="what one server offers of the extended resource")]
    memory: Annotated[Quantity, Field(description="HBM of one die, where no chip is declared")]
    chips: Annotated[dict[str, Quantity], Field(description="kind of die -> its HBM, where the family has several")] = {}
    image_suffix: Annotated[str, Field(description="of vLLM-Ascend's image tag")]
    other_image_suffixes: Annotated[tuple[str, ...], Field(description="of the same image in other releases")] = ()
    device_plugins: dict[str, DevicePlugin]
    mounts: tuple[HostFile, ...]
    kv_connector_extra_config: Annotated[
        dict[str, Any], Field(description="what the family's interconnect wants to be told beside the roles' sizes")
    ] = {}

    @property
    def image_suffixes(self) -> tuple[str, ...]:
        """All names under which images for this family are published."""
        return (self.image_suffix, *self.other_image_suffixes)

    @property
    def server_types(self) -> frozenset[str]:
        """All that the node label accelerator-type may say on its servers."""
        return frozenset(name for plugin in self.device_plugins.values() for name in plugin.server_types)


class ModelArchitecture(Declaration):
    """What of a model decides how it can be split, and how much memory it takes."""

    name: str
    attention: Literal["MLA", "GQA"]
    sparse: Annotated[bool, Field(description="sparse attention (DSA)")] = False
    hybrid: Annotated[bool, Field(description="layers with Mamba state beside those with a KV cache")] = False
    hidden_size: Annotated[int, Field(ge=1)]
    attention_heads: Annotated[int, Field(ge=1)]
    key_value_heads: Annotated[int | None, Field(ge=1, description="of GQA")] = None
    experts: Annotated[int | None, Field(ge=1, description="routed experts; absent: the model is dense")] = None
    experts_per_token: Annotated[int | None, Field(ge=1, description="routed experts that compute each token")] = None
    shared_experts: Annotated[int, Field(ge=0)] = 0
    connector: Annotated[
        str | None, Field(description="KV connector that the model needs in every release that registers it; absent: any")
    ] = None
    max_model_len: Annotated[
        int | None,
        Field(ge=1, description="tokens that vLLM derives from config.json, scaled rope included; of several models the largest"),
    ] = None
    weights: Annotated[
        dict[Literal["bf16", "fp8", "w8a8", "w4a8"], Quantity],
        Field(description="precision -> size of the weight files together"),
    ]


class Connector(Declaration):
    """One KV connector of vLLM-Ascend."""

    since: Annotated[str, Field(description="first vLLM-Ascend release that registers it")]
    unusable: Annotated[str | None, Field(description="why it can't be a deployment's connector")] = None


class ReleaseRange(Declaration):
    """Releases from ``since`` on and before ``until``."""

    since: str
    until: str


class SpeculativeMethod(Declaration):
    """A method of speculative decoding."""

    since: Annotated[str | None, Field(description="first vLLM-Ascend release that has it, where it came late")] = None
    draft_model: Annotated[
        Literal["needed", "none"] | None, Field(description="whether it has a draft model of its own; absent: it may have one")
    ] = None


class LegacyKvTransferKeys(Declaration):
    """Keys that the engine needs before release ``until``."""

    until: str
    shared: dict[str, Any]
    rank: Annotated[str, Field(description="key whose value is 0 on prefill and 1 on decode")]


class Removed(Declaration):
    """A setting that release ``since`` and later ones do not read."""

    kind: Literal["env", "additionalConfig"]
    name: str
    since: str
    instead: str


class EngineMetrics(Declaration):
    """Metrics that engines publish, as an autoscaler can use them."""

    scalable: Annotated[tuple[str, ...], Field(description="gauges and histograms: they rise and fall with the load")]
    counters: Annotated[tuple[str, ...], Field(description="they only grow")]


class EngineCatalog(Declaration):
    """What depends on the vLLM-Ascend release."""

    image: str
    downloader_image: str
    runtime_image: str
    releases: Annotated[tuple[str, ...], Field(description="known releases, oldest first")]
    connectors: dict[str, Connector]
    speculative_methods: dict[str, SpeculativeMethod]
    legacy_kv_transfer_keys: LegacyKvTransferKeys
    ascend_direct: Annotated[
        ReleaseRange, Field(description="releases that want use_ascend_direct: true in kv_connector_extra_config")
    ]
    physical_devices_until: Annotated[str, Field(description="first release that does not read PHYSICAL_DEVICES")]
    metrics: EngineMetrics
    removed: tuple[Removed, ...]


class FlagCatalog(Declaration):
    """Flags of ``vllm serve``, without their dashes."""

    about: str
    kinds: Annotated[dict[str, tuple[str, ...]], Field(description="kind of value -> flags that take it")]
    aliases: Annotated[dict[str, str], Field(description="short form with its dash -> flag")]


class SettingsCatalog(Declaration):
    """Names of settings that the engine reads."""

    environment: tuple[str, ...]
    additional_config: Annotated[dict[str, tuple[str, ...]], Field(description="setting -> the settings inside it")]
