"""Who places the pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from live.pods import status_of
from live.servers import thousandths
from live.survey import DEFAULT_QUEUE, VOLCANO, queue_of
from preflight.demand import demands
from preflight.probe import Situation, probe
from rules.finding import Path, Problem, in_deployment

_SCHEDULER: Path = ("cluster", "scheduler")
_PROGRAMS = frozenset({"vc-scheduler", "volcano-scheduler"})
"""last parts of the names under which its image is published"""


@probe("PF110", source="Kthena v1.0.0 pkg/model-serving-controller/podgroupmanager; Volcano's CRDs")
def volcano_is_installed_if_it_places_the_pods(situation: Situation) -> Iterator[Problem]:
    """Nobody else looks at a pod that names it as its scheduler: the pod stays Pending, without an event that says why."""
    served = situation.survey.served.get(VOLCANO, ())
    missing = [kind for kind in ("podgroups", "queues") if kind not in served]
    if situation.plan.stack.cluster.scheduler == "volcano" and missing:
        yield Problem(
            _SCHEDULER,
            f"volcano, and the cluster does not know {' and '.join(missing)} of {VOLCANO}",
            "install Volcano; or default-scheduler, without gang and queue",
        )


@probe("PF111", source="Volcano's installation", severity="warning")
def volcanos_scheduler_runs(situation: Situation) -> Iterator[Problem]:
    """Its CRDs stay when it is uninstalled, and its queues with them. What tells that it runs is its pod, or a pod that it has
    placed; without either it may run all the same, where its pods can't be seen."""
    pods = situation.survey.pods
    is_installed = "podgroups" in situation.survey.served.get(VOLCANO, ())
    if situation.plan.stack.cluster.scheduler != "volcano" or not is_installed or pods is None:
        return
    if not any(pod.node and (pod.scheduler == "volcano" or pod.programs & _PROGRAMS) for pod in pods):
        yield Problem(
            _SCHEDULER,
            "volcano, and no pod tells that its scheduler runs: none is it, and none was placed by it yet",
            "nothing, if it runs outside of the cluster's pods; or see: kubectl get pods --all-namespaces | grep volcano",
        )


@probe("PF112", source="Volcano: Queue")
def queues_are_there_and_open(situation: Situation) -> Iterator[Problem]:
    """Volcano takes no PodGroup of a queue that is missing or closed, and of one beyond the queue's capability: its pods stay
    Pending."""
    asked: dict[str, Counter[str]] = {}
    for demand in demands(situation):
        asked.setdefault(demand.version.deployment.name, Counter()).update(
            {name: amount * demand.count for name, amount in demand.footprint.amounts.items()}
        )
    for deployment in situation.plan.stack.deployments.values():
        queue, path = queue_of(deployment), in_deployment(deployment, "scheduling", "queue")
        if queue not in situation.survey.found:
            continue
        found = situation.survey.found[queue]
        if found is None:
            if queue.name != DEFAULT_QUEUE:  # which Volcano makes itself
                yield Problem(path, f"there is no Volcano queue {queue.name}", "a queue that there is: kubectl get queues")
            continue
        state = status_of(found).get("state") or "Open"
        if state != "Open":
            yield Problem(path, f"Volcano's queue {queue.name} is {state}", "another queue, or open it")
        most = thousandths((found.get("spec") or {}).get("capability") or {})
        for name, amount in asked.get(deployment.name, Counter()).items():
            if name in most and amount > most[name]:
                yield Problem(
                    path,
                    f"{amount / 1000:g} {name}, and Volcano's queue {queue.name} may have {most[name] / 1000:g} in all",
                    "another queue, or a higher capability",
                )
