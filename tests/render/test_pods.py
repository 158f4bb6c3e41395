"""What the pods of both roles mount and get."""

from __future__ import annotations

from typing import Any

import pytest

from render import render_deployment
from rules import read
from tests import stacks


def pods(**declared: Any) -> list[dict[str, Any]]:
    """PodSpecs of prefill and decode."""
    stack = read(stacks.config(**declared))
    serving = render_deployment(stack.deployments["deepseekv4-pd"], stack.cluster).model_serving
    return [role["entryTemplate"]["spec"] for role in serving["spec"]["template"]["roles"]]


def volume(pod: dict[str, Any], name: str = "weights") -> dict[str, Any]:
    (found,) = [item for item in pod["volumes"] if item["name"] == name]
    return {key: value for key, value in found.items() if key != "name"}


def mount(container: dict[str, Any], name: str = "weights") -> dict[str, Any]:
    (found,) = [item for item in container["volumeMounts"] if item["name"] == name]
    return {key: value for key, value in found.items() if key != "name"}


def test_weights_on_the_nodes_must_be_there_and_are_read_only() -> None:
    for pod in pods(model={"weights": {"hostPath": "/models/m"}}):
        assert volume(pod) == {"hostPath": {"path": "/models/m", "type": "Directory"}}
        assert mount(pod["containers"][0]) == {"mountPath": "/models/m", "readOnly": True}
        assert "initContainers" not in pod


def test_weights_on_a_claim_are_mounted_from_the_directory_inside_it() -> None:
    for pod in pods(model={"weights": {"claim": {"name": "weights", "path": "/models/m", "subPath": "a/m"}}}):
        assert volume(pod) == {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}
        assert mount(pod["containers"][0]) == {"mountPath": "/models/m", "subPath": "a/m", "readOnly": True}


def test_downloaded_weights_are_written_by_the_downloader_alone_with_the_credentials_of_a_secret() -> None:
    download = {"source": "hf://org/m", "cache": {"hostPath": "/cache/m"}, "credentials": "hugging-face"}
    for pod in pods(model={"weights": {"download": download}}):
        (downloader,) = pod["initContainers"]
        assert volume(pod)["hostPath"] == {"path": "/cache/m", "type": "DirectoryOrCreate"}
        assert mount(downloader) == {"mountPath": "/cache/m"}
        assert mount(pod["containers"][0])["readOnly"] is True
        assert downloader["args"] == ["--source", "hf://org/m", "--output-dir", "/cache/m"]
        assert downloader["envFrom"] == [{"secretRef": {"name": "hugging-face"}}]


@pytest.mark.parametrize(("dp", "tp"), [(1, 4), (2, 8), (4, 2)])
def test_a_pod_asks_for_exactly_the_dies_that_its_ranks_use(dp: int, tp: int) -> None:
    role = {"parallelism": {"dp": dp, "tp": tp}}
    for pod in pods(prefill=role, decode=role):
        resources = pod["containers"][0]["resources"]
        npus = {resources[kind]["huawei.com/ascend-1980"] for kind in ("requests", "limits")}
        assert npus == {str(dp * tp)}


@pytest.mark.parametrize(("plugin", "name"), [("cce", "huawei.com/ascend-1980"), ("hami", "huawei.com/Ascend910C")])
def test_the_device_plugin_decides_the_name_of_the_resource(plugin: str, name: str) -> None:
    cluster = {"npu": {"family": "A3", "devicePlugin": plugin}}
    for pod in pods(cluster=cluster):
        assert name in pod["containers"][0]["resources"]["requests"]


def test_the_sidecar_reaches_the_engine_where_it_listens() -> None:
    for pod in pods(recipe="deepseek-v2-lite-a3"):
        sidecar = pod["containers"][1]
        assert "http://$(POD_IP):8000" in sidecar["args"]
        assert {variable["name"] for variable in sidecar["env"]} == {"POD_IP", "POD_NAME", "NAMESPACE"}


@pytest.mark.parametrize(("load", "failures"), [("30m", 180), ("90s", 9), ("15s", 2)])
def test_a_model_may_load_as_long_as_declared_and_is_not_killed_meanwhile(load: str, failures: int) -> None:
    for pod in pods(readiness={"loadTimeout": load}):
        probe = pod["containers"][0]["startupProbe"]
        assert (probe["failureThreshold"], probe["periodSeconds"]) == (failures, 10)


def test_with_the_hosts_network_every_port_is_declared_so_that_the_scheduler_keeps_engines_apart() -> None:
    for pod in pods():
        assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
        assert {port["containerPort"] for port in pod["containers"][0]["ports"]} == {7100, 9000, 12321}
