"""What is true of one environment: its NPUs, its scheduler, its Kthena control plane."""

from typing import Annotated, Literal

from pydantic import Field

from models.base import Declaration
from models.quantities import Duration, ImageReference, LabelKey, LabelValue, Namespace, ObjectName, Port, PositiveDuration
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
        dict[LabelKey, LabelValue],
        Field(description="node labels that every engine pod asks for, beside those of family and device plugin"),
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
    """kthena-controller-manager."""

    replicas: Annotated[
        int, Field(ge=1, description="more than one elect a leader: two that work at a time leave ModelServings stuck")
    ] = 1
    image: Annotated[ImageReference | None, Field(description="whole image reference where it isn't Kthena's own")] = None
    workers: Annotated[int, Field(ge=1, description="parallel reconciles per controller")] = 10
    api_client: ApiClient = ApiClient.model_construct()
    log_level: Annotated[int, Field(ge=0, le=10)] = 2
    webhook_port: Annotated[Port, Field(description="where its admission webhooks listen, in the pod")] = 8443
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


class Authentication(Declaration):
    """Who may ask: JWT bearer tokens, looked at by the router.

    Source: Kthena v1.0.0, the router's configuration file (``auth``); ``exp`` is required of every token.
    """

    issuer: Annotated[str, Field(min_length=1, description="what a token's iss must be")]
    jwks_uri: Annotated[str, Field(pattern=r"^https?://", description="where the issuer's public keys are")]
    audiences: Annotated[tuple[str, ...], Field(description="of which a token's aud must have one; none: any")] = ()


class Fairness(Declaration):
    """Queue that puts users first who have used fewer tokens lately; users are known by their tokens' subject.

    Source: Kthena v1.0.0, environment of the router.
    """

    window_size: Annotated[PositiveDuration, Field(description="what counts as lately")] = "1h"
    input_token_weight: Annotated[float, Field(ge=0)] = 1.0
    output_token_weight: Annotated[float, Field(ge=0)] = 2.0
    max_concurrent: Annotated[int | None, Field(ge=1, description="requests in flight; absent: limited by their rate")] = None


class SessionBoost(Declaration):
    """Queue that puts requests of sessions first whose prefix is still cached.

    Source: Kthena v1.0.0, environment of the router.
    """

    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$", description="HTTP header that names the session")] = "X-Session-ID"
    max_sessions: Annotated[int, Field(ge=1)] = 4096
    inflight_per_pod: Annotated[int, Field(ge=1)] = 16
    grace_period: Annotated[Duration, Field(description="how long a place is kept for the next request of a session")] = "0s"
    timeout: Annotated[Duration, Field(description="how long a request may wait")] = "30s"


class Tls(Declaration):
    """The router serves HTTPS."""

    secret: Annotated[
        ObjectName,
        Field(
            description="Secret of type kubernetes.io/tls in the control plane's namespace; whoever issues certificates owns it"
        ),
    ]


class Router(Declaration):
    """kthena-router."""

    image: Annotated[ImageReference | None, Field(description="whole image reference where it isn't Kthena's own")] = None
    replicas: Annotated[int, Field(ge=1)] = 1
    port: Annotated[Port, Field(description="where it serves, in the pod and in its Service")] = 8080
    debug_port: Annotated[Port, Field(description="its view of routes and pods, on the pod's loopback only")] = 15000
    webhook_port: Annotated[Port, Field(description="where its admission webhooks listen, in the pod")] = 8443
    service_type: Annotated[
        Literal["ClusterIP", "NodePort", "LoadBalancer"],
        Field(description="a LoadBalancer that nobody gives an address holds `pulumi up` for ten minutes"),
    ] = "ClusterIP"
    max_surge: Annotated[
        Literal[0, 1],
        Field(description="1: a new router serves before an old one ends; 0 where two can't listen side by side"),
    ] = 1
    api_client: ApiClient = ApiClient.model_construct()
    log_level: Annotated[int, Field(ge=0, le=10)] = 2
    access_log: AccessLog = AccessLog.model_construct()
    authentication: Authentication | None = None
    fairness: Annotated[Fairness | None, Field(description="not together with sessionBoost")] = None
    session_boost: Annotated[SessionBoost | None, Field(description="not together with fairness")] = None
    tls: Tls | None = None
    drain_timeout: Annotated[Duration, Field(description="how long it lets running requests end at a stop")] = "5m"
    scheduler: RouterScheduler = RouterScheduler.model_construct()
    resources: Resources = CONTROL_PLANE_RESOURCES


class ControlPlane(Declaration):
    """Kthena's controller and router."""

    install: Annotated[bool, Field(description="false: the cluster has its own Kthena, and it is used as it is")] = True
    version: Literal["1.0.0"] = "1.0.0"
    chart: Annotated[
        str,
        Field(
            min_length=1,
            description="Kthena's Helm chart: an oci:// or https:// address, or a directory or .tgz file below the stack file's",
        ),
    ] = "oci://ghcr.io/volcano-sh/charts/kthena"
    certificates: Annotated[
        Literal["auto", "cert-manager"],
        Field(description="of the admission webhooks: made by controller and router themselves, or by cert-manager"),
    ] = "auto"
    namespace: Namespace = "kthena-system"
    router_url: Annotated[
        str | None,
        Field(pattern=r"^https?://[^/]+$", description="where clients reach the router; absent: by its Service"),
    ] = None
    controller: Controller = Controller.model_construct()
    router: Router = Router.model_construct()


class NetworkPolicy(Declaration):
    """Who reaches the engines: the router, the controller (for metrics), the pods of the same deployment, and who is named here.

    Pods on their host's network are out of its reach.
    """

    namespaces: Annotated[
        tuple[Namespace, ...], Field(description="whose pods may reach the engines' API port too, such as Prometheus'")
    ] = ()


class Thresholds(Declaration):
    """From where on an alert fires."""

    time_to_first_token: Annotated[
        PositiveDuration, Field(description="of 99 in 100 requests, prefill's and decode's share together")
    ] = "10s"  # noqa: S105 - a token of a model
    inter_token_latency: Annotated[PositiveDuration, Field(description="of 99 in 100 tokens")] = "200ms"  # noqa: S105 - the same
    kv_cache_usage: Annotated[float, Field(gt=0, lt=1, description="share of a pod's KV cache in use for ten minutes")] = 0.95
    failed_requests: Annotated[float, Field(ge=0, lt=1, description="share of requests, for five minutes")] = 0.05


class Monitoring(Declaration):
    """Objects of the Prometheus operator and of Grafana for the deployments and the router."""

    labels: Annotated[
        dict[LabelKey, LabelValue],
        Field(description="labels by which the Prometheus operator selects monitors and rules, such as release"),
    ] = {}
    interval: Annotated[PositiveDuration, Field(description="between two scrapes")] = "15s"
    router: Annotated[
        bool, Field(description="monitor the router and make the dashboard; false: another stack of this cluster does")
    ] = True
    alerts: Annotated[bool, Field(description="a PrometheusRule for each deployment, and one for the router")] = True
    thresholds: Thresholds = Thresholds.model_construct()
    dashboard: Annotated[
        dict[LabelKey, LabelValue] | None,
        Field(description="labels by which Grafana's sidecar finds the dashboard's ConfigMap; absent: no dashboard"),
    ] = {"grafana_dashboard": "1"}
    dashboard_namespace: Annotated[Namespace | None, Field(description="absent: that of the control plane")] = None


class Cluster(Declaration):
    """One environment."""

    npu: Annotated[Npu, Field(examples=[{"family": "A3", "devicePlugin": "cce"}])]
    context: Annotated[str | None, Field(description="kubeconfig context; absent: the current one")] = None
    scheduler: Literal["volcano", "default-scheduler"] = "volcano"
    namespaces: Annotated[tuple[Namespace, ...], Field(description="created by this stack, and deleted with it")] = ()
    protect: Annotated[
        bool, Field(description="from the next `up` on Pulumi deletes nothing of this stack, until one with false")
    ] = False
    preflight: Annotated[
        bool, Field(description="look before every `up` whether the cluster has what the deployments need; false: don't")
    ] = True
    network_policy: Annotated[NetworkPolicy | None, Field(description="absent: everybody reaches the engines")] = None
    monitoring: Annotated[Monitoring | None, Field(description="absent: no monitors, alerts or dashboard")] = None
    control_plane: ControlPlane = ControlPlane.model_construct()
