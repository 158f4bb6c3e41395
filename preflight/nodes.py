"""What kind of servers there are: their NPUs' resource, generation and host architecture."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

import catalog
from live.servers import Node
from models.role import ROLES
from preflight.demand import Demand, demands
from preflight.eligibility import obstacle
from preflight.probe import Situation, probe
from render.pods import engine_image, resource_name
from rules.finding import Path, Problem, in_deployment
from rules.given import environment
from rules.npu import SERVER_TYPE

_NPU: Path = ("cluster", "npu")
_DOMAIN = "huawei.com/"
_CHIP = "node.kubernetes.io/npu.chip.name"
"""node label of MindCluster, with a key of chips in catalog/npu on it"""
_ARCHITECTURE = "kubernetes.io/arch"
_ARCHITECTURES = {"arm64": r"(?<![a-z0-9])(aarch64|arm64)(?![a-z0-9])", "amd64": r"(?<![a-z0-9])(x86_64|amd64)(?![a-z0-9])"}
"""host architecture -> how paths and image tags name it"""
_IMAGE = "image tag"
"""what has an architecture that is not one of the environment's values, whose names have no blanks"""


@probe("PF301", source="catalog/npu: resource names of the device plugins")
def nodes_offer_the_npus_resource(situation: Situation) -> Iterator[Problem]:
    """No node can take a pod that asks for a resource which no device plugin offers."""
    nodes, npu = situation.survey.nodes, situation.plan.stack.cluster.npu
    if not situation.plan.versions or nodes is None or any(_offers(node, situation) for node in nodes):
        return
    offered = Counter(name for node in nodes for name, amount in node.allocatable.items() if name.startswith(_DOMAIN) and amount)
    resource = resource_name(situation.plan.stack.cluster)
    others = ", ".join(f"{name} on {_nodes(count)}" for name, count in offered.most_common()) or f"nothing of {_DOMAIN[:-1]}"
    settings = [setting for name in offered for setting in _settings_of(name, npu.family)]
    yield Problem(
        (*_NPU, "devicePlugin"),
        f"{npu.device_plugin}, whose resource {resource} no node of the cluster offers; there is {others}",
        f"npu: {' or '.join(settings)}" if settings else "see that the device plugin runs on the NPU nodes",
    )


@probe("PF302", source="node labels of MindCluster; catalog/npu: resources that one family alone has")
def nodes_are_of_the_declared_family(situation: Situation) -> Iterator[Problem]:
    """The image, the mounts and the graph sizes are those of the declared family: on another one the engine does not start."""
    for families in _generations(situation):
        npu = situation.plan.stack.cluster.npu
        if families and npu.family not in families and "" not in families:
            found = " and ".join(f"{_nodes(len(nodes))} of {family}" for family, nodes in sorted(families.items()))
            yield Problem(
                (*_NPU, "family"),
                f"{npu.family}, and what offers {resource_name(situation.plan.stack.cluster)} to these pods is {found}",
                " or ".join(sorted(families)),
            )


@probe("PF303", source="node labels of MindCluster; catalog/npu", severity="warning")
def pods_are_kept_on_one_generation(situation: Situation) -> Iterator[Problem]:
    """Resource names are the same for A2 and A3. Prefill and decode on two generations do not find each other's KV cache, and
    half of the images do not start."""
    for families in _generations(situation):
        wanted = situation.plan.stack.cluster.npu.family
        if wanted in families and families.keys() - {wanted, ""}:
            ours = families.pop(wanted)
            others = ", ".join(
                f"{_nodes(len(nodes))} of {name or 'a family unknown'}" for name, nodes in sorted(families.items())
            )
            label = _telling_label(ours, [node for nodes in families.values() for node in nodes])
            yield Problem(
                (*_NPU, "nodeSelector"),
                f"pods for {wanted} may be put on {others} too",
                f"nodeSelector: {{{label}}}" if label else f"a label that only nodes of {wanted} have",
            )


@probe("PF304", source="node label kubernetes.io/arch")
def images_are_of_the_hosts_architecture(situation: Situation) -> Iterator[Problem]:
    """A program of another architecture can't be started."""
    yield from _architectures(situation, certain=True)


@probe("PF305", source="node label kubernetes.io/arch", severity="warning")
def pods_are_kept_on_one_architecture(situation: Situation) -> Iterator[Problem]:
    """Nothing keeps a pod with a path or an image of one architecture from a node of another one. A library that is to be
    preloaded, and is not there, is left out with a line in the log."""
    yield from _architectures(situation, certain=False)


def _candidates(demand: Demand, situation: Situation) -> list[Node]:
    """Nodes with the NPUs' resource that nothing keeps the pods from."""
    offering = (node for node in situation.survey.nodes or () if _offers(node, situation))
    return [node for node in offering if not obstacle(node, demand.spec)]


def _offers(node: Node, situation: Situation) -> bool:
    return node.allocatable.get(resource_name(situation.plan.stack.cluster), 0) > 0


def _generations(situation: Situation) -> Iterator[dict[str, list[Node]]]:
    """For pods that may be put on the same nodes: NPU family -> these nodes; an empty name is one that nothing tells."""
    distinct = {demand.constraints: demand for demand in demands(situation)}
    for demand in distinct.values():
        families: defaultdict[str, list[Node]] = defaultdict(list)
        for node in _candidates(demand, situation):
            families[_family(node)].append(node)
        yield families


def _family(node: Node) -> str:
    """By the server's type, its chip, or a resource that one family alone has."""
    server_type, chip = node.labels.get(SERVER_TYPE), node.labels.get(_CHIP)
    families = catalog.npu_families().values()
    of_type = [one.family for one in families if server_type in one.server_types or chip in one.chips]
    offered = [name for name, amount in node.allocatable.items() if amount and name.startswith(_DOMAIN)]
    of_resources = [known.pop() for name in offered if len(known := _families_of(name)) == 1]
    return [*of_type, *of_resources, ""][0]


def _families_of(resource: str) -> set[str]:
    return {family for family, _, _ in _declarations(resource)}


def _settings_of(resource: str, wanted: str) -> Iterator[str]:
    """Settings of ``cluster.npu`` that ask for a resource, of the wanted family if there is one."""
    found = list(_declarations(resource))
    for family, plugin, chip in [one for one in found if one[0] == wanted] or found:
        yield f"{{family: {family}, devicePlugin: {plugin}{f', chip: {chip}' if chip else ''}}}"


def _declarations(resource: str) -> Iterator[tuple[str, str, str]]:
    """Family, device plugin and chip of which the resource has the name."""
    for family in catalog.npu_families().values():
        for name, plugin in family.device_plugins.items():
            if "{chip}" not in plugin.resource and plugin.resource == resource:
                yield family.family, name, ""
            for chip in family.chips if "{chip}" in plugin.resource else ():
                if plugin.resource.format(chip=chip) == resource:
                    yield family.family, name, chip


def _telling_label(ours: list[Node], others: list[Node]) -> str:
    """A label that all of ours have and none of the others."""
    for label in (SERVER_TYPE, _CHIP):
        values = {node.labels.get(label) for node in ours}
        if len(values) == 1 and None not in values and not values & {node.labels.get(label) for node in others}:
            return f"{label}: {values.pop()}"
    return ""


def _architectures(situation: Situation, *, certain: bool) -> Iterator[Problem]:
    for demand in demands(situation):
        named = list(_named_architectures(situation, demand))
        found = Counter(node.labels.get(_ARCHITECTURE, "") for node in _candidates(demand, situation)) if named else Counter()
        for architecture, what, path in named if "" not in found else ():
            others = {name: count for name, count in found.items() if name != architecture}
            if others and certain is (architecture not in found and what.startswith(_IMAGE)):
                there = " and ".join(f"{_nodes(count)} of {name}" for name, count in sorted(others.items()))
                remedy = (
                    f"nodeSelector: {{{_ARCHITECTURE}: {architecture}}}"
                    if architecture in found
                    else f"what is of {' or '.join(others)}"
                )
                yield Problem(path, f"{what} is of {architecture}, and these pods may be put on {there}", remedy)


def _named_architectures(situation: Situation, demand: Demand) -> Iterator[tuple[str, str, Path]]:
    deployment = demand.version.deployment
    family = catalog.npu_families()[situation.plan.stack.cluster.npu.family]
    role = next(role for role in ROLES if role == demand.role)
    tag = engine_image(deployment, family).rpartition("/")[2].partition(":")[2]
    texts = [(tag, f"{_IMAGE} {tag}", in_deployment(deployment, "engine", "image"))]
    texts += [(given.value, f"{name} {given.value}", given.path) for name, given in environment(deployment, role).items()]
    for text, what, path in texts:
        named = [architecture for architecture, pattern in _ARCHITECTURES.items() if re.search(pattern, text)]
        if len(named) == 1:
            yield named[0], what, path


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"
