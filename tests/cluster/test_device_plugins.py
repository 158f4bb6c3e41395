"""`make up` on simulated servers of each device plugin: its resource names, its labels, and what it leaves on the pods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.cluster.conftest import DEPLOYMENT, Cluster, running

A2_LAYOUT = {
    f"deployments.{DEPLOYMENT}.prefill.parallelism.dp": 1,
    f"deployments.{DEPLOYMENT}.prefill.parallelism.tp": 8,
    f"deployments.{DEPLOYMENT}.decode.parallelism.dp": 4,
    f"deployments.{DEPLOYMENT}.decode.parallelism.tp": 2,
}


@dataclass(frozen=True)
class Plugin:
    """One kind of cluster, the stack for it, and what its pods look like."""

    description: str
    stack: dict[str, object]
    resource: str
    dies: int
    """of each pod"""
    annotations: tuple[str, str]
    """what is on a pod that has the first dies of its server, and on one that has the next ones"""
    host_network: bool
    model: str = "deepseek_v4"


MINDCLUSTER = Plugin(
    "clusters/mindcluster-a2.yaml",
    {
        "cluster.npu.family": "A2",
        "cluster.npu.devicePlugin": "mindcluster",
        'cluster.npu.nodeSelector["accelerator-type"]': "module-910b-8",
        "cluster.scheduler": "volcano",
        **A2_LAYOUT,
    },
    "huawei.com/Ascend910",
    8,
    annotations=("huawei.com/AscendReal=Ascend910-0,Ascend910-1", "huawei.com/AscendReal=Ascend910-0,Ascend910-1"),
    host_network=True,
)
# an old release, which asks for the numbers of its dies on the server
HAMI = Plugin(
    "clusters/hami-a3.yaml",
    {
        "cluster.npu.devicePlugin": "hami",
        "cluster.npu.nodes": 2,
        f"deployments.{DEPLOYMENT}.recipe": "deepseek-v2-lite-a3",
    },
    "huawei.com/Ascend910C",
    2,
    annotations=(
        'huawei.com/Ascend910C=[{"UUID": "simulated-0"}, {"UUID": "simulated-1"}]',
        'huawei.com/Ascend910C=[{"UUID": "simulated-2"}, {"UUID": "simulated-3"}]',
    ),
    host_network=False,
    model="deepseek-ai/DeepSeekV2",
)
CCE = Plugin(
    "clusters/cce-a2-and-a3.yaml",
    {
        "cluster.npu.family": "A2",
        'cluster.npu.nodeSelector["node.kubernetes.io/npu.chip.name"]': "910B3",
        "cluster.npu.nodes": 2,
        f"deployments.{DEPLOYMENT}.hostNetwork": "false",
        **A2_LAYOUT,
    },
    "huawei.com/ascend-1980",
    8,
    annotations=("huawei.com/AscendReal=Ascend910-0,Ascend910-1", "huawei.com/AscendReal=Ascend910-0,Ascend910-1"),
    host_network=False,
)


@pytest.fixture(scope="module", params=[MINDCLUSTER, HAMI, CCE], ids=["mindcluster", "hami", "cce"])
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Plugin, Cluster]]:
    """The cluster of one device plugin, on which ``make up`` has run; one at a time."""
    plugin: Plugin = request.param
    with running(tmp_path_factory.mktemp("plugin"), plugin.description, plugin.stack) as cluster:
        yield plugin, cluster


def test_a_stack_of_the_plugin_converges_and_answers_with_kv_cache_from_prefill(
    started: tuple[Plugin, Cluster],
) -> None:
    plugin, cluster = started
    cluster.assert_paired(1, 1)
    for stream in (False, True):
        answer, evidence = cluster.ask(stream=stream, model=plugin.model)
        assert answer.text
        assert evidence.proven, evidence


def test_pods_are_where_the_plugin_has_dies_for_them_and_know_which(started: tuple[Plugin, Cluster]) -> None:
    plugin, cluster = started
    nodes = {node["metadata"]["name"]: node for node in cluster.objects("nodes")}
    left = []
    for pod in cluster.settled_pods().values():
        (engine,) = [one for one in pod["spec"]["containers"] if one["name"] == "vllm"]
        npus = {name: amount for name, amount in engine["resources"]["limits"].items() if name.startswith("huawei.com/")}
        assert npus == {plugin.resource: str(plugin.dies)}
        labels = nodes[pod["spec"]["nodeName"]]["metadata"]["labels"]
        assert pod["spec"].get("nodeSelector", {}).items() <= labels.items()
        left += [f"{key}={value}" for key, value in pod["metadata"]["annotations"].items() if key.startswith("huawei.com/")]
    found = sorted(left)
    assert len(found) == 2
    assert all(one.startswith(wanted) for one, wanted in zip(found, sorted(plugin.annotations), strict=True)), found


def test_pods_have_the_network_that_is_declared_and_the_ports_and_names_that_follow(started: tuple[Plugin, Cluster]) -> None:
    plugin, cluster = started
    pods = list(cluster.settled_pods().values())
    for pod in pods:
        spec, status = pod["spec"], pod["status"]
        assert spec.get("hostNetwork", False) == plugin.host_network
        assert spec["dnsPolicy"] == ("ClusterFirstWithHostNet" if plugin.host_network else "ClusterFirst")
        assert (status["podIP"] == status["hostIP"]) == plugin.host_network
        # the API server takes every port of a pod with the host's network as one of the host's: one pod of them a server
        for container in spec["containers"]:
            for port in container["ports"]:
                assert port.get("hostPort") == (port["containerPort"] if plugin.host_network else None)
    if plugin.dies == 2:  # with a network of their own, two pods with equal ports share a server
        assert len({pod["spec"]["nodeName"] for pod in pods}) == 1
