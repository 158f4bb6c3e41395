"""The model that a deployment serves: its names, its weights, how every engine loads it."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from models.base import Declaration, OneOf
from models.quantities import AbsolutePath, ImageReference, ObjectName, Quantity, without_backsteps

SubPath = Annotated[str, Field(pattern=r"^[^/].*$", description="directory inside the volume"), AfterValidator(without_backsteps)]
ServedName = Annotated[str, Field(min_length=1, max_length=256, pattern=r"\S")]
"""not blank: the router answers 404 to a blank name"""


class Claim(Declaration):
    """A directory on a PersistentVolumeClaim that is there already."""

    name: ObjectName
    path: Annotated[AbsolutePath, Field(description="where the container sees the weights")]
    sub_path: SubPath | None = None


class Nfs(Declaration):
    """Weights on an NFS export."""

    server: Annotated[str, Field(min_length=1)]
    export: Annotated[str, Field(pattern=r"^/")]
    path: Annotated[AbsolutePath, Field(description="where the container sees the weights")]


class Cache(OneOf):
    """Where downloaded weights are kept; on a claim every pod must be able to write."""

    host_path: AbsolutePath | None = None
    claim: Claim | None = None

    @property
    def path(self) -> str:
        """Path of the weights in the container."""
        return self.claim.path if self.claim else str(self.host_path)


class Download(Declaration):
    """Weights that Kthena's downloader fetches into a cache before the engine starts."""

    source: Annotated[
        str,
        Field(
            pattern=r"^((hf|ms|s3|pvc)://\S+|[a-zA-Z0-9_.-]+/[a-zA-Z0-9_.-]+)$",
            description="Hugging Face id, or hf://, ms://, s3://, pvc:// URI",
        ),
    ]
    cache: Cache
    credentials: Annotated[
        ObjectName | None,
        Field(description="Secret with what the source wants: HF_AUTH_TOKEN, MS_TOKEN, ACCESS_KEY and SECRET_KEY, ENDPOINT"),
    ] = None
    image: Annotated[ImageReference | None, Field(description="whole image reference where it isn't Kthena's downloader")] = None


class Weights(OneOf):
    """Where the weights come from."""

    host_path: AbsolutePath | None = None
    claim: Claim | None = None
    nfs: Nfs | None = None
    download: Download | None = None

    @property
    def path(self) -> str:
        """Path of the weights in the container; on the node too where they lie there."""
        for mounted in (self.claim, self.nfs):
            if mounted:
                return mounted.path
        return self.download.cache.path if self.download else str(self.host_path)


class Lora(Declaration):
    """LoRA adapters, loaded by every engine and reachable by their own names."""

    adapters: Annotated[
        dict[ServedName, Annotated[str, Field(min_length=1)]],
        Field(
            min_length=1,
            max_length=10,  # of ModelRoute spec.loraAdapters
            description="name that clients ask for -> directory, inside that of the weights unless it begins with a slash",
        ),
    ]
    max_rank: Annotated[
        Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] | None,
        Field(description="vLLM --max-lora-rank, which knows these; absent: the engine's default"),
    ] = None
    max_loaded: Annotated[int | None, Field(ge=1, description="vLLM --max-loras; absent: the engine's default")] = None


class Model(Declaration):
    """The model and how every engine of the deployment loads it."""

    served: Annotated[ServedName, Field(description="name that clients ask for")]
    architecture: Annotated[
        str | None, Field(description="key of catalog/models: parallelism and memory are checked against it")
    ] = None
    weights: Weights
    weight_size: Annotated[
        Quantity | None,
        Field(description="of the weight files together, for the memory check; absent: the architecture's smallest that fits"),
    ] = None
    max_model_len: Annotated[int, Field(ge=1)]
    block_size: Annotated[int | None, Field(ge=1, description="tokens of a KV block; absent: the engine's default")] = None
    quantization: Annotated[Literal["ascend"] | None, Field(description="ascend for ModelSlim weights")] = None
    chat_template: Annotated[
        str | None, Field(pattern=r"^[a-zA-Z0-9_-][a-zA-Z0-9_.-]*$", description="file name inside the weights directory")
    ] = None
    trust_remote_code: bool = False
    hybrid_kv_cache_manager: Annotated[
        bool | None, Field(description="true: --no-disable-hybrid-kv-cache-manager; absent: the engine decides")
    ] = None
    seed: int | None = None
    lora: Lora | None = None
