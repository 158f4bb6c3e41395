"""PDDeployment under mocks: what the engine is asked for."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest

from components import PDDeployment, PDDeploymentArgs
from rules import read
from tests import stacks
from tests.component.conftest import Deploy, Recording

OWNED = ("ModelServing", "ModelServer", "ModelRoute")


def build(name: str = "deepseekv4-pd", **declared: Any) -> PDDeployment:
    stack = read(stacks.config(name, **declared))
    return PDDeployment(name, PDDeploymentArgs(stack.deployments[name], stack.cluster, router_url="http://router.example:8080"))


@pytest.fixture
def recording(deploy: Deploy) -> Recording:
    return deploy(build)[1]


def test_a_deployment_owns_its_scripts_serving_server_and_route_and_nothing_else(recording: Recording) -> None:
    kinds = sorted((*OWNED, "PDDeployment", "ConfigMap", "ConfigMap"))
    assert sorted(resource.kind for resource in recording.resources) == kinds
    component = recording.one("PDDeployment")
    assert component.type == "kthena-pd:serving:PDDeployment"
    assert not component.custom
    assert {resource.parent for resource in recording.kubernetes_objects} == {component.urn}


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
    assert {resource.type for resource in recording.of_kind(kind)} == {type_}


def test_each_object_waits_for_the_one_that_it_needs(recording: Recording) -> None:
    serving, server, route = (recording.one(kind) for kind in OWNED)
    scripts = {resource.urn for resource in recording.of_kind("ConfigMap")}
    assert len(scripts) == 2
    assert scripts <= serving.dependencies
    assert serving.urn in server.dependencies
    assert server.urn in route.dependencies


def test_every_object_has_a_field_manager_of_the_stack_so_that_a_killed_up_can_be_repeated(
    recording: Recording,
) -> None:
    managers = {resource.annotations["pulumi.com/patchFieldManager"] for resource in recording.kubernetes_objects}
    assert managers == {"pulumi-kthena-pd-test"}


def test_an_up_wins_over_whoever_else_wrote_to_its_objects(recording: Recording) -> None:
    assert {resource.annotations["pulumi.com/patchForce"] for resource in recording.kubernetes_objects} == {"true"}


def test_a_serving_is_deleted_in_the_background_so_that_the_controller_makes_no_new_pods(recording: Recording) -> None:
    assert recording.one("ModelServing").annotations["pulumi.com/deletionPropagationPolicy"] == "background"


def test_no_object_carries_an_empty_map_that_would_differ_at_every_up(recording: Recording) -> None:
    def empty_maps(value: Any, path: str) -> list[str]:
        if isinstance(value, dict):
            return ([path] if not value else []) + [
                found for key, item in value.items() for found in empty_maps(item, f"{path}.{key}")
            ]
        return []

    objects = recording.kubernetes_objects
    assert [found for resource in objects for found in empty_maps(resource.inputs["metadata"], resource.kind)] == []


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
    assert len(urns) == len(set(urns)) == 12


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
    ("autoscaling", "ignored"),
    [
        (None, []),
        ({"groups": SCALING}, ["spec.replicas"]),
        ({"prefill": SCALING}, ["spec.template.roles[0].replicas"]),
        ({"decode": SCALING}, ["spec.template.roles[1].replicas"]),
        ({"prefill": SCALING, "decode": SCALING}, ["spec.template.roles[0].replicas", "spec.template.roles[1].replicas"]),
    ],
)
def test_what_the_autoscaler_writes_is_the_autoscalers_and_nothing_else(
    deploy: Deploy, autoscaling: dict[str, Any] | None, ignored: list[str]
) -> None:
    _, recording = deploy(lambda: build(autoscaling=autoscaling))
    serving = recording.one("ModelServing")
    assert list(serving.ignore_changes) == ignored
    roles = [role["name"] for role in serving.inputs["spec"]["template"]["roles"]]
    assert roles == ["prefill", "decode"]  # the indexes above


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
    assert {resource.name for resource in recording.resources if "good" not in resource.name} == {"default-deepseek-v4-bf27c42"}


ENV: dict[str, Any] = {"engine": {"env": {"AN_EDIT": "1"}}}
CANARY = {"strategy": "Canary", "step": 1, "candidate": ENV}


def test_a_candidate_has_all_of_its_own_and_a_share_of_the_one_route(deploy: Deploy) -> None:
    _, recording = deploy(lambda: build(rollout=CANARY))
    trying = next(item for item in recording.of_kind("ModelServing") if "AN_EDIT" in str(item.inputs))
    candidate, stable = sorted(recording.of_kind("ModelServer"), key=lambda server: server.name != trying.name)
    assert [len(recording.of_kind(kind)) for kind in ("ConfigMap", "ModelServing")] == [4, 2]
    (rule,) = recording.one("ModelRoute").inputs["spec"]["rules"]
    weights = {target["modelServerName"]: target["weight"] for target in rule["targetModels"]}
    assert weights == {stable.name: 90, candidate.name: 10}
    assert {stable.urn, candidate.urn} <= recording.one("ModelRoute").dependencies


def test_a_promoted_candidate_is_the_same_resources_as_before(deploy: Deploy) -> None:
    _, trying = deploy(lambda: build(rollout=CANARY))
    _, promoted = deploy(lambda: build(rollout={"strategy": "Canary"}, **ENV))
    before = {resource.urn: resource.inputs for resource in trying.kubernetes_objects if resource.kind != "ModelRoute"}
    after = {resource.urn: resource.inputs for resource in promoted.kubernetes_objects if resource.kind != "ModelRoute"}
    assert after.items() <= before.items()
    assert trying.one("ModelRoute").urn == promoted.one("ModelRoute").urn


def test_a_renamed_deployment_keeps_its_route(deploy: Deploy) -> None:
    # a create under another URN would take the object over, and the delete of the old one would then remove it
    urns = {deploy(lambda name=name: build(name))[1].one("ModelRoute").urn for name in ("before", "after")}
    assert len(urns) == 1


def test_two_deployments_of_one_model_in_two_namespaces_have_routes_of_their_own(deploy: Deploy) -> None:
    def build_two() -> None:
        build("first", namespace="a")
        build("second", namespace="b")

    _, recording = deploy(build_two)
    assert len({route.urn for route in recording.of_kind("ModelRoute")}) == 2


def test_a_protected_stack_protects_deployment_and_route_and_not_what_comes_and_goes_with_an_edit(deploy: Deploy) -> None:
    _, recording = deploy(lambda: build(cluster={"protect": True}))
    protected = {resource.kind for resource in recording.resources if resource.protect}
    assert protected == {"PDDeployment", "ModelRoute"}
    _, recording = deploy(build)
    assert not any(resource.protect for resource in recording.resources)


def test_scripts_of_another_content_are_another_resource(deploy: Deploy) -> None:
    # one resource that is replaced would be created anew, and then deleted as its own predecessor, when an edit is taken back
    scripts = [
        {resource.name for resource in deploy(lambda edit=edit: build(**edit))[1].of_kind("ConfigMap")}
        for edit in ({}, {"decode": {"batching": {"maxNumSeqs": 24}}})
    ]
    assert len(scripts[0] & scripts[1]) == 1  # prefill's
    assert len(scripts[0] | scripts[1]) == 3
