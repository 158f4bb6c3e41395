"""The impact of edits, for people and for machines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from impact.controller import Capacity, Prediction, predict, steps
from live.api import Object
from live.edits import Edit, with_scale_of

_SHOWN_NAMES = 6
"""of a long list of pods; all of them are in the JSON"""

Steps = tuple[Mapping[str, int], Mapping[str, int]]


@dataclass(frozen=True)
class Impact:
    """An edit, and what it does."""

    edit: Edit
    prediction: Prediction
    steps: Steps | None
    """instances of each role in a group, in the two steps that this edit is to be made in; None: one step is as good"""


def assess(edit: Edit) -> Impact:
    """What an edit does."""
    if edit.refusals:
        return Impact(edit, predict(edit.before, edit.before.model_servings), None)
    return Impact(edit, predict(edit.before, edit.after), steps(edit.before, edit.after))


def two_steps(impact: Impact, stack: str) -> str:
    """Why an edit with ``steps`` is refused, and the commands that make it without the detour; empty for one without."""
    if impact.steps is None:
        return ""
    them = "it" if len(impact.prediction.churned) == 1 else "them"
    path = f"'kthena-pd:deployments.{impact.edit.deployment}.ratio'"
    commands = "\n".join(
        f"     pulumi config set --stack {stack} --path {path} {_ratio(step)} && pulumi up --stack {stack}"
        for step in impact.steps
    )
    return (
        f"{impact.edit.deployment}: the pods' template and the ratio change at once: Kthena would make "
        f"{_names(impact.prediction.churned)} only to delete {them} again (kthena#1795)\n  -> in two steps:\n{commands}"
    )


def text(impacts: Sequence[Impact], free: Mapping[str, int] | None) -> str:
    """A few lines for each deployment that changes, and one line about all.

    Args:
        impacts: of all deployments of a stack
        free: extended resource -> what the cluster has left; None where nobody may read it
    """
    changing = [(impact, room) for impact, room in _with_room(impacts, free) if not impact.edit.is_nothing]
    idle = [
        f"{impact.edit.deployment} is as declared, and nothing of it serves: `pulumi up` says why\n"
        for impact in impacts
        if impact.edit.is_nothing and impact.edit.after and not impact.prediction.capacity_before.groups
    ]
    if not changing:
        # of the deployments: the control plane is not looked at here
        none = f"nothing to do, {len(impacts)} as declared" if impacts else "none declared"
        return "".join([*idle, f"deployments: {none}\n"])
    blocks = ["\n".join(_block(impact, room)) for impact, room in changing]
    of_all = f"{len(changing)} of {_counted(len(impacts), 'deployment')} {'changes' if len(changing) == 1 else 'change'}"
    return "".join([*idle, "\n\n".join([*blocks, of_all]), "\n"])


def as_json(impacts: Sequence[Impact], free: Mapping[str, int] | None) -> str:
    """One object: ``deployments``, a list in the order of the stack file, and ``freeNpus``, null where nobody may read it.

    A deployment has ``name``, ``namespace``, ``change`` (impact.controller.Change), ``movedTo`` (the namespace in which it is
    declared now, or empty), ``objects`` (kind and name of what is made or changed), ``deleted`` (of what goes), ``refusals``,
    ``shape`` (``before`` and ``after``), ``capacity`` (``before``, ``lowest``, ``after``), ``npus`` (by resource: ``before``,
    ``most``, ``after``), ``pods`` (``kept`` and ``removed`` by name with uid, the names ``created`` and ``churned``, and whether
    the ``namesAreCertain``), ``twoSteps`` (null, or the roles' instances in each of two steps), and ``warnings``
    as the text has them.
    """
    return json.dumps({"deployments": [_item(*one) for one in _with_room(impacts, free)], "freeNpus": free}, indent=2) + "\n"


def _block(impact: Impact, free: Mapping[str, int] | None) -> list[str]:
    edit, prediction = impact.edit, impact.prediction
    place = "" if edit.namespace == "default" else f" in {edit.namespace}"
    before, after = _shape(edit.before.model_servings), _shape(edit.after)
    if edit.refusals:
        return [f"{edit.deployment}{place}: refused", *(f"  error: {refusal}" for refusal in edit.refusals)]
    shape = " -> ".join(dict.fromkeys(one for one in (before, after) if one))
    what = f"moved to {edit.moved_to}" if edit.moved_to else _what(prediction)
    lines = [f"{edit.deployment}{place}: {', '.join(filter(None, (what, shape)))}", *_pods(prediction)]
    # of ModelServings the pods tell
    if others := [_named(one) for one in edit.deleted if one["kind"] != "ModelServing"]:
        lines.append(f"  - {', '.join(others)}")
    if prediction.change == "nothing":
        lines += [f"  changed: {', '.join(edit.changes)}"] if edit.changes else []
    else:
        lines += _figures(prediction, free)
    return lines + [f"  warning: {warning}" for warning in _warnings(impact, free)]


def _figures(prediction: Prediction, free: Mapping[str, int] | None) -> list[str]:
    serving = (prediction.capacity_before, prediction.capacity_lowest, prediction.capacity_after)
    now, lowest, then = (_serving(capacity) for capacity in serving)
    lines = [f"  serving: {now} now, {lowest} at the lowest, {then} at the end"]
    for resource, before_, most, after_ in _npus(prediction):
        left = "" if free is None else f"; {max(0, free.get(resource, 0))} free"
        lines.append(f"  {resource}: {before_} now, {most} at most, {after_} at the end{left}")
    return lines


def _what(prediction: Prediction) -> str:
    return "no pod is touched" if prediction.change == "nothing" else prediction.change


def _pods(prediction: Prediction) -> list[str]:
    removed, created = set(prediction.removed), set(prediction.created)
    marked = {"-": removed - created, "+": created - removed, "-/+": removed & created}
    lines = [f"  {mark} {_names(names)}" for mark, names in marked.items() if names]
    unsure = "    (as many, but some may get other numbers: that depends on which pods end first)"
    return lines if prediction.names_are_certain else [*lines, unsure]


def _warnings(impact: Impact, free: Mapping[str, int] | None) -> list[str]:
    edit, prediction = impact.edit, impact.prediction
    found = []
    if edit.unanswered:
        found.append(f"requests for {', '.join(edit.unanswered)} fail from then on: no route is left for them")
    if prediction.capacity_before.groups and not prediction.capacity_after.groups:
        if not (edit.unanswered or edit.moved_to):
            found.append("nothing of it is left to serve requests")
    elif prediction.capacity_before.groups and not prediction.capacity_lowest.groups:
        found.append("requests fail meanwhile: no group has both prefill and decode")
    for resource, before, most, _ in _npus(prediction):
        lacking = most - before - max(0, free.get(resource, 0)) if free is not None else 0
        if lacking > 0:
            found.append(f"{lacking} {resource} more are needed than are free: pods wait for them")
    lacking = _declared_pods(edit.after) - len(prediction.kept) - len(prediction.created)
    if lacking > 0:
        found.append(
            f"{_counted(lacking, 'declared pod')} will not be made: groups below the partition keep their revision's ratio"
        )
    found += _scales_left_behind(edit)
    if impact.steps:
        found.append(
            f"{_names(prediction.churned)} would be made only to be deleted again: "
            f"first {_ratio(impact.steps[0])} with the new template, then {_ratio(impact.steps[1])}"
        )
    return found


def _scales_left_behind(edit: Edit) -> Iterator[str]:
    """Where another ModelServing takes over: an autoscaler's numbers are those of the one it has scaled."""
    for new in edit.objects:
        if new.declared["kind"] != "ModelServing" or new.now is not None or new.scaling is None:
            continue
        for old in edit.deleted:
            if old["kind"] == "ModelServing" and with_scale_of(old, new.stored, new.scaling) != new.stored:
                yield (
                    f"the new version begins with the declared {_shape([new.stored])}, "
                    f"not with the {_shape([old])} that the autoscaler has chosen"
                )


def _item(impact: Impact, free: Mapping[str, int] | None) -> dict[str, Any]:
    edit, prediction = impact.edit, impact.prediction
    return {
        "name": edit.deployment,
        "namespace": edit.namespace,
        "change": prediction.change,
        "movedTo": edit.moved_to,
        "objects": edit.changes,
        "deleted": [_named(one) for one in edit.deleted],
        "refusals": edit.refusals,
        "shape": {"before": _shape(edit.before.model_servings), "after": _shape(edit.after)},
        "pods": {
            "kept": dict(prediction.kept),
            "removed": dict(prediction.removed),
            "created": prediction.created,
            "churned": prediction.churned,
            "namesAreCertain": prediction.names_are_certain,
        },
        "capacity": {
            stage: vars(capacity)
            for stage, capacity in {
                "before": prediction.capacity_before,
                "lowest": prediction.capacity_lowest,
                "after": prediction.capacity_after,
            }.items()
        },
        "npus": {
            resource: {"before": before, "most": most, "after": after} for resource, before, most, after in _npus(prediction)
        },
        "twoSteps": impact.steps,
        "warnings": _warnings(impact, free),
    }


def _with_room(impacts: Iterable[Impact], free: Mapping[str, int] | None) -> Iterator[tuple[Impact, Mapping[str, int] | None]]:
    """Each with what those before it leave free: all of them change at the same time."""
    left = None if free is None else Counter(free)
    for impact in impacts:
        yield impact, left
        if left is not None:
            left = Counter(left)
            left.subtract(impact.prediction.npus_most - impact.prediction.npus_before)


def _npus(prediction: Prediction) -> list[tuple[str, int, int, int]]:
    stages: tuple[Counter[str], ...] = (prediction.npus_before, prediction.npus_most, prediction.npus_after)
    before, most, after = stages
    return [(resource, before[resource], most[resource], after[resource]) for resource in sorted(most)]


def _shape(model_servings: Iterable[Object]) -> str:
    """Ratio and groups of a deployment, such as ``2P1D in 1 group``; empty where there is none."""
    return " + ".join(
        f"{_ratio({role['name']: role.get('replicas', 1) for role in item['spec']['template']['roles']})} in "
        f"{_counted(item['spec'].get('replicas', 1), 'group')}"
        for item in model_servings
    )


def _declared_pods(model_servings: Iterable[Object]) -> int:
    return sum(
        item["spec"].get("replicas", 1) * role.get("replicas", 1) * (1 + role.get("workerReplicas", 0))
        for item in model_servings
        for role in item["spec"]["template"]["roles"]
    )


def _ratio(instances: Mapping[str, int]) -> str:
    return f"{instances.get('prefill', 0)}P{instances.get('decode', 0)}D"


def _serving(capacity: Capacity) -> str:
    return _ratio({"prefill": capacity.prefill, "decode": capacity.decode})


def _named(item: Object) -> str:
    return f"{item['kind']} {item['metadata']['name']}"


def _names(names: Iterable[str]) -> str:
    found = sorted(names)
    more = len(found) - _SHOWN_NAMES
    return ", ".join(found[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
