"""Waiting: when it ends, what it says meanwhile, and what it asks of the cluster. Time is the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pytest

from convergence import router
from convergence.outlast import outlast
from convergence.symptoms import NotConvergedError
from convergence.wait import wait
from live.api import Api, ApiRefusedError, ClusterError, UnreachableError
from live.router import NoRouterError, RouterView
from live.snapshot import Snapshot
from models.cluster import ControlPlane
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
    terminating,
    unscheduled,
    waiting,
)

DAY = 86_400
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
        assert self.passed < DAY, "this wait never ends"

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
        self.refused = 0
        """code with which pods may not be annotated"""
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
        if self.refused:
            raise ApiRefusedError(self.refused, "no")
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
    assert "\n      -> correct engine.version or engine.image" in message
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


def test_each_outage_has_its_own_minute() -> None:
    clock = Clock()

    async def look() -> bool | None:
        if 10 <= clock.passed < 60 or 65 <= clock.passed < 115:
            raise UnreachableError("connection refused")
        return True if clock.passed >= 120 else None

    assert asyncio.run(outlast(look, clock=clock, sleep=clock.sleep))


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


PAIRED = RouterView(frozenset({PREFILL_0, PREFILL_1}), frozenset({DECODE}))
NONE = RouterView()
MORE = "pd-0-prefill-2-0"
WITH_MORE = replace(PAIRED, prefill=PAIRED.prefill | {MORE})
FORBIDDEN = ApiRefusedError(403, "is forbidden")
Views = Callable[[FakeApi], list[RouterView]]


@dataclass
class Paired:
    """What came of waiting for the router."""

    api: FakeApi
    said: list[str]
    error: str = ""


class Pair(Protocol):
    """Waits for a router that knows ``views`` of ``world``; who annotates pods is ``refused`` with that code."""

    def __call__(self, views: Views, world: World = ..., *, install: bool = ..., refused: int = ...) -> Paired: ...


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Pair:
    def run_it(views: Views, world: World = lambda _: READY, *, install: bool = True, refused: int = 0) -> Paired:
        found = Paired(FakeApi(world), [])
        found.api.refused = refused

        async def read(*asked: Any) -> list[RouterView]:
            assert asked == (found.api, "kthena-system", 15000, "default", "pd")
            return views(found.api)

        monkeypatch.setattr(router, "read_router", read)
        waiting_for = router.wait_for_router(
            found.api,
            ControlPlane.model_construct(install=install),
            namespace="default",
            deployment="pd",
            model_server="pd",
            say=found.said.append,
            clock=found.api.clock,
            sleep=found.api.clock.sleep,
        )
        try:
            asyncio.run(waiting_for)
        except NotConvergedError as error:
            found.error = str(error)
        return found

    return run_it


def knows(*views: RouterView) -> Views:
    return lambda _: list(views)


def failing_with(error: ClusterError, until: float) -> Views:
    def views(api: FakeApi) -> list[RouterView]:
        if api.clock.passed < until:
            raise error
        return [PAIRED]

    return views


def test_a_router_that_knows_all_pods_needs_no_help(pair: Pair) -> None:
    found = pair(lambda api: [PAIRED, PAIRED if api.clock.passed > 2 else NONE])
    assert (found.api.patched, found.said, found.error) == ([], [], "")
    assert found.api.clock.passed < 4


def test_a_router_that_has_lost_pods_is_helped_once_with_those(pair: Pair) -> None:
    only_decode = RouterView(decode=PAIRED.decode)
    found = pair(lambda api: [PAIRED if api.patched and api.clock.passed > 8 else only_decode])
    assert sorted(found.api.patched) == [PREFILL_0, PREFILL_1]
    assert 8 < found.api.clock.passed < 10


@pytest.mark.parametrize("refused", [403, 404])
def test_help_that_is_refused_is_not_missed(pair: Pair, refused: int) -> None:
    """Who may not annotate pods, or whose pod has just gone, waits as long for the router as others."""
    found = pair(lambda api: [PAIRED if api.clock.passed > 20 else NONE], refused=refused)
    assert found.error == ""
    assert 20 < found.api.clock.passed < 22
    assert len(found.api.patched) == 3
    assert "restart" in pair(knows(NONE), refused=refused).error


def test_help_that_an_api_server_is_too_busy_for_is_given_again(pair: Pair) -> None:
    def views(api: FakeApi) -> list[RouterView]:
        api.refused = 503 if api.clock.passed < 12 else 0
        return [PAIRED if api.clock.passed > 14 else NONE]

    found = pair(views, refused=503)
    assert found.error == ""
    assert set(found.api.patched[-3:]) == {PREFILL_0, PREFILL_1, DECODE}
    assert len(found.api.patched) > 3


@pytest.mark.parametrize("known", [RouterView(PAIRED.prefill), replace(PAIRED, decode=frozenset({DECODE, "pd-0-decode-9-0"}))])
def test_a_router_that_knows_other_pods_is_an_error(pair: Pair, known: RouterView) -> None:
    found = pair(knows(PAIRED, known))
    told = f"decode {', '.join(sorted(known.decode)) or 'none'}; it should know prefill {PREFILL_0}, {PREFILL_1}; decode {DECODE}"
    assert told in found.error
    assert "kubectl rollout restart -n kthena-system deployment/kthena-router" in found.error
    assert 30 <= found.api.clock.passed < 32


def test_a_router_that_has_sorted_a_pod_into_the_other_role_is_an_error(pair: Pair) -> None:
    assert "a router knows" in pair(knows(RouterView(frozenset({PREFILL_0}), frozenset({PREFILL_1, DECODE})))).error


GROWN = seen(*all_pods(), pod(MORE))


def test_a_pod_that_comes_meanwhile_is_expected_from_then_on(pair: Pair) -> None:
    """Such as an autoscaler's; it has as much time as the others had."""

    def views(api: FakeApi) -> list[RouterView]:
        return [NONE if api.clock.passed < 29 else WITH_MORE if api.clock.passed > 45 else PAIRED]

    grows = after(28, first=READY, then=GROWN)
    found = pair(views, grows)
    assert found.error == ""
    assert 45 < found.api.clock.passed < 47
    found = pair(lambda api: [NONE if api.clock.passed < 29 else PAIRED], grows)
    assert MORE in found.error.partition("it should know")[2]
    assert 58 <= found.api.clock.passed < 60


def test_a_pod_that_goes_meanwhile_is_expected_no_more(pair: Pair) -> None:
    found = pair(
        lambda api: [NONE if api.clock.passed < 12 else PAIRED],
        after(10, first=GROWN, then=seen(*all_pods(), terminating(pod(MORE)))),
    )
    assert found.error == ""
    assert 12 <= found.api.clock.passed < 14
    assert MORE in pair(knows(WITH_MORE), lambda _: seen(*all_pods(), terminating(pod(MORE)))).error


@pytest.mark.parametrize("view", [PAIRED, WITH_MORE])
def test_of_a_pod_that_is_not_ready_the_router_may_or_may_not_know(pair: Pair, view: RouterView) -> None:
    found = pair(knows(view), lambda _: seen(*all_pods(), pod(MORE, running())))
    assert (found.error, found.api.clock.passed) == ("", 0)


def test_pods_that_are_not_ready_any_more_are_not_paired(pair: Pair) -> None:
    lost = seen(*all_pods(third=running()))
    view = RouterView(PAIRED.prefill)
    found = pair(knows(view), lambda _: lost)
    assert "no decode pod is ready any more" in found.error
    assert "run pulumi up again" in found.error
    assert pair(lambda api: [view if api.clock.passed < 20 else PAIRED], after(20, first=lost, then=READY)).error == ""


def test_workers_and_pods_of_others_are_not_the_routers(pair: Pair) -> None:
    other = pod("pd-0-decode-7-0")
    other["metadata"]["labels"]["modelserving.volcano.sh/name"] = "pd-0a1b2c3"
    found = pair(knows(PAIRED), lambda _: seen(*all_pods(), pod("pd-0-decode-0-1"), other))
    assert (found.error, found.api.clock.passed) == ("", 0)


@pytest.mark.parametrize(("error", "install"), [(FORBIDDEN, True), (FORBIDDEN, False), (NoRouterError("kube-system"), False)])
def test_where_it_is_not_ours_to_look_that_is_said_and_no_more(pair: Pair, error: ClusterError, install: bool) -> None:  # noqa: FBT001
    found = pair(failing_with(error, 5000), install=install)
    assert len(found.said) == 1
    assert f"could not be looked at: {error}" in found.said[0]
    assert (found.error, found.api.clock.passed) == ("", 0)


PASSING = [
    UnreachableError("no pod of kthena-router runs"),
    ApiRefusedError(404, "port-forward to pod kthena-system/a"),
    ApiRefusedError(502, "port-forward to pod kthena-system/a"),
]


@pytest.mark.parametrize(
    ("error", "install"), [*((error, own) for error in PASSING for own in (True, False)), (NoRouterError("kthena-system"), True)]
)
def test_a_router_that_does_not_answer_is_waited_for_and_then_is_an_error(pair: Pair, error: ClusterError, install: bool) -> None:  # noqa: FBT001
    found = pair(failing_with(error, 55), install=install)
    assert (found.error, found.said) == ("", [])
    assert 55 <= found.api.clock.passed < 57
    found = pair(failing_with(error, 5000), install=install)
    assert f"the router does not say which pods it knows: {error}" in found.error
    assert "cluster.controlPlane.router.debugPort" in found.error
    assert 60 <= found.api.clock.passed < 62


def test_a_router_that_answers_in_between_has_its_minute_again(pair: Pair) -> None:
    def views(api: FakeApi) -> list[RouterView]:
        if 20 < api.clock.passed < 22:
            return [NONE]
        return failing_with(PASSING[0], 75)(api)

    assert pair(views).error == ""


def test_an_api_server_that_restarts_does_not_count_against_the_router(pair: Pair) -> None:
    def world(now: float) -> Snapshot:
        if 5 < now < 55:
            raise UnreachableError("connection refused")
        return READY

    for views in (failing_with(PASSING[0], 63), lambda api: [PAIRED if api.clock.passed > 63 else NONE]):
        found = pair(views, world)
        assert (found.error, found.said) == ("", [])
