"""Environment of the engines."""

from __future__ import annotations

from collections.abc import Iterator

from models.deployment import Deployment
from models.quantities import LAST_PORT
from models.role import ROLES
from models.stack import Stack
from rules.finding import Problem, in_deployment, roles, rule
from rules.given import environment
from rules.npu import family_of

UNBOUNDED = 2**31 - 1
NUMBERS = {
    # variable -> smallest and largest value. HCCL's own: Huawei's environment variable reference of CANN 8.0 to 9.1
    "ASCEND_BASE_PORT": (1, LAST_PORT),
    "ASCEND_CONNECT_TIMEOUT": (1, UNBOUNDED),
    "ASCEND_TRANSFER_TIMEOUT": (1, UNBOUNDED),
    "HCCL_BUFFSIZE": (1, UNBOUNDED),
    "HCCL_CONNECT_TIMEOUT": (120, 7200),
    "HCCL_EXEC_TIMEOUT": (0, UNBOUNDED),
    "HCCL_IF_BASE_PORT": (1024, 65520),
    "HCCL_RDMA_TIMEOUT": (1, UNBOUNDED),
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": (1, UNBOUNDED),
    "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": (1, UNBOUNDED),
    "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": (0, UNBOUNDED),
    "VLLM_RPC_TIMEOUT": (1, UNBOUNDED),
}
"""Environment of whole numbers"""
CONNECT_TIMEOUT = 1200
"""seconds"""
SAME_ON_BOTH = ("ASCEND_ENABLE_USE_FABRIC_MEM", "HCCL_INTRA_ROCE_ENABLE")


@rule("PD303", source="vllm-ascend platform.py")
def launch_blocking_and_graphs_exclude_each_other(stack: Stack) -> Iterator[Problem]:
    """The engine refuses to capture graphs while every kernel launch blocks."""
    for deployment, name, role in roles(stack):
        given = environment(deployment, name).get("ASCEND_LAUNCH_BLOCKING")
        if given and given.value == "1" and role.graph != "eager":
            remedy = "leave it out, or graph: eager while you look for the fault"
            yield Problem(given.path, f"1 does not go with graph {role.graph}", remedy)


@rule("PD304", source="Huawei HCCL environment variable reference")
def roce_and_pcie_exclude_each_other(stack: Stack) -> Iterator[Problem]:
    """Inside a server HCCL goes one way or the other."""
    for deployment, name, _ in roles(stack):
        roce, pcie = (environment(deployment, name).get(f"HCCL_INTRA_{link}_ENABLE") for link in ("ROCE", "PCIE"))
        if roce and pcie and roce.value == pcie.value == "1":
            yield Problem(pcie.path, "1 together with HCCL_INTRA_ROCE_ENABLE=1", "one of the two, the other 0")


@rule("PD305", source="Kubernetes device plugins: a container sees its own devices, numbered from 0", severity="warning")
def visible_devices_are_left_to_the_device_plugin(stack: Stack) -> Iterator[Problem]:
    """Numbers of the server's devices mean other devices in the pod, or none."""
    for deployment, name, _ in roles(stack):
        given = environment(deployment, name).get("ASCEND_RT_VISIBLE_DEVICES")
        if given:
            yield Problem(given.path, "the device plugin decides which devices a pod sees", "leave it out")


@rule("PD306", source="Huawei HCCL environment variable reference; vLLM envs.py")
def numbers_in_the_environment_are_numbers_in_their_range(stack: Stack) -> Iterator[Problem]:
    """HCCL refuses to make a communicator, vLLM to start."""
    for deployment, name, _ in roles(stack):
        given = environment(deployment, name)
        for known in sorted(NUMBERS.keys() & given.keys()):
            (value, path), number, (least, most) = given[known], given[known].number, NUMBERS[known]
            if number is None or not least <= number <= most:
                remedy = f"a whole number from {least} to {most}" if most < UNBOUNDED else f"a whole number of at least {least}"
                yield Problem(path, f"{value!r} is {'no number' if number is None else 'out of its range'}", remedy)


@rule("PD307", source="Huawei HCCL_CONNECT_TIMEOUT; Kthena v1.0.0 examples/models/deepseek-v4-flash (decode)", severity="warning")
def collective_communication_waits_for_late_pods(stack: Stack) -> Iterator[Problem]:
    """Ranks whose peers start later than this are given up. Images are pulled and weights are read in between."""
    for deployment, name, _ in roles(stack):
        given = environment(deployment, name).get("HCCL_CONNECT_TIMEOUT")
        if given and given.number and NUMBERS["HCCL_CONNECT_TIMEOUT"][0] <= given.number < CONNECT_TIMEOUT:
            yield Problem(given.path, f"peers that come {given.value} seconds later are given up", f"{CONNECT_TIMEOUT}")


@rule("PD308", source="vllm-ascend#4866, KV pool guide; Mooncake#3749", severity="warning")
def a2_transfers_inside_a_server_go_by_roce(stack: Stack) -> Iterator[Problem]:
    """On A2 the transfer between prefill and decode on one server, and to a pool, fails without HCCL_INTRA_ROCE_ENABLE=1."""
    family = family_of(stack)
    if family is None or family.family != "A2":
        return
    for deployment, name, _ in roles(stack):
        together = not deployment.host_network and _may_share_a_server(deployment, family.dies_per_node)
        if not (deployment.kv_transfer.pool or together):
            continue
        given = environment(deployment, name).get("HCCL_INTRA_ROCE_ENABLE")
        if given is None or given.value != "1":
            why = "uses a pool" if deployment.kv_transfer.pool else "may have prefill and decode on one server"
            path = given.path if given else in_deployment(deployment, name, "env")
            remedy = 'engine: {env: {HCCL_INTRA_ROCE_ENABLE: "1"}}, and HCCL_INTRA_PCIE_ENABLE left out or 0'
            yield Problem(path, f"{deployment.name} {why}, and HCCL_INTRA_ROCE_ENABLE is not 1", remedy)


def _may_share_a_server(deployment: Deployment, dies: int) -> bool:
    return sum(deployment.role(name).npus_per_pod for name in ROLES) <= dies


@rule("PD314", source="Huawei HCCL_HOST_SOCKET_PORT_RANGE and HCCL_NPU_SOCKET_PORT_RANGE: constraints", severity="warning")
def a2_with_fused_operators_keeps_hccls_own_ports(stack: Stack) -> Iterator[Problem]:
    """On A2 HCCL does not support these ranges where operators compute and communicate in one, as those of expert parallelism
    do (MC2)."""
    if stack.cluster.npu.family != "A2":
        return
    for deployment, name, role in roles(stack):
        for side in ("HOST", "NPU"):
            given = environment(deployment, name).get(f"HCCL_{side}_SOCKET_PORT_RANGE")
            if given and role.parallelism.expert_parallel:
                yield Problem(given.path, "does not go with expertParallel on A2", "HCCL_IF_BASE_PORT, or leave it out")


@rule("PD309", source="vLLM-Ascend P/D and KV pool guides: one setting for all nodes", severity="warning")
def both_roles_connect_in_the_same_way(stack: Stack) -> Iterator[Problem]:
    """Prefill and decode offer each other another kind of link, and the transfer fails."""
    for deployment in stack.deployments.values():
        for same in SAME_ON_BOTH:
            given = {role: environment(deployment, role).get(same) for role in ROLES}
            shown = [one.value if one else "not set" for one in given.values()]
            if shown[0] != shown[1]:
                own = next(one for role, one in given.items() if one and one.place == role)
                yield Problem(own.path, f"prefill: {shown[0]}, decode: {shown[1]}", "one value for both, in engine.env")


@rule("PD310", source="vllm-ascend: VLLM_PREFIX_CACHE_RETENTION_INTERVAL")
def retention_interval_is_a_multiple_of_the_block_size(stack: Stack) -> Iterator[Problem]:
    """The engine refuses to start: prefixes are kept by whole blocks."""
    for deployment, name, _ in roles(stack):
        given, block = environment(deployment, name).get("VLLM_PREFIX_CACHE_RETENTION_INTERVAL"), deployment.model.block_size
        if given and given.number and block and given.number % block:
            near = max(1, round(given.number / block)) * block
            yield Problem(given.path, f"{given.value} is no multiple of blockSize {block}", f"{near}; 128 x blockSize is usual")
