"""CPU and memory of a container."""

from models.base import Declaration
from models.quantities import Quantity


class CpuAndMemory(Declaration):
    """Of one container; NPUs are derived."""

    cpu: Quantity
    memory: Quantity


class Resources(Declaration):
    """Kubernetes requests and limits of one container."""

    requests: CpuAndMemory
    limits: CpuAndMemory
