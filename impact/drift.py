"""What in the cluster differs from the declaration, who made it so, and what `pulumi up` does about it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from live.edits import Edit, with_scale_of
from models.autoscaling import Autoscaling
from render.names import CONTROLLER_NAME, ROUTER_NAME
from render.ownership import DECLARED, annotation, writers

Object = dict[str, Any]
Kind = Literal["human", "human or edit", "autoscaler", "other stack", "foreign", "edit", "absent", "undeclared"]
"""human: a person, or a tool that is none of the others; foreign: no `up` of this stack has ever applied the object; edit:
declared, and no `up` has applied it yet; undeclared: the stack has made the object, and declares it no more"""

CONTROLLERS = {CONTROLLER_NAME, ROUTER_NAME, "kube-controller-manager", "kube-apiserver"}
"""field managers that write into these objects by their nature"""
_STACKS = "pulumi-"
"""what the field managers of stacks begin with; Pulumi's own random ones too"""
_OF_THE_SERVER = {"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"}
"""keys of metadata that differ by their nature, or only in the answer to a dry run"""
_BOOKKEEPING = ("pulumi.com/", "kubectl.kubernetes.io/")
"""prefixes of annotations in which tools remember something"""
_LONGEST = 60
"""characters of a value that is shown"""


@dataclass(frozen=True)
class Drift:
    """One field that is not as declared."""

    object: str
    """kind, namespace and name, such as ``ModelServing default/deepseekv4-pd``"""
    field: str
    """such as ``spec.template.roles[prefill].replicas``; empty where it is the whole object"""
    now: Any
    """in the cluster; None: it has no such field"""
    after: Any
    """after `up`"""
    kind: Kind
    manager: str = ""
    """field manager of whoever wrote it; empty where Kubernetes does not know"""
    time: str = ""
    """when that manager last wrote into the object, RFC 3339"""
    reverted: bool = True
    """whether `up` changes it"""

    @property
    def is_as_declared(self) -> bool:
        """Whether the declaration leaves this field to whom it belongs to now."""
        return self.kind == "autoscaler" and not self.reverted

    def __str__(self) -> str:
        if self.kind == "absent":
            return "not in the cluster; `up` creates it"
        if self.kind == "undeclared":
            return "not declared any more; `up` deletes it"
        values = shown(self.now) if self.now == self.after else f"{shown(self.now)} -> {shown(self.after)}"
        return f"{self.field}: {values}  ({_reason(self)})"


def drift(
    declared: Object, live: Object | None, applied: Object | None, manager: str, scaled: Collection[str] = ()
) -> tuple[Drift, ...]:
    """What differs in one object, in the order of its fields.

    What `up` does is what the dry run shows: where anything differs the object is applied again, by Pulumi or before it
    (live.edits, ``revert``). What others have added beside the declaration stays.

    Args:
        declared: the object as the stack applies it (:func:`render.ownership.owned`)
        live: the object in the cluster; None if it has none
        applied: the API server's answer to a dry run of applying ``declared`` by force as ``manager``; needed where there is a
            live object
        manager: field manager of the stack
        scaled: fields that an autoscaler of the declaration decides (:func:`scaled_fields`)
    """
    name = _name(declared)
    if live is None or applied is None:
        return (Drift(name, "", None, None, "absent"),)
    was, becomes = annotation(live, DECLARED), annotation(declared, DECLARED)
    sent, there, result = _comparable(declared), _comparable(live), _comparable(applied)
    view = _View(name, _Owners(live, manager), scaled, edited=was != becomes, foreign=is_foreign(live, manager))
    found = [told for difference in _differences(there, result, sent, ()) if (told := view.told(difference))]
    if was not in (None, becomes) and not any(one.reverted for one in found):
        # it takes away what nobody has, or what has been done by hand already
        found.append(Drift(name, _text(("metadata", "annotations", DECLARED)), was, becomes, "edit"))
    return (*found, *view.additions(there, sent))


def drift_of(edits: Iterable[Edit], manager: str) -> tuple[Drift, ...]:
    """What differs in the objects of deployments, in the order in which they are declared."""
    return tuple(one for edit in edits for one in _drift_of(edit, manager))


def _drift_of(edit: Edit, manager: str) -> Iterator[Drift]:
    for item in edit.objects:
        yield from drift(
            item.declared,
            item.now,
            with_scale_of(item.declared, item.stored, item.scaling) if item.scaling else item.stored,
            manager,
            scaled_fields(item.scaling),
        )
    for gone in edit.deleted:
        yield Drift(_name(gone), "", None, None, "undeclared")


def is_foreign(live: Object, manager: str) -> bool:
    """Whether no `up` of this stack has applied an object: it was applied by hand, or by GitOps from what `pd render` writes."""
    return annotation(live, DECLARED) is None and all(entry.get("manager") != manager for entry in writers(live))


def taken_over(edits: Iterable[Edit], manager: str) -> list[str]:
    """Kind, namespace and name of the objects that others have made and the next `up` takes over."""
    objects = (item.now for edit in edits for item in edit.objects)
    return [_name(live) for live in objects if live and is_foreign(live, manager)]


def reverted(found: Iterable[Drift]) -> list[str]:
    """One line for each change of somebody else that `up` is about to undo."""
    own = ("edit", "absent", "undeclared", "foreign")
    return [f"{one.object} {one}" for one in found if one.reverted and one.kind not in own]


def scaled_fields(scaling: Autoscaling | None) -> frozenset[str]:
    """Fields of a ModelServing that its autoscaler decides."""
    if scaling is None:
        return frozenset()
    roles = {f"spec.template.roles[{role}].replicas" for role in scaling.scaled_roles}
    return frozenset(roles | ({"spec.replicas"} if scaling.groups else set()))


def shown(value: Any) -> str:
    """A value in one short line."""
    if value is None:
        return "absent"
    text = value if isinstance(value, str) and value and "\n" not in value else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


_Path = tuple[str, ...]
"""keys; an item of a list by its name or number in brackets, such as ``[prefill]``"""


class _Difference(NamedTuple):
    path: _Path
    now: Any
    after: Any
    is_declared: bool


def _differences(now: Any, after: Any, declared: Any, path: _Path) -> Iterator[_Difference]:
    """The smallest parts in which two values differ; null is the same as absent."""
    if now == after:
        return
    parts = _aligned(now, after)
    if parts is None:
        yield _Difference(path, now, after, declared is not None)
        return
    left, right = parts
    own = _parts(declared) or {}
    for key in dict.fromkeys((*left, *right)):
        yield from _differences(left.get(key), right.get(key), own.get(key), (*path, key))
    if list(left) != list(right) and isinstance(now, list) and sorted(left) == sorted(right):
        yield _Difference(path, list(left), list(right), declared is not None)


def _aligned(now: Any, after: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The parts of two maps, of two lists of named items, or of two lists of one length, by their keys."""
    if type(now) is not type(after):
        return None
    left, right = _parts(now), _parts(after)
    if left is None or right is None:
        return None
    numbered = isinstance(now, list) and (_names(now) is None or _names(after) is None)
    if not numbered:
        return left, right
    if len(now) != len(after):
        return None
    return _numbered(now), _numbered(after)


def _parts(value: Any) -> dict[str, Any] | None:
    if isinstance(value, dict):
        return value
    if not isinstance(value, list):
        return None
    names = _names(value)
    return dict(zip(names, value, strict=True)) if names is not None else _numbered(value)


def _names(items: list[Any]) -> list[str] | None:
    """Names of the items of a list of which each has one of its own."""
    names = [f"[{item['name']}]" for item in items if isinstance(item, dict) and isinstance(item.get("name"), str)]
    return names if len(set(names)) == len(items) else None


def _numbered(items: list[Any]) -> dict[str, Any]:
    return {f"[{number}]": item for number, item in enumerate(items)}


class _Owner(NamedTuple):
    manager: str
    time: str
    whole: bool
    """of all around the field too: it was written as one, as an atomic list is"""


class _Owners:
    """Who wrote which field of a live object. Source: Kubernetes' FieldsV1."""

    def __init__(self, live: Object, manager: str) -> None:
        self.manager = manager
        self._entries = writers(live)

    def of(self, path: _Path) -> _Owner | None:
        """Who wrote ``path``: the stack, if it has applied the value that is there, or else the newest of the others."""
        owners = [
            _Owner(entry["manager"], str(entry.get("time", "")), whole)
            for entry in self._entries
            if (whole := _has(entry.get("fieldsV1") or {}, path)) is not None
        ]
        return next((owner for owner in owners if owner.manager == self.manager), owners[0] if owners else None)

    def others(self) -> Iterator[tuple[_Owner, _Path]]:
        """Everything that neither the stack nor a controller wrote."""
        for entry in self._entries:
            if entry["manager"] != self.manager and entry["manager"] not in CONTROLLERS:
                for path in _leaves(entry.get("fieldsV1") or {}, ()):
                    yield _Owner(entry["manager"], str(entry.get("time", "")), whole=False), path


def _has(fields: Mapping[str, Any], path: _Path) -> bool | None:
    """Whether ``path`` is in ``fields`` as a part of something larger; None if it isn't in them at all."""
    for number, key in enumerate(path):
        if not fields:
            return True if number else None
        if f"f:{key}" not in fields:
            return None
        fields = fields[f"f:{key}"]
    return False


def _leaves(fields: Mapping[str, Any], path: _Path) -> Iterator[_Path]:
    for key, inner in fields.items():
        if key.startswith("f:"):
            here = (*path, key.removeprefix("f:"))
            # a list whose items have owners of their own is one field here
            yield from _leaves(inner, here) if any(name.startswith("f:") for name in inner) else (here,)


@dataclass(frozen=True)
class _View:
    """One object, for what there is to say about its fields."""

    name: str
    owners: _Owners
    scaled: Collection[str]
    edited: bool
    """whether what is declared has changed since the last `up`"""
    foreign: bool
    """whether no `up` has applied it"""

    def told(self, difference: _Difference) -> Drift | None:
        """What there is to say about a difference; None where it is only what the API server or a controller has filled in."""
        field = _text(difference.path)
        owner = self.owners.of(difference.path)
        manager, time = (owner.manager, owner.time) if owner else ("", "")
        if field in self.scaled:
            return Drift(self.name, field, difference.now, difference.now, "autoscaler", manager, time, reverted=False)
        kind = self._kind(difference, owner)
        if kind and self.foreign:
            kind = "foreign"
        return kind and Drift(self.name, field, difference.now, difference.after, kind, manager, time)

    def _kind(self, difference: _Difference, owner: _Owner | None) -> Kind | None:
        declared: Kind | None = ("edit" if self.edited else "human") if difference.is_declared else None
        if owner is None:
            return declared or ("edit" if self.edited else None)
        if owner.manager == self.owners.manager:
            return "edit"
        if owner.manager == CONTROLLER_NAME and difference.path[-1] == "replicas":
            return "autoscaler"
        if owner.manager in CONTROLLERS:  # it owns the whole list because of a number in it: the rest is somebody else's
            return declared
        if owner.manager.startswith(_STACKS):
            return "other stack"
        return "human or edit" if self.edited and owner.whole else "human"

    def additions(self, live: Object, declared: Object) -> Iterator[Drift]:
        """What others have added beside the declaration: server-side apply leaves it alone."""
        for owner, path in dict.fromkeys(self.owners.others()):
            value = _at(live, path)
            if value is None or _at(declared, path) is not None:
                continue
            kind: Kind = "other stack" if owner.manager.startswith(_STACKS) else "human"
            yield Drift(self.name, _text(path), value, value, kind, owner.manager, owner.time, reverted=False)


def _at(value: Any, path: _Path) -> Any:
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def _comparable(item: Object) -> Object:
    """``item`` less what differs by its nature."""
    metadata = {key: value for key, value in item["metadata"].items() if key not in _OF_THE_SERVER}
    annotations = metadata.pop("annotations", None) or {}
    kept = {key: value for key, value in annotations.items() if key != DECLARED and not key.startswith(_BOOKKEEPING)}
    rest = {key: value for key, value in item.items() if key != "status"}
    return {**rest, "metadata": {**metadata, **({"annotations": kept} if kept else {})}}


def _name(item: Object) -> str:
    metadata = item["metadata"]
    namespace = f"{metadata['namespace']}/" if "namespace" in metadata else ""
    return f"{item['kind']} {namespace}{metadata['name']}"


def _text(path: _Path) -> str:
    steps = (key if key.startswith("[") else f"[{key}]" if {".", "/"} & set(key) else f".{key}" for key in path)
    return "".join(steps).removeprefix(".")


_REASONS: Mapping[Kind, str] = {
    "human": "changed by {who}; `up` reverts it",
    "human or edit": "changed by {who}, or declared anew since; `up` reverts it",
    "autoscaler": "set by {who}, and no autoscaling is declared; `up` reverts it",
    "other stack": "declared by another stack too, {who}; `up` reverts it",
    "foreign": "made by {who}; `up` takes it over",
    "edit": "declared now; no `up` has applied it yet",
}


def _reason(found: Drift) -> str:
    if found.is_as_declared:
        return "the autoscaler decides it; `up` leaves it"
    when = f" at {found.time}" if found.time else ""
    who = f"{found.manager}{when}" if found.manager else "somebody"
    if found.now == found.after:
        return f"added by {who}; it stays until something declared in this object changes"
    return _REASONS[found.kind].format(who=who)
