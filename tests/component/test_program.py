"""The whole program under mocks: stack file in, registered resources out."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pulumi
import pytest

from tests import stacks
from tests.component.conftest import Deploy, Recording


@pytest.fixture(autouse=True)
def _kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kubeconfig").write_text("contexts: [{name: kthena-pd-local}]\n")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setattr("components.examine", lambda *_: ())  # there is no cluster to look at
    monkeypatch.setattr("components.foretell_control_plane", lambda *_: None)
    monkeypatch.setattr("components.make_way", lambda *_: None)


def run_program() -> dict[str, Any]:
    return runpy.run_path(str(stacks.ROOT / "__main__.py"))


def as_config(declared: dict[str, Any]) -> dict[str, str]:
    return {f"kthena-pd:{key}": json.dumps(value) for key, value in declared.items()}


def run_stack(deploy: Deploy, declared: dict[str, Any], **options: Any) -> Recording:
    return deploy(run_program, config=as_config(declared), **options)[1]


def test_stack_dev_registers_a_provider_the_control_plane_and_the_deployment(deploy: Deploy) -> None:
    recording = run_stack(deploy, stacks.stack_file("dev"))
    assert {resource.name for resource in recording.of_kind("PDDeployment")} == {"deepseekv4-pd"}
    assert len(recording.of_kind("KthenaControlPlane")) == 1
    assert {deployment.name for deployment in recording.of_kind("Deployment")} == {
        "kthena-kthena-controller-manager",
        "kthena-kthena-router",
    }


def test_every_kubernetes_object_uses_the_programs_own_provider(deploy: Deploy) -> None:
    recording = run_stack(deploy, stacks.stack_file("dev"))
    provider = next(resource for resource in recording.resources if resource.type == "pulumi:providers:kubernetes")
    assert len(recording.kubernetes_objects) > 10
    assert {resource.provider.rpartition("::")[0] for resource in recording.kubernetes_objects} == {provider.urn}


def test_the_provider_has_an_identity_of_its_own_so_that_a_kubeconfig_edit_replaces_nothing(deploy: Deploy) -> None:
    recording = run_stack(deploy, stacks.stack_file("dev"))
    assert recording.one("kubernetes").inputs["clusterIdentifier"] == "kthena-pd-test"


def test_every_object_belongs_to_a_component(deploy: Deploy) -> None:
    recording = run_stack(deploy, stacks.stack_file("dev"))
    assert [resource.urn for resource in recording.kubernetes_objects if "$kubernetes:" not in resource.urn] == []


def test_no_two_resources_share_a_urn(deploy: Deploy) -> None:
    declared = stacks.stack_file("dev")
    declared["deployments"]["second"] = {"recipe": "deepseek-v2-lite-a3"}
    urns = [resource.urn for resource in run_stack(deploy, declared).resources]
    assert len(urns) == len(set(urns))


def test_deployments_come_after_the_control_plane_and_their_namespaces(deploy: Deploy) -> None:
    declared = stacks.stack_file("dev")
    declared["cluster"]["namespaces"] = ["dev"]
    recording = run_stack(deploy, declared)
    needed = {resource.urn for resource in recording.of_kind("Deployment")} | {
        resource.urn for resource in recording.of_kind("Namespace") if resource.name == "dev"
    }
    assert len(needed) == 3
    # children of a component are registered, and destroyed, on the safe side of what the component depends on
    assert needed <= recording.one("PDDeployment").dependencies


def test_a_deployment_comes_before_those_whose_routes_lead_to_it(deploy: Deploy) -> None:
    declared = stacks.stack_file("dev")
    recipe = declared["deployments"].pop("deepseekv4-pd")["recipe"]
    declared["deployments"] = {
        "first": {"recipe": recipe, "route": {"rules": [{"targets": {"first": 90, "second": 10}}]}},
        "second": {"recipe": recipe, "route": {"enabled": False}},
    }
    recording = run_stack(deploy, declared)
    servers = {server.urn for server in recording.of_kind("ModelServer")}
    assert len(servers) == 2
    assert servers <= recording.one("ModelRoute").dependencies


def test_a_route_may_lead_to_what_another_stack_has_made(deploy: Deploy) -> None:
    declared = stacks.stack_file("dev")
    declared["deployments"]["deepseekv4-pd"]["route"] = {"rules": [{"targets": {"deepseekv4-pd": 90, "elsewhere": 10}}]}
    recording = run_stack(deploy, declared)
    assert {server.urn for server in recording.of_kind("ModelServer")} <= recording.one("ModelRoute").dependencies


def test_a_cluster_with_its_own_kthena_gets_no_control_plane_objects(deploy: Deploy) -> None:
    recording = run_stack(deploy, stacks.stack_file("deepseek-v2-lite"))
    assert recording.of_kind("Deployment") == []
    assert recording.one("ModelServing").inputs["metadata"]["namespace"] == "dev"


def test_every_object_of_the_program_has_a_field_manager(deploy: Deploy) -> None:
    recording = run_stack(deploy, stacks.stack_file("dev"))
    managed = "pulumi.com/patchFieldManager"
    assert [resource.urn for resource in recording.kubernetes_objects if managed not in resource.annotations] == []


def test_a_preview_of_a_new_stack_registers_the_same_resources(deploy: Deploy) -> None:
    up = {resource.urn for resource in run_stack(deploy, stacks.stack_file("dev")).resources}
    preview = {resource.urn for resource in run_stack(deploy, stacks.stack_file("dev"), preview=True).resources}
    assert up == preview


@pytest.mark.parametrize(
    ("path", "edit"),
    [
        ("kthena-pd:deployments.deepseekv4-pd.ratio", {"ratio": "0P1D"}),
        ("kthena-pd:deployments.deepseekv4-pd.ratio", {"ratio": "P1D"}),
        ("kthena-pd:deployments.deepseekv4-pd.ratio", {"ratio": "1P-1D"}),
        ("kthena-pd:deployments.deepseekv4-pd.rotia", {"rotia": "1P1D"}),
        ("kthena-pd:deployments.deepseekv4-pd.prefill.parallelism", {"prefill": {"parallelism": None}}),
        ("kthena-pd:deployments.deepseekv4-pd.ratio", {"ratio": "3P2D"}),
        ("kthena-pd:deployments.deepseekv4-pd.groups", {"groups": 3}),
    ],
)
def test_a_mistake_stops_the_program_before_anything_is_registered_and_names_its_path(
    path: str, edit: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = stacks.stack_file("dev")
    declared["deployments"]["deepseekv4-pd"].update(edit)
    pulumi.runtime.set_all_config(as_config(declared))
    assert f" {path}: " in said_without_registering(monkeypatch)


@pytest.mark.parametrize("misspelt", ["deployment", "clutser"])
def test_a_misspelt_key_of_the_project_is_not_taken_for_an_empty_stack(misspelt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = stacks.stack_file("dev")
    declared[misspelt] = declared.pop("deployments" if misspelt == "deployment" else "cluster")
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps(as_config(declared)))
    pulumi.runtime.set_all_config(as_config(declared))
    said = said_without_registering(monkeypatch)
    assert f"kthena-pd:{misspelt}: unknown key" in said
    assert "is missing" in said


def test_a_context_that_the_kubeconfig_does_not_have_never_reaches_pulumis_state(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = stacks.stack_file("dev")
    declared["cluster"]["context"] = "prod"
    pulumi.runtime.set_all_config(as_config(declared))
    said = said_without_registering(monkeypatch)
    assert "kthena-pd:cluster.context: the kubeconfig has no context 'prod'" in said
    assert "one of kthena-pd-local" in said


def test_the_settings_have_the_same_prefix_in_a_project_of_another_name(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulumi, "get_project", lambda: "serving")
    assert run_stack(deploy, stacks.stack_file("deepseek-v2-lite")).of_kind("PDDeployment")
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps({"serving:base": "base.yaml"}))
    said = said_without_registering(monkeypatch)
    assert "PD001: nothing reads serving:base\n      -> kthena-pd:base in its place" in said


def test_a_base_and_keys_with_dots_are_plain_texts_for_pulumi(
    deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = stacks.stack_file("deepseek-v2-lite")
    (tmp_path / "base.yaml").write_text(json.dumps({"deployments": declared.pop("deployments")}))
    config = as_config(declared) | {
        "kthena-pd:base": str(tmp_path / "base.yaml"),
        "kthena-pd:deployments.deepseek-v2-lite.groups": "2",
    }
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps(config))
    recording = deploy(run_program, config=config)[1]
    assert recording.one("ModelServing").inputs["spec"]["replicas"] == 2


def said_without_registering(monkeypatch: pytest.MonkeyPatch) -> str:
    """What the program says before it ends without having asked for a single resource."""
    said: list[str] = []
    monkeypatch.setattr(pulumi.log, "error", said.append)
    monkeypatch.setattr(pulumi.CustomResource, "__init__", _refuse)
    monkeypatch.setattr(pulumi.ComponentResource, "__init__", _refuse)
    with pytest.raises(SystemExit) as ended:
        run_program()
    assert ended.value.code == 32
    return "\n".join(said)


def _refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("a resource was created for a stack file with a mistake")
