"""Real Volcano: a serving group is one gang, as large as its ratio, in the queue that is declared."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import pytest

from render import render_deployment
from rules import read
from tests import stacks
from tests.cluster.conftest import DEPLOYMENT, Cluster, Pods, running, uids, until

NPU = "huawei.com/ascend-1980"
LONG_ENOUGH = 3.0
"""seconds in which Volcano looks at all pods fifteen times, and in which it has bound those that fit before"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four servers of sixteen dies with Volcano; stack dev has two of them."""
    over = {"cluster.scheduler": "volcano"}
    with running(tmp_path_factory.mktemp("volcano"), "clusters/volcano.yaml", over) as started:
        yield started


class Apply(Protocol):
    """Applies a deployment as `up` would, but waits for nothing, as it is meant not to start; gives its ModelServing's name."""

    def __call__(self, name: str, scheduler: str = "volcano", **declared: Any) -> str: ...


@pytest.fixture
def apply(cluster: Cluster) -> Iterator[Apply]:
    applied: list[str] = []

    def apply(name: str, scheduler: str = "volcano", **declared: Any) -> str:
        environment = {"scheduler": scheduler, "npu": {"family": "A3", "devicePlugin": "cce"}}
        brief = {"drainPeriod": "1s", "terminationGracePeriod": "5s"}
        stack = read(stacks.config(name, cluster=environment, readiness=brief, **declared))
        serving = render_deployment(stack.deployments[name], stack.cluster).stable
        file = cluster.state.directory / f"{name}.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": serving.objects}))
        cluster.kubectl("apply", "--server-side", f"--filename={file}")
        applied.append(serving.name)
        return serving.name

    yield apply
    for name in set(applied):
        cluster.kubectl("delete", "modelserving", name, "--cascade=background")
        until(partial(_is_gone, cluster, name), 120)


def _is_gone(cluster: Cluster, name: str) -> bool | None:
    return None if cluster.pods(name) else True


def placed(pods: Pods) -> list[str]:
    return [name for name, pod in pods.items() if pod["spec"].get("nodeName")]


def all_made(cluster: Cluster, name: str, count: int) -> None:
    until(lambda: True if len(cluster.pods(name)) == count else None, 30)


def all_placed(cluster: Cluster, name: str, count: int) -> None:
    until(lambda: True if len(placed(cluster.pods(name))) == count else None, 30)


def pod_group(cluster: Cluster, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(cluster.kubectl("get", "podgroup", name, "--output=json"))
    return found


def test_a_group_is_one_gang_that_grows_with_the_ratio_and_leaves_its_pods_alone(cluster: Cluster) -> None:
    spec = pod_group(cluster, f"{DEPLOYMENT}-0")["spec"]
    assert (spec["minMember"], spec["minResources"][NPU], spec["queue"]) == (2, "32", "default")
    before = uids(cluster.settled_pods())
    cluster.configure(f"deployments.{DEPLOYMENT}.ratio", "2P1D")
    cluster.up()
    spec = pod_group(cluster, f"{DEPLOYMENT}-0")["spec"]
    assert (spec["minMember"], spec["minResources"][NPU]) == (3, "48")
    assert before.items() < uids(cluster.settled_pods()).items()
    cluster.assert_paired(2, 1)
    cluster.configure(f"deployments.{DEPLOYMENT}.ratio", "1P1D")
    cluster.up()
    assert pod_group(cluster, f"{DEPLOYMENT}-0")["spec"]["minMember"] == 2


def test_of_a_group_that_does_not_fit_no_pod_starts_until_all_do(cluster: Cluster, apply: Apply) -> None:
    apply("gang", ratio="2P1D")  # three servers, and two are free
    all_made(cluster, "gang", 3)
    time.sleep(LONG_ENOUGH)
    assert placed(cluster.pods("gang")) == []
    status = pod_group(cluster, "gang-0")["status"]
    assert any(one["type"] == "Unschedulable" and one["status"] == "True" for one in status["conditions"]), status
    apply("gang", ratio="1P1D")
    all_placed(cluster, "gang", 2)


def test_without_volcano_a_part_of_such_a_group_takes_the_servers_that_are_left(cluster: Cluster, apply: Apply) -> None:
    apply("part", scheduler="default-scheduler", ratio="2P1D")
    all_made(cluster, "part", 3)
    all_placed(cluster, "part", 2)
    assert "part-0" not in cluster.kubectl("get", "podgroups", "--output=name")


def test_a_gang_of_fewer_than_all_starts_with_these(cluster: Cluster, apply: Apply) -> None:
    name = apply("few", ratio="2P1D", scheduling={"gangPolicy": {"minRoleReplicas": {"prefill": 1}}})
    all_made(cluster, name, 3)
    all_placed(cluster, name, 2)
    pods = cluster.pods(name)
    assert {pods[one]["metadata"]["labels"]["modelserving.volcano.sh/role"] for one in placed(pods)} == {"prefill", "decode"}
    assert pod_group(cluster, f"{name}-0")["spec"]["minMember"] == 2


def test_a_group_waits_for_room_in_its_queue(cluster: Cluster, apply: Apply) -> None:
    queue = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "inference"},
        "spec": {"capability": {NPU: "16"}},
    }
    file = cluster.state.directory / "queue.json"
    file.write_text(json.dumps(queue))
    cluster.kubectl("apply", f"--filename={file}")
    apply("queued", scheduling={"queue": "inference"})
    all_made(cluster, "queued", 2)
    assert pod_group(cluster, "queued-0")["spec"]["queue"] == "inference"
    time.sleep(LONG_ENOUGH)
    assert placed(cluster.pods("queued")) == []
    cluster.kubectl("patch", "queue", "inference", "--type=merge", f"--patch={json.dumps({'spec': {'capability': {NPU: '32'}}})}")
    all_placed(cluster, "queued", 2)
