"""Find what the containers of a pod wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from local.errors import LocalError
from local.state import PodFolder


@dataclass(frozen=True)
class Log:
    """Output of one container."""

    namespace: str
    pod: str
    uid: str
    container: str
    file: Path


def find(pods: Path, pod: str, namespace: str | None = None, container: str | None = None) -> list[Log]:
    """Logs of the newest pod of that name, dead or alive: one for each container, in the order of their names.

    Args:
        pods: folder of the pods (``State.pods``)
        pod: the pod's name, or its beginning where only one pod begins like that

    Raises:
        LocalError: no such pod or container, or several that could be meant.
    """
    every = sorted(_all(pods), key=lambda log: log.file.parent.parent.stat().st_mtime)
    candidates = [log for log in every if namespace in (None, log.namespace)]
    named = [log for log in candidates if log.pod == pod] or [log for log in candidates if log.pod.startswith(pod)]
    if not named:
        there = sorted({f"{log.namespace}/{log.pod}" for log in candidates})
        raise LocalError(f"no pod {pod} has run here", f"there are {', '.join(there) or 'none'}")
    meant = sorted({f"{log.namespace}/{log.pod}" for log in named})
    if len(meant) > 1:
        raise LocalError(f"{pod} could be {', '.join(meant)}", "give the whole name, and the namespace")
    newest = [log for log in named if log.uid == named[-1].uid]
    chosen = [log for log in newest if container in (None, log.container)]
    if not chosen:
        raise LocalError(f"pod {meant[0]} has no container {container}", f"it has {', '.join(one.container for one in newest)}")
    return sorted(chosen, key=lambda log: log.container)


def _all(pods: Path) -> list[Log]:
    return [_log(file) for file in pods.glob("*_*_*/*/log")]


def _log(file: Path) -> Log:
    return Log(*PodFolder.of(file.parent.parent), file.parent.name, file)
