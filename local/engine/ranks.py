"""The pods of one instance find each other: workers connect to the entry pod, which serves once all ranks are there.

As in vLLM's internal data parallelism with ``--headless`` workers: the address is that of ``--data-parallel-address``, the port
``--data-parallel-rpc-port``, each rank belongs to one pod, and when one pod goes, the others end.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable

from local.engine.arguments import Engine

HANDSHAKE_SECONDS = 300.0
"""for which a worker tries to reach the entry pod (vLLM: HANDSHAKE_TIMEOUT_MINS)"""
RETRY_SECONDS = 0.2


def join(engine: Engine, address: str, patience: float = HANDSHAKE_SECONDS) -> int:
    """Tell the entry pod of this worker's ranks and stay for as long as it does; the exit code, which is never 0."""
    entry = (engine.data_parallel_address, engine.data_parallel_rpc_port)
    deadline = time.monotonic() + patience
    while True:
        try:
            with socket.create_connection(entry, timeout=5, source_address=(address, 0)) as connection:
                connection.settimeout(None)
                connection.sendall(f"{engine.start_rank} {engine.data_parallel_size_local}\n".encode())
                print(f"Simulated: a headless worker with {_ranks(engine.local_ranks)}, joined {entry[0]}:{entry[1]}", flush=True)
                _wait_for_end(connection)
            print(f"the entry engine at {entry[0]}:{entry[1]} is gone", file=sys.stderr)
            return 1
        except OSError as error:
            if time.monotonic() > deadline:
                print(f"no entry engine answers at {entry[0]}:{entry[1]}: {error}", file=sys.stderr)
                return 1
        time.sleep(RETRY_SECONDS)


def gather(engine: Engine, address: str, lost: Callable[[str], None]) -> None:
    """Wait until workers have brought all ranks that the entry pod lacks; from then on ``lost`` is told of one that goes.

    Raises:
        ValueError: two pods have the same rank, or one has a rank that the instance does not have.
    """
    missing = set(range(engine.data_parallel_size)) - set(engine.local_ranks)
    if not missing:
        return
    print(f"Simulated: waiting for {_ranks(missing)}", flush=True)
    with socket.create_server((address, engine.data_parallel_rpc_port)) as server:
        while missing:
            connection, (host, _) = server.accept()
            start, count = map(int, connection.makefile().readline().split())
            brought = set(range(start, start + count))
            if not brought <= missing:
                raise ValueError(f"Message from engine with unexpected data parallel rank: {_ranks(brought - missing)}")
            missing -= brought
            rest = f", waiting for {_ranks(missing)}" if missing else ""
            print(f"Simulated: {_ranks(brought)} joined from {host}{rest}", flush=True)
            threading.Thread(target=_watch, args=(connection, _ranks(brought), lost), daemon=True).start()


def _watch(connection: socket.socket, ranks: str, lost: Callable[[str], None]) -> None:
    _wait_for_end(connection)
    lost(f"the worker with {ranks} is gone")


def _wait_for_end(connection: socket.socket) -> None:
    try:
        while connection.recv(1024):
            pass
    except OSError:
        pass


def _ranks(ranks: set[int] | range) -> str:
    return f"ranks {', '.join(map(str, sorted(ranks)))}"
