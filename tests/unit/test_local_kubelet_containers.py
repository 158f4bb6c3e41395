"""What the kubelet tells of containers that do not start, fail, or end: states, events, last words; and their preStop hook."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from local.kubelet import StartError, containers
from local.kubelet.containers import TERMINATION_LOG, Container
from local.kubelet.events import Notice, event
from local.kubelet.output import Output, termination_message
from local.kubelet.probes import Prober

Json = dict[str, Any]
T = TypeVar("T")
Start = Callable[[], Awaitable[tuple[str, ...]]]


def run(work: Coroutine[Any, Any, T]) -> T:
    async def limited() -> T:
        return await asyncio.wait_for(work, 10)

    return asyncio.run(limited())


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of container c of pod p."""
    made = tmp_path / "default_p_u-1" / "c"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def told() -> list[Notice]:
    return []


@pytest.fixture
def make(folder: Path, told: list[Notice], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Container]:
    """Makes a container that runs a shell command, or starts as told."""
    monkeypatch.setattr(containers, "RETRY_SECONDS", 0.01)

    def made(command: str = "", *, start: Start | None = None, **spec: Any) -> Container:
        async def shell() -> tuple[str, ...]:
            return ("sh", "-c", command)

        return Container({"name": "c", "image": "img:1", **spec}, folder, start or shell, lambda: None, told.append)

    return made


# last words


def ended(make: Callable[..., Container], command: str, **spec: Any) -> Json:
    """State of a container that ran the command once."""
    one = make(command, **spec)
    run(one.run(lambda _: False, Prober(), "127.0.0.1"))
    state: Json = one.state["terminated"]
    return state


FALL_BACK = {"terminationMessagePolicy": "FallbackToLogsOnError"}


def test_the_last_words_of_a_container_are_what_it_wrote_to_its_termination_message_path(
    folder: Path, make: Callable[..., Container]
) -> None:
    state = ended(make, f"echo log; echo -n last words > {folder / TERMINATION_LOG}; exit 3", **FALL_BACK)
    assert (state["exitCode"], state["reason"], state["message"]) == (3, "Error", "last words")


def test_without_a_policy_the_log_is_not_quoted(make: Callable[..., Container]) -> None:
    assert "message" not in ended(make, "echo log; exit 3")


def test_the_log_of_a_container_that_ended_well_is_not_quoted(make: Callable[..., Container]) -> None:
    state = ended(make, "echo log", **FALL_BACK)
    assert (state["reason"], "message" in state) == ("Completed", False)


def test_the_log_stands_in_for_the_last_words_of_a_container_that_failed(make: Callable[..., Container]) -> None:
    assert ended(make, "echo one; echo two >&2; exit 1", **FALL_BACK)["message"] == "one\ntwo\n"


def test_only_the_last_run_is_quoted_and_the_state_before_keeps_its_own(make: Callable[..., Container], folder: Path) -> None:
    one = make(f"echo run $(ls {folder.parent} | wc -l); touch {folder.parent}/$$; exit 1", **FALL_BACK)
    one_more = iter([True])
    run(one.run(lambda _: next(one_more, False), Prober(), "127.0.0.1"))
    assert one.last_state["terminated"]["message"] == "run 1\n"
    assert one.state["terminated"]["message"] == "run 2\n"


def words(folder: Path, file: bytes, log: bytes) -> str:
    (folder / "words").write_bytes(file)
    output = Output(folder / "log")
    with output.begin() as written:
        written.write(log)
    return termination_message(FALL_BACK, folder / "words", output, 1)


def test_long_last_words_are_cut_at_their_beginning_as_by_a_real_kubelet(folder: Path) -> None:
    assert words(folder, b"x" * 5000 + b"end", b"") == "x" * 4093 + "end"
    assert words(folder, b"", b"".join(b"%d\n" % line for line in range(100))).split() == [str(line) for line in range(20, 100)]
    assert words(folder, b"", b"y" * 3000 + b"\n" + b"x" * 3000) == "x" * 2048


def test_a_container_that_wrote_nothing_has_no_last_words(folder: Path) -> None:
    assert words(folder, b"", b"") == ""


# containers that do not start


def failing(error: StartError) -> Start:
    async def start() -> tuple[str, ...]:
        raise error

    return start


@asynccontextmanager
async def running(one: Container, prober: Prober | None = None, *, restarts: bool = False) -> AsyncIterator[None]:
    task = asyncio.create_task(one.run(lambda _: restarts, prober or Prober(), "127.0.0.1"))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_an_image_that_can_not_be_pulled_is_told_as_by_a_real_kubelet(make: Callable[..., Container], told: list[Notice]) -> None:
    states = []

    async def work() -> None:
        one = make(start=failing(StartError("ErrImagePull", "not found")))
        async with running(one):
            await until(lambda: one.state["waiting"]["reason"] == "ErrImagePull")
            states.append(one.state["waiting"])
            await until(lambda: len(told) >= 4)
            states.append(one.state["waiting"])

    run(work())
    back_off = 'Back-off pulling image "img:1"'
    assert states == [
        {"reason": "ErrImagePull", "message": "not found"},
        {"reason": "ImagePullBackOff", "message": f"{back_off}: ErrImagePull: not found"},
    ]
    assert told[:4] == [
        Notice("Failed", 'Failed to pull image "img:1": not found', "Warning", "c"),
        Notice("Failed", "Error: ErrImagePull", "Warning", "c"),
        Notice("BackOff", back_off, "Normal", "c"),
        Notice("Failed", "Error: ImagePullBackOff", "Warning", "c"),
    ]


def test_a_container_that_lacks_something_else_waits_with_the_reason_and_tells_what(
    make: Callable[..., Container], told: list[Notice]
) -> None:
    async def work() -> Json:
        one = make(start=failing(StartError("CreateContainerConfigError", 'secret "s" not found')))
        async with running(one):
            await until(lambda: told)
            return one.state

    assert run(work()) == {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "s" not found'}}
    assert told[0] == Notice("Failed", 'Error: secret "s" not found', "Warning", "c")


def test_a_container_that_fails_again_and_again_is_told_with_its_pod(make: Callable[..., Container], told: list[Notice]) -> None:
    async def work() -> Json:
        one = make("exit 7")
        async with running(one, restarts=True):
            await until(lambda: told)
            return one.status()

    status = run(work())
    assert told == [Notice("BackOff", "Back-off restarting failed container c in pod p_default(u-1)", "Warning", "c")]
    assert status["lastState"]["terminated"]["exitCode"] == 7
    assert status["state"]["waiting"] == {
        "reason": "CrashLoopBackOff",
        "message": "back-off 0.5s restarting failed container=c pod=p_default(u-1)",
    }


# probes


class Answers(Prober):
    """Answers as a test says at the time."""

    complaint = ""

    async def ask(self, *_: object) -> str:
        return self.complaint


def probe(failures: int = 1) -> Json:
    return {"exec": {"command": ["x"]}, "periodSeconds": 0.02, "failureThreshold": failures}


@pytest.mark.parametrize("kind", ["startup", "readiness", "liveness"])
def test_each_failed_probe_is_told_before_there_are_enough_for_a_verdict(
    make: Callable[..., Container], told: list[Notice], kind: str
) -> None:
    async def work() -> bool:
        prober = Answers()
        prober.complaint = "HTTP probe failed with statuscode: 503"
        one = make("exec sleep 9", **{f"{kind}Probe": probe(failures=10**6)})
        async with running(one, prober):
            await until(lambda: len(told) >= 2)
            return one.ready

    assert run(work()) == (kind == "liveness")
    assert set(told) == {
        Notice("Unhealthy", f"{kind.capitalize()} probe failed: HTTP probe failed with statuscode: 503", "Warning", "c")
    }


@pytest.mark.parametrize("kind", ["startup", "liveness"])
def test_a_container_that_a_probe_gives_up_is_told_to_be_restarted(
    make: Callable[..., Container], told: list[Notice], kind: str
) -> None:
    async def work() -> int:
        prober = Answers()
        prober.complaint = "dead"
        return await make("exec sleep 9", **{f"{kind}Probe": probe()}).run(lambda _: False, prober, "127.0.0.1")

    assert run(work()) == 143
    assert told[1:] == [Notice("Killing", f"Container c failed {kind} probe, will be restarted", "Normal", "c")]


def test_a_port_where_nobody_listens_is_told_as_by_a_real_kubelet(make: Callable[..., Container]) -> None:
    async def work(declared: Json) -> str:
        return await Prober().ask(declared, {}, "127.9.0.1", make().execute)

    refused = "dial tcp 127.9.0.1:1: connect: connection refused"
    assert run(work({"tcpSocket": {"port": 1}})) == refused
    assert run(work({"httpGet": {"port": 1, "path": "/health"}})) == f'Get "http://127.9.0.1:1/health": {refused}'


def test_a_server_that_ends_instead_of_an_answer_is_told_as_by_a_real_kubelet(make: Callable[..., Container]) -> None:
    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    async def work() -> tuple[str, int]:
        server = await asyncio.start_server(end, "127.9.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        complaint = await Prober().ask({"httpGet": {"port": port}}, {}, "127.9.0.1", make().execute)
        server.close()
        return complaint, port

    complaint, port = run(work())
    assert complaint == f'Get "http://127.9.0.1:{port}/": EOF'


# its end


STUBBORN = "trap : TERM; echo trapped; while :; do sleep 0.01; done"
OBEDIENT = "trap 'exit 0' TERM; echo trapped; while :; do sleep 0.01; done"


def trapped(one: Container) -> bool:
    """Whether its shell has come so far that signals find it as the command says."""
    return one.ready and bool(one.output.file.read_text())


def test_until_its_pre_stop_hook_has_ended_a_container_runs_is_ready_and_is_not_restarted(
    make: Callable[..., Container], told: list[Notice], folder: Path
) -> None:
    async def work() -> tuple[list[str], bool, Json]:
        prober = Prober()
        drain = f"touch {folder}/draining; while test ! -e {folder}/drained; do sleep 0.01; done"
        dead_while_draining = {**probe(), "exec": {"command": ["test", "!", "-e", f"{folder}/draining"]}}
        hook = {"preStop": {"exec": {"command": ["sh", "-c", drain]}}}
        one = make(OBEDIENT, lifecycle=hook, livenessProbe=dead_while_draining)
        async with running(one, prober):
            await until(lambda: trapped(one))
            stop = asyncio.create_task(one.stop(9, asyncio.Event(), prober, "127.0.0.1", say=True))
            await until(lambda: any(notice.reason == "Unhealthy" for notice in told))
            await asyncio.sleep(0.1)
            during, ready = list(one.state), one.ready
            (folder / "drained").touch()
            await stop
            await until(lambda: one.done)
            return during, ready, one.state

    during, ready, after = run(work())
    assert (during, ready, after["terminated"]["exitCode"]) == (["running"], True, 0)
    assert told[0] == Notice("Killing", "Stopping container c", "Normal", "c")
    assert {notice.reason for notice in told} == {"Killing", "Unhealthy"}


@pytest.mark.parametrize(("command", "exit_code"), [(OBEDIENT, 0), (STUBBORN, 137)])
def test_a_hook_that_takes_longer_than_the_grace_period_is_ended_with_it_and_the_container_is_still_asked_first(
    make: Callable[..., Container], monkeypatch: pytest.MonkeyPatch, command: str, exit_code: int
) -> None:
    monkeypatch.setattr(containers, "LEAST_GRACE", 0.3)

    async def work() -> tuple[Json, float]:
        one = make(command, lifecycle={"preStop": {"sleep": {"seconds": 60}}})
        async with running(one):
            await until(lambda: trapped(one))
            began = asyncio.get_running_loop().time()
            await one.stop(0.2, asyncio.Event(), Prober(), "127.0.0.1")
            await until(lambda: one.done)
            return one.state, asyncio.get_running_loop().time() - began

    state, took = run(work())
    assert state["terminated"]["exitCode"] == exit_code
    assert 0.2 <= took < 2


def test_what_a_failed_hook_said_is_not_told_as_it_may_be_secret(make: Callable[..., Container], told: list[Notice]) -> None:
    async def work() -> None:
        prober = Prober()
        one = make(OBEDIENT, lifecycle={"preStop": {"exec": {"command": ["sh", "-c", "echo password; exit 1"]}}})
        async with running(one, prober):
            await until(lambda: trapped(one))
            await one.stop(5, asyncio.Event(), prober, "127.0.0.1")

    run(work())
    assert told == [Notice("FailedPreStopHook", "PreStopHook failed", "Warning", "c")]


# events


def test_an_event_names_the_pod_and_the_container_that_it_is_about() -> None:
    pod = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u-1"},
        "spec": {"nodeName": "n-0", "containers": [{"name": "c"}], "initContainers": [{"name": "i"}]},
    }
    fields = {
        name: event(pod, Notice("R", "m", container=name), "now")["involvedObject"].get("fieldPath") for name in ("c", "i", "")
    }
    assert fields == {"c": "spec.containers{c}", "i": "spec.initContainers{i}", "": None}
    made = event(pod, Notice("Killing", "m" * 2000, "Normal"), "now")
    assert (made["type"], made["reason"], len(made["message"]), made["source"]["host"]) == ("Normal", "Killing", 1024, "n-0")
