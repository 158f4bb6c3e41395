"""Monitoring and network policy on a real control plane; the operator that would act on them is not there, only its kinds are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cli import diff
from tests.cluster.conftest import DEPLOYMENT, Cluster, uids
from tests.render.promql import selected
from tests.render.reach import Pod, reaches
from tests.render.test_monitoring import ENGINE_METRICS, expressions, series_of

MONITORING = "cluster.monitoring"
OPERATOR = {"podmonitors": "PodMonitor", "servicemonitors": "ServiceMonitor", "prometheusrules": "PrometheusRule"}
OURS = ("PodMonitor", "PrometheusRule")


def crd(plural: str, kind: str) -> dict[str, Any]:
    """A kind of the Prometheus operator that takes any spec: what it may be, tests/render looks at."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, "singular": kind.lower()},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                }
            ],
        },
    }


@pytest.fixture
def with_operator(converged: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    file = tmp_path_factory.mktemp("operator") / "crds.json"
    items = [crd(plural, kind) for plural, kind in OPERATOR.items()]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    converged.kubectl("apply", "--filename", str(file))
    converged.kubectl("wait", "--for=condition=Established", "--timeout=30s", "--filename", str(file))
    yield converged
    converged.reset()
    converged.kubectl("delete", "--filename", str(file))


def exported(address: str) -> set[str]:
    """Names of the series that are served there."""
    text = httpx.get(f"{address}/metrics", timeout=10).raise_for_status().text
    return set(re.findall(r"^([a-zA-Z_:][\w:]*)", text, re.MULTILINE))


def test_router_and_engines_export_what_alerts_and_dashboard_ask_for(converged: Cluster) -> None:
    converged.ask(stream=True)
    asked = {found.metric for expression in expressions() for found in selected(expression)}
    of_router = {metric for metric in asked if metric.startswith("kthena_router")}
    only_when_limited = {"kthena_router_rate_limit_exceeded_total"}
    assert of_router - only_when_limited - exported(f"http://127.0.0.1:{converged.router_port}") == set()
    simulated = {name: metric["kind"] for name, metric in ENGINE_METRICS.items() if metric.get("simulated", True)}
    wanted = {series for name, kind in simulated.items() for series in series_of(name, kind)}
    assert len(simulated) > len(ENGINE_METRICS) / 2
    addresses = [f"http://{pod['status']['podIP']}:7100" for pod in converged.pods().values()]
    of_engines = set().union(*map(exported, addresses))
    assert len(addresses) == 2
    assert wanted - of_engines == set()


def test_without_the_operators_kinds_nothing_is_changed_and_the_message_says_what_is_missing(converged: Cluster) -> None:
    before = uids(converged.pods())
    converged.configure(f"{MONITORING}.interval", "30s")
    converged.configure("cluster.preflight", "false")
    refused = converged.up(check=False)
    assert refused.returncode != 0
    assert "PodMonitor deepseekv4-pd: the cluster has no CRDs of the Prometheus operator" in refused.stdout
    assert "install its CRDs, or leave cluster.monitoring out" in refused.stdout
    assert "Traceback" not in refused.stdout + refused.stderr
    assert uids(converged.pods()) == before


def test_monitors_alerts_and_dashboard_come_without_touching_a_pod_and_go_again(
    with_operator: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = with_operator
    monkeypatch.setenv("KUBECONFIG", str(cluster.state.kubeconfig))
    cluster.config_file.with_name("Pulumi.yaml").write_text("name: kthena-pd\n")
    before = uids(cluster.pods())
    cluster.configure(f"{MONITORING}.interval", "30s")

    def told() -> tuple[int, str]:
        code = diff.run(cluster.config_file, "text")
        return code, capsys.readouterr().out

    code, text = told()
    assert code == diff.CHANGES
    assert "no pod is touched" in text
    assert "PodMonitor deepseekv4-pd, PrometheusRule deepseekv4-pd" in text
    cluster.up()
    found = cluster.objects("podmonitors,prometheusrules", "--all-namespaces")
    names = {"deepseekv4-pd", "kthena-router"}
    assert {(item["kind"], item["metadata"]["name"]) for item in found} == {(kind, name) for kind in OURS for name in names}
    assert uids(cluster.pods()) == before
    assert told()[0] == diff.NOTHING
    cluster.up("--expect-no-changes")

    cluster.declare()  # without monitoring again
    code, text = told()
    assert code == diff.CHANGES
    assert "- PodMonitor deepseekv4-pd" in text
    assert "kthena-router" not in text
    cluster.up()
    assert cluster.objects("podmonitors,prometheusrules", "--all-namespaces") == []
    assert uids(cluster.pods()) == before


def test_the_policy_lets_the_real_router_in_to_the_real_pods_and_no_other_pod_of_the_cluster(converged: Cluster) -> None:
    converged.configure("cluster.networkPolicy.namespaces[0]", "monitoring")
    converged.configure(f"deployments.{DEPLOYMENT}.hostNetwork", "false")
    converged.up()
    policies = converged.objects("networkpolicies", "--all-namespaces")
    assert [item["metadata"]["name"] for item in policies] == [DEPLOYMENT]
    engines = list(converged.settled_pods().values())
    assert len(engines) == 2

    def seen(pod: dict[str, Any]) -> Pod:
        return Pod(pod["metadata"]["namespace"], pod["metadata"].get("labels", {}))

    for engine in map(seen, engines):
        reaching = {
            pod["metadata"]["name"]
            for pod in converged.objects("pods", "--all-namespaces")
            if reaches(seen(pod), engine, 7100, policies)
        }
        of_router = {name for name in reaching if name.startswith("kthena-router")}
        assert len(of_router) == 1
        assert reaching == of_router | {pod["metadata"]["name"] for pod in engines}
    converged.ask()
