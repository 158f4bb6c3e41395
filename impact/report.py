"""The impact of edits, for people and for machines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from impact.controller import Capacity, Prediction, predict, steps
from live.api import Object
from live.edits import Edit

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

    @property
    def is_nothing(self) -> bool:
        """Whether the deployment is as it is declared."""
        return not self.edit.changes


def assess(edit: Edit) -> Impact:
    """What an edit does."""
    if edit.refusals:
        return Impact(edit, predict(edit.before, edit.before.model_servings), None)
    return Impact(edit, predict(edit.before, edit.after), steps(edit.before, edit.after))


def two_steps(impact: Impact, stack: str) -> str:
    """Why an edit with ``steps`` is refused, and the commands that make it without the detour; empty for one without."""
    if impact.steps is None:
        return ""
    path = f"'kthena-pd:deployments.{impact.edit.deployment}.ratio'"
    commands = "\n".join(
        f"     pulumi config set --stack {stack} --path {path} {_ratio(step)} && pulumi up --stack {stack}"
        for step in impact.steps
    )
    return (
        f"{impact.edit.deployment}: the pods' template and the ratio change at once: Kthena would make "
        f"{_names(impact.prediction.churned)} only to delete it again (kthena#1795)\n  -> in two steps:\n{commands}"
    )


def text(impacts: Sequence[Impact], free: Mapping[str, int] | None) -> str:
    """A few lines for each deployment that changes, and one line about all.

    Args:
        impacts: of all deployments of a stack
        free: extended resource -> what the cluster has left; None where nobody may read it
    """
    changing = [impact for impact in impacts if not impact.is_nothing]
    if not changing:
        return f"nothing to do: {_counted(len(impacts), 'deployment')} as declared\n"
    blocks = ["\n".join(_block(impact, free)) for impact in changing]
    of_all = f"{len(changing)} of {_counted(len(impacts), 'deployment')} {'changes' if len(changing) == 1 else 'change'}"
    return "\n\n".join([*blocks, of_all]) + "\n"


def as_json(impacts: Sequence[Impact], free: Mapping[str, int] | None) -> str:
    """One object: ``deployments``, a list in the order of the stack file, and ``freeNpus``, null where nobody may read it.

    A deployment has ``name``, ``namespace``, ``change`` (impact.controller.Change), ``objects`` (kind and name of what is made,
    changed or deleted), ``refusals``, ``shape`` (``before`` and ``after``), ``capacity`` (``before``, ``lowest``, ``after``),
    ``npus`` (by resource: ``before``, ``most``, ``after``), ``pods`` (``kept`` and ``removed`` by name with uid, the names
    ``created`` and ``churned``, and whether they are ``certain``), ``twoSteps`` (null, or the roles' instances in each of two
    steps), and ``warnings`` as the text has them.
    """
    return json.dumps({"deployments": [_item(impact, free) for impact in impacts], "freeNpus": free}, indent=2) + "\n"


def _block(impact: Impact, free: Mapping[str, int] | None) -> list[str]:
    edit, prediction = impact.edit, impact.prediction
    place = "" if edit.namespace == "default" else f" in {edit.namespace}"
    before, after = _shape(edit.before.model_servings), _shape(edit.after)
    if edit.refusals:
        return [f"{edit.deployment}{place}: refused", *(f"  error: {refusal}" for refusal in edit.refusals)]
    shape = " -> ".join(dict.fromkeys(one for one in (before, after) if one))
    lines = [f"{edit.deployment}{place}: {_what(prediction)}, {shape}"]
    if prediction.change == "nothing":
        return [*lines, f"  changed: {', '.join(edit.changes)}"]
    lines += _pods(prediction)
    serving = (prediction.capacity_before, prediction.capacity_lowest, prediction.capacity_after)
    now, lowest, then = (_serving(capacity) for capacity in serving)
    lines.append(f"  serving: {now} now, {lowest} at the lowest, {then} at the end")
    for resource, before_, most, after_ in _npus(prediction):
        left = "" if free is None else f"; {free.get(resource, 0)} free"
        lines.append(f"  {resource}: {before_} now, {most} at most, {after_} at the end{left}")
    return lines + [f"  warning: {warning}" for warning in _warnings(impact, free)]


def _what(prediction: Prediction) -> str:
    return "no pod is touched" if prediction.change == "nothing" else prediction.change


def _pods(prediction: Prediction) -> list[str]:
    removed, created = set(prediction.removed), set(prediction.created)
    marked = {"-": removed - created, "+": created - removed, "-/+": removed & created}
    lines = [f"  {mark} {_names(names)}" for mark, names in marked.items() if names]
    unsure = [] if prediction.certain else ["    (as many, but some may get other numbers: that depends on which pods end first)"]
    return lines + unsure


def _warnings(impact: Impact, free: Mapping[str, int] | None) -> list[str]:
    prediction = impact.prediction
    found = []
    if prediction.capacity_before.groups and not prediction.capacity_after.groups:
        found.append("its requests fail from then on: nothing is left to serve them")
    elif prediction.capacity_before.groups and not prediction.capacity_lowest.groups:
        found.append("requests fail meanwhile: no group has both prefill and decode")
    for resource, before, most, _ in _npus(prediction):
        lacking = most - before - free.get(resource, 0) if free is not None else 0
        if lacking > 0:
            found.append(f"{lacking} {resource} more are needed than are free: new pods wait for them")
    lacking = _declared_pods(impact.edit.after) - len(prediction.kept) - len(prediction.created)
    if lacking > 0:
        found.append(
            f"{_counted(lacking, 'declared pod')} will not be made: groups below the partition keep their revision's ratio"
        )
    if impact.steps:
        found.append(
            f"{_names(prediction.churned)} would be made only to be deleted again: "
            f"first {_ratio(impact.steps[0])} with the new template, then {_ratio(impact.steps[1])}"
        )
    return found


def _item(impact: Impact, free: Mapping[str, int] | None) -> dict[str, Any]:
    edit, prediction = impact.edit, impact.prediction
    return {
        "name": edit.deployment,
        "namespace": edit.namespace,
        "change": prediction.change,
        "objects": edit.changes,
        "refusals": edit.refusals,
        "shape": {"before": _shape(edit.before.model_servings), "after": _shape(edit.after)},
        "pods": {
            "kept": dict(prediction.kept),
            "removed": dict(prediction.removed),
            "created": prediction.created,
            "churned": prediction.churned,
            "certain": prediction.certain,
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


def _names(names: Iterable[str]) -> str:
    found = sorted(names)
    more = len(found) - _SHOWN_NAMES
    return ", ".join(found[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
