"""How far a ModelServing is: each pod counted by what Kthena v1.0.0's controller would do with it.

The status of a ModelServing alone does not tell. While roles are replaced, ``Available`` stays true for seconds after their pods
are gone, ``updatedReplicas`` may count a group whose old pods are still there, and a status that is written while an update comes
in has the new generation beside the old revision (``UpdateModelServingStatus``). So status, spec and pods all have to agree.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from convergence.goal import Goal, pods_of_one, replicas
from live.api import Object
from live.pods import is_ready, is_terminating, label, status_of
from live.snapshot import Snapshot
from render.names import (
    GROUP_LABEL,
    NAME_LABEL,
    REVISION_LABEL,
    ROLE_HASH_LABEL,
    ROLE_ID_LABEL,
    ROLE_LABEL,
    pod_name,
)
from render.ownership import DECLARED, MANAGER, writers


@dataclass(frozen=True)
class Slot:
    """A pod that should be there and is not."""

    group: int
    role: str
    replica: int
    pod: int

    def name(self, model_serving: str) -> str:
        """The name that Kthena gives it."""
        return pod_name(model_serving, self.group, self.role, self.replica, self.pod)


@dataclass(frozen=True)
class Standing:
    """What a snapshot says of one ModelServing."""

    model_serving: Object | None
    contested: str = ""
    """what is no longer as declared, and who has changed it; empty if all is"""
    observed: bool = False
    """the controller has taken notice of this generation"""
    wanted: Mapping[str, int] | None = None
    """role -> pods"""
    current: tuple[Object, ...] = ()
    """pods that are to stay"""
    outdated: tuple[Object, ...] = ()
    """pods that are to be replaced"""
    terminating: tuple[Object, ...] = ()
    freeing: tuple[Object, ...] = ()
    """all pods of the deployment that are terminating, also of a ModelServing that this one takes the place of"""
    lacking: tuple[Slot, ...] = ()
    surplus: tuple[str, ...] = ()
    """what is there too much, in words"""
    reported: bool = False
    """by its status all groups are there and available"""

    @cached_property
    def unready(self) -> tuple[Object, ...]:
        """Pods that are to stay and do not serve yet."""
        return tuple(pod for pod in self.current if not is_ready(pod))

    @property
    def revision(self) -> str:
        """Of the template that is declared now, as far as the controller has seen."""
        return str(status_of(self.model_serving).get("updateRevision", "")) if self.model_serving else ""

    @property
    def complete(self) -> bool:
        """Every pod is there, and no other."""
        return not (self.lacking or self.surplus or self.outdated or self.terminating or self.unready)

    @property
    def converged(self) -> bool:
        """It is what is declared, and serves."""
        return bool(self.model_serving) and not self.contested and self.observed and self.complete and self.reported

    def ready(self, role: str) -> int:
        """Pods of a role that are to stay and serve."""
        return sum(label(pod, ROLE_LABEL) == role and is_ready(pod) for pod in self.current)


def stand(goal: Goal, seen: Snapshot) -> Standing:
    """Count what is there against what is wanted."""
    freeing = tuple(pod for pod in seen.pods if is_terminating(pod))
    serving = next((one for one in seen.model_servings if one["metadata"]["name"] == goal.model_serving), None)
    if serving is None:
        return Standing(None, freeing=freeing)
    pods = [pod for pod in seen.pods if label(pod, NAME_LABEL) == goal.model_serving]
    here = [pod for pod in pods if not is_terminating(pod)]
    groups = replicas(serving["spec"])
    partition = _partition(goal.partition, groups)
    # Kthena protects the first groups that it has, whatever their numbers are
    protected = sorted({_ordinal(pod) for pod in pods})[:partition]
    count = _Count(serving, {number: _kept_roles(pods, seen, number) for number in protected}, groups)
    templates: dict[str, set[str]] = defaultdict(set)
    for pod in here:
        templates[label(pod, ROLE_LABEL)].add(label(pod, ROLE_HASH_LABEL))
    current: list[Object] = []
    outdated: list[Object] = []
    for pod in here:
        stays = _ordinal(pod) in protected or _is_current(pod, templates, serving, groups - partition)
        (current if stays else outdated).append(pod)
    lacking, surplus = count.compare(here)
    status = status_of(serving)
    wanted = count.wanted()
    reported = (
        any(one["type"] == "Available" and one["status"] == "True" for one in status.get("conditions") or ())
        and status.get("replicas") == status.get("availableReplicas") == groups
        and status.get("updatedReplicas", 0) >= groups - partition
    )
    return Standing(
        serving,
        contested=_contested(goal, serving),
        # of no groups from the start Kthena never writes that it has seen them
        observed=status.get("observedGeneration", 0) >= serving["metadata"].get("generation", 0)
        or (groups == 0 and bool(status.get("updateRevision"))),
        wanted=wanted,
        current=tuple(current),
        outdated=tuple(outdated),
        terminating=tuple(pod for pod in pods if is_terminating(pod)),
        freeing=freeing,
        lacking=tuple(lacking),
        surplus=tuple(surplus),
        reported=reported or not any(wanted.values()),
    )


@dataclass(frozen=True)
class _Count:
    serving: Object
    kept: Mapping[int, tuple[Object, ...] | None]
    """number of a protected group -> its roles where its revision still has them: it keeps its ratio too"""
    groups: int

    def _roles(self, group: int) -> tuple[Object, ...]:
        return self.kept.get(group) or tuple(self.serving["spec"]["template"]["roles"])

    def wanted(self) -> dict[str, int]:
        found = {role["name"]: 0 for role in self.serving["spec"]["template"]["roles"]}
        kept = list(self.kept)[: self.groups]
        for group in [*kept, *[-1] * (self.groups - len(kept))]:
            for role in self._roles(group):
                found[role["name"]] = found.get(role["name"], 0) + replicas(role) * pods_of_one(role)
        return found

    def compare(self, here: Iterable[Object]) -> tuple[list[Slot], list[str]]:
        lacking: list[Slot] = []
        surplus: list[str] = []
        by_group: dict[int, list[Object]] = defaultdict(list)
        for pod in here:
            by_group[_ordinal(pod)].append(pod)
        for group, pods in sorted(by_group.items()):
            self._compare_group(group, pods, lacking, surplus)
        more = len(by_group) - self.groups
        if more > 0:
            surplus.append(plural(more, "group"))
        first = max(by_group, default=-1) + 1
        for group in range(first, first - more):
            self._compare_group(group, [], lacking, surplus)
        return lacking, surplus

    def _compare_group(self, group: int, pods: Iterable[Object], lacking: list[Slot], surplus: list[str]) -> None:
        there: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        for pod in pods:
            there[label(pod, ROLE_LABEL)][_number(label(pod, ROLE_ID_LABEL))].add(_number(pod["metadata"]["name"]))
        for role in self._roles(group):
            found, name = there.pop(role["name"], {}), role["name"]
            absent = [(replica, pod) for replica, pods in found.items() for pod in range(pods_of_one(role)) if pod not in pods]
            first, more = max(found, default=-1) + 1, len(found) - replicas(role)
            absent += [(replica, pod) for replica in range(first, first - more) for pod in range(pods_of_one(role))]
            lacking.extend(Slot(group, name, *place) for place in absent)
            if more > 0:
                surplus.append(f"{more} {name} of group {group}")
        surplus.extend(f"{len(found)} {name} of group {group}" for name, found in there.items())


def _is_current(pod: Object, templates: Mapping[str, Collection[str]], serving: Object, to_update: int) -> bool:
    """Whether the controller leaves the pod alone: it goes by revisions of groups, or by hashes of roles where it rolls roles."""
    metadata, status = pod["metadata"], status_of(serving)
    uid = serving["metadata"].get("uid")
    if any(owner.get("controller") and owner.get("uid") != uid for owner in metadata.get("ownerReferences") or ()):
        return False  # left of an earlier ModelServing of this name
    revision = status.get("updateRevision")
    if label(pod, REVISION_LABEL) == revision:
        return True
    # a role that has not changed keeps its pods of old: all groups are updated, and its pods are of one template
    done = status.get("updatedReplicas", 0) >= to_update > 0 and status.get("currentRevision") == revision
    return done and len(templates[label(pod, ROLE_LABEL)]) == 1


def _kept_roles(pods: Iterable[Object], seen: Snapshot, group: int) -> tuple[Object, ...] | None:
    """Roles of a protected group, which are those of its own revision, with the replicas they had."""
    theirs = [pod for pod in pods if _ordinal(pod) == group]
    if seen.revisions_are_hidden:  # then its status alone tells whether it is complete
        return _roles_there(theirs)
    revision = label(theirs[0], REVISION_LABEL)
    for one in seen.revisions:
        if label(one, REVISION_LABEL) == revision:
            roles = (one.get("data") or {}).get("data")
            return tuple(roles) if isinstance(roles, list) else None
    return None


def _roles_there(pods: Iterable[Object]) -> tuple[Object, ...]:
    by_role: dict[str, list[Object]] = defaultdict(list)
    for pod in pods:
        by_role[label(pod, ROLE_LABEL)].append(pod)
    return tuple(
        {
            "name": name,
            "replicas": len({label(pod, ROLE_ID_LABEL) for pod in found}),
            "workerReplicas": max(_number(pod["metadata"]["name"]) for pod in found),
        }
        for name, found in by_role.items()
    )


def _contested(goal: Goal, serving: Object) -> str:
    if is_terminating(serving):
        return "it is being deleted"
    differences = list(_differences(goal, serving))
    return f"{'; '.join(differences)}{_last_writer(serving)}" if differences else ""


def _differences(goal: Goal, serving: Object) -> Iterator[str]:
    spec, annotations = serving["spec"], serving["metadata"].get("annotations", {})
    if annotations.get(DECLARED) != goal.declared:
        yield "another declaration has been applied to it"
    if goal.groups is not None and replicas(spec) != goal.groups:
        yield f"spec.replicas is {replicas(spec)}, declared {goal.groups}"
    live = {role["name"]: role for role in spec["template"]["roles"]}
    if live.keys() != goal.roles.keys():
        yield f"its roles are {', '.join(live)}, declared {', '.join(goal.roles)}"
        return
    for name, wanted in goal.roles.items():
        if wanted is not None and replicas(live[name]) != wanted:
            yield f"replicas of role {name} is {replicas(live[name])}, declared {wanted}"


def _last_writer(serving: Object) -> str:
    ours = serving["metadata"].get("annotations", {}).get(MANAGER)
    last = next((entry for entry in writers(serving) if entry["manager"] != ours), None)
    return f", written by {last['manager']} at {last.get('time', 'an unknown time')}" if last else ""


def _partition(partition: int | str, groups: int) -> int:
    """Groups that keep their revision; Kthena rounds a percentage up here."""
    value = partition if isinstance(partition, int) else math.ceil(int(partition.removesuffix("%")) * groups / 100)
    return min(value, groups)


def _ordinal(pod: Object) -> int:
    return _number(label(pod, GROUP_LABEL))


def _number(name: str) -> int:
    """What a name ends with."""
    last = name.rpartition("-")[2]
    return int(last) if last.isdecimal() else -1


def plural(count: int, noun: str) -> str:
    """A count and what is counted."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
