"""What a container wrote: one file for all its runs, and what a kubelet quotes of it when it has ended."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO

from local.api import Object

CHUNK = 1 << 16
"""bytes that are read at once"""
POLL_SECONDS = 0.2
"""between looks for what a running container has written meanwhile"""
MESSAGE_BYTES = 4096
"""of a termination message file that a status quotes, its end"""
MESSAGE_LOG_BYTES, MESSAGE_LOG_LINES = 2048, 80
"""of a log that a status quotes, its end; these three as in a real kubelet"""


class Output:
    """The log of one container, and where each of its runs begins in it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.going = False
        """its last run has not ended"""
        self._begins: list[int] = []

    def begin(self) -> BinaryIO:
        """The log, for a new run to write to; ``end`` says that the run is over."""
        log = self.file.open("ab")
        self._begins.append(log.tell())
        self.going = True
        return log

    def end(self) -> None:
        """The last run is over."""
        self.going = False

    @property
    def runs(self) -> int:
        """How many there were; they count from 0."""
        return len(self._begins)

    def bounds(self, run: int) -> tuple[int, int]:
        """Where ``run`` begins in the file, and where it ends, for now if it goes on."""
        last = run == self.runs - 1
        return self._begins[run], self.file.stat().st_size if last else self._begins[run + 1]

    def last_lines(self, run: int, lines: int) -> int:
        """Where the last ``lines`` lines of ``run`` begin in the file."""
        begin, end = self.bounds(run)
        if begin == end:
            return end
        with self.file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            newline = end - 1  # the one that ends the last line begins none
            for _ in range(lines):
                newline = content.rfind(b"\n", begin, newline)
                if newline < 0:
                    return begin
        return newline + 1

    async def read(self, run: int, begin: int, goes_on: Callable[[], bool]) -> AsyncIterator[bytes]:
        """What ``run`` wrote from ``begin`` in the file on, and what it writes while it lasts and the reader ``goes_on``."""
        with self.file.open("rb") as opened:
            opened.seek(begin)
            while True:
                over = run < self.runs - 1 or not self.going or not goes_on()
                chunk = opened.read(min(CHUNK, self.bounds(run)[1] - opened.tell()))
                if chunk:
                    yield chunk
                elif over:
                    return
                else:
                    await asyncio.sleep(POLL_SECONDS)


def termination_message(container: Object, file: Path, output: Output, code: int) -> str:
    """What a status says of the end of the last run of ``container``, with exit ``code``; empty if there is nothing to say.

    Args:
        container: as the pod declares it
        file: what the container had at its terminationMessagePath
        output: its log, which stands in for an empty file if the policy says so and it ended with an error
    """
    written = file.read_bytes()[-MESSAGE_BYTES:] if file.exists() else b""
    if not written and code and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
        end = output.bounds(output.runs - 1)[1]
        begin = max(output.last_lines(output.runs - 1, MESSAGE_LOG_LINES), end - MESSAGE_LOG_BYTES)
        with output.file.open("rb") as opened:
            opened.seek(begin)
            written = opened.read(end - begin)
    return written.decode(errors="replace")
