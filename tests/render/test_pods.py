"""What the pods of both roles mount and get."""

from __future__ import annotations

from typing import Any

import pytest

from models.role import ROLES
from render import render_deployment
from render.pods import derived_env, pod_template
from rules import read
from tests import stacks


def pods(**declared: Any) -> list[dict[str, Any]]:
    """PodSpecs of prefill and decode."""
    stack = read(stacks.config(**declared))
    serving = render_deployment(stack.deployments["deepseekv4-pd"], stack.cluster).stable.model_serving
    return [role["entryTemplate"]["spec"] for role in serving["spec"]["template"]["roles"]]


def templates(role: str = "decode", /, **declared: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Templates of the entry pods and of the workers of a role."""
    stack = read(stacks.config(**declared))
    deployment = stack.deployments["deepseekv4-pd"]
    name = next(one for one in ROLES if one == role)
    entry, worker = (pod_template(deployment, stack.cluster, name, "scripts", worker=worker) for worker in (False, True))
    return entry, worker


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


@pytest.mark.parametrize(("dp", "tp"), [(1, 8), (2, 8), (4, 2)])
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


def test_weights_on_nfs_are_mounted_read_only() -> None:
    nfs = {"server": "nfs.example", "export": "/exports/m", "path": "/models/m"}
    for pod in pods(model={"weights": {"nfs": nfs}}):
        assert volume(pod) == {"nfs": {"server": "nfs.example", "path": "/exports/m", "readOnly": True}}
        assert mount(pod["containers"][0]) == {"mountPath": "/models/m", "readOnly": True}


def test_a_download_is_kept_on_a_claim_that_only_the_downloader_writes() -> None:
    cache = {"claim": {"name": "cache", "path": "/cache/m", "subPath": "models/m"}}
    for pod in pods(model={"weights": {"download": {"source": "org/m", "cache": cache}}}):
        assert volume(pod) == {"persistentVolumeClaim": {"claimName": "cache"}}
        assert mount(pod["initContainers"][0]) == {"mountPath": "/cache/m", "subPath": "models/m"}
        assert mount(pod["containers"][0]) == {"mountPath": "/cache/m", "subPath": "models/m", "readOnly": True}


@pytest.mark.parametrize("source", ["pvc://store/models/m", "pvc:///store/models/m"])
def test_a_download_from_a_claim_finds_it_where_the_downloader_looks(source: str) -> None:
    for pod in pods(model={"weights": {"download": {"source": source, "cache": {"hostPath": "/cache/m"}}}}):
        (downloader,) = pod["initContainers"]
        assert volume(pod, "weights-source") == {"persistentVolumeClaim": {"claimName": "store"}}
        assert mount(downloader, "weights-source") == {"mountPath": "/store", "readOnly": True}
        assert {item["name"] for item in pod["containers"][0]["volumeMounts"]}.isdisjoint({"weights-source"})


def test_pods_go_to_the_nodes_that_the_cluster_names() -> None:
    labels = {"accelerator-type": "module-a3-16-super-pod"}
    for pod in pods(cluster={"npu": {"family": "A3", "devicePlugin": "cce", "nodeSelector": labels}}):
        assert pod["nodeSelector"].items() >= labels.items()


@pytest.mark.parametrize("count", [2, 4])
def test_each_pod_of_an_instance_asks_for_the_dies_of_its_ranks(count: int) -> None:
    for template in templates(decode={"pods": count}, hostNetwork=False):
        resources = template["spec"]["containers"][0]["resources"]
        assert resources["limits"]["huawei.com/ascend-1980"] == str(16 // count)


def test_a_worker_runs_its_own_script_and_nobody_asks_for_an_api_that_it_does_not_have() -> None:
    entry, worker = (template["spec"] for template in templates(decode={"pods": 2}, runtimeSidecar=True))
    assert [container["command"][1] for container in (entry["containers"][0], worker["containers"][0])] == [
        "/scripts/decode.sh",
        "/scripts/decode-worker.sh",
    ]
    assert "startupProbe" in entry["containers"][0]
    assert not worker["containers"][0].keys() & {"startupProbe", "readinessProbe", "livenessProbe"}
    assert [container["name"] for container in worker["containers"]] == ["vllm"]


def test_entry_pods_and_workers_declare_a_common_port_so_that_they_never_share_a_server() -> None:
    ports = [
        {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
        for template in templates(decode={"pods": 2})
    ]
    assert ports == [{"server": 7100, "kv-transfer": 9000, "dp-rpc": 12321}, {"kv-transfer": 9000}]


def test_a_patch_reaches_entry_pods_and_workers() -> None:
    patch = {"metadata": {"annotations": {"team": "search"}}, "spec": {"priorityClassName": "serving"}}
    for template in templates(decode={"pods": 2, "podTemplate": patch}):
        assert template["metadata"] == {"annotations": {"team": "search"}}
        assert template["spec"]["priorityClassName"] == "serving"


POOL: dict[str, Any] = {"kvTransfer": {"pool": {"master": "mooncake-master.kv:50088"}}}


def test_engines_find_the_pool_and_name_blocks_alike() -> None:
    for pod in pods(**POOL):
        variables = {variable["name"]: variable.get("value") for variable in pod["containers"][0]["env"]}
        expected = {"MOONCAKE_CONFIG_PATH": "/scripts/mooncake.json", "PYTHONHASHSEED": "0"}
        assert variables.items() >= expected.items()


@pytest.mark.parametrize(
    ("declared", "names"),
    [
        (POOL, {"PYTHONHASHSEED", "MOONCAKE_CONFIG_PATH", "MOONCAKE_MASTER"}),
        ({"decode": {"pods": 2}}, {"ENTRY_IP"}),
        ({"recipe": "deepseek-v2-lite-a3"}, {"PHYSICAL_DEVICES", "ASCEND_REAL_DEVICES"}),
    ],
)
def test_environment_is_derived_only_where_it_is_needed(declared: dict[str, Any], names: set[str]) -> None:
    plain, special = (read(stacks.config(**more)).deployments["deepseekv4-pd"] for more in ({}, declared))
    assert derived_env(plain, "decode") >= {"POD_IP", "GROUP_NAME", "ROLE_ID", "HCCL_IF_IP", "VLLM_HOST_IP"}
    assert derived_env(plain, "decode").isdisjoint(names)
    assert derived_env(special, "decode") >= names
