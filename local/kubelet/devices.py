"""What a device plugin does on a real node: give each pod dies of its own, and say on the pod which."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from local.api import Object

ANNOTATION = "huawei.com/AscendReal"
"""where Ascend device plugins leave the names of a pod's devices, such as ``Ascend910-0,Ascend910-1``"""
_PREFIX = "Ascend910-"


def count(resources: Mapping[str, str]) -> int:
    """Dies among ``resources`` (name -> quantity): limits of a container, or capacity of a node."""
    return sum(int(amount) for name, amount in resources.items() if name.startswith("huawei.com/"))


def of_container(container: Object) -> int:
    """Dies that the container asks for."""
    return count(container.get("resources", {}).get("limits") or {})


def wanted(pod: Object) -> int:
    """Dies that the pod's containers ask for."""
    return sum(of_container(one) for one in pod["spec"]["containers"])


def given(pod: Object) -> list[int]:
    """Dies that the pod has already; names that no device plugin would write are none."""
    names = (pod["metadata"].get("annotations") or {}).get(ANNOTATION, "")
    found = (re.fullmatch(rf"{_PREFIX}(\d+)", name) for name in names.split(","))
    return [int(name[1]) for name in found if name]


def names(dies: Iterable[int]) -> str:
    """Value of the annotation."""
    return ",".join(f"{_PREFIX}{die}" for die in dies)


class Devices:
    """Dies of all nodes: each is given to one pod at a time."""

    def __init__(self, capacity: Mapping[str, int]) -> None:
        """Start with all dies free; ``capacity`` says how many each node has."""
        self._capacity = capacity
        self._used: dict[str, set[int]] = {}

    def mark(self, node: str, dies: Iterable[int]) -> None:
        """A pod has these already."""
        self._used.setdefault(node, set()).update(dies)

    def take(self, node: str, count: int) -> list[int]:
        """The lowest ``count`` free dies of ``node``.

        Raises:
            LookupError: there are not so many. The scheduler counts a pod's dies as free as soon as its object is gone,
                which may be a moment before they are released here.
        """
        used = self._used.setdefault(node, set())
        free = [die for die in range(self._capacity.get(node, 0)) if die not in used]
        if len(free) < count:
            raise LookupError(f"requested number of NPU dies unavailable. Requested: {count}, Available: {len(free)}")
        used.update(free[:count])
        return free[:count]

    def release(self, node: str, dies: Iterable[int]) -> None:
        """The pod that had these is gone."""
        self._used.get(node, set()).difference_update(dies)
