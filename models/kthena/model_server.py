"""networking.serving.volcano.sh/v1alpha1 ModelServer."""

from typing import Annotated, Literal

from pydantic import Field

from models.base import Declaration
from models.kthena.meta import Metadata
from models.quantities import Duration, Port


class PDGroup(Declaration):
    """How the router tells prefill from decode and which belong together."""

    group_key: Annotated[str, Field(min_length=1)]
    prefill_labels: dict[str, str]
    decode_labels: dict[str, str]


class WorkloadSelector(Declaration):
    """Which pods serve."""

    match_labels: dict[str, str]
    pd_group: PDGroup | None = None


class WorkloadPort(Declaration):
    """The one API port of every pod. The router speaks http whatever ``protocol`` says."""

    port: Port
    protocol: Literal["http", "https"] | None = None


class ServerRetry(Declaration):
    """Retry policy."""

    attempts: Annotated[int, Field(ge=0)]
    retry_interval: Duration | None = None


class TrafficPolicy(Declaration):
    """Traffic policy. Kthena v1.0.0 stores it and reads it nowhere (kthena#1498)."""

    timeout: Duration | None = None
    retry: ServerRetry | None = None


class KVConnector(Declaration):
    """How the router carries KV transfer parameters from prefill to decode."""

    type: Literal["http", "lmcache", "nixl", "mooncake"]


class ModelServerSpec(Declaration):
    """Spec of a ModelServer."""

    inference_engine: Literal["vLLM", "SGLang"]
    model: Annotated[str, Field(max_length=256)] | None = None
    workload_selector: WorkloadSelector
    workload_port: WorkloadPort
    kv_connector: KVConnector | None = None
    traffic_policy: TrafficPolicy | None = None


class ModelServer(Declaration):
    """The backend: which pods serve a model and how they are paired."""

    api_version: Literal["networking.serving.volcano.sh/v1alpha1"] = "networking.serving.volcano.sh/v1alpha1"
    kind: Literal["ModelServer"] = "ModelServer"
    metadata: Metadata
    spec: ModelServerSpec
