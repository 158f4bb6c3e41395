"""The Grafana dashboard of P/D serving: Grafana's classic JSON model.

Source of the model: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/. Metrics are
those of :mod:`render.alerts`, by the labels of :mod:`render.monitoring`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from render.alerts import FAILED

_SCHEMA_VERSION = 39
"""of Grafana 11, which newer ones migrate"""
_WIDTH = 24
"""columns of a dashboard"""
_HEIGHT, _STAT_HEIGHT = 8, 4
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

_ENGINES = 'namespace=~"$namespace",deployment=~"$deployment",role=~"$role"'
_BOTH_ROLES = 'namespace=~"$namespace",deployment=~"$deployment"'
_REQUESTS = 'model=~"$model"'


@dataclass(frozen=True)
class _Panel:
    title: str
    queries: dict[str, str]
    """legend -> PromQL"""
    unit: str
    """of Grafana's: s, short, percentunit, reqps, ..."""
    description: str
    kind: Literal["timeseries", "stat"] = "timeseries"
    stacked: bool = False
    most: float | None = None
    """end of the axis where the unit has one"""
    thresholds: tuple[float, ...] = ()
    """from where on a stat is yellow, then red; without any it has no colour"""


def dashboard() -> dict[str, Any]:
    """The whole dashboard; which data source, namespaces, deployments and roles is chosen in Grafana."""
    return {
        "uid": "kthena-pd",
        "title": "Kthena P/D serving",
        "description": "Prefill and decode engines (vLLM) and the router of Kthena",
        "tags": ["kthena", "vllm"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "links": [],
        "panels": list(_laid_out()),
    }


def _variables() -> list[dict[str, Any]]:
    engines = 'up{role=~"prefill|decode",deployment!=""}'
    here = 'up{namespace=~"$namespace",deployment=~"$deployment"}'
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1, "hide": 0},
        _variable("namespace", "Namespace", f"label_values({engines}, namespace)"),
        _variable("deployment", "Deployment", 'label_values(up{namespace=~"$namespace",deployment!=""}, deployment)'),
        _variable("role", "Role", f"label_values({here}, role)"),
        # requests are counted by model only: that of the chosen deployments
        _variable("model", "Model", f"label_values({here}, model)"),
    ]


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"variable-{name}"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "hide": 0,
    }


def _rate(metric: str, matchers: str) -> str:
    return f"rate({metric}{{{matchers}}}[$__rate_interval])"


def _quantiles(histogram: str, matchers: str, by: str = "") -> dict[str, str]:
    """Median and 99th percentile; ``by``: labels that stay apart."""
    labels = ", ".join(filter(None, ("le", by)))
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", ") if label)
    return {
        f"{legend} {name}".strip(): f"histogram_quantile({share}, sum by ({labels}) ({_rate(f'{histogram}_bucket', matchers)}))"
        for name, share in (("p50", "0.5"), ("p99", "0.99"))
    }


def _mean(histogram: str, matchers: str) -> str:
    return f"sum({_rate(f'{histogram}_sum', matchers)}) / sum({_rate(f'{histogram}_count', matchers)})"


def _role(role: str) -> str:
    return f'{_BOTH_ROLES},role="{role}"'


_TTFT, _ITL = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
_TOKENS = "kthena_router_tokens_total"
_FAILED, _PHASE_FAILED = f"{_REQUESTS},{FAILED}", f'{_REQUESTS},status_code="500"'
_COMPUTED = f'{_role("decode")},source="local_compute"'
_PAIRED = " and on (deployment, group) ".join(
    f"count by (deployment, group) (up{{{_role(role)}}} == 1)" for role in ("prefill", "decode")
)

_STATS = (
    _Panel(
        "Pairs",
        {"pairs": f"count({_PAIRED}) or vector(0)"},
        "short",
        "groups that have both a prefill and a decode engine which answers: the router pairs within a group only",
        "stat",
    ),
    _Panel(
        "Requests", {"requests": f"sum({_rate('kthena_router_requests_total', _REQUESTS)})"}, "reqps", "at the router", "stat"
    ),
    _Panel(
        "Failed requests",
        {
            "failed": f"(sum({_rate('kthena_router_requests_total', _FAILED)}) or vector(0))"
            f" / sum({_rate('kthena_router_requests_total', _REQUESTS)})"
        },
        "percentunit",
        "400 and 404 are the router's answers when it finds no pair; what an engine refuses it makes a 500",
        "stat",
        thresholds=(0.01, 0.05),
    ),
    _Panel(
        "Time to first token, mean",
        {"mean": f"{_mean(_TTFT, _role('prefill'))} + {_mean(_TTFT, _role('decode'))}"},
        "s",
        "prefill's share and decode's, which has the transfer of the KV cache in it; without the router's own time",
        "stat",
    ),
    _Panel(
        "Prompts that decode computes",
        {
            "computed": f"sum({_rate('vllm:prompt_tokens_by_source_total', _COMPUTED)})"
            f" / sum({_rate('vllm:prompt_tokens_by_source_total', _role('decode'))})"
        },
        "percentunit",
        "share of prompt tokens for which no KV cache came from prefill: should be next to nothing. Needs vLLM 0.18.1 or newer",
        "stat",
        thresholds=(0.2, 0.5),
    ),
    _Panel(
        "Requests in flight", {"requests": "sum(kthena_router_active_requests)"}, "short", "at all routers, of all models", "stat"
    ),
)

_ROWS: dict[str, tuple[_Panel, ...]] = {
    "Latency": (
        _Panel(
            "Time to first token",
            _quantiles(_TTFT, _ENGINES, "deployment, role"),
            "s",
            "of prefill: waiting and computing the prompt; of decode: taking the KV cache over. A client waits for both",
        ),
        _Panel("Time between tokens", _quantiles(_ITL, _role("decode"), "deployment"), "s", "of decode"),
        _Panel(
            "Whole requests at the router",
            _quantiles("kthena_router_request_duration_seconds", _REQUESTS, "model"),
            "s",
            "buckets end at a minute: a longer request is shown as one",
        ),
        _Panel(
            "Prefill and decode at the router",
            {
                f"{role} {legend}": query
                for role in ("prefill", "decode")
                for legend, query in _quantiles(f"kthena_router_request_{role}_duration_seconds", _REQUESTS).items()
            },
            "s",
            "how long each phase of a request takes; buckets end at a minute",
        ),
    ),
    "Load": (
        _Panel(
            "Requests running",
            {"{{instance}}": f"sum by (instance) (vllm:num_requests_running{{{_ENGINES}}})"},
            "short",
            "in each engine, all of its data-parallel ranks together",
            stacked=True,
        ),
        _Panel(
            "Requests waiting",
            {"{{instance}}": f"sum by (instance) (vllm:num_requests_waiting{{{_ENGINES}}})"},
            "short",
            "in each engine: what waits for prefill needs more prefill, what waits for decode more decode",
            stacked=True,
        ),
        _Panel(
            "KV cache in use",
            {"{{instance}}": f"max by (instance) (vllm:kv_cache_usage_perc{{{_ENGINES}}})"},
            "percentunit",
            "of the fullest rank; at its end requests are put back and computed again",
            most=1,
        ),
        _Panel(
            "Prefix cache hits",
            {
                "{{deployment}} {{role}}": f"sum by (deployment, role) ({_rate('vllm:prefix_cache_hits_total', _ENGINES)})"
                f" / sum by (deployment, role) ({_rate('vllm:prefix_cache_queries_total', _ENGINES)})"
            },
            "percentunit",
            "share of prompt tokens that were in the engine's own cache",
            most=1,
        ),
    ),
    "Tokens": (
        _Panel(
            "Prompt tokens by role",
            {"{{deployment}} {{role}}": f"sum by (deployment, role) ({_rate('vllm:prompt_tokens_total', _ENGINES)})"},
            "short",
            "a second; both roles see each prompt, so the lines lie on each other. Decode above prefill: requests went around it",
        ),
        _Panel(
            "Where prompts come from, decode",
            {
                "{{deployment}} {{source}}": "sum by (deployment, source) "
                f"({_rate('vllm:prompt_tokens_by_source_total', _role('decode'))})"
            },
            "short",
            "a second; external_kv_transfer is what prefill computed, local_compute what decode computed itself. "
            "Needs vLLM 0.18.1 or newer",
            stacked=True,
        ),
        _Panel(
            "Generated tokens",
            {"{{deployment}}": f"sum by (deployment) ({_rate('vllm:generation_tokens_total', _role('decode'))})"},
            "short",
            "a second, of decode",
        ),
        _Panel(
            "Tokens at the router",
            {"{{model}} {{token_type}}": f"sum by (model, token_type) ({_rate(_TOKENS, _REQUESTS)})"},
            "short",
            "a second; those of prompts are the router's estimate",
        ),
    ),
    "Errors": (
        _Panel(
            "Requests by status",
            {"{{status_code}}": f"sum by (status_code) ({_rate('kthena_router_requests_total', _REQUESTS)})"},
            "reqps",
            "of the router's answers",
            stacked=True,
        ),
        _Panel(
            "Failed phases",
            {
                role: f"sum({_rate(f'kthena_router_request_{role}_duration_seconds_count', _PHASE_FAILED)})"
                for role in ("prefill", "decode")
            },
            "reqps",
            "attempts: the router tries up to five pairs",
        ),
        _Panel(
            "Over the rate limit",
            {"{{limit_type}}": f"sum by (limit_type) ({_rate('kthena_router_rate_limit_exceeded_total', _REQUESTS)})"},
            "reqps",
            "answered with 429",
        ),
        _Panel(
            "Engines that answer",
            {"{{deployment}} {{role}}": f"sum by (deployment, role) (up{{{_ENGINES}}})"},
            "short",
            "to Prometheus: a model that is loading does not yet",
        ),
    ),
}


def _laid_out() -> Iterator[dict[str, Any]]:
    """Panels with their places: one line of stats, then two panels beside each other below the title of each row."""
    number = 0
    width = _WIDTH // len(_STATS)
    for place, panel in enumerate(_STATS):
        number += 1
        yield _panel(panel, number, place * width, 0, width, _STAT_HEIGHT)
    top = _STAT_HEIGHT
    for title, panels in _ROWS.items():
        number += 1
        grid = {"x": 0, "y": top, "w": _WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": grid, "panels": []}
        top += 1
        for place, panel in enumerate(panels):
            number += 1
            yield _panel(panel, number, place % 2 * _WIDTH // 2, top + place // 2 * _HEIGHT, _WIDTH // 2, _HEIGHT)
        top += (len(panels) + 1) // 2 * _HEIGHT


def _panel(panel: _Panel, number: int, left: int, top: int, width: int, height: int) -> dict[str, Any]:  # noqa: PLR0913, PLR0917
    is_stat = panel.kind == "stat"
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": {"x": left, "y": top, "w": width, "h": height},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query, "legendFormat": legend, "range": True}
            for index, (legend, query) in enumerate(panel.queries.items())
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value" if panel.thresholds else "none"}
        if is_stat
        else {
            "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["mean", "lastNotNull"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def _defaults(panel: _Panel) -> dict[str, Any]:
    steps = zip(("yellow", "red"), panel.thresholds, strict=False)
    colours = [{"color": "green", "value": None}, *({"color": colour, "value": value} for colour, value in steps)]
    shared = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": colours}}
    if panel.kind == "stat":
        return shared
    return {
        **shared,
        **({"max": panel.most} if panel.most is not None else {}),
        "color": {"mode": "palette-classic"},
        "custom": {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 20 if panel.stacked else 0,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        },
    }
