"""Long-running programs of the control plane: started detached, found again later, stopped for sure.

A pid file holds the program's line of ``/proc/<pid>/stat`` at birth, which has its pid and start time, and a fingerprint
of its command. So a stale file, a recycled pid, and a program that runs with yesterday's flags are all recognised.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from local.errors import LocalError

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")

# The program writes its own pid file before it becomes itself: whoever starts it may be killed at any moment, and would
# otherwise leave a program behind that nobody knows of.
_BIRTH = 'read -r line < /proc/$$/stat && printf "%s\\n%s\\n" "$line" "$2" > "$1.new" && mv "$1.new" "$1" && shift 2 && exec "$@"'

_ROOM = "is the disk full, and may you write there?"


@dataclass(frozen=True)
class Program:
    """A command that should run as long as the cluster does."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """added to the environment of who starts it"""

    @property
    def fingerprint(self) -> str:
        """Changes with anything that the program was started with."""
        told = json.dumps([self.arguments, sorted(self.environment.items())])
        return hashlib.sha256(told.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Running:
    """A program that runs now."""

    pid: int
    started: int
    """clock ticks between the machine's boot and the program's start"""
    fingerprint: str

    @property
    def uptime(self) -> float:
        """Seconds since its start."""
        since_boot = float(Path("/proc/uptime").read_text().split()[0])
        return since_boot - self.started / TICKS

    @property
    def memory(self) -> int:
        """Resident memory in bytes, 0 if it has just ended."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE
        except (FileNotFoundError, ProcessLookupError):
            return 0


def start(program: Program, pids: Path, logs: Path) -> None:
    """Start ``program`` in a session of its own; its output is appended to ``logs/<name>.log``.

    Raises:
        LocalError: it did not come to life, as on a full disk. A program that lives, if only for a moment, is started.
    """
    pid_file, log_file = pids / program.name, logs / f"{program.name}.log"
    try:
        pid_file.unlink(missing_ok=True)
        with log_file.open("ab") as log:
            born = subprocess.Popen(
                ["sh", "-c", _BIRTH, "sh", str(pid_file), program.fingerprint, *program.arguments],
                env={**os.environ, **program.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise LocalError(f"{program.name} can't be started: {error}", _ROOM) from error
    while not pid_file.exists():  # a few milliseconds
        if born.poll() is not None and not pid_file.exists():
            raise LocalError(f"{program.name} can't be started, its log {log_file} ends with why: no {pid_file}", _ROOM)
        time.sleep(0.002)


def running(pids: Path, name: str) -> Running | None:
    """The running program ``name``, or None if it never ran, has ended, or its pid belongs to another program now."""
    try:
        line, fingerprint = (pids / name).read_text().splitlines()
        born = _stat(line)
        now = _stat(Path(f"/proc/{born.pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError, ValueError, IndexError):
        return None
    alive = now.started == born.started and now.state not in ("Z", "X")
    return Running(born.pid, born.started, fingerprint) if alive else None


def stop(pids: Path, name: str, patience: float = 5.0) -> bool:
    """End the program and its process group: SIGTERM, and SIGKILL after ``patience`` seconds. Whether it ran."""
    found = running(pids, name)
    if found:
        _signal(found.pid, signal.SIGTERM)
        deadline = time.monotonic() + patience
        while running(pids, name) and time.monotonic() < deadline:
            time.sleep(0.02)
        while running(pids, name):
            _signal(found.pid, signal.SIGKILL)
            time.sleep(0.02)
    (pids / name).unlink(missing_ok=True)
    return found is not None


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return  # it has ended meanwhile


@dataclass(frozen=True)
class _Stat:
    pid: int
    state: str
    started: int


def _stat(line: str) -> _Stat:
    """Parse a line of /proc/<pid>/stat; the second field, the program's name, may hold blanks and parentheses."""
    head, _, tail = line.rpartition(")")
    fields = tail.split()
    return _Stat(int(head.split()[0]), fields[0], int(fields[19]))
