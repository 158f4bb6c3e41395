"""What the device plugin decides in a pod, and what scheduler and network do."""

from __future__ import annotations

from typing import Any

import pytest

from models.role import ROLES
from render import render_deployment
from rules import Finding, StackError, read
from tests import stacks

A2 = {"prefill": {"parallelism": {"dp": 1, "tp": 8}}, "decode": {"parallelism": {"dp": 4, "tp": 2}}}
OLD: dict[str, Any] = {"recipe": "deepseek-v2-lite-a3"}


def npu(family: str, plugin: str, **more: Any) -> dict[str, Any]:
    return {"npu": {"family": family, "devicePlugin": plugin, **more}}


def model_serving(cluster: dict[str, Any], **declared: Any) -> dict[str, Any]:
    stack = read(stacks.config(cluster=cluster, **declared))
    return render_deployment(stack.deployments["deepseekv4-pd"], stack.cluster).stable.model_serving


def pods(cluster: dict[str, Any], **declared: Any) -> list[dict[str, Any]]:
    """PodSpecs of both roles' entry pods."""
    roles = model_serving(cluster, **declared)["spec"]["template"]["roles"]
    return [role["entryTemplate"]["spec"] for role in roles]


def scripts(cluster: dict[str, Any], **declared: Any) -> list[str]:
    stack = read(stacks.config(cluster=cluster, **declared))
    rendered = render_deployment(stack.deployments["deepseekv4-pd"], stack.cluster).stable.scripts
    return [rendered[role]["data"][f"{role}.sh"] for role in ROLES]


def codes(cluster: dict[str, Any], **declared: Any) -> list[str]:
    found: list[Finding] = []
    try:
        read(stacks.config(cluster=cluster, **declared), warn=found.append)
    except StackError as error:
        found = list(error.findings)
    return sorted({finding.code for finding in found})


@pytest.mark.parametrize(
    ("cluster", "layout", "resource"),
    [
        (npu("A3", "cce"), {}, {"huawei.com/ascend-1980": "16"}),
        (npu("A3", "mindcluster"), {}, {"huawei.com/Ascend910": "16"}),
        (npu("A3", "hami"), {}, {"huawei.com/Ascend910C": "16"}),
        (npu("A2", "cce"), A2, {"huawei.com/ascend-1980": "8"}),
        (npu("A2", "mindcluster"), A2, {"huawei.com/Ascend910": "8"}),
        (npu("A2", "hami", chip="910B3"), A2, {"huawei.com/Ascend910B3": "8"}),
        (npu("A2", "hami", chip="910B4-1"), A2, {"huawei.com/Ascend910B4-1": "8"}),
    ],
)
def test_each_plugin_has_its_own_name_for_dies_and_nothing_else_is_asked_for(
    cluster: dict[str, Any], layout: dict[str, Any], resource: dict[str, str]
) -> None:
    for pod in pods(cluster, **layout):
        resources = pod["containers"][0]["resources"]
        for kind in ("requests", "limits"):
            assert {name: amount for name, amount in resources[kind].items() if "/" in name} == resource


@pytest.mark.parametrize(
    ("plugin", "annotated", "devices", "place"),
    [
        ("cce", True, "${ASCEND_REAL_DEVICES:-}", "annotation huawei.com/AscendReal"),
        (
            "mindcluster",
            True,
            "${ASCEND_REAL_DEVICES:-${ASCEND_VISIBLE_DEVICES:-}}",
            "annotation huawei.com/AscendReal and no variable ASCEND_VISIBLE_DEVICES",
        ),
        ("hami", False, "${ASCEND_VISIBLE_DEVICES:-}", "variable ASCEND_VISIBLE_DEVICES"),
    ],
)
def test_an_old_release_takes_the_numbers_of_its_dies_from_where_the_plugin_leaves_them(
    plugin: str,
    annotated: bool,  # noqa: FBT001
    devices: str,
    place: str,
) -> None:
    for pod in pods(npu("A3", plugin), **OLD):
        found = [one["valueFrom"] for one in pod["containers"][0]["env"] if one["name"] == "ASCEND_REAL_DEVICES"]
        assert found == ([{"fieldRef": {"fieldPath": "metadata.annotations['huawei.com/AscendReal']"}}] if annotated else [])
    for script in scripts(npu("A3", plugin), **OLD):
        assert f'<<<"{devices}"' in script
        assert f"the device plugin left no {place} on this pod" in script


@pytest.mark.parametrize("plugin", ["cce", "mindcluster", "hami"])
def test_a_current_release_asks_no_plugin_for_numbers(plugin: str) -> None:
    for script in scripts(npu("A3", plugin)):
        assert "DEVICES" not in script


@pytest.mark.parametrize(
    ("selector", "scheduler", "expected"),
    [
        ({}, "volcano", ["PD880"]),
        ({}, "default-scheduler", []),
        ({"accelerator-type": "module-a3-16"}, "volcano", []),
        ({"accelerator-type": "module-of-our-own"}, "volcano", []),
        ({"accelerator-type": "module-910b-16"}, "volcano", ["PD881"]),
        ({"accelerator-type": "850-Atlas-8p-8"}, "default-scheduler", ["PD881"]),
    ],
)
def test_mindclusters_scheduler_wants_the_kind_of_server_and_that_of_another_family_is_a_mistake(
    selector: dict[str, str], scheduler: str, expected: list[str]
) -> None:
    assert codes({**npu("A3", "mindcluster", nodeSelector=selector), "scheduler": scheduler}) == expected


@pytest.mark.parametrize(
    ("plugin", "scheduler", "expected"),
    [
        ("hami", "default-scheduler", ["PD882"]),
        ("hami", "volcano", []),
        ("mindcluster", "volcano", ["PD882"]),
        ("mindcluster", "default-scheduler", []),
        ("cce", "volcano", []),
    ],
)
def test_half_a_card_is_refused_by_whom_it_is_refused_in_the_cluster(plugin: str, scheduler: str, expected: list[str]) -> None:
    selector = {"accelerator-type": "module-a3-16"} if plugin == "mindcluster" else {}
    cluster = {**npu("A3", plugin, nodeSelector=selector), "scheduler": scheduler}
    assert codes(cluster, decode={"parallelism": {"dp": 7, "tp": 1, "expertParallel": False}}) == expected


def test_one_die_is_half_a_card_that_everybody_gives() -> None:
    one = {"parallelism": {"dp": 1, "tp": 1}}
    assert codes(npu("A3", "hami"), **OLD, prefill=one, decode=one) == []


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_hamis_webhook_refuses_privileged_containers_of_every_kind(kind: str) -> None:
    container = {"name": "tune", "image": "tuner:1", "securityContext": {"privileged": True}}
    decode = {"podTemplate": {"spec": {kind: [container]}}}
    assert codes(npu("A3", "hami"), decode=decode) == ["PD883"]
    assert codes({**npu("A3", "hami"), "scheduler": "volcano"}, decode=decode) == []
    assert codes(npu("A3", "cce"), decode=decode) == []


@pytest.mark.parametrize("scheduler", ["volcano", "default-scheduler"])
def test_kthena_gets_the_scheduler_and_the_queue(scheduler: str) -> None:
    queue = {"scheduling": {"queue": "inference"}} if scheduler == "volcano" else {}
    serving = model_serving({"scheduler": scheduler}, **queue)
    assert serving["spec"]["schedulerName"] == scheduler
    expected = "inference" if queue else None
    assert serving["metadata"].get("annotations", {}).get("scheduling.volcano.sh/queue-name") == expected


@pytest.mark.parametrize("host_network", [True, False])
def test_the_network_decides_the_dns_policy_of_entry_pods_and_workers_and_no_port_depends_on_it(host_network: bool) -> None:  # noqa: FBT001
    serving = model_serving({}, hostNetwork=host_network, decode={"parallelism": {"dp": 32, "tp": 1}, "pods": 2})
    roles = {role["name"]: role for role in serving["spec"]["template"]["roles"]}
    templates = [roles["prefill"]["entryTemplate"], roles["decode"]["entryTemplate"], roles["decode"]["workerTemplate"]]
    for template in templates:
        spec = template["spec"]
        policy = (spec.get("hostNetwork", False), spec.get("dnsPolicy"))
        assert policy == ((True, "ClusterFirstWithHostNet") if host_network else (False, None))
        assert not any("hostPort" in port for port in spec["containers"][0]["ports"])  # the API server's to add
    first = {port["containerPort"] for port in templates[2]["spec"]["containers"][0]["ports"]}
    assert first < {port["containerPort"] for port in templates[1]["spec"]["containers"][0]["ports"]}
