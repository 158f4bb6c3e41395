"""llm-d-inference-sim as a child process that does not outlive the engine."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
from pathlib import Path

from local.engine.arguments import Engine

PROGRAM = "llm-d-inference-sim"
LONGEST_MODEL = 131072
"""tokens, for engines that leave ``--max-model-len`` to the model"""
LONGEST_QUEUE = 256
"""Requests that wait for one of ``--max-num-seqs`` places; the next one is refused with 429. The simulator's own 1000 cost
memory: it sets aside 8 bytes for each token of the longest context of all requests that may run or wait (v0.10.2,
``createAndRegisterPrometheus``: ``tpotChan``), half a gigabyte for 65536 tokens."""
COLLECTOR = {"GOMAXPROCS": "2", "GOGC": "20"}
"""What is set aside counts as live memory, so Go's default would let as much garbage again pile up (8 bytes for each token
of the longest context per request) before it is collected. A GOMEMLIMIT below what is set aside would be worse: the
collector would run all the time."""
PR_SET_PDEATHSIG = 1


def arguments(engine: Engine, port: int) -> list[str]:
    """Command line of the simulator for ``engine``. Latencies are small but not zero, so that streams are streams."""
    return [
        f"--port={port}",
        f"--model={engine.served_model_names[0]}",
        "--served-model-name",
        *engine.served_model_names,
        *(["--lora-modules"] if engine.adapters else []),
        *(json.dumps({"name": name}) for name in engine.adapters),
        f"--max-num-seqs={engine.max_num_seqs}",
        f"--max-model-len={engine.max_model_len or LONGEST_MODEL}",
        f"--max-waiting-queue-length={LONGEST_QUEUE}",
        "--force-dummy-tokenizer",
        "--time-to-first-token=5ms",
        "--inter-token-latency=1ms",
        "--enable-request-id-headers",
    ]


def free_port() -> int:
    """Port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def start(engine: Engine, port: int, log: Path) -> subprocess.Popen[bytes]:
    """Start the simulator, whose words go to ``log``. The kernel ends it when this process dies, however it dies."""
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def die_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    # nothing of the pod's environment: the simulator would take POD_NAME and the like for its own
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with log.open("wb") as output:
        return subprocess.Popen(
            [PROGRAM, *arguments(engine, port)],
            env={**environment, **COLLECTOR},
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # no thread has started yet
        )
