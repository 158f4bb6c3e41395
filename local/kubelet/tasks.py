"""Tasks whose failure is noticed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)


def log_defect(error: BaseException) -> None:
    """Tell of an exception that nobody foresaw."""
    log.error("a defect of the local kubelet", exc_info=error)


def begin(work: Coroutine[Any, Any, T], failed: Callable[[BaseException], None]) -> asyncio.Task[T]:
    """Start ``work`` as a task; an exception that ends it is told to ``failed``, whoever waits for the task or not."""

    def ended(task: asyncio.Task[T]) -> None:
        if not task.cancelled() and (error := task.exception()):
            failed(error)

    task = asyncio.create_task(work)
    task.add_done_callback(ended)
    return task
