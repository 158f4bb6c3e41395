"""Waiting: when it ends, what it says meanwhile, and what it asks of the cluster. Time is the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from convergence import wait as waiting_loop
from convergence.wait import NotConvergedError, outlast, wait, wait_for_router
from live.api import Api, ApiRefusedError, ClusterError, UnreachableError
from live.router import RouterView
from live.snapshot import Snapshot
from tests.unit.test_convergence import (
    DECODE,
    GOAL,
    NPU,
    PREFILL_0,
    PREFILL_1,
    SHORT,
    START,
    UNAVAILABLE,
    Object,
    all_pods,
    event,
    pending,
    pod,
    running,
    seen,
    serving,
    unscheduled,
    waiting,
)

World = Callable[[float], Snapshot]
AVAILABLE = {"spec": {"replicas": 1}, "status": {"availableReplicas": 1}}


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    @property
    def passed(self) -> float:
        return self.now - START


class FakeApi(Api):
    """A cluster that is as ``world`` says at each second."""

    def __init__(self, world: World, controller: Object | None = None, refusal: str = "") -> None:
        self.clock, self.world = Clock(), world
        self.controller, self.refusal = controller or AVAILABLE, refusal
        self.controller_pods: list[Object] = []
        self.nodes: list[Object] = []
        self.all_pods: list[Object] = []
        self.asked: list[str] = []
        self.created: list[Object] = []
        self.patched: list[str] = []
        self.woken: list[float] = []

    async def list(self, path: str, labels: str = "", fields: str = "") -> list[Object]:
        plural = path.rsplit("/", 1)[-1]
        self.asked.append(plural)
        if "kthena-system" in path:
            return self.controller_pods
        if path in {"/api/v1/nodes", "/api/v1/pods"}:
            return self.nodes if plural == "nodes" else self.all_pods
        snapshot = self.world(self.clock.passed)
        if plural == "modelservings":
            assert labels == "app.kubernetes.io/name=pd,app.kubernetes.io/managed-by=kthena-pd"
        elif plural == "pods":
            assert labels == "modelserving.volcano.sh/name in (pd)"
        elif plural == "events":
            return [one for one in snapshot.events if fields == f"involvedObject.kind={one['involvedObject']['kind']}"]
        return list({"modelservings": snapshot.model_servings, "pods": snapshot.pods}.get(plural, snapshot.revisions))

    async def get(self, path: str) -> Object | None:
        assert path.endswith("/namespaces/kthena-system/deployments/kthena-controller-manager")
        return self.controller

    async def create(self, path: str, declared: Object, *, dry_run: bool = False) -> Object:
        assert (path, dry_run) == ("/api/v1/namespaces/default/pods", True)
        self.created.append(declared)
        if self.refusal:
            raise ApiRefusedError(403, self.refusal)
        return declared

    async def patch(self, path: str, merge: Object) -> Object:
        if path.endswith("/namespaces/default/modelservings/pd"):
            assert merge == {"spec": {"plugins": None if len(self.woken) % 2 else []}}
            self.woken.append(self.clock.passed)
            return merge
        assert list(merge["metadata"]["annotations"]) == ["kthena-pd/touched"]
        self.patched.append(path.rsplit("/", 1)[-1])
        return merge


def run(api: FakeApi, goal: Any = GOAL) -> tuple[Snapshot, list[str]]:
    said: list[str] = []
    found = asyncio.run(wait(api, goal, say=said.append, clock=api.clock, sleep=api.clock.sleep))
    return found, said


def run_stuck(api: FakeApi, goal: Any = GOAL) -> str:
    with pytest.raises(NotConvergedError) as caught:
        run(api, goal)
    return str(caught.value)


def after(seconds: float, *, first: Snapshot, then: Snapshot) -> World:
    return lambda now: first if now < seconds else then


READY = seen(*all_pods())


def loading(now: float) -> Snapshot:
    return seen(*all_pods(third=running()), of=serving(**UNAVAILABLE)) if now < 42 else READY


def test_waiting_ends_within_a_few_seconds_of_readiness_and_says_how_far_it_is() -> None:
    api = FakeApi(loading)
    found, said = run(api)
    assert found == READY
    assert 42 <= api.clock.passed <= 44
    assert said[0].startswith("prefill 2/2, decode 0/1 ready; pd-0-decode-0-0 is loading")
    assert len(said) == 5  # at most each ten seconds


def test_two_requests_make_a_look_at_first() -> None:
    api = FakeApi(lambda _: READY)
    run(api)
    assert api.asked == ["modelservings", "pods"] * 2
    assert api.clock.passed < 0.5


def test_revisions_are_asked_for_where_a_partition_keeps_some() -> None:
    api = FakeApi(lambda _: READY)
    run(api, replace(GOAL, partition="0%"))
    assert "controllerrevisions" not in api.asked
    run(api, replace(GOAL, partition=1))
    assert "controllerrevisions" in api.asked


def test_a_status_that_is_right_for_one_look_only_is_not_believed() -> None:
    first = iter([READY])
    later = seen(*all_pods(), of=serving(updateRevision="r2", updatedReplicas=None))
    new = [pod(name, revision="r2", role_hash="h2") for name in (PREFILL_0, PREFILL_1, DECODE)]
    done = seen(*new, of=serving(updateRevision="r2", currentRevision="r2"))
    api = FakeApi(lambda now: next(first, later) if now < 5 else done)
    assert run(api)[0] == done


def test_while_roles_are_replaced_a_second_lies_between_the_looks() -> None:
    of = serving()
    of["spec"]["rolloutStrategy"] = {"type": "RoleRollingUpdate"}
    api = FakeApi(lambda _: seen(*all_pods(), of=of))
    run(api)
    assert 1 <= api.clock.passed < 2


def test_a_stuck_deployment_ends_the_wait_early_with_the_cause() -> None:
    image = seen(*all_pods(third=waiting("InvalidImageName", "bad")), of=serving(**UNAVAILABLE))
    api = FakeApi(after(5, first=loading(0), then=image))
    message = run_stuck(api)
    assert message.startswith("it can't become ready:\n  Pod default/pd-0-decode-0-0: image")
    assert "\n      -> correct the image" in message
    assert api.clock.passed < 10


def test_events_are_asked_for_once_a_pod_takes_its_time() -> None:
    mounting = pod(DECODE, waiting("ContainerCreating"))
    told = [event(mounting, "FailedMount", "no such directory"), event(pod("other-0-decode-0-0"), "FailedMount", "of another")]
    api = FakeApi(lambda _: seen(*all_pods()[:2], mounting, of=serving(**UNAVAILABLE), events=told))
    message = run_stuck(api)
    assert "FailedMount: no such directory" in message
    assert 70 < api.clock.passed < 80
    assert "events" not in api.asked[:20]


def test_a_pod_that_is_refused_is_found_by_trying() -> None:
    api = FakeApi(lambda _: seen(*all_pods()[:2], of=serving(**UNAVAILABLE)), refusal="exceeded quota: npus")
    message = run_stuck(api)
    assert "Pod default/pd-0-decode-0-0: is refused: exceeded quota: npus" in message
    assert 50 <= api.clock.passed < 55
    assert {one["metadata"]["name"] for one in api.created} == {DECODE}
    assert 3 <= len(api.created) <= 4


def test_a_quota_that_becomes_free_is_no_end() -> None:
    short = seen(*all_pods()[:2], of=serving(**UNAVAILABLE))
    api = FakeApi(after(60, first=short, then=READY))

    def world(now: float) -> Snapshot:
        api.refusal = "exceeded quota: npus" if now < 35 else ""
        return READY if now >= 60 else short

    api.world = world
    assert run(api)[0] == READY
    # the controller would have let more and more time pass before it tried again
    assert len(api.woken) == 2
    assert 35 <= api.woken[0] < 46


@pytest.mark.parametrize("refusal", ['pods is forbidden: User "u" cannot create resource "pods"', ""])
def test_what_only_the_user_may_not_do_is_no_cause(refusal: str) -> None:
    api = FakeApi(lambda _: seen(*all_pods()[:2], of=serving(**UNAVAILABLE)), refusal=refusal)
    assert "its log knows why" in run_stuck(api)
    assert api.clock.passed >= 300
    assert len(api.woken) == 2


def test_a_controller_whose_pods_are_refused_is_left_alone() -> None:
    api = FakeApi(lambda _: seen(*all_pods()[:2], of=serving(**UNAVAILABLE)), refusal="exceeded quota: npus")
    run_stuck(api)
    assert api.woken == []


def test_a_controller_that_does_not_run_is_found_with_its_reason() -> None:
    down = {"spec": {"selector": {"matchLabels": {"app": "controller"}}}, "status": {}}
    api = FakeApi(lambda _: seen(of=serving(observedGeneration=None, **UNAVAILABLE)), controller=down)
    api.controller_pods = [{"metadata": {}, "status": waiting("ImagePullBackOff", "no route to host")}]
    message = run_stuck(api)
    assert "no pod of Deployment kthena-system/kthena-controller-manager is available" in message
    assert "ImagePullBackOff: no route to host" in message
    assert api.clock.passed < 90


def test_a_controller_that_is_scaled_to_0_does_not_come_back_by_itself() -> None:
    off = {"spec": {"replicas": 0}, "status": {}}
    api = FakeApi(lambda _: seen(of=serving(observedGeneration=None, **UNAVAILABLE)), controller=off)
    assert "Deployment kthena-system/kthena-controller-manager is scaled to 0" in run_stuck(api)
    assert api.clock.passed < 25


def test_a_controller_that_comes_back_is_no_end() -> None:
    down = {"spec": {"selector": {"matchLabels": {"app": "controller"}}}, "status": {}}
    api = FakeApi(after(70, first=seen(of=serving(observedGeneration=None, **UNAVAILABLE)), then=READY), controller=down)
    assert run(api)[0] == READY


def test_a_pod_without_a_node_waits_for_its_whole_time() -> None:
    short = seen(
        *all_pods()[:2], unscheduled(pod(DECODE, pending("0/4 nodes are available: 4 Too many pods."))), of=serving(**UNAVAILABLE)
    )
    api = FakeApi(lambda _: short)
    assert "Too many pods on 4 of 4 nodes (for more than 10 min)" in run_stuck(api)
    assert 600 <= api.clock.passed < 605


def test_a_pod_that_finds_no_npus_says_who_has_them() -> None:
    other = pod("other-0-decode-0-0")
    other["metadata"]["namespace"] = "team-b"
    other["spec"]["nodeName"] = "node-1"
    api = FakeApi(lambda _: seen(*all_pods()[:2], unscheduled(pod(DECODE, pending(SHORT))), of=serving(**UNAVAILABLE)))
    api.nodes = [
        {"metadata": {"name": f"node-{number}"}, "spec": {"unschedulable": number == 2}, "status": {"allocatable": {NPU: "24"}}}
        for number in range(3)
    ]
    ended = pod("ended-0-decode-0-0", {"phase": "Failed"})
    waits = unscheduled(pod(DECODE, pending(SHORT)))
    api.all_pods = [pod(PREFILL_0), other, ended, waits]
    assert f"| {NPU}: free 8 on node-0, 8 on node-1; held 16 by namespace default, 16 by namespace team-b" in run_stuck(api)


def failing(api: FakeApi, error: ClusterError, until: float) -> World:
    def world(now: float) -> Snapshot:
        if now < until:
            raise error
        return READY

    api.world = world
    return world


@pytest.mark.parametrize("error", [UnreachableError("connection refused"), ApiRefusedError(503, "etcd leader changed")])
def test_an_api_server_that_restarts_is_waited_for(error: ClusterError) -> None:
    api = FakeApi(loading)
    failing(api, error, 50)
    found, said = run(api)
    assert found == READY
    assert "does not answer" in said[0]
    failing(api, error, 5000)
    with pytest.raises(type(error)):
        run(api)


def test_what_will_not_pass_ends_the_wait_at_once() -> None:
    api = FakeApi(loading)
    failing(api, ApiRefusedError(403, "modelservings is forbidden"), 50)
    with pytest.raises(ApiRefusedError, match="modelservings is forbidden"):
        run(api)
    assert api.clock.passed == 0


@pytest.mark.parametrize(
    ("error", "passes", "waited"),
    [
        (UnreachableError("connection refused"), 20, 20),
        (UnreachableError("connection refused"), 5000, 60),
        (ApiRefusedError(403, "forbidden"), 20, 0),
    ],
)
def test_what_comes_before_the_wait_outlasts_a_restart_too(error: ClusterError, passes: float, waited: float) -> None:
    clock = Clock()

    async def connect() -> bool:
        if clock.passed < passes:
            raise error
        return True

    if waited == passes:
        assert asyncio.run(outlast(connect, clock=clock, sleep=clock.sleep))
    else:
        with pytest.raises(type(error)):
            asyncio.run(outlast(connect, clock=clock, sleep=clock.sleep))
    assert clock.passed == waited


def test_a_slow_cluster_is_asked_less_often() -> None:
    api = FakeApi(loading)
    ask = api.list

    async def slowly(path: str, labels: str = "", fields: str = "") -> list[Object]:
        api.clock.now += 1
        return await ask(path, labels, fields)

    api.list = slowly  # type: ignore[method-assign]
    run(api)
    assert len(api.asked) <= 30  # otherwise about 100
    assert api.clock.passed < 60


# the router


class Router:
    """A router that knows what ``views`` says at each second."""

    def __init__(self, api: FakeApi, views: Callable[[float], list[RouterView]]) -> None:
        self.api, self.views = api, views

    async def __call__(self, *asked: Any) -> list[RouterView]:
        assert asked == (self.api, "kthena-system", 15000, "default", "pd")
        return self.views(self.api.clock.passed)


BOTH = RouterView(frozenset({PREFILL_0, PREFILL_1}), frozenset({DECODE}))
NONE = RouterView()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[FakeApi], list[RouterView]]], tuple[FakeApi, list[str]]]:
    def run_it(views: Callable[[FakeApi], list[RouterView]]) -> tuple[FakeApi, list[str]]:
        api, said = FakeApi(loading), list[str]()
        monkeypatch.setattr(waiting_loop, "read_router", Router(api, lambda _: views(api)))
        asyncio.run(
            wait_for_router(
                api,
                control_plane="kthena-system",
                debug_port=15000,
                namespace="default",
                model_server="pd",
                prefill=BOTH.prefill,
                decode=BOTH.decode,
                say=said.append,
                clock=api.clock,
                sleep=api.clock.sleep,
            )
        )
        return api, said

    return run_it


Pair = Callable[[Callable[[FakeApi], list[RouterView]]], tuple[FakeApi, list[str]]]


def test_a_router_that_knows_all_pods_needs_no_help(pair: Pair) -> None:
    api, said = pair(lambda api: [BOTH, BOTH if api.clock.passed > 2 else NONE])
    assert (api.patched, said) == ([], [])
    assert api.clock.passed < 4


def test_a_router_that_has_lost_pods_is_helped_once(pair: Pair) -> None:
    api, _ = pair(lambda api: [BOTH if api.patched and api.clock.passed > 8 else NONE])
    assert sorted(api.patched) == sorted([PREFILL_0, PREFILL_1, DECODE])
    assert 8 < api.clock.passed < 10


@pytest.mark.parametrize("known", [RouterView(BOTH.prefill), replace(BOTH, decode=frozenset({DECODE, "pd-0-decode-9-0"}))])
def test_a_router_that_knows_other_pods_is_an_error(pair: Pair, known: RouterView) -> None:
    with pytest.raises(NotConvergedError) as caught:
        pair(lambda _: [BOTH, known])
    assert (
        f"decode {', '.join(sorted(known.decode)) or 'none'}; it should know prefill {PREFILL_0}, {PREFILL_1}; decode {DECODE}"
        in str(caught.value)
    )


def test_where_ports_may_not_be_forwarded_that_is_said_and_no_more(pair: Pair) -> None:
    def forbidden(_: FakeApi) -> list[RouterView]:
        raise ApiRefusedError(403, "pods/portforward is forbidden")

    api, said = pair(forbidden)
    assert len(said) == 1
    assert "pods/portforward is forbidden" in said[0]
    assert api.clock.passed == 0


def test_a_router_that_is_just_starting_is_asked_again(pair: Pair) -> None:
    def starting(api: FakeApi) -> list[RouterView]:
        if api.clock.passed < 3:
            raise UnreachableError("no pod of kthena-router runs")
        return [BOTH]

    _, said = pair(starting)
    assert said == []

    def never(_: FakeApi) -> list[RouterView]:
        raise UnreachableError("no pod of kthena-router runs")

    api, said = pair(never)
    assert len(said) == 1
    assert 5 <= api.clock.passed < 7
