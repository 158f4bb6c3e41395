"""What the program finds in the cluster before it registers anything."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pulumi
import pytest

from components import RefusedEditError, examination, examine, foretell_control_plane, make_way
from live import paths
from live.api import Api, ApiRefusedError, ClusterError, MissingKindError, UnknownKindError
from live.survey import Survey
from models.cluster import Cluster as Declared
from models.stack import Stack
from render import render_control_plane, render_deployment, render_namespace
from render.ownership import MANAGER, field_manager, owned
from rules import read
from tests import chart, stacks

Object = dict[str, Any]
OURS, OTHER = field_manager("kthena-pd", "test"), field_manager("kthena-pd", "other")


class Cluster:
    """An API server with some objects, that stores what it is given."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.refuses: Callable[[str, Object | None], int] = lambda *_: 0
        """path, what is applied -> status of a refusal, 0 for none"""
        self.words = "no models on Mondays"
        self.lacks_kinds = False
        """none of Kthena's"""
        self.unknown = ""
        """part of the paths of a kind that there is none of"""
        self.deleted: list[str] = []
        self.applied: list[Object] = []

    def has(self, item: Object, manager: str = OURS) -> None:
        made = owned(item, manager)
        made["metadata"] |= {"managedFields": [{"manager": manager, "operation": "Apply", "fieldsV1": {}}]}
        self.objects[paths.of(item)] = made

    async def connect(self, context: str | None) -> Cluster:
        assert context is None
        return self

    async def get(self, path: str) -> Object | None:
        self._judge(path, None)
        return copy.deepcopy(self.objects.get(path))

    async def list(self, path: str, labels: str = "", fields: str = "") -> list[Object]:  # noqa: ARG002 - as the real one
        self._judge(path, None)
        plural = path.rpartition("/")[2]
        inside = f"{path}/" if "/namespaces/" in path else f"/{plural}/"
        return [copy.deepcopy(item) for known, item in self.objects.items() if inside in known]

    async def apply(self, declared: Object, manager: str, *, dry_run: bool = False) -> Object:
        assert manager == OURS
        self._judge(paths.of(declared), declared)
        if not dry_run:
            self.applied.append(declared)
        return declared

    async def delete(self, path: str) -> None:
        self.deleted.append(path)

    def _judge(self, path: str, declared: Object | None) -> None:
        if code := self.refuses(path, declared):
            raise ApiRefusedError(code, self.words)
        if self.unknown and self.unknown in path:
            raise UnknownKindError("the cluster does not know it")
        if self.lacks_kinds and ".serving.volcano.sh/" in path:
            raise MissingKindError("the cluster has no Kthena CRDs")


class Said:
    def __init__(self) -> None:
        self.info: list[str] = []
        self.warn: list[str] = []


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(Api, "connect", made.connect)
    monkeypatch.setattr(examination, "read_survey", nothing_seen)
    return made


async def nothing_seen(*_: object) -> Survey:
    return Survey("v1.34.4", nodes=None, pods=None)


@pytest.fixture(autouse=True)
def _event_loop() -> Iterator[None]:
    """Pulumi takes the thread's loop, and a test that used asyncio.run has left none."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[Said]:
    lines = Said()
    monkeypatch.setattr(pulumi.log, "info", lines.info.append)
    monkeypatch.setattr(pulumi.log, "warn", lines.warn.append)
    yield lines
    in_a_run(preview=False)


def in_a_run(*, preview: bool) -> None:
    class Nothing(pulumi.runtime.Mocks):
        def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
            raise AssertionError(f"{args.name} was registered")

        def call(self, args: pulumi.runtime.MockCallArgs) -> Any:
            raise AssertionError(args.token)

    pulumi.runtime.set_mocks(Nothing(), project="kthena-pd", stack="test", preview=preview)


def stack(**declared: Any) -> Stack:
    return read(stacks.config(**declared))


def begin(of: Stack) -> None:
    """All that a run does before it registers anything."""
    make_way(of, examine(of))


def objects(of: Stack) -> list[Object]:
    (deployment,) = of.deployments.values()
    return list(render_deployment(deployment, of.cluster).objects)


def test_a_preview_of_something_new_says_what_will_be_there(cluster: Cluster, said: Said) -> None:
    in_a_run(preview=True)
    examine(stack())
    (report,) = said.info
    assert "deepseekv4-pd: created, 1P1D in 1 group" in report
    assert cluster.deleted == []


def test_an_up_of_what_is_there_already_has_nothing_to_say(cluster: Cluster, said: Said) -> None:
    in_a_run(preview=False)
    for item in objects(stack()):
        cluster.has(item)
    examine(stack())
    assert (said.info, said.warn) == ([], [])


@pytest.mark.parametrize("preview", [False, True])
def test_what_others_have_made_is_taken_over_in_one_line(cluster: Cluster, said: Said, *, preview: bool) -> None:
    in_a_run(preview=preview)
    for item in objects(stack()):
        made = copy.deepcopy(item)
        made["spec" if "spec" in made else "data"] |= {"more": "1"}
        made["metadata"] |= {"managedFields": [{"manager": "kubectl", "operation": "Update", "fieldsV1": {}}]}
        cluster.objects[paths.of(item)] = made
    examine(stack())
    line, *_ = said.info
    assert line.startswith(f"takes over {len(cluster.objects)} objects that others have made: ConfigMap default/")
    assert said.warn == []


@pytest.mark.parametrize("kind", ["ConfigMap", "ModelServing", "ModelServer", "ModelRoute", "Namespace"])
@pytest.mark.parametrize("preview", [False, True])
def test_what_another_stack_has_made_is_not_taken_from_it(cluster: Cluster, said: Said, kind: str, *, preview: bool) -> None:
    in_a_run(preview=preview)
    wanted = stack(cluster={"namespaces": ["shared"]})
    for item in [*objects(wanted), render_namespace("shared")]:
        cluster.has(item, OTHER if item["kind"] == kind else OURS)
    with pytest.raises(RefusedEditError) as refused:
        examine(wanted)
    assert f"{kind} " in str(refused.value)
    assert f"made by another stack, of field manager {OTHER}" in str(refused.value)
    assert f"kubectl annotate KIND NAME {MANAGER}-" in str(refused.value)
    assert said.info == []


def test_what_the_api_server_refuses_is_said_before_anything_is_registered(cluster: Cluster, said: Said) -> None:
    in_a_run(preview=False)
    cluster.refuses = lambda _, declared: 422 if declared and declared["kind"] == "ModelServing" else 0
    with pytest.raises(RefusedEditError, match="refuses ModelServing deepseekv4-pd: no models on Mondays"):
        examine(stack())
    assert said.warn == []


def test_who_may_not_see_the_control_plane_may_still_deploy(cluster: Cluster, said: Said) -> None:
    in_a_run(preview=True)
    cluster.refuses = lambda path, _: 403 if "/clusterroles" in path or path.startswith("/api/v1/namespaces/kthena-system") else 0
    examine(stack())
    assert len(said.info) == 1


def test_a_cluster_that_does_not_answer_stops_the_run_with_its_reason(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    async def connect(_: str | None) -> None:
        raise ClusterError("the cluster does not answer", "does it run?")

    in_a_run(preview=False)
    monkeypatch.setattr(Api, "connect", connect)
    with pytest.raises(RefusedEditError, match="does not answer"):
        examine(stack())
    assert said.info == []


@pytest.mark.parametrize(("preview", "edit"), [(False, {}), (True, {}), (False, {"recovery": {"restartGracePeriodSeconds": 61}})])
def test_what_somebody_has_added_inside_the_pods_is_taken_out_by_an_up_that_pulumi_would_not_touch_it_in(
    cluster: Cluster, said: Said, *, preview: bool, edit: dict[str, Any]
) -> None:
    in_a_run(preview=preview)
    for item in objects(stack()):
        cluster.has(item)
    (serving,) = [item for path, item in cluster.objects.items() if "/modelservings/" in path]
    serving["spec"]["template"]["roles"][0]["entryTemplate"]["spec"]["containers"][0]["env"].append({"name": "A", "value": "1"})
    begin(stack(**edit))
    # what is declared anew, Pulumi applies
    assert [item["kind"] for item in cluster.applied] == ([] if preview or edit else ["ModelServing"])
    assert all({"name": "A", "value": "1"} not in container_env(item) for item in cluster.applied)
    assert bool(said.info) is preview


def container_env(serving: Object) -> list[Object]:
    found: list[Object] = serving["spec"]["template"]["roles"][0]["entryTemplate"]["spec"]["containers"][0]["env"]
    return found


SCALING = {"prefill": {"min": 1, "max": 3, "metrics": {"vllm:num_requests_waiting": "10"}}}


def test_an_autoscaler_that_is_no_longer_declared_is_gone_before_the_numbers_are_the_stacks_again(
    cluster: Cluster, said: Said
) -> None:
    scaled = objects(stack(autoscaling=SCALING))
    (policy,) = [paths.of(item) for item in scaled if item["kind"] == "AutoscalingPolicy"]
    for item in scaled:
        cluster.has(item)
    for wanted, preview, deleted in [(SCALING, False, []), (None, True, []), (None, False, [policy])]:
        in_a_run(preview=preview)
        begin(stack(autoscaling=wanted) if wanted else stack())
        assert cluster.deleted == deleted
    assert said.warn == []


@pytest.mark.parametrize(
    ("deployment", "edit", "gone"),
    [
        ("renamed", {}, "deepseekv4-pd: ModelServing deepseekv4-pd"),
        ("deepseekv4-pd", {"route": {"enabled": False}}, "deepseekv4-pd: ModelRoute deepseek-v4-bf27c42"),
        ("deepseekv4-pd", {"engine": {"env": {"A": "1"}}}, ""),
    ],
)
def test_of_a_protected_stack_no_deployment_and_no_route_goes_even_without_a_preview(
    cluster: Cluster, said: Said, deployment: str, edit: dict[str, Any], gone: str
) -> None:
    in_a_run(preview=False)
    for item in objects(stack()):
        cluster.has(item)
    protected, free = (read(stacks.config(deployment, cluster={"protect": protect}, **edit)) for protect in (True, False))
    if gone:
        with pytest.raises(RefusedEditError) as refused:
            examine(protected)
        assert gone in str(refused.value)
        assert "set cluster.protect to false" in str(refused.value)
    else:
        examine(protected)
    examine(free)
    assert said.info == []


def test_on_a_cluster_without_kthenas_kinds_all_is_made_by_the_stack_that_brings_them(cluster: Cluster, said: Said) -> None:
    cluster.lacks_kinds = True
    in_a_run(preview=True)
    begin(stack())
    (report,) = said.info
    assert "deepseekv4-pd: created, 1P1D in 1 group" in report
    in_a_run(preview=False)
    begin(stack())
    assert (cluster.applied, cluster.deleted) == ([], [])


def test_on_a_cluster_without_kthenas_kinds_a_stack_that_does_not_bring_them_is_refused(cluster: Cluster) -> None:
    cluster.lacks_kinds = True
    in_a_run(preview=False)
    with pytest.raises(RefusedEditError, match="no Kthena CRDs"):
        examine(stack(cluster={"controlPlane": {"install": False}, "preflight": False}))


SILENT = 'Internal error occurred: failed calling webhook "validate-modelroute.volcano.sh": connection refused'


def silent(path: str, declared: Object | None) -> int:
    return 500 if declared and "/modelroutes/" in path else 0


def test_webhooks_that_do_not_answer_keep_nobody_from_mending_them_with_an_up(cluster: Cluster, said: Said) -> None:
    for item in objects(stack()):
        cluster.has(item)
    cluster.refuses, cluster.words = silent, SILENT
    in_a_run(preview=False)
    begin(stack())
    # neither taken for a foreign change that is to be reverted, which could not succeed either
    assert (cluster.applied, said.warn) == ([], [])


def test_webhooks_of_somebody_else_that_do_not_answer_stop_an_up_before_anything_is_made(cluster: Cluster) -> None:
    cluster.refuses, cluster.words = silent, SILENT
    in_a_run(preview=False)
    with pytest.raises(RefusedEditError, match=r"(?s)nothing was changed.*failed calling webhook.*-> Kthena's webhook does not"):
        examine(stack(cluster={"controlPlane": {"install": False}}))


LOGIN = {"issuer": "https://login.example", "jwksUri": "https://login.example/keys", "audiences": ["models"]}


def of_the_control_plane(**router: Any) -> Declared:
    return stack(cluster={"controlPlane": {"router": router}}).cluster


@pytest.mark.parametrize(
    ("router", "told"),
    [
        ({}, []),
        ({"serviceType": "NodePort"}, []),
        ({"logLevel": 4}, ["kthena-router: its 1 pod will be replaced"]),
        ({"scheduler": {"score": {"least-request": 3}}}, ["kthena-router: its 1 pod will be replaced"]),
        (
            {"authentication": LOGIN, "maxSurge": 0},
            ["kthena-router: its 1 pod will be replaced; until the new one is ready, there is none"],
        ),
    ],
)
def test_a_preview_names_the_pods_of_the_control_plane_that_are_replaced(
    cluster: Cluster, said: Said, router: dict[str, Any], told: list[str]
) -> None:
    for item in render_control_plane(of_the_control_plane(), chart.objects()):
        if item["kind"] == "Deployment":
            cluster.has(item)
    for preview in (False, True):
        in_a_run(preview=preview)
        foretell_control_plane(of_the_control_plane(**router), chart.objects())
        assert said.info == (told if preview else [])


def test_of_a_control_plane_that_is_new_or_that_nobody_may_see_a_preview_names_no_pods(cluster: Cluster, said: Said) -> None:
    in_a_run(preview=True)
    foretell_control_plane(of_the_control_plane(), chart.objects())
    cluster.refuses = lambda *_: 403
    foretell_control_plane(of_the_control_plane(logLevel=4), chart.objects())
    assert said.info == []
