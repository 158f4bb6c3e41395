"""The local cluster itself: ports that others hold, down and up again, pods without processes."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from local import chat
from local.state import OVERRIDE, free_ports
from tests import stacks
from tests.cluster.conftest import Cluster, is_ready, uids, until


def test_a_port_that_somebody_else_holds_is_named_with_the_setting_that_moves_the_router(converged: Cluster) -> None:
    with socket.create_server(("0.0.0.0", 0)) as other:
        port = other.getsockname()[1]
        converged.configure("cluster.controlPlane.router.port", port)
        up = converged.local("up", "--config-file", str(converged.config_file))
    assert up.returncode == 1
    assert f"{port}, in use on this machine" in up.stderr
    assert "controlPlane.router.port" in up.stderr
    assert "Traceback" not in up.stderr


def test_after_down_nothing_runs_and_the_next_up_goes_on_with_the_same_objects(converged: Cluster) -> None:
    before = uids(converged.settled_pods())
    assert converged.local("down").returncode == 0
    assert "running" not in converged.local("status").stdout
    up = converged.local("up", "--config-file", str(converged.config_file))
    assert up.returncode == 0, up.stdout + up.stderr
    assert "proven" in up.stdout
    assert uids(converged.settled_pods()) == before


def test_a_service_is_reached_by_its_address_inside_the_cluster_and_an_answer_streams_through_it(converged: Cluster) -> None:
    flags = ["create", "service", "clusterip", "chat", "--namespace=kthena-system", "--tcp"]
    converged.kubectl(*flags, f"8081:{converged.router_port}")
    try:
        converged.kubectl(
            "set", "selector", "service", "chat", "app.kubernetes.io/name=kthena-router", "--namespace=kthena-system"
        )
        (service,) = converged.objects("services", "--namespace=kthena-system", "--field-selector=metadata.name=chat")
        url = f"http://{service['spec']['clusterIP']}:8081"
        until(lambda: serves(url), 5)
        answer = chat.chat(url, "deepseek_v4", "What is a KV cache?", stream=True)
        assert (answer.chunks > 1, answer.complete) == (True, True)
    finally:
        converged.kubectl("delete", "service", "chat", "--namespace=kthena-system")


def serves(url: str) -> bool | None:
    with contextlib.suppress(httpx.ConnectError):
        return httpx.get(f"{url}/healthz", trust_env=False).is_success or None
    return None


def test_status_names_every_program_and_pod_and_logs_shows_both_kinds(converged: Cluster) -> None:
    status = converged.local("status").stdout
    for name in ("etcd", "kube-apiserver", "kubelet", "deepseekv4-pd-0-prefill-0-0", "kthena-router"):
        assert name in status
    assert "Simulated: deepseek_v4" in converged.local("logs", "deepseekv4-pd-0-prefill-0-0").stdout
    assert converged.local("logs", "kubelet").returncode == 0
    unknown = converged.local("logs", "no-such-pod")
    assert unknown.returncode == 1
    assert "no pod no-such-pod" in unknown.stderr


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """Stack file for a second cluster beside the first."""
    config_file = tmp_path / "Pulumi.dev.yaml"
    content = yaml.safe_load((stacks.ROOT / "Pulumi.dev.yaml").read_text())
    control_plane = content["config"]["kthena-pd:cluster"]["controlPlane"]
    router, debug, *webhooks = free_ports(4)
    control_plane["router"] |= {"port": router, "debugPort": debug, "webhookPort": webhooks[0]}
    control_plane["controller"]["webhookPort"] = webhooks[1]
    config_file.write_text(yaml.safe_dump(content))
    return config_file


def test_pods_can_be_left_as_objects_on_a_second_cluster_beside_the_first(cluster: Cluster, second: Path, tmp_path: Path) -> None:
    environment = {**os.environ, OVERRIDE: str(tmp_path / "state")}

    def local(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "local", *arguments]
        return subprocess.run(command, env=environment, cwd=stacks.ROOT, text=True, capture_output=True, check=False, timeout=200)

    try:
        up = local("up", "--config-file", str(second), "--pods", "simulated")
        assert up.returncode == 0, up.stdout + up.stderr
        assert "deepseekv4-pd-0-decode-0-0" in local("status").stdout
        assert not list((tmp_path / "state" / "pods").glob("default_*/*/log")), "an engine runs in a simulated pod"
        assert all(is_ready(pod) for pod in cluster.pods().values())
    finally:
        assert local("clean").returncode == 0
    assert not (tmp_path / "state").exists()
