"""Where a router is asked what it knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from live.api import UnreachableError
from live.router import read_router


class Api:
    """A cluster with one router pod, of which nothing can be reached."""

    def __init__(self, arguments: list[str]) -> None:
        self.pod = {
            "metadata": {"name": "router-0"},
            "spec": {"containers": [{"args": arguments}, {"name": "sidecar"}]},
            "status": {"phase": "Running"},
        }
        self.asked: list[int] = []

    async def get(self, _: str) -> dict[str, Any]:
        return {"spec": {"selector": {"matchLabels": {"app": "router"}}}}

    async def list(self, *_: Any) -> list[dict[str, Any]]:
        return [self.pod]

    @asynccontextmanager
    async def forward(self, _: str, pod: str, port: int) -> AsyncIterator[int]:
        self.asked.append(port)
        raise UnreachableError(f"{pod} is out of reach")
        yield port


@pytest.mark.parametrize(
    ("arguments", "port"),
    [
        (["--port=8080", "--debug-port=15999"], 15999),
        (["--debug-port", "15998", "-v=2"], 15998),
        (["-debug-port=15997"], 15997),
        (["--port=8080"], 15000),
        (["--debug-port=$(PORT)"], 15000),
        ([], 15000),
    ],
)
def test_a_router_is_asked_where_it_was_started_to_answer_whoever_has_installed_it(arguments: list[str], port: int) -> None:
    api = Api(arguments)
    with pytest.raises(UnreachableError):
        asyncio.run(read_router(api, "kthena-system", 15000, "default", "chat"))  # type: ignore[arg-type]  # it has what is used
    assert api.asked == [port]
