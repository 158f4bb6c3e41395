"""Names of objects and labels, derived from the declaration. Kthena's own are those of v1.0.0."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from models.deployment import Deployment
from models.kthena.meta import Metadata

DEPLOYMENT_LABEL = "app.kubernetes.io/name"
COMPONENT_LABEL = "app.kubernetes.io/component"
"""of Kthena's own pods, by their program's name, as its chart has it"""
MANAGED_LABEL = "app.kubernetes.io/managed-by"
MANAGED = {MANAGED_LABEL: "kthena-pd"}
"""labels of every object of ours"""
NAME_LABEL = "modelserving.volcano.sh/name"
GROUP_LABEL = "modelserving.volcano.sh/group-name"
ROLE_LABEL = "modelserving.volcano.sh/role"
ROLE_ID_LABEL = "modelserving.volcano.sh/role-id"
ENTRY_LABEL = "modelserving.volcano.sh/entry"
"""on entry pods only, always ``"true"``"""
REVISION_LABEL = "modelserving.volcano.sh/revision"
"""of the templates of all roles"""
ROLE_HASH_LABEL = "modelserving.volcano.sh/role-template-hash"
QUEUE_ANNOTATION = "scheduling.volcano.sh/queue-name"
ROUTER_NAME = "kthena-router"
CONTROLLER_NAME = "kthena-controller-manager"

_HASH_LENGTH = 7


def content_hash(*parts: str) -> str:
    """Seven hex digits that change with any of ``parts``."""
    digest = hashlib.sha256("\0".join(parts).encode())
    return digest.hexdigest()[:_HASH_LENGTH]


def config_map_name(base: str, data: Mapping[str, str]) -> str:
    """Name of an immutable ConfigMap: another content is another object, so pods that mount it are rolled."""
    return f"{base}-{content_hash(*(text for item in sorted(data.items()) for text in item))}"


def model_route_name(served: str) -> str:
    """Name of the ModelRoute for one model name.

    ``spec.modelName`` is immutable, so another model name must be another object: the old route stays until the new one is there.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", served.lower()).strip("-")[:50].strip("-")
    return f"{slug or 'model'}-{content_hash(served)}"


def is_hashed(deployment: Deployment) -> bool:
    """Whether the ModelServing's name ends with a hash, because something in it can't be changed under one name."""
    return deployment.rollout is not None or deployment.scheduling.gang_policy is not None


def longest_serving_name(deployment: Deployment) -> str:
    """A name of the length that the ModelServing's has."""
    return f"{deployment.name}-{'0' * _HASH_LENGTH}" if is_hashed(deployment) else deployment.name


def pod_name(serving: str, group: int, role: str, replica: int, pod: int = 0) -> str:
    """Name that Kthena gives a pod of one role replica: 0 is the entry pod, whose name its headless Service has too."""
    return f"{serving}-{group}-{role}-{replica}-{pod}"


def labels(name: str) -> dict[str, str]:
    """Labels of every object that belongs to ``name``."""
    return {DEPLOYMENT_LABEL: name, **MANAGED}


def selector(labels: Mapping[str, str]) -> str:
    """The objects that have all ``labels``, as the API server and kubectl take it."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def metadata(deployment: Deployment, name: str, annotations: dict[str, str] | None = None) -> Metadata:
    """Metadata of an object of one deployment."""
    return Metadata(name=name, namespace=deployment.namespace, labels=labels(deployment.name), annotations=annotations)
