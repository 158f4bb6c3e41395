"""Kthena's kinds: CRDs that `up` brings beside Pulumi's state.

As resources they would be half a megabyte that Pulumi writes with each step and reads from the cluster in each run: half of the
time of an `up` that changes nothing (measured). ``destroy`` must leave them in any case: with them would go all objects of their
kinds, also those of other stacks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from live import paths
from live.api import Api, ClusterError, Object
from render.ownership import DECLARED, annotation, owned

ESTABLISHED_SECONDS = 30.0
"""a second on an idle API server"""
_POLL_SECONDS = 0.2


async def outdated(api: Api, kinds: Iterable[Object]) -> list[Object]:
    """Those CRDs of ``kinds`` that are missing, or were declared anew since they were last applied.

    Raises:
        ClusterError: the cluster refuses or does not answer.
    """

    async def is_outdated(declared: Object) -> bool:
        live = await api.metadata(paths.of(declared))
        return live is None or annotation(live, DECLARED) != annotation(owned(declared, ""), DECLARED)

    found = list(kinds)
    answers = await asyncio.gather(*map(is_outdated, found))
    return [one for one, answer in zip(found, answers, strict=True) if answer]


async def bring(api: Api, kinds: Iterable[Object], manager: str) -> None:
    """Apply CRDs, and wait until objects of their kinds can be created; ``manager``: the stack's field manager.

    Raises:
        ClusterError: the cluster refuses or does not answer, or does not accept one of them.
    """
    await asyncio.gather(*(_bring(api, owned(one, manager), manager) for one in kinds))


async def _bring(api: Api, declared: Object, manager: str) -> None:
    live = await api.apply(declared, manager)
    deadline = time.monotonic() + ESTABLISHED_SECONDS
    while not _is_established(live):
        if time.monotonic() > deadline:
            name = declared["metadata"]["name"]
            said = "; ".join(one.get("message", "") for one in _conditions(live) if one["status"] == "False")
            raise ClusterError(f"CRD {name} is not established: {said}", f"kubectl describe crd {name}")
        await asyncio.sleep(_POLL_SECONDS)
        live = await api.get(paths.of(declared)) or {}


def _is_established(crd: Object) -> bool:
    return any((one["type"], one["status"]) == ("Established", "True") for one in _conditions(crd))


def _conditions(crd: Object) -> list[Object]:
    found: list[Object] = (crd.get("status") or {}).get("conditions") or []
    return found
