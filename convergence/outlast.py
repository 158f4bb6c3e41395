"""Looking until what is waited for is there, through the restart of an API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from live.api import ApiRefusedError, ClusterError, UnreachableError

T = TypeVar("T")
Say = Callable[[str], None]
Sleep = Callable[[float], Awaitable[object]]

POLL_SECONDS = 1.0
UNREACHABLE_SECONDS = 60.0
"""an API server that is being restarted is back by then"""
_TRANSIENT = (429, 500, 502, 503, 504)


async def outlast(
    look: Callable[[], Awaitable[T | None]],
    *,
    say: Say = lambda _: None,
    pause: Callable[[float], float] = lambda _: POLL_SECONDS,
    clock: Callable[[], float] = time.time,
    sleep: Sleep = asyncio.sleep,
) -> T:
    """What ``look`` finds, once it finds something.

    Args:
        look: Looks once; None: not yet.
        say: Called each time that the cluster does not answer.
        pause: Seconds from one look to the next, by the seconds that the last one took.
        clock: Seconds since the epoch.
        sleep: Waits for some seconds.

    Raises:
        ClusterError: the cluster refuses, or does not answer for a minute.
    """
    answered = clock()
    while True:
        began = clock()
        try:
            found = await look()
            if found is not None:
                return found
            answered = clock()
        except ClusterError as error:
            if not may_pass(error) or clock() - answered >= UNREACHABLE_SECONDS:
                raise
            say(f"the cluster does not answer: {error}")
        await sleep(pause(clock() - began))


def may_pass(error: ClusterError) -> bool:
    """Whether the same request may be answered a moment later."""
    return isinstance(error, UnreachableError) or (isinstance(error, ApiRefusedError) and error.code in _TRANSIENT)
