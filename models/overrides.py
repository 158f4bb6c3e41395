"""Keys of a deployment as typed dicts, none of them required. Generated from the models:

pytest tests/unit/test_declaration_in_python.py --update-golden
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from pydantic import JsonValue


class DeploymentOverrides(TypedDict, total=False):
    """Of models.deployment.Deployment."""

    accept: Mapping[str, str]
    namespace: str
    engine: EngineOverrides
    model: ModelOverrides
    ratio: RatioOverrides | str
    groups: int
    prefill: RoleOverrides
    decode: RoleOverrides
    kv_transfer: KVTransferOverrides
    port: int
    data_parallel_rpc_port: int
    host_network: bool
    network_interface: str | None
    shared_memory: str
    runtime_sidecar: bool
    runtime_image: str | None
    recovery: RecoveryOverrides
    rollout_strategy: RolloutStrategyOverrides | None
    rollout: RolloutOverrides | None
    scheduling: SchedulingOverrides
    plugins: Sequence[PluginOverrides]
    autoscaling: AutoscalingOverrides | None
    route: RouteOverrides
    traffic: TrafficPolicyOverrides
    readiness: ReadinessOverrides


class EngineOverrides(TypedDict, total=False):
    """Of models.deployment.Engine."""

    version: str
    image: str | None
    env: Mapping[str, str]
    extra_args: Sequence[str]


class ModelOverrides(TypedDict, total=False):
    """Of models.model.Model."""

    served: str
    architecture: str | None
    weights: WeightsOverrides
    weight_size: str | None
    max_model_len: int
    block_size: int | None
    quantization: Literal["ascend"] | None
    chat_template: str | None
    trust_remote_code: bool
    hybrid_kv_cache_manager: bool | None
    seed: int | None
    lora: LoraOverrides | None


class WeightsOverrides(TypedDict, total=False):
    """Of models.model.Weights."""

    host_path: str | None
    claim: ClaimOverrides | None
    nfs: NfsOverrides | None
    download: DownloadOverrides | None


class ClaimOverrides(TypedDict, total=False):
    """Of models.model.Claim."""

    name: str
    path: str
    sub_path: str | None


class NfsOverrides(TypedDict, total=False):
    """Of models.model.Nfs."""

    server: str
    export: str
    path: str


class DownloadOverrides(TypedDict, total=False):
    """Of models.model.Download."""

    source: str
    cache: CacheOverrides
    credentials: str | None
    image: str | None


class CacheOverrides(TypedDict, total=False):
    """Of models.model.Cache."""

    host_path: str | None
    claim: ClaimOverrides | None


class LoraOverrides(TypedDict, total=False):
    """Of models.model.Lora."""

    adapters: Mapping[str, str]
    max_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] | None
    max_loaded: int | None


class RatioOverrides(TypedDict, total=False):
    """Of models.deployment.Ratio."""

    prefill: int
    decode: int


class RoleOverrides(TypedDict, total=False):
    """Of models.role.Role."""

    parallelism: ParallelismOverrides
    pods: int
    batching: BatchingOverrides
    gpu_memory_utilization: float
    graph: Literal["eager", "FULL_DECODE_ONLY", "PIECEWISE"]
    async_scheduling: bool
    prefix_caching: bool
    speculative: SpeculativeOverrides | None
    additional_config: Mapping[str, JsonValue]
    env: Mapping[str, str]
    extra_args: Sequence[str]
    resources: ResourcesOverrides
    max_unavailable: int | str | None
    pod_template: PodTemplatePatchOverrides


class ParallelismOverrides(TypedDict, total=False):
    """Of models.role.Parallelism."""

    dp: int
    tp: int
    pp: int
    dcp: int
    expert_parallel: bool


class BatchingOverrides(TypedDict, total=False):
    """Of models.role.Batching."""

    max_num_batched_tokens: int
    max_num_seqs: int | None


class SpeculativeOverrides(TypedDict, total=False):
    """Of models.role.Speculative."""

    method: str
    num_speculative_tokens: int
    model: str | None


class ResourcesOverrides(TypedDict, total=False):
    """Of models.resources.Resources."""

    requests: CpuAndMemoryOverrides
    limits: CpuAndMemoryOverrides


class CpuAndMemoryOverrides(TypedDict, total=False):
    """Of models.resources.CpuAndMemory."""

    cpu: str
    memory: str


class PodTemplatePatchOverrides(TypedDict, total=False):
    """Of models.role.PodTemplatePatch."""

    metadata: TemplateMetadataOverrides | None
    spec: Mapping[str, JsonValue]


class TemplateMetadataOverrides(TypedDict, total=False):
    """Of models.kthena.meta.TemplateMetadata."""

    labels: Mapping[str, str] | None
    annotations: Mapping[str, str] | None


class KVTransferOverrides(TypedDict, total=False):
    """Of models.deployment.KVTransfer."""

    connector: str
    port: int
    load_failure_policy: Literal["fail", "recompute"] | None
    pool: KVPoolOverrides | None


class KVPoolOverrides(TypedDict, total=False):
    """Of models.deployment.KVPool."""

    master: str
    segment_size: str
    load_async: bool


class RecoveryOverrides(TypedDict, total=False):
    """Of models.deployment.Recovery."""

    policy: Literal["ServingGroupRecreate", "RoleRecreate", "None"]
    restart_grace_period_seconds: int


class RolloutStrategyOverrides(TypedDict, total=False):
    """Of models.kthena.model_serving.RolloutStrategy."""

    type: Literal["ServingGroupRollingUpdate", "RoleRollingUpdate"]
    rolling_update_configuration: RollingUpdateConfigurationOverrides | None


class RollingUpdateConfigurationOverrides(TypedDict, total=False):
    """Of models.kthena.model_serving.RollingUpdateConfiguration."""

    max_unavailable: int | str | None
    partition: int | str | None


class RolloutOverrides(TypedDict, total=False):
    """Of models.deployment.Rollout."""

    strategy: Literal["BlueGreen", "Canary"]
    candidate: DeploymentOverrides | None
    steps: Sequence[int]
    step: int


class SchedulingOverrides(TypedDict, total=False):
    """Of models.deployment.Scheduling."""

    queue: str | None
    gang_policy: GangPolicyOverrides | None
    network_topology: NetworkTopologyOverrides | None


class GangPolicyOverrides(TypedDict, total=False):
    """Of models.kthena.model_serving.GangPolicy."""

    min_role_replicas: Mapping[str, int]


class NetworkTopologyOverrides(TypedDict, total=False):
    """Of models.kthena.model_serving.NetworkTopology."""

    group_policy: TopologyConstraintOverrides | None
    role_policy: TopologyConstraintOverrides | None


class TopologyConstraintOverrides(TypedDict, total=False):
    """Of models.kthena.model_serving.TopologyConstraint."""

    mode: Literal["hard", "soft"] | None
    highest_tier_allowed: int | None
    highest_tier_name: str | None


class PluginOverrides(TypedDict, total=False):
    """Of models.kthena.model_serving.Plugin."""

    name: str
    type: Literal["BuiltIn"]
    config: Any
    scope: PluginScopeOverrides | None


class PluginScopeOverrides(TypedDict, total=False):
    """Of models.kthena.model_serving.PluginScope."""

    roles: Sequence[str] | None
    target: Literal["All", "Entry", "Worker"] | None


class AutoscalingOverrides(TypedDict, total=False):
    """Of models.autoscaling.Autoscaling."""

    groups: ScalingOverrides | None
    prefill: ScalingOverrides | None
    decode: ScalingOverrides | None
    ratio: RatioRangeOverrides | None
    tolerance_percent: int
    behavior: BehaviorOverrides | None


class ScalingOverrides(TypedDict, total=False):
    """Of models.autoscaling.Scaling."""

    min: int
    max: int
    metrics: Mapping[str, str]
    metric_sources: Mapping[str, MetricSourceOverrides]


class MetricSourceOverrides(TypedDict, total=False):
    """Of models.kthena.autoscaling_policy.MetricSource."""

    pod: PodSourceOverrides | None
    prometheus: PrometheusSourceOverrides | None


class PodSourceOverrides(TypedDict, total=False):
    """Of models.kthena.autoscaling_policy.PodSource."""

    name: str | None
    uri: str | None
    port: int | None
    label_selector: LabelSelectorOverrides | None


class LabelSelectorOverrides(TypedDict, total=False):
    """Of models.kthena.autoscaling_policy.LabelSelector."""

    match_labels: Mapping[str, str] | None
    match_expressions: Sequence[MatchExpressionOverrides] | None


class MatchExpressionOverrides(TypedDict, total=False):
    """Of models.kthena.autoscaling_policy.MatchExpression."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Sequence[str] | None


class PrometheusSourceOverrides(TypedDict, total=False):
    """Of models.kthena.autoscaling_policy.PrometheusSource."""

    server_url: str
    query: str
    auth: PrometheusAuthenticationOverrides | None


class PrometheusAuthenticationOverrides(TypedDict, total=False):
    """Of models.kthena.autoscaling_policy.PrometheusAuthentication."""


class RatioRangeOverrides(TypedDict, total=False):
    """Of models.autoscaling.RatioRange."""

    min: float
    max: float


class BehaviorOverrides(TypedDict, total=False):
    """Of models.kthena.autoscaling_policy.Behavior."""

    scale_up: ScaleUpOverrides | None
    scale_down: StablePolicyOverrides | None


class ScaleUpOverrides(TypedDict, total=False):
    """Of models.kthena.autoscaling_policy.ScaleUp."""

    stable_policy: StablePolicyOverrides | None
    panic_policy: PanicPolicyOverrides | None


class StablePolicyOverrides(TypedDict, total=False):
    """Of models.kthena.autoscaling_policy.StablePolicy."""

    instances: int | None
    percent: int | None
    period: str | None
    select_policy: Literal["Or", "And"] | None
    stabilization_window: str | None


class PanicPolicyOverrides(TypedDict, total=False):
    """Of models.kthena.autoscaling_policy.PanicPolicy."""

    percent: int | None
    period: str
    panic_threshold_percent: int | None
    panic_mode_hold: str | None


class RouteOverrides(TypedDict, total=False):
    """Of models.route.Route."""

    enabled: bool
    rules: Sequence[WeightedRuleOverrides]
    rate_limit: RateLimitOverrides | None
    parent_refs: Sequence[ParentReferenceOverrides]


class WeightedRuleOverrides(TypedDict, total=False):
    """Of models.route.WeightedRule."""

    name: str | None
    match: ModelMatchOverrides | None
    targets: Mapping[str, int]


class ModelMatchOverrides(TypedDict, total=False):
    """Of models.kthena.model_route.ModelMatch."""

    headers: Mapping[str, StringMatchOverrides] | None
    uri: StringMatchOverrides | None
    body: BodyMatchOverrides | None


class StringMatchOverrides(TypedDict, total=False):
    """Of models.kthena.model_route.StringMatch."""

    exact: str | None
    prefix: str | None
    regex: str | None


class BodyMatchOverrides(TypedDict, total=False):
    """Of models.kthena.model_route.BodyMatch."""

    model: str | None


class RateLimitOverrides(TypedDict, total=False):
    """Of models.kthena.model_route.RateLimit."""

    input_tokens_per_unit: int | None
    output_tokens_per_unit: int | None
    unit: Literal["second", "minute", "hour", "day", "month"]
    global_: GlobalRateLimitOverrides | None


class GlobalRateLimitOverrides(TypedDict, total=False):
    """Of models.kthena.model_route.GlobalRateLimit."""

    redis: RedisAddressOverrides


class RedisAddressOverrides(TypedDict, total=False):
    """Of models.kthena.model_route.RedisAddress."""

    address: str


class ParentReferenceOverrides(TypedDict, total=False):
    """Of models.kthena.model_route.ParentReference."""

    group: str | None
    kind: str | None
    name: str
    namespace: str | None
    section_name: str | None
    port: int | None


class TrafficPolicyOverrides(TypedDict, total=False):
    """Of models.kthena.model_server.TrafficPolicy."""

    timeout: str | None
    retry: ServerRetryOverrides | None


class ServerRetryOverrides(TypedDict, total=False):
    """Of models.kthena.model_server.ServerRetry."""

    attempts: int
    retry_interval: str | None


class ReadinessOverrides(TypedDict, total=False):
    """Of models.deployment.Readiness."""

    load_timeout: str
    scheduling_timeout: str
    drain_period: str
    termination_grace_period: str
