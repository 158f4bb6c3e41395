"""When somebody should look: alerts of a deployment and of the router, in PromQL.

Metrics: of engines, vLLM (https://docs.vllm.ai/en/stable/usage/metrics/); of the router, Kthena v1.0.0
(pkg/kthena-router/metrics). Their labels ``deployment``, ``role``, ``group`` and ``model`` are those of :mod:`render.monitoring`.
Each alert has a section in docs/monitoring.md.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from models.cluster import Cluster, Thresholds
from models.deployment import Deployment
from models.quantities import seconds
from models.role import ROLES, RoleName
from render.names import ROUTER_NAME

LONGEST_INTERVAL = 120
"""seconds between two scrapes at most: the shortest window that is looked at has to have two"""
FAILED = 'status_code=~"5..|400|404",error_type!="prompt_parsing"'
"""of the router's requests. 400: no pod is left to choose; 404: a ModelServer without pods; 500: also what an engine refused"""
_RUNBOOK = "docs/monitoring.md"


@dataclass(frozen=True)
class _Alert:
    name: str
    severity: Literal["critical", "warning"]
    expression: str
    for_: str
    summary: str
    """may have Prometheus' templates in it"""


def deployment_alerts(deployment: Deployment, thresholds: Thresholds) -> list[dict[str, Any]]:
    """Rules of one deployment."""
    engines = _equal(namespace=deployment.namespace, deployment=deployment.name)
    asked = _asked(deployment)
    alerts = [
        *_missing(deployment, engines),
        *_slow(engines, thresholds),
        _Alert(
            "PDDecodeComputesPrompts",
            "critical",
            _decode_computes(engines),
            "10m",
            "decode computes {{ $value | humanizePercentage }} of its prompts itself instead of taking prefill's KV cache",
        ),
        _Alert(
            "PDKvCacheFull",
            "warning",
            f"max by (role, instance) (avg_over_time(vllm:kv_cache_usage_perc{{{engines}}}[10m]))"
            f" > {thresholds.kv_cache_usage:g}",
            "0m",
            "{{ $labels.instance }} has {{ $value | humanizePercentage }} of its KV cache in use",
        ),
        _Alert(
            "PDQueueGrows",
            "warning",
            f"sum by (role) (deriv(vllm:num_requests_waiting{{{engines}}}[15m])) > 0"
            f" and sum by (role) (min_over_time(vllm:num_requests_waiting{{{engines}}}[15m])) > 0",
            "5m",
            "requests wait for {{ $labels.role }}, more and more of them, for 15 minutes",
        ),
        _Alert(
            "PDEngineRestarts",
            "warning",
            # up, down and up again are two changes; an engine that is loading does not answer yet
            f"max by (role, instance) (changes(up{{{engines}}}[1h])) > 4",
            "0m",
            "{{ $labels.instance }} has ended more than twice within an hour",
        ),
        *(_failing(asked, thresholds) if deployment.route.enabled else ()),
    ]
    return [_rule(alert, namespace=deployment.namespace, deployment=deployment.name) for alert in alerts]


def router_alerts(cluster: Cluster) -> list[dict[str, Any]]:
    """Rules of the router: all that a deployment's alerts know of requests is silent without it."""
    namespace = cluster.control_plane.namespace
    seen = f"up{{{_equal(namespace=namespace, container=ROUTER_NAME, endpoint='http')}}} == 1"
    return [_rule(_Alert("KthenaRouterDown", "critical", f"absent({seen})", "5m", "no router answers"), namespace=namespace)]


def _missing(deployment: Deployment, engines: str) -> list[_Alert]:
    """Pairs are counted as the router makes them, of a group with both roles. What may be scaled to nothing may be missing."""
    versions = [version for version in (deployment, deployment.candidate) if version]
    groups = sum(version.group_bounds()[0] for version in versions)
    instances = {
        role: sum(version.group_bounds()[0] * version.instance_bounds(role)[0] for version in versions) for role in ROLES
    }
    serving = {role: f'up{{{engines},role="{role}"}} == 1' for role in ROLES}
    pairs = " and on (group) ".join(f"count by (group) ({up})" for up in serving.values())
    of_pairs = [
        _Alert("PDNoPair", "critical", f"absent({pairs})", "5m", "no group has both prefill and decode: no request is answered"),
        _Alert("PDPairMissing", "warning", f"count({pairs}) < {groups}", "15m", f"{{{{ $value }}}} of {groups} groups serve"),
    ]
    return [
        *(of_pairs if all(instances.values()) else ()),
        *(
            _Alert(
                "PDInstanceMissing",
                "warning",
                f"count by (role) ({serving[role]}) < {number}",
                "15m",
                f"{{{{ $value }}}} of {number} {role} instances serve",
            )
            for role, number in instances.items()
            if number > groups  # of one in each group, its pair tells
        ),
    ]


def _slow(engines: str, thresholds: Thresholds) -> list[_Alert]:
    first = " + ".join(_quantile(f'vllm:time_to_first_token_seconds_bucket{{{engines},role="{role}"}}') for role in ROLES)
    later = _quantile(f'vllm:inter_token_latency_seconds_bucket{{{engines},role="decode"}}')
    return [
        _Alert(
            "PDFirstTokenSlow",
            "warning",
            f"{first} > {seconds(thresholds.time_to_first_token):g}",
            "10m",
            "99 in 100 requests have their first token within {{ $value | humanizeDuration }} only",
        ),
        _Alert(
            "PDTokensSlow",
            "warning",
            f"{later} > {seconds(thresholds.inter_token_latency):g}",
            "10m",
            "99 in 100 tokens come within {{ $value | humanizeDuration }} only",
        ),
    ]


def _quantile(buckets: str) -> str:
    return f"histogram_quantile(0.99, sum by (le) (rate({buckets}[5m])))"


def _decode_computes(engines: str) -> str:
    """Of both ways to lose prefill: the KV cache does not arrive, or requests never went through prefill.

    Some of each prompt decode always computes, a short one's whole last block. ``prompt_tokens_by_source`` is vLLM's from 0.18.1
    on at the latest; for older engines there is only the second way.
    """

    def tokens(metric: str, role: RoleName, more: str = "") -> str:
        return f'sum(rate({metric}{{{engines},role="{role}"{more}}}[10m]))'

    by_source = "vllm:prompt_tokens_by_source_total"
    computed = f"{tokens(by_source, 'decode', ',source=' + json.dumps('local_compute'))} / {tokens(by_source, 'decode')}"
    total = "vllm:prompt_tokens_total"
    unseen = f"1 - {tokens(total, 'prefill')} / {tokens(total, 'decode')}"
    return f"{computed} > 0.5 or {unseen} > 0.5"


def _failing(asked: str, thresholds: Thresholds) -> list[_Alert]:
    """What the router says of requests for the model; not which deployment a route's weights sent them to."""

    def share(metric: str, failed: str) -> str:
        return f"sum(rate({metric}{{{asked},{failed}}}[5m])) / sum(rate({metric}{{{asked}}}[5m]))"

    requests = "kthena_router_requests_total"
    most = f"{thresholds.failed_requests:g}"
    of_phases = [
        _Alert(
            f"PD{role.capitalize()}Fails",
            "warning",
            f"{share(f'kthena_router_request_{role}_duration_seconds_count', _equal(status_code='500'))} > {most}",
            "5m",
            f"{{{{ $value | humanizePercentage }}}} of the requests to {role} fail",
        )
        for role in ROLES
    ]
    return [
        _Alert(
            "PDRequestsFail",
            "critical",
            f"{share(requests, FAILED)} > {most}",
            "5m",
            "{{ $value | humanizePercentage }} of the requests fail",
        ),
        _Alert(
            "PDRequestsLimited",
            "warning",
            f"{share(requests, _equal(status_code='429'))} > {most}",
            "10m",
            "{{ $value | humanizePercentage }} of the requests are over the route's rate limit",
        ),
        *of_phases,
    ]


def _asked(deployment: Deployment) -> str:
    """Matcher of the names by which clients ask for the deployment."""
    names = (deployment.model.served, *(deployment.model.lora.adapters if deployment.model.lora else ()))
    return f"model=~{_text('|'.join(map(re.escape, names)))}" if len(names) > 1 else _equal(model=names[0])


def _equal(**labels: str) -> str:
    return ",".join(f"{name}={_text(value)}" for name, value in labels.items())


def _text(value: str) -> str:
    """A string literal of PromQL, whose escapes are Go's."""
    return json.dumps(value, ensure_ascii=False)


def _rule(alert: _Alert, **where: str) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.for_,
        "labels": {"severity": alert.severity, **where},
        "annotations": {
            "summary": f"{'/'.join(where.values())}: {alert.summary}",
            "runbook": f"{_RUNBOOK}#{alert.name.lower()}",
        },
    }
