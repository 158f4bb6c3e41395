"""What a device plugin does on a real node: give each pod dies of its own, and say on the pod which.

The name of the resource tells which plugin it is. The plugins' own words were read in MindCluster's ascend-device-plugin and in
HAMi's; of CCE's, whose source is not public, what Kthena's example for it reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from local.api import Object
from local.cluster import NPU

ANNOTATION = "huawei.com/AscendReal"
"""where CCE and MindCluster leave the names of a pod's devices, such as ``Ascend910-0,Ascend910-1``"""
VISIBLE = "ASCEND_VISIBLE_DEVICES"
"""variable with the numbers of a container's devices, which the container runtime reads: MindCluster, HAMi"""
_PREFIX = "Ascend910-"
_HAMI = re.compile(r"huawei\.com/(Ascend(?:310P|910(?:A|C|B\d(?:-\d)?)))")
"""resource of HAMi, and its word for the kind of die"""
_CCE = re.compile(r"huawei\.com/ascend-\d+")
_UUID = "simulated-"
_DIE = re.compile(rf"(?:{_PREFIX}|{_UUID})(\d+)")


def count(resources: Mapping[str, str]) -> int:
    """Dies among ``resources`` (name -> quantity): limits of a container, or capacity of a node."""
    return sum(int(amount) for name, amount in resources.items() if NPU.fullmatch(name))


def of_container(container: Object) -> int:
    """Dies that the container asks for."""
    return count(_limits(container))


def wanted(pod: Object) -> int:
    """Dies that the pod's containers ask for."""
    return sum(of_container(one) for one in pod["spec"]["containers"])


def left_on(pod: Object, dies: Iterable[int]) -> dict[str, str]:
    """Annotations that a device plugin leaves on ``pod``, which has ``dies``."""
    dies = list(dies)
    kinds = {found[1] for resource in _resources(pod) if (found := _HAMI.fullmatch(resource))}
    if kinds:
        return {f"huawei.com/{kind}": json.dumps([{"UUID": f"{_UUID}{die}"} for die in dies]) for kind in kinds if dies}
    return {ANNOTATION: names(dies)} if dies else {}


def variables(container: Object, dies: Iterable[int]) -> dict[str, str]:
    """Environment that a device plugin gives ``container`` of a pod that has ``dies``."""
    resources = [name for name in _limits(container) if NPU.fullmatch(name)]
    if not resources or all(_CCE.fullmatch(name) for name in resources):
        return {}  # nobody says that CCE's does
    return {VISIBLE: ",".join(map(str, dies))}


def given(pod: Object) -> list[int]:
    """Dies that the pod has already; names that no device plugin would write are none."""
    left = pod["metadata"].get("annotations") or {}
    told = left.get(ANNOTATION, "").split(",")
    told += [text for resource in left if _HAMI.fullmatch(resource) for text in left[resource].split('"')]
    return [int(found[1]) for name in told if (found := _DIE.fullmatch(name))]


def names(dies: Iterable[int]) -> str:
    """Value of ``ANNOTATION``."""
    return ",".join(f"{_PREFIX}{die}" for die in dies)


def _limits(container: Object) -> Mapping[str, str]:
    return container.get("resources", {}).get("limits") or {}


def _resources(pod: Object) -> set[str]:
    return {name for container in pod["spec"]["containers"] for name in _limits(container)}


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
