"""The engine's proxy passes requests through, writes them down, and says whose KV cache a prefill leaves behind."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from local.engine import downloader, simulator
from local.engine.arguments import Engine, KVTransfer
from local.engine.proxy import Proxy, Record, hand_over, record_to
from local.engine.server import Server

TRANSFER = KVTransfer("MooncakeConnectorV1", "kv_producer", "group-0_prefill-0", 9000)
LAUNCHER = [str(Path(__file__).parents[2] / "local/images/runtime/runtime")]
ENGINE = Engine(
    model="/models/m",
    served_model_names=("m", "n"),
    port=7100,
    adapters=("sql",),
    headless=False,
    tensor_parallel_size=8,
    data_parallel_size=2,
    data_parallel_size_local=2,
    start_rank=0,
    data_parallel_address="127.0.0.1",
    data_parallel_rpc_port=12321,
    max_num_seqs=4,
    max_model_len=None,
    block_size=128,
    kv_transfer=TRANSFER,
)
PLACEHOLDERS = {"do_remote_prefill": True, "remote_engine_id": "DUMMY_ID", "remote_block_ids": ["DUMMY_ID"]}
PREFILLED = {"kv_transfer_params": PLACEHOLDERS, "usage": {"prompt_tokens": 300}}


class FakeSimulator(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(200 if self.path == "/health" else 404, b"{}")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked.get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for event in ('{"n": 1}', '{"n": 2}', '{"n": 3}', "[DONE]"):
                self.wfile.write(f"data: {event}\n\n".encode())
                time.sleep(0.05)
            self.close_connection = True
        else:
            self.answer(400 if asked.get("wrong") else 200, json.dumps(PREFILLED).encode())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("x-request-id", self.headers.get("x-request-id", ""))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *_: object) -> None:
        pass


@contextmanager
def serving(server: Server) -> Iterator[int]:
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def records() -> list[Record]:
    return []


@pytest.fixture
def port(records: list[Record]) -> Iterator[int]:
    with (
        serving(Server(("127.0.0.1", 0), FakeSimulator)) as upstream,
        serving(Proxy(("127.0.0.1", 0), upstream, ENGINE, records.append)) as port,
    ):
        yield port


def subprocess_of_runtime(engine_base_url: str) -> tuple[subprocess.Popen[bytes], int]:
    port = simulator.free_port()
    line = [*LAUNCHER, "--engine=vllm", f"--port={port}", f"--engine-base-url={engine_base_url}", "--pod=d/p", "--model=m"]
    process = subprocess.Popen(line, env=os.environ | {"LOCAL_POD_IP": "127.0.0.2", "LOCAL_PYTHON": sys.executable})
    return process, port


def get(port: int, path: str) -> http.client.HTTPResponse:
    deadline = time.monotonic() + 10
    while True:
        connection = http.client.HTTPConnection("127.0.0.2", port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def ask(port: int, body: dict[str, Any]) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"x-request-id": "r1"})
    return connection.getresponse()


def test_a_request_is_answered_and_written_down_before_the_answer(port: int, records: list[Record]) -> None:
    response = ask(port, {"max_tokens": 1})
    (record,) = records
    answer = json.loads(response.read())
    assert response.status == 200
    assert response.headers["x-request-id"] == "r1"
    assert record["started"] <= record["ended"] <= time.time()
    assert {**record, "started": 0, "ended": 0} == {
        "started": 0,
        "ended": 0,
        "path": "/v1/chat/completions",
        "status": 200,
        "request_id": "r1",
        "kv_role": "kv_producer",
        "engine_id": "group-0_prefill-0",
        "request": {"max_tokens": 1},
        "response": answer,
    }


def test_a_prefill_names_the_blocks_of_its_own_engine(port: int) -> None:
    parameters = [json.loads(ask(port, {}).read())["kv_transfer_params"] for _ in range(2)]
    assert [p["remote_block_ids"] for p in parameters] == [["0", "1", "2"], ["3", "4", "5"]]
    assert parameters[0] == {
        "do_remote_prefill": True,
        "remote_engine_id": "group-0_prefill-0",
        "remote_block_ids": ["0", "1", "2"],
        "remote_host": "127.0.0.1",
        "remote_port": 9000,
        "tp_size": 8,
    }


def test_a_stream_arrives_piece_by_piece(port: int, records: list[Record]) -> None:
    response = ask(port, {"stream": True})
    assert response.readline() == b'data: {"n": 1}\n'
    assert records == []
    assert response.read().endswith(b"data: [DONE]\n\n")
    assert records[0]["response"] == {"first": {"n": 1}, "last": {"n": 3}, "chunks": 3, "done": True}


def test_an_error_of_the_engine_is_passed_on(port: int, records: list[Record]) -> None:
    assert ask(port, {"wrong": True}).status == 400
    assert records[0]["status"] == 400


def test_a_client_that_goes_away_leaves_its_record(port: int, records: list[Record]) -> None:
    response = ask(port, {"stream": True})
    response.readline()
    response.close()
    deadline = time.monotonic() + 2
    while not records and time.monotonic() < deadline:
        time.sleep(0.01)
    assert records[0]["response"]["first"] == {"n": 1}


def test_a_request_without_length_is_refused(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.putrequest("POST", "/v1/chat/completions")
    connection.endheaders()
    assert connection.getresponse().status == 411


def test_the_engine_is_healthy_only_while_the_simulator_is(records: list[Record]) -> None:
    def health(port: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/health")
        return connection.getresponse().status

    with serving(Proxy(("127.0.0.1", 0), simulator.free_port(), ENGINE, records.append)) as port:
        assert health(port) == 503
        assert ask(port, {}).status == 503
    with (
        serving(Server(("127.0.0.1", 0), FakeSimulator)) as upstream,
        serving(Proxy(("127.0.0.1", 0), upstream, ENGINE, records.append)) as port,
    ):
        assert health(port) == 200
    assert [record["status"] for record in records] == [503]


WITHOUT_HAND_OVER = {
    "no KV transfer": None,
    "a consumer": replace(TRANSFER, role="kv_consumer"),
    "a connector that works the other way round": replace(TRANSFER, connector="MooncakeLayerwiseConnector"),
}


@pytest.mark.parametrize("transfer", WITHOUT_HAND_OVER.values(), ids=WITHOUT_HAND_OVER)
def test_an_engine_that_hands_nothing_over_does_not_claim_to(transfer: KVTransfer | None) -> None:
    answer = hand_over(PREFILLED, replace(ENGINE, kv_transfer=transfer), "127.1.0.1", itertools.count())
    assert answer == {"usage": {"prompt_tokens": 300}}


def test_an_answer_without_kv_cache_stays_as_it_is() -> None:
    answers: tuple[Any, ...] = ({"choices": []}, "not json", None)
    for answer in answers:
        assert hand_over(answer, ENGINE, "127.1.0.1", itertools.count()) is answer


def test_records_are_lines_of_json(tmp_path: Path) -> None:
    write = record_to(tmp_path / "requests.jsonl")
    write({"request": "a\nb"})
    write({"request": "c"})
    lines = (tmp_path / "requests.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"request": "a\nb"}, {"request": "c"}]


def test_the_simulator_takes_over_names_and_limits() -> None:
    line = simulator.arguments(replace(ENGINE, max_model_len=8192), 5555)
    assert line[:9] == [
        "--port=5555",
        "--model=m",
        "--served-model-name",
        "m",
        "n",
        "--lora-modules",
        '{"name": "sql"}',
        "--max-num-seqs=4",
        "--max-model-len=8192",
    ]


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", 502), ("127.0.0.2", 200)])
def test_the_sidecar_asks_the_engine_exactly_where_it_was_told(host: str, status: int) -> None:
    """All pods share one loopback interface here, and yet localhost reaches no engine: it listens on the pod's address."""

    class Metrics(FakeSimulator):
        def do_GET(self) -> None:
            self.answer(200 if self.path == "/metrics" else 404, b"vllm:x 1")

    with serving(Server(("127.0.0.2", 0), Metrics)) as engine:
        url = f"http://{host}:{engine}"
        sidecar, port = subprocess_of_runtime(url)
        try:
            response = get(port, "/metrics")
            assert response.status == status
            assert (response.read() == b"vllm:x 1") == (status == 200)
        finally:
            sidecar.kill()
            sidecar.wait()


def test_the_simulator_sets_aside_little_memory() -> None:
    """What it sets aside is 8 bytes a token, for all requests that may run or wait (see LONGEST_QUEUE)."""
    engine = replace(ENGINE, max_num_seqs=48, max_model_len=65536)
    flags = dict(flag.split("=") for flag in simulator.arguments(engine, 5555) if "=" in flag)
    requests = int(flags["--max-num-seqs"]) + int(flags["--max-waiting-queue-length"])
    assert 8 * requests * int(flags["--max-model-len"]) < 200 * 2**20


PROGRAMS = ["vllm-ascend/vllm", "runtime/runtime", "downloader/downloader"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_of_an_image_is_the_stand_in_that_is_named_like_it(program: str) -> None:
    path = Path(__file__).parents[2] / "local/images" / program
    done = subprocess.run([path, "--help"], env={"LOCAL_PYTHON": sys.executable}, capture_output=True, text=True, check=False)
    assert Path(program).name in done.stdout + done.stderr
    assert "No module named" not in done.stderr


def test_a_download_keeps_what_is_there(tmp_path: Path) -> None:
    directory = tmp_path / "cache" / "model"
    assert "config.json" in downloader.download(directory)
    (directory / "config.json").write_text("mine")
    downloader.download(directory)
    assert (directory / "config.json").read_text() == "mine"
    assert sorted(file.name for file in directory.iterdir()) == sorted(downloader.MODEL_FILES)
