"""Drift: what differs from the declaration, who did it, what `up` does; and `pd drift`, which shows it."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cli.__main__ import main
from impact.drift import Drift, drift, is_foreign, reverted, scaled_fields, shown
from live import paths
from live.api import Api, ApiRefusedError, ClusterError
from models.stack import Stack
from render import render_deployment
from render.ownership import DECLARED, field_manager, owned
from rules import read, read_file
from tests import stacks

Object = dict[str, Any]
OURS = field_manager("kthena-pd", "dev")
HUMAN, AUTOSCALER, OTHER = "kubectl-edit", "kthena-controller-manager", "pulumi-kthena-pd-prod"


class Server:
    """One object in an API server: values, and who owns which of them. Lists are atomic, as all that matter of Kthena's are."""

    def __init__(self, item: Object | None = None) -> None:
        self.live: Object | None = None
        self.owners: dict[tuple[str, ...], set[str]] = {}
        self.wrote: dict[str, str] = {}
        if item:
            self.apply(item, OURS)

    def apply(self, item: Object, manager: str) -> None:
        """Server-side apply with force."""
        live: Object = self.live or {"metadata": {}}
        wanted = dict(leaves(item))
        for path in [path for path, owners in self.owners.items() if manager in owners and path not in wanted]:
            self.owners[path].discard(manager)
            if not self.owners[path]:
                del self.owners[path]
                put(live, path, None)
        for path, value in wanted.items():
            if at(live, path) != with_defaults(value):
                self.owners[path] = set()
            self.owners.setdefault(path, set()).add(manager)
            put(live, path, with_defaults(copy.deepcopy(value)))
        self._written(live, manager)

    def update(self, manager: str, change: Callable[[Object], object]) -> None:
        """What `kubectl edit` does, and a controller."""
        assert self.live is not None
        before, live = dict(leaves(self.live)), copy.deepcopy(self.live)
        change(live)
        after = dict(leaves(live))
        for path in before.keys() - after.keys():
            self.owners.pop(path, None)
        for path in after.keys() - {("metadata", "managedFields")}:
            if after[path] != before.get(path):
                self.owners[path] = {manager}
        self._written(live, manager)

    def dry_run(self, item: Object) -> Object:
        tried = copy.deepcopy(self)
        tried.apply(item, OURS)
        assert tried.live is not None
        return tried.live

    def _written(self, live: Object, manager: str) -> None:
        self.wrote[manager] = f"2026-11-30T17:00:{len(self.wrote):02d}Z"
        live["metadata"]["resourceVersion"] = str(int(live["metadata"].get("resourceVersion", 0)) + 1)
        live["metadata"]["managedFields"] = [
            {"manager": name, "time": time, "fieldsV1": tree([path for path, owners in self.owners.items() if name in owners])}
            for name, time in self.wrote.items()
        ]
        self.live = live


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    else:
        yield path, value


def at(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def put(value: Object, path: tuple[str, ...], new: Any) -> None:
    for key in path[:-1]:
        value = value.setdefault(key, {})
    if new is None:
        value.pop(path[-1], None)
    else:
        value[path[-1]] = new


def tree(owned_paths: list[tuple[str, ...]]) -> Object:
    found: Object = {}
    for path in owned_paths:
        inner = found
        for key in path:
            inner = inner.setdefault(f"f:{key}", {})
    return found


def with_defaults(value: Any) -> Any:
    """What the API server fills in: here a field of each port."""
    if isinstance(value, list):
        return [with_defaults(item) for item in value]
    if isinstance(value, dict):
        filled = {key: with_defaults(item) for key, item in value.items()}
        return {"protocol": "TCP", **filled} if "containerPort" in value else filled
    return value


def role(name: str, replicas: int = 1, image: str = "engine:v1") -> Object:
    container = {
        "name": "engine",
        "image": image,
        "command": ["bash", "start.sh"],
        "ports": [{"containerPort": 8000}],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
    }
    return {"name": name, "replicas": replicas, "entryTemplate": {"spec": {"containers": [container]}}}


def serving(*, prefill: int = 1, image: str = "engine:v1", **spec: Any) -> Object:
    """A ModelServing as the stack applies it."""
    rendered = {
        "apiVersion": "workload.serving.volcano.sh/v1alpha1",
        "kind": "ModelServing",
        "metadata": {"name": "chat", "namespace": "default", "labels": {"app.kubernetes.io/name": "chat"}},
        "spec": {
            "replicas": 1,
            "recoveryPolicy": "ServingGroupRecreate",
            "template": {"roles": [role("prefill", prefill, image), role("decode", image=image)]},
            **spec,
        },
    }
    return owned(rendered, OURS)


def of_role(name: str, change: Callable[[Object], object]) -> Callable[[Object], None]:
    def apply(live: Object) -> None:
        for one in live["spec"]["template"]["roles"]:
            if one["name"] == name:
                change(one)

    return apply


def container(one: Object) -> Object:
    found: Object = one["entryTemplate"]["spec"]["containers"][0]
    return found


def found_in(server: Server, declared: Object, scaled: frozenset[str] = frozenset()) -> tuple[Drift, ...]:
    return drift(declared, server.live, server.dry_run(declared), OURS, scaled)


def short(found: tuple[Drift, ...]) -> list[tuple[str, Any, Any, str, str, bool]]:
    return [(one.field, one.now, one.after, one.kind, one.manager, one.reverted) for one in found]


REPLICAS = "spec.template.roles[prefill].replicas"
ENGINE = "spec.template.roles[prefill].entryTemplate.spec.containers[engine]"


# --- who


def test_what_was_applied_and_not_touched_since_is_no_drift() -> None:
    server = Server(serving())
    server.update(AUTOSCALER, lambda live: live.update(status={"availableReplicas": 1}))
    assert found_in(server, serving()) == ()


@pytest.mark.parametrize(
    ("manager", "kind"),
    [
        (HUMAN, "human"),
        ("argocd-controller", "human"),
        (AUTOSCALER, "autoscaler"),
        (OTHER, "other stack"),
        ("pulumi-kubernetes-1a2b", "other stack"),
    ],
)
def test_a_number_in_the_roles_is_of_whom_the_list_belongs_to(manager: str, kind: str) -> None:
    server = Server(serving())
    server.update(manager, of_role("prefill", lambda one: one.update(replicas=3)))
    (one,) = found_in(server, serving())
    assert short((one,)) == [(REPLICAS, 3, 1, kind, manager, True)]
    assert (one.object, one.time) == ("ModelServing default/chat", "2026-11-30T17:00:01Z")


def test_roles_are_compared_by_name_and_lists_of_one_length_by_number() -> None:
    server = Server(serving())

    def change(live: Object) -> None:
        live["spec"]["template"]["roles"].insert(0, role("draft"))
        of_role("decode", lambda one: container(one).update(command=["bash", "other.sh"]))(live)

    server.update(HUMAN, change)
    found = {one.field: (one.now, one.after) for one in found_in(server, serving())}
    assert found.keys() == {
        "spec.template.roles[draft]",
        "spec.template.roles[decode].entryTemplate.spec.containers[engine].command[1]",
    }
    assert found["spec.template.roles[draft]"][1] is None
    assert found["spec.template.roles[decode].entryTemplate.spec.containers[engine].command[1]"] == ("other.sh", "start.sh")


def test_the_order_of_roles_is_a_difference_as_it_is_part_of_kthenas_revision() -> None:
    server = Server(serving())
    server.update(HUMAN, lambda live: live["spec"]["template"]["roles"].reverse())
    assert short(found_in(server, serving())) == [
        ("spec.template.roles", ["[decode]", "[prefill]"], ["[prefill]", "[decode]"], "human", HUMAN, True)
    ]


def test_a_declared_field_that_is_gone_was_taken_away_by_nobody_knows_whom() -> None:
    server = Server(serving())
    server.update(HUMAN, lambda live: live["spec"].pop("recoveryPolicy"))
    assert short(found_in(server, serving())) == [("spec.recoveryPolicy", None, "ServingGroupRecreate", "human", "", True)]


def test_what_a_typed_client_writes_along_with_a_number_is_no_drift() -> None:
    """Go's zero values: Kthena's autoscaler writes the whole list from its structs."""
    server = Server(serving())
    server.update(
        AUTOSCALER,
        of_role("prefill", lambda one: (one.update(replicas=3, workerReplicas=0), container(one).update(resources={}))),
    )
    assert [one.field for one in found_in(server, serving())] == [REPLICAS]


def test_what_else_differs_in_a_list_that_the_autoscaler_wrote_last_is_somebody_elses() -> None:
    server = Server(serving())
    server.update(HUMAN, of_role("prefill", lambda one: container(one).update(image="mine")))
    server.update(AUTOSCALER, of_role("prefill", lambda one: one.update(replicas=3)))
    assert {one.field: one.kind for one in found_in(server, serving())} == {REPLICAS: "autoscaler", f"{ENGINE}.image": "human"}


def test_an_absent_object_is_one_difference() -> None:
    (one,) = drift(serving(), None, None, OURS)
    assert (one.object, one.field, one.kind, one.reverted) == ("ModelServing default/chat", "", "absent", True)
    assert str(one) == "not in the cluster; `up` creates it"


# --- objects that no `up` has applied


def made_by(manager: str, *, image: str = "engine:v1") -> Server:
    """The object as kubectl or GitOps applies what `pd render` writes: without this program's annotations."""
    rendered = serving(image=image)
    del rendered["metadata"]["annotations"]
    server = Server()
    server.apply(rendered, manager)
    return server


@pytest.mark.parametrize("manager", ["kubectl-client-side-apply", "argocd-controller", OTHER])
def test_what_others_have_made_is_taken_over_and_nothing_of_it_is_reverted(manager: str) -> None:
    server = made_by(manager, image="engine:v0")
    server.update(AUTOSCALER, lambda live: live["spec"].update(replicas=2))
    found = found_in(server, serving())
    assert {one.kind for one in found} == {"foreign"}
    assert reverted(found) == []
    assert all("`up` takes it over" in str(one) for one in found)
    server.apply(serving(), OURS)
    server.update(manager, lambda live: live["spec"].update(replicas=2))
    assert [one.kind for one in found_in(server, serving())] != ["foreign"], "applied once, it is the stack's"


def test_what_others_have_made_as_declared_is_no_difference() -> None:
    server = made_by("argocd-controller")
    assert found_in(server, serving()) == ()
    assert server.live is not None
    assert is_foreign(server.live, OURS)


# --- edits of the stack file


def test_an_edit_that_was_not_applied_yet_is_told_from_drift() -> None:
    server = Server(serving())
    assert short(found_in(server, serving(prefill=2))) == [(REPLICAS, 1, 2, "edit", OURS, True)]


def test_an_edit_and_a_change_by_hand_of_other_fields_are_told_apart() -> None:
    server = Server(serving())
    server.update(HUMAN, lambda live: live["spec"].update(recoveryPolicy="RoleRecreate"))
    found = found_in(server, serving(image="engine:v2"))
    assert {one.field: (one.kind, one.manager) for one in found} == {
        "spec.recoveryPolicy": ("human", HUMAN),
        f"{ENGINE}.image": ("edit", OURS),
        f"{ENGINE.replace('prefill', 'decode')}.image": ("edit", OURS),
    }


def test_in_one_list_an_edit_and_a_change_by_hand_can_not_be_told_apart() -> None:
    server = Server(serving())
    server.update(HUMAN, of_role("prefill", lambda one: one.update(replicas=3)))
    found = found_in(server, serving(image="engine:v2"))
    assert {one.kind for one in found} == {"human or edit"}
    server.update(AUTOSCALER, of_role("prefill", lambda one: one.update(replicas=4)))
    found = found_in(server, serving(image="engine:v2"))
    assert {one.field: one.kind for one in found if "prefill" in one.field} == {REPLICAS: "autoscaler", f"{ENGINE}.image": "edit"}


def test_an_edit_that_was_made_by_hand_too_is_still_to_be_applied() -> None:
    server = Server(serving())
    server.update(HUMAN, lambda live: live["spec"].update(replicas=2))
    (one,) = found_in(server, serving(replicas=2))
    assert (one.field, one.kind) == (f"metadata.annotations[{DECLARED}]", "edit")


def test_an_edit_of_what_another_has_applied_with_the_same_value_is_an_edit() -> None:
    server = Server(serving())
    server.apply({"spec": {"replicas": 1}}, HUMAN)
    assert short(found_in(server, serving(replicas=2))) == [("spec.replicas", 1, 2, "edit", OURS, True)]


def test_a_field_that_is_no_longer_declared_is_an_edit() -> None:
    server = Server(serving(schedulerName="volcano"))
    assert short(found_in(server, serving())) == [("spec.schedulerName", "volcano", None, "edit", OURS, True)]


# --- what `up` leaves


def test_what_others_add_beside_the_declaration_is_told_and_left_alone() -> None:
    server = Server(serving())
    server.update(HUMAN, lambda live: live["metadata"]["labels"].update({"team.example/owner": "x"}))
    server.update(OTHER, lambda live: live["spec"].update(schedulerName="volcano"))
    server.update(AUTOSCALER, lambda live: live["metadata"].update(finalizers=["kthena"]))
    assert short(found_in(server, serving())) == [
        ("spec.schedulerName", "volcano", "volcano", "other stack", OTHER, False),
        ("metadata.labels[team.example/owner]", "x", "x", "human", HUMAN, False),
    ]


def test_what_tools_remember_in_annotations_is_no_drift() -> None:
    server = Server(serving())
    remembered = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "pulumi.com/timeoutSeconds": "600"}
    server.update(HUMAN, lambda live: live["metadata"]["annotations"].update(remembered))
    assert found_in(server, serving()) == ()


@pytest.mark.parametrize(
    "add",
    [
        lambda one: container(one)["env"].append({"name": "DEBUG", "value": "1"}),
        lambda one: one["entryTemplate"]["spec"].update(nodeSelector={"zone": "a"}),
    ],
)
def test_what_was_added_inside_the_roles_is_reverted_although_pulumi_does_not_see_it(add: Callable[[Object], None]) -> None:
    """It compares what it has applied: an item at the end of a list, or another key, is no difference (util.go pruneSlice)."""
    server = Server(serving())
    server.update(HUMAN, of_role("prefill", add))
    (one,) = found_in(server, serving())
    assert (one.kind, one.after, one.reverted) == ("human", None, True)


def test_what_was_added_at_the_front_of_a_list_pulumi_sees() -> None:
    server = Server(serving())
    server.update(HUMAN, of_role("prefill", lambda one: container(one)["env"].insert(0, {"name": "DEBUG", "value": "1"})))
    (one,) = found_in(server, serving())
    assert (one.field, one.reverted) == (f"{ENGINE}.env[DEBUG]", True)


def test_numbers_that_a_declared_autoscaler_chose_are_left() -> None:
    server = Server(serving())
    server.update(AUTOSCALER, of_role("prefill", lambda one: one.update(replicas=3)))
    scaled = frozenset({REPLICAS})
    (one,) = found_in(server, serving(), scaled)
    assert (one.field, one.now, one.after, one.kind, one.reverted) == (REPLICAS, 3, 3, "autoscaler", False)
    assert one.is_as_declared
    assert reverted([one]) == []
    server.update(HUMAN, of_role("prefill", lambda one: one["entryTemplate"].update(metadata={"labels": {"a": "b"}})))
    assert [one.reverted for one in found_in(server, serving(), scaled)] == [False, True]


def test_the_fields_that_an_autoscaler_decides_are_those_of_its_declaration() -> None:
    scaling = {"min": 1, "max": 3, "metrics": {"vllm:num_requests_waiting": "10"}}
    for given_scaling, fields in [
        (None, set()),
        ({"groups": scaling}, {"spec.replicas"}),
        ({"prefill": scaling}, {REPLICAS}),
        ({"prefill": scaling, "decode": scaling}, {REPLICAS, REPLICAS.replace("prefill", "decode")}),
    ]:
        stack = read(stacks.config(autoscaling=given_scaling) if given_scaling else stacks.config())
        assert scaled_fields(stack.deployments["deepseekv4-pd"].autoscaling) == fields


# --- in general

PLACES: list[Callable[..., object]] = [
    lambda live, value: live["spec"].update(replicas=value),
    lambda live, value: live["spec"].update(recoveryPolicy=f"policy-{value}"),
    lambda live, value: live["metadata"]["labels"].update({"added": str(value)}),
    lambda live, value: live["metadata"].setdefault("annotations", {}).update({DECLARED: f"forged-{value}"}),
    lambda live, value: of_role("prefill", lambda one: one.update(replicas=value))(live),
    lambda live, value: of_role("decode", lambda one: container(one).update(image=f"i{value}"))(live),
    lambda live, value: of_role("decode", lambda one: container(one)["env"].append({"name": f"X{value}", "value": "1"}))(live),
    lambda live, value: value and live["spec"].pop("recoveryPolicy", None),
]
WRITES = st.lists(
    st.tuples(st.sampled_from([HUMAN, AUTOSCALER, OTHER, OURS]), st.sampled_from(PLACES), st.integers(1, 4)), max_size=6
)


@given(writes=WRITES, prefill=st.integers(1, 3))
def test_whatever_was_written_what_is_said_of_up_is_what_an_apply_does(writes: list[Any], prefill: int) -> None:
    server, declared = Server(serving()), serving(prefill=prefill)
    for manager, place, value in writes:
        server.update(manager, partial(place, value=value))
    found = found_in(server, declared)
    if any(one.reverted for one in found):
        server.apply(declared, OURS)
        left = found_in(server, declared)
        assert [one for one in left if one.reverted or one.now != one.after] == []
        assert {one.field for one in left} <= {one.field for one in found}
    else:
        for path, value in leaves(declared):
            if path[-1] != "roles" and path[:2] != ("metadata", "annotations"):
                assert at(server.live, path) == value
    assert len({one.field for one in found}) == len(found)


# --- how it is said


def test_a_line_says_what_by_whom_and_what_becomes_of_it() -> None:
    server = Server(serving())
    server.update(HUMAN, of_role("prefill", lambda one: one.update(replicas=3)))
    found = found_in(server, serving())
    assert reverted(found) == [
        f"ModelServing default/chat {REPLICAS}: 3 -> 1  (changed by kubectl-edit at 2026-11-30T17:00:01Z; `up` reverts it)"
    ]
    assert reverted(found_in(Server(serving()), serving(prefill=2))) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "absent"),
        ("x y", "x y"),
        ("", '""'),
        ("a\nb", '"a\\nb"'),
        (3, "3"),
        ({"ä": [1]}, '{"ä": [1]}'),
        ("x" * 61, "x" * 57 + "..."),
    ],
)
def test_values_are_shown_in_one_short_line(value: Any, text: str) -> None:
    assert shown(value) == text


# --- pd drift


class Cluster:
    """Stands in for the API of a cluster: an API server for each object that it has."""

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}
        self.refused = ""
        self.context: str | None = None

    async def get(self, path: str) -> Object | None:
        return self.servers[path].live if path in self.servers else None

    async def apply(self, declared: Object, manager: str, *, dry_run: bool) -> Object:
        assert dry_run
        assert manager == OURS
        if self.refused == declared["kind"]:
            raise ApiRefusedError(400, "validation failed")
        server = self.servers.get(paths.of(declared))
        return server.dry_run(declared) if server else declared

    async def list(self, path: str, labels: str = "", fields: str = "") -> list[Object]:  # noqa: ARG002 - as the real one
        # of all namespaces; of one it has no ModelServing and no pod, as no test looks at them
        group, _, plural = path.rpartition("/")
        there = {own: server.live for own, server in self.servers.items() if server.live}
        return [item for own, item in there.items() if own.startswith(f"{group}/namespaces/") and own.split("/")[-2] == plural]

    async def connect(self, context: str | None) -> Cluster:
        if self.refused == "connection":
            raise ClusterError("the cluster does not answer", "does it run?")
        self.context = context
        return self


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """With all that ``Pulumi.dev.yaml`` of the current directory declares, as `up` has made it."""
    made = Cluster()
    monkeypatch.setattr(Api, "connect", made.connect)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kubeconfig").write_text("contexts: [{name: there}]\n")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    (tmp_path / "Pulumi.yaml").write_text("name: kthena-pd\n")
    declare(tmp_path)
    made.servers = servers(read(stacks.config(cluster={"context": "there"})))
    return made


def servers(stack: Stack) -> dict[str, Server]:
    (deployment,) = stack.deployments.values()
    items = [owned(item, OURS) for item in render_deployment(deployment, stack.cluster).objects]
    return {paths.of(item): Server(item) for item in items}


def declare(directory: Path, **deployment: Any) -> None:
    config = stacks.config(cluster={"context": "there"}, **deployment)
    content = {"config": {f"kthena-pd:{key}": value for key, value in config.items()}}
    (directory / "Pulumi.dev.yaml").write_text(yaml.safe_dump(content))


def model_serving(cluster: Cluster) -> Server:
    return next(server for path, server in cluster.servers.items() if "/modelservings/" in path)


def ran(capsys: pytest.CaptureFixture[str], style: str = "text", file: str = "Pulumi.dev.yaml") -> tuple[int, str, str]:
    sys.argv = ["pd", "drift", "--format", style, file]
    return main(), *capsys.readouterr()


def test_pd_drift_of_a_cluster_as_declared_is_one_line(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(capsys) == (0, f"no differences in {len(cluster.servers)} objects\n", "")
    assert cluster.context == "there"


def test_pd_drift_shows_each_object_with_its_fields(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    model_serving(cluster).update(HUMAN, of_role("prefill", lambda one: one.update(replicas=3)))
    (route,) = (path for path in cluster.servers if "/modelroutes/" in path)
    del cluster.servers[route]
    code, said, _ = ran(capsys)
    assert code == 1
    assert said == (
        "ModelServing default/deepseekv4-pd\n"
        f"  {REPLICAS}: 3 -> 1  (changed by kubectl-edit at 2026-11-30T17:00:01Z; `up` reverts it)\n"
        "\n"
        f"ModelRoute default/{route.rpartition('/')[2]}\n"
        "  not in the cluster; `up` creates it\n"
        "\n"
        f"2 differences in {len(cluster.servers) + 1} objects\n"
    )


def test_pd_drift_as_json_has_the_same(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    model_serving(cluster).update(HUMAN, of_role("prefill", lambda one: one.update(replicas=3)))
    code, said, _ = ran(capsys, "json")
    assert code == 1
    assert json.loads(said) == {
        "objects": len(cluster.servers),
        "drift": [
            {
                "object": "ModelServing default/deepseekv4-pd",
                "field": REPLICAS,
                "now": 3,
                "after": 1,
                "kind": "human",
                "manager": HUMAN,
                "time": "2026-11-30T17:00:01Z",
                "reverted": True,
            }
        ],
    }


def test_what_a_declared_autoscaler_chose_is_shown_and_is_no_drift(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    declare(tmp_path, autoscaling={"prefill": {"min": 1, "max": 3, "metrics": {"vllm:num_requests_waiting": "10"}}})
    stack, _ = read_file(Path("Pulumi.dev.yaml"))
    cluster.servers = servers(stack)
    model_serving(cluster).update(AUTOSCALER, of_role("prefill", lambda one: one.update(replicas=3)))
    code, said, _ = ran(capsys)
    assert code == 0
    assert f"{REPLICAS}: 3  (the autoscaler decides it; `up` leaves it)\n\nno differences in" in said


def test_an_edit_of_the_stack_file_is_shown_until_it_is_applied(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert ran(capsys)[0] == 0
    declare(tmp_path, ratio="2P1D")
    code, said, _ = ran(capsys)
    assert (code, said.splitlines()[1]) == (1, f"  {REPLICAS}: 1 -> 2  (declared now; no `up` has applied it yet)")
    assert len(cluster.servers) > 1


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("Pulumi.none.yaml", None, "error: Pulumi.none.yaml: No such file or directory"),
        ("Pulumi.dev.yaml", "config: [", "PD000"),
        ("Pulumi.dev.yaml", "config: {kthena-pd:cluster: {}, kthena-pd:deployments: {}}", "PD001"),
        ("Pulumi.yaml", None, "does not say which stack it is of"),
        ("stack.yaml", "", "does not say which stack it is of"),
    ],
)
def test_a_stack_file_that_is_none_is_said_to_be_none(
    capsys: pytest.CaptureFixture[str], file: str, content: str | None, said: str
) -> None:
    if content is not None:
        Path(file).write_text(content)
    code, output, errors = ran(capsys, file=file)
    assert (code, output) == (2, "")
    assert said in errors


def test_the_name_of_the_file_says_whose_objects_they_are(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    Path("Pulumi.dev.yaml").rename("mine.yaml")
    code, _, errors = ran(capsys, file="mine.yaml")
    assert (code, cluster.context) == (2, None)
    assert "does not say which stack it is of; Pulumi.STACK.yaml would" in errors


def test_a_cluster_that_can_not_be_read_is_no_drift(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.refused = "connection"
    assert ran(capsys) == (2, "", "error: the cluster does not answer\n  -> does it run?\n")


def test_what_the_api_server_refuses_is_told_beside_what_differs(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.refused = "ModelServing"
    assert ran(capsys) == (
        1,
        f"no differences in {len(cluster.servers) - 1} objects\n",
        "error: deepseekv4-pd: the API server refuses ModelServing deepseekv4-pd: validation failed\n",
    )


def test_what_is_declared_no_more_is_shown_until_up_deletes_it(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (route,) = (path.rpartition("/")[2] for path in cluster.servers if "/modelroutes/" in path)
    declare(tmp_path, route={"enabled": False})
    code, said, _ = ran(capsys)
    line = f"ModelRoute default/{route}\n  not declared any more; `up` deletes it\n"
    assert (code, line in said) == (1, True)
    (found,) = json.loads(ran(capsys, "json")[1])["drift"]
    assert (found["kind"], found["reverted"]) == ("undeclared", True)
