"""What a ModelServing is to become."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from live.api import Object


@dataclass(frozen=True)
class Goal:
    """One ModelServing as it is declared, and how long that may take."""

    namespace: str
    deployment: str
    model_serving: str
    roles: Mapping[str, int | None]
    """replicas in each group; None: the autoscaler decides"""
    groups: int | None
    """None: the autoscaler decides"""
    partition: int | str
    """how many of the first groups keep their revision: a number, or a percentage of the groups"""
    declared: str
    """annotation ``kthena-pd/declared``"""
    load_timeout: float
    """seconds from the start of an engine until it serves"""
    scheduling_timeout: float
    """seconds that a pod may wait for a node"""
    control_plane: str = "kthena-system"
    """namespace of Kthena's controller"""

    @classmethod
    def of(  # noqa: PLR0913  # what the object does not say
        cls,
        rendered: Object,
        declared: str,
        *,
        load_timeout: float,
        scheduling_timeout: float,
        control_plane: str,
        groups_are_scaled: bool = False,
        scaled_roles: Collection[str] = (),
    ) -> Self:
        """The goal of a rendered ModelServing.

        Args:
            rendered: The ModelServing.
            declared: Its annotation ``kthena-pd/declared``.
            load_timeout: Seconds.
            scheduling_timeout: Seconds.
            control_plane: Namespace of Kthena's controller.
            groups_are_scaled: The autoscaler decides how many groups there are.
            scaled_roles: Names of the roles of which it decides how many there are.
        """
        metadata, spec = rendered["metadata"], rendered["spec"]
        rolling = (spec.get("rolloutStrategy") or {}).get("rollingUpdateConfiguration") or {}
        return cls(
            namespace=metadata["namespace"],
            deployment=metadata["labels"]["app.kubernetes.io/name"],
            model_serving=metadata["name"],
            roles={role["name"]: None if role["name"] in scaled_roles else replicas(role) for role in spec["template"]["roles"]},
            groups=None if groups_are_scaled else replicas(spec),
            partition=rolling.get("partition") or 0,
            declared=declared,
            load_timeout=load_timeout,
            scheduling_timeout=scheduling_timeout,
            control_plane=control_plane,
        )


def replicas(spec: Object) -> int:
    """``replicas`` of a ModelServing's spec or of one of its roles; Kthena's default is 1."""
    found = spec.get("replicas")
    return 1 if found is None else int(found)


def pods_of_one(role: Object) -> int:
    """Pods of one replica of a role."""
    return 1 + int(role.get("workerReplicas") or 0)
