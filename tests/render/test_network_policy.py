"""Who reaches the engines of a deployment whose cluster has a network policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from render import RenderedDeployment, render_deployment
from rules import read
from tests import stacks
from tests.render.reach import Pod, reaches

NAME = "deepseekv4-pd"
CLUSTER: dict[str, Any] = {"npu": {"family": "A3", "devicePlugin": "cce"}, "scheduler": "volcano"}
ENGINE, METRICS, SIDE_CHANNEL, SIDECAR = 7100, 9090, 36017, 8100
CANARY = {"strategy": "Canary", "candidate": {"decode": {"env": {"CANDIDATE": "yes"}}}}

ROUTER = Pod("kthena-system", {"app.kubernetes.io/component": "kthena-router", "app.kubernetes.io/name": "kthena"})
CONTROLLER = Pod("kthena-system", {"app.kubernetes.io/component": "kthena-controller-manager"})
"""labels as the chart of Kthena v1.0.0 gives them"""
PROMETHEUS = Pod("monitoring", {"app.kubernetes.io/name": "prometheus"})
STRANGERS = {
    "of the same namespace": Pod("default", {"app": "web"}),
    "that poses as the router in another namespace": Pod("default", dict(ROUTER.labels)),
    "of the control plane's namespace": Pod("kthena-system", {"app": "redis"}),
    "of another namespace": Pod("web", {}),
    "engine of another deployment": Pod("default", {"modelserving.volcano.sh/name": "other"}),
    "engine of the same name in another namespace": Pod("other", {"modelserving.volcano.sh/name": NAME}),
}


def rendered(policy: dict[str, Any] | None = None, /, **declared: Any) -> RenderedDeployment:
    stack = read(stacks.config(cluster=CLUSTER | {"networkPolicy": policy or {}}, **({"hostNetwork": False} | declared)))
    return render_deployment(stack.deployments[NAME], stack.cluster)


def policies(deployment: RenderedDeployment) -> list[dict[str, Any]]:
    return [item for item in deployment.objects if item["kind"] == "NetworkPolicy"]


def engines(deployment: RenderedDeployment) -> list[dict[str, Pod]]:
    """A prefill and a decode pod of each version, with labels that Kthena v1.0.0 gives them."""
    return [
        {
            role["name"]: Pod(
                serving.model_serving["metadata"]["namespace"],
                {
                    "modelserving.volcano.sh/name": serving.name,
                    "modelserving.volcano.sh/group-name": f"{serving.name}-0",
                    "modelserving.volcano.sh/role": role["name"],
                },
            )
            for role in serving.model_serving["spec"]["template"]["roles"]
        }
        for serving in deployment.servings
    ]


@pytest.mark.parametrize("declared", [{}, {"rollout": CANARY}, {"namespace": "serving"}], ids=["one", "canary", "namespace"])
def test_the_router_reaches_the_engines_port_of_every_version_and_role_and_no_other_port(declared: dict[str, Any]) -> None:
    deployment = rendered(**declared)
    assert len(policies(deployment)) == len(engines(deployment)) == (2 if "rollout" in declared else 1)
    for pods in engines(deployment):
        for pod in pods.values():
            assert [reaches(ROUTER, pod, port, policies(deployment)) for port in (ENGINE, SIDE_CHANNEL, SIDECAR)] == [
                True,
                False,
                False,
            ]


@pytest.mark.parametrize("who", STRANGERS)
def test_a_stranger_reaches_no_port_of_an_engine(who: str) -> None:
    deployment = rendered(runtimeSidecar=True)
    for pod in engines(deployment)[0].values():
        assert not any(reaches(STRANGERS[who], pod, port, policies(deployment)) for port in (ENGINE, SIDE_CHANNEL, SIDECAR))


def test_prefill_and_decode_reach_each_other_on_all_ports_and_not_those_of_another_version() -> None:
    deployment = rendered(rollout=CANARY)
    stable, candidate = engines(deployment)
    for pods in (stable, candidate):
        for source, target in (("prefill", "decode"), ("decode", "prefill"), ("decode", "decode")):
            assert reaches(pods[source], pods[target], SIDE_CHANNEL, policies(deployment))
    assert not reaches(stable["prefill"], candidate["decode"], SIDE_CHANNEL, policies(deployment))
    assert not reaches(candidate["decode"], stable["prefill"], ENGINE, policies(deployment))


def test_engines_around_one_pool_reach_each_other_whatever_deployment_they_are_of() -> None:
    deployment = rendered(kvTransfer={"pool": {"master": "mooncake-master.kv:50088"}})
    pod = engines(deployment)[0]["decode"]
    other = Pod("elsewhere", {"modelserving.volcano.sh/name": "other"})
    assert reaches(other, pod, SIDE_CHANNEL, policies(deployment))
    assert not reaches(STRANGERS["of the same namespace"], pod, ENGINE, policies(deployment))


def test_the_controller_reaches_what_it_scales_by_and_nothing_without_autoscaling() -> None:
    def reached(**declared: Any) -> list[int]:
        deployment = rendered(**declared)
        pod = engines(deployment)[0]["decode"]
        return [port for port in (ENGINE, METRICS, SIDECAR) if reaches(CONTROLLER, pod, port, policies(deployment))]

    waiting = "vllm:num_requests_waiting"
    scaling = {"min": 1, "max": 2, "metrics": {waiting: "10"}}
    assert reached() == []
    assert reached(autoscaling={"groups": scaling}) == [ENGINE]
    other_port = {"metricSources": {waiting: {"pod": {"uri": "/metrics", "port": METRICS}}}}
    assert reached(autoscaling={"decode": scaling | other_port}) == [METRICS]
    by_prometheus = {
        "prometheus": {"serverURL": "http://prometheus:9090", "query": "sum(kthena_router_active_downstream_requests)"}
    }
    assert reached(autoscaling={"decode": scaling | {"metricSources": {waiting: by_prometheus}}}) == []


def test_a_namespace_that_is_named_reaches_the_engines_port_only() -> None:
    pod = engines(deployment := rendered({"namespaces": ["monitoring"]}))[0]["prefill"]
    assert reaches(PROMETHEUS, pod, ENGINE, policies(deployment))
    assert not reaches(PROMETHEUS, pod, SIDE_CHANNEL, policies(deployment))
    assert not reaches(PROMETHEUS, pod, ENGINE, policies(rendered()))


def test_the_router_is_let_in_from_the_namespace_that_it_runs_in() -> None:
    stack = read(
        stacks.config(
            cluster=CLUSTER | {"networkPolicy": {}, "controlPlane": {"install": False, "namespace": "models"}}, hostNetwork=False
        )
    )
    deployment = render_deployment(stack.deployments[NAME], stack.cluster)
    pod = engines(deployment)[0]["decode"]
    assert reaches(Pod("models", ROUTER.labels), pod, ENGINE, policies(deployment))
    assert not reaches(ROUTER, pod, ENGINE, policies(deployment))


def test_pods_on_their_hosts_network_have_no_policy_and_a_cluster_without_one_has_none() -> None:
    assert policies(rendered(hostNetwork=True)) == []
    stack = read(stacks.config(cluster=CLUSTER, hostNetwork=False))
    assert policies(render_deployment(stack.deployments[NAME], stack.cluster)) == []


def test_a_policy_is_there_before_the_pods_that_it_is_about() -> None:
    kinds = [item["kind"] for item in rendered().objects]
    assert kinds.index("NetworkPolicy") < kinds.index("ModelServing")


@pytest.mark.parametrize(("component", "chart"), [("kthena-router", "networking"), ("kthena-controller-manager", "workload")])
def test_the_charts_own_pods_have_the_labels_by_which_they_are_let_in(kthena_module: Path, component: str, chart: str) -> None:
    template = kthena_module / f"charts/kthena/charts/{chart}/templates/{component}/component/deployment.yaml"
    pod_template = template.read_text().partition("\n  template:")[2].partition("\n    spec:")[0]
    assert f"app.kubernetes.io/component: {component}" in pod_template
