"""The one kind of error that the local cluster shows to its user."""

from __future__ import annotations


class LocalError(Exception):
    """Something a user can act on: what is wrong, and what to do about it. Printed without a traceback."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem + (f"\n  -> {remedy}" if remedy else ""))
