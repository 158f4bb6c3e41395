"""A small kubelet for all simulated nodes: it runs the containers of pods as processes of this machine.

environment   what a container sees in its environment (pure)
volumes       what its volumes hold, and where they are mounted
probes        when a container counts as started, ready and alive
containers    one container: its process, restarts, and state
pods          one pod: init containers, containers, status, end
addresses     which pod has which address
devices       which pod has which NPU dies
services      the cloud's part: addresses of Services of type LoadBalancer (pure)
tasks         tasks whose failure is noticed
__main__      the process: follows the API server, one task for each pod
"""

from __future__ import annotations


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
