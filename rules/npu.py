"""The NPUs of the cluster: family, device plugin, chip."""

from __future__ import annotations

from collections.abc import Iterator

import catalog
from catalog.types import DevicePlugin, NpuFamily
from models.stack import Stack
from rules.finding import Problem, one_of, rule


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
