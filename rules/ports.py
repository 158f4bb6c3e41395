"""Ports inside one network namespace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from models.deployment import ROLES, Deployment, RoleName
from models.quantities import LAST_PORT
from models.stack import Stack
from render.pods import RUNTIME_PORT
from rules.finding import Finding, Path, in_deployment


def engine_ports_are_disjoint(stack: Stack) -> Iterator[Finding]:
    """PD601. Each rank listens on kvTransfer.port + its number. Source: port arithmetic of vllm-ascend mooncake_connector.py."""
    for deployment in stack.deployments.values():
        found: dict[Path, Finding] = {}
        for role in ROLES:
            blocks = list(_blocks(deployment, role))
            for one, other in combinations(blocks, 2):
                if one.ports.start < other.ports.stop and other.ports.start < one.ports.stop:
                    # what can be moved is named: the sidecar's port is Kthena's
                    movable, fixed = (one, other) if other.path[-1] == "runtimeSidecar" else (other, one)
                    problem = f"{movable} meets {fixed} in one {role} pod"
                    remedy = f"a port from {fixed.ports.stop} on, or up to {fixed.ports.start - len(movable.ports)}"
                    found.setdefault(movable.path, Finding("PD601", movable.path, problem, remedy))
            for block in blocks:
                if block.ports.stop - 1 > LAST_PORT:
                    problem, remedy = f"{block} goes past {LAST_PORT}", f"a port up to {LAST_PORT + 1 - len(block.ports)}"
                    found.setdefault(block.path, Finding("PD601", block.path, problem, remedy))
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


@dataclass(frozen=True)
class Block:
    """Ports on which one thing in a pod listens."""

    ports: range
    purpose: str
    path: Path
    """where they are declared"""

    def __str__(self) -> str:
        first, last = self.ports.start, self.ports.stop - 1
        return f"{first if first == last else f'{first}-{last}'} ({self.purpose})"


def _blocks(deployment: Deployment, role: RoleName) -> Iterator[Block]:
    """All that listens in a pod of ``role``."""
    parallelism = deployment.role(role).parallelism

    def block(first: int, count: int, purpose: str, *keys: str) -> Block:
        return Block(range(first, first + count), purpose, in_deployment(deployment, *keys))

    yield block(deployment.port, 1, "API", "port")
    yield block(deployment.kv_transfer.port, parallelism.npus, "KV side channel", "kvTransfer", "port")
    if parallelism.dp > 1:
        yield block(deployment.data_parallel_rpc_port, 1, "data-parallel RPC", "dataParallelRpcPort")
    if deployment.runtime_sidecar:
        yield block(RUNTIME_PORT, 1, "runtime sidecar", "runtimeSidecar")
