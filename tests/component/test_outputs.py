"""Outputs of other resources inside a declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulumi
import pytest
from pulumi_kubernetes.core.v1 import Namespace, Secret

from components import PDDeployment, PDDeploymentArgs, placeholder
from rules import read
from tests import stacks
from tests.component.conftest import Deploy, Recording

NAME = "deepseekv4-pd"


def build(declare: Callable[[], dict[str, Any]]) -> PDDeployment:
    stack = read(stacks.config(NAME, **declare()))
    return PDDeployment(NAME, PDDeploymentArgs(stack.deployments[NAME], stack.cluster, router_url="http://router.example"))


def entry_spec(recording: Recording, role: int = 0) -> Any:
    return recording.one("ModelServing").inputs["spec"]["template"]["roles"][role]["entryTemplate"]["spec"]


def in_a_namespace_of_the_programs_own() -> dict[str, Any]:
    return {"namespace": placeholder(Namespace("serving", metadata={"name": "serving-prod"}).metadata.name)}


def test_a_namespace_that_is_an_output_is_that_of_every_object_which_then_depends_on_it(deploy: Deploy) -> None:
    _, recording = deploy(lambda: build(in_a_namespace_of_the_programs_own))
    namespace = recording.one("Namespace")
    owned = [item for item in recording.kubernetes_objects if item is not namespace]
    assert len(owned) == 5
    assert {item.inputs["metadata"]["namespace"] for item in owned} == {"serving-prod"}
    assert [item.kind for item in owned if namespace.urn not in item.dependencies] == []


def test_the_components_own_output_is_the_value_and_not_its_placeholder(deploy: Deploy) -> None:
    said: list[str] = []
    deploy(lambda: build(in_a_namespace_of_the_programs_own).namespace.apply(said.append))
    assert said == ["serving-prod"]


def test_in_a_preview_what_is_not_known_yet_stays_unknown(deploy: Deploy) -> None:
    def declare() -> dict[str, Any]:
        return {"namespace": placeholder(Namespace("named-by-pulumi").metadata.name)}

    _, recording = deploy(lambda: build(declare), preview=True)
    namespaces = [item.inputs["metadata"]["namespace"] for item in recording.kubernetes_objects if item.kind != "Namespace"]
    assert [pulumi.contains_unknowns(namespace) for namespace in namespaces] == [True] * 5


def test_images_claims_secrets_environment_and_pod_templates_take_outputs(deploy: Deploy) -> None:
    def declare() -> dict[str, Any]:
        secret = Secret("token", metadata={"name": "token-1"})
        token, image = placeholder(secret.metadata.name), placeholder(pulumi.Output.from_input("registry.example/vllm:1"))
        return {
            "engine": {"image": image, "env": {"MIRROR": f"https://{token}.example/{token}"}},
            "model": {"weights": {"claim": {"name": placeholder(pulumi.Output.from_input("weights-1")), "path": "/weights"}}},
            "prefill": {
                "podTemplate": {"spec": {"containers": [{"name": "vllm", "envFrom": [{"secretRef": {"name": token}}]}]}},
            },
        }

    _, recording = deploy(lambda: build(declare))
    prefill, decode = entry_spec(recording, 0), entry_spec(recording, 1)
    engine = prefill["containers"][0]
    assert engine["image"] == decode["containers"][0]["image"] == "registry.example/vllm:1"
    assert {"name": "MIRROR", "value": "https://token-1.example/token-1"} in engine["env"]
    assert engine["envFrom"] == [{"secretRef": {"name": "token-1"}}]
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in prefill["volumes"] if volume["name"] == "weights"]
    assert claims == ["weights-1"]
    assert recording.one("Secret").urn in recording.one("ModelServing").dependencies


@pytest.mark.parametrize(
    ("declared", "place"),
    [
        (lambda output: {"model": {"served": output}}, r"ConfigMap \S+\.data\.prefill\.sh"),
        (lambda output: {"prefill": {"extraArgs": ["--reasoning-parser", output]}}, r"ConfigMap \S+\.data\.prefill\.sh"),
        (lambda output: {"networkInterface": output}, r"ConfigMap \S+\.data\.prefill\.sh"),
        (
            lambda output: {"route": {"rules": [{"name": output, "targets": {NAME: 1}}]}},
            r"ModelRoute \S+\.spec\.rules\[0\]\.name",
        ),
        (
            lambda output: {"prefill": {"podTemplate": {"spec": {"nodeSelector": {output: "true"}}}}},
            r"ModelServing \S+\.nodeSelector\.\S+ \(a key\)",
        ),
    ],
)
def test_an_output_is_refused_where_the_name_of_an_object_follows_from_it(
    deploy: Deploy, declared: Callable[[str], dict[str, Any]], place: str
) -> None:
    def build_beside_something() -> None:
        Namespace("serving")
        with pytest.raises(pulumi.RunError, match=f"an Output can't be in {place}"):
            build(lambda: declared(placeholder(pulumi.Output.from_input("later"))))

    _, recording = deploy(build_beside_something)
    assert [item.kind for item in recording.resources] == ["Namespace"]


def test_two_outputs_have_two_placeholders() -> None:
    assert placeholder("one") != placeholder("two")
