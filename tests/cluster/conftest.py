"""A local cluster of the tests' own: real control plane, real Kthena, real Pulumi; own state, ports and Pulumi home."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pytest

from local import chat, control_plane, pulumi, toolchain
from local.cluster import load
from local.state import OVERRIDE, State, free_ports
from tests import stacks

DEPLOYMENT = "deepseekv4-pd"
OUR_KINDS = (
    "modelservings,modelservers,modelroutes,autoscalingpolicies,configmaps,deployments,services,"
    "serviceaccounts,namespaces,roles,rolebindings,clusterroles,clusterrolebindings,networkpolicies,"
    "validatingwebhookconfigurations,mutatingwebhookconfigurations"
)
T = TypeVar("T")
Pods = dict[str, dict[str, Any]]
"""name -> pod object"""


@dataclass
class Cluster:
    """What a user does with a cluster and a stack, and what they see."""

    state: State
    config_file: Path
    router_port: int
    debug_port: int
    webhook_ports: tuple[int, int]
    """of router and controller"""
    over: Mapping[str, object] = field(default_factory=dict)
    """path in the stack file -> value that goes over stack dev's"""
    first_up: str = ""
    """what the first ``make up`` printed"""
    pulumi: pulumi.Pulumi = field(init=False)

    def __post_init__(self) -> None:
        self.pulumi = pulumi.find(self.state, print, self.config_file)

    @property
    def environment(self) -> dict[str, str]:
        return {**self.pulumi.environment, OVERRIDE: str(self.state.directory)}

    def local(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "local", *arguments]
        return subprocess.run(
            command, env=self.environment, cwd=stacks.ROOT, text=True, capture_output=True, check=False, timeout=300
        )

    def configure(self, path: str, value: object) -> None:
        self.pulumi.run("config", "set", "--stack", "dev", "--path", "--", f"kthena-pd:{path}", str(value))

    def up(self, *options: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.pulumi.run("up", "--yes", "--skip-preview", "--stack", "dev", *options, check=check)

    def declare(self) -> None:
        """Write stack dev's file as it is committed, but with ports of its own, and with pods that are drained in a second."""
        shutil.copy(stacks.ROOT / "Pulumi.dev.yaml", self.config_file)
        self.configure("cluster.controlPlane.router.port", self.router_port)
        self.configure("cluster.controlPlane.router.debugPort", self.debug_port)
        self.configure("cluster.controlPlane.router.webhookPort", self.webhook_ports[0])
        self.configure("cluster.controlPlane.controller.webhookPort", self.webhook_ports[1])
        self.configure(f"deployments.{DEPLOYMENT}.readiness.drainPeriod", "1s")
        for path, value in self.over.items():
            self.configure(path, value)

    def reset(self) -> None:
        """Bring stack dev to what is committed, whatever has been done to it."""
        self.declare()
        self.pulumi.free_dead_lock("dev")
        self.up()
        self.assert_paired(1, 1)

    def kubectl(self, *arguments: str) -> str:
        return self.pulumi.kubectl(*arguments)

    def objects(self, kinds: str, *options: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", kinds, "--output=json", *options))["items"]
        return items

    def ours(self) -> list[dict[str, Any]]:
        """All that stack dev has made: what has the project's label, in every namespace."""
        options = ("--all-namespaces", "--selector=app.kubernetes.io/managed-by=kthena-pd", "--show-managed-fields")
        return self.objects(OUR_KINDS, *options)

    def pods(self, name: str = DEPLOYMENT, namespace: str = "default") -> Pods:
        found = self.objects("pods", f"--namespace={namespace}", f"--selector=modelserving.volcano.sh/name={name}")
        return {pod["metadata"]["name"]: pod for pod in found}

    def settled_pods(self, name: str = DEPLOYMENT, namespace: str = "default") -> Pods:
        """The pods once none of them is going away any more."""

        def remaining() -> Pods | None:
            pods = self.pods(name, namespace)
            return None if any("deletionTimestamp" in pod["metadata"] for pod in pods.values()) else pods

        return until(remaining, 60)

    def ask(
        self, question: str = "What is a KV cache?", *, stream: bool = False, model: str = "deepseek_v4"
    ) -> tuple[chat.Answer, chat.Evidence]:
        answer = chat.chat(f"http://127.0.0.1:{self.router_port}", model, question, stream=stream)
        return answer, chat.kv_evidence(self.state.pods, answer.request_id)

    def assert_paired(self, prefill: int, decode: int, name: str = DEPLOYMENT, namespace: str = "default") -> None:
        """That the router knows these pods now: after an `up` nothing is left to wait for."""
        chat.wait_until_paired(f"http://127.0.0.1:{self.debug_port}", namespace, name, prefill, decode, timeout=0)


def until(probe: Callable[[], T | None], seconds: float) -> T:
    deadline = time.monotonic() + seconds
    while True:
        found = probe()
        if found is not None:
            return found
        assert time.monotonic() < deadline, f"not so within {seconds} s: {probe}"
        time.sleep(0.1)


def uids(pods: Pods) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in pods.items()}


def is_ready(pod: dict[str, Any]) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions", []))


@contextmanager
def running(
    directory: Path, description: str = "cluster.yaml", over: Mapping[str, object] = MappingProxyType({})
) -> Iterator[Cluster]:
    """A cluster as ``local/<description>`` has it, on which ``make up`` has run once with stack dev and what goes ``over`` it."""
    config_file, described = directory / "Pulumi.dev.yaml", stacks.ROOT / "local" / description
    toolchain.ensure(control_plane.tools(load(described)), print)  # on a new machine it takes longer than an `up` may
    router, debug, *webhooks = free_ports(4)
    ports = router, debug, (webhooks[0], webhooks[1])
    started = Cluster(State(directory / "state"), config_file, *ports, over)
    started.pulumi.select("dev")
    started.declare()
    try:
        up = started.local("up", "--config-file", str(config_file), "--cluster", str(described))
        assert up.returncode == 0, up.stdout + up.stderr
        started.first_up = up.stdout
        yield started
    finally:
        control_plane.down(print, started.state)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster on which ``make up`` has run once, with stack dev at 1P1D."""
    with running(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def converged(cluster: Cluster) -> Cluster:
    """The cluster with stack dev as it is committed, at 1P1D, whatever the test before has done."""
    cluster.reset()
    return cluster
