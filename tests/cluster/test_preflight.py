"""Preflight on a real API server: all that is missing at once, and a thousand nodes in seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import preflight
from live.api import Api
from local import control_plane
from local.cluster import load
from local.state import OVERRIDE
from tests import stacks
from tests.cluster.conftest import DEPLOYMENT, Cluster

NODES = 1000
SECONDS = 30.0
"""it takes some where nothing else runs"""
IMPOSSIBLE: dict[str, Any] = {
    "cluster.scheduler": "volcano",
    "cluster.npu.nodes": 100,
    f"deployments.{DEPLOYMENT}.groups": 9,
    f"deployments.{DEPLOYMENT}.namespace": "nowhere",
    f"deployments.{DEPLOYMENT}.model.weights.claim.name": "weights",
    f"deployments.{DEPLOYMENT}.model.weights.claim.path": "/models/DeepSeek-V4-Flash-w8a8-mtp",
    f"deployments.{DEPLOYMENT}.model.weights.hostPath": None,
    f"deployments.{DEPLOYMENT}.prefill.podTemplate.spec.imagePullSecrets[0].name": "registry",
    f"deployments.{DEPLOYMENT}.decode.podTemplate.spec.runtimeClassName": "ascend",
}


@pytest.fixture
def connected(converged: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster, which live.Api finds by KUBECONFIG."""
    monkeypatch.setenv("KUBECONFIG", converged.pulumi.variables["KUBECONFIG"])
    return converged


def declare(cluster: Cluster, values: dict[str, Any]) -> None:
    content = yaml.safe_load(cluster.config_file.read_text())
    for path, value in values.items():
        *around, last = path.replace("[0]", ".0").split(".")
        place = content["config"].setdefault(f"kthena-pd:{around[0]}", {})
        for key in around[1:]:
            place = place[0] if key == "0" else place.setdefault(key, [{}] if key == "imagePullSecrets" else {})
        place[last] = value
    cluster.config_file.write_text(yaml.safe_dump(content))


def test_all_that_is_missing_is_said_at_once_and_up_changes_nothing(
    connected: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert preflight.run(connected.config_file, "text") == preflight.FITS
    assert capsys.readouterr().out == "no findings in 1 file\n"
    before = {
        item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in connected.ours() if item["kind"] != "Deployment"
    }
    declare(connected, IMPOSSIBLE)
    assert preflight.run(connected.config_file, "text") == preflight.LACKS
    said = capsys.readouterr().out
    refused = connected.up(check=False)
    assert refused.returncode != 0
    for text in (said, refused.stdout + refused.stderr):
        for code, what in [
            ("PF110", "podgroups and queues"),
            ("PF201", "no namespace nowhere"),
            ("PF202", "no PersistentVolumeClaim nowhere/weights"),
            ("PF202", "no RuntimeClass ascend"),
            ("PF401", "9 prefill pods of 16, 9 decode pods of 16"),
        ]:
            assert code in text
            assert what in text
    assert "PF203" in said  # a warning, which stops nothing
    assert 'namespaces "nowhere" not found' not in refused.stdout + refused.stderr
    after = {
        item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in connected.ours() if item["kind"] != "Deployment"
    }
    assert after == before


def test_who_may_do_little_is_told_what_is_missing(
    connected: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connected.kubectl("create", "serviceaccount", "operator", "--namespace=default")
    try:
        connected.kubectl("create", "role", "operator", "--namespace=default", "--verb=get,list", "--resource=pods,configmaps")
        connected.kubectl(
            "create", "rolebinding", "operator", "--namespace=default", "--role=operator", "--serviceaccount=default:operator"
        )
        token = connected.kubectl("create", "token", "operator", "--namespace=default").strip()
        config = yaml.safe_load(Path(connected.pulumi.variables["KUBECONFIG"]).read_text())
        config["users"][0]["user"] = {"token": token}
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        assert preflight.run(connected.config_file, "text") == preflight.LACKS
        said = capsys.readouterr().out
        (in_default,) = [line for line in said.splitlines() if "in namespace default" in line and line.startswith("PF002")]
        assert "create, patch configmaps" in in_default
        assert "watch" in in_default
        assert " list pods" not in in_default
        assert "PF002" in said
        assert "in the cluster" in said
        (unseen,) = [line for line in said.splitlines() if line.startswith("PF004")]
        assert "list nodes in the cluster" in unseen
        assert "list deployments.apps in namespace kthena-system" in unseen
        assert "PF401" not in said
    finally:
        for kind in ("serviceaccount", "role", "rolebinding"):
            connected.kubectl("delete", kind, "operator", "--namespace=default", "--ignore-not-found")


@pytest.fixture
def many_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster of its own, without Kthena, with a thousand servers more; to delete them takes longer than to forget them."""
    monkeypatch.setenv(OVERRIDE, str(tmp_path / "state"))
    state = control_plane.up(load(stacks.ROOT / "local" / "cluster.yaml", "simulated"), print)
    monkeypatch.setenv("KUBECONFIG", str(state.kubeconfig))

    async def make() -> None:
        api, slots = await Api.connect(None), asyncio.Semaphore(20)

        async def node(number: int) -> None:
            async with slots:
                await api.create("/api/v1/nodes", _node(number))

        await asyncio.gather(*map(node, range(NODES)))

    try:
        asyncio.run(make())
        yield
    finally:
        control_plane.down(print, state)


@pytest.mark.usefixtures("many_nodes")
def test_a_thousand_nodes_are_answered_in_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Pulumi.dev.yaml"
    content = stacks.config(cluster={"npu": {"family": "A3", "devicePlugin": "cce"}}, groups=NODES)
    file.write_text(yaml.safe_dump({"config": {f"kthena-pd:{key}": value for key, value in content.items()}}))
    begin = time.monotonic()
    assert preflight.run(file, "text") == preflight.LACKS
    took = time.monotonic() - begin
    said = capsys.readouterr().out
    assert "PF401" in said
    assert f"of {NODES + 4} nodes" in said
    assert took < SECONDS, f"{took:.1f} s"


def _node(number: int) -> dict[str, Any]:
    name = f"many-{number}"
    capacity = {"cpu": "192", "memory": "2Ti", "pods": "110", "huawei.com/ascend-1980": "16"}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "arm64", "accelerator-type": "module-a3-16"}
    images = [{"names": [f"registry.example/image-{index}@sha256:{'0' * 64}"], "sizeBytes": 1} for index in range(50)]
    status = {"capacity": capacity, "allocatable": capacity, "images": images}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}
