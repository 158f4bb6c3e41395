"""What a container sees in its environment: pure functions of the pod and the objects that it refers to."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping

from local.api import Object
from local.kubelet import StartError

REFERENCED = {"ConfigMap": "configmaps", "Secret": "secrets"}
"""kinds that a pod's containers and volumes refer to, and how the API's paths name them"""
Reference = tuple[str, str]
"""kind (``ConfigMap`` or ``Secret``) and name, in the pod's namespace"""
Objects = Mapping[Reference, Object | None]
"""what the pod refers to; None where it does not exist"""

_VARIABLE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")
_KEYED = re.compile(r"^metadata\.(labels|annotations)\['(.+)'\]$")
_NAME = re.compile(r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)``; unknown names stay as they are, and ``$$(NAME)`` means a literal ``$(NAME)``."""

    def replace(found: re.Match[str]) -> str:
        return "$" if found[1] else variables.get(found[2], found[0])

    return _VARIABLE.sub(replace, text)


def field(pod: Object, path: str) -> str:
    """Value of a downward API field of ``pod``; labels and annotations that are not there are empty.

    Raises:
        StartError: there is no such field.
    """
    if keyed := _KEYED.match(path):
        return str(pod["metadata"].get(keyed[1], {}).get(keyed[2], ""))
    status, spec = pod.get("status", {}), pod["spec"]
    fields = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"]["namespace"],
        "metadata.uid": pod["metadata"]["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.podIP": status.get("podIP", ""),
        "status.podIPs": ",".join(one["ip"] for one in status.get("podIPs", [])),
        "status.hostIP": status.get("hostIP", ""),
        "status.hostIPs": ",".join(one["ip"] for one in status.get("hostIPs", [])),
    }
    if path in ("metadata.labels", "metadata.annotations"):  # as a volume has them
        pairs = pod["metadata"].get(path.partition(".")[2], {})
        return "".join(f'{key}="{_escaped(value)}"\n' for key, value in sorted(pairs.items()))
    if path not in fields:
        raise StartError("CreateContainerConfigError", f"fieldPath {path} is not supported")
    return str(fields[path])


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def values(reference: Reference, found: Object) -> dict[str, bytes]:
    """Keys of a ConfigMap or Secret and their content."""
    if reference[0] == "Secret":
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
    text = {key: value.encode() for key, value in (found.get("data") or {}).items()}
    binary = {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}
    return text | binary


def environment(container: Object, pod: Object, objects: Objects, given: Mapping[str, str]) -> dict[str, str]:
    """Environment of ``container``: ``given`` by the kubelet, then its ``envFrom``, then its ``env``.

    Raises:
        StartError: a ConfigMap, Secret, key or field that it needs is not there.
    """
    result = dict(given)
    for source in container.get("envFrom") or []:
        result |= _all_of(source, objects)
    for variable in container.get("env") or []:
        value = _value(variable, pod, objects)
        if value is not None:
            result[variable["name"]] = expand(value, result) if "valueFrom" not in variable else value
    return result


def _all_of(source: Object, objects: Objects) -> dict[str, str]:
    kind, selector = ("ConfigMap", source["configMapRef"]) if "configMapRef" in source else ("Secret", source["secretRef"])
    found = objects.get((kind, selector["name"]))
    if found is None:
        if selector.get("optional"):
            return {}
        raise StartError("CreateContainerConfigError", f'{kind.lower()} "{selector["name"]}" not found')
    every = values((kind, selector["name"]), found)
    prefix = source.get("prefix", "")
    return {prefix + key: value.decode(errors="replace") for key, value in every.items() if _NAME.match(prefix + key)}


def _value(variable: Object, pod: Object, objects: Objects) -> str | None:
    """Value of one entry of ``env``; None for an optional one that has none."""
    source = variable.get("valueFrom")
    if not source:
        return str(variable.get("value", ""))
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"])
    if "configMapKeyRef" in source:
        return _key("ConfigMap", source["configMapKeyRef"], objects)
    if "secretKeyRef" in source:
        return _key("Secret", source["secretKeyRef"], objects)
    raise StartError("CreateContainerConfigError", f"env {variable['name']}: {', '.join(source)} is not supported locally")


def _key(kind: str, selector: Object, objects: Objects) -> str | None:
    found = objects.get((kind, selector["name"]))
    content = values((kind, selector["name"]), found) if found is not None else {}
    if selector["key"] in content:
        return content[selector["key"]].decode(errors="replace")
    if selector.get("optional"):
        return None
    if found is None:
        raise StartError("CreateContainerConfigError", f'{kind.lower()} "{selector["name"]}" not found')
    raise StartError("CreateContainerConfigError", f"couldn't find key {selector['key']} in {kind} {selector['name']}")


def references(pod: Object) -> set[Reference]:
    """ConfigMaps and Secrets that the pod's containers and volumes refer to."""
    return set(_references(pod["spec"]))


def _references(spec: Object) -> Iterator[Reference]:
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        for source in container.get("envFrom") or []:
            yield from _named(source, "configMapRef", "secretRef")
        for variable in container.get("env") or []:
            yield from _named(variable.get("valueFrom") or {}, "configMapKeyRef", "secretKeyRef")
    for volume in spec.get("volumes") or []:
        for source in [volume, *(volume.get("projected", {}).get("sources") or [])]:
            yield from _named(source, "configMap", "secret")


def _named(source: Object, config_map: str, secret: str) -> Iterator[Reference]:
    if config_map in source:
        yield "ConfigMap", source[config_map]["name"]
    if secret in source:
        yield "Secret", source[secret].get("name") or source[secret]["secretName"]
