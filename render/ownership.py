"""What Pulumi's Kubernetes provider is told about each object, in its annotations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from render.names import content_hash

DECLARED = "kthena-pd/declared"
"""Changes with all that is declared. After an interrupted `up` Pulumi's state has the inputs of before: what was added meanwhile
is in none of them, and taking it out again would be no change (measured)."""


MANAGER = "pulumi.com/patchFieldManager"
"""By whom an object is applied: which stack it belongs to"""
_OF_KIND = {
    # With Pulumi's foreground default garbage collection and the controller undo each other's work (measured).
    "ModelServing": {"pulumi.com/deletionPropagationPolicy": "background"},
}


def field_manager(project: str, stack: str) -> str:
    """The stack's own name as field manager of every object.

    Pinned, because with Pulumi's random names an `up` that was killed conflicts with itself for ever (measured); one for each
    stack, so that it can be seen when two of them declare one object.
    """
    return f"pulumi-{project}-{stack}"


def declared_hash(rendered: Mapping[str, Any]) -> str:
    """Changes with anything in ``rendered``."""
    return content_hash(json.dumps(rendered, sort_keys=True))


def annotation(item: Mapping[str, Any], name: str) -> str | None:
    """Value of an annotation; None where the object has none of this name."""
    found: str | None = (item["metadata"].get("annotations") or {}).get(name)
    return found


def writers(live: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Who has written fields of an object but for its status: entries of its ``managedFields``, the newest first."""
    entries = (entry for entry in live["metadata"].get("managedFields") or () if entry.get("subresource") != "status")
    return sorted(entries, key=lambda entry: str(entry.get("time", "")), reverse=True)


def owned(rendered: Mapping[str, Any], manager: str, annotations: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """``rendered`` as the stack with field manager ``manager`` applies it."""
    metadata = dict(rendered["metadata"])
    metadata["annotations"] = {
        **metadata.get("annotations", {}),
        MANAGER: manager,
        # `up` wins over what others wrote: without it one `kubectl patch` would stop every later `up` with a conflict (measured)
        "pulumi.com/patchForce": "true",
        DECLARED: declared_hash(rendered),
        **_OF_KIND.get(rendered["kind"], {}),
        **annotations,
    }
    return {**rendered, "metadata": metadata}
