"""The vLLM-Ascend release, its image, its KV connectors."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping

import catalog
from models.deployment import Deployment
from models.quantities import amount
from models.role import Role, RoleName
from models.stack import Stack
from render.pods import engine_image
from rules.architecture import HYBRID_CONNECTOR, known_architectures
from rules.finding import Path, Problem, in_deployment, one_of, roles, rule
from rules.given import environment
from rules.npu import family_of

POOL_CONNECTOR = "AscendStoreConnector"
MOONCAKE_IN_OFFICIAL_IMAGES = "0.11.0rc0"
NEARLY_THE_SAME = 0.85
"""Likeness of two names as difflib measures it"""
_RELEASE = re.compile(r"v\d+\.\d+\.\d+(?:rc\d+|\.post\d+)?")
_TAGGED_BY_RELEASE = ("vllm-ascend", "kthena-engine")


@rule("PD201", source="catalog/engine.yaml")
def connector_is_in_the_engine_release(stack: Stack) -> Iterator[Problem]:
    """An engine refuses a connector it does not register."""
    for deployment in stack.deployments.values():
        known = catalog.engine().connectors.get(deployment.kv_transfer.connector)
        if known and known.unusable is None and not _registers(deployment, deployment.kv_transfer.connector):
            yield Problem(
                in_deployment(deployment, "engine", "version"),
                f"{deployment.engine.version} does not have {deployment.kv_transfer.connector}",
                f"v{known.since} or newer",
            )


def _registers(deployment: Deployment, connector: str) -> bool:
    """Whether the declared release has a connector of the catalogue."""
    return not catalog.before(deployment.engine.version, catalog.engine().connectors[connector].since)


@rule("PD202", source="catalog/engine.yaml", severity="warning")
def nothing_is_set_that_the_release_no_longer_reads(stack: Stack) -> Iterator[Problem]:
    """Such a setting has no effect any more, and whoever reads the stack file believes that it has."""
    for deployment, name, role in roles(stack):
        given = {"env": _variables(deployment, name), "additionalConfig": _additional_config(deployment, name, role)}
        for removed in catalog.engine().removed:
            path = given[removed.kind].get(removed.name)
            if path and not catalog.before(deployment.engine.version, removed.since):
                yield Problem(path, f"vLLM-Ascend reads it no more since v{removed.since}", removed.instead)


def _variables(deployment: Deployment, name: RoleName) -> dict[str, Path]:
    """Environment of one role's engines, and where each variable is declared."""
    return {variable: given.path for variable, given in environment(deployment, name).items()}


def _additional_config(deployment: Deployment, name: RoleName, role: Role) -> dict[str, Path]:
    return {key: in_deployment(deployment, name, "additionalConfig", key) for key in role.additional_config}


@rule("PD315", source="catalog/settings.yaml", severity="warning")
def settings_are_not_misspelled(stack: Stack) -> Iterator[Problem]:
    """A variable that nobody reads has no effect, and nothing says so; a setting that vLLM-Ascend does not know has none in older
    releases and ends the newest at their start. Only what is nearly a known name is reported: others may be somebody's own."""
    known = catalog.settings()
    removed = {kind: [one.name for one in catalog.engine().removed if one.kind == kind] for kind in ("env", "additionalConfig")}
    for deployment, name, role in roles(stack):
        yield from _misspelled(_variables(deployment, name), [*known.environment, *removed["env"]])
        settings = _additional_config(deployment, name, role)
        yield from _misspelled(settings, [*known.additional_config, *removed["additionalConfig"]])
        for setting, path in settings.items():
            inside, names = role.additional_config[setting], known.additional_config.get(setting)
            if isinstance(inside, Mapping) and names:
                yield from _misspelled({key: (*path, key) for key in inside}, names)


def _misspelled(given: Mapping[str, Path], known: Collection[str]) -> Iterator[Problem]:
    folded = {name.lower(): name for name in known}
    for name in given.keys() - set(known):
        for near in difflib.get_close_matches(name.lower(), folded, n=1, cutoff=NEARLY_THE_SAME):
            yield Problem(given[name], f"nobody reads {name}", f"did you mean {folded[near]}?")


@rule("PD203", source="vLLM-Ascend installation guide, image tags")
def official_image_is_built_for_the_npu_family(stack: Stack) -> Iterator[Problem]:
    """An image of another family has other kernels: the engine ends at its start, on every node."""
    official, family = catalog.engine().image, family_of(stack)
    if family is None:
        return
    own = family.image_suffixes
    others = tuple({suffix for other in catalog.npu_families().values() for suffix in other.image_suffixes} - {*own, ""})
    for deployment in stack.deployments.values():
        repository, tag = _image(deployment)
        build = tag.removesuffix("-openeuler")
        if repository == official and tag and (not build.endswith(own) or build.endswith(others)):
            yield Problem(
                in_deployment(deployment, "engine", "image"),
                f"tag {tag} is not built for {stack.cluster.npu.family}",
                f"{official}:{deployment.engine.version}{family.image_suffix}, or leave it out",
            )


def _image(deployment: Deployment) -> tuple[str, str]:
    """Repository and tag of the declared image, both empty where it is derived."""
    directory, slash, name = (deployment.engine.image or "").partition("@")[0].rpartition("/")
    name, _, tag = name.partition(":")
    return f"{directory}{slash}{name}", tag


@rule("PD205", source="catalog/engine.yaml; Kthena v1.0.0 pkg/kthena-router/connectors")
def connector_hands_over_by_the_router(stack: Stack) -> Iterator[Problem]:
    """Kthena's router asks prefill first and takes its kv_transfer_params to decode. With a connector that works in another way
    decode computes everything again, or waits for somebody who never comes."""
    connectors = catalog.engine().connectors
    usable = [name for name, connector in connectors.items() if connector.unusable is None]
    for deployment in stack.deployments.values():
        name = deployment.kv_transfer.connector
        if name in usable:
            continue
        reason = f"{name}: {connectors[name].unusable}" if name in connectors else f"vLLM-Ascend has no connector {name!r}"
        fitting = [other for other in usable if _registers(deployment, other)] or usable
        yield Problem(in_deployment(deployment, "kvTransfer", "connector"), reason, f"one of {one_of(fitting, name)}")


@rule("PD206", source="catalog/models: connector; vLLM-Ascend DeepSeek-V4 tutorials")
def model_has_the_connector_that_it_needs(stack: Stack) -> Iterator[Problem]:
    """Layers of several kinds have KV caches of several shapes, which the other connectors transfer wrongly or not at all."""
    for deployment, architecture in known_architectures(stack):
        needed, name = architecture.connector, deployment.kv_transfer.connector
        if needed in catalog.engine().connectors and needed != name and _registers(deployment, needed):
            path = in_deployment(deployment, "kvTransfer", "connector")
            yield Problem(path, f"{name} for {architecture.name} on {deployment.engine.version}", needed)


@rule("PD207", source="vllm-ascend#9087 and #9246; vLLM-Ascend DeepSeek-V4 and Qwen3.5 tutorials")
def model_of_several_kv_caches_has_the_hybrid_manager(stack: Stack) -> Iterator[Problem]:
    """With a KV connector vLLM switches the manager of several kinds of KV cache off: the engine runs out of memory, or ends with
    "failed to convert the KV cache specs"."""
    for deployment, architecture in known_architectures(stack):
        several = architecture.hybrid or architecture.connector == HYBRID_CONNECTOR
        if several and not deployment.model.hybrid_kv_cache_manager:
            path = in_deployment(deployment, "model", "hybridKvCacheManager")
            yield Problem(path, f"not on for {architecture.name}", "true")


@rule("PD208", source="catalog/engine.yaml: AscendStoreConnector")
def pool_is_in_the_engine_release(stack: Stack) -> Iterator[Problem]:
    """An engine refuses a connector it does not register, also inside a MultiConnector."""
    for deployment in stack.deployments.values():
        if deployment.kv_transfer.pool and not _registers(deployment, POOL_CONNECTOR):
            since = catalog.engine().connectors[POOL_CONNECTOR].since
            path = in_deployment(deployment, "kvTransfer", "pool")
            problem = f"{deployment.engine.version} does not have {POOL_CONNECTOR}"
            yield Problem(path, problem, f"engine.version v{since} or newer")


@rule("PD209", source="vLLM-Ascend KV pool guide: global_segment_size")
def pool_segments_are_whole_gibibytes(stack: Stack) -> Iterator[Problem]:
    """Mooncake on Ascend registers memory by the gibibyte."""
    for deployment in stack.deployments.values():
        pool = deployment.kv_transfer.pool
        if pool and (amount(pool.segment_size) % 2**30 or not amount(pool.segment_size)):
            path = in_deployment(deployment, "kvTransfer", "pool", "segmentSize")
            above = max(-(-amount(pool.segment_size) // 2**30), 1)
            yield Problem(path, f"{pool.segment_size} is no whole number of gibibytes", f"{above:.0f}Gi")


@rule("PD213", source="vLLM-Ascend KV pool guide: master_server_address", severity="warning")
def pool_master_is_one_for_all_engines(stack: Stack) -> Iterator[Problem]:
    """At an address that means something else in each pod every engine looks for a master of its own, and nothing is shared."""
    for deployment in stack.deployments.values():
        pool = deployment.kv_transfer.pool
        host = pool.master.rpartition(":")[0] if pool else ""
        if host in ("localhost", "0.0.0.0") or host.startswith("127."):
            path = in_deployment(deployment, "kvTransfer", "pool", "master")
            yield Problem(path, f"{host} is each pod itself", "the name of a Service or an address that all pods reach")


@rule("PD210", source="catalog/engine.yaml: releases", severity="warning")
def engine_release_is_one_that_the_catalogue_covers(stack: Stack) -> Iterator[Problem]:
    """What older or newer releases read, and call their settings, has not been looked up: rules may be wrong for them."""
    known = catalog.engine().releases
    for deployment in stack.deployments.values():
        release = deployment.engine.version
        if catalog.before(release, known[0]) or catalog.before(known[-1], release.removeprefix("v")):
            path = in_deployment(deployment, "engine", "version")
            yield Problem(path, f"{release} is not known here", f"one from v{known[0]} to v{known[-1]}")


@rule("PD211", source="vLLM-Ascend and Kthena image tags", severity="warning")
def image_is_of_the_declared_release(stack: Stack) -> Iterator[Problem]:
    """Rules and rendering go by engine.version: flags, KV transfer keys and environment would be those of another release."""
    for deployment in stack.deployments.values():
        repository, tag = _image(deployment)
        found, release = _RELEASE.findall(tag), deployment.engine.version
        if repository.rpartition("/")[2] in _TAGGED_BY_RELEASE and found and release not in found:
            path = in_deployment(deployment, "engine", "image")
            remedy = f"engine.version {found[0]}, or an image of {release}"
            yield Problem(path, f"an image of {found[0]}, engine.version is {release}", remedy)


@rule("PD212", source="vLLM-Ascend and Kthena Dockerfiles")
def image_has_mooncake(stack: Stack) -> Iterator[Problem]:
    """Official images come without Mooncake before v0.11: the connector fails to load."""
    for deployment in stack.deployments.values():
        release = deployment.engine.version
        if _image(deployment)[0] in ("", catalog.engine().image) and catalog.before(release, MOONCAKE_IN_OFFICIAL_IMAGES):
            path = in_deployment(deployment, "engine", "image")
            remedy = "ghcr.io/volcano-sh/kthena-engine:vllm-ascend_v0.10.1rc1_mooncake_v0.3.5 and its engine.version, or v0.11.0"
            yield Problem(path, f"the official image of {release} has no Mooncake", remedy)


@rule("PD214", source="Kubernetes images: a reference without a tag is :latest", severity="warning")
def image_has_a_tag_or_a_digest(stack: Stack) -> Iterator[Problem]:
    """Each node pulls what is the latest then: prefill and decode may run different releases, and a restart yet another."""
    for deployment in stack.deployments.values():
        repository, tag = _image(deployment)
        image = deployment.engine.image or ""
        # a name that no registry has may stand for a whole reference that is not known yet
        if "/" in repository and not tag and "@" not in image:
            path = in_deployment(deployment, "engine", "image")
            yield Problem(path, f"{image} is {image}:latest", f"a tag, such as {image}:{deployment.engine.version}, or a digest")


@rule("PD215", source="OCI image specification: a digest is the content, a tag may become another's", severity="warning")
def images_of_a_protected_stack_are_pinned(stack: Stack) -> Iterator[Problem]:
    """A pod that is made again after a tag was moved runs another engine than its peer, and no edit or log says so."""
    family = family_of(stack)
    if family is None or not stack.cluster.protect:
        return
    for deployment in stack.deployments.values():
        image = engine_image(deployment, family)
        if "@" not in image:
            path = in_deployment(deployment, "engine", "image")
            yield Problem(path, f"{image} is no digest", f"{image}@sha256:..., which `crane digest {image}` prints")
