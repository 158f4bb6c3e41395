"""Kthena's ModelServing controller, step by step, on the groups of one ModelServing.

Every method of the controller does what its namesake does in Kthena v1.0.0
pkg/model-serving-controller/controller/model_serving_controller.go, which each docstring names. Between its steps pods that are
terminating end and pods that are new become ready, as they do in a cluster where nothing else goes wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from impact.templates import Role, Templates
from models.kthena.model_serving import scaled

Status = Literal["new", "running", "deleting"]
"""``new`` is Creating or Scaling, between which the controller makes no difference"""
Schedule = Callable[[list[Any]], list[Any]]
"""of those that could be next to end, or to become ready, the ones that are; in the order of groups, roles and ordinals"""

SCHEDULES: tuple[Schedule, ...] = (lambda items: items, lambda items: items[:1], lambda items: items[-1:])
"""all together, and one after the other from either end: what differs between them depends on which pod ends first"""
_STEPS_OF_EACH_POD = 50
"""more than any rollout takes; a spec whose partition makes the controller go round in circles ends here"""


Requests = tuple[tuple[str, int], ...]
"""extended resource and number, of one pod"""


@dataclass
class Pod:
    """A pod that is there now, or will be."""

    name: str
    requests: Requests
    uid: str = ""
    """empty: made by the edit"""
    is_ready: bool = False
    is_placed: bool = False
    """has a node before the edit"""
    is_leaving: bool = False
    """terminating before the edit"""


@dataclass
class Instance:
    """A replica of a role in a group; its number is its place in the group's ``roles``."""

    template: str
    """as in :class:`impact.templates.Role`; empty where nobody knows it"""
    pods: dict[str, Pod]
    status: Status = "new"
    cost: int = 0
    """sum of the pods' deletion costs"""

    @property
    def is_ready(self) -> bool:
        """Whether all its pods are."""
        for pod in self.pods.values():  # noqa: SIM110  # asked of every instance at every step: three times as fast as all()
            if not pod.is_ready:
                return False
        return True


@dataclass
class Group:
    """A ServingGroup."""

    revision: str
    roles: dict[str, dict[int, Instance]] = field(default_factory=dict)
    status: Status = "new"

    @property
    def instances(self) -> Iterator[Instance]:
        """Of all roles."""
        return (instance for of_role in self.roles.values() for instance in of_role.values())

    @property
    def pods(self) -> Iterator[Pod]:
        """Of all instances, those that are terminating too."""
        return (pod for of_role in self.roles.values() for instance in of_role.values() for pod in instance.pods.values())

    def serving(self, role: str) -> int:
        """Instances of ``role`` that can take requests."""
        of_role = self.roles.get(role, {}).values() if self.status != "deleting" else ()
        return sum(1 for one in of_role if one.status != "deleting" and one.is_ready)


@dataclass
class Controller:
    """The controller's memory of one ModelServing, and what the edit has made it do."""

    name: str
    spec: Mapping[str, Any]
    templates: Templates
    groups: dict[int, Group]
    current_revision: str
    """the status field, by which groups below the partition are made"""
    update_revision: str
    rolled: set[Literal["group", "role"]] = field(default_factory=set)
    """what was deleted because it is outdated"""
    unfinished: bool = False
    churned: list[str] = field(default_factory=list)
    """names of the pods that were made and deleted again"""
    _changed: bool = False

    def __post_init__(self) -> None:
        self._recorded = dict(self.templates.recorded)

    def run(self, schedule: Schedule, record: Callable[[], None] = lambda: None) -> None:
        """Go on until nothing happens any more; ``record`` is called after each step."""
        pods = sum(role.replicas * (1 + role.workers) for role in self.templates.roles) * self._replicas
        for _ in range(_STEPS_OF_EACH_POD * (pods + sum(1 for _ in self.pods()) + 1)):
            self._changed = False
            self._sync()
            record()
            if not self._changed and not self._pass_time(schedule):
                return
        self.unfinished = True

    def pods(self) -> Iterator[Pod]:
        """Of all groups, those that are terminating too."""
        return (pod for group in self.groups.values() for pod in group.pods)

    def _pass_time(self, schedule: Schedule) -> bool:
        """What ends and what becomes ready, between two steps of the controller; False if there is neither.

        Pods end in the seconds of their grace period, and become ready in the minutes in which a model loads.
        """
        if leaving := list(self._leaving()):
            for holder, number in schedule(leaving):
                self._forget(holder.pop(number))
            return True
        alive = [group for _, group in sorted(self.groups.items())]
        loading = [
            (group, one) for group in alive for of_role in group.roles.values() for one in of_role.values() if not one.is_ready
        ]
        for group, instance in schedule(loading):
            for pod in instance.pods.values():
                pod.is_ready = True
            instance.status = "running"
            self._run_if_complete(group)
        return bool(loading)

    def _leaving(self) -> Iterator[tuple[dict[int, Any], int]]:
        """Where the groups and instances that are being deleted are kept, and their numbers there."""
        for ordinal, group in sorted(self.groups.items()):
            if group.status == "deleting":
                yield self.groups, ordinal
                continue
            for instances in group.roles.values():
                yield from ((instances, number) for number, one in sorted(instances.items()) if one.status == "deleting")

    def _forget(self, gone: Group | Instance) -> None:
        for instance in gone.instances if isinstance(gone, Group) else (gone,):
            self.churned += [pod.name for pod in instance.pods.values() if not pod.uid]

    def _sync(self) -> None:
        """Source: syncModelServing."""
        self._sync_groups()
        self._sync_roles()
        self._roll()
        self._update_status()

    @property
    def _replicas(self) -> int:
        return int(self.spec.get("replicas", 1))

    @property
    def _rolling(self) -> Mapping[str, Any]:
        return (self.spec.get("rolloutStrategy") or {}).get("rollingUpdateConfiguration") or {}

    @property
    def _partition(self) -> int:
        """Source: getPartition, which rounds up."""
        declared = self._rolling.get("partition") or 0
        return declared if isinstance(declared, int) else -(-int(declared.removesuffix("%")) * self._replicas // 100)

    def _protected(self) -> set[int]:
        """Groups that keep their revision: the first ones in their order, whatever their ordinals."""
        return set(sorted(self.groups)[: self._partition])

    def _sync_groups(self) -> None:
        """Source: syncServingGroupReplicas, scaleUpServingGroups, scaleDownServingGroups."""
        surplus = len(self.groups) - self._replicas
        if surplus < 0:
            for ordinal in range(min(self._partition, self._replicas)):
                if ordinal not in self.groups:
                    revision = self.current_revision or self.templates.revision
                    self._make_group(ordinal, revision, self._recorded.get(revision, self.templates.roles))
            missing = self._replicas - len(self.groups)
            if missing > 0:
                self._recorded[self.templates.revision] = self.templates.roles
            first = max(self.groups, default=-1) + 1
            for ordinal in range(first, first + missing):
                self._make_group(ordinal, self.templates.revision, self.templates.roles)
        elif surplus > 0:
            protected = self._protected()
            order = sorted(self.groups, key=lambda ordinal: (ordinal in protected, *self._worth(ordinal)))
            for ordinal in order[:surplus]:
                self._delete_group(ordinal)

    def _worth(self, ordinal: int) -> tuple[bool, int, int]:
        """What is least goes first: what does not run, what costs least, what is last. Source: binpack_scaledown.go."""
        group = self.groups[ordinal]
        return (group.status == "running", sum(one.cost for one in group.instances), -ordinal)

    def _sync_roles(self) -> None:
        """Source: syncRoleReplicas: a protected group follows the ControllerRevision of its own revision, its replicas too."""
        protected = self._protected()
        for ordinal, group in sorted(self.groups.items()):
            if group.status != "deleting":
                of_group = self._recorded.get(group.revision, self.templates.roles)
                for role in of_group if ordinal in protected else self.templates.roles:
                    self._sync_role(ordinal, group, role)

    def _sync_role(self, ordinal: int, group: Group, role: Role) -> None:
        """Source: manageRoleReplicasPerGroup, scaleUpRoles, scaleDownRoles.

        Pods that an instance lacks are made from the template of now. Instances that are being deleted count where it is
        decided whether to make more.
        """
        instances = group.roles.setdefault(role.name, {})
        for number, instance in instances.items():
            if instance.status != "deleting" and len(instance.pods) < 1 + role.workers:
                instance.pods = {**self._pods(ordinal, role, number), **instance.pods}
                self._changed = True
        if len(instances) < role.replicas:
            group.status = "new"
            first = max(instances, default=-1) + 1
            for number in range(first, first + role.replicas - len(instances)):
                self._make_instance(ordinal, instances, role, number)
        elif len(instances) > role.replicas:
            left = {number: one for number, one in instances.items() if one.status != "deleting"}
            surplus = max(0, len(left) - role.replicas)
            order = sorted(left, key=lambda number: (left[number].status == "running", left[number].cost, -number))
            for number in order[:surplus]:
                group.status = "new"
                self._delete_instance(left[number])

    def _roll(self) -> None:
        """Source: manageRollingUpdate, deleteOutdatedServingGroups.

        A group that is being deleted already is deleted once more, and counts in what may be deleted.
        """
        unprotected = sorted(self.groups.items())[self._partition :]
        outdated = [(ordinal, group) for ordinal, group in unprotected if group.revision != self.templates.revision]
        # in the order of ordinals, those that do not run at the end, and then from the end
        order = sorted(outdated, key=lambda item: (item[1].status != "running", item[0]), reverse=True)
        if rolls_by_role(self.spec):
            for _, group in order:
                self._roll_roles(group)
            return
        updating = sum(group.status != "running" and group.revision == self.templates.revision for _, group in unprotected)
        max_unavailable = scaled(self._rolling.get("maxUnavailable", 1), self._replicas)
        for ordinal, _ in order[: max(0, len(self.groups) - (self._replicas - max_unavailable) - updating)]:
            if self.groups[ordinal].status != "deleting":
                self.rolled.add("group")
            self._delete_group(ordinal)

    def _roll_roles(self, group: Group) -> None:
        """Source: deleteOutdatedRoles, rolesToDeleteForRoleRollingUpdate, outdatedRoles.

        What has no known hash is left alone.
        """
        chosen: list[Instance] = []
        for role in self.templates.roles:
            instances = group.roles.get(role.name, {})
            left = {number: one for number, one in instances.items() if one.status != "deleting"}
            outdated = [number for number, one in left.items() if one.template not in ("", role.template)]
            if not outdated:
                continue
            updating = sum(one.status != "running" and one.template in ("", role.template) for one in left.values())
            unavailable = len(instances) - len(left) + updating
            outdated.sort(key=lambda number: (left[number].status == "running", -number))
            chosen += [left[number] for number in outdated[: _may_go(role, len(instances), unavailable)]]
        declared = {role.name for role in self.templates.roles}
        for name, instances in group.roles.items():
            chosen += [one for one in instances.values() if name not in declared and one.status != "deleting"]
        for instance in chosen:
            self.rolled.add("role")
            self._delete_instance(instance)

    def _update_status(self) -> None:
        """Source: UpdateModelServingStatus, and CleanupOldControllerRevisions in controller_revision.go."""
        for group in self.groups.values():
            self._run_if_complete(group)
        alive = [group for group in self.groups.values() if group.status != "deleting"]
        outdated = Counter(group.revision for group in alive if group.revision != self.templates.revision)
        if len(alive) - outdated.total() == len(self.groups) or not outdated:
            current = self.templates.revision
        elif self.current_revision in outdated:
            current = self.current_revision
        else:
            ((current, _),) = outdated.most_common(1)
        if (current, self.templates.revision) != (self.current_revision, self.update_revision):
            self.current_revision, self.update_revision = current, self.templates.revision
            self._recorded = {name: roles for name, roles in self._recorded.items() if name in (current, self.update_revision)}

    def _run_if_complete(self, group: Group) -> None:
        """Source: checkServingGroupReady, which asks for the replicas of the new spec in every group."""
        if group.status != "new":
            return
        complete = all(
            len(group.roles.get(role.name, {})) == role.replicas
            and all(one.status == "running" for one in group.roles.get(role.name, {}).values())
            for role in self.templates.roles
        )
        if complete:
            group.status = "running"
            self._changed = True

    def _make_group(self, ordinal: int, revision: str, roles: Iterable[Role]) -> None:
        """Source: CreatePodsForServingGroup."""
        group = self.groups[ordinal] = Group(revision)
        self._changed = True
        for role in roles:
            instances = group.roles.setdefault(role.name, {})
            for number in range(role.replicas):
                self._make_instance(ordinal, instances, role, number)

    def _make_instance(self, ordinal: int, instances: dict[int, Instance], role: Role, number: int) -> None:
        """Source: CreatePodsByRole."""
        instances[number] = Instance(role.template, self._pods(ordinal, role, number))
        self._changed = True

    def _pods(self, ordinal: int, role: Role, number: int) -> dict[str, Pod]:
        """The pods of one instance; source of their names: GeneratePodName in utils.go."""
        names = [f"{self.name}-{ordinal}-{role.name}-{number}-{pod}" for pod in range(1 + role.workers)]
        return {name: Pod(name, role.worker_requests if pod else role.entry_requests) for pod, name in enumerate(names)}

    def _delete_group(self, ordinal: int) -> None:
        """Source: deleteServingGroup, which records the roles of now under the revision of before."""
        group = self.groups[ordinal]
        if ordinal < self._partition:
            self._recorded[group.revision] = self.templates.roles
        if group.status != "deleting":
            group.status = "deleting"
            self._changed = True

    def _delete_instance(self, instance: Instance) -> None:
        """Source: DeleteRole."""
        instance.status = "deleting"
        self._changed = True


def rolls_by_role(spec: Mapping[str, Any]) -> bool:
    """Whether a ModelServing's rollout replaces roles; otherwise it replaces groups."""
    return bool((spec.get("rolloutStrategy") or {}).get("type") == "RoleRollingUpdate")


def _may_go(role: Role, instances: int, unavailable: int) -> int:
    """How many outdated instances may be deleted, of all in the group; without a limit all of them. Source: calMaxScaleDown."""
    if role.max_unavailable is None:
        return instances
    fewest = max(0, role.replicas - scaled(role.max_unavailable, role.replicas))
    return max(0, instances - fewest - unavailable)
