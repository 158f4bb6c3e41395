"""``python -m local.engine.vllm serve MODEL ...``: the ``vllm`` of the local cluster's vLLM-Ascend images."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from local.engine import ranks, simulator
from local.engine.arguments import Engine, check
from local.engine.proxy import Proxy, record_to


def main() -> int:
    """Serve until told to stop. Exit codes: 0 stopped, 1 refused or the simulator ended."""
    engine = check(sys.argv[1:], os.environ, os.environ.get("LOCAL_IMAGE", ""), os.path.exists)
    if isinstance(engine, list):
        print(*engine, sep="\n", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    address = os.environ.get("LOCAL_POD_IP") or "127.0.0.1"
    return ranks.join(engine, address) if engine.headless else _serve(engine, address)


def _serve(engine: Engine, address: str) -> int:
    directory = Path(os.environ.get("LOCAL_CONTAINER_DIRECTORY", "."))
    log = directory / "simulator.log"
    port = simulator.free_port()
    try:
        proxy = Proxy((address, engine.port), port, engine, record_to(directory / "requests.jsonl"))
    except OSError as error:
        print(f"{error} while attempting to bind on address {(address, engine.port)}", file=sys.stderr)
        return 1
    stopped = threading.Event()
    try:
        process = simulator.start(engine, port, log)
    except FileNotFoundError:
        print(f"{simulator.PROGRAM} is not on PATH: {os.environ.get('PATH')}", file=sys.stderr)
        return 1
    try:
        ranks.gather(engine, address, _end)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _stop(process, stopped))
    print(_description(engine, address), flush=True)
    code = process.wait()
    if stopped.is_set():
        return 0
    print(f"{simulator.PROGRAM} ended with {code}, its log is {log}", file=sys.stderr)
    return 1


def _end(why: str) -> None:
    """End at once: an engine of which a part is gone computes nothing any more."""
    print(why, file=sys.stderr, flush=True)
    os._exit(1)


def _stop(process: subprocess.Popen[bytes], stopped: threading.Event) -> None:
    """Cut what is being answered, as vLLM does without ``--shutdown-timeout``; the simulator would finish it first."""
    stopped.set()
    process.kill()


def _description(engine: Engine, address: str) -> str:
    transfer = engine.kv_transfer
    role = f"{transfer.role} of {transfer.connector}, engine id {transfer.engine_id!r}" if transfer else "no KV transfer"
    return (
        f"Simulated: {', '.join(engine.served_model_names)} on {address}:{engine.port} by {simulator.PROGRAM}; "
        f"TP {engine.tensor_parallel_size}, DP {engine.data_parallel_size}, {role}. "
        "The command line was checked, no NPU is used and no weights are read."
    )


if __name__ == "__main__":
    sys.exit(main())
