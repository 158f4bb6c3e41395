"""Which templates are the same: Kthena's hashes are read from pods and ControllerRevisions, never computed.

The hash is over a printout of Go's structs, so it can't be made here. What matters is whether two templates are equal, and the
API server's JSON tells that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from live.api import Object
from live.pods import is_terminating, label
from live.resources import requests
from models.quantities import amount
from render.deployment import template_of
from render.names import REVISION_LABEL, ROLE_HASH_LABEL, ROLE_LABEL

UNKNOWN = "new"
"""stands for a revision or a hash that no pod has yet"""

_QUANTITIES = ("requests", "limits")
_QUANTITY = ("divisor", "sizeLimit")


@dataclass(frozen=True)
class Role:
    """A role of a ModelServing, as far as it decides what happens to pods."""

    name: str
    replicas: int
    workers: int
    """pods of an instance beside its entry pod"""
    template: str
    """the same for two roles whose pods would be the same: Kthena's hash where a pod has it"""
    max_unavailable: int | str | None
    entry_requests: tuple[tuple[str, int], ...]
    worker_requests: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Templates:
    """The templates around one ModelServing that is about to change."""

    revision: str
    """of the new spec"""
    roles: tuple[Role, ...]
    """of the new spec"""
    recorded: Mapping[str, tuple[Role, ...]]
    """revision -> roles in its ControllerRevision"""


def read_templates(live: Object, after: Object, pods: Iterable[Object], controller_revisions: Iterable[Object]) -> Templates:
    """Compare the new spec with the live one, the recorded ones, and the pods.

    Source: Kthena v1.0.0 pkg/model-serving-controller/utils/revision_util.go (what is hashed: the list of roles without replicas
    and maxUnavailable) and controller_revision.go (``{"data": roles}``).
    """
    known = _Known(live, tuple(pods), {revision_of(item): _roles(item) for item in controller_revisions})
    recorded = {revision: tuple(_role(role, known.hash_of(role)) for role in roles) for revision, roles in known.recorded.items()}
    wanted = after["spec"]["template"]["roles"]
    return Templates(known.revision_of(wanted), tuple(_role(role, known.hash_of(role)) for role in wanted), recorded)


def revision_of(item: Object) -> str:
    """The revision in an object's labels, empty if it has none."""
    return label(item, REVISION_LABEL)


def is_settled(model_serving: Object) -> bool:
    """Whether the controller counts all groups as updated to the live spec.

    Under RoleRollingUpdate the pods of an unchanged role keep an older revision's label, and are up to date all the same.
    """
    status = model_serving.get("status") or {}
    return (
        bool(observed_revision(model_serving))
        and status.get("currentRevision") == status.get("updateRevision")
        and status.get("updatedReplicas", 0) == model_serving["spec"].get("replicas", 1)
    )


def observed_revision(model_serving: Object) -> str:
    """Kthena's name for the live spec's revision; empty where the controller has not seen this spec yet."""
    status = model_serving.get("status") or {}
    seen = status.get("observedGeneration") == model_serving["metadata"].get("generation")
    return str(status.get("updateRevision", "")) if seen else ""


@dataclass(frozen=True)
class _Known:
    live: Object
    pods: tuple[Object, ...]
    recorded: Mapping[str, list[Object]]

    def revision_of(self, roles: list[Object]) -> str:
        live = self.live["spec"]["template"]["roles"]
        if (observed := observed_revision(self.live)) and [*map(template_of, roles)] == [*map(template_of, live)]:
            return observed
        matching = (name for name, recorded in self.recorded.items() if _alike(recorded, roles))
        return next(matching, UNKNOWN)

    def hash_of(self, role: Object) -> str:
        """The hash on pods that have this template; of a template without pods it is one that no pod has."""
        name = role["name"]
        live = next((one for one in self.live["spec"]["template"]["roles"] if one["name"] == name), None)
        is_live = live is not None and template_of(live) == template_of(role)
        for pod in self.pods:
            labels = pod["metadata"]["labels"]
            if labels.get(ROLE_LABEL) != name or is_terminating(pod) or ROLE_HASH_LABEL not in labels:
                continue
            recorded = [one for one in self.recorded.get(revision_of(pod), ()) if one["name"] == name]
            up_to_date = is_settled(self.live) or revision_of(pod) == observed_revision(self.live)
            if (is_live and up_to_date) or _alike(recorded, [role]):
                return str(labels[ROLE_HASH_LABEL])
        return f"{UNKNOWN} {_alike_key(role)}"


def _role(role: Object, template: str) -> Role:
    return Role(
        role["name"],
        role.get("replicas", 1),
        role.get("workerReplicas", 0),
        template,
        role.get("maxUnavailable"),
        tuple(requests(role["entryTemplate"]["spec"]).items()),
        tuple(requests((role.get("workerTemplate") or {}).get("spec") or {}).items()),
    )


def _roles(controller_revision: Object) -> list[Object]:
    found: list[Object] = controller_revision["data"]["data"]
    return found


def _alike(some: list[Object], others: list[Object]) -> bool:
    return [*map(_alike_key, some)] == [*map(_alike_key, others)]


def _alike_key(role: Object) -> str:
    return repr(_canonical(template_of(role)))


def _canonical(value: Any, key: str = "") -> Any:
    """A value as it is whoever wrote it: Go leaves out what is empty, or writes it, and writes 8000m of CPU as 8."""
    if isinstance(value, Mapping):
        if key in _QUANTITIES:
            return sorted((name, amount(str(quantity))) for name, quantity in value.items())
        kept = ((name, _canonical(one, name)) for name, one in sorted(value.items()))
        return [(name, one) for name, one in kept if one]
    if isinstance(value, list):
        return [_canonical(one) for one in value]
    return amount(value) if key in _QUANTITY and value else value
