"""The objects of a stack as files for GitOps: one for each object, in directories that are applied one after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from models.deployment import Deployment
from models.stack import Stack
from render.control_plane import render_namespace
from render.deployment import render_deployment
from render.monitoring import render_monitoring

Object = Mapping[str, Any]
Folders = Mapping[str, Sequence[Object]]
"""directory -> objects; both in the order in which they are created"""

KUSTOMIZATION = "kustomization.yaml"
WAVE = "argocd.argoproj.io/sync-wave"
_CRD = "CustomResourceDefinition"
_WAVES = {_CRD: -1, "ModelServing": 1, "ModelServer": 2, "AutoscalingPolicy": 2, "ModelRoute": 3, "PrometheusRule": 3}
"""kind -> wave, after the order in which `pulumi up` waits; 0 is what they need, with the webhooks that admit them"""


def folders(stack: Stack, control_plane: Iterable[Object]) -> dict[str, tuple[Object, ...]]:
    """All objects of a stack that the rules have passed; ``control_plane``: as they are rendered, none to leave them out."""
    installed = tuple(control_plane)
    found = {
        "crds": tuple(item for item in installed if item["kind"] == _CRD),
        "control-plane": tuple(item for item in installed if item["kind"] != _CRD),
        "namespaces": tuple(render_namespace(name) for name in stack.cluster.namespaces),
        "monitoring": render_monitoring(stack.cluster),
        **{f"deployments/{name}": _objects(stack.deployments[name], stack) for name in stack.in_order()},
    }
    return {directory: objects for directory, objects in found.items() if objects}


def files(found: Folders) -> dict[str, str]:
    """Path -> text: a file for each object, and a Kustomization for each directory, that of the whole first."""
    listed: dict[str, list[str]] = {"": []}
    texts: dict[str, str] = {}
    for directory, objects in found.items():
        around = ""
        for name in directory.split("/"):
            here = f"{around}{name}/"
            if here not in listed:
                listed[here] = []
                listed[around].append(name)
            around = here
        for item in objects:
            name = _file_name(item, listed[around])
            listed[around].append(name)
            texts[f"{around}{name}"] = text(item)
    return {f"{directory}{KUSTOMIZATION}": text(_kustomization(names)) for directory, names in listed.items()} | texts


def stream(found: Folders) -> str:
    """All objects as the documents of one YAML file."""
    return "".join(f"---\n{text(item)}" for objects in found.values() for item in objects)


def with_waves(found: Folders) -> dict[str, tuple[Object, ...]]:
    """``found`` with Argo CD's sync waves: it waits for the health of one before it goes on to the next."""
    return {directory: tuple(map(_with_wave, objects)) for directory, objects in found.items()}


def text(item: Object) -> str:
    """``item`` as YAML in block style, read by each parser as what it is; the same for the same item."""
    ordered = {key: item[key] for key in _FIRST if key in item} | dict(item)
    # what two places share would be written as an alias in one of them
    unshared = json.loads(json.dumps(ordered))
    return yaml.dump(unshared, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_UNFOLDED)


def _objects(deployment: Deployment, stack: Stack) -> tuple[Object, ...]:
    return render_deployment(deployment, stack.cluster, stack.deployments).objects


def _file_name(item: Object, taken: Iterable[str]) -> str:
    metadata = item["metadata"]
    names = (metadata["name"], f"{metadata['name']}-{metadata.get('namespace')}")
    candidates = (re.sub(r"[^a-z0-9.-]", "-", f"{item['kind']}-{name}".lower()) + ".yaml" for name in names)
    return next(name for name in candidates if name not in taken)


def _kustomization(resources: Sequence[str]) -> Object:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        # as they are listed; kustomize's own order is by kind, and then by name
        "sortOptions": {"order": "fifo"},
        "resources": list(resources),
    }


def _with_wave(item: Object) -> Object:
    metadata = dict(item["metadata"])
    wave = _WAVES.get(item["kind"], 0)
    metadata["annotations"] = {**metadata.get("annotations", {}), WAVE: str(wave)}
    return {**item, "metadata": metadata}


_FIRST = ("apiVersion", "kind", "metadata")
_UNFOLDED = 2**31 - 1
"""width from which lines are folded: never, so that a changed word is a change of its own line only"""


class _Dumper(yaml.CSafeDumper):
    """Writes scripts as they are, and quotes what other versions of YAML than PyYAML's take for a number or a truth value."""


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)
# YAML 1.2's numbers, such as 1e3 and 0o7, and the single letters of YAML 1.1
_NUMBER = re.compile(r"[-+]?(0[box][0-9a-fA-F_]+|(\.[0-9_]+|[0-9][0-9_]*\.?[0-9_]*)([eE][-+]?[0-9_]+)?)$")
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"[yYnN]$"), list("yYnN"))
