"""Ports inside one network namespace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import catalog
from models.deployment import ROLES, Deployment, RoleName
from models.quantities import LAST_PORT
from models.stack import Stack
from render.pods import RUNTIME_PORT
from rules.finding import Path, Problem, in_deployment, rule

MOONCAKE_FIRST = 20000


@rule("PD601", source="port arithmetic of vllm-ascend mooncake_connector.py")
def engine_ports_are_disjoint(stack: Stack) -> Iterator[Problem]:
    """Each rank listens on kvTransfer.port + its number."""
    for deployment in stack.deployments.values():
        found: dict[Path, Problem] = {}
        for role in ROLES:
            blocks = list(_blocks(deployment, role))
            for one, other in combinations(blocks, 2):
                if one.ports.start < other.ports.stop and other.ports.start < one.ports.stop:
                    # what can be moved is named: the sidecar's port is Kthena's
                    movable, fixed = (one, other) if other.path[-1] == "runtimeSidecar" else (other, one)
                    problem = f"{movable} meets {fixed} in one {role} pod"
                    remedy = f"a port from {fixed.ports.stop} on, or up to {fixed.ports.start - len(movable.ports)}"
                    found.setdefault(movable.path, Problem(movable.path, problem, remedy))
            for block in blocks:
                if block.ports.stop - 1 > LAST_PORT:
                    problem, remedy = f"{block} goes past {LAST_PORT}", f"a port up to {LAST_PORT + 1 - len(block.ports)}"
                    found.setdefault(block.path, Problem(block.path, problem, remedy))
        yield from found.values()


@rule("PD602", source="kthena-router --port and --debug-port")
def router_ports_differ(stack: Stack) -> Iterator[Problem]:
    """One process listens on both."""
    router = stack.cluster.control_plane.router
    if router.port == router.debug_port:
        yield Problem(
            ("cluster", "controlPlane", "router", "debugPort"),
            f"{router.debug_port} is the serving port too",
            "another port, for example 15000",
        )


@rule("PD603", source="vLLM-Ascend P/D guide, Mooncake port table; vllm-ascend PR #6455", severity="warning")
def side_channel_keeps_out_of_the_range_of_mooncake(stack: Stack) -> Iterator[Problem]:
    """Mooncake takes ports from 20000 on, a thousand for each die of the server: now and then an address is in use."""
    dies = catalog.npu_families()[stack.cluster.npu.family].dies_per_node
    yield from _side_channel_meets(stack, range(MOONCAKE_FIRST, MOONCAKE_FIRST + 1000 * dies), "Mooncake")


@rule("PD604", source="Huawei HCCL_IF_BASE_PORT: 32 ports from 60000 on; vllm-ascend#8938", severity="warning")
def side_channel_keeps_out_of_the_range_of_hccl(stack: Stack) -> Iterator[Problem]:
    """HCCL listens there on the same address."""
    yield from _side_channel_meets(stack, range(60000, 60032), "HCCL")


def _side_channel_meets(stack: Stack, taken: range, owner: str) -> Iterator[Problem]:
    for deployment in stack.deployments.values():
        ranks = max(deployment.role(name).parallelism.npus for name in ROLES)
        first = deployment.kv_transfer.port
        if first < taken.stop and taken.start < first + ranks:
            yield Problem(
                in_deployment(deployment, "kvTransfer", "port"),
                f"{first}-{first + ranks - 1} is in {owner}'s own range {taken.start}-{taken.stop - 1}",
                f"a port from {taken.stop} on, or up to {taken.start - ranks}",
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
