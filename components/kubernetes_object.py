"""A rendered object as a Pulumi resource: the one boundary between plain dicts and Pulumi."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pulumi

from components.outputs import filled
from render.names import content_hash

DECLARED = "kthena-pd/declared"
"""Annotation that changes with all that is declared. After an interrupted `up` Pulumi's state has the inputs of before: what was
added meanwhile is in none of them, and taking it out again would be no change (measured)."""


def _field_manager() -> str:
    """The stack's own name as field manager of every object.

    Pinned, because with Pulumi's random names an `up` that was killed conflicts with itself for ever (measured); one for each
    stack, because two stacks that declare one object differently must conflict.
    """
    return f"pulumi-{pulumi.get_project()}-{pulumi.get_stack()}"


class KubernetesObject(pulumi.CustomResource):
    """One object of any kind, with its status, which ``pulumi_kubernetes``' CustomResource lacks."""

    spec: pulumi.Output[dict[str, Any]]
    status: pulumi.Output[dict[str, Any] | None]

    def __init__(
        self,
        name: str,
        rendered: Mapping[str, Any],
        opts: pulumi.ResourceOptions,
        *,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        metadata = dict(rendered["metadata"])
        metadata["annotations"] = {
            **metadata.get("annotations", {}),
            "pulumi.com/patchFieldManager": _field_manager(),
            DECLARED: content_hash(json.dumps(rendered, sort_keys=True)),
            **(annotations or {}),
        }
        properties = filled({**rendered, "metadata": metadata})
        for output in ("spec", "status"):
            properties.setdefault(output, None)
        super().__init__(_token(rendered), name, properties, opts)


def _token(rendered: Mapping[str, Any]) -> str:
    group_version = rendered["apiVersion"]
    core = "" if "/" in group_version else "core/"
    return f"kubernetes:{core}{group_version}:{rendered['kind']}"


def wait_for(conditions: Sequence[str], seconds: float) -> dict[str, str]:
    """Annotations that hold `up` until all ``conditions`` are true, ``seconds`` at most; without any it waits for nothing."""
    if not conditions:
        return {"pulumi.com/skipAwait": "true"}
    return {"pulumi.com/waitFor": json.dumps(list(conditions)), "pulumi.com/timeoutSeconds": str(round(seconds))}
