"""What is true of one environment: its NPUs, its scheduler, its Kthena control plane."""

from typing import Annotated, Literal

from pydantic import Field

from models.base import Declaration
from models.quantities import Duration, ImageReference, Namespace, Port
from models.resources import CpuAndMemory, Resources

CONTROL_PLANE_RESOURCES = Resources.model_construct(
    requests=CpuAndMemory.model_construct(cpu="100m", memory="128Mi"),
    limits=CpuAndMemory.model_construct(cpu="2", memory="1Gi"),
)


class Npu(Declaration):
    """The NPU servers of the cluster."""

    family: Annotated[str, Field(description="key of catalog/npu")]
    device_plugin: Annotated[str, Field(description="which device plugin names the resource: cce, mindcluster or hami")]
    chip: Annotated[
        str | None, Field(description="key of chips in catalog/npu where servers of the family differ: memory, resource name")
    ] = None
    node_selector: Annotated[
        dict[str, str], Field(description="node labels that every engine pod asks for, beside those of family and device plugin")
    ] = {}
    nodes: Annotated[int | None, Field(ge=1, description="how many NPU servers there are; absent: capacity is not checked")] = (
        None
    )


class ApiClient(Declaration):
    """Client limits towards the Kubernetes API server.

    Kthena's own defaults (5 and 10) make 100 deployments converge in 137 s instead of 15 s (measured).
    """

    qps: Annotated[int, Field(ge=1)] = 400
    burst: Annotated[int, Field(ge=1)] = 800


class Controller(Declaration):
    """kthena-controller-manager. One replica: two controllers on one cluster work against each other."""

    image: Annotated[ImageReference | None, Field(description="whole image reference where it isn't Kthena's own")] = None
    workers: Annotated[int, Field(ge=1, description="parallel reconciles per controller")] = 10
    api_client: ApiClient = ApiClient.model_construct()
    log_level: Annotated[int, Field(ge=0, le=10)] = 2
    resources: Resources = CONTROL_PLANE_RESOURCES


class LeastRequest(Declaration):
    """Arguments of the least-request plugin."""

    max_waiting_requests: Annotated[int, Field(ge=0)] = 10


class PrefixCache(Declaration):
    """Arguments of the prefix-cache plugin."""

    block_size_to_hash: Annotated[int, Field(ge=1)] = 64
    max_blocks_to_match: Annotated[int, Field(ge=1)] = 128
    max_hash_cache_size: Annotated[int, Field(ge=1)] = 50000
    top_k_matches: Annotated[int, Field(ge=1)] = 5


ScorePlugin = Literal["least-request", "least-latency", "prefix-cache", "gpu-usage", "random"]


class RouterScheduler(Declaration):
    """How the router chooses pods; read once at the router's start, so a change restarts it."""

    filters: tuple[Literal["least-request", "lora-affinity"], ...] = ("least-request",)
    score: Annotated[dict[ScorePlugin, Annotated[int, Field(ge=0)]], Field(description="plugin -> weight")] = {
        "least-request": 1,
        "gpu-usage": 1,
        "least-latency": 1,
        "prefix-cache": 1,
    }
    least_request: LeastRequest = LeastRequest.model_construct()
    ttft_tpot_weight_factor: Annotated[float, Field(ge=0, le=1)] = 0.5
    prefix_cache: PrefixCache = PrefixCache.model_construct()


class AccessLog(Declaration):
    """The router's access log."""

    enabled: bool = True
    format: Literal["text", "json"] = "text"


class Router(Declaration):
    """kthena-router."""

    image: Annotated[ImageReference | None, Field(description="whole image reference where it isn't Kthena's own")] = None
    replicas: Annotated[int, Field(ge=1)] = 1
    port: Annotated[Port, Field(description="where it serves, in the pod and in its Service")] = 8080
    debug_port: Annotated[Port, Field(description="its view of routes and pods, on the pod's loopback only")] = 15000
    service_type: Annotated[
        Literal["ClusterIP", "LoadBalancer"],
        Field(description="a LoadBalancer that nobody gives an address holds `pulumi up` for ten minutes"),
    ] = "ClusterIP"
    max_surge: Annotated[
        Literal[0, 1],
        Field(description="1: a new router serves before an old one ends; 0 where two can't listen side by side"),
    ] = 1
    api_client: ApiClient = ApiClient.model_construct()
    access_log: AccessLog = AccessLog.model_construct()
    drain_timeout: Annotated[Duration, Field(description="how long it lets running requests end at a stop")] = "5m"
    scheduler: RouterScheduler = RouterScheduler.model_construct()
    resources: Resources = CONTROL_PLANE_RESOURCES


class ControlPlane(Declaration):
    """Kthena's controller and router."""

    install: Annotated[bool, Field(description="false: the cluster has its own Kthena, and it is used as it is")] = True
    version: Literal["1.0.0"] = "1.0.0"
    namespace: Namespace = "kthena-system"
    router_url: Annotated[
        str | None,
        Field(pattern=r"^https?://[^/]+$", description="where clients reach the router; absent: by its Service"),
    ] = None
    controller: Controller = Controller.model_construct()
    router: Router = Router.model_construct()


class Cluster(Declaration):
    """One environment."""

    npu: Annotated[Npu, Field(examples=[{"family": "A3", "devicePlugin": "cce"}])]
    context: Annotated[str | None, Field(description="kubeconfig context; absent: the current one")] = None
    scheduler: Literal["volcano", "default-scheduler"] = "volcano"
    namespaces: Annotated[tuple[Namespace, ...], Field(description="created by this stack, and deleted with it")] = ()
    protect: Annotated[
        bool, Field(description="Pulumi deletes nothing of this stack until it is false again; for production")
    ] = False
    control_plane: ControlPlane = ControlPlane.model_construct()
