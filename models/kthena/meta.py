"""What all Kthena kinds share."""

from typing import Any

from models.base import Declaration


class Metadata(Declaration):
    """Object metadata. Absent maps are absent: an empty one is a difference at every ``pulumi up``."""

    name: str
    namespace: str
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class TemplateMetadata(Declaration):
    """Metadata of a pod template; Kthena applies it over its own labels."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class PodTemplate(Declaration):
    """A pod template. ``spec`` is a Kubernetes PodSpec in its own camelCase, checked against the CRD schema in the tests."""

    metadata: TemplateMetadata | None = None
    spec: dict[str, Any]
