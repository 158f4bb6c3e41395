"""`pd diff` on a cluster that a fake API server plays: what it reads, and what it says of it."""

from __future__ import annotations

import asyncio
import copy
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.__main__ import UNREADABLE, main
from impact.report import assess, text, two_steps
from live import paths
from live.api import Api, ApiRefusedError, ClusterError
from live.edits import read_edits, retire_autoscalers
from models.role import ROLES
from models.stack import Stack
from render import render_deployment
from render.ownership import owned
from rules import read_file
from tests import stacks

STACK = "prod"
MANAGER = f"pulumi-kthena-pd-{STACK}"
NPU = "huawei.com/ascend-1980"
Object = dict[str, Any]


@dataclass
class FakeApi:
    """An API server with the requests of ``pd diff``; a dry run stores what it is given."""

    objects: dict[str, Object] = field(default_factory=dict)
    """by their paths"""
    refused: dict[str, ClusterError] = field(default_factory=dict)
    """what is answered at a path"""
    unanswered: str = ""
    """what is answered to whoever creates something"""

    def put(self, *items: Object) -> None:
        self.objects |= {paths.of(item): item for item in items}

    async def get(self, path: str) -> Object | None:
        return copy.deepcopy(self.objects.get(path))

    async def list(self, path: str, labels: str = "", fields: str = "") -> list[Object]:  # noqa: ARG002 - no test has events
        if path in self.refused:
            raise self.refused[path]
        wanted = dict(pair.split("=") for pair in labels.split(",") if "=" in pair)
        found = [item for own, item in self.objects.items() if paths.collection(item) == path or _everywhere(own) == path]
        return [item for item in found if wanted.items() <= (item["metadata"].get("labels") or {}).items()]

    async def delete(self, path: str) -> None:
        del self.objects[path]

    async def create(self, path: str, declared: Object, *, dry_run: bool = False) -> Object:
        assert dry_run, "pd diff has made something"
        assert (path, declared["metadata"]["namespace"]) == (paths.collection(declared), "default")
        if self.unanswered:
            raise ApiRefusedError(500, self.unanswered)
        return declared

    async def apply(self, declared: Object, manager: str, *, dry_run: bool = False) -> Object:
        assert dry_run, "pd diff has changed something"
        assert manager == MANAGER
        if paths.of(declared) in self.refused:
            raise self.refused[paths.of(declared)]
        return copy.deepcopy(declared)


def _everywhere(path: str) -> str:
    """The collection of an object's kind in all namespaces."""
    root, _, rest = path.partition("/namespaces/")
    return f"{root}/{rest.split('/')[1]}" if rest else path


class Cluster:
    """A stack file, and a cluster in which its deployments run as they were declared at first."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / f"Pulumi.{STACK}.yaml"
        (directory / "Pulumi.yaml").write_text("name: kthena-pd\n")
        self.api = FakeApi()
        self.declare()
        self.converge()
        for number in range(4):
            status = {"allocatable": {NPU: "16"}}
            self.api.put(
                {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{number}"}, "spec": {}, "status": status}
            )

    def declare(self, cluster: Object | None = None, **deployments: Object) -> Stack:
        config = {
            "kthena-pd:cluster": stacks.CLUSTER | (cluster or {}),
            "kthena-pd:deployments": {
                name: {"recipe": stacks.RECIPE, **edit} for name, edit in (deployments or {"chat": {}}).items()
            },
        }
        self.file.write_text(yaml.safe_dump({"config": config}))
        return self.stack

    @property
    def stack(self) -> Stack:
        return read_file(self.file)[0]

    def converge(self) -> None:
        """Make the cluster what is declared now."""
        for deployment in self.stack.deployments.values():
            for item in render_deployment(deployment, self.stack.cluster).objects:
                stored = owned(item, MANAGER)
                stored["metadata"] = stored["metadata"] | {"generation": 1, "managedFields": [{"manager": MANAGER}]}
                if item["kind"] == "ModelServing":
                    groups = item["spec"]["replicas"]
                    stored["status"] = {"observedGeneration": 1, "currentRevision": "r", "updateRevision": "r"}
                    stored["status"]["updatedReplicas"] = groups
                    self.api.put(*_pods(stored))
                self.api.put(stored)

    def said(self, capsys: pytest.CaptureFixture[str], style: str = "text") -> tuple[int, str, str]:
        sys.argv = ["pd", "diff", "--format", style, str(self.file)]
        code = main()
        captured = capsys.readouterr()
        return code, captured.out, captured.err


def _pods(serving: Object) -> Iterator[Object]:
    name, namespace = serving["metadata"]["name"], serving["metadata"]["namespace"]
    for group in range(serving["spec"]["replicas"]):
        for role in serving["spec"]["template"]["roles"]:
            for number in range(role["replicas"]):
                own = f"{name}-{group}-{role['name']}-{number}-0"
                labels = {
                    "modelserving.volcano.sh/name": name,
                    "modelserving.volcano.sh/group-name": f"{name}-{group}",
                    "modelserving.volcano.sh/role": role["name"],
                    "modelserving.volcano.sh/role-id": f"{role['name']}-{number}",
                    "modelserving.volcano.sh/revision": "r",
                    "modelserving.volcano.sh/role-template-hash": role["name"],
                }
                yield {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": own, "namespace": namespace, "uid": f"uid of {own}", "labels": labels},
                    "spec": role["entryTemplate"]["spec"] | {"nodeName": f"node-{ROLES.index(role['name'])}"},
                    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
                }


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    there = Cluster(tmp_path)

    async def connect(context: str | None) -> FakeApi:
        assert context == there.stack.cluster.context
        return there.api

    monkeypatch.setattr(Api, "connect", connect)
    return there


def test_what_is_as_declared_takes_one_line(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.said(capsys) == (0, "deployments: nothing to do, 1 as declared\n", "")


def test_a_ratio_that_grows_is_told_with_its_pods_its_capacity_and_its_npus(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.declare(chat={"ratio": "2P1D"})
    assert cluster.said(capsys) == (
        1,
        """\
chat: scaled in place, 1P1D in 1 group -> 2P1D in 1 group
  + chat-0-prefill-1-0
  serving: 1P1D now, 1P1D at the lowest, 2P1D at the end
  huawei.com/ascend-1980: 32 now, 48 at most, 48 at the end; 32 free

1 of 1 deployment changes
""",
        "",
    )


def test_a_template_that_takes_all_pods_down_is_told_with_a_warning(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.declare(chat={"prefill": {"env": {"AN": "edit"}}})
    code, said, _ = cluster.said(capsys)
    assert code == 1
    assert "chat: groups rolled, 1P1D in 1 group\n  -/+ chat-0-decode-0-0, chat-0-prefill-0-0\n" in said
    assert "serving: 1P1D now, 0P0D at the lowest, 1P1D at the end" in said
    assert "warning: requests fail meanwhile: no group has both prefill and decode" in said


def test_npus_that_are_not_free_are_a_warning_and_those_that_nobody_may_count_are_not(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in [path for path, item in cluster.api.objects.items() if item["kind"] == "Node"][1:]:
        del cluster.api.objects[path]
    cluster.declare(chat={"ratio": "2P1D"})
    lacking = f"warning: 16 {NPU} more are needed than are free: pods wait for them"
    said = cluster.said(capsys)[1]
    assert f"48 at the end; 0 free\n  {lacking}\n" in said
    cluster.api.refused[paths.nodes()] = ApiRefusedError(403, "nodes is forbidden")
    said = cluster.said(capsys)[1]
    assert "48 at the end\n\n1 of 1" in said
    assert json.loads(cluster.said(capsys, "json")[1])["freeNpus"] is None


def test_the_json_has_every_pod(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.declare(chat={"ratio": "1P2D"})
    code, said, _ = cluster.said(capsys, "json")
    whole = json.loads(said)
    (chat,) = whole["deployments"]
    assert code == 1
    assert whole["freeNpus"] == {NPU: 32}
    assert chat["shape"] == {"before": "1P1D in 1 group", "after": "1P2D in 1 group"}
    assert chat["objects"] == ["ModelServing chat"]
    assert chat["pods"] == {
        "kept": {f"chat-0-{role}-0-0": f"uid of chat-0-{role}-0-0" for role in ("prefill", "decode")},
        "removed": {},
        "created": ["chat-0-decode-1-0"],
        "churned": [],
        "namesAreCertain": True,
    }
    assert chat["capacity"]["after"] == {"prefill": 1, "decode": 2, "groups": 1}
    assert chat["npus"] == {NPU: {"before": 32, "most": 48, "after": 48}}


def test_an_edit_that_reaches_no_pod_names_the_objects_that_change(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.declare(chat={"traffic": {"timeout": "60s"}})
    code, said, _ = cluster.said(capsys)
    assert code == 1
    assert "chat: no pod is touched, 1P1D in 1 group\n  changed: ModelServer chat\n" in said


def test_a_new_deployment_is_created_and_one_that_the_stack_has_made_and_not_declared_any_more_is_removed(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.declare(other={"model": {"served": "other"}})
    code, said, _ = cluster.said(capsys)
    assert code == 1
    assert "other: created, 1P1D in 1 group\n  + other-0-decode-0-0, other-0-prefill-0-0\n" in said
    assert "chat: removed, 1P1D in 1 group\n  - chat-0-decode-0-0, chat-0-prefill-0-0\n" in said
    assert "  - ModelServer chat, ModelRoute deepseek-v4-bf27c42\n" in said
    assert "warning: requests for deepseek_v4 fail from then on: no route is left for them" in said
    assert said.endswith("2 of 2 deployments change\n")


def test_what_another_stack_has_made_is_left_to_it(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    for item in cluster.api.objects.values():
        item["metadata"]["managedFields"] = [{"manager": "pulumi-kthena-pd-else"}]
    cluster.declare(other={"model": {"served": "other"}})
    said = cluster.said(capsys)[1]
    assert "chat" not in said
    route = cluster.api.objects[paths.model_routes("default", "deepseek-v4-bf27c42")]
    route["metadata"]["managedFields"] = [{"manager": MANAGER}]
    said = cluster.said(capsys)[1]
    assert "chat: no pod is touched\n  - ModelRoute deepseek-v4-bf27c42\n" in said
    assert "chat-0" not in said


def test_where_the_whole_cluster_may_not_be_read_the_declared_namespaces_are(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.declare(other={"model": {"served": "other"}})
    cluster.api.refused[paths.model_servings()] = ApiRefusedError(403, "modelservings is forbidden")
    assert "chat: removed" in cluster.said(capsys)[1]
    cluster.declare(other={"model": {"served": "other"}, "namespace": "elsewhere"}, chat={})
    assert "removed" not in cluster.said(capsys)[1]


def test_a_template_and_a_higher_ratio_at_once_are_refused_with_two_commands(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = cluster.declare(chat={"ratio": "2P1D", "engine": {"env": {"AN": "edit"}}})
    warning = "chat-0-prefill-1-0 would be made only to be deleted again: first 1P1D with the new template, then 2P1D"
    assert f"  warning: {warning}\n" in cluster.said(capsys)[1]
    (edit,) = asyncio.run(read_edits(cluster.api, stack, MANAGER))  # type: ignore[arg-type]  # the fake one
    assert two_steps(assess(edit), STACK) == (
        "chat: the pods' template and the ratio change at once: Kthena would make chat-0-prefill-1-0 only to delete it again"
        " (kthena#1795)\n"
        "  -> in two steps:\n"
        "     pulumi config set --stack prod --path 'kthena-pd:deployments.chat.ratio' 1P1D && pulumi up --stack prod\n"
        "     pulumi config set --stack prod --path 'kthena-pd:deployments.chat.ratio' 2P1D && pulumi up --stack prod"
    )
    stack = cluster.declare(chat={"ratio": "2P1D"})
    (edit,) = asyncio.run(read_edits(cluster.api, stack, MANAGER))  # type: ignore[arg-type]  # the fake one
    assert two_steps(assess(edit), STACK) == ""


def test_a_ratio_that_a_partition_keeps_from_the_groups_below_it_is_a_warning(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    rollout = {"type": "ServingGroupRollingUpdate", "rollingUpdateConfiguration": {"partition": 1}}
    nodes = {"npu": {"family": "A3", "devicePlugin": "cce", "nodes": 8}}
    cluster.declare(nodes, chat={"groups": 2, "rolloutStrategy": rollout})
    cluster.converge()
    serving = cluster.api.objects[paths.model_servings("default", "chat")]
    names = {"modelserving.volcano.sh/name": "chat", "modelserving.volcano.sh/revision": "r"}
    recorded = {"metadata": {"name": "chat-r", "namespace": "default", "labels": names}}
    cluster.api.put(
        {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            **recorded,
            "data": {"data": serving["spec"]["template"]["roles"]},
        }
    )
    cluster.declare(nodes, chat={"groups": 2, "ratio": "2P1D", "rolloutStrategy": rollout})
    said = cluster.said(capsys)[1]
    assert "  + chat-1-prefill-1-0\n" in said
    assert "warning: 1 declared pod will not be made: groups below the partition keep their revision's ratio" in said


def test_what_the_autoscaler_has_chosen_is_not_changed_back(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    scaling = {"prefill": {"min": 1, "max": 3, "metrics": {"vllm:num_requests_waiting": "10"}}}
    cluster.declare(chat={"ratio": "1P1D", "autoscaling": scaling})
    cluster.converge()
    serving = cluster.api.objects[paths.model_servings("default", "chat")]
    serving["spec"]["template"]["roles"][0]["replicas"] = 2
    cluster.api.put(*_pods(serving))
    assert cluster.said(capsys)[0] == 0
    cluster.declare(chat={"ratio": "1P2D", "autoscaling": scaling})
    assert "scaled in place, 2P1D in 1 group -> 2P2D in 1 group\n  + chat-0-decode-1-0\n" in cluster.said(capsys)[1]


SCALING: Object = {"prefill": {"min": 1, "max": 3, "metrics": {"vllm:num_requests_waiting": "10"}}}


NO_ROUTE = "requests for deepseek_v4 fail from then on: no route is left for them"


@pytest.mark.parametrize(
    ("before", "after", "deleted"),
    [
        pytest.param({}, {"route": {"enabled": False}}, "ModelRoute deepseek-v4-bf27c42", id="route"),
        pytest.param({}, {"model": {"served": "newer"}}, "ModelRoute deepseek-v4-bf27c42", id="served name"),
        pytest.param({"autoscaling": SCALING}, {}, "AutoscalingPolicy chat", id="autoscaling"),
    ],
)
def test_what_goes_beside_the_pods_is_told(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], before: Object, after: Object, deleted: str
) -> None:
    cluster.declare(chat=before)
    cluster.converge()
    assert cluster.said(capsys)[0] == 0
    cluster.declare(chat=after)
    code, said, _ = cluster.said(capsys)
    assert code == 1
    assert f"\n  - {deleted}\n" in said
    assert (f"  warning: {NO_ROUTE}\n" in said) == ("ModelRoute" in deleted)
    (chat,) = json.loads(cluster.said(capsys, "json")[1])["deployments"]
    assert chat["deleted"] == [deleted]
    assert (NO_ROUTE in chat["warnings"]) == ("ModelRoute" in deleted)


def test_a_route_that_another_deployment_takes_over_is_none_that_goes(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.declare(renamed={})
    code, said, _ = cluster.said(capsys)
    assert code == 1
    assert "chat: removed, 1P1D in 1 group" in said
    assert "ModelRoute" not in said
    assert "no route is left" not in said
    assert "warning: nothing of it is left to serve requests" in said


def test_a_deployment_in_another_namespace_has_moved_there(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.declare(chat={"namespace": "elsewhere"})
    said = cluster.said(capsys)[1]
    assert "chat in elsewhere: created, 1P1D in 1 group" in said
    assert "chat: moved to elsewhere, 1P1D in 1 group\n  - chat-0-decode-0-0, chat-0-prefill-0-0\n" in said
    assert "warning" not in said
    _, old = json.loads(cluster.said(capsys, "json")[1])["deployments"]
    assert (old["change"], old["movedTo"]) == ("removed", "elsewhere")


def test_deployments_that_grow_together_share_what_is_free(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"model": {"served": "other"}}
    cluster.api.objects = {path: item for path, item in cluster.api.objects.items() if not path.endswith("node-3")}
    cluster.declare({"npu": {"family": "A3", "devicePlugin": "cce", "nodes": 8}}, chat={"ratio": "2P1D"}, other=other)
    said = cluster.said(capsys)[1]
    assert "48 at the end; 16 free\n\nother: created" in said
    assert f"32 at the end; 0 free\n  warning: 32 {NPU} more are needed than are free: pods wait for them\n" in said
    whole = json.loads(cluster.said(capsys, "json")[1])
    assert whole["freeNpus"] == {NPU: 16}
    assert [len(one["warnings"]) for one in whole["deployments"]] == [0, 1]


def test_an_autoscaler_s_numbers_that_a_new_version_does_not_begin_with_are_a_warning(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.api.objects.clear()
    cluster.declare(chat={"rollout": {"strategy": "BlueGreen"}, "autoscaling": SCALING})
    cluster.converge()
    edited = {"rollout": {"strategy": "BlueGreen"}, "autoscaling": SCALING, "prefill": {"env": {"AN": "edit"}}}
    cluster.declare(chat=edited)
    assert "begins with" not in cluster.said(capsys)[1]
    (serving,) = (item for item in cluster.api.objects.values() if item["kind"] == "ModelServing")
    serving["spec"]["template"]["roles"][0]["replicas"] = 3
    warning = (
        "the new version begins with the declared 1P1D in 1 group, not with the 3P1D in 1 group that the autoscaler has chosen"
    )
    assert f"  warning: {warning}\n" in cluster.said(capsys)[1]


def policies(cluster: Cluster) -> set[str]:
    return {item["metadata"]["name"] for item in cluster.api.objects.values() if item["kind"] == "AutoscalingPolicy"}


def test_autoscaling_that_is_declared_no_more_ends_before_its_numbers_are_the_stacks(cluster: Cluster) -> None:
    cluster.declare(chat={"autoscaling": SCALING})
    cluster.converge()
    asyncio.run(retire_autoscalers(cluster.api, cluster.stack, MANAGER))  # type: ignore[arg-type]  # the fake one
    assert policies(cluster) == {"chat"}
    stack = cluster.declare(chat={})
    asyncio.run(retire_autoscalers(cluster.api, stack, "pulumi-kthena-pd-else"))  # type: ignore[arg-type]  # the fake one
    assert policies(cluster) == {"chat"}
    asyncio.run(retire_autoscalers(cluster.api, stack, MANAGER))  # type: ignore[arg-type]  # the fake one
    assert policies(cluster) == set()


@pytest.mark.parametrize("strategy", ["BlueGreen", "Canary"])
def test_the_autoscaler_of_a_version_that_is_replaced_goes_on_until_then(cluster: Cluster, strategy: str) -> None:
    cluster.declare(chat={"rollout": {"strategy": strategy}, "autoscaling": SCALING})
    cluster.converge()
    (running,) = policies(cluster)
    for autoscaling in ({"autoscaling": SCALING}, {}):
        stack = cluster.declare(chat={"rollout": {"strategy": strategy}, "prefill": {"env": {"AN": "edit"}}, **autoscaling})
        asyncio.run(retire_autoscalers(cluster.api, stack, MANAGER))  # type: ignore[arg-type]  # the fake one
        assert policies(cluster) == {running}


def test_a_refusal_of_the_api_server_is_told_in_its_own_words(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.api.refused[paths.model_servings("default", "chat")] = ApiRefusedError(422, "spec.template is wrong")
    assert cluster.said(capsys)[:2] == (
        1,
        "chat: refused\n  error: ModelServing chat: spec.template is wrong\n\n1 of 1 deployment changes\n",
    )


def test_a_namespace_that_comes_with_the_stack_is_no_refusal_and_any_other_is(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking = ApiRefusedError(404, 'namespaces "new" not found')
    stack = cluster.declare(chat={"namespace": "new"})
    rendered = render_deployment(stack.deployments["chat"], stack.cluster).objects
    cluster.api.refused |= {paths.of(item): lacking for item in rendered}
    assert 'error: ModelServing chat: namespaces "new" not found' in cluster.said(capsys)[1]
    cluster.declare({"namespaces": ["new"]}, chat={"namespace": "new"})
    assert "chat in new: created, 1P1D in 1 group" in cluster.said(capsys)[1]
    cluster.declare({"controlPlane": {"namespace": "new"}}, chat={"namespace": "new"})
    assert "chat in new: created, 1P1D in 1 group" in cluster.said(capsys)[1]
    cluster.declare({"controlPlane": {"namespace": "new", "install": False}}, chat={"namespace": "new"})
    assert 'error: ModelServing chat: namespaces "new" not found' in cluster.said(capsys)[1]


@pytest.mark.parametrize(
    ("hook", "installs", "is_refused"),
    [
        ("validate-workload-ai-v1alpha1-modelserving.volcano.sh", False, True),
        ("hook.example.com", False, False),  # it may ask for objects of the namespace default alone
        ("validate-workload-ai-v1alpha1-modelserving.volcano.sh", True, False),  # the stack mends it first
    ],
)
def test_in_a_namespace_that_comes_with_the_stack_too_kthenas_webhooks_have_to_answer(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], hook: str, *, installs: bool, is_refused: bool
) -> None:
    own = {"namespaces": ["new"], "controlPlane": {"install": installs}}
    stack = cluster.declare(own, chat={"namespace": "new"})
    lacking = ApiRefusedError(404, 'namespaces "new" not found')
    cluster.api.refused |= {
        paths.of(item): lacking for item in render_deployment(stack.deployments["chat"], stack.cluster).objects
    }
    cluster.api.unanswered = f'failed calling webhook "{hook}": connection refused'
    said = cluster.said(capsys)[1]
    assert ("error: ModelServing chat: failed calling webhook" in said) == is_refused
    assert ("-> Kthena's webhook does not answer" in said) == is_refused


def test_a_canary_beside_the_deployment_touches_none_of_its_pods(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.declare(chat={"rollout": {"strategy": "Canary"}})
    cluster.api.objects.clear()
    cluster.converge()
    cluster.declare(chat={"rollout": {"strategy": "Canary", "candidate": {"engine": {"env": {"AN": "edit"}}}}})
    _, said, _ = cluster.said(capsys, "json")
    (chat,) = json.loads(said)["deployments"]
    assert (chat["change"], len(chat["pods"]["kept"]), len(chat["pods"]["created"])) == ("created", 2, 2)
    assert chat["capacity"]["lowest"] == {"prefill": 1, "decode": 1, "groups": 1}


def test_a_long_list_of_pods_is_cut_for_people(cluster: Cluster) -> None:
    stack = cluster.declare({"npu": {"family": "A3", "devicePlugin": "cce", "nodes": 20}}, chat={"ratio": "9P1D"})
    (edit,) = asyncio.run(read_edits(cluster.api, stack, MANAGER))  # type: ignore[arg-type]  # the fake one
    shown = ", ".join(f"chat-0-prefill-{number}-0" for number in range(1, 7))
    assert f"  + {shown} and 2 more\n" in text([assess(edit)], None)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("Pulumi.none.yaml", None, "Pulumi.none.yaml: No such file or directory"),
        ("stack.yaml", "config: {}", "its name does not say which stack it is of"),
        (
            "Pulumi.wrong.yaml",
            "config: {kthena-pd:deployments: {chat: {ratoi: 1P1D}}}",
            "Pulumi.wrong.yaml:1:41 kthena-pd:deployments.chat.ratoi: unknown key",
        ),
    ],
)
def test_what_is_no_readable_stack_file_is_one_message(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], name: str, content: str | None, said: str
) -> None:
    file = cluster.file.with_name(name)
    if content:
        file.write_text(content)
    sys.argv = ["pd", "diff", str(file)]
    assert main() == UNREADABLE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err


def test_a_cluster_that_does_not_answer_is_one_message(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def connect(_: str | None) -> FakeApi:
        raise ClusterError("the cluster does not answer", "does it run?")

    monkeypatch.setattr(Api, "connect", connect)
    assert cluster.said(capsys) == (2, "", "error: the cluster does not answer\n  -> does it run?\n")


def test_a_context_that_the_kubeconfig_has_not_is_a_finding_with_its_place(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = cluster.file.with_name("kubeconfig")
    kubeconfig.write_text("contexts: [{name: there}]\n")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    cluster.declare({"context": "there"}, chat={})
    assert cluster.said(capsys)[0] == 0
    cluster.declare({"context": "thre"}, chat={})
    code, _, said = cluster.said(capsys)
    assert code == 2
    assert f"PD004 {cluster.file}:3:5 kthena-pd:cluster.context: the kubeconfig has no context 'thre'" in said
    kubeconfig.write_text("[")
    assert cluster.said(capsys) == (2, "", f"error: {kubeconfig} is no kubeconfig\n")


def test_of_several_pods_that_two_steps_would_spare_it_speaks_as_of_several(cluster: Cluster) -> None:
    nodes = {"npu": {"family": "A3", "devicePlugin": "cce", "nodes": 8}}
    stack = cluster.declare(nodes, chat={"ratio": "3P1D", "engine": {"env": {"AN": "edit"}}})
    (edit,) = asyncio.run(read_edits(cluster.api, stack, MANAGER))  # type: ignore[arg-type]  # the fake one
    assert "chat-0-prefill-1-0, chat-0-prefill-2-0 only to delete them again" in two_steps(assess(edit), STACK)
