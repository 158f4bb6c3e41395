"""Workers of an instance join its entry pod, which serves once all ranks are there, and they end together."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from local.engine import ranks
from local.engine.arguments import Engine

HERE = "127.0.0.1"


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return int(probe.getsockname()[1])


def engine(port: int, first: int, local: int, size: int = 4) -> Engine:
    return Engine(
        model="/models/m",
        served_model_names=("m",),
        port=7100,
        adapters=(),
        headless=first > 0,
        tensor_parallel_size=2,
        data_parallel_size=size,
        data_parallel_size_local=local,
        start_rank=first,
        data_parallel_address=HERE,
        data_parallel_rpc_port=port,
        max_num_seqs=4,
        max_model_len=None,
        block_size=128,
        kv_transfer=None,
    )


def in_background(work: Callable[..., Any], *arguments: Any) -> queue.Queue[Any]:
    """The result of ``work`` once it has one: what it returns, or what it raises."""
    results: queue.Queue[Any] = queue.Queue()

    def run() -> None:
        try:
            results.put(work(*arguments))
        except ValueError as error:
            results.put(error)

    threading.Thread(target=run, daemon=True).start()
    return results


def connected(port: int, line: str) -> socket.socket:
    """A worker that is under the test's control."""
    deadline = time.monotonic() + 10
    while True:
        try:
            worker = socket.create_connection((HERE, port))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
            continue
        worker.sendall(line.encode())
        return worker


def test_an_instance_in_one_pod_waits_for_nobody(port: int) -> None:
    ranks.gather(engine(port, 0, 4), HERE, pytest.fail)


def test_the_entry_pod_waits_for_all_ranks_in_whatever_order_they_come(port: int) -> None:
    gathered = in_background(ranks.gather, engine(port, 0, 2, size=6), HERE, print)
    with connected(port, "4 2\n"):
        with pytest.raises(queue.Empty):
            gathered.get(timeout=0.2)
        with connected(port, "2 2\n"):
            assert gathered.get(timeout=10) is None


@pytest.mark.parametrize("line", ["0 2\n", "3 2\n"])
def test_a_rank_that_another_pod_has_or_nobody_should_have_is_refused(port: int, line: str) -> None:
    gathered = in_background(ranks.gather, engine(port, 0, 2), HERE, print)
    with connected(port, line):
        assert "unexpected data parallel rank" in str(gathered.get(timeout=10))


def test_a_worker_that_goes_is_told(port: int) -> None:
    lost: queue.Queue[str] = queue.Queue()
    gathered = in_background(ranks.gather, engine(port, 0, 2), HERE, lost.put)
    with connected(port, "2 2\n"):
        assert gathered.get(timeout=10) is None
        assert lost.empty()
    assert lost.get(timeout=10) == "the worker with ranks 2, 3 is gone"


def test_a_worker_waits_for_the_entry_pod_stays_with_it_and_ends_with_it(port: int) -> None:
    joined = in_background(ranks.join, engine(port, 2, 2), HERE)
    time.sleep(0.1)  # it finds nobody at first
    with socket.create_server((HERE, port)) as server:
        connection, _ = server.accept()
        with connection:
            assert connection.makefile().readline() == "2 2\n"
            with pytest.raises(queue.Empty):
                joined.get(timeout=0.2)
    assert joined.get(timeout=10) == 1


def test_a_worker_that_finds_no_entry_pod_gives_up(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert ranks.join(engine(port, 2, 2), HERE, patience=0.3) == 1
    assert f"no entry engine answers at {HERE}:{port}" in capsys.readouterr().err
