"""What is seen of a deployment, and what is concluded: ready, waiting or stuck; never stuck while it may still become ready."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convergence.diagnosis import Ready, Stuck, Verdict, Waiting, diagnose, remember
from convergence.goal import Goal
from convergence.history import History
from convergence.standing import Slot, stand
from convergence.symptoms import Cause
from convergence.wait import pod_of
from live.snapshot import Snapshot

Object = dict[str, Any]

NPU = "huawei.com/ascend-1980"
START = 1_800_000_000.0
GOAL = Goal(
    namespace="default",
    deployment="pd",
    model_serving="pd",
    roles={"prefill": 2, "decode": 1},
    groups=1,
    partition=0,
    declared="d1",
    load_timeout=1800,
    scheduling_timeout=600,
)


def at(seconds: float) -> str:
    """A time as Kubernetes writes it, ``seconds`` after the start of the wait."""
    return datetime.fromtimestamp(START + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def role(name: str, replicas: int, workers: int = 0) -> Object:
    template = {"spec": {"containers": [{"name": "engine", "image": "vllm-ascend:v0.13.0"}]}}
    found: Object = {"name": name, "replicas": replicas, "workerReplicas": workers, "entryTemplate": template}
    return found | ({"workerTemplate": template} if workers else {})


def serving(*roles: Object, groups: int = 1, generation: int = 1, **status: Any) -> Object:
    """A ModelServing whose controller reports that all is well, but for ``status``."""
    told = {
        "observedGeneration": generation,
        "replicas": groups,
        "availableReplicas": groups,
        "updatedReplicas": groups,
        "currentRevision": "r1",
        "updateRevision": "r1",
        "conditions": [{"type": "Available", "status": "True"}],
    }
    return {
        "metadata": {
            "name": "pd",
            "namespace": "default",
            "uid": "ms-1",
            "generation": generation,
            "labels": {"app.kubernetes.io/name": "pd", "app.kubernetes.io/managed-by": "kthena-pd"},
            "annotations": {"kthena-pd/declared": "d1", "pulumi.com/patchFieldManager": "pulumi-kthena-pd-dev"},
        },
        "spec": {"replicas": groups, "template": {"roles": list(roles or (role("prefill", 2), role("decode", 1)))}},
        "status": {key: value for key, value in (told | status).items() if value is not None},
    }


UNAVAILABLE: Object = {
    "availableReplicas": None,
    "conditions": [{"type": "Available", "status": "False"}, {"type": "Progressing", "status": "True"}],
}


def pod(name: str, state: Object | None = None, *, revision: str = "r1", role_hash: str = "h1", uid: str = "") -> Object:
    """A pod that serves, or is in ``state``; the rest follows from its name."""
    group, role_name, replica, index = name.rsplit("-", 3)
    found = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid or f"{name}-uid",
            "labels": {
                "modelserving.volcano.sh/name": "pd",
                "modelserving.volcano.sh/group-name": group,
                "modelserving.volcano.sh/role": role_name,
                "modelserving.volcano.sh/role-id": f"{role_name}-{replica}",
                "modelserving.volcano.sh/revision": revision,
                "modelserving.volcano.sh/role-template-hash": f"{role_name}-{role_hash}",
                **({"modelserving.volcano.sh/entry": "true"} if index == "0" else {}),
            },
            "ownerReferences": [{"kind": "ModelServing", "name": "pd", "uid": "ms-1", "controller": True}],
        },
        "spec": {
            "nodeName": "node-0",
            "schedulerName": "default-scheduler",
            "terminationGracePeriodSeconds": 30,
            "containers": [
                {
                    "name": "engine",
                    "image": "vllm-ascend:v0.13.0",
                    "resources": {"requests": {NPU: "16"}},
                    "startupProbe": {"periodSeconds": 10, "failureThreshold": 180},
                }
            ],
        },
    }
    return found | {"status": state or running(ready=True)}


def running(*, ready: bool = False, since: float = 0, restarts: int = 0, last: Object | None = None) -> Object:
    return {
        "phase": "Running",
        "conditions": [scheduled(), {"type": "Ready", "status": str(ready)}],
        "containerStatuses": [
            {
                "name": "engine",
                "ready": ready,
                "restartCount": restarts,
                "state": {"running": {"startedAt": at(since)}},
                "lastState": {"terminated": last} if last else {},
            }
        ],
    }


def scheduled() -> Object:
    return {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(0)}


def pending(message: str = "", reason: str = "Unschedulable") -> Object:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def waiting(reason: str, message: str = "", **more: Any) -> Object:
    one = {"name": "engine", "ready": False, "restartCount": 0, "state": {"waiting": {"reason": reason, "message": message}}}
    return {
        "phase": "Pending",
        "conditions": [scheduled(), {"type": "Ready", "status": "False"}],
        "containerStatuses": [one | more],
    }


def ended(code: int, began: float, finished: float, message: str = "", reason: str = "Error") -> Object:
    return {"exitCode": code, "reason": reason, "message": message, "startedAt": at(began), "finishedAt": at(finished)}


def unscheduled(one: Object) -> Object:
    del one["spec"]["nodeName"]
    return one


def terminating(one: Object, asked: float = 0, grace: int = 30) -> Object:
    one["metadata"] |= {"deletionTimestamp": at(asked + grace), "deletionGracePeriodSeconds": grace}
    return one


def event(of: Object, reason: str, message: str, last: float = 0) -> Object:
    about = {"kind": "Pod", "name": of["metadata"]["name"], "uid": of["metadata"]["uid"]}
    return {"type": "Warning", "reason": reason, "message": message, "involvedObject": about, "lastTimestamp": at(last)}


PREFILL_0, PREFILL_1, DECODE = "pd-0-prefill-0-0", "pd-0-prefill-1-0", "pd-0-decode-0-0"


def seen(*pods: Object, of: Object | None = None, revisions: Iterable[Object] = (), events: Iterable[Object] = ()) -> Snapshot:
    return Snapshot((of or serving(),), pods, tuple(revisions), tuple(events))


def all_pods(**changed: Object) -> list[Object]:
    """The three pods of GOAL; by ``first``, ``second`` and ``third`` in another state."""
    names = {"first": PREFILL_0, "second": PREFILL_1, "third": DECODE}
    return [pod(name, changed.get(key)) for key, name in names.items()]


def judge(*snapshots: tuple[float, Snapshot], goal: Goal = GOAL, history: History | None = None) -> Verdict:
    """The verdict on the last of some snapshots, each with its time; the first is repeated at the start."""
    history = history or History(progress_at=START)
    for when, snapshot in snapshots:
        history = remember(goal, history, snapshot, START + when)
    when, snapshot = snapshots[-1]
    return diagnose(goal, snapshot, history, START + when)


def lasting(snapshot: Snapshot, seconds: float, goal: Goal = GOAL) -> Verdict:
    return judge((0, snapshot), (seconds, snapshot), goal=goal)


def only_cause(verdict: Verdict) -> Cause:
    assert isinstance(verdict, Stuck), verdict
    (cause,) = verdict.causes
    return cause


def progress(verdict: Verdict) -> str:
    assert isinstance(verdict, Waiting), verdict
    return verdict.progress


# ready


def test_a_deployment_with_all_pods_at_the_declared_revision_is_ready() -> None:
    assert judge((0, seen(*all_pods()))) == Ready()


def change_status(**status: Any) -> Callable[[Object, list[Object]], None]:
    def change(of: Object, _: list[Object]) -> None:
        of["status"] |= status

    return change


def change_pod(**changed: Any) -> Callable[[Object, list[Object]], None]:
    def change(_: Object, pods: list[Object]) -> None:
        pods[0] = pod(PREFILL_0, **changed)

    return change


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda of, _: of["metadata"].update(generation=2), id="a generation that nobody has seen"),
        pytest.param(lambda of, _: terminating(of), id="a ModelServing that is being deleted"),
        pytest.param(lambda of, _: of["metadata"]["annotations"].update({"kthena-pd/declared": "d2"}), id="another declaration"),
        pytest.param(lambda of, _: of["spec"].update(replicas=2), id="another number of groups"),
        pytest.param(lambda of, _: of["spec"]["template"]["roles"][0].update(replicas=1), id="another ratio"),
        pytest.param(change_status(conditions=[]), id="not available"),
        pytest.param(change_status(availableReplicas=0), id="no available group"),
        pytest.param(change_status(updatedReplicas=0), id="no updated group"),
        pytest.param(change_status(updateRevision="r2"), id="pods of an old revision"),
        pytest.param(change_pod(state=running()), id="a pod that is not ready"),
        pytest.param(change_pod(state=running(ready=True) | {"phase": "Failed"}), id="a pod that has failed"),
        pytest.param(change_pod(revision="r0", role_hash="h0"), id="one pod of an old revision"),
        pytest.param(lambda _, pods: terminating(pods[0]), id="a pod that is ending"),
        pytest.param(lambda _, pods: pods.pop(), id="a pod that is missing"),
        pytest.param(lambda _, pods: pods.append(pod("pd-0-prefill-2-0")), id="a pod too much"),
        pytest.param(lambda _, pods: pods.append(pod("pd-1-decode-0-0")), id="a part of a group too much"),
        pytest.param(
            lambda _, pods: pods.extend(pod(f"pd-1-{name}-0") for name in ("prefill-0", "prefill-1", "decode-0")),
            id="a group too much",
        ),
        pytest.param(lambda _, pods: pods.append(pod("pd-0-router-0-0")), id="a pod of another role"),
        pytest.param(
            lambda _, pods: pods[0]["metadata"]["ownerReferences"][0].update(uid="ms-0"), id="a pod of an earlier ModelServing"
        ),
    ],
)
def test_a_deployment_is_not_ready_with(spoil: Callable[[Object, list[Object]], object]) -> None:
    of, pods = serving(), all_pods()
    spoil(of, pods)
    assert isinstance(judge((0, seen(*pods, of=of))), Waiting)


def test_available_alone_proves_nothing_while_roles_are_replaced() -> None:
    """Measured: Available stays true and updatedReplicas is absent for seconds, all old pods terminating."""
    of = serving(generation=2, updateRevision="r2", updatedReplicas=None)
    pods = [terminating(one) for one in all_pods()]
    assert "are ending" in progress(judge((0, seen(*pods, of=of))))


def test_a_role_that_a_role_rollout_leaves_alone_keeps_its_old_revision() -> None:
    of = serving(generation=2, currentRevision="r2", updateRevision="r2")
    new = [pod(name, revision="r2", role_hash="h2") for name in (PREFILL_0, PREFILL_1)]
    assert judge((0, seen(*new, pod(DECODE), of=of))) == Ready()
    half = [new[0], pod(PREFILL_1), pod(DECODE)]
    assert isinstance(judge((0, seen(*half, of=of))), Waiting)


def test_a_pod_that_was_made_anew_beside_an_untouched_one_has_its_hash() -> None:
    of = serving(currentRevision="r2", updateRevision="r2")
    pods = [pod(PREFILL_0, revision="r2"), pod(PREFILL_1), pod(DECODE)]
    assert judge((0, seen(*pods, of=of))) == Ready()


def test_pods_of_two_old_templates_are_not_all_untouched() -> None:
    of = serving(currentRevision="r2", updateRevision="r2")
    pods = [pod(PREFILL_0, role_hash="h0"), pod(PREFILL_1), pod(DECODE)]
    assert isinstance(judge((0, seen(*pods, of=of))), Waiting)


def test_before_the_groups_are_updated_untouched_pods_prove_nothing() -> None:
    of = serving(generation=2, updateRevision="r2", updatedReplicas=None)
    assert isinstance(judge((0, seen(*all_pods(), of=of))), Waiting)


GROUPS = replace(GOAL, groups=3, roles={"prefill": 1, "decode": 1})


def groups_of_pods(*revisions: str) -> list[Object]:
    return [
        pod(f"pd-{number}-{name}-0-0", revision=revision, role_hash=revision)
        for number, revision in enumerate(revisions)
        for name in ("prefill", "decode")
    ]


def test_with_a_partition_the_first_groups_keep_their_revision() -> None:
    of = serving(role("prefill", 1), role("decode", 1), groups=3, updateRevision="r2", updatedReplicas=1, currentReplicas=2)
    for partition in (2, "50%"):  # a percentage of groups is rounded up
        goal = replace(GROUPS, partition=partition)
        assert judge((0, seen(*groups_of_pods("r1", "r1", "r2"), of=of)), goal=goal) == Ready()
        assert isinstance(judge((0, seen(*groups_of_pods("r1", "r1", "r1"), of=of)), goal=goal), Waiting)
    assert isinstance(judge((0, seen(*groups_of_pods("r1", "r1", "r2"), of=of)), goal=GROUPS), Waiting)


def test_groups_that_a_partition_protects_keep_their_ratio() -> None:
    roles = [role("prefill", 2), role("decode", 1)]
    of = serving(*roles, groups=2, updateRevision="r2", updatedReplicas=1)
    goal = replace(GOAL, groups=2, partition=1)
    kept = {
        "metadata": {"labels": {"modelserving.volcano.sh/name": "pd", "modelserving.volcano.sh/revision": "r1"}},
        "data": {"data": [role("prefill", 1), role("decode", 1)]},
    }
    pods = [*groups_of_pods("r1", "r2"), pod("pd-1-prefill-1-0", revision="r2", role_hash="r2")]
    assert judge((0, seen(*pods, of=of, revisions=[kept])), goal=goal) == Ready()
    assert isinstance(judge((0, seen(*pods, of=of)), goal=goal), Waiting)


def test_where_revisions_may_not_be_read_a_protected_group_is_to_have_what_it_has() -> None:
    of = serving(role("prefill", 2), role("decode", 1), groups=2, updateRevision="r2", updatedReplicas=1)
    goal = replace(GOAL, groups=2, partition=1)
    pods = [*groups_of_pods("r1", "r2"), pod("pd-1-prefill-1-0", revision="r2", role_hash="r2")]
    hidden = replace(seen(*pods, of=of), revisions_are_hidden=True)
    assert judge((0, hidden), goal=goal) == Ready()
    assert stand(goal, hidden).wanted == {"prefill": 3, "decode": 2}
    # the group that is not protected has to be complete, and the controller has to count the other one as available
    assert isinstance(judge((0, replace(hidden, pods=tuple(pods[:-1]))), goal=goal), Waiting)
    of["status"]["availableReplicas"] = 1
    assert isinstance(judge((0, hidden), goal=goal), Waiting)


def test_numbers_of_groups_and_replicas_may_have_gaps() -> None:
    pods = [pod("pd-4-prefill-7-0"), pod("pd-4-prefill-9-0"), pod("pd-4-decode-2-0")]
    assert judge((0, seen(*pods))) == Ready()


def test_workers_are_counted_beside_their_entry_pod() -> None:
    of, goal = (
        serving(role("prefill", 1), role("decode", 1, workers=1)),
        replace(GOAL, roles={"prefill": 1, "decode": 1}),
    )
    pods = [pod(PREFILL_0), pod(DECODE), pod("pd-0-decode-0-1")]
    assert judge((0, seen(*pods, of=of)), goal=goal) == Ready()
    verdict = judge((0, seen(*pods[:2], of=of)), (30, seen(*pods[:2], of=of)), goal=goal)
    assert isinstance(verdict, Waiting)
    assert verdict.lacking == Slot(group=0, role="decode", replica=0, pod=1)


def test_what_the_autoscaler_decides_is_not_wanted_otherwise() -> None:
    scaled = replace(GOAL, roles={"prefill": None, "decode": 1})
    of = serving(role("prefill", 3), role("decode", 1))
    pods = [*all_pods(), pod("pd-0-prefill-2-0")]
    assert judge((0, seen(*pods, of=of)), goal=scaled) == Ready()
    assert isinstance(judge((0, seen(*all_pods(), of=of)), goal=scaled), Waiting)


def test_nothing_is_ready_when_it_is_all_gone() -> None:
    """Of no groups from the start Kthena writes neither a condition nor what generation it has seen."""
    nothing = serving(
        groups=0, conditions=None, observedGeneration=None, availableReplicas=None, updatedReplicas=None, replicas=None
    )
    goal = replace(GOAL, groups=None)
    assert judge((0, seen(of=nothing)), goal=goal) == Ready()
    assert isinstance(judge((0, seen(pod(DECODE), of=nothing)), goal=goal), Waiting)
    assert isinstance(judge((0, seen(terminating(pod(DECODE)), of=nothing)), goal=goal), Waiting)
    unseen = copy.deepcopy(nothing)
    del unseen["status"]
    assert isinstance(judge((0, seen(of=unseen)), goal=goal), Waiting)


def test_pods_of_another_modelserving_of_the_deployment_do_not_count() -> None:
    other = pod(PREFILL_0, running())
    other["metadata"]["labels"]["modelserving.volcano.sh/name"] = "pd-0a1b2c3"
    assert judge((0, seen(*all_pods(), other))) == Ready()


@given(
    prefill=st.integers(1, 3),
    decode=st.integers(1, 3),
    groups=st.integers(1, 3),
    lost=st.data(),
)
def test_a_deployment_is_ready_with_exactly_its_pods(prefill: int, decode: int, groups: int, lost: st.DataObject) -> None:
    of = serving(role("prefill", prefill), role("decode", decode), groups=groups)
    goal = replace(GOAL, roles={"prefill": prefill, "decode": decode}, groups=groups)
    pods = [
        pod(f"pd-{group}-{name}-{index}-0")
        for group in range(groups)
        for name, count in (("prefill", prefill), ("decode", decode))
        for index in range(count)
    ]
    assert stand(goal, seen(*pods, of=of)).converged
    rest = lost.draw(st.lists(st.sampled_from(pods), max_size=len(pods) - 1, unique_by=lambda one: one["metadata"]["name"]))
    standing = stand(goal, seen(*rest, of=of))
    assert not standing.converged
    # a role's last number may be any, so names can differ; there are as many as are lost
    assert len(standing.lacking) == len(pods) - len(rest)
    assert not standing.surplus


# on its way


def test_progress_says_how_many_serve_and_what_is_waited_for() -> None:
    pods = all_pods(second=running(since=10))
    of = serving(**UNAVAILABLE)
    assert progress(judge((52, seen(*pods, of=of)))) == (
        "prefill 1/2, decode 1/1 ready; pd-0-prefill-1-0 is loading (running 42 s, not ready)"
    )


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (waiting("ContainerCreating"), "is being started (on its node for 7 s: volumes, image)"),
        (waiting("ErrImagePull", "timeout"), "does not start: container engine: ErrImagePull: timeout"),
        ({"phase": "Failed", "reason": "Evicted"}, "has failed (Evicted)"),
        (
            waiting("PodInitializing")
            | {"initContainerStatuses": [{"name": "downloader", "state": {"running": {"startedAt": at(2)}}}]},
            "runs init container downloader (5 s)",
        ),
    ],
)
def test_progress_names_the_state_of_a_pod(state: Object, said: str) -> None:
    of = serving(**UNAVAILABLE)
    assert progress(judge((7, seen(*all_pods(second=state), of=of)))).endswith(f"; {PREFILL_1} {said}")


def test_the_pod_that_is_least_far_is_the_one_that_is_waited_for() -> None:
    pods = all_pods(first=running(), third=waiting("ContainerCreating"))
    assert f"; {DECODE} is being started" in progress(judge((1, seen(*pods, of=serving(**UNAVAILABLE)))))


def test_a_status_that_lags_behind_the_pods_is_waited_for() -> None:
    assert progress(judge((1, seen(*all_pods(), of=serving(**UNAVAILABLE))))) == (
        "prefill 2/2, decode 1/1 ready; all pods serve, but Kthena's controller does not report it as available"
    )


# stuck


SHORT = (
    "0/4 nodes are available: 4 Insufficient huawei.com/ascend-1980. no new claims to deallocate, "
    "preemption: 0/4 nodes are available: 4 No preemption victims found for incoming pod."
)


@pytest.mark.parametrize(
    ("message", "problem", "remedy"),
    [
        (SHORT, f"{NPU}: asks 16, too few are free on 4 of 4 nodes", "free some, add nodes"),
        (
            "0/5 nodes are available: 1 node(s) had untolerated taint {npu: broken}, 4 Insufficient cpu, 4 Insufficient memory.",
            "1 of 5 nodes had untolerated taint {npu: broken}; cpu: asks none, too few are free on 4 of 5 nodes; memory: asks",
            "tolerate the taint",
        ),
        (
            "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector.",
            "4 of 4 nodes didn't match Pod's node affinity/selector",
            "nodeSelector",
        ),
        (
            "0/4 nodes are available: 3 node(s) didn't match Pod's node affinity/selector, 1 Insufficient cpu.",
            "3 of 4 nodes didn't match Pod's node affinity/selector",
            "nodeSelector",
        ),
        (
            '0/4 nodes are available: persistentvolumeclaim "weights" not found.',
            'persistentvolumeclaim "weights" not found',
            "bound",
        ),
        ("pod group is not ready, 3 Pending, 3 minAvailable", "pod group is not ready, 3 Pending, 3 minAvailable", "describe"),
    ],
)
def test_a_pod_that_no_node_can_take_says_what_it_lacks(message: str, problem: str, remedy: str) -> None:
    pods = [*all_pods()[:2], unscheduled(pod(DECODE, pending(message)))]
    snapshot = seen(*pods, of=serving(**UNAVAILABLE))
    patience = 60 if message.startswith("0/4 nodes are available: 4 node(s) didn't match") else 600
    assert isinstance(lasting(snapshot, patience - 1), Waiting)
    cause = only_cause(lasting(snapshot, patience))
    assert cause.kind == "unschedulable"
    assert cause.object == f"Pod default/{DECODE}"
    assert problem in cause.problem
    assert remedy in cause.remedy


def test_labels_that_no_node_has_are_named() -> None:
    lost = unscheduled(pod(DECODE, pending("0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector.")))
    lost["spec"]["nodeSelector"] = {"accelerator": "huawei-Ascend910", "zone": "a"}
    cause = only_cause(lasting(seen(*all_pods()[:2], lost, of=serving(**UNAVAILABLE)), 600))
    assert "affinity/selector (accelerator=huawei-Ascend910, zone=a)" in cause.problem


def test_room_may_come_as_long_as_pods_are_ending() -> None:
    new = [*all_pods()[:2], unscheduled(pod(DECODE, pending(SHORT)))]
    of = serving(**UNAVAILABLE)
    with_old = seen(*new, terminating(pod("pd-1-decode-0-0")), of=of)
    assert isinstance(lasting(with_old, 1200), Waiting)
    # from then on it has all of its time
    assert isinstance(judge((0, with_old), (1000, seen(*new, of=of)), (1599, seen(*new, of=of))), Waiting)
    assert isinstance(judge((0, with_old), (1000, seen(*new, of=of)), (1600, seen(*new, of=of))), Stuck)


def test_a_pod_that_gets_its_node_in_time_is_not_stuck() -> None:
    of = serving(**UNAVAILABLE)
    short = seen(*all_pods()[:2], unscheduled(pod(DECODE, pending(SHORT))), of=of)
    placed = seen(*all_pods(third=waiting("ContainerCreating")), of=of)
    assert isinstance(judge((0, short), (599, short), (600, placed), (900, placed)), Waiting)


@pytest.mark.parametrize(
    ("state", "said"),
    [({"phase": "Pending"}, "no scheduler has looked at it"), (pending(reason="SchedulingGated"), "scheduling gates")],
)
def test_a_pod_that_no_scheduler_takes_up_is_stuck_in_the_end(state: Object, said: str) -> None:
    snapshot = seen(*all_pods()[:2], unscheduled(pod(DECODE, state)), of=serving(**UNAVAILABLE))
    assert said in only_cause(lasting(snapshot, 600)).problem


def test_the_same_problem_of_many_pods_is_one_cause() -> None:
    pods = [unscheduled(pod(name, pending(SHORT))) for name in (PREFILL_0, PREFILL_1, DECODE)]
    cause = only_cause(lasting(seen(*pods, of=serving(**UNAVAILABLE)), 600))
    assert all(name in cause.object for name in (PREFILL_0, PREFILL_1, DECODE))


@pytest.mark.parametrize(
    ("reason", "message", "patience"),
    [
        ("InvalidImageName", "couldn't parse image name", 0),
        ("ErrImageNeverPull", "", 0),
        ("ErrImagePull", "manifest for vllm-ascend:v0.13.0 not found: manifest unknown", 20),
        ("ImagePullBackOff", 'Back-off pulling image "vllm-ascend:v0.13.0"', 120),
        ("ErrImagePull", "dial tcp: i/o timeout", 120),
    ],
)
def test_an_image_that_can_not_be_had(reason: str, message: str, patience: float) -> None:
    snapshot = seen(*all_pods(third=waiting(reason, message)), of=serving(**UNAVAILABLE))
    if patience:
        assert isinstance(lasting(snapshot, patience - 1), Waiting)
    cause = only_cause(lasting(snapshot, patience))
    assert cause.kind == "image"
    assert f"image vllm-ascend:v0.13.0 of engine: {reason}" in cause.problem


def test_a_pull_that_failed_and_one_that_is_backed_off_are_one_cause_of_both_pods_however_late_the_second() -> None:
    """kubelet 1.34's words."""
    failed = "vllm-ascend:v0.13.0: not found"
    backed_off = waiting("ImagePullBackOff", f'Back-off pulling image "vllm-ascend:v0.13.0": ErrImagePull: {failed}')
    of = serving(**UNAVAILABLE)
    early = seen(*all_pods(third=backed_off), of=of)
    late = seen(*all_pods(first=waiting("ErrImagePull", failed), third=backed_off), of=of)
    cause = only_cause(judge((0, early), (15, late), (20, late)))
    assert cause.problem == f"image vllm-ascend:v0.13.0 of engine: ErrImagePull: {failed}"
    assert PREFILL_0 in cause.object
    assert DECODE in cause.object


def test_an_image_that_comes_at_last_was_only_late() -> None:
    of = serving(**UNAVAILABLE)
    late = seen(*all_pods(third=waiting("ImagePullBackOff")), of=of)
    there = seen(*all_pods(third=running(since=100)), of=of)
    assert isinstance(judge((0, late), (110, late), (115, there), (200, late), (319, late)), Waiting)


def test_a_secret_that_is_missing() -> None:
    state = waiting("CreateContainerConfigError", 'secret "hub" not found')
    snapshot = seen(*all_pods(third=state), of=serving(**UNAVAILABLE))
    assert isinstance(lasting(snapshot, 59), Waiting)
    cause = only_cause(lasting(snapshot, 60))
    assert (cause.kind, cause.problem) == (
        "configuration",
        'container engine: CreateContainerConfigError: secret "hub" not found',
    )


def test_a_volume_that_can_not_be_mounted() -> None:
    stuck = pod(DECODE, waiting("ContainerCreating"))
    told = [
        event(stuck, "FailedMount", "an older complaint", last=1),
        event(stuck, "FailedMount", "hostPath type check failed: /models/x is not a directory", last=2),
        event(pod(PREFILL_0), "FailedMount", "of another pod", last=3),
    ]
    snapshot = seen(*all_pods()[:2], stuck, of=serving(**UNAVAILABLE), events=told)
    assert progress(lasting(snapshot, 59)).endswith(
        f"; {DECODE} does not start: FailedMount: hostPath type check failed: /models/x is not a directory"
    )
    assert only_cause(lasting(snapshot, 60)).problem == ("FailedMount: hostPath type check failed: /models/x is not a directory")
    mounted = seen(*all_pods()[:2], pod(DECODE, running()), of=serving(**UNAVAILABLE), events=told)
    assert isinstance(lasting(mounted, 60), Waiting)


def crashes(
    count: int, *, code: int = 1, reason: str = "Error", names: Iterable[str] = (DECODE,)
) -> list[tuple[float, Snapshot]]:
    """Snapshots of an engine that ends ``count`` times; Kthena makes the pod anew each time, under the next of ``names``."""
    named, of = list(names), serving(**UNAVAILABLE)
    found = [(0.0, seen(*all_pods()[:2], pod(named[0], running(), uid="u0"), of=of))]
    for number in range(count):
        name, began = named[number % len(named)], 100.0 * number
        last = ended(code, began, began + 42, message="loading\nRuntimeError: HCCL init failed", reason=reason)
        restarted = terminating(pod(name, running(restarts=1, last=last), uid=f"u{number}"), asked=began + 43)
        found.append((began + 44, seen(*all_pods()[:2], restarted, of=of)))
        anew = pod(named[(number + 1) % len(named)], running(), uid=f"u{number + 1}")
        found.append((began + 80, seen(*all_pods()[:2], anew, of=of)))
    return found


def test_an_engine_that_ends_again_and_again_shows_its_last_words() -> None:
    assert isinstance(judge(*crashes(2)), Waiting)
    cause = only_cause(judge(*crashes(3)))
    assert cause.kind == "crash-loop"
    assert cause.object == f"Pod default/{DECODE}"
    assert cause.problem.splitlines() == [
        "container engine ended with exit code 1 after 42 s, 3 times so far",
        "        | loading",
        "        | RuntimeError: HCCL init failed",
    ]


@pytest.mark.parametrize(
    ("code", "reason", "said", "remedy"),
    [
        (137, "OOMKilled", "for lack of memory (OOMKilled)", "decode.resources"),
        (139, "Error", "exit code 139 (SIGSEGV)", "kubectl logs"),
        (0, "Completed", "exit code 0", "kubectl logs"),
    ],
)
def test_how_an_engine_ended_is_said(code: int, reason: str, said: str, remedy: str) -> None:
    cause = only_cause(judge(*crashes(3, code=code, reason=reason)))
    assert said in cause.problem
    assert remedy in cause.remedy


def test_one_end_that_is_seen_often_is_one() -> None:
    first, end, *_ = crashes(1)
    later = [(when, end[1]) for when in (44, 45, 46, 47, 48)]
    assert isinstance(judge(first, *later), Waiting)


def test_ends_are_counted_though_the_pods_get_other_names() -> None:
    """Kthena gives a role replica that it makes anew the next number, beside others that stay."""
    names = ["pd-0-decode-0-0", "pd-0-decode-1-0", "pd-0-decode-2-0"]
    assert only_cause(judge(*crashes(3, names=names))).kind == "crash-loop"


def test_two_pods_that_end_twice_each_may_still_come_up() -> None:
    of = serving(**UNAVAILABLE)
    snapshots: list[tuple[float, Snapshot]] = [(0, seen(*all_pods(first=running(), second=running()), of=of))]
    for number in range(2):
        last = ended(1, 10 * number, 10 * number + 5)
        both = [pod(name, running(restarts=1, last=last), uid=f"{name}{number}") for name in (PREFILL_0, PREFILL_1)]
        snapshots.append((10 * number + 6, seen(*both, pod(DECODE), of=of)))
    assert isinstance(judge(*snapshots), Waiting)


def test_crashes_of_a_pod_that_serves_now_do_not_count_while_its_neighbour_loads() -> None:
    of = serving(**UNAVAILABLE)
    snapshots: list[tuple[float, Snapshot]] = [(0, seen(*all_pods(first=running(), second=running()), of=of))]
    for number in range(4):
        state = running(restarts=number + 1, last=ended(1, 10 * number, 10 * number + 5))
        snapshots.append((10 * number + 6, seen(*all_pods(first=state, second=running()), of=of)))
    assert only_cause(judge(*snapshots)).kind == "crash-loop"
    up = running(ready=True, restarts=4, last=ended(1, 30, 35))
    assert isinstance(judge(*snapshots, (50, seen(*all_pods(first=up, second=running()), of=of))), Waiting)


def test_what_ends_before_its_pod_is_told_to_end_has_crashed() -> None:
    of = serving(**UNAVAILABLE)
    snapshots: list[tuple[float, Snapshot]] = [(0, seen(*all_pods()[:2], of=of))]
    for number in range(3):
        when = 10.0 * number
        crashed = waiting("") | {"phase": "Running"}
        crashed["containerStatuses"][0]["state"] = {"terminated": ended(1, when, when + 2)}
        gone = terminating(pod(DECODE, crashed, uid=f"u{number}"), asked=when + 3)
        snapshots.append((when + 4, seen(*all_pods()[:2], gone, of=of)))
    assert "ended with exit code 1 after 2 s, 3 times" in only_cause(judge(*snapshots)).problem


def test_pods_that_are_told_to_end_have_not_crashed() -> None:
    of = serving(**UNAVAILABLE)
    snapshots: list[tuple[float, Snapshot]] = [(0, seen(*all_pods()[:2], of=of))]
    for number in range(4):
        when = 10.0 * number
        stopped = waiting("") | {"phase": "Running"}
        stopped["containerStatuses"][0]["state"] = {"terminated": ended(143, when - 5, when + 2)}
        gone = terminating(pod(DECODE, stopped, uid="u0"), asked=when + 1)
        snapshots.append((when + 3, seen(*all_pods()[:2], gone, of=of)))
    assert isinstance(judge(*snapshots), Waiting)


def test_crashes_of_the_old_template_do_not_count_against_the_new_one() -> None:
    old, of = crashes(3), serving(generation=2, updateRevision="r2", **UNAVAILABLE)
    new = [pod(name, running(), revision="r2", role_hash="h2", uid=f"new-{name}") for name in (PREFILL_0, PREFILL_1, DECODE)]
    assert isinstance(judge(*old, (400, seen(*new, of=of))), Waiting)


def test_crashes_do_not_count_once_the_role_serves() -> None:
    assert judge(*crashes(3), (400, seen(*all_pods()))) == Ready()


def test_what_had_ended_before_anybody_waited_does_not_count() -> None:
    too_slow = running(restarts=1, last=ended(137, -2000, -197))
    assert isinstance(lasting(seen(*all_pods(third=too_slow), of=serving(**UNAVAILABLE)), 10), Waiting)


def test_where_containers_may_restart_kubelet_counts() -> None:
    def backing_off(restarts: int, finished: float) -> Snapshot:
        last = {"terminated": ended(1, finished - 50, finished, "ValueError: no such model")}
        state = waiting("CrashLoopBackOff", restartCount=restarts, lastState=last)
        return seen(*all_pods(third=state), of=serving(**UNAVAILABLE))

    # its cause may have been mended before `up` was run again
    assert isinstance(lasting(backing_off(5, finished=-50), 300), Waiting)
    cause = only_cause(judge((0, backing_off(5, finished=-50)), (300, backing_off(6, finished=299))))
    assert "6 times so far\n        | ValueError: no such model" in cause.problem
    assert isinstance(judge((0, backing_off(1, finished=-50)), (10, backing_off(2, finished=9))), Waiting)


def test_pods_that_are_made_anew_unseen_are_noticed_by_their_uids() -> None:
    of = serving(**UNAVAILABLE)
    snapshots = [(10.0 * number, seen(*all_pods()[:2], pod(DECODE, running(), uid=f"u{number}"), of=of)) for number in range(4)]
    assert isinstance(judge(*snapshots[:3]), Waiting)
    assert "made anew 3 times" in only_cause(judge(*snapshots)).problem


def test_pods_that_are_refused_by_their_node_say_why() -> None:
    of = serving(**UNAVAILABLE)
    snapshots: list[tuple[float, Snapshot]] = [(0, seen(*all_pods()[:2], of=of))]
    for number in range(3):
        failed = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices"}
        snapshots.append((number + 1.0, seen(*all_pods()[:2], pod(DECODE, failed, uid=f"u{number}"), of=of)))
    assert only_cause(judge(*snapshots)).problem == (
        "the pod failed (UnexpectedAdmissionError): no healthy devices, 3 times so far"
    )


def test_an_init_container_that_fails_is_named() -> None:
    of = serving(**UNAVAILABLE)
    snapshots: list[tuple[float, Snapshot]] = [(0, seen(*all_pods()[:2], of=of))]
    for number in range(3):
        init = {"name": "downloader", "state": {"terminated": ended(2, number, number + 1, "401 Unauthorized")}}
        state = waiting("PodInitializing") | {"initContainerStatuses": [init]}
        snapshots.append((number + 1.0, seen(*all_pods()[:2], pod(DECODE, state, uid=f"u{number}"), of=of)))
    cause = only_cause(judge(*snapshots))
    assert cause.kind == "init"
    assert cause.problem.startswith("init container downloader ended with exit code 2")


def after_loading(seconds: float, code: int = 137) -> Verdict:
    """An engine that ended once after ``seconds``; its startup probe gives it 1800."""
    of = serving(**UNAVAILABLE)
    state = running(restarts=1, last=ended(code, 0, seconds, "Loading safetensors: 40%"))
    return judge((0, seen(*all_pods(third=running()), of=of)), (seconds + 1, seen(*all_pods()[:2], pod(DECODE, state), of=of)))


def test_an_engine_that_loads_for_too_long_is_killed_by_its_probe() -> None:
    cause = only_cause(after_loading(1803))
    assert cause.kind == "probe"
    assert "readiness.loadTimeout (now 30 min)" in cause.remedy
    assert "| Loading safetensors: 40%" in cause.problem
    for other in (1700, 90_000):  # it ended by itself; it had served for a day
        assert not isinstance(after_loading(other), Stuck) or only_cause(after_loading(other)).kind != "probe"


# the controller


def test_a_controller_that_makes_no_pod_is_looked_at() -> None:
    snapshot = seen(*all_pods()[:2], of=serving(**UNAVAILABLE))
    verdict = lasting(snapshot, 19)
    assert isinstance(verdict, Waiting)
    assert (verdict.is_controller_silent, verdict.lacking) == (False, None)
    verdict = lasting(snapshot, 20)
    assert isinstance(verdict, Waiting)
    assert (verdict.is_controller_silent, verdict.lacking) == (True, Slot(group=0, role="decode", replica=0, pod=0))


@pytest.mark.parametrize(
    ("snapshot", "said"),
    [
        (seen(*all_pods()[:2], of=serving(**UNAVAILABLE)), "has not made 1 pod of it for 5 min"),
        (seen(of=serving(observedGeneration=None, **UNAVAILABLE)), "has not taken notice of it"),
        (seen(*all_pods(), pod("pd-0-prefill-2-0"), of=serving(**UNAVAILABLE)), "has not taken away 1 prefill of group 0"),
        (seen(*all_pods(), of=serving(updateRevision="r2", updatedReplicas=None)), "has not replaced 3 outdated pods"),
        (seen(*all_pods(), of=serving(**UNAVAILABLE)), "does not report it as available"),
    ],
)
def test_a_controller_that_is_silent_for_long_has_it_in_its_log(snapshot: Snapshot, said: str) -> None:
    assert isinstance(lasting(snapshot, 299), Waiting)
    cause = only_cause(lasting(snapshot, 300))
    assert said in cause.problem
    assert "kubectl logs -n kthena-system deployment/kthena-controller-manager" in cause.remedy


def test_only_what_the_controller_does_not_count_may_be_another_controllers() -> None:
    pods = [*all_pods(), pod("pd-0-prefill-2-0")]
    assert "do two controllers run" in only_cause(lasting(seen(*pods), 300)).remedy
    known_to_it = serving(**UNAVAILABLE)
    outdated = serving(updateRevision="r2", updatedReplicas=None)
    for snapshot in (seen(*pods, of=known_to_it), seen(*all_pods(), of=known_to_it), seen(*all_pods(), of=outdated)):
        assert "two controllers" not in str(only_cause(lasting(snapshot, 300)))
    assert "two controllers" not in progress(judge((0, seen(*pods))))


def test_a_controller_that_acts_slowly_is_not_silent() -> None:
    of = serving(**UNAVAILABLE)
    pods = all_pods(first=running(), second=running())
    snapshots = [(200.0 * count, seen(*pods[:count], of=of)) for count in range(3)]
    assert isinstance(judge(*snapshots, (500, snapshots[-1][1])), Waiting)


def test_a_controller_that_waits_for_pods_is_not_silent() -> None:
    for snapshot in (
        seen(*all_pods(third=running()), of=serving(**UNAVAILABLE)),
        seen(*all_pods()[:2], terminating(pod(DECODE)), of=serving(**UNAVAILABLE)),
    ):
        verdict = lasting(snapshot, 1000)
        assert isinstance(verdict, Waiting)
        assert not verdict.is_controller_silent


def test_a_pod_that_the_api_server_refuses() -> None:
    refused = History(progress_at=START, refusal="exceeded quota: npus, requested: requests.huawei.com/ascend-1980=16")
    snapshot = seen(*all_pods()[:2], of=serving(**UNAVAILABLE))
    assert "pd-0-decode-0-0 is refused: exceeded quota" in progress(judge((0, snapshot), (29, snapshot), history=refused))
    cause = only_cause(judge((0, snapshot), (30, snapshot), history=refused))
    assert cause.object == f"Pod default/{DECODE}"
    assert "exceeded quota: npus" in cause.problem
    assert isinstance(
        judge((0, snapshot), (30, seen(*all_pods(third=running()), of=serving(**UNAVAILABLE))), history=refused), Waiting
    )


def test_a_refusal_of_before_is_no_cause_once_no_pod_is_missing() -> None:
    refused = History(progress_at=START, refusal="exceeded quota: npus")
    too_many = seen(*all_pods(), pod("pd-0-prefill-2-0"), of=serving(**UNAVAILABLE))
    assert isinstance(judge((0, too_many), (60, too_many), history=refused), Waiting)


def test_a_controller_that_does_not_run() -> None:
    history = History(progress_at=START, controller="no pod of Deployment kthena-system/kthena-controller-manager is available")
    snapshot = seen(of=serving(observedGeneration=None, **UNAVAILABLE))
    assert isinstance(judge((0, snapshot), (59, snapshot), history=history), Waiting)
    assert "is available" in only_cause(judge((0, snapshot), (60, snapshot), history=history)).problem


def test_somebody_else_who_changes_the_ratio_is_named() -> None:
    of = serving(role("prefill", 3), role("decode", 1))
    of["metadata"]["managedFields"] = [
        {"manager": "pulumi-kthena-pd-dev", "time": at(5)},
        {"manager": "kubectl-edit", "time": at(3)},
        {"manager": "kubectl-scale", "time": at(4)},
        {"manager": "kthena-controller-manager", "subresource": "status", "time": at(9)},
    ]
    assert isinstance(lasting(seen(*all_pods(), of=of), 2), Waiting)
    cause = only_cause(lasting(seen(*all_pods(), of=of), 3))
    assert cause.kind == "contested"
    assert f"replicas of role prefill is 3, declared 2, written by kubectl-scale at {at(4)}" in cause.problem


@pytest.mark.parametrize(
    ("snapshot", "problem", "remedy"),
    [
        (Snapshot(), "is not there (any more)", "run pulumi up again"),
        (
            seen(*all_pods(third=running()), of=terminating(serving(**UNAVAILABLE))),
            "is being deleted",
            "wait until it is gone, then run pulumi up again",
        ),
        (seen(*all_pods(), of=terminating(serving())), "is being deleted", "wait until it is gone, then run pulumi up again"),
    ],
)
def test_a_modelserving_that_is_gone_or_going(snapshot: Snapshot, problem: str, remedy: str) -> None:
    assert isinstance(lasting(snapshot, 2), Waiting)
    cause = only_cause(lasting(snapshot, 3))
    assert (cause.kind, cause.problem, cause.remedy) == ("gone", problem, remedy)


def test_progress_says_that_a_modelserving_is_being_deleted() -> None:
    assert progress(judge((0, seen(*all_pods(), of=terminating(serving()))))).endswith(
        "; the ModelServing is not as declared: it is being deleted"
    )


def test_without_progress_it_is_over_after_loading_and_scheduling() -> None:
    told = [event(pod(DECODE), "Unhealthy", f"Readiness probe failed: {number}", last=number) for number in range(5)]
    snapshot = seen(*all_pods(third=running()), of=serving(**UNAVAILABLE), events=told)
    assert isinstance(lasting(snapshot, 2399), Waiting)
    cause = only_cause(lasting(snapshot, 2400))
    assert cause.kind == "timeout"
    assert "no progress in 40 min: prefill 2/2, decode 0/1 ready" in cause.problem
    assert "Readiness probe failed: 4" in cause.problem
    assert "Readiness probe failed: 1" not in cause.problem


TWO_HOURS = 7200


@pytest.mark.parametrize("grace", [30, TWO_HOURS])
@pytest.mark.parametrize("model_serving", ["pd", "pd-0a1b2c3"])
def test_a_pod_may_drain_for_its_whole_grace_period_before_its_successor_loads(grace: int, model_serving: str) -> None:
    """Also one of a ModelServing of before, whose NPUs are to become free."""
    of, old = serving(**UNAVAILABLE), terminating(pod(DECODE), grace=grace)
    old["metadata"]["labels"]["modelserving.volcano.sh/name"] = model_serving
    ends = seen(*all_pods()[:2], old, of=of)
    loads = seen(*all_pods(third=running(since=grace + 599)), of=of)
    patience = grace + 600 + 1800
    assert isinstance(judge((0, ends), (grace, ends), (grace + 1, loads), (patience - 1, loads)), Waiting)
    cause = only_cause(judge((0, ends), (grace, ends), (grace + 1, loads), (patience, loads)))
    assert f"no progress in {patience / 60:.0f} min" in cause.problem
    assert "raise readiness.loadTimeout" in cause.remedy


def test_a_pod_that_ends_sooner_leaves_no_more_time_to_its_successor() -> None:
    of = serving(**UNAVAILABLE)
    ends = seen(*all_pods()[:2], terminating(pod(DECODE), grace=TWO_HOURS), of=of)
    loads = seen(*all_pods(third=running(since=10)), of=of)
    assert isinstance(judge((0, ends), (10, ends), (11, loads), (2409, loads)), Waiting)
    assert "no progress in 40 min" in only_cause(judge((0, ends), (10, ends), (11, loads), (2410, loads))).problem


def test_a_pod_that_does_not_end_is_not_helped_by_more_time_to_load() -> None:
    ends = seen(*all_pods()[:2], terminating(pod(DECODE), grace=TWO_HOURS), of=serving(**UNAVAILABLE))
    assert isinstance(judge((0, ends), (TWO_HOURS, ends), (TWO_HOURS + 2399, ends)), Waiting)
    cause = only_cause(judge((0, ends), (TWO_HOURS, ends), (TWO_HOURS + 2400, ends)))
    assert "loadTimeout" not in cause.remedy
    assert f"{DECODE} is ending" in cause.problem
    assert "kubectl get nodes" in cause.remedy


def test_each_pod_that_serves_for_the_first_time_gives_new_time() -> None:
    of = serving(**UNAVAILABLE)
    one = seen(*all_pods(second=running(), third=running()), of=of)
    two = seen(*all_pods(third=running()), of=of)
    assert isinstance(judge((0, one), (2300, two), (4600, two)), Waiting)
    # a pod that flickers makes no progress
    assert isinstance(judge((0, one), (1000, two), (2000, one), (3000, two), (3400, two)), Stuck)


def test_a_missing_pod_is_made_up_from_its_template() -> None:
    of = serving(role("prefill", 2), role("decode", 1, workers=1))
    of["spec"]["schedulerName"] = "default-scheduler"
    of["spec"]["template"]["roles"][1]["entryTemplate"] = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}
    made = pod_of(of, Slot(group=0, role="decode", replica=0, pod=0))
    assert made["metadata"]["name"] == DECODE
    assert made["metadata"]["labels"] | {"a": "b", "modelserving.volcano.sh/entry": "true"} == made["metadata"]["labels"]
    assert made["spec"] == {"containers": [], "schedulerName": "default-scheduler"}
    worker = pod_of(of, Slot(group=0, role="decode", replica=0, pod=1))
    assert "modelserving.volcano.sh/entry" not in worker["metadata"]["labels"]
    assert worker["spec"]["containers"]
