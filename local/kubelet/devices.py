"""What a device plugin does on a real node: give each pod dies of its own, and say on the pod which."""

from __future__ import annotations

from collections.abc import Iterable

from local.api import Object

ANNOTATION = "huawei.com/AscendReal"
"""where Ascend device plugins leave the names of a pod's devices, such as ``Ascend910-0,Ascend910-1``"""
_PREFIX = "Ascend910-"


def wanted(pod: Object) -> int:
    """Dies that the pod's containers ask for."""
    limits = (one.get("resources", {}).get("limits") or {} for one in pod["spec"]["containers"])
    return sum(int(amount) for one in limits for name, amount in one.items() if name.startswith("huawei.com/"))


def given(pod: Object) -> list[int]:
    """Dies that the pod has already."""
    names = (pod["metadata"].get("annotations") or {}).get(ANNOTATION, "")
    return [int(name.removeprefix(_PREFIX)) for name in names.split(",") if name]


def names(dies: Iterable[int]) -> str:
    """Value of the annotation."""
    return ",".join(f"{_PREFIX}{die}" for die in dies)


class Devices:
    """Dies of all nodes: each is given to one pod at a time. The scheduler has seen to it that there are enough."""

    def __init__(self) -> None:
        self._used: dict[str, set[int]] = {}

    def mark(self, node: str, dies: Iterable[int]) -> None:
        """A pod has these already."""
        self._used.setdefault(node, set()).update(dies)

    def take(self, node: str, count: int) -> list[int]:
        """The lowest ``count`` free dies of ``node``."""
        used = self._used.setdefault(node, set())
        free = [die for die in range(count + len(used)) if die not in used][:count]
        used.update(free)
        return free

    def release(self, node: str, dies: Iterable[int]) -> None:
        """The pod that had these is gone."""
        self._used.get(node, set()).difference_update(dies)
