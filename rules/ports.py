"""Ports inside one network namespace."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from models.deployment import ROLES, Deployment, RoleName
from models.stack import Stack
from render.pods import RUNTIME_PORT
from rules.finding import Finding, Path, in_deployment

_LAST_PORT = 65535


def engine_ports_are_disjoint(stack: Stack) -> Iterator[Finding]:
    """PD601. Each rank listens on kvTransfer.port + its number. Source: port arithmetic of vllm-ascend mooncake_connector.py."""
    for deployment in stack.deployments.values():
        found: dict[Path, Finding] = {}
        for role in ROLES:
            blocks = sorted(_blocks(deployment, role), key=lambda block: block[0].start)
            for (ports, name, _), (next_ports, next_name, path) in pairwise(blocks):
                if next_ports.start < ports.stop:
                    problem = f"{_span(next_ports)} ({next_name}) meets {_span(ports)} ({name}) in one {role} pod"
                    found.setdefault(
                        path, Finding("PD601", path, problem, f"a port from {ports.stop} on, or below {ports.start}")
                    )
            for ports, name, path in blocks:
                if ports.stop - 1 > _LAST_PORT:
                    problem = f"{_span(ports)} ({name}) goes past {_LAST_PORT}"
                    found.setdefault(path, Finding("PD601", path, problem, f"a port up to {_LAST_PORT + 1 - len(ports)}"))
        yield from found.values()


def router_ports_differ(stack: Stack) -> Iterator[Finding]:
    """PD602. One process listens on both. Source: kthena-router --port and --debug-port."""
    router = stack.cluster.control_plane.router
    if router.port == router.debug_port:
        yield Finding(
            "PD602",
            ("cluster", "controlPlane", "router", "debugPort"),
            f"{router.debug_port} is the serving port too",
            "another port, for example 15000",
        )


def _blocks(deployment: Deployment, role: RoleName) -> Iterator[tuple[range, str, Path]]:
    """What listens in a pod of ``role``: ports, what for, where that is declared."""
    parallelism, kv_port = deployment.role(role).parallelism, deployment.kv_transfer.port
    yield range(deployment.port, deployment.port + 1), "API", in_deployment(deployment, "port")
    kv_path = in_deployment(deployment, "kvTransfer", "port")
    yield range(kv_port, kv_port + parallelism.npus), "KV side channel", kv_path
    if parallelism.dp > 1:
        rpc = deployment.data_parallel_rpc_port
        yield range(rpc, rpc + 1), "data-parallel RPC", in_deployment(deployment, "dataParallelRpcPort")
    if deployment.runtime_sidecar:
        yield range(RUNTIME_PORT, RUNTIME_PORT + 1), "runtime sidecar", in_deployment(deployment, "runtimeSidecar")


def _span(ports: range) -> str:
    return str(ports.start) if len(ports) == 1 else f"{ports.start}-{ports.stop - 1}"
