"""The kubelet against an API server that fails, objects that vanish meanwhile, and defects of its own."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
import pytest

from local import container
from local.api import Api, ApiError, is_gone
from local.cluster import Cluster, Image, NodeGroup
from local.container import Mount
from local.kubelet import __main__ as kubelet_main
from local.kubelet import devices, pods
from local.kubelet.__main__ import Kubelet
from local.kubelet.addresses import Addresses
from local.kubelet.containers import Container
from local.kubelet.events import Notice
from local.kubelet.pods import Node, Pod
from local.kubelet.probes import Prober
from local.kubelet.services import is_ready
from local.state import State

Json = dict[str, Any]
Answer = Callable[[str, str], Json]
T = TypeVar("T")

REFUSALS = [
    (429, "too many requests"),
    (500, "etcdserver: request timed out"),
    (409, 'Operation cannot be fulfilled on pods "p": the object has been modified; please apply your changes'),
    (422, 'Pod "p" is invalid: status.podIPs: Invalid value'),
]
GONE = [
    (404, 'pods "p" not found'),
    (409, 'Operation cannot be fulfilled on Pod "p": the UID in the precondition (a) does not match the UID in record (b)'),
    (422, 'Pod "p" is invalid: metadata.uid: Invalid value: "a": field is immutable'),
]
"""as kube-apiserver v1.34 words it"""


def refusal(code: int, message: str) -> ApiError:
    return ApiError(httpx.Response(code, json={"message": message}, request=httpx.Request("GET", "https://api/x")))


class FakeApi:
    """Notes every request; ``answer`` may refuse it."""

    def __init__(self, answer: Answer = lambda *_: {}) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, Any]] = []
        self.followed: dict[str, asyncio.Queue[tuple[str, Json]]] = {}

    async def request(self, method: str, path: str, body: Any = None, *_: object, **__: object) -> Json:
        self.asked.append((method, path, body))
        await asyncio.sleep(0)
        return self.answer(method, path)

    async def apply(self, path: str, body: Any, _: str) -> Json:
        return await self.request("APPLY", path, body)

    async def get(self, path: str) -> Json:
        return await self.request("GET", path)

    async def follow(self, path: str, _: str = "") -> AsyncIterator[tuple[str, Json]]:
        queue = self.followed.setdefault(path, asyncio.Queue())
        while True:
            yield await queue.get()

    def count(self, method: str, part: str = "") -> int:
        return sum(asked == method and part in path for asked, path, _ in self.asked)


def failing(times: int, error: Exception, method: str, part: str = "") -> Answer:
    """Answer that fails so many times what matches."""
    left = iter(range(times))

    def answer(asked: str, path: str) -> Json:
        if asked == method and part in path and next(left, None) is not None:
            raise error
        return {}

    return answer


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(kubelet_main, "RETRY_SECONDS", 0.01, raising=False)


def node(tmp_path: Path, api: FakeApi, dies: int = 4, *, simulated: bool = True) -> Node:
    group = NodeGroup(name="n", capacity={"huawei.com/ascend-1980": str(dies), "cpu": "8"})
    images = {"real": Image(path=(), always_runs=True)}
    cluster = Cluster(pods="simulated" if simulated else "processes", node_groups=(group,), images=images)
    state = State(tmp_path / "state")
    state.create()
    dies_of = devices.Devices({"n-0": dies})
    return Node(cast("Api", api), state, cluster, Prober(), Addresses("127.9.0.0/24"), dies_of, ("127.0.0.1", "1"))


def declared(name: str = "p", dies: int = 0, image: str = "i", **annotations: str) -> Json:
    limits = {"resources": {"limits": {"huawei.com/ascend-1980": str(dies)}}} if dies else {}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": annotations},
        "spec": {"nodeName": "n-0", "containers": [{"name": "c", "image": image, **limits}]},
        "status": {"phase": "Pending"},
    }


def deleted(pod: Json) -> Json:
    return {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "now", "deletionGracePeriodSeconds": 0}}


def run(work: Coroutine[Any, Any, T]) -> T:
    async def limited() -> T:
        return await asyncio.wait_for(work, 5)

    return asyncio.run(limited())


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


# requests that fail


@pytest.mark.parametrize(("code", "message"), REFUSALS)
def test_a_refusal_for_now_is_not_the_end_of_an_object(code: int, message: str) -> None:
    assert not is_gone(refusal(code, message))
    assert not is_gone(httpx.ConnectError("refused"))


@pytest.mark.parametrize(("code", "message"), GONE)
def test_an_object_that_does_not_exist_or_is_another_one_now_is_gone(code: int, message: str) -> None:
    assert is_gone(refusal(code, message))


@pytest.mark.parametrize(("code", "message"), REFUSALS)
def test_a_status_that_was_refused_for_now_is_published_later(tmp_path: Path, code: int, message: str) -> None:
    async def work() -> FakeApi:
        api = FakeApi(failing(2, refusal(code, message), "PATCH", "/status"))
        pod = Pod(declared(), node(tmp_path, api))
        await pod.published.wait()
        return api

    assert run(work()).count("PATCH", "/status") == 3


@pytest.mark.parametrize(("code", "message"), GONE)
def test_a_status_of_a_pod_that_is_gone_is_published_once(tmp_path: Path, code: int, message: str) -> None:
    async def work() -> FakeApi:
        api = FakeApi(failing(9, refusal(code, message), "PATCH", "/status"))
        await Pod(declared(), node(tmp_path, api)).published.wait()
        await asyncio.sleep(0.1)
        return api

    assert run(work()).count("PATCH", "/status") == 1


@pytest.mark.parametrize(("code", "message", "tries"), [*((*one, 3) for one in REFUSALS), *((*one, 1) for one in GONE)])
def test_a_pod_is_deleted_in_the_end_whatever_the_api_server_says_first(
    tmp_path: Path, code: int, message: str, tries: int
) -> None:
    async def work() -> FakeApi:
        api = FakeApi(failing(2, refusal(code, message), "DELETE"))
        pod = Pod(declared(), node(tmp_path, api))
        pod.update(deleted(declared()))
        await pod.over.wait()
        return api

    assert run(work()).count("DELETE") == tries


# defects


def test_a_pod_whose_life_ended_by_a_defect_can_still_be_deleted_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object, **__: object) -> int:
        raise KeyError("surprise")

    monkeypatch.setattr(Container, "pretend", broken)

    async def work() -> tuple[FakeApi, Node]:
        api = FakeApi()
        shared = node(tmp_path, api)
        pod = Pod(declared(), shared)
        await until(lambda: api.count("POST", "/events"))
        pod.update(deleted(declared()))
        await pod.over.wait()
        return api, shared

    with caplog.at_level(logging.ERROR):
        api, shared = run(work())
    told = next(body for method, path, body in api.asked if method == "POST" and path.endswith("/events"))
    assert (told["reason"], "surprise" in told["message"]) == ("FailedSync", True)
    assert "surprise" in caplog.text
    assert api.count("DELETE") == 1
    assert "127.9.0.1" not in shared.addresses


@pytest.mark.parametrize("part", ["pretend", "stop"])
def test_a_kubelet_that_ends_ends_every_pod_even_if_one_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    stopped: list[str] = []
    original = getattr(Container, part)

    async def broken(self: Container, *arguments: Any, **options: Any) -> Any:
        if "broken" in self.directory.parent.name:
            raise PermissionError("surprise")
        return await original(self, *arguments, **options)

    monkeypatch.setattr(Container, part, broken)
    halt = Pod.halt

    async def noting(self: Pod) -> None:
        await halt(self)
        stopped.append(self.name)

    monkeypatch.setattr(Pod, "halt", noting)

    async def work() -> None:
        api = FakeApi()
        stop = asyncio.Event()
        kubelet = asyncio.create_task(Kubelet(node(tmp_path, api)).run(stop))
        await until(lambda: "/api/v1/pods" in api.followed)
        both = [declared("broken"), declared("well")]
        api.followed["/api/v1/pods"].put_nowait(("LIST", {"items": both}))
        await until(lambda: api.count("PATCH", "/status") >= 1)
        await asyncio.sleep(0.05)
        stop.set()
        await kubelet

    run(work())
    assert sorted(stopped) == ["broken", "well"]


def test_probes_that_can_no_longer_be_asked_are_told_and_the_container_is_not_ready(tmp_path: Path) -> None:
    async def start() -> tuple[str, ...]:
        return ("sleep", "5")

    told: list[Notice] = []

    class Broken(Prober):
        async def ask(self, *_: object) -> str:
            raise KeyError("surprise")

    async def work() -> Container:
        spec = {"name": "c", "image": "i", "readinessProbe": {"tcpSocket": {"port": 1}}}
        made = Container(spec, tmp_path, start, lambda: None, told.append)
        task = asyncio.create_task(made.run(lambda _: False, Broken(), "127.0.0.1"))
        await until(lambda: told)
        await made.stop(0, asyncio.Event(), Broken(), "127.0.0.1")
        await task
        return made

    assert not run(work()).ready
    assert (told[0].reason, "surprise" in told[0].message) == ("FailedSync", True)


def test_an_address_that_no_client_understands_is_a_complaint_of_the_probe() -> None:
    async def work() -> str:
        probe = {"httpGet": {"port": 80, "host": "a b\x00"}}
        return await Prober().ask(probe, {}, "127.0.0.1", cast("Any", None))

    assert "InvalidURL" in run(work())


@pytest.mark.parametrize("part", ["_follow_services", "_give_addresses", "_report_charge", "_follow_pods"])
def test_no_part_of_the_kubelet_that_fails_ends_the_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    original: Callable[[Kubelet], Awaitable[None]] = getattr(Kubelet, part)
    failures = iter([KeyError("surprise")])

    async def once_broken(self: Kubelet) -> None:
        if error := next(failures, None):
            raise error
        await original(self)

    monkeypatch.setattr(Kubelet, part, once_broken)

    async def work() -> bool:
        api = FakeApi()
        stop = asyncio.Event()
        kubelet = asyncio.create_task(Kubelet(node(tmp_path, api)).run(stop))
        await until(lambda: kubelet.done() or "/api/v1/pods" in api.followed)
        if not kubelet.done():
            api.followed["/api/v1/pods"].put_nowait(("LIST", {"items": [declared()]}))
        await until(lambda: kubelet.done() or api.count("PATCH", "/status"))
        await asyncio.sleep(0.05)
        alive = not kubelet.done()
        stop.set()
        await kubelet
        return alive

    with caplog.at_level(logging.ERROR):
        assert run(work())
    assert "surprise" in caplog.text


def test_a_pod_that_can_not_be_taken_on_does_not_keep_others_waiting_or_an_address(tmp_path: Path) -> None:
    async def work() -> tuple[FakeApi, Node]:
        api = FakeApi()
        stop = asyncio.Event()
        shared = node(tmp_path, api)
        kubelet = asyncio.create_task(Kubelet(shared).run(stop))
        await until(lambda: "/api/v1/pods" in api.followed)
        broken = declared("broken")
        broken["spec"]["containers"] = [{}]
        api.followed["/api/v1/pods"].put_nowait(("LIST", {"items": [broken, declared("well")]}))
        await until(lambda: kubelet.done() or api.count("PATCH", "/well/status"))
        stop.set()
        await kubelet
        return api, shared

    api, shared = run(work())
    assert api.count("PATCH", "/well/status")
    assert [last for last in range(9) if f"127.9.0.{last}" in shared.addresses] == [1]


# processes


def test_a_deleted_pod_runs_is_ready_and_has_its_object_until_its_pre_stop_hook_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted: list[Mount] = []

    def without_namespaces(_: Path, command: list[str], __: object, ___: str, mounts: list[Mount]) -> tuple[str, ...]:
        mounted.extend(mounts)
        return tuple(command)

    monkeypatch.setattr(container, "write_specification", without_namespaces)
    found = declared(image="real")
    drained = tmp_path / "drained"
    hook = ["sh", "-c", f"until test -e {drained}; do sleep 0.01; done"]
    found["spec"]["containers"][0] |= {
        "command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.01; done"],
        "lifecycle": {"preStop": {"exec": {"command": hook}}},
    }

    def status(api: FakeApi) -> Json:
        sent = (body for method, path, body in reversed(api.asked) if method == "PATCH" and path.endswith("/status"))
        found: Json = next(sent, {"status": {}})["status"]
        return found

    async def work() -> tuple[FakeApi, Json, int]:
        api = FakeApi()
        pod = Pod(found, node(tmp_path, api, simulated=False))
        await until(lambda: is_ready({**found, "status": status(api)}))
        leaving = deleted(found)
        leaving["metadata"]["deletionGracePeriodSeconds"] = 30
        pod.update(leaving)
        await until(lambda: api.count("POST", "/events"))
        await asyncio.sleep(0.2)
        during, deletions = status(api), api.count("DELETE")
        drained.touch()
        await pod.over.wait()
        return api, during, deletions

    api, during, deletions = run(work())
    assert (during["phase"], "running" in during["containerStatuses"][0]["state"]) == ("Running", True)
    assert is_ready({**found, "status": during})
    assert (deletions, api.count("DELETE")) == (0, 1)
    assert [(Path(one.source).name, one.path, one.read_only) for one in mounted[1:]] == [
        ("termination-log", "/dev/termination-log", False)
    ]


# services


def service(name: str) -> Json:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {"metadata": metadata, "spec": {"type": "LoadBalancer", "selector": {"app": "r"}}, "status": {}}


def ready_pod() -> Json:
    pod = declared("r")
    pod["metadata"]["labels"] = {"app": "r"}
    pod["status"] = {"phase": "Running", "podIP": "127.9.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    return pod


async def with_services(tmp_path: Path, api: FakeApi, names: str, then: Callable[[Kubelet], Awaitable[None]]) -> Kubelet:
    stop = asyncio.Event()
    made = Kubelet(node(tmp_path, api))
    task = asyncio.create_task(made.run(stop))
    await until(lambda: {"/api/v1/pods", "/api/v1/services"} <= api.followed.keys())
    api.followed["/api/v1/pods"].put_nowait(("LIST", {"items": [ready_pod()]}))
    api.followed["/api/v1/services"].put_nowait(("LIST", {"items": [service(name) for name in names.split()]}))
    await then(made)
    await asyncio.sleep(0.05)
    assert not task.done(), task.exception()
    stop.set()
    await task
    return made


@pytest.mark.parametrize("method", ["APPLY", "PATCH"])
def test_a_service_that_vanishes_while_a_request_is_answered_does_no_harm(tmp_path: Path, method: str) -> None:
    api = FakeApi()
    vanished = False

    def answer(asked: str, path: str) -> Json:
        nonlocal vanished
        if asked == method and ("/services/" in path or "/endpoints/" in path) and not vanished:
            vanished = True
            kubelet[0]._services.clear()
            return service("a")
        return {}

    kubelet: list[Kubelet] = []
    api.answer = answer

    async def then(made: Kubelet) -> None:
        kubelet.append(made)
        await until(lambda: vanished)

    made = run(with_services(tmp_path, api, "a b c", then))
    assert made._services == {}


@pytest.mark.parametrize(("code", "message"), REFUSALS)
@pytest.mark.parametrize(("method", "part"), [("PATCH", "/services/a/status"), ("APPLY", "/endpoints/a")])
def test_what_a_service_needs_is_asked_for_again_without_any_other_change(
    tmp_path: Path, method: str, part: str, code: int, message: str
) -> None:
    api = FakeApi(failing(2, refusal(code, message), method, part))
    asked = lambda: api.count(method, part) >= 3  # noqa: E731
    run(with_services(tmp_path, api, "a", lambda _: until(asked)))


def test_containers_are_told_the_names_of_headless_services_as_pods_come_and_go(tmp_path: Path) -> None:
    api = FakeApi()
    headless = service("entry")
    headless["spec"] |= {"type": "ClusterIP", "clusterIP": "None", "publishNotReadyAddresses": True}
    names = State(tmp_path / "state").etc_hosts

    def known() -> bool:
        return names.exists() and "entry.default" in names.read_text()

    async def then(_: Kubelet) -> None:
        api.followed["/api/v1/services"].put_nowait(("ADDED", headless))
        await until(known)
        with names.open() as mounted:
            api.followed["/api/v1/pods"].put_nowait(("DELETED", ready_pod()))
            await until(lambda: not known())
            assert "entry.default" not in mounted.read(), "containers have the file, not its name"

    run(with_services(tmp_path, api, "", then))


# volumes


def secret(name: str, namespace: str = "default") -> Json:
    data = {"tls.crt": base64.b64encode(b"certificate").decode()}
    return {"metadata": {"name": name, "namespace": namespace}, "data": data}


def with_secret() -> Json:
    found = declared(image="real")
    found["spec"]["containers"][0]["command"] = ["sleep", "60"]
    found["spec"]["volumes"] = [{"name": "certificates", "secret": {"secretName": "made-later", "optional": True}}]
    return found


@pytest.fixture
def _without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "write_specification", lambda _, command, *__: tuple(command))


@pytest.mark.usefixtures("_without_namespaces")
@pytest.mark.parametrize("event", [("ADDED", secret("made-later")), ("LIST", {"items": [secret("made-later")]})])
def test_a_running_pod_finds_in_its_volume_a_secret_that_is_made_later(tmp_path: Path, event: tuple[str, Json]) -> None:
    there = False

    def answer(_: str, path: str) -> Json:
        return secret("made-later") if there and path.endswith("/secrets/made-later") else {}

    async def work() -> tuple[bytes, int]:
        nonlocal there
        api = FakeApi(answer)
        shared = node(tmp_path, api, simulated=False)
        stop = asyncio.Event()
        kubelet = Kubelet(shared)
        task = asyncio.create_task(kubelet.run(stop))
        await until(lambda: {"/api/v1/pods", "/api/v1/secrets"} <= api.followed.keys())
        api.followed["/api/v1/pods"].put_nowait(("LIST", {"items": [with_secret()]}))
        await until(lambda: any("'running'" in str(body) for _, path, body in api.asked if path.endswith("/status")))
        others = api.count("GET", "/secrets/")
        api.followed["/api/v1/secrets"].put_nowait(("ADDED", secret("made-later", "elsewhere")))
        api.followed["/api/v1/secrets"].put_nowait(("ADDED", secret("another")))
        await until(api.followed["/api/v1/secrets"].empty)
        await asyncio.sleep(0.02)
        asked = api.count("GET", "/secrets/") - others
        there = True
        api.followed["/api/v1/secrets"].put_nowait(event)
        await until(lambda: list(shared.state.pods.glob("*/volumes/certificates/tls.crt")))
        (file,) = shared.state.pods.glob("*/volumes/certificates/tls.crt")
        content = file.read_bytes()
        stop.set()
        await task
        return content, asked

    assert run(work()) == (b"certificate", 0)


# NPU dies


def dies_in_use(shared: Node) -> set[int]:
    return shared.devices._used.get("n-0", set())


@pytest.mark.parametrize("answered", [True, False])
def test_a_pod_that_ends_gives_back_its_dies_even_if_it_never_heard_that_it_has_them(tmp_path: Path, *, answered: bool) -> None:
    async def work() -> tuple[set[int], set[int]]:
        api = FakeApi(lambda *_: {})
        if not answered:
            api.answer = failing(10**6, refusal(500, "etcdserver: request timed out"), "PATCH", "/pods/p")
        shared = node(tmp_path, api, simulated=False)
        pod = Pod(declared(dies=2), shared)
        await until(lambda: dies_in_use(shared) and api.count("PATCH"))
        during = set(dies_in_use(shared))
        api.answer = lambda *_: {}
        pod.update(deleted(declared(dies=2)))
        await pod.over.wait()
        return during, dies_in_use(shared)

    assert run(work()) == ({0, 1}, set())


def test_an_event_from_before_the_annotation_does_not_take_it_away(tmp_path: Path) -> None:
    async def work() -> list[int]:
        api = FakeApi(lambda *_: declared(dies=2, **{devices.ANNOTATION: "Ascend910-0,Ascend910-1"}))
        shared = node(tmp_path, api, simulated=False)
        pod = Pod(declared(dies=2), shared)
        await until(lambda: api.count("PATCH"))
        await asyncio.sleep(0.02)
        pod.update(declared(dies=2))
        found = devices.given(pod.object)
        pod.gone()
        await pod.over.wait()
        assert dies_in_use(shared) == set()
        return found

    assert run(work()) == [0, 1]


def test_a_pod_waits_for_dies_until_another_one_gives_them_back(tmp_path: Path) -> None:
    async def work() -> tuple[str, list[int]]:
        api = FakeApi()
        shared = node(tmp_path, api, dies=4, simulated=False)
        shared.devices.mark("n-0", [0, 1, 2])
        pod = Pod(declared(dies=2), shared)
        await until(lambda: api.count("POST", "/events"))
        told = next(body for method, path, body in api.asked if method == "POST" and path.endswith("/events"))
        shared.devices.release("n-0", [1])
        await until(lambda: devices.given(pod.object))
        found = devices.given(pod.object)
        pod.gone()
        await pod.over.wait()
        return told["reason"], found

    assert run(work()) == ("UnexpectedAdmissionError", [1, 3])


def test_a_finished_pod_of_an_earlier_kubelet_holds_neither_dies_nor_an_address(tmp_path: Path) -> None:
    async def work() -> tuple[set[int], bool]:
        api = FakeApi()
        shared = node(tmp_path, api)
        stop = asyncio.Event()
        kubelet = asyncio.create_task(Kubelet(shared).run(stop))
        await until(lambda: "/api/v1/pods" in api.followed)
        finished = declared(dies=1, **{devices.ANNOTATION: "Ascend910-3"})
        finished["status"] = {"phase": "Succeeded", "podIP": "127.9.0.7"}
        api.followed["/api/v1/pods"].put_nowait(("LIST", {"items": [finished]}))
        await until(api.followed["/api/v1/pods"].empty)
        await asyncio.sleep(0.02)
        stop.set()
        await kubelet
        return dies_in_use(shared), "127.9.0.7" in shared.addresses

    assert run(work()) == (set(), False)
