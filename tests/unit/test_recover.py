"""`pd recover`: what a killed run leaves behind, found and put right, with a stand-in for Pulumi and real processes."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli import pulumi, recover
from cli.pulumi import Project, PulumiError, end_orphans, file_backend, locks, orphans, show
from local.errors import LocalError
from local.pulumi import Pulumi
from local.state import State
from tests import stacks

PLUGIN = "pulumi-resource-kubernetes"
PULUMI = """\
#!{python}
import json, os, pathlib, sys
here = pathlib.Path({here!r})
words = [word for word in sys.argv[1:] if word not in ("--non-interactive", "--color=never")]
with (here / "calls").open("a") as calls:
    print(*words, file=calls)
state = json.loads((here / "state.json").read_text())
if words[:2] == ["stack", "--show-name"]:
    sys.exit(print(state["selected"]) if state["selected"] else "error: no stack selected")
if words[0] == "whoami":
    sys.exit(print(json.dumps({{"user": "x", "url": state["url"]}})))
if words[:2] == ["stack", "init"]:
    state["stacks"][words[2]] = {{"pending": []}}
    (here / "state.json").write_text(json.dumps(state))
    sys.exit()
name = words[-1]
if words[0] == "cancel":
    for lock in (here / "backend").rglob("*.json"):
        lock.unlink()
    state["locked"] = ""
stack = state["stacks"].get(name)
if stack is None:
    sys.exit(f"error: no stack named '{{name}}' found")
if words[:2] == ["stack", "export"]:
    sys.exit(print(json.dumps({{"deployment": {{"pending_operations": stack["pending"]}}}})))
if words[0] in state["fails"]:
    sys.exit("error: it did not work")
if words[0] == "up" and (state["locked"] or list((here / "backend").rglob("*.json"))):
    sys.exit("error: the stack is currently locked by 1 lock(s)." + state["locked"])
if words[0] == "up":
    stack["pending"] = [operation for operation in stack["pending"] if operation["type"] == "creating"]
if "--clear-pending-creates" in words:
    stack["pending"] = []
(here / "state.json").write_text(json.dumps(state))
"""


class Backend:
    """A project in ``directory``, a stand-in for Pulumi, and its file backend."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.project = directory / "project"
        self.url = f"file://{directory / 'backend'}"
        self.state: dict[str, Any] = {}
        self.project.mkdir()
        (directory / "bin").mkdir()
        (self.project / "Pulumi.yaml").write_text("name: mine\n")
        (self.project / "Pulumi.dev.yaml").write_text("config: {}\n")
        program = directory / "bin" / "pulumi"
        program.write_text(PULUMI.format(python=sys.executable, here=str(directory)))
        program.chmod(0o755)
        self.has()

    def has(self, **changed: Any) -> None:
        defaults = {"selected": "dev", "url": self.url, "stacks": {"dev": {"pending": []}}, "fails": [], "locked": ""}
        (self.directory / "state.json").write_text(json.dumps({**defaults, **changed}))

    def lock(self, pid: int, host: str = "", since: datetime | None = None, stack: str = "dev") -> Path:
        directory = self.directory / "backend" / ".pulumi" / "locks" / "organization" / "mine" / stack
        directory.mkdir(parents=True, exist_ok=True)
        content = {
            "pid": pid,
            "username": "somebody",
            "hostname": host or socket.gethostname(),
            # as Go writes it: nanoseconds, and Z for UTC
            "timestamp": (since or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%S.%f789Z"),
        }
        file = directory / f"{pid}-{host or 'here'}.json"
        file.write_text(json.dumps(content))
        return file

    @property
    def calls(self) -> list[str]:
        """What Pulumi was told, without what only asks it."""
        file = self.directory / "calls"
        told = file.read_text().splitlines() if file.exists() else []
        return [call for call in told if not call.startswith(("whoami", "stack --show-name", "stack export"))]


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    made = Backend(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(made.project)
    monkeypatch.setattr(pulumi, "sees_all_processes", lambda: True)  # also where the tests run in a container
    return made


@pytest.fixture
def ended() -> int:
    """Pid of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


Start = Callable[..., int]
"""name of a program, directory, home -> its pid, with no parent that knows it"""


@pytest.fixture
def left_behind(tmp_path: Path) -> Iterator[Start]:
    """Starts programs whose parent then ends, as a killed Pulumi's plugins'."""
    pids: list[int] = []

    def start(name: str, directory: Path, home: str = "", *, stubborn: bool = False) -> int:
        program = tmp_path / "programs" / name
        program.parent.mkdir(exist_ok=True)
        ready = tmp_path / f"ready-{len(pids)}"
        trap = "trap '' TERM\n" if stubborn else ""
        program.write_text(f"#!/bin/bash\n{trap}touch {ready}\nwhile sleep 1; do :; done\n")
        program.chmod(0o755)
        done = subprocess.run(
            ["bash", "-c", f"setsid {program} >/dev/null 2>&1 </dev/null & echo $!"],
            cwd=directory,
            env={**os.environ, "PULUMI_HOME": home or str(tmp_path / "home")},
            capture_output=True,
            text=True,
            check=True,
        )
        pids.append(int(done.stdout))
        while not ready.exists():
            time.sleep(0.01)
        return pids[-1]

    yield start
    for pid in pids:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def pending(kind: str, name: str) -> dict[str, Any]:
    serving = "kthena-pd:serving:PDDeployment$kubernetes:workload.serving.volcano.sh/v1alpha1:ModelServing"
    return {"type": kind, "resource": {"urn": f"urn:pulumi:dev::mine::{serving}::{name}"}}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


# --- locks


def test_a_lock_is_dead_only_where_its_process_on_this_machine_is_gone(backend: Backend, ended: int) -> None:
    backend.lock(ended)
    backend.lock(os.getpid())
    backend.lock(ended, host="another-machine")
    backend.lock(ended, stack="prod")
    found = {
        (lock.pid, lock.host == socket.gethostname()): lock.is_dead
        for lock in locks(backend.directory / "backend", "mine", "dev")
    }
    assert found == {(ended, True): True, (os.getpid(), True): False, (ended, False): False}


def test_a_lock_whose_pid_belongs_to_a_younger_process_now_is_dead(backend: Backend) -> None:
    backend.lock(os.getpid(), since=datetime.now(UTC) - timedelta(days=1))
    (found,) = locks(backend.directory / "backend", "mine", "dev")
    assert found.is_dead


def test_a_lock_of_a_process_that_nobody_has_waited_for_is_dead(backend: Backend) -> None:
    with subprocess.Popen(["true"]) as process:
        while is_alive(process.pid):
            time.sleep(0.01)
        backend.lock(process.pid)
        (found,) = locks(backend.directory / "backend", "mine", "dev")
        assert found.is_dead


def test_a_lock_of_a_process_in_a_container_of_this_machine_is_not_dead(backend: Backend, ended: int) -> None:
    script = f"echo {ended - 1} > /proc/sys/kernel/ns_last_pid; sleep 60 & echo $!; wait"
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as container:
        assert container.stdout
        pid = int(container.stdout.readline())
        backend.lock(pid)
        (lock,) = locks(backend.directory / "backend", "mine", "dev")
        assert not lock.is_dead
        container.kill()
    latest = time.monotonic() + 5
    while not lock.is_dead:  # the kernel ends what was in it
        assert time.monotonic() < latest
        time.sleep(0.01)


def test_in_a_container_not_all_processes_are_to_be_seen() -> None:
    program = "from cli.pulumi import sees_all_processes; print(sees_all_processes())"
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", sys.executable, "-c", program]
    done = subprocess.run(command, cwd=stacks.ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"pid": 1, "username": "a", "hostname": "b", "timestamp": "noon"}'])
def test_a_lock_that_can_not_be_read_is_not_taken_for_dead(backend: Backend, content: str) -> None:
    backend.lock(1).write_text(content)
    with pytest.raises(PulumiError, match=r"the lock .*1-here\.json can't be read"):
        locks(backend.directory / "backend", "mine", "dev")


def test_a_file_backend_is_found_as_pulumi_finds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.chdir(tmp_path)
    assert {
        url: file_backend(url)
        for url in ("file:///a/b", "file://~", "file://~/c", "file://./d", "file:///my%20e?no_tmp_dir=true")
    } == {
        "file:///a/b": Path("/a/b"),
        "file://~": Path("/home/x"),
        "file://~/c": Path("/home/x/c"),
        "file://./d": tmp_path / "d",
        "file:///my%20e?no_tmp_dir=true": Path("/my e"),
    }
    assert [file_backend(url) for url in ("s3://bucket", "https://api.pulumi.com")] == [None, None]


def test_what_was_cut_off_beside_a_state_is_removed_before_pulumi_is_asked_for_a_stack(
    backend: Backend, capfd: pytest.CaptureFixture[str]
) -> None:
    stacks = backend.directory / "backend" / ".pulumi" / "stacks" / "mine"
    stacks.mkdir(parents=True)
    (stacks / "dev.json.attrs").touch()
    (stacks / "prod.json.attrs").write_text("{}")
    (stacks / "dev.json.bak").touch()
    assert recover.run(None, yes=True) == recover.WHOLE
    assert {file.name for file in stacks.iterdir()} == {"prod.json.attrs", "dev.json.bak"}
    assert "dev.json.attrs, which was cut off" in capfd.readouterr().out.partition("stack dev of project")[0]


# --- orphans


def test_only_plugins_of_this_home_and_project_are_orphans(backend: Backend, left_behind: Start) -> None:
    other = backend.directory / "other"
    other.mkdir()
    (backend.project / "below").mkdir()
    plugin = left_behind(PLUGIN, backend.project)
    host = left_behind("pulumi-language-python", backend.project / "below")
    left_behind(PLUGIN, other)
    left_behind(PLUGIN, backend.project, str(backend.directory / "another home"))
    left_behind("kube-apiserver", backend.project)
    left_behind("pulumi-watcher", backend.project)
    found = orphans(backend.directory / "home", backend.project)
    assert {one.pid: one.name for one in found} == {plugin: PLUGIN, host: "pulumi-language-python"}


def test_without_a_home_of_its_own_a_plugin_belongs_to_the_home_of_the_user(backend: Backend, left_behind: Start) -> None:
    plugin = left_behind(PLUGIN, backend.project, str(Path.home() / ".pulumi"))
    assert [one.pid for one in orphans(Path.home() / ".pulumi", backend.project)] == [plugin]
    assert orphans(backend.directory / "home", backend.project) == []


@pytest.mark.parametrize(
    ("parent", "started"), [("pulumi", ""), ("pulumi", "setsid "), (".pulumi-wrapped", "setsid "), ("bash", "")]
)
def test_the_plugins_of_a_run_that_goes_on_and_those_started_by_hand_are_none(
    backend: Backend, parent: str, started: str
) -> None:
    """Of the engine itself, and of the shell of somebody who looks for a defect in the plugin."""
    programs = backend.directory / "programs"
    programs.mkdir()
    plugin, engine, ready = programs / PLUGIN, programs / parent, backend.directory / "ready"
    plugin.write_text(f"#!/bin/bash\ntouch {ready}\nwhile sleep 1; do :; done\n")
    engine.write_text(f"#!/bin/bash\n{started}{plugin} & echo $!\nwait\n")
    for program in (plugin, engine):
        program.chmod(0o755)
    environment = {**os.environ, "PULUMI_HOME": str(backend.directory / "home")}
    with subprocess.Popen([engine], cwd=backend.project, env=environment, stdout=subprocess.PIPE, start_new_session=True) as run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        while not ready.exists():
            time.sleep(0.01)
        try:
            assert orphans(backend.directory / "home", backend.project) == []
            os.kill(run.pid, signal.SIGKILL)
            run.wait()
            assert [one.pid for one in orphans(backend.directory / "home", backend.project)] == [pid]
        finally:
            os.killpg(os.getpgid(pid), signal.SIGKILL)


def test_an_orphan_that_ignores_sigterm_is_killed(backend: Backend, left_behind: Start) -> None:
    stubborn = left_behind(PLUGIN, backend.project, stubborn=True)
    willing = left_behind("pulumi-language-python", backend.project)
    ended = end_orphans(backend.directory / "home", backend.project, patience=0.3)
    assert {one.pid for one in ended} == {stubborn, willing}
    assert not is_alive(stubborn)
    assert not is_alive(willing)


# --- the project


def test_the_project_is_that_of_the_next_project_file_upwards(backend: Backend) -> None:
    below = backend.project / "a" / "b"
    below.mkdir(parents=True)
    assert Project.around(below) == Project(backend.project, "mine")
    (backend.project / "a" / "Pulumi.yaml").write_text("description: no name\n")
    with pytest.raises(PulumiError, match="names no project"):
        Project.around(below)


def test_pulumi_is_left_to_end_by_itself_where_the_user_interrupts_it(backend: Backend) -> None:
    program = backend.directory / "bin" / "pulumi"
    program.write_text(
        "#!/bin/bash\ntrap 'sleep 0.6; echo in order >&2; exit 3' INT\nkill -INT $PPID $$\nwhile :; do sleep 0.05; done\n"
    )
    before = signal.getsignal(signal.SIGINT)
    assert show("up") == (3, "in order\n")
    assert signal.getsignal(signal.SIGINT) == before


# --- the command


UP = "up --refresh --yes --skip-preview --stack dev"
CLEAR = "refresh --clear-pending-creates --yes --skip-preview --stack dev"


def test_a_stack_whose_run_was_killed_is_brought_back_step_by_step(
    backend: Backend, ended: int, left_behind: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    plugin = left_behind(PLUGIN, backend.project)
    backend.lock(ended)
    backend.has(stacks={"dev": {"pending": [pending("creating", "chat"), pending("updating", "code")]}})
    assert recover.run(None, yes=True) == recover.WHOLE
    assert backend.calls == ["cancel --yes dev", UP, CLEAR]
    assert not is_alive(plugin)
    said = capfd.readouterr().out
    assert f"ended {PLUGIN} (pid {plugin})" in said
    assert f"releasing the lock of somebody@{socket.gethostname()} (pid {ended}, since 20" in said
    assert "the killed run was creating ModelServing chat\nthe killed run was updating ModelServing code\n" in said
    assert said.endswith("stack dev is as declared\n")


def test_the_second_time_there_is_nothing_left_but_the_up(backend: Backend, ended: int) -> None:
    backend.lock(ended)
    assert [recover.run("dev", yes=True) for _ in range(2)] == [0, 0]
    assert backend.calls == ["cancel --yes dev", UP, UP]


def test_after_a_killed_destroy_it_says_how_to_go_on_with_that(backend: Backend, capfd: pytest.CaptureFixture[str]) -> None:
    backend.has(stacks={"dev": {"pending": [pending("deleting", "chat")]}})
    assert recover.run("dev", yes=True) == recover.WHOLE
    assert "the killed run was deleting ModelServing chat\n" in (said := capfd.readouterr().out)
    assert "pulumi destroy" in said
    assert backend.calls == [UP]


@pytest.mark.parametrize("where", ["here", "there"])
def test_nothing_is_touched_while_somebody_may_be_at_work(
    backend: Backend, ended: int, left_behind: Start, capfd: pytest.CaptureFixture[str], where: str
) -> None:
    plugin = left_behind(PLUGIN, backend.project)
    dead = backend.lock(ended)
    backend.lock(os.getpid(), host="" if where == "here" else "there")
    assert recover.run("dev", yes=True) == recover.STOPPED
    assert backend.calls == []
    assert dead.exists()
    assert is_alive(plugin)
    said = capfd.readouterr().err
    assert f"locked by somebody@{socket.gethostname() if where == 'here' else 'there'} (pid {os.getpid()}, since 20" in said
    assert ("interrupt it there" if where == "here" else "pulumi cancel --yes dev") in said


def test_a_lock_that_can_not_be_looked_at_is_not_released_unasked(backend: Backend, capfd: pytest.CaptureFixture[str]) -> None:
    backend.has(url="s3://bucket", locked="\n  s3://bucket/x.json: created by a@b (pid 1) at noon")
    assert recover.run("dev", yes=True) == recover.STOPPED
    assert backend.calls == [UP]
    said = capfd.readouterr().err
    assert "created by a@b (pid 1) at noon" in said
    assert "if the run that holds it is dead: pulumi cancel --yes dev" in said


@pytest.mark.parametrize("answer", ["", "y", "n"], ids=["without questions", "yes", "no"])
def test_in_a_container_a_lock_without_a_process_is_released_only_if_the_user_says_so(
    backend: Backend, ended: int, left_behind: Start, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    plugin = left_behind(PLUGIN, backend.project)
    backend.lock(ended)
    monkeypatch.setattr(pulumi, "sees_all_processes", lambda: False)
    monkeypatch.setattr(recover, "_has_terminal", lambda: True)
    asked: list[str] = []

    def answered(question: str) -> str:
        asked.append(question)
        return answer

    monkeypatch.setattr("builtins.input", answered)
    assert recover.run("dev", yes=not answer) == (recover.WHOLE if answer == "y" else recover.STOPPED)
    assert asked == (["Is that run dead? [y/N] "] if answer else [])
    assert (backend.calls[:1], is_alive(plugin)) == ((["cancel --yes dev"], False) if answer == "y" else ([], True))


@pytest.mark.parametrize("command", ["up", "refresh"])
def test_what_pulumi_can_not_do_stops_it(backend: Backend, capfd: pytest.CaptureFixture[str], command: str) -> None:
    backend.has(stacks={"dev": {"pending": [pending("creating", "chat")]}}, fails=[command])
    assert recover.run("dev", yes=True) == recover.STOPPED
    assert backend.calls == [UP, CLEAR][: 1 if command == "up" else 2]
    said, errors = capfd.readouterr()
    assert "it did not work\nerror: not finished, see above" in errors
    assert "is as declared" not in said


def test_a_stack_whose_state_is_lost_is_made_anew_and_takes_over_the_cluster(
    backend: Backend, capfd: pytest.CaptureFixture[str]
) -> None:
    backend.has(stacks={})
    assert recover.run("organization/mine/dev", yes=True) == recover.WHOLE
    assert backend.calls == [call.replace("dev", "organization/mine/dev") for call in ("stack init dev", UP)]
    assert "take over what" in capfd.readouterr().out.replace("\n", " ")


def test_a_misspelt_stack_is_not_made(backend: Backend, capfd: pytest.CaptureFixture[str]) -> None:
    assert recover.run("dve", yes=True) == recover.NO_ANSWER
    assert backend.calls == []
    assert "no stack dve, and there is no Pulumi.dve.yaml" in capfd.readouterr().err


def test_without_a_selected_stack_it_asks_for_one(backend: Backend, capfd: pytest.CaptureFixture[str]) -> None:
    backend.has(selected="")
    assert recover.run(None, yes=True) == recover.NO_ANSWER
    assert "say which: --stack NAME" in capfd.readouterr().err


def test_without_a_terminal_it_does_nothing_but_with_yes(backend: Backend, capfd: pytest.CaptureFixture[str]) -> None:
    assert recover.run("dev", yes=False) == recover.NO_ANSWER
    assert "say --yes" in capfd.readouterr().err
    assert backend.calls == []


@pytest.mark.parametrize("missing", ["pulumi", "project"])
def test_without_pulumi_or_a_project_it_says_so(
    backend: Backend, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "pulumi":
        monkeypatch.setenv("PATH", str(backend.project))
    else:
        monkeypatch.chdir(backend.directory)
    assert recover.run("dev", yes=True) == recover.NO_ANSWER
    assert ("there is no pulumi on PATH" if missing == "pulumi" else "no Pulumi.yaml in") in capfd.readouterr().err


def on_a_terminal(backend: Backend, *answers: str) -> tuple[int, str]:
    """Exit code and output of ``pd recover`` whose user types ``answers``, one for each question."""
    program = "import sys; from cli import recover; sys.exit(recover.run('dev', yes=False))"
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=backend.project, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, "".join(f"{answer}\n" for answer in answers).encode())
    shown = b""
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # nobody has the other end any more
            break
    os.close(ours)
    return process.wait(), shown.decode()


@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_a_lock_that_can_not_be_looked_at_is_the_users_decision(backend: Backend, answer: str) -> None:
    backend.has(url="s3://bucket", locked=" created by a@b")
    code, said = on_a_terminal(backend, answer)
    up = "up --refresh --stack dev"
    assert "Release its lock (pulumi cancel)? [y/N]" in said
    assert (code, backend.calls) == ((0, [up, "cancel --yes dev", up]) if answer == "y" else (1, [up]))


@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_lost_state_is_made_anew_if_the_user_says_so(backend: Backend, answer: str) -> None:
    backend.has(stacks={})
    code, said = on_a_terminal(backend, answer)
    assert "Do that? [y/N]" in said
    assert (code, backend.calls) == ((0, ["stack init dev", "up --refresh --stack dev"]) if answer == "y" else (1, []))


# --- make up has the same


@pytest.fixture
def local(backend: Backend) -> Pulumi:
    """The local cluster's Pulumi, with the stand-in for it."""
    state = State(backend.directory / "state")
    (state.pulumi / "backend" / ".pulumi" / "locks" / "organization").mkdir(parents=True)
    return Pulumi(state, [backend.directory / "bin"])


@pytest.mark.parametrize("also_alive", [False, True])
def test_make_up_releases_a_lock_only_if_nobody_may_be_at_work(
    backend: Backend, local: Pulumi, ended: int, *, also_alive: bool
) -> None:
    backend.lock(ended)
    if also_alive:
        backend.lock(os.getpid())
    locked = backend.directory / "backend" / ".pulumi" / "locks" / "organization" / "mine"
    shutil.copytree(locked, local.state.pulumi / "backend" / ".pulumi" / "locks" / "organization" / "kthena-pd")
    assert local.free_dead_lock("dev") == ([] if also_alive else [ended])
    assert backend.calls == ([] if also_alive else ["cancel --yes dev"])


def test_make_up_says_which_lock_it_can_not_read(backend: Backend, local: Pulumi) -> None:
    folder = local.state.pulumi / "backend" / ".pulumi" / "locks" / "organization" / "kthena-pd" / "dev"
    folder.mkdir(parents=True)
    (folder / "x.json").touch()
    with pytest.raises(LocalError, match=r"x\.json can't be read"):
        local.free_dead_lock("dev")
    assert backend.calls == []
