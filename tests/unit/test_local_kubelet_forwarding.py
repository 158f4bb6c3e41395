"""ClusterIPs of the local cluster: connections to them reach pods, on real sockets of the loopback interface."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from local.kubelet import forwarding
from local.kubelet.forwarding import Forwarder
from local.kubelet.services import Address

T = TypeVar("T")
POD, OTHER_POD = "127.239.0.1", "127.239.0.2"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def service() -> Address:
    """A ClusterIP and a port of it that nobody listens on."""
    with socket.create_server(("127.255.0.1", 0)) as probe:
        return Address(*probe.getsockname())


def run(work: Coroutine[Any, Any, T]) -> T:
    async def limited() -> T:
        return await asyncio.wait_for(work, 10)

    return asyncio.run(limited())


@contextlib.asynccontextmanager
async def forwarder() -> AsyncIterator[Forwarder]:
    made = Forwarder()
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def pod(host: str, answer: Callable[[bytes], Awaitable[bytes]], port: int = 0) -> AsyncIterator[Address]:
    """A pod that answers each line until its client says no more, and then says goodbye."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for line in reader:
            writer.write(await answer(line))
        writer.write(b"bye\n")
        writer.close()

    server = await asyncio.start_server(serve, host, port)
    yield Address(*server.sockets[0].getsockname())
    server.close()


async def echo(line: bytes) -> bytes:
    return line


async def connected(address: Address) -> Streams:
    """A connection to ``address`` as soon as somebody listens there."""
    while True:
        with contextlib.suppress(ConnectionError):
            return await asyncio.open_connection(*address)
        await asyncio.sleep(0.01)


async def ask(streams: Streams, line: bytes) -> bytes:
    streams[1].write(line)
    return await streams[0].readline()


def test_both_sides_of_a_connection_hear_each_other_at_once_and_to_the_end(service: Address) -> None:
    async def work() -> list[bytes]:
        async with forwarder() as made, pod(POD, echo) as target:
            made.want({service: (target,)})
            client = await connected(service)
            heard = [await ask(client, b"one\n"), await ask(client, b"two\n")]
            client[1].write_eof()
            rest = await client[0].read()
            client[1].close()
            return [*heard, rest]

    assert run(work()) == [b"one\n", b"two\n", b"bye\n"]


def test_a_pod_that_takes_no_connection_is_passed_over(service: Address) -> None:
    async def work() -> set[bytes]:
        async with forwarder() as made, pod(POD, echo) as target:
            made.want({service: (Address(OTHER_POD, target.port), target)})
            return {await ask(await connected(service), b"hello\n") for _ in range(12)}

    assert run(work()) == {b"hello\n"}


def test_a_connection_goes_on_while_new_ones_go_to_other_pods(service: Address) -> None:
    async def shout(line: bytes) -> bytes:
        return line.upper()

    async def work() -> list[bytes]:
        async with forwarder() as made, pod(POD, echo) as old, pod(OTHER_POD, shout) as new:
            made.want({service: (old,)})
            before = await connected(service)
            first = await ask(before, b"a\n")
            made.want({service: (new,)})
            return [first, await ask(await connected(service), b"b\n"), await ask(before, b"c\n")]

    assert run(work()) == [b"a\n", b"B\n", b"c\n"]


def test_without_a_ready_pod_nobody_listens(service: Address) -> None:
    async def refused() -> bool:
        try:
            (await asyncio.open_connection(*service))[1].close()
        except ConnectionError:
            return True
        return False

    async def work() -> None:
        async with forwarder() as made, pod(POD, echo) as target:
            made.want({service: (target,)})
            await connected(service)
            made.want({})
            while not await refused():
                await asyncio.sleep(0.01)

    run(work())


def test_a_client_is_told_when_its_pod_has_died(service: Address) -> None:
    async def die(_: bytes) -> bytes:
        raise ConnectionError

    async def work() -> bytes:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the pod's defect
        async with forwarder() as made, pod(POD, die) as target:
            made.want({service: (target,)})
            return await ask(await connected(service), b"hello\n")

    assert run(work()) == b""


def test_a_pod_on_all_addresses_is_reached_at_its_own_port_and_finds_it_free_when_it_starts_anew(
    service: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "RETRY_SECONDS", 0.02)

    async def work() -> bytes:
        async with forwarder() as made:
            with socket.create_server(("", service.port)):
                made.want({service: (Address(POD, service.port),)})
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.1)
            async with pod("0.0.0.0", echo, service.port):
                return await ask(await connected(service), b"hello\n")

    assert run(work()) == b"hello\n"


def test_where_a_process_listens_already_is_told_once_and_taken_as_soon_as_it_has_ended(
    service: Address, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "local.kubelet.forwarding")
    monkeypatch.setattr(forwarding, "RETRY_SECONDS", 0.02)

    async def work() -> bytes:
        async with forwarder() as made, pod(POD, echo) as target:
            with socket.create_server(("", service.port)):
                made.want({service: (target,)})
                await asyncio.sleep(0.2)
            return await ask(await connected(service), b"hello\n")

    assert run(work()) == b"hello\n"
    assert [record.getMessage() for record in caplog.records if record.name == "local.kubelet.forwarding"] == [
        f"not forwarding {service.host}:{service.port}: Address already in use"
    ]


def test_others_may_be_wanted_while_it_begins_to_listen(service: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> bool:
        with socket.create_server(("0.0.0.0", 0)) as everywhere:
            port = everywhere.getsockname()[1]
            refused = {Address(f"127.255.1.{last}", port): (Address(POD, port),) for last in range(1, 100)}
            async with forwarder() as made, pod(POD, echo) as target:
                made.want(refused)
                await asyncio.sleep(0.1)
                listen = asyncio.start_server

                async def meanwhile(*given: Any) -> asyncio.Server:
                    made.want({service: (target,)})
                    return await listen(*given)

                monkeypatch.setattr(asyncio, "start_server", meanwhile)
                made.want({**refused, service: (target,)})
                return await ask(await connected(service), b"hello\n") == b"hello\n"

    assert run(work())
