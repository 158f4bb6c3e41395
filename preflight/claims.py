"""PersistentVolumeClaims that pods mount."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from live import paths
from live.api import Object
from live.pods import status_of
from live.references import Reference
from preflight.demand import demands
from preflight.namespaces import declared_at
from preflight.probe import Situation, probe
from rules.finding import Path, Problem

_OF_MANY_NODES = frozenset({"ReadWriteMany", "ReadOnlyMany"})
_WRITABLE = frozenset({"ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"})


@dataclass(frozen=True)
class Mounted:
    """A claim that there is, and the pods that mount it."""

    claim: Object
    path: Path
    pods: int
    writes: bool

    @property
    def modes(self) -> frozenset[str]:
        """As it is bound, or as it asks for."""
        return frozenset(status_of(self.claim).get("accessModes") or self.claim["spec"].get("accessModes") or ())

    @property
    def name(self) -> str:
        """As messages call it."""
        metadata = self.claim["metadata"]
        return f"PersistentVolumeClaim {metadata['namespace']}/{metadata['name']}"


@probe("PF204", source="Kubernetes: access modes")
def claims_can_be_mounted_by_all_pods(situation: Situation) -> Iterator[Problem]:
    """A volume for one node is refused on the second one: the pod waits in ContainerCreating. One that is read only takes no
    download."""
    for mounted in _mounted(situation):
        modes = ", ".join(sorted(mounted.modes))
        if mounted.modes == {"ReadWriteOncePod"} and mounted.pods > 1:
            remedy = "a claim with ReadWriteMany or ReadOnlyMany"
            yield Problem(mounted.path, f"{mounted.pods} pods mount {mounted.name}, which is {modes}", remedy)
        elif mounted.writes and mounted.modes and not mounted.modes & _WRITABLE:
            remedy = "a claim with ReadWriteMany"
            yield Problem(mounted.path, f"the downloader writes to {mounted.name}, which is {modes}", remedy)


@probe("PF205", source="Kubernetes: access modes, volume binding", severity="warning")
def claims_are_bound_and_shared(situation: Situation) -> Iterator[Problem]:
    """A pod waits for its claim to be bound; a volume for one node keeps all pods there."""
    for mounted in _mounted(situation):
        phase = status_of(mounted.claim).get("phase")
        if phase == "Lost" or (phase == "Pending" and not _waits_for_a_pod(situation, mounted.claim)):
            yield Problem(mounted.path, f"{mounted.name} is {phase}", "see why: kubectl describe persistentvolumeclaim")
        if mounted.pods > 1 and mounted.modes and not mounted.modes & _OF_MANY_NODES and mounted.modes != {"ReadWriteOncePod"}:
            yield Problem(
                mounted.path,
                f"{mounted.pods} pods mount {mounted.name}, which is {', '.join(sorted(mounted.modes))}: on one node only",
                "a claim with ReadWriteMany or ReadOnlyMany",
            )


def _mounted(situation: Situation) -> Iterator[Mounted]:
    pods: Counter[Reference] = Counter()
    paths_of: dict[Reference, Path] = {}
    writes: defaultdict[Reference, bool] = defaultdict(bool)
    for demand in demands(situation):
        for volume in demand.spec.get("volumes") or ():
            source: Mapping[str, object] | None = volume.get("persistentVolumeClaim")
            if source is None:
                continue
            reference = Reference(paths.claims, demand.namespace, str(source["claimName"]))
            pods[reference] += demand.count
            paths_of.setdefault(reference, declared_at(demand.version, reference))
            downloads = demand.version.deployment.model.weights.download is not None
            writes[reference] |= downloads and volume["name"] == "weights"
    for reference, path in paths_of.items():
        claim = situation.survey.found.get(reference)
        if claim:
            yield Mounted(claim, path, pods[reference], writes[reference])


def _waits_for_a_pod(situation: Situation, claim: Object) -> bool:
    """It is bound when the first pod is placed."""
    name = claim["spec"].get("storageClassName") or ""
    storage_class = situation.survey.found.get(Reference(paths.storage_classes, "", name), {})
    return storage_class == {} or (storage_class or {}).get("volumeBindingMode") == "WaitForFirstConsumer"
