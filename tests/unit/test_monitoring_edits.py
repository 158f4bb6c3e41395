"""What `pd diff`, `preview` and `up` make of monitors, alerts and policies, which a cluster may not even know."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from impact.drift import drift_of
from live import paths
from live.api import FORBIDDEN, ApiRefusedError, UnknownKindError
from live.edits import Edit, read_edits
from render import render_monitoring
from render.ownership import owned
from tests.unit.test_impact_report import MANAGER, Cluster

WATCHED: dict[str, Any] = {"monitoring": {}, "networkPolicy": {"namespaces": ["monitoring"]}}
BESIDE = ("NetworkPolicy", "PodMonitor", "PrometheusRule")
ON_POD_NETWORK = {"hostNetwork": False}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    there = Cluster(tmp_path)
    there.declare(chat=ON_POD_NETWORK)
    there.converge()
    return there


def edit_of(cluster: Cluster) -> Edit:
    (edit,) = asyncio.run(read_edits(cluster.api, cluster.stack, MANAGER))  # type: ignore[arg-type]  # the fake one
    return edit


def without_operator(cluster: Cluster) -> None:
    for kind in (paths.pod_monitors, paths.prometheus_rules):
        for path in (kind(), kind("default"), kind("default", "chat"), kind("models", "chat")):
            cluster.api.refused[path] = UnknownKindError("the cluster has no CRDs of the Prometheus operator", "install its CRDs")


def test_what_is_wanted_beside_a_deployment_is_listed_and_leaves_its_pods_alone(cluster: Cluster) -> None:
    cluster.declare(WATCHED, chat=ON_POD_NETWORK)
    edit = edit_of(cluster)
    assert edit.changes == tuple(f"{kind} chat" for kind in BESIDE)
    assert {one.object.split()[0] for one in drift_of([edit], MANAGER) if one.kind == "absent"} == {*BESIDE}
    cluster.converge()
    assert edit_of(cluster).is_nothing


def test_what_is_not_wanted_any_more_goes(cluster: Cluster) -> None:
    cluster.declare(WATCHED, chat=ON_POD_NETWORK)
    cluster.converge()
    cluster.declare(chat=ON_POD_NETWORK)
    edit = edit_of(cluster)
    assert sorted(item["kind"] for item in edit.deleted) == [*BESIDE]
    assert edit.changes == ()


def test_what_watches_the_router_is_no_part_of_a_deployment(cluster: Cluster) -> None:
    stack = cluster.declare(WATCHED, chat=ON_POD_NETWORK)
    for item in render_monitoring(stack.cluster):
        made = owned(item, MANAGER)
        made["metadata"] |= {"managedFields": [{"manager": MANAGER}]}
        cluster.api.put(made)
    cluster.converge()
    assert edit_of(cluster).is_nothing
    cluster.declare({"networkPolicy": WATCHED["networkPolicy"]}, chat=ON_POD_NETWORK)
    assert {item["metadata"]["namespace"] for item in edit_of(cluster).deleted} == {"default"}


def test_a_cluster_without_the_operator_refuses_monitors_with_what_would_be_right(cluster: Cluster) -> None:
    without_operator(cluster)
    cluster.declare(WATCHED, chat=ON_POD_NETWORK)
    refusals = edit_of(cluster).refusals
    assert [refusal.split()[0] for refusal in refusals] == ["PodMonitor", "PrometheusRule"]
    assert all("install its CRDs" in refusal for refusal in refusals)


def test_a_cluster_without_the_operator_refuses_them_also_in_a_namespace_that_comes_with_the_stack(cluster: Cluster) -> None:
    without_operator(cluster)
    cluster.declare({**WATCHED, "namespaces": ["models"]}, chat=ON_POD_NETWORK | {"namespace": "models"})
    edits = asyncio.run(read_edits(cluster.api, cluster.stack, MANAGER))  # type: ignore[arg-type]  # the fake one
    assert [len(edit.refusals) for edit in edits if edit.namespace == "models"] == [2]


@pytest.mark.parametrize("kinds", [(paths.pod_monitors, paths.prometheus_rules), (paths.network_policies,)])
def test_who_does_without_needs_no_permission_to_see_them(cluster: Cluster, kinds: tuple[paths.Kind, ...]) -> None:
    for kind in kinds:
        for path in (kind(), kind("default")):
            cluster.api.refused[path] = ApiRefusedError(FORBIDDEN, "forbidden")
    assert edit_of(cluster).is_nothing
    without_operator(cluster)
    assert edit_of(cluster).is_nothing
