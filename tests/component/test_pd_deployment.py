"""PDDeployment under mocks: what the engine is asked for."""

from __future__ import annotations

import json
from typing import Any

import pulumi
import pytest

from components import PDDeployment, PDDeploymentArgs
from rules import read
from tests import stacks
from tests.component.conftest import Deploy, Recording, Registered

OWNED = ("ConfigMap", "ModelServing", "ModelServer", "ModelRoute")


def build(name: str = "deepseekv4-pd", **declared: Any) -> PDDeployment:
    stack = read(stacks.config(name, **declared))
    return PDDeployment(name, PDDeploymentArgs(stack.deployments[name], stack.cluster, router_url="http://router.example:8080"))


@pytest.fixture
def recording(deploy: Deploy) -> Recording:
    return deploy(build)[1]


def test_a_deployment_owns_its_scripts_serving_server_and_route_and_nothing_else(recording: Recording) -> None:
    assert sorted(resource.kind for resource in recording.resources) == sorted((*OWNED, "PDDeployment"))
    component = recording.one("PDDeployment")
    assert component.type == "kthena-pd:serving:PDDeployment"
    assert not component.custom
    assert {recording.one(kind).parent for kind in OWNED} == {component.urn}


@pytest.mark.parametrize(
    ("kind", "type_"),
    [
        ("ConfigMap", "kubernetes:core/v1:ConfigMap"),
        ("ModelServing", "kubernetes:workload.serving.volcano.sh/v1alpha1:ModelServing"),
        ("ModelServer", "kubernetes:networking.serving.volcano.sh/v1alpha1:ModelServer"),
        ("ModelRoute", "kubernetes:networking.serving.volcano.sh/v1alpha1:ModelRoute"),
    ],
)
def test_each_object_has_the_type_token_that_the_kubernetes_provider_knows(recording: Recording, kind: str, type_: str) -> None:
    assert recording.one(kind).type == type_


def test_each_object_waits_for_the_one_that_it_needs(recording: Recording) -> None:
    scripts, serving, server, route = (recording.one(kind) for kind in OWNED)
    assert scripts.urn in serving.dependencies
    assert serving.urn in server.dependencies
    assert server.urn in route.dependencies


def test_every_object_has_a_field_manager_of_the_stack_so_that_a_killed_up_can_be_repeated(
    recording: Recording,
) -> None:
    managers = {recording.one(kind).annotations["pulumi.com/patchFieldManager"] for kind in OWNED}
    assert managers == {"pulumi-kthena-pd-test"}


def test_the_serving_holds_up_until_every_group_is_ready_at_the_new_revision(deploy: Deploy) -> None:
    _, recording = deploy(lambda: build(groups=2))
    annotations = recording.one("ModelServing").annotations
    assert json.loads(annotations["pulumi.com/waitFor"]) == [
        "condition=Available",
        "jsonpath={.status.updatedReplicas}=2",
        "jsonpath={.status.availableReplicas}=2",
    ]


@pytest.mark.parametrize("kind", ["ModelServer", "ModelRoute", "ConfigMap"])
def test_nothing_waits_on_an_object_that_never_has_a_status(recording: Recording, kind: str) -> None:
    assert "pulumi.com/waitFor" not in recording.one(kind).annotations


def test_the_time_limit_of_up_is_longer_than_the_model_may_load(deploy: Deploy) -> None:
    _, recording = deploy(lambda: build(readiness={"loadTimeout": "2h"}))
    assert int(recording.one("ModelServing").annotations["pulumi.com/timeoutSeconds"]) > 2 * 3600


def test_a_serving_is_deleted_in_the_background_so_that_the_controller_makes_no_new_pods(recording: Recording) -> None:
    assert recording.one("ModelServing").annotations["pulumi.com/deletionPropagationPolicy"] == "background"


def test_no_object_carries_an_empty_map_that_would_differ_at_every_up(recording: Recording) -> None:
    def empty_maps(value: Any, path: str) -> list[str]:
        if isinstance(value, dict):
            return ([path] if not value else []) + [
                found for key, item in value.items() for found in empty_maps(item, f"{path}.{key}")
            ]
        return []

    assert [found for kind in OWNED for found in empty_maps(recording.one(kind).inputs["metadata"], kind)] == []


def test_outputs_say_endpoint_namespace_model_ratio_groups_npus_and_revision(deploy: Deploy) -> None:
    outputs: dict[str, Any] = {}

    def build_and_collect() -> pulumi.Output[None]:
        return pulumi.Output.all(**build(ratio="2P1D").summary()).apply(outputs.update)

    deploy(build_and_collect, status={"ModelServing": {"updateRevision": "5d8c"}})
    # ``run`` returns nothing, but every apply has been awaited when it is over
    assert outputs == {
        "endpoint": "http://router.example:8080/v1",
        "namespace": "default",
        "servedModel": "deepseek_v4",
        "ratio": "2P1D",
        "groups": 1,
        "npus": 48,
        "revision": "5d8c",
    }


def test_two_deployments_in_one_stack_share_no_urn(deploy: Deploy) -> None:
    def build_two() -> None:
        build("first")
        build("second", model={"served": "other"})

    _, recording = deploy(build_two)
    urns = [resource.urn for resource in recording.resources]
    assert len(urns) == len(set(urns)) == 10


def test_a_deployment_without_a_route_of_its_own_registers_none(deploy: Deploy) -> None:
    _, recording = deploy(lambda: build(route={"enabled": False}))
    assert recording.of_kind("ModelRoute") == []
    assert recording.one("ModelServing").urn in recording.one("ModelServer").dependencies


def test_a_route_comes_after_all_model_servers_that_it_leads_to(deploy: Deploy) -> None:
    stack = read(
        {
            "cluster": stacks.CLUSTER,
            "deployments": {
                "canary": {"recipe": stacks.RECIPE, "route": {"enabled": False}},
                "stable": {"recipe": stacks.RECIPE, "route": {"rules": [{"targets": {"stable": 90, "canary": 10}}]}},
            },
        }
    )

    def build_both() -> None:
        built: list[PDDeployment] = []
        for name in ("canary", "stable"):
            args = PDDeploymentArgs(stack.deployments[name], stack.cluster, router_url="http://router", targets=tuple(built))
            built.append(PDDeployment(name, args))

    _, recording = deploy(build_both)
    servers = {server.urn for server in recording.of_kind("ModelServer")}
    assert len(servers) == 2
    assert servers <= recording.one("ModelRoute").dependencies


SCALING = {"min": 1, "max": 2, "metrics": {"vllm:num_requests_waiting": "10"}}


def test_an_autoscaling_policy_comes_after_the_serving_that_it_scales(deploy: Deploy) -> None:
    _, recording = deploy(lambda: build(autoscaling={"groups": SCALING}))
    policy = recording.one("AutoscalingPolicy")
    assert policy.parent == recording.one("PDDeployment").urn
    assert recording.one("ModelServing").urn in policy.dependencies


@pytest.mark.parametrize(
    ("autoscaling", "ignored", "forced"),
    [
        (None, [], None),
        ({"groups": SCALING}, ["spec.replicas"], None),
        ({"prefill": SCALING}, ["spec.template.roles[0].replicas"], "true"),
        ({"decode": SCALING}, ["spec.template.roles[1].replicas"], "true"),
        (
            {"prefill": SCALING, "decode": SCALING},
            ["spec.template.roles[0].replicas", "spec.template.roles[1].replicas"],
            "true",
        ),
    ],
)
def test_what_the_autoscaler_writes_is_the_autoscalers_and_nothing_else(
    deploy: Deploy, autoscaling: dict[str, Any] | None, ignored: list[str], forced: str | None
) -> None:
    _, recording = deploy(lambda: build(autoscaling=autoscaling))
    serving = recording.one("ModelServing")
    assert list(serving.ignore_changes) == ignored
    assert serving.annotations.get("pulumi.com/patchForce") == forced
    roles = [role["name"] for role in serving.inputs["spec"]["template"]["roles"]]
    assert roles == ["prefill", "decode"]  # the indexes above


def test_up_waits_for_no_number_of_groups_that_the_autoscaler_or_a_partition_decides(deploy: Deploy) -> None:
    def waited_for(**declared: Any) -> list[str]:
        _, recording = deploy(lambda: build(groups=2, **declared))
        conditions: list[str] = json.loads(recording.one("ModelServing").annotations["pulumi.com/waitFor"])
        return conditions

    partition = {"type": "ServingGroupRollingUpdate", "rollingUpdateConfiguration": {"partition": 1}}
    assert waited_for(autoscaling={"groups": SCALING}) == ["condition=Available"]
    assert waited_for(rolloutStrategy=partition) == ["condition=Available", "jsonpath={.status.availableReplicas}=2"]
    assert len(waited_for(autoscaling={"prefill": SCALING})) == 3


def test_up_does_not_wait_for_a_status_that_kthena_never_writes_of_no_groups(deploy: Deploy) -> None:
    outside = {"prometheus": {"serverURL": "http://prometheus:9090", "query": "sum(rate(requests[1m]))"}}
    scaling = {**SCALING, "min": 0, "metricSources": {"vllm:num_requests_waiting": outside}}
    _, recording = deploy(lambda: build(autoscaling={"groups": scaling}))
    assert recording.one("ModelServing").annotations["pulumi.com/skipAwait"] == "true"


def test_a_deployment_that_breaks_a_rule_registers_nothing(deploy: Deploy) -> None:
    good = read(stacks.config())
    parallelism = good.deployments["deepseekv4-pd"].decode.parallelism.model_copy(update={"tp": 16})
    decode = good.deployments["deepseekv4-pd"].decode.model_copy(update={"parallelism": parallelism})
    bad = good.deployments["deepseekv4-pd"].model_copy(update={"decode": decode})

    def build_bad_beside_good() -> None:
        build("good")
        # as a programmer finds it, not as a stack file has it
        with pytest.raises(pulumi.RunError, match=r"mistakes:\n  PD102 deployments\.deepseekv4-pd\.decode\.parallelism: "):
            PDDeployment("bad", PDDeploymentArgs(bad, good.cluster, router_url="http://router"))

    _, recording = deploy(build_bad_beside_good)
    assert {resource.name for resource in recording.resources if not _belongs_to(resource, "good")} == set()


def _belongs_to(resource: Registered, name: str) -> bool:
    return resource.name.startswith(name)
