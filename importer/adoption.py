"""Live objects that become a stack's, as ``pulumi import --file`` takes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from importer.stack import Object
from rules.finding import PROJECT

PROVIDER = "kubernetes"
"""name of the program's provider resource"""
CONTROL_PLANE = "**KthenaControlPlane**"
"""what an `up` has to look at besides: a state with one child of it only is refused by Pulumi (measured)"""
COMPONENT = "kthena-pd:serving:PDDeployment"
"""type of what owns the objects of a deployment (components/pd_deployment.py)"""


def provider_urn(stack: str) -> str:
    """Of the program's provider, as the stack's state names it."""
    return f"urn:pulumi:{stack}::{PROJECT}::pulumi:providers:kubernetes::{PROVIDER}"


def adoption(objects: Iterable[Object], stack: str) -> dict[str, Any]:
    """The import file: each deployment as a component, and below it the objects that keep their names.

    Names are those that the program gives its resources, so the next `up` finds them in the state. Source of the form: Pulumi's
    reference of ``pulumi import``, bulk import.
    """
    kept = [one for one in objects if one.keeps_its_name]
    components = [
        {"type": COMPONENT, "name": _entry(name), "logicalName": name, "component": True}
        for name in dict.fromkeys(one.deployment for one in kept)
    ]
    return {"nameTable": {PROVIDER: provider_urn(stack)}, "resources": [*components, *map(_resource, kept)]}


def _entry(deployment: str) -> str:
    """Name of a component in the file, where each name may stand once."""
    return f"{deployment} (PDDeployment)"


def _resource(one: Object) -> dict[str, Any]:
    metadata, kind, version = (one.rendered[key] for key in ("metadata", "kind", "apiVersion"))
    return {
        "type": f"kubernetes:{version if '/' in version else f'core/{version}'}:{kind}",
        "name": f"{metadata['name']} ({kind})",
        # a route outlives its deployment's name, so its resource has that of the route
        "logicalName": f"{metadata['namespace']}-{metadata['name']}" if kind == "ModelRoute" else metadata["name"],
        "id": f"{metadata['namespace']}/{metadata['name']}",
        "parent": _entry(one.deployment),
        "provider": PROVIDER,
    }
