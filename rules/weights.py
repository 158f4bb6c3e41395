"""Weights, adapters and draft models: that every pod finds them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from models.quantities import DNS_LABEL
from models.role import Role
from models.stack import Stack
from render.arguments import draft_model_directory
from render.pods import ENGINE_CONTAINER, source_claim
from rules.finding import Path, Problem, in_deployment, roles, rule


@rule("PD710", source="Kthena v1.0.0 python/kthena/downloader/s3.py")
def s3_download_has_credentials(stack: Stack) -> Iterator[Problem]:
    """Without them Kthena's downloader fetches nothing and reports success; the engine then finds an empty directory."""
    for deployment in stack.deployments.values():
        download = deployment.model.weights.download
        if download and download.source.startswith("s3://") and download.credentials is None:
            path = in_deployment(deployment, "model", "weights", "download")
            yield Problem(path, f"{download.source} without credentials", "credentials: a Secret with ACCESS_KEY and SECRET_KEY")


@rule("PD711", source="Kthena v1.0.0 python/kthena/downloader/pvc.py")
def download_source_and_cache_lie_apart(stack: Stack) -> Iterator[Problem]:
    """The claim of ``pvc://CLAIM/directory`` is mounted as ``/CLAIM``, the cache at its own path: a pod mounts each path once."""
    for deployment in stack.deployments.values():
        weights = deployment.model.weights
        claim = source_claim(weights)
        if claim is None or not weights.download:
            continue
        path = in_deployment(deployment, "model", "weights", "download")
        if not re.fullmatch(DNS_LABEL, claim):
            yield Problem((*path, "source"), f"{claim!r} is no name of a claim", "pvc://CLAIM/directory")
        elif PurePosixPath(weights.path).parts[:2] == ("/", claim):
            cache = ("cache", "claim", "path") if weights.download.cache.claim else ("cache", "hostPath")
            yield Problem((*path, *cache), f"{weights.path} is where claim {claim} is mounted", "another path")


@rule("PD712", source="render/pods.py: what the engine's container mounts")
def adapters_and_draft_models_are_mounted(stack: Stack) -> Iterator[Problem]:
    """A directory outside of the weights' is not in the container: every pod stops at its start."""
    for deployment, name, role in roles(stack):
        mounted = [PurePosixPath(deployment.model.weights.path), *_added_mounts(role)]
        lora = deployment.model.lora
        given: dict[Path, str | None] = {(name, "speculative", "model"): draft_model_directory(deployment, name)}
        given |= {("model", "lora", "adapters", adapter): place for adapter, place in (lora.adapters if lora else {}).items()}
        for keys, directory in given.items():
            if directory and directory.startswith("/") and not _is_below(directory, mounted):
                yield Problem(
                    in_deployment(deployment, *keys),
                    f"{directory} is in no volume of the pods",
                    f"a directory inside {deployment.model.weights.path}, or a volume for it in podTemplate of the role",
                )


def _is_below(directory: str, mounted: list[PurePosixPath]) -> bool:
    return any(PurePosixPath(directory).is_relative_to(mount) for mount in mounted)


def _added_mounts(role: Role) -> Iterator[PurePosixPath]:
    containers: Any = role.pod_template.spec.get("containers")
    for container in containers if isinstance(containers, list) else ():
        if isinstance(container, Mapping) and container.get("name") == ENGINE_CONTAINER:
            for mount in container.get("volumeMounts") or ():
                if isinstance(mount, Mapping) and isinstance(mount.get("mountPath"), str):
                    yield PurePosixPath(mount["mountPath"])
