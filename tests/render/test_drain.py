"""The rendered drain.py, as a pod's preStop hook runs it, against a server that speaks of requests as vLLM does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from render import render_deployment
from render.pods import SCRIPTS
from rules import read
from tests import stacks

PERIOD = 0.3
"""seconds; asks four times in it"""
MANY = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a} 7"} 0.0
vllm:num_requests_running{engine="1",model_name="a} 7"} %s
vllm:num_requests_waiting{engine="0",model_name="a} 7"} 0.0
vllm:num_requests_waiting{engine="1",model_name="a} 7"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 3.0
vllm:num_preemptions_total{engine="0"} 5.0
"""


class Engine(ThreadingHTTPServer):
    """Answers /metrics with ``metrics``; None: takes the request and does not answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Metrics)
        self.metrics: str | None = ""
        self.asked = threading.Semaphore(0)

    def wait_until_asked(self, times: int) -> None:
        for _ in range(times):
            assert self.asked.acquire(timeout=10)


class Metrics(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        assert self.path == "/metrics"
        self.server.asked.release()
        if self.server.metrics is None:
            time.sleep(1)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.metrics.encode())

    def log_message(self, *_: object) -> None:
        pass


Run = Callable[..., AbstractContextManager[subprocess.Popen[bytes]]]


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def drain(tmp_path: Path, engine: Engine) -> Run:
    """Runs the preStop hook of the decode pod whose engine that is, or of a worker beside it."""
    stack = read(
        stacks.config(
            cluster={"npu": {"family": "A3", "devicePlugin": "cce"}},
            port=engine.server_port,
            decode={"pods": 2},
            readiness={"drainPeriod": f"{PERIOD}s"},
        )
    )
    serving = render_deployment(stack.deployments["deepseekv4-pd"], stack.cluster).stable
    role: dict[str, Any] = serving.model_serving["spec"]["template"]["roles"][1]
    (tmp_path / "python3").symlink_to(sys.executable)
    for name, content in serving.scripts["decode"]["data"].items():
        (tmp_path / name).write_text(content)

    @contextmanager
    def run(*, worker: bool = False) -> Iterator[subprocess.Popen[bytes]]:
        (container,) = role["workerTemplate" if worker else "entryTemplate"]["spec"]["containers"]
        command = [word.replace(SCRIPTS, str(tmp_path)) for word in container["lifecycle"]["preStop"]["exec"]["command"]]
        variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ENTRY_ADDRESS" if worker else "POD_IP": "127.0.0.1"}
        with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE) as process:
            try:
                yield process
            finally:
                process.kill()

    return run


def ends(process: subprocess.Popen[bytes]) -> bool:
    """Whether it ends, and as it should."""
    _, errors = process.communicate(timeout=10)
    return (process.returncode, errors) == (0, b"")


def test_an_engine_is_let_go_on_while_a_request_runs_or_waits_and_is_stopped_a_period_after_the_last(
    engine: Engine, drain: Run
) -> None:
    engine.metrics = MANY % "1.0"
    with drain() as process:
        for busy in (
            MANY % "1e+02",
            'vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_waiting{engine="0"} 2.0\n',
            "vllm:num_requests_waiting 3\n",
            MANY % "1.0",
        ):
            engine.wait_until_asked(2)
            assert process.poll() is None
            engine.metrics = busy
        engine.wait_until_asked(2)
        engine.metrics = MANY % "0.0"
        last = time.monotonic()
        assert ends(process)
        assert time.monotonic() - last > PERIOD / 2


def test_a_worker_ends_after_its_entry_pod_however_long_that_has_no_request(engine: Engine, drain: Run) -> None:
    engine.metrics = "vllm:num_requests_running 0\n"
    with drain(worker=True) as worker, drain() as entry:
        assert ends(entry)
        assert worker.poll() is None
        engine.shutdown()
        engine.server_close()
        assert ends(worker)


def test_where_nobody_listens_nothing_is_waited_for(engine: Engine, drain: Run) -> None:
    engine.shutdown()
    engine.server_close()
    with drain(worker=True) as process:
        assert ends(process)


def test_an_engine_that_is_too_busy_to_answer_is_not_taken_for_gone(tmp_path: Path, engine: Engine, drain: Run) -> None:
    script = tmp_path / "drain.py"
    patient = script.read_text()
    assert "timeout=5" in patient
    script.write_text(patient.replace("timeout=5", "timeout=0.05"))
    engine.metrics = None
    with drain() as process:
        engine.wait_until_asked(2)
        assert process.poll() is None
        engine.metrics = ""
        assert ends(process)
