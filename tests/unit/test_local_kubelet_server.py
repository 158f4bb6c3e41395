"""The kubelet's server, asked as the API server does: for logs of containers, and for ports of pods over a websocket."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import httpx_ws
import pytest
from kr8s.asyncio.objects import Pod as ClientsPod
from kr8s.portforward import PortForward

from local.kubelet.containers import Container
from local.kubelet.pods import Pod
from local.kubelet.server import identity, serve
from local.pki import Pki

NODES = ["127.9.128.1", "127.9.128.2"]
POD_ADDRESS = "127.9.0.5"
Work = Callable[[httpx.AsyncClient], Awaitable[None]]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    made = Pki(tmp_path_factory.mktemp("pki"))
    made.create()
    return made


@pytest.fixture
def one(tmp_path: Path) -> Container:
    """Container c of pod p."""

    async def start() -> tuple[str, ...]:
        raise AssertionError

    return Container({"name": "c", "image": "i"}, tmp_path, start, lambda: None, lambda _: None)


def client_of(pki: Pki, base: str = "", *, certificate: bool = True) -> httpx.AsyncClient:
    """Like the API server: it shows its certificate, and does not ask for a node's."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(pki.certificate, pki.key)
    return httpx.AsyncClient(base_url=base, verify=context, trust_env=False, timeout=5)


def ask(pki: Pki, one: Container, work: Work, *, certificate: bool = True) -> None:
    """Do ``work`` with a client of a server that has pod p in namespace default."""
    pod = SimpleNamespace(name="p", uid="u-1", address=POD_ADDRESS, container=lambda name: one if name == "c" else None)

    async def whole() -> None:
        known = {("default", "p"): cast("Pod", pod)}
        server = await serve(lambda *names: known.get(names), NODES, 0, identity(pki))
        host, port = server.sockets[-1].getsockname()
        try:
            async with client_of(pki, f"https://{host}:{port}", certificate=certificate) as client:
                await asyncio.wait_for(work(client), 10)
        finally:
            server.close()

    asyncio.run(whole())


# who is answered


def test_the_server_listens_on_the_addresses_of_its_nodes_only(pki: Pki) -> None:
    async def listens() -> list[str]:
        server = await serve(lambda *_: None, NODES, 0, identity(pki))
        found = [one.getsockname()[0] for one in server.sockets]
        server.close()
        return found

    assert sorted(asyncio.run(listens())) == NODES


def test_who_has_no_certificate_of_the_clusters_authority_is_not_answered(pki: Pki, one: Container) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError, httpx.ConnectError)):
            await client.get("/containerLogs/default/p/c")

    ask(pki, one, work, certificate=False)


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/containerLogs/default/q/c", 400, 'does not run pod "q"; make logs POD=default/q'),
        ("/containerLogs/other/p/c", 400, 'does not run pod "p"; make logs POD=other/p'),
        ("/containerLogs/default/p/d", 400, 'container "d" in pod "p" is not available'),
        ("/exec/default/p/c?command=ls", 404, "the kubelet of the local cluster has no exec"),
        ("/", 404, "the kubelet of the local cluster has no "),
        ("/portForward/default/p?port=80", 400, "over websockets, and kubectl needs SPDY"),
    ],
)
def test_what_can_not_be_answered_says_why(pki: Pki, one: Container, path: str, status: int, message: str) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        answer = await client.get(path)
        assert (answer.status_code, message in answer.text) == (status, True)

    ask(pki, one, work)


# logs


def wrote(one: Container, *runs: str) -> None:
    """Give the container runs that have ended, each with its output."""
    for run in runs:
        with one.output.begin() as log:
            log.write(run.encode())
        one.output.end()
    one.state = {"running": {}}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "c\nd\n"),
        ("?tailLines=1", "d\n"),
        ("?tailLines=0", ""),
        ("?tailLines=9", "c\nd\n"),
        ("?previous=true", "a\nb\n"),
        ("?previous=true&tailLines=1", "b\n"),
        ("?limitBytes=3", "c\nd"),
        ("?follow=true&tailLines=1", "d\n"),
    ],
)
def test_logs_are_of_one_run_and_cut_as_asked(pki: Pki, one: Container, query: str, expected: str) -> None:
    wrote(one, "x\n", "a\nb\n", "c\nd\n")

    async def work(client: httpx.AsyncClient) -> None:
        answer = await client.get(f"/containerLogs/default/p/c{query}")
        assert (answer.status_code, answer.text) == (200, expected)

    ask(pki, one, work)


def test_while_a_container_waits_for_its_restart_the_last_run_is_the_previous_one(pki: Pki, one: Container) -> None:
    wrote(one, "a\n", "b\n")
    one.wait_for("CrashLoopBackOff")

    async def work(client: httpx.AsyncClient) -> None:
        assert [(await client.get(f"/containerLogs/default/p/c{query}")).text for query in ("", "?previous=true")] == ["b\n"] * 2

    ask(pki, one, work)


@pytest.mark.parametrize(
    ("state", "query", "message"),
    [
        ({"waiting": {"reason": "ImagePullBackOff"}}, "", 'container "c" in pod "p" is waiting to start: ImagePullBackOff'),
        ({"running": {}}, "?previous=true", 'previous terminated container "c" in pod "p" not found'),
        ({"running": {}}, "", 'container "c" in pod "p" is simulated: it has no process, and no log'),
        ({"running": {}}, "?timestamps=true", "logs of the local cluster have no times: leave out timestamps"),
    ],
)
def test_a_log_that_is_not_there_says_why(pki: Pki, one: Container, state: dict[str, Any], query: str, message: str) -> None:
    one.state = state

    async def work(client: httpx.AsyncClient) -> None:
        answer = await client.get(f"/containerLogs/default/p/c{query}")
        assert (answer.status_code, answer.text) == (400, message)

    ask(pki, one, work)


def test_who_follows_a_log_gets_lines_as_they_are_written_until_the_run_ends(pki: Pki, one: Container) -> None:
    wrote(one, "before\n")
    log = one.output.begin()

    def write(text: bytes) -> None:
        log.write(text)
        log.flush()

    async def work(client: httpx.AsyncClient) -> None:
        write(b"one\n")
        async with client.stream("GET", "/containerLogs/default/p/c?follow=true") as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == "one"
            write(b"two\n")
            assert await anext(lines) == "two"
            write(b"three\n")
            one.output.end()
            wrote(one, "of the next run\n")
            assert [line async for line in lines] == ["three"]

    ask(pki, one, work)
    log.close()


# ports


@asynccontextmanager
async def websocket_to(client: httpx.AsyncClient, path: str, *protocols: str) -> AsyncIterator[httpx_ws.AsyncWebSocketSession]:
    url = str(client.base_url).rstrip("/") + path
    websocket: httpx_ws.AsyncWebSocketSession
    async with httpx_ws.aconnect_ws(url, client, subprotocols=list(protocols) or None) as websocket:
        yield websocket


class ApiServer:
    """What kr8s needs of the API server to forward a port: it hands on to the kubelet as kube-apiserver does."""

    namespace = "default"

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    @asynccontextmanager
    async def open_websocket(
        self, *, url: str, params: dict[str, str], namespace: str, **_: object
    ) -> AsyncIterator[httpx_ws.AsyncWebSocketSession]:
        assert url == "pods/p/portforward"
        async with websocket_to(self._client, f"/portForward/{namespace}/p?port={params['ports']}") as websocket:
            yield websocket


@asynccontextmanager
async def forwarded(client: httpx.AsyncClient, port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection through kr8s and the kubelet to ``port`` of pod p."""
    pod = ClientsPod({"metadata": {"name": "p", "namespace": "default"}}, api=cast("Any", ApiServer(client)))
    with socket.socket() as free:  # kr8s itself may choose a port that some connection has
        free.bind(("127.0.0.1", 0))
        chosen = free.getsockname()[1]
    async with PortForward(pod, port, local_port=chosen) as local:
        reader, writer = await asyncio.open_connection("127.0.0.1", local)
        try:
            yield reader, writer
        finally:
            writer.close()


async def answering(address: str) -> tuple[asyncio.Server, int]:
    """A server in the pod that answers each line in upper case, and ends after ``bye``."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (line := await reader.readline()) and line != b"bye\n":
            writer.write(line.upper())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, address, 0, limit=1 << 22)
    return server, server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("address", [POD_ADDRESS, "127.0.0.1"])
def test_a_port_of_a_pod_is_reached_on_its_address_and_on_its_loopback_address(pki: Pki, one: Container, address: str) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        server, port = await answering(address)
        async with forwarded(client, port) as (reader, writer):
            for line in (b"hello\n", b"again\n"):
                writer.write(line)
                assert await reader.readline() == line.upper()
            writer.write(b"bye\n")
            assert await reader.read() == b""
        server.close()

    ask(pki, one, work)


def test_much_that_goes_either_way_comes_whole(pki: Pki, one: Container) -> None:
    much = b"x" * (1 << 21) + b"\n"

    async def work(client: httpx.AsyncClient) -> None:
        server, port = await answering(POD_ADDRESS)
        async with forwarded(client, port) as (reader, writer):
            writer.write(much + b"bye\n")
            assert await reader.read() == much.upper()
        server.close()

    ask(pki, one, work)


def test_a_client_that_leaves_ends_its_connection_to_the_pod(pki: Pki, one: Container) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        left = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            left.set()

        server = await asyncio.start_server(answer, POD_ADDRESS, 0)
        async with forwarded(client, server.sockets[0].getsockname()[1]) as (_, writer):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.1)
            assert not left.is_set()
        await asyncio.wait_for(left.wait(), 5)
        server.close()

    ask(pki, one, work)


@pytest.mark.parametrize("query", ["", "?port=70000", "?port=http"])
def test_a_client_that_names_no_port_is_refused(pki: Pki, one: Container, query: str) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        with pytest.raises(httpx_ws.WebSocketUpgradeError) as refused:
            async with websocket_to(client, f"/portForward/default/p{query}"):
                pass
        assert refused.value.response.status_code == 400

    ask(pki, one, work)


def test_a_port_where_nobody_listens_is_told_on_the_channel_for_errors(pki: Pki, one: Container) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        async with websocket_to(client, "/portForward/default/p?port=1", "v4.channel.k8s.io") as websocket:
            assert websocket.subprotocol == "v4.channel.k8s.io"
            messages = [await websocket.receive_bytes() for _ in range(3)]
            assert messages[:2] == [b"\0\1\0", b"\1\1\0"]
            assert messages[2].startswith(b"\1error forwarding port 1 to pod p, uid u-1: ")
            with pytest.raises(httpx_ws.WebSocketDisconnect):
                await websocket.receive_bytes()

    ask(pki, one, work)


def test_several_ports_have_channels_of_their_own(pki: Pki, one: Container) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        servers = [await answering(POD_ADDRESS) for _ in range(2)]
        ports = ",".join(str(port) for _, port in servers)
        async with websocket_to(client, f"/portForward/default/p?port={ports}") as websocket:
            assert [(await websocket.receive_bytes())[0] for _ in range(4)] == [0, 1, 2, 3]
            for channel in (2, 0):
                await websocket.send_bytes(bytes([channel]) + b"hi\n")
                assert await websocket.receive_bytes() == bytes([channel]) + b"HI\n"
        for server, _ in servers:
            server.close()

    ask(pki, one, work)
