"""A rendered object as a Pulumi resource: the one boundary between plain dicts and Pulumi."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi

from components.outputs import filled
from render.ownership import field_manager, owned


class KubernetesObject(pulumi.CustomResource):
    """One object of any kind, with its status, which ``pulumi_kubernetes``' CustomResource lacks."""

    metadata: pulumi.Output[dict[str, Any]]
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
        manager = field_manager(pulumi.get_project(), pulumi.get_stack())
        properties = filled(owned(rendered, manager, annotations or {}))
        for output in ("spec", "status"):
            properties.setdefault(output, None)
        super().__init__(_token(rendered), name, properties, opts)


def _token(rendered: Mapping[str, Any]) -> str:
    group_version = rendered["apiVersion"]
    core = "" if "/" in group_version else "core/"
    return f"kubernetes:{core}{group_version}:{rendered['kind']}"
