"""Environment of the engines."""

from __future__ import annotations

from collections.abc import Iterator

from models.stack import Stack
from rules.finding import Problem, in_deployment, roles, rule


@rule("PD303", source="vllm-ascend platform.py")
def launch_blocking_and_graphs_exclude_each_other(stack: Stack) -> Iterator[Problem]:
    """The engine refuses to capture graphs while every kernel launch blocks."""
    for deployment, name, role in roles(stack):
        if role.env.get("ASCEND_LAUNCH_BLOCKING") == "1" and role.graph != "eager":
            yield Problem(
                in_deployment(deployment, name, "env", "ASCEND_LAUNCH_BLOCKING"),
                f"1 does not go with graph {role.graph}",
                "leave it out, or graph: eager while you look for the fault",
            )


@rule("PD304", source="Huawei HCCL environment variable reference")
def roce_and_pcie_exclude_each_other(stack: Stack) -> Iterator[Problem]:
    """Inside a server HCCL goes one way or the other."""
    for deployment, name, role in roles(stack):
        if role.env.get("HCCL_INTRA_ROCE_ENABLE") == role.env.get("HCCL_INTRA_PCIE_ENABLE") == "1":
            yield Problem(
                in_deployment(deployment, name, "env", "HCCL_INTRA_PCIE_ENABLE"),
                "1 together with HCCL_INTRA_ROCE_ENABLE=1",
                "one of the two, the other 0",
            )


@rule("PD305", source="Kubernetes device plugins: a container sees its own devices, numbered from 0", severity="warning")
def visible_devices_are_left_to_the_device_plugin(stack: Stack) -> Iterator[Problem]:
    """Numbers of the server's devices mean other devices in the pod, or none."""
    for deployment, name, role in roles(stack):
        if "ASCEND_RT_VISIBLE_DEVICES" in role.env:
            yield Problem(
                in_deployment(deployment, name, "env", "ASCEND_RT_VISIBLE_DEVICES"),
                "the device plugin decides which devices a pod sees",
                "leave it out",
            )
