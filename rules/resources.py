"""CPU and memory of the engine containers."""

from __future__ import annotations

from collections.abc import Iterator

from models.deployment import ROLES
from models.quantities import amount
from models.stack import Stack
from rules.finding import Problem, in_deployment, roles, rule


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


@rule("PD702", source="Kubernetes emptyDir medium Memory")
def shared_memory_is_within_the_memory_limit(stack: Stack) -> Iterator[Problem]:
    """What lies in /dev/shm counts against the container's memory limit."""
    for deployment in stack.deployments.values():
        for role in ROLES:
            limit = deployment.role(role).resources.limits.memory
            if amount(deployment.shared_memory) >= amount(limit):
                yield Problem(
                    in_deployment(deployment, "sharedMemory"),
                    f"{deployment.shared_memory} leaves nothing of the {role} container's memory limit {limit}",
                    "a smaller sharedMemory or a higher limit",
                )
                break


@rule("PD703", source="vLLM-Ascend tutorials: 1g for the smallest examples, 512g for 16 dies", severity="warning")
def shared_memory_is_enough_for_all_ranks(stack: Stack) -> Iterator[Problem]:
    """The ranks of one pod exchange tensors in /dev/shm; too little of it ends the engine in the middle of a request."""
    for deployment in stack.deployments.values():
        ranks = max(deployment.role(name).parallelism.npus for name in ROLES)
        if amount(deployment.shared_memory) < ranks * 2**30:
            yield Problem(
                in_deployment(deployment, "sharedMemory"),
                f"{deployment.shared_memory} for {ranks} ranks in one pod",
                f"at least {ranks}Gi",
            )
