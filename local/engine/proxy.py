"""The engine's API: forwards to llm-d-inference-sim, which has no address of its own, and writes down each request.

What the simulator cannot know is added on the way: the KV cache blocks that a prefill leaves behind belong to this
engine, at this address, under this id.
"""

from __future__ import annotations

import http.client
import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from local.engine.arguments import Engine
from local.engine.server import Server

OWN_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-length", "date", "host", "keep-alive", "server", "transfer-encoding"}
)
"""not passed on: each of the two connections has its own"""
UPSTREAM_TIMEOUT = 3600
"""seconds between two pieces of an answer"""

Record = dict[str, Any]
"""``started``, ``ended`` (seconds since the epoch), ``path``, ``status``, ``request_id``, ``kv_role``, ``engine_id``,
``request`` and ``response`` (bodies as JSON; of a stream: ``first``, ``last``, ``chunks``, ``done``)"""


def record_to(file: Path) -> Callable[[Record], None]:
    """Function that appends one record to ``file`` as a line of JSON."""
    lock = threading.Lock()

    def write(record: Record) -> None:
        line = json.dumps(record) + "\n"
        with lock, file.open("a") as stream:
            stream.write(line)

    return write


def hand_over(response: Any, engine: Engine, address: str, blocks: Iterator[int]) -> Any:
    """``response`` with ``kv_transfer_params`` of this engine in place of the simulator's placeholders.

    An engine whose connector hands nothing over answers without them, so that a deployment that computes everything on
    decode looks here as it would on NPUs.
    """
    if not isinstance(response, dict) or not isinstance(response.get("kv_transfer_params"), dict):
        return response
    transfer = engine.kv_transfer
    if transfer is None or not transfer.hands_over:
        return {key: value for key, value in response.items() if key != "kv_transfer_params"}
    prompt_tokens = (response.get("usage") or {}).get("prompt_tokens") or 1
    # the simulator takes block ids as strings only
    ids = [str(block) for block in itertools.islice(blocks, math.ceil(prompt_tokens / engine.block_size))]
    own = {
        "remote_block_ids": ids,
        "remote_engine_id": transfer.engine_id,
        "remote_host": address,
        "remote_port": transfer.port,
        "tp_size": engine.tensor_parallel_size,
    }
    return {**response, "kv_transfer_params": {**response["kv_transfer_params"], **own}}


class Stream:
    """What is worth keeping of a stream of server-sent events."""

    def __init__(self) -> None:
        self.first: Any = None
        self.last: Any = None
        self.chunks = 0
        self.done = False

    def add(self, line: bytes) -> None:
        """Take note of one line of the stream."""
        data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
        if data == b"[DONE]":
            self.done = True
        elif data:
            self.chunks += 1
            self.last = _json(data)
            self.first = self.first or self.last


class Proxy(Server):
    """HTTP server on ``address`` in front of the simulator on ``upstream`` (port of 127.0.0.1)."""

    def __init__(self, address: tuple[str, int], upstream: int, engine: Engine, record: Callable[[Record], None]) -> None:
        self.upstream = upstream
        self.engine = engine
        self.record = record
        self.blocks = itertools.count()
        super().__init__(address, _Handler)

    def new_record(self, path: str, request_id: str | None, body: bytes) -> Record:
        """Record of a request that has just arrived."""
        transfer = self.engine.kv_transfer
        return {
            "started": time.time(),
            "path": path,
            "request_id": request_id,
            "kv_role": transfer.role if transfer else None,
            "engine_id": transfer.engine_id if transfer else None,
            "request": _json(body),
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Proxy

    def do_GET(self) -> None:
        self._forward(b"")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit():
            self.close_connection = True
            self._answer(411, b'{"error": "a request needs Content-Length"}')
            return
        body = self.rfile.read(int(length))
        record = self.server.new_record(self.path, self.headers.get("x-request-id"), body)
        self._forward(body, record)

    def _forward(self, body: bytes, record: Record | None = None) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in OWN_HEADERS}
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=UPSTREAM_TIMEOUT)
        try:
            upstream.request(self.command, self.path, body or None, headers)
            response = upstream.getresponse()
            if response.headers.get_content_type() == "text/event-stream":
                self._relay_stream(response, record)
            else:
                self._relay(response, record)
        except (BrokenPipeError, ConnectionResetError) as error:
            # either side went away in the middle of an answer: there is nobody left to tell
            self.close_connection = True
            self._finish(record, None, {"error": str(error)})
        except (OSError, http.client.HTTPException) as error:
            self.close_connection = True
            self._finish(record, 503, {"error": str(error)})
            self._answer(503, json.dumps({"error": f"engine is not ready: {error}"}).encode())
        finally:
            upstream.close()

    def _relay(self, response: http.client.HTTPResponse, record: Record | None) -> None:
        body = response.read()
        if record:
            answer = hand_over(_json(body), self.server.engine, self.server.server_name, self.server.blocks)
            body = json.dumps(answer).encode() if isinstance(answer, dict) else body
            # written before the client has its answer: whoever has an answer finds its record
            self._finish(record, response.status, answer)
        self._answer(response.status, body, response)

    def _relay_stream(self, response: http.client.HTTPResponse, record: Record | None) -> None:
        self.send_response(response.status)
        self._copy_headers(response)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        stream = Stream()
        try:
            for line in iter(response.readline, b""):
                stream.add(line)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        finally:
            self._finish(record, response.status, vars(stream))
        self.wfile.write(b"0\r\n\r\n")

    def _finish(self, record: Record | None, status: int | None, response: Any) -> None:
        if record and "ended" not in record:
            record |= {"ended": time.time(), "status": status, "response": response}
            self.server.record(record)

    def _answer(self, status: int, body: bytes, response: http.client.HTTPResponse | None = None) -> None:
        self.send_response(status)
        if response:
            self._copy_headers(response)
        else:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _copy_headers(self, response: http.client.HTTPResponse) -> None:
        for name, value in response.getheaders():
            if name.lower() not in OWN_HEADERS:
                self.send_header(name, value)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:  # noqa: ARG002
        # probes and metrics ask every few seconds and would bury the rest of the log
        if self.command == "POST":
            print(f'INFO: {self.client_address[0]} - "POST {self.path} HTTP/1.1" {int(code)}', flush=True)


def _json(body: bytes) -> Any:
    """``body`` as JSON, or as text where it is something else."""
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")
