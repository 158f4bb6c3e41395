"""CPU and memory of the engine containers."""

from __future__ import annotations

from collections.abc import Iterator

from models.deployment import ROLES
from models.quantities import amount
from models.stack import Stack
from rules.finding import Finding, in_deployment


def requests_are_within_limits(stack: Stack) -> Iterator[Finding]:
    """PD701. The API server takes such a ModelServing and then refuses every pod of it. Source: Kubernetes pod validation."""
    for deployment in stack.deployments.values():
        for role in ROLES:
            resources = deployment.role(role).resources
            for name in ("cpu", "memory"):
                request, limit = getattr(resources.requests, name), getattr(resources.limits, name)
                if amount(request) > amount(limit):
                    yield Finding(
                        "PD701",
                        in_deployment(deployment, role, "resources", "requests", name),
                        f"{request} is more than the limit {limit}",
                        f"at most {limit}, or a higher limit",
                    )


def shared_memory_is_within_the_memory_limit(stack: Stack) -> Iterator[Finding]:
    """PD702. What lies in /dev/shm counts against the container's memory limit. Source: Kubernetes emptyDir medium Memory."""
    for deployment in stack.deployments.values():
        for role in ROLES:
            limit = deployment.role(role).resources.limits.memory
            if amount(deployment.shared_memory) >= amount(limit):
                yield Finding(
                    "PD702",
                    in_deployment(deployment, "sharedMemory"),
                    f"{deployment.shared_memory} leaves nothing of the {role} container's memory limit {limit}",
                    "a smaller sharedMemory or a higher limit",
                )
                break
