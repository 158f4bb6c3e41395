"""The kubelet's own server, on the address of every simulated node: logs of containers, and ports of pods.

The API server hands on to it what `kubectl logs` asks (``/containerLogs/NAMESPACE/POD/CONTAINER``) and what clients that
forward ports over a websocket ask (``/portForward/NAMESPACE/POD``), and shows a certificate of the cluster's authority:
nobody else is answered. SPDY is not spoken here, which kubectl needs for `port-forward`, `exec` and `attach`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

import h11
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, Request
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import RemoteProtocolError

from local.kubelet.containers import Container
from local.kubelet.output import Output
from local.kubelet.pods import Pod
from local.kubelet.services import LOCALHOST
from local.pki import Pki

CHUNK = 1 << 15
"""bytes that are handed on at once; clients accept websocket messages of 64 KiB"""
PROTOCOL = "v4.channel.k8s.io"
"""of a forwarded port; a client that names none means it, too"""
WITHOUT_TIME = {"timestamps", "sinceSeconds", "sinceTime"}
"""parameters of a request for logs that can't be heeded: the logs here have no times"""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Send = Callable[[Event], Awaitable[None]]
Query = Mapping[str, Sequence[str]]
Find = Callable[[str, str], Pod | None]
"""the pod of a namespace and name"""

log = logging.getLogger(__name__)


class RefusalError(Exception):
    """A request can't be answered. The message is for the user: the API server hands it on unless the status is 404."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


def identity(pki: Pki) -> ssl.SSLContext:
    """How the server shows who it is, and whom it answers: who has a certificate of the same authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki.authority))
    context.load_cert_chain(pki.certificate, pki.key)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def serve(find: Find, addresses: Sequence[str], port: int, context: ssl.SSLContext) -> asyncio.Server:
    """Answer on ``port`` of all ``addresses`` until the server is closed.

    Raises:
        OSError: another program listens there.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _answer(find, reader, writer)
        except (OSError, LookupError, h11.RemoteProtocolError, RemoteProtocolError) as error:
            # the client is gone, or no client of ours, which may name a channel that there is not
            log.info("a request ended early: %s %s", type(error).__name__, error)
        finally:
            writer.close()

    return await asyncio.start_server(answer, addresses, port, ssl=context)


async def _answer(find: Find, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the one request of a connection."""
    connection = h11.Connection(h11.SERVER)
    request = await _request(connection, reader)
    if request is None:
        return
    try:
        url = urlsplit(request.target.decode())
        kind, namespace, name, *rest = url.path.strip("/").split("/") + [""] * 3
        pod = find(namespace, name)
        query = parse_qs(url.query)
        if kind not in ("containerLogs", "portForward"):
            raise RefusalError(HTTPStatus.NOT_FOUND, f"the kubelet of the local cluster has no {kind}")
        if pod is None:
            wrote = f"make logs POD={namespace}/{name} shows what an ended one wrote"
            raise RefusalError(HTTPStatus.BAD_REQUEST, f'the local kubelet does not run pod "{name}"; {wrote}')
        if kind == "containerLogs":
            body = _logs(pod, rest[0], query, lambda: not reader.at_eof())
            await _respond(connection, writer, HTTPStatus.OK, body)
        else:
            await _forward(pod, _upgrade(request), _ports(query), reader, writer)
    except RefusalError as refusal:
        await _respond(connection, writer, refusal.status, _once(str(refusal).encode()))


async def _request(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """The request, None if the client has left without one. Its body, if any, is left alone."""
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await reader.read(CHUNK))
    return event if isinstance(event, h11.Request) else None


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def _respond(
    connection: h11.Connection, writer: asyncio.StreamWriter, status: HTTPStatus, body: AsyncIterator[bytes]
) -> None:
    headers = [("Content-Type", "text/plain"), ("Connection", "close")]
    writer.write(connection.send(h11.Response(status_code=status, headers=headers)) or b"")
    await writer.drain()
    async for chunk in body:
        writer.write(connection.send(h11.Data(data=chunk)) or b"")
        await writer.drain()
    writer.write(connection.send(h11.EndOfMessage()) or b"")
    await writer.drain()


# logs


def _logs(pod: Pod, name: str, query: Query, connected: Callable[[], bool]) -> AsyncIterator[bytes]:
    """What the container wrote, as ``query`` wants it."""
    one = pod.container(name)
    if one is None:
        raise RefusalError(HTTPStatus.BAD_REQUEST, f'container "{name}" in pod "{pod.name}" is not available')
    if unheeded := WITHOUT_TIME & query.keys():
        raise RefusalError(
            HTTPStatus.BAD_REQUEST, f"logs of the local cluster have no times: leave out {', '.join(sorted(unheeded))}"
        )
    run = run_of(one, pod.name, previous="previous" in query)
    tail = int(query["tailLines"][0]) if "tailLines" in query else None
    begin = one.output.bounds(run)[0] if tail is None else one.output.last_lines(run, tail)
    follow = "follow" in query
    limit = int(query["limitBytes"][0]) if "limitBytes" in query else None
    return _limited(one.output, run, begin, limit, lambda: follow and connected())


async def _limited(output: Output, run: int, begin: int, limit: int | None, goes_on: Callable[[], bool]) -> AsyncIterator[bytes]:
    async for chunk in output.read(run, begin, goes_on):
        yield chunk[:limit]
        if limit is not None and (limit := limit - len(chunk)) <= 0:
            return


def run_of(one: Container, pod: str, *, previous: bool) -> int:
    """Which of the container's runs is meant: the last one, or the one whose end its ``lastState`` tells of.

    Raises:
        RefusalError: there is none.
    """
    last = one.output.runs - 1
    run = last - 1 if previous and "waiting" not in one.state else last
    if run >= 0:
        return run
    title = f'container "{one.name}" in pod "{pod}"'
    if previous:
        raise RefusalError(HTTPStatus.BAD_REQUEST, f"previous terminated {title} not found")
    if "waiting" in one.state:
        raise RefusalError(HTTPStatus.BAD_REQUEST, f"{title} is waiting to start: {one.state['waiting']['reason']}")
    raise RefusalError(HTTPStatus.BAD_REQUEST, f"{title} is simulated: it has no process, and no log")


# ports


def _ports(query: Query) -> list[int]:
    """Ports that a client wants to reach."""
    words = [word for text in query.get("port", ()) for word in text.split(",")]
    if not words or not all(word.isdigit() and 0 < int(word) < 1 << 16 for word in words):
        raise RefusalError(HTTPStatus.BAD_REQUEST, 'query parameter "port" must name ports')
    return [int(word) for word in words]


def _upgrade(request: h11.Request) -> WSConnection:
    """A websocket that is yet to be accepted."""
    websocket = WSConnection(ConnectionType.SERVER)
    try:
        websocket.initiate_upgrade_connection([*request.headers], request.target.decode())
    except RemoteProtocolError as error:
        # no colon: kubectl takes what is a mapping in YAML for a status, and shows nothing of it
        message = "the local cluster forwards ports over websockets, and kubectl needs SPDY for it"
        raise RefusalError(HTTPStatus.BAD_REQUEST, message) from error
    return websocket


async def _forward(
    pod: Pod, websocket: WSConnection, ports: Sequence[int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Hand on what comes for the pod's ``ports``, and what they answer, until one side ends.

    Data of the port with index i are on channel 2i, and what went wrong with it on channel 2i+1. A message begins with the
    number of its channel; the first one on each says which port it is.
    """

    async def send(event: Event) -> None:
        writer.write(websocket.send(event))
        await writer.drain()

    (request,) = websocket.events()
    offered = request.subprotocols if isinstance(request, Request) else []
    await send(AcceptConnection(subprotocol=PROTOCOL if PROTOCOL in offered else None))
    for channel in range(2 * len(ports)):
        await send(BytesMessage(bytes([channel]) + ports[channel // 2].to_bytes(2, "little")))
    targets: list[Streams] = []
    try:
        for index, port in enumerate(ports):
            try:
                targets.append(await _connect(pod.address, port))
            except OSError as error:
                message = f"error forwarding port {port} to pod {pod.name}, uid {pod.uid}: {error.strerror or error}"
                await send(BytesMessage(bytes([2 * index + 1]) + message.encode()))
                break
        else:
            await _exchange(targets, websocket, reader, send)
        if websocket.state is ConnectionState.OPEN:
            await send(CloseConnection(CloseReason.NORMAL_CLOSURE))
    finally:
        for _, target in targets:
            target.close()


async def _exchange(targets: Sequence[Streams], websocket: WSConnection, reader: asyncio.StreamReader, send: Send) -> None:
    """Carry bytes both ways until the client or every target has ended."""

    async def answers(index: int) -> None:
        while data := await targets[index][0].read(CHUNK):
            await send(BytesMessage(bytes([2 * index]) + data))

    async def asks() -> None:
        async for channel, data in _received(websocket, reader, send):
            target = targets[channel // 2][1]
            target.write(data)
            await target.drain()

    both: set[asyncio.Future[Any]] = {asyncio.create_task(asks()), asyncio.gather(*map(answers, range(len(targets))))}
    try:
        ended, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for one in ended:
            one.result()
    finally:
        for one in both:
            one.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _received(websocket: WSConnection, reader: asyncio.StreamReader, send: Send) -> AsyncIterator[tuple[int, bytes]]:
    """Channel and bytes of what the client sends until it ends."""
    channel = None
    while data := await reader.read(CHUNK):
        websocket.receive_data(data)
        for event in websocket.events():
            if isinstance(event, Ping | CloseConnection):
                await send(event.response())
            if isinstance(event, CloseConnection):
                return
            if isinstance(event, BytesMessage):
                content = bytes(event.data)
                if channel is None:  # a message may come in parts, of which only the first names the channel
                    channel, content = content[0], content[1:]
                yield channel, content
                channel = None if event.message_finished else channel


async def _connect(address: str, port: int) -> Streams:
    """Reach ``port`` of a pod. What listens on a pod's loopback address listens on the machine's: pods here share it."""
    try:
        return await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return await asyncio.open_connection(LOCALHOST, port)
