"""What an edit does to the pods of one deployment."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Literal, get_args

from impact.simulation import SCHEDULES, Controller, Group, Instance, Pod, Schedule, rolls_by_role
from impact.templates import Templates, is_settled, read_templates, revision_of
from live.api import Object
from live.pods import is_ready, is_terminating, label
from live.resources import is_placed, requests
from live.snapshot import Snapshot
from render.names import GROUP_LABEL, NAME_LABEL, ROLE_HASH_LABEL, ROLE_ID_LABEL, ROLE_LABEL

Change = Literal["nothing", "scaled in place", "rolled by role", "groups rolled", "created", "removed", "replaced"]
"""the later one, where several ModelServings change"""
_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


@dataclass(frozen=True)
class Capacity:
    """What can take requests at one moment."""

    prefill: int = 0
    """instances all of whose pods are ready"""
    decode: int = 0
    groups: int = 0
    """with at least one of each, without which the router answers no request"""

    def __add__(self, other: Capacity) -> Capacity:
        return Capacity(self.prefill + other.prefill, self.decode + other.decode, self.groups + other.groups)

    def __and__(self, other: Capacity) -> Capacity:
        """The lower of each number."""
        return Capacity(min(self.prefill, other.prefill), min(self.decode, other.decode), min(self.groups, other.groups))


@dataclass(frozen=True)
class Prediction:
    """What Kthena will do, if all new pods become ready."""

    change: Change = "nothing"
    kept: Mapping[str, str] = field(default_factory=dict)
    """pod name -> uid of the pods that are not touched"""
    removed: Mapping[str, str] = field(default_factory=dict)
    """pod name -> uid; without those that are terminating already"""
    created: tuple[str, ...] = ()
    """names of the pods that are there afterwards and are not now; a new pod may have the name of a removed one"""
    churned: tuple[str, ...] = ()
    """names of the pods that are made only to be deleted again"""
    names_are_certain: bool = True
    """whether all names and numbers are the same whichever pod ends first; how many pods are left always is"""
    capacity_before: Capacity = Capacity()
    capacity_lowest: Capacity = Capacity()
    """the lowest of each number from now until the edit has come to its end"""
    capacity_after: Capacity = Capacity()
    npus_before: Counter[str] = field(default_factory=Counter)
    """extended resource -> number that the pods hold; one that waits for a node holds nothing"""
    npus_most: Counter[str] = field(default_factory=Counter)
    """the most of each that is wanted at any time"""
    npus_after: Counter[str] = field(default_factory=Counter)


def predict(before: Snapshot, after: Sequence[Object]) -> Prediction:
    """What happens to a deployment's pods when its ModelServings become ``after``.

    Args:
        before: the deployment now
        after: its ModelServings as the API server would store them (by a dry run, so with its defaults); one of another name is
            made and becomes ready first, and then those that are in ``after`` no more are deleted; none: all are deleted
    """
    live = {item["metadata"]["name"]: item for item in before.model_servings}
    declared = {item["metadata"]["name"]: item for item in after}
    wanted = reduce(_beside, (_predict_one(before, live.get(name), item) for name, item in declared.items()), Prediction())
    unwanted = [_predict_one(before, item, item, deleted=True) for name, item in live.items() if name not in declared]
    if not unwanted:
        return wanted
    leaving = reduce(_beside, unwanted, Prediction())
    both = _beside(wanted, leaving)
    return replace(
        both,
        change="replaced" if wanted.change == "created" else both.change,
        # what is deleted serves, and holds its NPUs, until all the others are ready
        capacity_lowest=(wanted.capacity_lowest + leaving.capacity_before) & wanted.capacity_after,
    )


def steps(before: Snapshot, after: Sequence[Object]) -> tuple[Mapping[str, int], Mapping[str, int]] | None:
    """Instances of each role in a group, in the two steps that an edit is to be made in; None where one step is as good.

    Kthena would make pods only to delete them again: it scales outdated groups with the new template before it deletes them
    (kthena#1795). The first step has everything of the edit but more instances: fewer of them at once do no harm, more of them do
    once the new template has reached all groups.
    """
    live = {item["metadata"]["name"]: item for item in before.model_servings}
    for item in after:
        found = live.get(item["metadata"]["name"])
        if found is None:
            continue
        first, wanted = _without_scale_up(found, item), _instances(item)
        if _instances(first) != wanted:
            made = len(_predict_one(before, found, item).churned)
            if made and made > len(_predict_one(before, found, first).churned):
                return _instances(first), wanted
    return None


def _instances(model_serving: Object) -> dict[str, int]:
    return {role["name"]: role.get("replicas", 1) for role in model_serving["spec"]["template"]["roles"]}


def _without_scale_up(live: Object, after: Object) -> Object:
    before = _instances(live)
    first = copy.deepcopy(after)
    for role in first["spec"]["template"]["roles"]:
        wanted = role.get("replicas", 1)
        role["replicas"] = min(wanted, before.get(role["name"], wanted))
    return first


def _predict_one(before: Snapshot, live: Object | None, after: Object, *, deleted: bool = False) -> Prediction:
    """What happens to one ModelServing: it is created, changed, or ``deleted``."""
    name = after["metadata"]["name"]
    pods = [pod for pod in before.pods if pod["metadata"]["labels"][NAME_LABEL] == name]
    recorded = [item for item in before.revisions if label(item, NAME_LABEL) == name]
    templates = read_templates(live or after, after, pods, recorded)
    groups = _groups(live or after, pods)
    if deleted:
        return _deletion(groups)
    together, *in_turn = SCHEDULES
    found = _outcome(_controller(live, after, templates, copy.deepcopy(groups)), together, is_new=live is None)
    names = {*found.kept.values(), *found.created}
    for schedule in in_turn:
        other = _controller(live, after, templates, copy.deepcopy(groups))
        other.run(schedule)
        same = names == {pod.uid or pod.name for pod in other.pods()}
        found = replace(found, names_are_certain=found.names_are_certain and same and not other.unfinished)
    return found


def _groups(live: Object, pods: Sequence[Object]) -> dict[int, Group]:
    """The controller's memory as it follows from the pods, which is how the controller itself begins after a restart.

    Source: Kthena v1.0.0 model_serving_controller.go, syncAll; datastore/store.go.
    """
    groups: dict[int, Group] = {}
    for pod in sorted(pods, key=lambda pod: (pod["metadata"].get("creationTimestamp") or "", pod["metadata"]["name"])):
        metadata, labels = pod["metadata"], pod["metadata"]["labels"]
        group = groups.setdefault(_ordinal(labels[GROUP_LABEL]), Group(_revision(live, pod), status="running"))
        of_role = group.roles.setdefault(labels[ROLE_LABEL], {})
        instance = of_role.setdefault(_ordinal(labels[ROLE_ID_LABEL]), Instance(labels.get(ROLE_HASH_LABEL, ""), {}, "running"))
        known = Pod(metadata["name"], tuple(requests(pod["spec"]).items()), metadata["uid"], is_ready(pod), is_placed(pod))
        instance.pods[known.name] = known
        instance.cost += _cost(metadata)
        if is_terminating(pod):
            known.is_leaving = True
            instance.status = "deleting"
        elif not known.is_ready and instance.status == "running":
            instance.status = "new"
    roles = live["spec"]["template"]["roles"]
    for group in groups.values():
        for role in roles:
            for instance in group.roles.get(role["name"], {}).values():
                if instance.status == "running" and len(instance.pods) < 1 + role.get("workerReplicas", 0):
                    instance.status = "new"
        statuses = {instance.status for instance in group.instances}
        # the instances of a role that rolls end without their group
        if statuses == {"deleting"} and not rolls_by_role(live["spec"]):
            group.status = "deleting"
        elif statuses != {"running"} or any(role.get("replicas", 1) and not group.roles.get(role["name"]) for role in roles):
            group.status = "new"
    return groups


def _revision(live: Object, oldest_pod: Object) -> str:
    """The revision that the controller's memory has for a group.

    A group without outdated roles takes the new revision, and its pods keep their labels: what has neither of the two revisions
    in the status was left alone by a rollout by role.
    Source: updateServingGroupRevisionIfNoOutdatedRoles, UpdateModelServingStatus.
    """
    status = live.get("status") or {}
    current, update = status.get("currentRevision", ""), status.get("updateRevision", "")
    own = revision_of(oldest_pod)
    if is_settled(live):
        return str(update)
    return own if own in (current, update) else str(current or own)


def _controller(live: Object | None, after: Object, templates: Templates, groups: dict[int, Group]) -> Controller:
    status = (live or {}).get("status") or {}
    return Controller(
        after["metadata"]["name"],
        after["spec"],
        templates,
        groups,
        status.get("currentRevision", ""),
        status.get("updateRevision", ""),
    )


def _outcome(controller: Controller, schedule: Schedule, *, is_new: bool) -> Prediction:
    """What has happened once the controller has nothing more to do."""
    known = {pod.name: pod.uid for pod in controller.pods() if not pod.is_leaving}
    moments = [_capacity(controller.groups)]
    wanted = [_npus(controller.pods())]
    holding = _npus(pod for pod in controller.pods() if pod.is_placed)

    def record() -> None:
        moments.append(_capacity(controller.groups))
        wanted.append(_npus(controller.pods()))

    controller.run(schedule, record)
    left = {pod.uid for pod in controller.pods() if pod.uid}
    created = tuple(pod.name for pod in controller.pods() if not pod.uid)
    kept = {name: uid for name, uid in known.items() if uid in left}
    return Prediction(
        change=_change(controller, is_new=is_new, touched=bool(created) or kept != known),
        kept=kept,
        removed={name: uid for name, uid in known.items() if uid not in left},
        created=created,
        churned=tuple(sorted(set(controller.churned))),
        names_are_certain=not controller.unfinished,
        capacity_before=moments[0],
        capacity_lowest=reduce(Capacity.__and__, moments),
        capacity_after=moments[-1],
        npus_before=holding,
        npus_most=reduce(Counter.__or__, wanted),
        npus_after=wanted[-1],
    )


def _deletion(groups: Mapping[int, Group]) -> Prediction:
    pods = [pod for group in groups.values() for pod in group.pods]
    held = _npus(pod for pod in pods if pod.is_placed)
    removed = {pod.name: pod.uid for pod in pods if not pod.is_leaving}
    return Prediction("removed", removed=removed, capacity_before=_capacity(groups), npus_before=held, npus_most=held)


def _change(controller: Controller, *, is_new: bool, touched: bool) -> Change:
    if is_new:
        return "created"
    if controller.rolled:
        return "groups rolled" if "group" in controller.rolled else "rolled by role"
    return "scaled in place" if touched else "nothing"


def _beside(some: Prediction, others: Prediction) -> Prediction:
    """Two ModelServings at the same time: in the worst case both are at their lowest, and hold their most, together."""
    order = get_args(Change)
    return Prediction(
        change=max(some.change, others.change, key=order.index),
        kept={**some.kept, **others.kept},
        removed={**some.removed, **others.removed},
        created=some.created + others.created,
        churned=some.churned + others.churned,
        names_are_certain=some.names_are_certain and others.names_are_certain,
        capacity_before=some.capacity_before + others.capacity_before,
        capacity_lowest=some.capacity_lowest + others.capacity_lowest,
        capacity_after=some.capacity_after + others.capacity_after,
        npus_before=some.npus_before + others.npus_before,
        npus_most=some.npus_most + others.npus_most,
        npus_after=some.npus_after + others.npus_after,
    )


def _capacity(groups: Mapping[int, Group]) -> Capacity:
    of_groups = [(group.serving("prefill"), group.serving("decode")) for group in groups.values()]
    return Capacity(
        sum(prefill for prefill, _ in of_groups),
        sum(decode for _, decode in of_groups),
        sum(prefill > 0 and decode > 0 for prefill, decode in of_groups),
    )


def _npus(pods: Iterable[Pod]) -> Counter[str]:
    held: Counter[str] = Counter()
    for asked, number in Counter(pod.requests for pod in pods).items():
        held.update({resource: number * each for resource, each in asked})
    return held


def _ordinal(name: str) -> int:
    return int(name.rpartition("-")[2])


def _cost(metadata: Object) -> int:
    """Source: Kthena v1.0.0 binpack_scaledown.go, which takes what is no number for none."""
    declared = str((metadata.get("annotations") or {}).get(_DELETION_COST, "0"))
    return int(declared) if declared.removeprefix("-").isdecimal() else 0
