"""What is predicted of an edit, and what Kthena's real controller then does."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import pytest

from cli import diff
from impact import Capacity, Prediction, predict
from impact.report import assess
from live import paths
from live.api import Api, Object
from live.edits import read_edits
from live.snapshot import Snapshot, read_snapshot
from render.names import ROLE_LABEL, labels
from rules import read_file
from tests.cluster.conftest import DEPLOYMENT, Cluster, is_ready, uids

NAME = "edits"
MANAGER = "pulumi-kthena-pd-edits"
SEED = 1795
QUIET_SECONDS = 2.0
"""between two steps of a rollout on this cluster lie some tenths of a second"""


@dataclass(frozen=True)
class Declared:
    """A ModelServing whose engines do nothing and are ready at once."""

    prefill: int = 1
    decode: int = 1
    groups: int = 1
    versions: tuple[int, int] = (0, 0)
    """of the templates of prefill and decode"""
    workers: int = 0
    """pods of a decode instance beside its entry pod"""
    by: Literal["group", "role"] = "group"
    unavailable: int | str | None = None
    """groups, or prefill instances by role"""
    partition: int | None = None

    @property
    def object(self) -> Object:
        by_role = self.by == "role"
        limits = {"maxUnavailable": self.unavailable, "partition": self.partition}
        rolling = {key: value for key, value in limits.items() if value is not None}
        rollout: Object = {"type": "RoleRollingUpdate" if by_role else "ServingGroupRollingUpdate"}
        prefill = _role("prefill", self.prefill, self.versions[0], 0)
        if by_role and self.unavailable is not None:
            prefill["maxUnavailable"] = self.unavailable
        if not by_role and rolling:
            rollout["rollingUpdateConfiguration"] = rolling
        return {
            "apiVersion": "workload.serving.volcano.sh/v1alpha1",
            "kind": "ModelServing",
            "metadata": {"name": NAME, "namespace": "default", "labels": labels(NAME)},
            "spec": {
                "schedulerName": "default-scheduler",
                "replicas": self.groups,
                "recoveryPolicy": "RoleRecreate",
                "rolloutStrategy": rollout,
                "template": {"roles": [prefill, _role("decode", self.decode, self.versions[1], self.workers)]},
            },
        }


def _role(name: str, replicas: int, version: int, workers: int) -> Object:
    container = {
        "name": "engine",
        "image": "quay.io/ascend/vllm-ascend:v0.23.0-a3",
        "command": ["sleep", "infinity"],
        "env": [{"name": "VERSION", "value": str(version)}],
        "resources": {"limits": {"huawei.com/ascend-1980": "1"}},
    }
    template = {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}
    of_workers = {"workerTemplate": template} if workers else {}
    return {"name": name, "replicas": replicas, "workerReplicas": workers, "entryTemplate": template, **of_workers}


def _rolled(*roles: int) -> Callable[[Declared], Declared]:
    def edit(now: Declared) -> Declared:
        prefill, decode = (version + (role in roles) for role, version in enumerate(now.versions))
        return replace(now, versions=(prefill, decode))

    return edit


EDITS: dict[str, Callable[[Declared], Declared]] = {
    "one prefill more": lambda now: replace(now, prefill=now.prefill + 1),
    "one decode more": lambda now: replace(now, decode=now.decode + 1),
    "one prefill": lambda now: replace(now, prefill=1),
    "one decode": lambda now: replace(now, decode=1),
    "another group": lambda now: replace(now, groups=now.groups + 1),
    "one group": lambda now: replace(now, groups=1),
    "template of both": _rolled(0, 1),
    "template of prefill": _rolled(0),
    "template of decode": _rolled(1),
    "template and ratio": lambda now: replace(_rolled(0, 1)(now), prefill=now.prefill + 1),
    "template and a lower ratio": lambda now: replace(_rolled(0, 1)(now), prefill=1, decode=1),
    "template and groups": lambda now: replace(_rolled(1)(now), groups=now.groups + 1),
    "a worker": lambda now: replace(now, workers=1 - now.workers),
    "by role": lambda now: replace(now, by="role", partition=None, unavailable=None),
    "by role, one after the other": lambda now: replace(now, by="role", partition=None, unavailable=1),
    "by group": lambda now: replace(now, by="group", unavailable=None, partition=None),
    "by group, all at once": lambda now: replace(now, by="group", unavailable="100%", partition=None),
    "a partition": lambda now: replace(now, by="group", unavailable=None, partition=1),
}
OPENING = (
    *("another group", "one prefill more", "template of both", "by role", "template of prefill"),
    *("by role, one after the other", "template of prefill", "by group", "template and ratio", "one group"),
    *("another group", "a partition", "template of decode", "by group", "a worker"),
)
"""so that each kind of rollout is there; the seed decides what follows"""


@dataclass
class Watched:
    """The deployment while an edit is under way."""

    lowest: Capacity
    most: int
    seen: set[str]
    """uids of all pods"""


async def _settle(api: Api, watched: Watched) -> Snapshot:
    """The deployment once the controller has nothing more to do."""
    deadline = time.monotonic() + 90
    quiet_since, last = time.monotonic(), None
    while time.monotonic() < deadline:
        now = await read_snapshot(api, "default", NAME)
        _look(now, watched)
        serving = now.model_servings[0]
        here = sorted(pod["metadata"]["uid"] for pod in now.pods)
        observed = serving.get("status", {}).get("observedGeneration") == serving["metadata"]["generation"]
        at_rest = observed and all(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in now.pods)
        if not at_rest or here != last:
            quiet_since, last = time.monotonic(), here if at_rest else None
        elif time.monotonic() - quiet_since > QUIET_SECONDS:
            return now
        await asyncio.sleep(0.1)
    raise AssertionError(f"not at rest: {[(pod['metadata']['name'], is_ready(pod)) for pod in now.pods]}, {serving['status']}")


def _look(now: Snapshot, watched: Watched) -> None:
    instances: dict[tuple[str, str, str], bool] = {}
    for pod in now.pods:
        tags = pod["metadata"]["labels"]
        key = (tags["modelserving.volcano.sh/group-name"], tags[ROLE_LABEL], tags["modelserving.volcano.sh/role-id"])
        instances[key] = instances.get(key, True) and is_ready(pod) and "deletionTimestamp" not in pod["metadata"]
    serving = [key for key, ready in instances.items() if ready]
    of_groups = Counter((group, role) for group, role, _ in serving)
    groups = {group for group, _ in of_groups}
    roles = Counter(role for _, role, _ in serving)
    both = sum(of_groups[group, "prefill"] > 0 and of_groups[group, "decode"] > 0 for group in groups)
    watched.lowest &= Capacity(roles["prefill"], roles["decode"], both)
    watched.most = max(watched.most, len(now.pods))
    watched.seen |= {pod["metadata"]["uid"] for pod in now.pods}


def _check(edit: str, before: Snapshot, predicted: Prediction, after: Snapshot, watched: Watched) -> None:
    were = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in before.pods}
    are = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in after.pods}
    kept = {name: uid for name, uid in are.items() if were.get(name) == uid}
    made = are.keys() - kept.keys()
    assert kept == predicted.kept, edit
    assert len(made) == len(predicted.created), edit
    if predicted.names_are_certain:
        assert made == set(predicted.created), edit
    assert predicted.capacity_lowest & watched.lowest == predicted.capacity_lowest, f"{edit}: {watched.lowest} served"
    assert watched.most <= sum(predicted.npus_most.values()), edit
    if not predicted.churned:
        assert watched.seen == set(were.values()) | set(are.values()), f"{edit}: a pod was made in vain"


@pytest.fixture
def connected(converged: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster, which live.Api finds by KUBECONFIG."""
    monkeypatch.setenv("KUBECONFIG", converged.pulumi.variables["KUBECONFIG"])
    return converged


@pytest.mark.usefixtures("connected")
def test_generated_edits_do_to_the_pods_what_was_predicted() -> None:
    asyncio.run(_edit_after_edit())


async def _edit_after_edit() -> None:
    api = await Api.connect(None)
    chosen = random.Random(SEED)  # noqa: S311 - the same edits at every run
    now = Declared()
    order = ["creation", *OPENING, *chosen.sample(sorted(EDITS), 5)]
    kinds: Counter[str] = Counter()
    before = Snapshot()
    try:
        for edit in order:
            now = now if edit == "creation" else EDITS[edit](now)
            if now.groups * (now.prefill + now.decode * (1 + now.workers)) > 16:
                now = replace(now, groups=1, prefill=1, decode=1)
            stored = await api.apply(now.object, MANAGER, dry_run=True)
            predicted = predict(before, [stored])
            watched = Watched(predicted.capacity_before, len(before.pods), set())
            await api.apply(now.object, MANAGER)
            after = await _settle(api, watched)
            _check(f"{edit} ({now})", before, predicted, after, watched)
            kinds[predicted.change] += 1
            before = after
    finally:
        await api.delete(paths.model_servings("default", NAME))
    assert kinds.keys() >= {"created", "nothing", "scaled in place", "rolled by role", "groups rolled"}


@pytest.mark.parametrize(
    ("path", "value", "change"),
    [
        (f"deployments.{DEPLOYMENT}.ratio", "2P1D", "scaled in place"),
        (f"deployments.{DEPLOYMENT}.decode.batching.maxNumSeqs", 24, "groups rolled"),
    ],
)
def test_what_pd_diff_says_of_a_stack_file_is_what_up_does(
    connected: Cluster, capsys: pytest.CaptureFixture[str], path: str, value: object, change: str
) -> None:
    # beside the stack file stands no project file: the checkout's is what `up` takes
    connected.config_file.with_name("Pulumi.yaml").write_text("name: kthena-pd\n")
    assert diff.run(connected.config_file, "text") == diff.NOTHING
    before = uids(connected.settled_pods())
    connected.configure(path, value)
    assert diff.run(connected.config_file, "text") == diff.CHANGES
    said = capsys.readouterr().out
    assert f"{DEPLOYMENT}: {change}, 1P1D in 1 group" in said

    async def read() -> Prediction:
        stack, _ = read_file(connected.config_file)
        (edit,) = await read_edits(await Api.connect(stack.cluster.context), stack, "pulumi-kthena-pd-dev")
        return assess(edit).prediction

    predicted = asyncio.run(read())
    assert predicted.change == change
    connected.up()
    after = uids(connected.settled_pods())
    assert {name: uid for name, uid in after.items() if before.get(name) == uid} == predicted.kept
    assert after.keys() - predicted.kept.keys() == set(predicted.created)
    assert diff.run(connected.config_file, "text") == diff.NOTHING
