"""What monitoring and network policy register, and in which order."""

from __future__ import annotations

from typing import Any

from components import Monitoring, MonitoringArgs, PDDeployment, PDDeploymentArgs, placeholder
from rules import read
from tests import stacks
from tests.component.conftest import Deploy, Recording

NAME = "deepseekv4-pd"
CLUSTER: dict[str, Any] = {"monitoring": {}, "networkPolicy": {"namespaces": ["monitoring"]}}


def deployment(deploy: Deploy, cluster: dict[str, Any] = CLUSTER, **declared: Any) -> Recording:
    def build() -> PDDeployment:
        stack = read(stacks.config(cluster=cluster, **({"hostNetwork": False} | declared)))
        return PDDeployment(NAME, PDDeploymentArgs(stack.deployments[NAME], stack.cluster, router_url="http://router:8080"))

    return deploy(build)[1]


def shared(deploy: Deploy, **cluster: Any) -> Recording:
    stack = read(stacks.config(cluster=CLUSTER | cluster))
    return deploy(lambda: Monitoring("monitoring", MonitoringArgs(stack.cluster)))[1]


def test_a_deployment_owns_what_watches_it_and_what_guards_it(deploy: Deploy) -> None:
    recording = deployment(deploy)
    component = recording.one("PDDeployment")
    for kind, api_version in (
        ("PodMonitor", "monitoring.coreos.com/v1"),
        ("PrometheusRule", "monitoring.coreos.com/v1"),
        ("NetworkPolicy", "networking.k8s.io/v1"),
    ):
        found = recording.one(kind)
        assert found.type == f"kubernetes:{api_version}:{kind}"
        assert found.parent == component.urn


def test_the_policy_comes_before_the_pods_and_the_alerts_after_everything(deploy: Deploy) -> None:
    recording = deployment(deploy)
    assert recording.one("NetworkPolicy").urn in recording.one("ModelServing").dependencies
    assert recording.one("ModelServing").urn in recording.one("PodMonitor").dependencies
    assert recording.one("ModelServer").urn in recording.one("PrometheusRule").dependencies


def test_each_version_has_a_monitor_and_a_policy_and_both_have_the_same_alerts(deploy: Deploy) -> None:
    recording = deployment(deploy, rollout={"strategy": "Canary", "candidate": {"decode": {"env": {"CANDIDATE": "yes"}}}})
    names = {item.inputs["metadata"]["name"] for item in recording.of_kind("ModelServing")}
    assert len(names) == 2
    for kind in ("PodMonitor", "NetworkPolicy"):
        assert {item.inputs["metadata"]["name"] for item in recording.of_kind(kind)} == names
    assert recording.one("PrometheusRule").inputs["metadata"]["name"] == NAME


def test_what_watches_and_guards_may_go_while_the_deployment_is_protected(deploy: Deploy) -> None:
    kinds = ("PodMonitor", "PrometheusRule", "NetworkPolicy")
    for recording in (deployment(deploy, CLUSTER | {"protect": True}), shared(deploy, protect=True)):
        found = [item.protect for kind in kinds for item in recording.of_kind(kind)]
        assert found
        assert not any(found)


def test_a_namespace_that_is_known_only_during_up_is_in_the_alerts_too(deploy: Deploy) -> None:
    def build() -> PDDeployment:
        stack = read(stacks.config(cluster=CLUSTER, hostNetwork=False, namespace=placeholder("later")))
        return PDDeployment(NAME, PDDeploymentArgs(stack.deployments[NAME], stack.cluster, router_url="http://router:8080"))

    rule = deploy(build)[1].one("PrometheusRule").inputs["spec"]["groups"][0]["rules"][0]
    assert 'namespace="later"' in rule["expr"]
    assert rule["labels"]["namespace"] == "later"


def test_the_router_is_watched_by_a_component_of_its_own(deploy: Deploy) -> None:
    recording = shared(deploy, controlPlane={"install": False})
    component = recording.one("Monitoring")
    assert component.type == "kthena-pd:platform:Monitoring"
    assert sorted(item.kind for item in recording.kubernetes_objects) == ["ConfigMap", "PodMonitor", "PrometheusRule"]
    assert {item.parent for item in recording.kubernetes_objects} == {component.urn}
