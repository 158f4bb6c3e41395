"""What the program does while a deployment is on its way."""

from __future__ import annotations

import asyncio
from typing import Any

import pulumi
import pytest

from components import PDDeployment, PDDeploymentArgs, converging
from convergence.goal import Goal
from convergence.symptoms import Cause, NotConvergedError
from live.api import Api
from live.snapshot import Snapshot
from rules import read
from tests import stacks
from tests.component.conftest import Deploy


class Kthena:
    """Stands in for all that is waited for: deployments that become ready, and those that don't."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stuck: frozenset[str] = frozenset()
        self.seconds = 0.0
        self.events: list[str] = []
        monkeypatch.setattr(converging, "QUIET_SECONDS", 0.3)
        monkeypatch.setattr(converging, "wait", self.wait)
        monkeypatch.setattr(converging, "wait_for_router", self.wait_for_router)
        monkeypatch.setattr(converging, "read_snapshot", self.read_snapshot, raising=False)
        monkeypatch.setattr(Api, "shared", self.shared)

    async def shared(self, _: str | None) -> Any:
        return self

    async def read_snapshot(self, *_: Any, **__: Any) -> Snapshot:
        return Snapshot()

    async def wait(self, _: Api, goal: Goal, **__: Any) -> Snapshot:
        if goal.model_serving in self.stuck:
            raise NotConvergedError([Cause("crash", f"Pod {goal.model_serving}-0", "ends", "mend it")])
        await asyncio.sleep(self.seconds)
        self.events.append(f"{goal.model_serving} serves")
        found = {"metadata": {"name": goal.model_serving}, "status": {"updateRevision": f"revision of {goal.model_serving}"}}
        return Snapshot(model_servings=(found,))

    async def wait_for_router(self, *_: Any, model_server: str, **__: Any) -> None:
        self.events.append(f"{model_server} is paired")


@pytest.fixture
def kthena(monkeypatch: pytest.MonkeyPatch) -> Kthena:
    return Kthena(monkeypatch)


def build(name: str = "chat", **declared: Any) -> PDDeployment:
    stack = read(stacks.config(name, **declared))
    return PDDeployment(name, PDDeploymentArgs(stack.deployments[name], stack.cluster, router_url="http://router"))


def test_the_revision_that_is_exported_is_the_one_that_serves(deploy: Deploy, kthena: Kthena) -> None:
    exported: list[str] = []
    deploy(lambda: build().revision.apply(exported.append), made=True)
    assert exported == ["revision of chat"]
    assert kthena.events == ["chat serves", "chat is paired"]


def test_nothing_is_waited_for_in_a_preview(deploy: Deploy, kthena: Kthena) -> None:
    deploy(build, preview=True, made=True)
    assert kthena.events == []


def test_a_candidate_is_waited_for_like_its_deployment(deploy: Deploy, kthena: Kthena) -> None:
    deploy(lambda: build(rollout={"strategy": "Canary", "candidate": {"engine": {"env": {"A": "1"}}}}), made=True)
    assert len([event for event in kthena.events if event.endswith("is paired")]) == 2


def test_deployments_that_are_stuck_leave_the_others_the_time_that_they_need(
    deploy: Deploy, kthena: Kthena, monkeypatch: pytest.MonkeyPatch
) -> None:
    kthena.stuck, kthena.seconds = frozenset({"broken", "worse"}), 0.5
    said: list[str] = []
    monkeypatch.setattr(pulumi.log, "error", said.append)

    def build_all() -> None:
        build("broken")
        build("worse", model={"served": "worse"})
        build("slow", model={"served": "slow"})

    with pytest.raises(pulumi.RunError, match="not all deployments serve as declared"):
        deploy(build_all, made=True)
    assert kthena.events == ["slow serves", "slow is paired"]
    assert sorted(line.partition(":")[0] for line in said) == [
        "broken does not serve as declared",
        "worse does not serve as declared",
    ]
    assert all("mend it" in line for line in said)
