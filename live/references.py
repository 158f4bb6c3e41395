"""What a pod names and somebody else has made: Secrets, claims, classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from live import paths


class Reference(NamedTuple):
    """An object by its kind and name."""

    kind: paths.Kind
    namespace: str
    """empty for what has none"""
    name: str

    @property
    def path(self) -> str:
        """Where the API server has it."""
        return self.kind(self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.kind.kind} {'/'.join(filter(None, (self.namespace, self.name)))}"


def references(pod_spec: Mapping[str, Any], namespace: str) -> Iterator[Reference]:
    """All that a pod does not start without; what is marked as optional is not among it."""
    for kind, name in _named(pod_spec):
        yield Reference(kind, namespace, name)
    for kind, key in ((paths.priority_classes, "priorityClassName"), (paths.runtime_classes, "runtimeClassName")):
        if pod_spec.get(key):
            yield Reference(kind, "", pod_spec[key])


def pull_secrets(pod_spec: Mapping[str, Any], namespace: str) -> Iterator[Reference]:
    """Secrets that images are pulled with; the kubelet tries without those that are missing."""
    for one in pod_spec.get("imagePullSecrets") or ():
        yield Reference(paths.secrets, namespace, one["name"])


def _named(pod_spec: Mapping[str, Any]) -> Iterator[tuple[paths.Kind, str]]:
    account = pod_spec.get("serviceAccountName")
    if account and account != "default":
        yield paths.service_accounts, account
    for volume in pod_spec.get("volumes") or ():
        sources = [volume, *((volume.get("projected") or {}).get("sources") or ())]
        for source in sources:
            yield from _required(source, "secret", "secretName" if source is volume else "name", paths.secrets)
            yield from _required(source, "configMap", "name", paths.config_maps)
        yield from _required(volume, "persistentVolumeClaim", "claimName", paths.claims)
    for container in (*(pod_spec.get("initContainers") or ()), *(pod_spec.get("containers") or ())):
        for source in container.get("envFrom") or ():
            yield from _required(source, "secretRef", "name", paths.secrets)
            yield from _required(source, "configMapRef", "name", paths.config_maps)
        for variable in container.get("env") or ():
            value = variable.get("valueFrom") or {}
            yield from _required(value, "secretKeyRef", "name", paths.secrets)
            yield from _required(value, "configMapKeyRef", "name", paths.config_maps)


def _required(source: Mapping[str, Any], key: str, name: str, kind: paths.Kind) -> Iterator[tuple[paths.Kind, str]]:
    found = source.get(key)
    if found and found.get(name) and not found.get("optional"):
        yield kind, found[name]
