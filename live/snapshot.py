"""One deployment as the cluster has it at one moment."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from live import paths
from live.api import Api, Object
from render.names import NAME_LABEL, labels

_DEPLOYMENT_LABEL = "app.kubernetes.io/name"


@dataclass(frozen=True)
class Snapshot:
    """The ModelServings of one deployment and what Kthena has made of them."""

    model_servings: tuple[Object, ...] = ()
    """one, or two while one takes the other's place"""
    pods: tuple[Object, ...] = ()
    revisions: tuple[Object, ...] = ()
    """ControllerRevisions, of which Kthena keeps the current and the next"""
    events: tuple[Object, ...] = ()
    """on these ModelServings and their pods, also on pods that are gone; only where asked for"""


async def read_snapshot(api: Api, namespace: str, deployment: str, *, events: bool = False, revisions: bool = True) -> Snapshot:
    """Read one deployment in two steps: its ModelServings, and what belongs to them.

    Raises:
        ClusterError: the cluster refuses or does not answer.
    """
    selector = ",".join(f"{key}={value}" for key, value in labels(deployment).items())
    found = await api.list(paths.model_servings(namespace), selector)
    names = sorted(item["metadata"]["name"] for item in found)
    if not names:
        return Snapshot()
    return await _with_belongings(
        api, namespace, found, f"{NAME_LABEL} in ({','.join(names)})", events=events, revisions=revisions
    )


async def read_snapshots(
    api: Api, wanted: Mapping[str, Collection[str]], *, events: bool = False
) -> dict[tuple[str, str], Snapshot]:
    """Read many deployments (namespace -> names) with three requests for each namespace.

    Returns:
        (namespace, deployment) -> what is there; an empty snapshot of what is not.

    Raises:
        ClusterError: the cluster refuses or does not answer.
    """

    async def read(namespace: str) -> Snapshot:
        managed = f"app.kubernetes.io/managed-by={labels('')['app.kubernetes.io/managed-by']}"
        found = await api.list(paths.model_servings(namespace), managed)
        return await _with_belongings(api, namespace, found, NAME_LABEL, events=events)

    namespaces = await asyncio.gather(*(read(namespace) for namespace in wanted))
    return {
        (namespace, deployment): _part(whole, deployment)
        for (namespace, deployments), whole in zip(wanted.items(), namespaces, strict=True)
        for deployment in deployments
    }


async def _with_belongings(  # noqa: PLR0913  # what to read of whom
    api: Api, namespace: str, model_servings: list[Object], selector: str, *, events: bool, revisions: bool = True
) -> Snapshot:
    async def nothing() -> list[Object]:
        return []

    def told(kind: str) -> asyncio.Future[list[Object]]:
        return asyncio.ensure_future(
            api.list(paths.events(namespace), fields=f"involvedObject.kind={kind}") if events else nothing()
        )

    pods, kept, of_pods, of_servings = await asyncio.gather(
        api.list(paths.pods(namespace), selector),
        api.list(paths.controller_revisions(namespace), selector) if revisions else nothing(),
        told("Pod"),
        told("ModelServing"),
    )
    return Snapshot(
        tuple(model_servings),
        tuple(pods),
        tuple(kept),
        tuple(_of({_name(item) for item in model_servings}, of_pods + of_servings)),
    )


def _part(whole: Snapshot, deployment: str) -> Snapshot:
    servings = tuple(one for one in whole.model_servings if one["metadata"]["labels"].get(_DEPLOYMENT_LABEL) == deployment)
    names = {_name(one) for one in servings}

    def belonging(found: Iterable[Object]) -> tuple[Object, ...]:
        return tuple(one for one in found if one["metadata"]["labels"][NAME_LABEL] in names)

    return Snapshot(servings, belonging(whole.pods), belonging(whole.revisions), tuple(_of(names, whole.events)))


def _of(names: Collection[str], events: Iterable[Object]) -> Iterable[Object]:
    """The events on ModelServings ``names`` and on pods with names that Kthena gives theirs."""
    if not names:
        return ()
    # roles begin with a letter: so chat-2-0-decode-0-0 is of chat-2, not of a group 2 of chat
    theirs = re.compile(f"({'|'.join(map(re.escape, names))})(-[0-9]+-[a-z].*)?")
    return (event for event in events if theirs.fullmatch(event["involvedObject"].get("name", "")))


def _name(found: Object) -> str:
    return str(found["metadata"]["name"])
