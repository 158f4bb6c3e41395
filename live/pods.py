"""What a pod, and in part any other object, says of itself."""

from __future__ import annotations

from live.api import Object


def status_of(found: Object) -> Object:
    """Its status, which a new object lacks."""
    return found.get("status") or {}


def label(found: Object, name: str) -> str:
    """A label's value, empty if it has none."""
    return str((found["metadata"].get("labels") or {}).get(name, ""))


def uid(found: Object) -> str:
    """Its own identity: its name may be another's tomorrow."""
    return str(found["metadata"]["uid"])


def is_terminating(found: Object) -> bool:
    """Its deletion has been asked for."""
    return "deletionTimestamp" in found["metadata"]


def is_ready(pod: Object) -> bool:
    """As Kthena counts: Running and Ready."""
    status = status_of(pod)
    return status.get("phase") == "Running" and any(
        one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ()
    )
