"""The vLLM-Ascend release."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import catalog
from models.stack import Stack
from rules.finding import Problem, in_deployment, roles, rule


@rule("PD201", source="catalog/engine.yaml")
def connector_is_in_the_engine_release(stack: Stack) -> Iterator[Problem]:
    """An engine refuses a connector it does not register."""
    for deployment in stack.deployments.values():
        connector = deployment.kv_transfer.connector
        known = catalog.engine().connectors.get(connector)
        if known is None or known.router_connector is None:
            continue  # TODO
        since = known.since
        if catalog.before(deployment.engine.version, since):
            yield Problem(
                in_deployment(deployment, "engine", "version"),
                f"{deployment.engine.version} does not have {connector}",
                f"v{since} or newer",
            )


@rule("PD202", source="catalog/engine.yaml", severity="warning")
def nothing_is_set_that_the_release_no_longer_reads(stack: Stack) -> Iterator[Problem]:
    """Such a setting has no effect any more, and whoever reads the stack file believes that it has."""
    for deployment, name, role in roles(stack):
        given: dict[str, Collection[str]] = {"env": role.env, "additionalConfig": role.additional_config}
        for removed in catalog.engine().removed:
            if removed.name in given[removed.kind] and not catalog.before(deployment.engine.version, removed.since):
                yield Problem(
                    in_deployment(deployment, name, removed.kind, removed.name),
                    f"vLLM-Ascend reads it no more since v{removed.since}",
                    removed.instead,
                )


@rule("PD203", source="vLLM-Ascend installation guide, image tags")
def official_image_is_built_for_the_npu_family(stack: Stack) -> Iterator[Problem]:
    """An image of another family has other kernels: the engine ends at its start, on every node."""
    official, suffix = catalog.engine().image, catalog.npu_families()[stack.cluster.npu.family].image_suffix
    others = {family.image_suffix for family in catalog.npu_families().values()} - {suffix, ""}
    for deployment in stack.deployments.values():
        repository, _, tag = (deployment.engine.image or "").partition("@")[0].rpartition(":")
        build = tag.removesuffix("-openeuler")
        if repository == official and (not build.endswith(suffix) or any(build.endswith(other) for other in others)):
            yield Problem(
                in_deployment(deployment, "engine", "image"),
                f"tag {tag} is not built for {stack.cluster.npu.family}",
                f"{official}:{deployment.engine.version}{suffix}, or leave it out",
            )
