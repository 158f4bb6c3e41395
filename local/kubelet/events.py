"""Events: what a kubelet tells the users of a pod. Reasons and wording are those of kubelet v1.34."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from local.api import Object

MOST_CHARACTERS = 1024
"""of a message; the API server refuses longer ones"""


class Notice(NamedTuple):
    """Something that deserves an event."""

    reason: str
    message: str
    kind: Literal["Warning", "Normal"] = "Warning"
    container: str = ""
    """name of the container that it is about; empty: the pod as a whole"""


Tell = Callable[[Notice], None]


def event(pod: Object, notice: Notice, time: str) -> Object:
    """Event that tells ``notice`` of ``pod``; ``time`` is now, as Kubernetes writes it."""
    metadata, spec = pod["metadata"], pod["spec"]
    own = [one["name"] for one in spec["containers"]]
    field = f"spec.{'containers' if notice.container in own else 'initContainers'}{{{notice.container}}}"
    return {
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            **({"fieldPath": field} if notice.container else {}),
        },
        "type": notice.kind,
        "reason": notice.reason,
        "message": notice.message[:MOST_CHARACTERS],
        "source": {"component": "kubelet", "host": spec["nodeName"]},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
