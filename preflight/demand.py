"""What a stack's pods need of the cluster, and which of them are there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from live.api import Object
from live.plan import Version
from live.servers import Footprint, Pod, footprint
from preflight.probe import Situation


@dataclass(frozen=True)
class Demand:
    """Pods that are equal for a scheduler: the entry pods, or the workers, of one role of a ModelServing."""

    version: Version
    role: str
    count: int
    """as declared"""
    spec: Object
    """of a pod"""
    is_entry: bool

    @cached_property
    def footprint(self) -> Footprint:
        """Of each pod."""
        return footprint(self.spec)

    @property
    def namespace(self) -> str:
        """Of the pods."""
        return self.version.deployment.namespace

    def wanted(self, own: int) -> int:
        """Pods that there are to be, with ``own`` of them already there. Numbers that are scaled are the autoscaler's."""
        return own if own and self.version.deployment.autoscaling else self.count

    @property
    def constraints(self) -> str:
        """Equal for pods that may be put on the same nodes."""
        return repr([self.spec.get(key) for key in ("nodeName", "nodeSelector", "affinity", "tolerations")])

    @property
    def key(self) -> tuple[str, str, str, bool]:
        """Equal to that of the pods that it has."""
        return (self.namespace, self.version.name, self.role, self.is_entry)


def key_of(pod: Pod) -> tuple[str, str, str, bool]:
    """Whose pod it is: namespace, ModelServing, role, and whether it is an entry pod."""
    return (pod.namespace, pod.serving, pod.role, pod.is_entry)


def demands(situation: Situation) -> list[Demand]:
    """Of all versions, in the order of the stack."""
    return [demand for version in situation.plan.versions for demand in _of(version)]


def by_key(pods: Iterable[Pod]) -> Mapping[tuple[str, str, str, bool], list[Pod]]:
    """Pods by :func:`key_of`."""
    found: dict[tuple[str, str, str, bool], list[Pod]] = {}
    for pod in pods:
        if pod.serving:
            found.setdefault(key_of(pod), []).append(pod)
    return found


def _of(version: Version) -> Iterator[Demand]:
    groups = version.model_serving["spec"]["replicas"]
    for role in version.model_serving["spec"]["template"]["roles"]:
        instances = groups * role["replicas"]
        yield Demand(version, role["name"], instances, role["entryTemplate"]["spec"], is_entry=True)
        if role["workerReplicas"]:
            yield Demand(
                version, role["name"], instances * role["workerReplicas"], role["workerTemplate"]["spec"], is_entry=False
            )
