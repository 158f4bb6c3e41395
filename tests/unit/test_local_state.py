"""State of a local cluster: remembered ports and network, and programs that are found again."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from local import processes
from local.errors import LocalError
from local.processes import Program
from local.state import PodFolder, State, free_ports, locate, network, network_holder, ports


@pytest.fixture
def state(tmp_path: Path) -> State:
    state = State(tmp_path / "state")
    state.create()
    return state


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_the_state_directory_can_be_set_by_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KTHENA_PD_STATE", str(tmp_path / "other"))
    assert locate().directory == tmp_path / "other"


def test_without_environment_the_state_is_in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KTHENA_PD_STATE", raising=False)
    assert locate().kubeconfig == Path(__file__).resolve().parents[2] / ".local" / "kubeconfig"


def test_only_the_owner_may_look_into_the_state(state: State) -> None:
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in (state.directory, state.pki, state.pods))


def occupied(directory: Path, *names: str) -> State:
    directory.mkdir()
    for name in names:
        (directory / name).write_text("mine")
    return State(directory)


@pytest.mark.parametrize("names", [["thesis.txt"], ["thesis.txt", "lock"], ["thesis.txt", "pulumi"]])
def test_a_directory_of_something_else_is_not_taken_for_the_state(tmp_path: Path, names: list[str]) -> None:
    state = occupied(tmp_path / "home", *names)
    before = {file: file.read_text() for file in state.directory.iterdir()}
    with pytest.raises(LocalError, match=r"is not of a local cluster: it holds thesis\.txt"):
        state.create()
    with pytest.raises(LocalError, match="is not of a local cluster"), state.lock():
        pass
    assert not state.owned()
    assert {file: file.read_text() for file in state.directory.iterdir()} == before


@pytest.mark.parametrize("names", [[], ["pulumi"], ["lock"]])
def test_a_new_or_empty_directory_becomes_the_state_and_stays_it(tmp_path: Path, names: list[str]) -> None:
    state = occupied(tmp_path / "home", *names)
    assert not state.owned()
    with state.lock():
        assert state.owned()
        state.create()
    (state.directory / "results").write_text("mine")
    State(state.directory).create()
    with state.lock():
        assert state.owned()


def test_a_state_directory_that_can_not_be_made_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(LocalError, match="can't hold the local cluster's state"):
            State(directory).create()
        assert not State(directory).owned()


def test_the_folder_of_a_pod_says_whose_it_is() -> None:
    folder = PodFolder("default", "ms-0-prefill-0-0", "u-1")
    assert folder.name == "default_ms-0-prefill-0-0_u-1"
    assert PodFolder.of(Path("/pods") / folder.name) == folder


def test_ports_differ_and_are_the_same_the_second_time(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    first = ports(file, ["a", "b", "c"])
    assert len(set(first.values())) == 3
    assert ports(file, ["a", "b", "c"]) == first


def test_a_port_that_a_stranger_took_is_replaced(tmp_path: Path, taken: int) -> None:
    file = tmp_path / "ports.json"
    file.write_text(f'{{"a": {taken}}}')
    assert ports(file, ["a"])["a"] != taken


def test_a_port_that_our_own_program_holds_stays(tmp_path: Path, taken: int) -> None:
    file = tmp_path / "ports.json"
    file.write_text(f'{{"a": {taken}}}')
    assert ports(file, ["a"], held=["a"]) == {"a": taken}


@pytest.mark.parametrize("damaged", ["", '{"a": 12', "[1]", '{"a": "x"}'])
def test_a_damaged_port_file_is_made_anew(tmp_path: Path, damaged: str) -> None:
    file = tmp_path / "ports.json"
    file.write_text(damaged)
    assert ports(file, ["a"])["a"] > 0
    assert ports(file, ["a"]) == ports(file, ["a"])


def test_two_clusters_that_run_at_once_get_different_networks(tmp_path: Path) -> None:
    first = network(tmp_path / "one", held=False)
    with socket.create_server(network_holder(first)):
        second = network(tmp_path / "two", held=False)
        assert second != first
        assert network(tmp_path / "one", held=True) == first
        assert network(tmp_path / "one", held=False) != first


@pytest.fixture
def five_seconds() -> Iterator[None]:
    """For what would otherwise go on for ever."""

    def over(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(5)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def wait_for_end(state: State, name: str = "program") -> None:
    while processes.running(state.pids, name):
        time.sleep(0.005)


def run(state: State, *command: str, name: str = "program", **environment: str) -> Program:
    program = Program(name, command, environment)
    processes.start(program, state.pids, state.logs)
    return program


def test_a_started_program_is_found_again_with_its_fingerprint(state: State) -> None:
    program = run(state, "sleep", "30", MARK="x")
    found = processes.running(state.pids, "program")
    assert found is not None
    assert found.fingerprint == program.fingerprint
    assert found.memory > 0
    assert 0 <= found.uptime < 10
    assert processes.stop(state.pids, "program")
    assert processes.running(state.pids, "program") is None
    assert not processes.stop(state.pids, "program")


def test_a_program_with_other_flags_or_environment_has_another_fingerprint() -> None:
    prints = {
        Program("a", ("x", "--one"), {}).fingerprint,
        Program("a", ("x", "--two"), {}).fingerprint,
        Program("a", ("x", "--one"), {"K": "v"}).fingerprint,
    }
    assert len(prints) == 3


def test_a_program_that_ended_is_not_running(state: State) -> None:
    run(state, "true")
    wait_for_end(state)
    assert (state.pids / "program").exists()


def test_a_pid_that_belongs_to_another_program_now_is_not_ours(state: State) -> None:
    run(state, "sleep", "30")
    line, fingerprint = (state.pids / "program").read_text().splitlines()
    head, _, tail = line.rpartition(")")
    fields = tail.split()
    fields[19] = str(int(fields[19]) - 1)
    (state.pids / "recycled").write_text(f"{head}) {' '.join(fields)}\n{fingerprint}\n")
    assert processes.running(state.pids, "recycled") is None
    assert not processes.stop(state.pids, "recycled")
    assert processes.running(state.pids, "program") is not None
    processes.stop(state.pids, "program")


@pytest.mark.parametrize("content", ["", "12", "not a pid\nx\n", "999999999 (x) S 1\nabc\n"])
def test_a_stale_or_damaged_pid_file_is_no_program(state: State, content: str) -> None:
    (state.pids / "program").write_text(content)
    assert processes.running(state.pids, "program") is None
    assert not processes.stop(state.pids, "program")


def test_a_program_that_ignores_sigterm_is_killed_with_its_children(state: State) -> None:
    run(state, "bash", "-c", "trap '' TERM; sleep 30 & echo $! > $FILE; wait", FILE=str(state.directory / "child"))
    while not (state.directory / "child").exists() or not (state.directory / "child").read_text().strip():
        pass
    child = int((state.directory / "child").read_text())
    assert processes.stop(state.pids, "program", patience=0.1)
    status = Path(f"/proc/{child}/stat")
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] in "ZX"


def test_the_output_of_a_program_goes_to_its_log(state: State) -> None:
    run(state, "echo", "hello there")
    wait_for_end(state)
    assert (state.logs / "program.log").read_text() == "hello there\n"


@pytest.mark.usefixtures("five_seconds")
@pytest.mark.parametrize("broken", ["pids missing", "pids full", "logs missing", "logs a file"])
def test_a_program_that_does_not_come_to_life_is_an_error(state: State, broken: str) -> None:
    folder, how = broken.split(maxsplit=1)
    directory = state.directory / folder
    if how == "full":  # the pid file can't be written, as on a full disk
        (directory / "program.new").symlink_to("/dev/full")
    else:
        directory.rmdir()
    if how == "a file":
        directory.touch()
    with pytest.raises(LocalError, match="program can't be started"):
        run(state, "sleep", "30")
    assert not (state.pids / "program").exists()


@pytest.mark.usefixtures("five_seconds")
def test_a_program_that_lives_for_a_moment_only_has_been_started(state: State) -> None:
    for number in range(50):
        run(state, "true", name=f"program-{number}")


def test_ports_to_listen_on_are_none_that_outgoing_connections_get() -> None:
    ports = free_ports(200)
    assert len(set(ports)) == 200
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert 1024 <= min(ports) <= max(ports) < lowest
