"""Volcano beside the cluster's own scheduler: its CRDs, its programs, and their settings.

It runs where the description of the cluster says ``volcano: true``. Its webhooks, which only refuse and fill in, do not run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from local.api import Api, ApiError, holds

CONTROLLERS, SCHEDULER = "volcano-controllers", "volcano-scheduler"
PROGRAMS = (CONTROLLERS, SCHEDULER)
"""in the order of their start"""
DEFAULT_QUEUE = "/apis/scheduling.volcano.sh/v1beta1/queues/default"


def commands(folder: Path, configuration_file: Path, client: Iterable[str]) -> dict[str, tuple[str | Path, ...]]:
    """Commands of its programs; ``client`` are flags that say where the API server is."""
    shared = (*client, "--leader-elect=false", "--kube-api-qps=400", "--kube-api-burst=800")
    return {
        # those that Kthena's PodGroups and queues need; the others are for Volcano's own kinds of jobs
        CONTROLLERS: (folder / "controller-manager", *shared, "--controllers=pg-controller,queue-controller"),
        SCHEDULER: (
            folder / "scheduler",
            *shared,
            f"--scheduler-conf={configuration_file}",
            "--schedule-period=200ms",
            "--cache-dumper=false",
        ),
    }


def configuration(resources: Iterable[str]) -> str:
    """Configuration of its scheduler (YAML): that of its Helm chart, but it fills one server before it begins another.

    Args:
        resources: extended resources of which servers are filled
    """
    named = sorted(resources)
    packing = {"binpack.weight": 10, "binpack.resources": ",".join(named)}
    packing |= {f"binpack.resources.{name}": 10 for name in named}
    tiers = (
        [{"name": "priority"}, {"name": "gang", "enablePreemptable": False}, {"name": "conformance"}],
        [
            {"name": "overcommit"},
            {"name": "drf", "enablePreemptable": False},
            {"name": "predicates"},
            {"name": "proportion"},
            {"name": "nodeorder"},
            {"name": "binpack", "arguments": packing},
        ],
    )
    return yaml.safe_dump(
        {"actions": "enqueue, allocate, backfill", "tiers": [{"plugins": plugins} for plugins in tiers]}, sort_keys=False
    )


async def apply_crds(api: Api, folder: Path, manager: str) -> None:
    """Apply its CRDs, and wait until they are served: its programs end where they are not."""
    await asyncio.gather(*(api.apply(path, file.read_bytes(), manager) for path, file in _crds(folder).items()))
    while not all(holds(crd, "Established") for crd in [await api.get(path) or {} for path in _crds(folder)]):
        await asyncio.sleep(0.05)


def _crds(folder: Path) -> Mapping[str, Path]:
    """Path in the API of each of its CRDs -> file: ``scheduling.volcano.sh_queues.yaml`` is ``queues.scheduling.volcano.sh``."""
    names = {file: file.stem.partition("_") for file in sorted(folder.rglob("crd/**/*.yaml"))}
    base = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    return {f"{base}/{plural}.{group}": file for file, (group, _, plural) in names.items()}


async def is_ready(api: Api) -> bool:
    """Whether pods can be scheduled: the scheduler makes the default queue, the controllers open it."""
    try:
        queue = await api.get(DEFAULT_QUEUE)
    except ApiError:
        return False
    return bool(queue) and (queue or {}).get("status", {}).get("state") == "Open"
