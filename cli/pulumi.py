"""The Pulumi command line of PATH, and what a run of it leaves behind when it is killed: processes and a lock."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote

import yaml

PROJECT_FILES = ("Pulumi.yaml", "Pulumi.yml", "Pulumi.json")
FILE_BACKEND = "file://"
_PLUGINS = ("pulumi-language-", "pulumi-resource-")
_PROGRAM = "pulumi-language-python-exec"
"""by which the language host has Python run the program"""
_PIDS_OF_THE_MACHINE = "pid:[4026531836]"
"""the first pid namespace of a Linux kernel, which every other lies in (PROC_PID_INIT_INO)"""
_TICKS = os.sysconf("SC_CLK_TCK")
_CLOCKS_DIFFER = 2.0
"""seconds by which the start of a process may seem to be later than what the process then wrote: clocks are set now and then"""


class PulumiError(Exception):
    """Pulumi can't do what is wanted; the text is for the user."""


@dataclass(frozen=True)
class Project:
    """A Pulumi project."""

    directory: Path
    name: str

    @classmethod
    def around(cls, directory: Path) -> Project:
        """The project that ``directory`` belongs to: that of the next project file upwards, as Pulumi looks for it.

        Raises:
            PulumiError: there is none, or it has no name.
        """
        for place in (directory, *directory.parents):
            for file in (place / name for name in PROJECT_FILES):
                if file.is_file():
                    return cls(place, _name(file))
        raise PulumiError(f"no Pulumi.yaml in {directory} or above it; run this in the directory of the stack file")


def _name(file: Path) -> str:
    try:
        return str(yaml.safe_load(file.read_text())["name"])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError) as error:
        raise PulumiError(f"{file} can't be read, or names no project") from error


def home() -> Path:
    """Where Pulumi of this environment keeps its plugins and credentials."""
    return Path(os.environ.get("PULUMI_HOME") or Path.home() / ".pulumi")


def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What ``pulumi ARGUMENTS`` says, asking nothing itself."""
    command = ["pulumi", *arguments, "--non-interactive", "--color=never"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def show(*arguments: str) -> tuple[int, str]:
    """Run ``pulumi ARGUMENTS`` before the user's eyes; its exit code, and what was on standard error."""
    said = []
    with interrupts_are_pulumis(), subprocess.Popen(["pulumi", *arguments], stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr or ():
            sys.stderr.write(line)
            sys.stderr.flush()
            said.append(line)
    return process.returncode, "".join(said)


@contextmanager
def interrupts_are_pulumis() -> Iterator[None]:
    """Ctrl-C reaches Pulumi, which then ends in order. Python would kill it a quarter of a second later."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True)
class Lock:
    """One run's claim on a stack, as Pulumi's DIY backends write it (pkg/backend/diy/lock.go)."""

    pid: int
    user: str
    host: str
    since: datetime

    @property
    def is_here(self) -> bool:
        """Whether the run was, or is, on a machine of this name."""
        return self.host == socket.gethostname()

    @property
    def is_dead(self) -> bool:
        """Whether the run was on a machine of this name and its process is not here. Pids are used again.

        In a container it may still go on (:func:`sees_all_processes`): in another one of the same name.
        """
        return self.is_here and not _runs_since_before(self.pid, self.since.timestamp())

    def __str__(self) -> str:
        return f"{self.user}@{self.host} (pid {self.pid}, since {self.since.astimezone():%Y-%m-%d %H:%M:%S %Z})"


def sees_all_processes() -> bool:
    """Whether the processes of all containers on this machine can be seen from here; inside of one they can't."""
    return str(Path("/proc/self/ns/pid").readlink()) == _PIDS_OF_THE_MACHINE


def file_backend(url: str) -> Path | None:
    """Directory of a backend that is one; None of any other."""
    if not url.startswith(FILE_BACKEND):
        return None
    return Path(unquote(url.removeprefix(FILE_BACKEND).partition("?")[0])).expanduser().absolute()


def locks(backend: Path, project: str, stack: str) -> list[Lock]:
    """Who holds, or held until it was killed, a stack of a file backend.

    Raises:
        PulumiError: a lock can't be read.
    """
    directory = backend / ".pulumi" / "locks" / "organization" / project / stack
    return [_lock(file) for file in sorted(directory.glob("*.json"))]


def mend(backend: Path) -> list[Path]:
    """Remove what a killed run has cut off: with it Pulumi can read no stack, and no list of them, and says but "EOF" (measured).

    A file backend writes whole states or none, but beside each a file with headers for web servers, and that not at once. Nothing
    is lost with it, not even where a run is just writing it. What was removed.

    Raises:
        PulumiError: it can't be removed.
    """
    removed = []
    for file in (backend / ".pulumi").rglob("*.attrs"):
        try:
            if file.stat().st_size == 0:
                file.unlink()
                removed.append(file)
        except FileNotFoundError:
            continue  # of a run that goes on
        except OSError as error:
            raise PulumiError(f"{file} is cut off, and can't be removed: {error.strerror}") from error
    return removed


def _lock(file: Path) -> Lock:
    try:
        held = json.loads(file.read_text())
        return Lock(int(held["pid"]), held["username"], held["hostname"], datetime.fromisoformat(held["timestamp"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PulumiError(f"the lock {file} can't be read; if nobody works on the stack, delete it") from error


def _runs_since_before(pid: int, moment: float) -> bool:
    """Whether a process runs that had started at ``moment``, in seconds since 1970, already, and calls itself ``pid``."""
    (boot,) = (line.split()[1] for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            if str(pid) not in _pids(process):
                continue
            fields = _stat(process)
            if fields[0] not in "ZX" and int(boot) + int(fields[19]) / _TICKS <= moment + _CLOCKS_DIFFER:
                return True
    return False


def _pids(process: Path) -> list[str]:
    """The process's pid from here, and those that it has in the containers around it."""
    (line,) = (line for line in process.joinpath("status").read_text().splitlines() if line.startswith("NSpid:"))
    return line.split()[1:]


@dataclass(frozen=True)
class Orphan:
    """A plugin or a language host of Pulumi whose engine is gone: nothing else ever ends it."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def orphans(home: Path, directory: Path) -> list[Orphan]:
    """Those that ran for the project in ``directory`` with this Pulumi home.

    Never those of a run that goes on: there the engine is among the ancestors, and of a plugin that somebody has started by hand,
    as for debugging, the shell is.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or belongs to somebody else
            name = _plugin(process)
            if name and _is_abandoned(process) and _belongs(process, home.resolve(), directory.resolve()):
                found.append(Orphan(int(process.name), name))
    return found


def end_orphans(home: Path, directory: Path, patience: float = 5.0) -> list[Orphan]:
    """End all orphans, and what they leave behind in turn: SIGTERM, and SIGKILL after ``patience`` seconds. Those that ran.

    Raises:
        PulumiError: one doesn't end.
    """
    ended: dict[int, Orphan] = {}
    begin = time.monotonic()
    while left := orphans(home, directory):
        late = time.monotonic() - begin > patience
        if time.monotonic() - begin > 2 * patience:
            raise PulumiError(f"{left[0]} does not end")
        for orphan in left:
            if late or orphan.pid not in ended:
                with suppress(ProcessLookupError):
                    os.kill(orphan.pid, signal.SIGKILL if late else signal.SIGTERM)
            ended[orphan.pid] = orphan
        time.sleep(0.02)
    return list(ended.values())


def _stat(process: Path) -> list[str]:
    """Fields of proc_pid_stat(5) from the third on: state, parent, group, session ..."""
    return process.joinpath("stat").read_text().rpartition(")")[2].split()


def _plugin(process: Path) -> str:
    """Name of the plugin or language host that ``process`` runs; empty if it runs something else."""
    # The kernel cuts it after 15 letters, and has the script's name of a script with #!.
    called = process.joinpath("comm").read_text().strip()
    words = [Path(word).name for word in process.joinpath("cmdline").read_text().split("\0")]
    if called.startswith("python"):
        return _PROGRAM if _PROGRAM in words else ""
    if not called.startswith(tuple(prefix[:15] for prefix in _PLUGINS)):
        return ""
    return next((word for word in words if word.startswith(_PLUGINS)), "")


def _is_abandoned(process: Path) -> bool:
    """Whether the parent has ended: then init or the user's service manager is it, in a session of its own."""
    _, parent, _, session = _stat(process)[:4]
    if parent == "1":
        return not _is_engine(Path("/proc/1"))
    return _stat(Path("/proc", parent))[3] != session and not any(map(_is_engine, _ancestors(parent)))


def _ancestors(pid: str) -> Iterator[Path]:
    while pid != "0":
        process = Path("/proc", pid)
        yield process
        pid = _stat(process)[1]


def _is_engine(process: Path) -> bool:
    called = process.joinpath("comm").read_text()
    return "pulumi" in called and not called.startswith(tuple(prefix[:15] for prefix in _PLUGINS))


def _belongs(process: Path, home: Path, directory: Path) -> bool:
    lines = process.joinpath("environ").read_bytes().split(b"\0")
    environment = dict(line.split(b"=", 1) for line in lines if b"=" in line)
    own = environment.get(b"PULUMI_HOME") or environment.get(b"HOME", b"") + b"/.pulumi"
    return Path(os.fsdecode(own)).resolve() == home and process.joinpath("cwd").resolve().is_relative_to(directory)
