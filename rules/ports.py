"""Ports inside one network namespace: a pod's, or with the host's network a server's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, product

from models.deployment import Deployment
from models.quantities import LAST_PORT
from models.role import RoleName
from models.stack import Stack
from render.pods import RUNTIME_PORT
from rules.finding import Path, Problem, in_deployment, roles, rule
from rules.given import environment
from rules.npu import family_of

MOONCAKE_FIRST = 20000
MOONCAKE_PORTS_OF_A_DIE = 1000
"""of Mooncake up to 0.3.7 at least; newer ones take 100 (vllm-ascend#14263), from which release on is not known"""
HCCL_FIRST = 60000
HCCL_PORTS = 32


@dataclass(frozen=True)
class Block:
    """Ports on which one thing in a pod listens."""

    ports: range
    purpose: str
    path: Path
    """where the first of them is declared"""
    needed: int
    """ports from the declared one on, over all pods of an instance"""

    def __str__(self) -> str:
        return f"{_written(self.ports)} ({self.purpose})"


@dataclass(frozen=True)
class Pod:
    """What a pod takes of a server whose network it shares."""

    deployment: Deployment
    role: RoleName
    dies: int
    declared: frozenset[int]
    blocks: tuple[Block, ...]


@rule("PD601", source="port arithmetic of vllm-ascend mooncake_connector.py")
def engine_ports_are_disjoint(stack: Stack) -> Iterator[Problem]:
    """Of two listeners on one port the second ends with an address in use; past the last port there is none. Each rank listens
    on kvTransfer.port + its number."""
    yield from _first_of_each_path(_meetings_in_a_pod(stack))


def _meetings_in_a_pod(stack: Stack) -> Iterator[Problem]:
    for deployment, role, _ in roles(stack):
        blocks = list(blocks_of(deployment, role))
        for one, other in combinations(blocks, 2):
            if _meet(one.ports, other.ports):
                # what can be moved is named: the sidecar's port is Kthena's
                moved, fixed = (one, other) if other.path[-1] == "runtimeSidecar" else (other, one)
                yield Problem(moved.path, f"{moved} meets {fixed} in one {role} pod", _beside(fixed.ports, moved.needed))
        for block in blocks:
            whole = _from(block.ports.start, block.needed)
            if whole.stop - 1 > LAST_PORT:
                problem = f"{_written(whole)} ({block.purpose}) goes past {LAST_PORT}"
                yield Problem(block.path, problem, f"a port up to {LAST_PORT + 1 - block.needed}")


@rule("PD602", source="kthena-router --port and --debug-port")
def router_ports_differ(stack: Stack) -> Iterator[Problem]:
    """One process listens on both."""
    router = stack.cluster.control_plane.router
    if router.port == router.debug_port:
        yield Problem(
            ("cluster", "controlPlane", "router", "debugPort"),
            f"{router.debug_port} is the serving port too",
            f"another port, for example {15000 if router.port != 15000 else 15001}",  # noqa: PLR2004 - Kthena's default
        )


@rule("PD603", source="vLLM-Ascend P/D guide, Mooncake port table; vllm-ascend PR #6455", severity="warning")
def ports_keep_out_of_the_range_of_mooncake(stack: Stack) -> Iterator[Problem]:
    """Mooncake takes ports from 20000 on (ASCEND_BASE_PORT), a thousand for each die of the server, counted by the die's number
    on the server: now and then an address is in use."""
    family = family_of(stack)
    if family is None:
        return
    ports = MOONCAKE_PORTS_OF_A_DIE * family.dies_per_node

    def taken(deployment: Deployment, role: RoleName) -> list[range]:
        base = environment(deployment, role).get("ASCEND_BASE_PORT")
        return [_from((base and base.number) or MOONCAKE_FIRST, ports)]

    yield from _first_of_each_path(_meetings_with(stack, taken, "Mooncake"))


@rule("PD604", source="Huawei HCCL_IF_BASE_PORT: 32 ports from 60000 on; vllm-ascend#8938", severity="warning")
def ports_keep_out_of_the_range_of_hccl(stack: Stack) -> Iterator[Problem]:
    """HCCL listens there on the same address. HCCL_IF_BASE_PORT and HCCL_HOST_SOCKET_PORT_RANGE move it."""

    def taken(deployment: Deployment, role: RoleName) -> list[range]:
        given = environment(deployment, role)
        if "HCCL_HOST_SOCKET_PORT_RANGE" in given:  # ports and ranges of them, or "auto"
            parts = re.findall(r"\b(\d{1,5})(?:-(\d{1,5}))?\b", given["HCCL_HOST_SOCKET_PORT_RANGE"].value)
            return [range(int(first), int(last or first) + 1) for first, last in parts]
        base = given.get("HCCL_IF_BASE_PORT")
        return [_from((base and base.number) or HCCL_FIRST, HCCL_PORTS)]

    yield from _first_of_each_path(_meetings_with(stack, taken, "HCCL"))


def _meetings_with(stack: Stack, taken: Callable[[Deployment, RoleName], list[range]], owner: str) -> Iterator[Problem]:
    for deployment, role, _ in roles(stack):
        blocks = [block for pod in _pods_with_ports(deployment, role) for block in blocks_of(deployment, role, pod)]
        for block, own in product(blocks, taken(deployment, role)):
            if _meet(block.ports, own):
                yield Problem(block.path, f"{block} is in {owner}'s own range {_written(own)}", _beside(own, block.needed))


@rule(
    "PD605",
    source="Kubernetes host ports: the scheduler keeps apart the pods that declare an equal one",
    severity="warning",
)
def pods_on_one_server_have_ports_of_their_own(stack: Stack) -> Iterator[Problem]:
    """With the host's network pods of two deployments may lie on one server. Where they declare no equal port, nothing keeps them
    apart, and where their ports meet, one of them ends with an address in use."""
    family = family_of(stack)
    if family:
        yield from _first_of_each_path(_meetings_on_a_server(list(_pods_on_the_host(stack)), family.dies_per_node))


def _meetings_on_a_server(pods: list[Pod], dies: int) -> Iterator[Problem]:
    listening = sorted(
        ((block, number) for number, pod in enumerate(pods) for block in pod.blocks), key=lambda pair: pair[0].ports.start
    )
    before: list[tuple[Block, int]] = []
    for block, number in listening:
        before = [(other, its) for other, its in before if other.ports.stop > block.ports.start]
        for other, its in before:
            first, second = sorted((number, its))
            if _may_share_a_server(pods[first], pods[second], dies):
                fixed, moved = (other, block) if first == its else (block, other)
                owner = f"{pods[first].deployment.name}'s {pods[first].role} pod"
                problem = f"{moved} meets {fixed} of {owner}, which may be on the same server"
                yield Problem(moved.path, problem, _beside(fixed.ports, moved.needed))
        before.append((block, number))


def _may_share_a_server(one: Pod, other: Pod, dies: int) -> bool:
    return one.deployment is not other.deployment and one.dies + other.dies <= dies and not one.declared & other.declared


def _pods_on_the_host(stack: Stack) -> Iterator[Pod]:
    """One pod of each layout: those of an equal one declare equal ports."""
    seen = set()
    for deployment, role, declared in roles(stack):
        if not deployment.host_network or declared.pod_template.spec.keys() & {"affinity", "nodeName", "nodeSelector"}:
            continue  # who chooses the servers knows what else is there
        for index in _pods_with_ports(deployment, role):
            blocks = tuple(blocks_of(deployment, role, index))
            ports = declared_ports(deployment, role, worker=index > 0)
            layout = (declared.npus_per_pod, ports, *(block.ports for block in blocks))
            if layout not in seen:
                seen.add(layout)
                yield Pod(deployment, role, declared.npus_per_pod, ports, blocks)


def declared_ports(deployment: Deployment, role: RoleName, *, worker: bool) -> frozenset[int]:
    """Ports in a pod's template: with the host's network the scheduler gives each of them to one pod of a server."""
    own = () if worker else (block for block in blocks_of(deployment, role) if len(block.ports) == block.needed == 1)
    return frozenset({deployment.kv_transfer.port, *(block.ports.start for block in own)})


def _pods_with_ports(deployment: Deployment, role: RoleName) -> range:
    """Numbers of the pods of one instance; where their ports go past the last one the entry pod alone, PD601 says why."""
    declared = deployment.role(role)
    fit = deployment.kv_transfer.port + declared.parallelism.npus - 1 <= LAST_PORT
    return range(declared.pods if fit else 1)


def blocks_of(deployment: Deployment, role: RoleName, pod: int = 0) -> Iterator[Block]:
    """All that listens in the ``pod``-th pod of an instance of ``role``; the first is the entry pod."""
    declared = deployment.role(role)
    share, ranks = declared.npus_per_pod, declared.parallelism.npus

    def one(port: int, purpose: str, key: str) -> Block:
        return Block(_from(port, 1), purpose, in_deployment(deployment, key), 1)

    if pod == 0:
        yield one(deployment.port, "API", "port")
    first = deployment.kv_transfer.port + pod * share
    yield Block(_from(first, share), "KV side channel", in_deployment(deployment, "kvTransfer", "port"), ranks)
    if pod == 0 and declared.parallelism.dp > 1:
        yield one(deployment.data_parallel_rpc_port, "data-parallel RPC", "dataParallelRpcPort")
    if pod == 0 and deployment.runtime_sidecar:
        yield one(RUNTIME_PORT, "runtime sidecar", "runtimeSidecar")


def _from(first: int, count: int) -> range:
    return range(first, first + count)


def _meet(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def _beside(taken: range, count: int) -> str:
    """Where ``count`` ports fit beside ``taken``."""
    after = [f"a port from {taken.stop} on"] if taken.stop + count - 1 <= LAST_PORT else []
    before = [f"{'' if after else 'a port '}up to {taken.start - count}"] if taken.start - count > 0 else []
    return ", or ".join([*after, *before])


def _written(ports: range) -> str:
    first, last = ports.start, ports.stop - 1
    return f"{first}" if first == last else f"{first}-{last}"


def _first_of_each_path(problems: Iterable[Problem]) -> Iterator[Problem]:
    """A port is moved once, whatever it meets."""
    found: dict[Path, Problem] = {}
    for problem in problems:
        found.setdefault(problem.path, problem)
    yield from found.values()
