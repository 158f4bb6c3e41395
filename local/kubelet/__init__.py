"""A small kubelet for all simulated nodes: it runs the containers of pods as processes of this machine.

environment   what a container sees in its environment (pure)
volumes       what its volumes hold, and where they are mounted
probes        when a container counts as started, ready and alive
containers    one container: its process, restarts, and state
output        what it wrote, run by run
pods          one pod: init containers, containers, status, end
addresses     which pod has which address
devices       which pod has which NPU dies
services      the cloud's part: addresses of Services of type LoadBalancer (pure)
events        what users of a pod are told (pure)
server        what the API server asks a node for: logs, and ports of pods
tasks         tasks whose failure is noticed
__main__      the process: follows the API server, one task for each pod
"""

from __future__ import annotations

ERR_IMAGE_PULL = "ErrImagePull"
"""reason of a container whose image can't be pulled"""


class StartError(Exception):
    """A container can't be started for now.

    Args:
        reason: as kubelet words it (``CreateContainerConfigError``, ``ErrImagePull`` ...)
        message: what is missing
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
