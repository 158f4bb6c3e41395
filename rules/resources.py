"""CPU and memory of the engine containers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from models.deployment import Deployment
from models.quantities import amount
from models.role import ROLES, RoleName
from models.stack import Stack
from rules.finding import Problem, in_deployment, roles, rule

MANY_RANKS = 8
_GI = 2**30
ROOM_OF_MANY = 16
"""GiB of /dev/shm, of which fewer ranks need one each"""


@rule("PD701", source="Kubernetes pod validation")
def requests_are_within_limits(stack: Stack) -> Iterator[Problem]:
    """The API server takes such a ModelServing and then refuses every pod of it."""
    for deployment, role, declared in roles(stack):
        resources = declared.resources
        for name in ("cpu", "memory"):
            request, limit = getattr(resources.requests, name), getattr(resources.limits, name)
            if amount(request) > amount(limit):
                yield Problem(
                    in_deployment(deployment, role, "resources", "requests", name),
                    f"{request} is more than the limit {limit}",
                    f"at most {limit}, or a higher limit",
                )


@rule("PD702", source="Kubernetes emptyDir medium Memory", severity="warning")
def shared_memory_is_within_the_memory_limit(stack: Stack) -> Iterator[Problem]:
    """What lies in /dev/shm counts against the container's memory limit."""
    for deployment in stack.deployments.values():
        for role in ROLES:
            limit = deployment.role(role).resources.limits.memory
            if amount(deployment.shared_memory) >= amount(limit):
                yield Problem(
                    in_deployment(deployment, "sharedMemory"),
                    f"{deployment.shared_memory} leaves nothing of the {role} container's memory limit {limit}",
                    f"less than {limit}, or a higher limit",
                )
                break


@rule("PD703", source="vLLM-Ascend tutorials: 1g for the smallest examples, 512g for 16 dies", severity="warning")
def shared_memory_is_enough_for_all_ranks(stack: Stack) -> Iterator[Problem]:
    """The ranks of one pod exchange tensors in /dev/shm; too little of it ends the engine in the middle of a request."""
    for deployment in stack.deployments.values():
        ranks = max(deployment.role(name).npus_per_pod for name in ROLES)
        least = ranks if ranks < MANY_RANKS else max(ranks, ROOM_OF_MANY)
        if amount(deployment.shared_memory) < least * 2**30:
            yield Problem(
                in_deployment(deployment, "sharedMemory"),
                f"{deployment.shared_memory} for {ranks} ranks in one pod",
                f"at least {least}Gi",
            )


@rule("PD704", source="vLLM-Ascend KV pool guide: global_segment_size of each rank", severity="warning")
def pool_segments_are_within_the_memory_limit(stack: Stack) -> Iterator[Problem]:
    """Each rank gives its segment from the container's memory, of which /dev/shm is a part as well: the container is killed when
    both fill."""
    for deployment in stack.deployments.values():
        pool = deployment.kv_transfer.pool
        name = min(ROLES, key=lambda name: _room_of_a_rank(deployment, name))
        role, room = deployment.role(name), _room_of_a_rank(deployment, name)
        if pool and 0 < room < amount(pool.segment_size):
            smaller = f"at most {room // 2**30:.0f}Gi, or " if room >= 2**30 else ""
            yield Problem(
                in_deployment(deployment, "kvTransfer", "pool", "segmentSize"),
                f"{role.npus_per_pod} x {pool.segment_size} and {deployment.shared_memory} of /dev/shm are more than the "
                f"{name} container's memory limit {role.resources.limits.memory}",
                f"{smaller}a smaller sharedMemory or a higher limit",
            )


def _room_of_a_rank(deployment: Deployment, name: RoleName) -> float:
    """Bytes that the memory limit leaves each rank beside /dev/shm."""
    role = deployment.role(name)
    return (amount(role.resources.limits.memory) - amount(deployment.shared_memory)) / max(role.npus_per_pod, 1)


@rule("PD705", source="weight loading: the host's memory holds the files that are read", severity="warning")
def memory_of_an_engine_is_in_gibibytes(stack: Stack) -> Iterator[Problem]:
    """A number without a unit is bytes: a container with such a limit is killed at once, and one with such a request is placed
    where there is no room."""
    for deployment, name, role in roles(stack):
        for kind in ("requests", "limits"):
            memory = getattr(role.resources, kind).memory
            if amount(memory) < _GI:
                meant = re.sub(r"[A-Za-z]*$", "Gi", memory, count=1)
                path = in_deployment(deployment, name, "resources", kind, "memory")
                remedy = f"did you mean {meant}?" if amount(meant) >= _GI else "at least 1Gi"
                yield Problem(path, f"{memory} is less than a gibibyte", remedy)
