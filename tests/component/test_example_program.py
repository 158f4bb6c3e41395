"""The example of a program that composes the components with resources of its own."""

from __future__ import annotations

import json
import runpy
from typing import Any

import pulumi
import pytest
from pulumi.runtime import rpc

from tests import stacks
from tests.component.conftest import Deploy, Recording, Registered

TOKEN = "hf_very_secret"
CONFIG = {
    "kthena-pd:context": "prod",
    "kthena-pd:storageClass": "shared",
    "kthena-pd:canaryPercent": "10",
    "kthena-pd:huggingFaceToken": TOKEN,
}


def run_example(deploy: Deploy, **options: Any) -> Recording:
    def program() -> None:
        runpy.run_path(str(stacks.ROOT / "examples" / "canary" / "__main__.py"))

    return deploy(program, config=CONFIG, **options)[1]


@pytest.fixture
def recording(deploy: Deploy) -> Recording:
    return run_example(deploy)


def in_namespaces(recording: Recording) -> list[Registered]:
    return [item for item in recording.kubernetes_objects if item.kind != "Namespace"]


def test_the_rules_have_nothing_to_say_about_it(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", said.append)
    run_example(deploy)
    assert said == []


def test_every_object_is_in_the_programs_own_namespace_and_comes_after_it(recording: Recording) -> None:
    namespace = recording.one("Namespace")
    assert {item.kind for item in in_namespaces(recording)} == {
        *("PersistentVolumeClaim", "Secret", "ConfigMap", "ModelServing", "ModelServer", "ModelRoute")
    }
    assert {item.inputs["metadata"]["namespace"] for item in in_namespaces(recording)} == {"serving-0000000"}
    assert [item.urn for item in in_namespaces(recording) if namespace.urn not in item.dependencies] == []


def test_the_pods_mount_the_programs_own_claim_and_the_downloader_gets_its_own_secret(recording: Recording) -> None:
    servings = recording.of_kind("ModelServing")
    assert len(servings) == 2
    for serving in servings:
        for role in serving.inputs["spec"]["template"]["roles"]:
            spec = role["entryTemplate"]["spec"]
            claims = [volume["persistentVolumeClaim"] for volume in spec["volumes"] if volume["name"] == "weights"]
            assert [claim["claimName"] for claim in claims] == ["weights-0000000"]
            assert spec["initContainers"][0]["envFrom"] == [{"secretRef": {"name": "hugging-face-0000000"}}]
        assert {recording.one("PersistentVolumeClaim").urn, recording.one("Secret").urn} <= serving.dependencies


def test_the_token_is_in_the_secret_alone_and_there_encrypted(recording: Recording) -> None:
    secret = recording.one("Secret")
    assert rpc.is_rpc_secret(secret.inputs["stringData"])
    assert rpc.unwrap_rpc_secret(secret.inputs["stringData"]) == {"HF_AUTH_TOKEN": TOKEN}
    rest = [item.inputs for item in recording.resources if item is not secret]
    assert TOKEN not in json.dumps(rest)


def test_the_route_shares_out_requests_and_comes_after_both_model_servers(recording: Recording) -> None:
    route = recording.one("ModelRoute")
    targets = route.inputs["spec"]["rules"][0]["targetModels"]
    assert {target["modelServerName"]: target["weight"] for target in targets} == {"qwen3-stable": 90, "qwen3-canary": 10}
    servers = {server.urn for server in recording.of_kind("ModelServer")}
    assert len(servers) == 2
    assert servers <= route.dependencies


def test_a_preview_in_which_no_name_is_known_yet_registers_the_same_resources(deploy: Deploy, recording: Recording) -> None:
    preview = run_example(deploy, preview=True)
    assert {item.urn for item in preview.resources} == {item.urn for item in recording.resources}
    namespaces = [item.inputs["metadata"]["namespace"] for item in in_namespaces(preview)]
    assert [pulumi.contains_unknowns(namespace) for namespace in namespaces] == [True] * len(namespaces)
