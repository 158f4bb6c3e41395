"""What a deployment's declaration makes of Kthena's objects, beyond the engines in the pods."""

from __future__ import annotations

import copy
from fractions import Fraction
from typing import Any

import pytest

from render import RenderedDeployment, render_deployment
from rules import read
from tests import stacks

ENTRY = {"modelserving.volcano.sh/entry": "true"}
WAITING = "vllm:num_requests_waiting"
KINDS = ("ModelServing", "ModelServer", "ModelRoute", "AutoscalingPolicy")
VOLCANO = {"npu": {"family": "A3", "devicePlugin": "cce"}, "scheduler": "volcano"}


def render(cluster: dict[str, Any] | None = None, others: dict[str, Any] | None = None, /, **declared: Any) -> RenderedDeployment:
    config = stacks.config(**declared, cluster={"npu": {"family": "A3", "devicePlugin": "cce"}, **(cluster or {})})
    config["deployments"].update(others or {})
    stack = read(config)
    return render_deployment(stack.deployments["deepseekv4-pd"], stack.cluster)


def roles(rendered: RenderedDeployment) -> dict[str, Any]:
    return {role["name"]: role for role in rendered.stable.model_serving["spec"]["template"]["roles"]}


def scaling(least: int, most: int, **more: Any) -> dict[str, Any]:
    return {"min": least, "max": most, "metrics": {WAITING: "10"}, **more}


def policy(**autoscaling: Any) -> Any:
    ratio = autoscaling.pop("declared", "1P1D")
    groups = autoscaling.get("groups", {}).get("min", 1)
    rendered = render(ratio=ratio, groups=groups, autoscaling=autoscaling).stable.autoscaling_policy
    assert rendered is not None
    return rendered["spec"]


def test_objects_are_created_from_the_scripts_to_the_route_and_what_is_not_declared_is_not_there() -> None:
    assert [item["kind"] for item in render().objects] == ["ConfigMap", "ConfigMap", "ModelServing", "ModelServer", "ModelRoute"]
    scaled = render(autoscaling={"groups": scaling(1, 2)})
    kinds = ["ConfigMap", "ConfigMap", "ModelServing", "ModelServer", "AutoscalingPolicy", "ModelRoute"]
    assert [item["kind"] for item in scaled.objects] == kinds


@pytest.mark.parametrize("pods", [1, 2])
def test_the_router_sends_requests_to_entry_pods_of_their_role_only(pods: int) -> None:
    selector = render(decode={"pods": pods}).stable.model_server["spec"]["workloadSelector"]
    assert selector["matchLabels"] == {"modelserving.volcano.sh/name": "deepseekv4-pd", **ENTRY}
    assert selector["pdGroup"]["prefillLabels"] == {"modelserving.volcano.sh/role": "prefill", **ENTRY}
    assert selector["pdGroup"]["decodeLabels"] == {"modelserving.volcano.sh/role": "decode", **ENTRY}


def test_a_role_of_several_pods_has_workers_and_one_of_a_single_pod_has_neither_workers_nor_their_template() -> None:
    found = roles(render(ratio="2P1D", decode={"pods": 4}))
    assert (found["decode"]["replicas"], found["decode"]["workerReplicas"]) == (1, 3)
    assert found["decode"]["workerTemplate"] != found["decode"]["entryTemplate"]
    assert (found["prefill"]["replicas"], found["prefill"]["workerReplicas"]) == (2, 0)
    assert "workerTemplate" not in found["prefill"]


def test_prefill_stands_before_decode_because_another_order_would_roll_every_pod() -> None:
    assert list(roles(render())) == ["prefill", "decode"]


def test_by_default_every_request_for_the_served_model_goes_to_the_deployment() -> None:
    route = render().model_route
    assert route is not None
    assert route["spec"] == {
        "modelName": "deepseek_v4",
        "rules": [{"name": "default", "targetModels": [{"modelServerName": "deepseekv4-pd", "weight": 100}]}],
    }


def test_declared_rules_share_requests_out_by_weight_and_keep_their_order() -> None:
    canary = {"canary": {"recipe": stacks.RECIPE, "route": {"enabled": False}}}
    first = {"match": {"headers": {"x-canary": {"exact": "1"}}}, "targets": {"canary": 1}}
    route = render(None, canary, route={"rules": [first, {"targets": {"deepseekv4-pd": 90, "canary": 10}}]}).model_route
    assert route is not None
    assert route["spec"]["rules"] == [
        {
            "modelMatch": {"headers": {"x-canary": {"exact": "1"}}},
            "targetModels": [{"modelServerName": "canary", "weight": 1}],
        },
        {"targetModels": [{"modelServerName": "deepseekv4-pd", "weight": 90}, {"modelServerName": "canary", "weight": 10}]},
    ]


def test_a_deployment_without_a_route_of_its_own_has_no_model_route() -> None:
    rendered = render(route={"enabled": False})
    assert rendered.model_route is None
    assert [item["kind"] for item in rendered.objects] == ["ConfigMap", "ConfigMap", "ModelServing", "ModelServer"]


def test_adapters_are_asked_for_by_their_names() -> None:
    route = render(model={"lora": {"adapters": {"law": "adapters/law", "code": "code"}}}).model_route
    assert route is not None
    assert route["spec"]["loraAdapters"] == ["law", "code"]


def test_the_queue_is_an_annotation_where_kthena_looks_for_it() -> None:
    serving = render(VOLCANO, scheduling={"queue": "inference"}).stable.model_serving
    assert serving["metadata"]["annotations"] == {"scheduling.volcano.sh/queue-name": "inference"}
    assert "annotations" not in render().stable.model_serving["metadata"]


@pytest.mark.parametrize(
    "declared",
    [{}, {"autoscaling": {"groups": scaling(1, 2)}}, {"autoscaling": {"prefill": scaling(1, 2), "decode": scaling(1, 2)}}],
)
def test_nothing_empty_is_rendered_that_would_differ_at_every_up(declared: dict[str, Any]) -> None:
    def empty(value: Any, path: str) -> list[str]:
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
        if inner is None:
            return []
        return ([path] if not value else []) + [found for key, item in inner for found in empty(item, f"{path}.{key}")]

    objects = copy.deepcopy([item for item in render(**declared).objects if item["kind"] in KINDS])
    for role in objects[0]["spec"]["template"]["roles"]:
        role.pop("entryTemplate")  # Kubernetes' own, where an empty emptyDir says something
    assert [found for item in objects for found in empty(item, item["kind"])] == []


def test_whole_groups_are_scaled_by_what_all_their_engines_publish() -> None:
    spec = policy(groups=scaling(2, 5))
    assert spec["metrics"] == [{"name": WAITING, "targetValue": "10"}]
    assert spec["homogeneousTarget"] == {
        "target": {
            "targetRef": {
                "apiVersion": "workload.serving.volcano.sh/v1alpha1",
                "kind": "ModelServing",
                "name": "deepseekv4-pd",
            },
            "metricSources": {WAITING: {"pod": {"uri": "/metrics", "port": 7100}}},
        },
        "minReplicas": 2,
        "maxReplicas": 5,
    }
    assert "disaggregatedTarget" not in spec


def test_a_role_that_is_not_scaled_stays_at_the_declared_ratio() -> None:
    target = policy(declared="1P2D", prefill=scaling(1, 4))["disaggregatedTarget"]
    assert target["roles"]["prefill"] == {
        "minReplicas": 1,
        "maxReplicas": 4,
        "metrics": [{"name": WAITING, "targetValue": "10"}],
        "metricSources": {WAITING: {"pod": {"uri": "/metrics", "port": 7100}}},
    }
    assert target["roles"]["decode"] == {"minReplicas": 2, "maxReplicas": 2}
    # with the declared ratio as its bounds nothing could ever be scaled
    assert "ratioConstraint" not in target


@pytest.mark.parametrize(
    ("ratio", "low", "high"),
    [("1P1D", "1", "1"), ("2P1D", "2", "2"), ("1P4D", "0.25", "0.25"), ("1P3D", "0.333333333", "0.333333334")],
)
def test_roles_that_are_both_scaled_keep_the_declared_ratio(ratio: str, low: str, high: str) -> None:
    target = policy(declared=ratio, prefill=scaling(1, 4), decode=scaling(1, 12))["disaggregatedTarget"]
    assert target["ratioConstraint"] == {
        "numeratorRole": "prefill",
        "denominatorRole": "decode",
        "minRatio": low,
        "maxRatio": high,
    }


@pytest.mark.parametrize(("prefill", "decode"), [(1, 3), (2, 3), (1, 7), (13, 7), (10, 11), (99, 97)])
def test_the_declared_ratio_lies_inside_its_own_bounds_as_the_autoscaler_compares_them(prefill: int, decode: int) -> None:
    bounds = policy(declared=f"{prefill}P{decode}D", prefill=scaling(1, 99), decode=scaling(1, 99))["disaggregatedTarget"]
    constraint = bounds["ratioConstraint"]
    assert float(constraint["minRatio"]) <= prefill / decode <= float(constraint["maxRatio"])
    assert Fraction(constraint["maxRatio"]) - Fraction(constraint["minRatio"]) <= Fraction(1, 10**9)


def test_a_declared_range_of_ratios_is_taken_as_it_is() -> None:
    target = policy(prefill=scaling(1, 4), decode=scaling(1, 8), ratio={"min": 0.25, "max": 1.5})["disaggregatedTarget"]
    assert (target["ratioConstraint"]["minRatio"], target["ratioConstraint"]["maxRatio"]) == ("0.25", "1.5")


def test_a_source_of_ones_own_goes_over_the_engines_metrics() -> None:
    prometheus = {"serverURL": "http://prometheus:9090", "query": "sum(rate(requests[2m]))"}
    sources = {
        WAITING: {"pod": {"name": "vllm:num_requests_running"}},
        "sidecar": {"pod": {"port": 8100}},
        "rate": {"prometheus": prometheus},
    }
    targets = {WAITING: "10", "sidecar": "1", "rate": "0.5"}
    spec = policy(groups={"min": 1, "max": 2, "metrics": targets, "metricSources": sources})
    assert spec["homogeneousTarget"]["target"]["metricSources"] == {
        WAITING: {"pod": {"name": "vllm:num_requests_running", "port": 7100}},
        "sidecar": {"pod": {"port": 8100}},
        "rate": {"prometheus": prometheus},
    }


def test_the_pace_is_that_of_kthenas_webhook_which_the_installed_control_plane_does_not_run() -> None:
    behavior = policy(groups=scaling(1, 2))["behavior"]
    assert behavior["scaleDown"]["stabilizationWindow"] == "5m"
    assert behavior["scaleUp"]["stablePolicy"]["instances"] == 4
    assert behavior["scaleUp"]["panicPolicy"]["panicModeHold"] == "0s"


def test_a_declared_pace_is_kept_and_only_what_is_absent_is_filled() -> None:
    declared = {"scaleDown": {"percent": 10, "period": "2m"}, "scaleUp": {"panicPolicy": {"period": "10s"}}}
    behavior = policy(groups=scaling(1, 2), behavior=declared)["behavior"]
    assert behavior["scaleDown"] == {"percent": 10, "period": "2m", "stabilizationWindow": "5m"}
    assert behavior["scaleUp"]["panicPolicy"] == {"period": "10s"}
    assert behavior["scaleUp"]["stablePolicy"]["stabilizationWindow"] == "0s"
