"""One deployment as the cluster has it at one moment."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from live import paths
from live.api import FORBIDDEN, Api, ApiRefusedError, Object
from render.names import NAME_LABEL, labels, selector


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
    revisions_are_hidden: bool = False
    """we may not read them"""


async def read_snapshot(api: Api, namespace: str, deployment: str, *, events: bool = False, revisions: bool = True) -> Snapshot:
    """Read one deployment in two steps: its ModelServings, and what belongs to them.

    Events and revisions only explain the rest: where they may not be read, there are none.

    Raises:
        ClusterError: the cluster refuses or does not answer.
    """
    found = await api.list(paths.model_servings(namespace), selector(labels(deployment)))
    names = sorted(item["metadata"]["name"] for item in found)
    if not names:
        return Snapshot()
    return await _with_belongings(
        api, namespace, found, f"{NAME_LABEL} in ({','.join(names)})", events=events, revisions=revisions
    )


async def read_snapshots(
    api: Api, wanted: Mapping[str, Mapping[str, str]], *, events: bool = False
) -> dict[tuple[str, str], Snapshot]:
    """Read many deployments with three requests for each namespace.

    Args:
        api: of the cluster
        wanted: namespace -> deployment -> name of its ModelServing, which is known by it where it has no labels of ours yet
        events: whether to read them

    Returns:
        (namespace, deployment) -> what is there; an empty snapshot of what is not.

    Raises:
        ClusterError: the cluster refuses or does not answer.
    """

    async def read(namespace: str) -> Snapshot:
        found = await api.list(paths.model_servings(namespace))
        return await _with_belongings(api, namespace, found, NAME_LABEL, events=events)

    namespaces = await asyncio.gather(*(read(namespace) for namespace in wanted))
    return {
        (namespace, deployment): _part(whole, deployment, name)
        for (namespace, deployments), whole in zip(wanted.items(), namespaces, strict=True)
        for deployment, name in deployments.items()
    }


async def _with_belongings(  # noqa: PLR0913  # what to read of whom
    api: Api, namespace: str, model_servings: list[Object], theirs: str, *, events: bool, revisions: bool = True
) -> Snapshot:
    async def helpful(path: str, labels: str = "", fields: str = "", *, asked: bool) -> list[Object] | None:
        try:
            return await api.list(path, labels, fields) if asked else []
        except ApiRefusedError as error:
            if error.code != FORBIDDEN:
                raise
            return None

    pods, kept, of_pods, of_servings = await asyncio.gather(
        api.list(paths.pods(namespace), theirs),
        helpful(paths.controller_revisions(namespace), theirs, asked=revisions),
        helpful(paths.events(namespace), fields="involvedObject.kind=Pod", asked=events),
        helpful(paths.events(namespace), fields="involvedObject.kind=ModelServing", asked=events),
    )
    return Snapshot(
        tuple(model_servings),
        tuple(pods),
        tuple(kept or ()),
        tuple(_of({_name(item) for item in model_servings}, [*(of_pods or ()), *(of_servings or ())])),
        revisions_are_hidden=kept is None,
    )


def _part(whole: Snapshot, deployment: str, name: str) -> Snapshot:
    ours = labels(deployment).items()
    servings = tuple(
        one for one in whole.model_servings if _name(one) == name or ours <= one["metadata"].get("labels", {}).items()
    )
    names = {_name(one) for one in servings}

    def belonging(found: Iterable[Object]) -> tuple[Object, ...]:
        return tuple(one for one in found if one["metadata"]["labels"][NAME_LABEL] in names)

    return Snapshot(
        servings,
        belonging(whole.pods),
        belonging(whole.revisions),
        tuple(_of(names, whole.events)),
        revisions_are_hidden=whole.revisions_are_hidden,
    )


def _of(names: Collection[str], events: Iterable[Object]) -> Iterable[Object]:
    """The events on ModelServings ``names`` and on pods with names that Kthena gives theirs."""
    if not names:
        return ()
    # roles begin with a letter: so chat-2-0-decode-0-0 is of chat-2, not of a group 2 of chat
    theirs = re.compile(f"({'|'.join(map(re.escape, names))})(-[0-9]+-[a-z].*)?")
    return (event for event in events if theirs.fullmatch(event["involvedObject"].get("name", "")))


def _name(found: Object) -> str:
    return str(found["metadata"]["name"])
