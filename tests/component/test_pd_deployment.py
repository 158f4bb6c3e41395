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


def test_a_deployment_that_breaks_a_rule_registers_nothing(deploy: Deploy) -> None:
    good = read(stacks.config())
    parallelism = good.deployments["deepseekv4-pd"].decode.parallelism.model_copy(update={"tp": 16})
    decode = good.deployments["deepseekv4-pd"].decode.model_copy(update={"parallelism": parallelism})
    bad = good.deployments["deepseekv4-pd"].model_copy(update={"decode": decode})

    def build_bad_beside_good() -> None:
        build("good")
        with pytest.raises(pulumi.RunError, match=r"PD102.*deployments\.deepseekv4-pd\.decode\.parallelism"):
            PDDeployment("bad", PDDeploymentArgs(bad, good.cluster, router_url="http://router"))

    _, recording = deploy(build_bad_beside_good)
    assert {resource.name for resource in recording.resources if not _belongs_to(resource, "good")} == set()


def _belongs_to(resource: Registered, name: str) -> bool:
    return resource.name.startswith(name)
