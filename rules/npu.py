"""The NPUs of the cluster: family, device plugin, chip."""

from __future__ import annotations

from collections.abc import Iterator

import catalog
from catalog.types import DevicePlugin, NpuFamily
from models.stack import Stack
from rules.finding import Problem, in_deployment, one_of, roles, rule

SERVER_TYPE = "accelerator-type"
"""node label in which MindCluster has the kind of server"""


def family_of(stack: Stack) -> NpuFamily | None:
    """What the catalogue knows of the declared family."""
    return catalog.npu_families().get(stack.cluster.npu.family)


def device_plugin_of(stack: Stack) -> DevicePlugin | None:
    """What the catalogue knows of the declared device plugin. Without it no pod can be rendered."""
    family = family_of(stack)
    return family.device_plugins.get(stack.cluster.npu.device_plugin) if family else None


@rule("PD101", source="catalog/npu")
def npu_family_is_in_the_catalogue(stack: Stack) -> Iterator[Problem]:
    """The family decides resource name, mounts, image; the device plugin the resource's name. What depends on them is not
    checked as long as they are not known."""
    npu, family, families = stack.cluster.npu, family_of(stack), catalog.npu_families()
    if family is None:
        yield Problem(("cluster", "npu", "family"), f"no NPU family {npu.family!r}", f"one of {one_of(families, npu.family)}")
    elif device_plugin_of(stack) is None:
        known = one_of(family.device_plugins, npu.device_plugin)
        yield Problem(("cluster", "npu", "devicePlugin"), f"no device plugin {npu.device_plugin!r}", f"one of {known}")


@rule("PD103", source="vLLM-Ascend P/D feature status")
def npu_family_serves_prefill_and_decode(stack: Stack) -> Iterator[Problem]:
    """Nobody has shown P/D on it: no connector is tested there, and graphs and kernels that decode relies on are missing."""
    family = family_of(stack)
    if family and not family.serves_prefill_decode:
        able = [name for name, other in catalog.npu_families().items() if other.serves_prefill_decode]
        yield Problem(("cluster", "npu", "family"), f"no P/D on {family.family}", f"one of {one_of(able)}")


@rule("PD104", source="catalog/npu: chips, and HAMi's resource names")
def npu_chip_is_known_where_it_matters(stack: Stack) -> Iterator[Problem]:
    """Of a family with several chips the chip decides the memory of a die; with HAMi the resource has its name, and without it
    no server has what the pods ask for."""
    npu, family, plugin = stack.cluster.npu, family_of(stack), device_plugin_of(stack)
    path = ("cluster", "npu", "chip")
    if npu.chip is None and family and plugin and "{chip}" in plugin.resource:
        yield Problem(path, f"the resource name of {npu.device_plugin} has the chip in it", f"one of {one_of(family.chips)}")
    elif npu.chip is not None and family and npu.chip not in family.chips:
        known = f"one of {one_of(family.chips, npu.chip)}" if family.chips else "leave it out"
        yield Problem(path, f"{npu.family} has no chip {npu.chip!r}", known)


@rule(
    "PD880",
    source="MindCluster ascend-for-volcano, internal/npu/factory.go, get910CardHandlerName",
    severity="warning",
)
def mindclusters_scheduler_is_told_the_kind_of_server(stack: Stack) -> Iterator[Problem]:
    """MindCluster's plugin for Volcano chooses dies by their interconnect, and knows the kind of server by the pods' node
    selector: what it reads otherwise are annotations of the PodGroup, and Kthena's have none. Without it most releases take the
    servers for the first Atlas 800, of eight dies in rings of four, and refuse a pod that does not fit there."""
    npu, plugin = stack.cluster.npu, device_plugin_of(stack)
    if plugin and plugin.server_types and stack.cluster.scheduler == "volcano" and SERVER_TYPE not in npu.node_selector:
        yield Problem(
            ("cluster", "npu", "nodeSelector"),
            f"no {SERVER_TYPE}, by which {npu.device_plugin} tells kinds of servers apart",
            f"{SERVER_TYPE}: one of {one_of(plugin.server_types)}, as the nodes' label says",
        )


@rule("PD881", source="MindCluster docs/en/scheduling/api/k8s.md, node labels")
def servers_are_of_the_declared_family(stack: Stack) -> Iterator[Problem]:
    """A2 and A3 servers have the same resource name: image, mounts and layout would be for the one, the dies of the other."""
    npu, family, plugin = stack.cluster.npu, family_of(stack), device_plugin_of(stack)
    asked = npu.node_selector.get(SERVER_TYPE)
    owner = next((name for name, other in catalog.npu_families().items() if asked in other.server_types), None)
    if family and plugin and owner not in (None, family.family):
        yield Problem(
            ("cluster", "npu", "nodeSelector", SERVER_TYPE),
            f"{asked} are servers of family {owner}, not {family.family}",
            f"one of {one_of(plugin.server_types)}, or family {owner}" if plugin.server_types else f"family {owner}",
        )


@rule("PD882", source="HAMi pkg/device/ascend/device.go, MutateAdmission; MindCluster affinity scheduling, Atlas A3")
def pods_take_whole_cards(stack: Stack) -> Iterator[Problem]:
    """A card has two dies. These plugins give a pod one die or whole cards, and the API server or the scheduler refuses it
    otherwise, so that it is never made or stays Pending."""
    plugin = device_plugin_of(stack)
    cards = plugin.whole_cards if plugin else None
    if cards is None or cards.scheduler != stack.cluster.scheduler:
        return
    for deployment, name, role in roles(stack):
        odd = role.npus_per_pod % cards.dies
        if odd and role.npus_per_pod > 1:
            yield Problem(
                in_deployment(deployment, name, "parallelism"),
                f"{role.npus_per_pod} dies a pod, and {stack.cluster.npu.device_plugin} gives cards of {cards.dies}",
                f"{role.npus_per_pod - odd} or {role.npus_per_pod - odd + cards.dies} dies a pod",
            )
