"""Monitors, alerts and dashboard: that they ask for what is there, and find it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from models.cluster import Cluster
from models.deployment import Deployment
from models.role import ROLES
from render import RenderedDeployment, render_deployment, render_monitoring
from rules import read
from tests import stacks
from tests.render.promql import Selected, selected

NAME = "deepseekv4-pd"
CLUSTER: dict[str, Any] = {"npu": {"family": "A3", "devicePlugin": "cce"}, "scheduler": "volcano"}
ENGINE_METRICS: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "engine_metrics.yaml").read_text())
TARGET_LABELS = {"namespace", "deployment", "model", "role", "group", "instance", "container", "endpoint"}
"""of this program's monitors and the Prometheus operator's own"""
METRIC_LABELS = {"le", "source", "status_code", "error_type", "token_type", "limit_type"}


def declared(monitoring: dict[str, Any] | None = None, /, **deployment: Any) -> tuple[Deployment, Cluster]:
    stack = read(stacks.config(cluster=CLUSTER | {"monitoring": monitoring or {}}, **deployment))
    return stack.deployments[NAME], stack.cluster


def rendered(monitoring: dict[str, Any] | None = None, /, **deployment: Any) -> RenderedDeployment:
    return render_deployment(*declared(monitoring, **deployment))


def alerts(monitoring: dict[str, Any] | None = None, /, **deployment: Any) -> dict[str, dict[str, Any]]:
    found = rendered(monitoring, **deployment).prometheus_rule
    assert found
    return {rule["alert"]: rule for group in found["spec"]["groups"] for rule in group["rules"]}


def shared(kind: str, monitoring: dict[str, Any] | None = None, **cluster: Any) -> dict[str, Any]:
    stack = read(stacks.config(cluster=CLUSTER | {"monitoring": monitoring or {}} | cluster))
    return next(item for item in render_monitoring(stack.cluster) if item["kind"] == kind)


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shared("ConfigMap")["data"]["kthena-pd.json"])
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    for found in ({}, {"groups": 2, "ratio": "2P1D"}, {"model": {"lora": {"adapters": {"la.w": "a/law"}}}}):
        yield from (rule["expr"] for rule in alerts(**found).values())
    yield from (rule["expr"] for group in shared("PrometheusRule")["spec"]["groups"] for rule in group["rules"])
    yield from (target["expr"] for panel in panels() for target in panel["targets"])


def exported_by_router(kthena_module: Path) -> set[str]:
    """Series of the router, by its source."""
    source = (kthena_module / "pkg/kthena-router/metrics/metrics.go").read_text()
    found = re.findall(r'prometheus\.(Counter|Gauge|Histogram)Opts\{\s*Name:\s*"(\w+)"', source)
    return {series for kind, name in found for series in series_of(name, kind.lower())}


def series_of(name: str, kind: str) -> set[str]:
    return {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}


def test_every_expression_asks_for_series_that_the_router_or_an_engine_exports(kthena_module: Path) -> None:
    exported = {"up", *exported_by_router(kthena_module)}
    assert "kthena_router_requests_total" in exported
    exported |= {series for name, metric in ENGINE_METRICS.items() for series in series_of(name, metric["kind"])}
    asked = {found.metric for expression in expressions() for found in selected(expression)}
    assert asked - exported == set()
    assert {name for name in ENGINE_METRICS if not asked & series_of(name, ENGINE_METRICS[name]["kind"])} == set()


def test_what_the_router_reads_of_engines_itself_is_named_as_it_reads_it(kthena_module: Path) -> None:
    source = (kthena_module / "pkg/kthena-router/backend/vllm/metrics.go").read_text()
    assert set(re.findall(r'"(vllm:\w+)"', source)) <= ENGINE_METRICS.keys()


def test_every_selector_matches_by_labels_that_targets_or_metrics_have() -> None:
    labels = {label for expression in expressions() for found in selected(expression) for label, _ in found.matchers}
    assert labels - TARGET_LABELS - METRIC_LABELS == set()


def test_no_expression_adds_up_what_other_deployments_do() -> None:
    for name, rule in alerts().items():
        for found in selected(rule["expr"]):
            chosen = set(found.matchers)
            own = {("model", "deepseek_v4")} if found.metric.startswith("kthena_") else {("deployment", NAME)}
            assert own <= chosen, name


# What Prometheus does with a target of the monitor: action replace of its relabel_config, with the default regex.
def relabelled(target: Mapping[str, str], relabelings: list[dict[str, Any]]) -> dict[str, str]:
    labels = dict(target)
    for step in relabelings:
        assert step["action"] == "replace"
        value = ";".join(labels.get(source, "") for source in step.get("sourceLabels", ()))
        replacement = step.get("replacement", "$1").replace("$$", "\0").replace("$1", value).replace("\0", "$")
        labels[step["targetLabel"]] = replacement
    return {name: value for name, value in labels.items() if not name.startswith("__")}


def pods_of(serving: dict[str, Any]) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Labels that Kthena v1.0.0 gives the first group's pods, and their specs."""
    name = serving["metadata"]["name"]
    for role in serving["spec"]["template"]["roles"]:
        labels = {
            "modelserving.volcano.sh/name": name,
            "modelserving.volcano.sh/group-name": f"{name}-0",
            "modelserving.volcano.sh/role": role["name"],
        }
        yield labels | {"modelserving.volcano.sh/entry": "true"}, role["entryTemplate"]["spec"]
        if "workerTemplate" in role:
            yield labels, role["workerTemplate"]["spec"]


@pytest.mark.parametrize("rollout", [None, {"strategy": "Canary", "candidate": {"decode": {"env": {"CANDIDATE": "yes"}}}}])
def test_each_engine_is_scraped_once_where_it_listens_and_told_apart_by_role_group_and_deployment(
    rollout: dict[str, Any] | None,
) -> None:
    found = rendered(**({"rollout": rollout} if rollout else {}), decode={"pods": 2, "parallelism": {"dp": 16, "tp": 2}})
    monitors = [serving.pod_monitor for serving in found.servings if serving.pod_monitor]
    assert len(monitors) == len(found.servings) == (2 if rollout else 1)
    for serving in found.servings:
        for labels, spec in pods_of(serving.model_serving):
            about = [one for one in monitors if one["spec"]["selector"]["matchLabels"].items() <= labels.items()]
            if "modelserving.volcano.sh/entry" not in labels:
                assert about == []
                continue
            ((endpoint, port),) = [
                (endpoint, port["containerPort"])
                for monitor in about
                for endpoint in monitor["spec"]["podMetricsEndpoints"]
                for port in spec["containers"][0]["ports"]
                if port["name"] == endpoint["port"]
            ]
            assert (endpoint["path"], port) == ("/metrics", 7100)
            discovered = {
                f"__meta_kubernetes_pod_label_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}": value for name, value in labels.items()
            }
            target = relabelled(discovered | {"__meta_kubernetes_pod_name": "pod-0"}, endpoint["relabelings"])
            assert target == {
                "deployment": NAME,
                "model": "deepseek_v4",
                "role": labels["modelserving.volcano.sh/role"],
                "group": labels["modelserving.volcano.sh/group-name"],
                "instance": "pod-0",
            }


def test_a_model_name_with_a_dollar_is_a_label_as_it_stands() -> None:
    monitor = rendered(model={"served": "a$1b"}).stable.pod_monitor
    assert monitor
    assert relabelled({}, monitor["spec"]["podMetricsEndpoints"][0]["relabelings"])["model"] == "a$1b"


def test_operator_and_grafana_find_their_objects_by_the_declared_labels() -> None:
    monitoring = {"labels": {"release": "prometheus"}, "dashboard": {"grafana": "yes"}, "dashboardNamespace": "grafana"}
    found = rendered(monitoring)
    for item in (found.stable.pod_monitor, found.prometheus_rule, *(shared(kind, monitoring) for kind in ("PodMonitor",))):
        assert item
        assert item["metadata"]["labels"]["release"] == "prometheus"
        assert item["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "kthena-pd"
    ours = shared("ConfigMap", monitoring)["metadata"]
    assert (ours["namespace"], ours["labels"]["grafana"]) == ("grafana", "yes")


def test_a_router_with_tls_is_scraped_by_https() -> None:
    def endpoint(**control_plane: Any) -> Any:
        return shared("PodMonitor", controlPlane=control_plane)["spec"]["podMetricsEndpoints"][0]

    assert "scheme" not in endpoint()
    assert endpoint(router={"tls": {"secret": "router-tls"}})["scheme"] == "https"


def test_the_router_is_watched_too_where_it_is_somebody_elses_unless_another_stack_does() -> None:
    kinds = ["PodMonitor", "PrometheusRule", "ConfigMap"]
    for control_plane, monitoring, expected in (
        ({"install": False}, {}, kinds),
        ({}, {"alerts": False}, ["PodMonitor", "ConfigMap"]),
        ({}, {"dashboard": None}, ["PodMonitor", "PrometheusRule"]),
        ({}, {"router": False}, []),
    ):
        stack = read(stacks.config(cluster=CLUSTER | {"controlPlane": control_plane, "monitoring": monitoring}))
        assert [item["kind"] for item in render_monitoring(stack.cluster)] == expected
    assert render_monitoring(read(stacks.config(cluster=CLUSTER)).cluster) == ()


@pytest.mark.parametrize(("interval", "milliseconds"), [("15s", "15000ms"), ("1m30s", "90000ms"), ("0.5s", "500ms")])
def test_the_interval_is_written_as_prometheus_takes_it(interval: str, milliseconds: str) -> None:
    monitor = rendered({"interval": interval}).stable.pod_monitor
    assert monitor
    assert monitor["spec"]["podMetricsEndpoints"][0]["interval"] == milliseconds


def least(expression: str) -> int:
    return int(expression.rpartition("< ")[2])


def test_missing_pairs_and_instances_are_counted_against_what_is_declared() -> None:
    found = alerts(groups=2, ratio="2P1D")
    assert least(found["PDPairMissing"]["expr"]) == 2
    assert least(found["PDInstanceMissing"]["expr"]) == 4
    assert {found.matchers for found in selected(found["PDInstanceMissing"]["expr"])} == {
        (("deployment", NAME), ("namespace", "default"), ("role", "prefill"))
    }
    assert "PDInstanceMissing" not in alerts(groups=2)


def test_what_the_autoscaler_may_take_away_is_not_missing() -> None:
    metrics = {"metrics": {"vllm:num_requests_waiting": "10"}}
    groups = {"autoscaling": {"groups": {"min": 1, "max": 4, **metrics}}, "groups": 3}
    assert least(alerts(**groups)["PDPairMissing"]["expr"]) == 1
    prometheus = {"prometheus": {"serverURL": "http://prometheus:9090", "query": "sum(kthena_router_active_downstream_requests)"}}
    to_zero = {"min": 0, "max": 4, **metrics, "metricSources": {"vllm:num_requests_waiting": prometheus}}
    assert not {"PDNoPair", "PDPairMissing"} & alerts(autoscaling={"groups": to_zero}, groups=3).keys()


def test_a_candidates_groups_are_pairs_of_the_deployment_too() -> None:
    candidate = {"strategy": "Canary", "candidate": {"decode": {"env": {"CANDIDATE": "yes"}}, "groups": 2}}
    assert least(alerts(rollout=candidate)["PDPairMissing"]["expr"]) == 3


def test_thresholds_are_those_that_are_declared() -> None:
    thresholds = {"timeToFirstToken": "1500ms", "interTokenLatency": "50ms", "kvCacheUsage": 0.8, "failedRequests": 0.2}
    found = alerts({"thresholds": thresholds})
    ends = {
        name: found[name]["expr"].rpartition("> ")[2]
        for name in ("PDFirstTokenSlow", "PDTokensSlow", "PDKvCacheFull", "PDRequestsFail", "PDRequestsLimited", "PDDecodeFails")
    }
    assert list(ends.values()) == ["1.5", "0.05", "0.8", "0.2", "0.2", "0.2"]


def test_requests_for_adapters_are_requests_for_the_deployment() -> None:
    found = alerts(model={"lora": {"adapters": {"la.w": "adapters/law"}}})["PDRequestsFail"]
    (matcher,) = {matcher for one in selected(found["expr"]) for matcher in one.matchers if matcher[0] == "model"}
    assert [bool(re.fullmatch(matcher[1], name)) for name in ("deepseek_v4", "la.w", "lazw", "other")] == [
        True,
        True,
        False,
        False,
    ]


def test_a_deployment_without_a_route_has_no_alerts_of_requests() -> None:
    asked = {one.metric for rule in alerts(route={"enabled": False}).values() for one in selected(rule["expr"])}
    assert not any(metric.startswith("kthena_router") for metric in asked)


def test_every_alert_says_how_bad_it_is_and_has_a_section_in_the_runbook() -> None:
    text = (stacks.ROOT / "docs/monitoring.md").read_text()
    sections = re.findall(r"^### (\w+)$", text, re.MULTILINE)
    rules = [*alerts(groups=2, ratio="2P2D").values()]
    rules += [rule for group in shared("PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
    assert {rule["alert"] for rule in rules} == {*sections}
    assert {rule["labels"]["severity"] for rule in rules} == {"critical", "warning"}
    for rule in rules:
        assert rule["annotations"]["runbook"] == f"docs/monitoring.md#{rule['alert'].lower()}"


def test_the_panels_fill_the_dashboards_24_columns_without_lying_on_each_other() -> None:
    def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
        place = panel["gridPos"]
        across, down = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        return {(column, line) for column in across for line in down}

    covered = {panel["id"]: cells(panel) for panel in dashboard()["panels"]}
    assert len(covered) == len(dashboard()["panels"])
    assert [pair for pair in combinations(covered.values(), 2) if pair[0] & pair[1]] == []
    everything = set().union(*covered.values())
    assert {column for column, _ in everything} == set(range(24))
    assert len(everything) == 24 * (1 + max(line for _, line in everything))


def test_every_query_of_the_dashboard_uses_variables_that_it_has() -> None:
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]}
    text = json.dumps([dashboard()["panels"], dashboard()["templating"]])
    used = set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval", "__all"}
    assert used == variables


def test_every_variable_is_read_from_labels_of_the_engines_targets() -> None:
    for variable in dashboard()["templating"]["list"][1:]:
        series, _, label = variable["definition"].removeprefix("label_values(").removesuffix(")").rpartition(", ")
        (found,) = selected(series)
        assert found.metric == "up"
        assert {label, *(name for name, _ in found.matchers)} <= TARGET_LABELS


def test_every_panel_names_its_lines_by_labels_that_its_query_keeps() -> None:
    for panel in panels():
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                kept = re.search(rf"by \([^)]*\b{label}\b", target["expr"])
                assert kept, (panel["title"], label)


def test_roles_are_those_of_a_deployment() -> None:
    values = {
        value
        for expression in expressions()
        for found in selected(expression)
        for label, value in found.matchers
        if label == "role" and not value.startswith("$")
    }
    assert values == set(ROLES)


def test_what_is_not_an_expression_is_seen() -> None:
    assert selected("up{a='b'} == 1") == {Selected("up", (("a", "b"),))}
    with pytest.raises(ValueError, match="unclosed"):
        selected("sum(rate(up[5m])")
