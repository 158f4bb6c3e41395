"""Weights, adapters and draft models: that every pod finds them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from models.quantities import OBJECT_NAME
from models.role import Role
from models.stack import Stack
from render.arguments import adapter_directories, draft_model_directory
from render.pods import ENGINE_CONTAINER, source_claim
from rules.finding import Path, Problem, in_deployment, roles, rule
from rules.pod_template import entry_pods


@rule("PD710", source="Kthena v1.0.0 python/kthena/downloader/s3.py")
def s3_download_has_credentials(stack: Stack) -> Iterator[Problem]:
    """Without them Kthena's downloader fetches nothing and reports success; the engine then finds an empty directory."""
    for deployment in stack.deployments.values():
        download = deployment.model.weights.download
        if download and download.source.startswith("s3://") and download.credentials is None:
            path = in_deployment(deployment, "model", "weights", "download")
            yield Problem(path, f"{download.source} without credentials", "credentials: a Secret with ACCESS_KEY and SECRET_KEY")


@rule("PD711", source="Kthena v1.0.0 python/kthena/downloader/pvc.py; Kubernetes pod validation")
def weights_have_a_place_of_their_own(stack: Stack) -> Iterator[Problem]:
    """A pod mounts each path once, and nothing inside a read-only volume: the API server refuses every pod, or none starts.

    The claim of ``pvc://CLAIM/directory`` is mounted as ``/CLAIM`` where Kthena's downloader looks for it."""
    for deployment, _, spec in entry_pods(stack):
        weights = deployment.model.weights
        claim, path = source_claim(weights), in_deployment(deployment, "model", "weights")
        if claim is not None and not re.fullmatch(OBJECT_NAME, claim):
            yield Problem((*path, "download", "source"), f"{claim!r} is no name of a claim", "pvc://CLAIM/directory")
            continue
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            for mount in container.get("volumeMounts", ()):
                taken = mount.get("mountPath", "")
                if mount["name"] != "weights" and PurePosixPath(weights.path).is_relative_to(taken):
                    yield Problem(path, f"{weights.path} is in what {container['name']} has at {taken} already", "another path")


@rule("PD712", source="render/pods.py: what the engine's container mounts")
def adapters_and_draft_models_are_mounted(stack: Stack) -> Iterator[Problem]:
    """A directory outside of the weights' is not in the container, unless the image brings it: every pod stops at its start."""
    for deployment, name, role in roles(stack):
        mounted = [PurePosixPath(deployment.model.weights.path), *_added_mounts(role)]
        given: dict[Path, str | None] = {(name, "speculative", "model"): draft_model_directory(deployment, name)}
        given |= {("model", "lora", "adapters", adapter): place for adapter, place in adapter_directories(deployment).items()}
        for keys, directory in given.items():
            if directory and deployment.engine.image is None and not _is_below(directory, mounted):
                yield Problem(
                    in_deployment(deployment, *keys),
                    f"{directory} is in no volume of the pods",
                    f"a directory inside {deployment.model.weights.path}, or one in a volume that has a volumeMount in container "
                    f"{ENGINE_CONTAINER} of the role's podTemplate",
                )


def _is_below(directory: str, mounted: list[PurePosixPath]) -> bool:
    return any(PurePosixPath(posixpath.normpath(directory)).is_relative_to(mount) for mount in mounted)


def _added_mounts(role: Role) -> Iterator[PurePosixPath]:
    containers: Any = role.pod_template.spec.get("containers")
    for container in containers if isinstance(containers, list) else ():
        if isinstance(container, Mapping) and container.get("name") == ENGINE_CONTAINER:
            for mount in container.get("volumeMounts") or ():
                if isinstance(mount, Mapping) and isinstance(mount.get("mountPath"), str):
                    yield PurePosixPath(mount["mountPath"])
