"""``pd preflight`` against a server on this machine that answers as an API server would."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from cli import preflight
from cli.__main__ import UNREADABLE, main
from live.api import Api
from live.permissions import EVERYTHING, Permission, needed
from live.plan import Plan
from live.survey import Survey, read_survey
from rules import read
from tests import stacks
from tests.unit.test_live_api import Config, Server, config, serving

__all__ = ["config"]
Object = dict[str, Any]
FORBIDDEN: tuple[int, Object] = (403, {"kind": "Status", "code": 403, "message": "nodes is forbidden"})
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def listed(*items: Object) -> tuple[int, Object]:
    return 200, {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": list(items)}


def absent(name: str) -> tuple[int, Object]:
    return 404, {"kind": "Status", "code": 404, "message": f'"{name}" not found', "details": {"name": name}}


def node(name: str) -> Object:
    capacity = {"cpu": "192", "memory": "2Ti", "pods": "110", "huawei.com/ascend-1980": "16"}
    labels = {"kubernetes.io/arch": "arm64", "accelerator-type": "module-a3-16"}
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": {"allocatable": capacity}}


@dataclass
class Cluster(Server):
    """Allows what is not in ``denied``; hands out its nodes one by one."""

    denied: frozenset[str] = frozenset()
    """verbs; ``*``: not an administrator"""
    keeps_quiet: bool = False
    """of what is allowed"""
    nodes: tuple[str, ...] = ("a", "b")
    reviewed: list[Object] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        here = "/api/v1/namespaces/default"
        self.answers |= {
            here: (200, {"kind": "Namespace", "metadata": {"name": "default"}, "status": {"phase": "Active"}}),
            "/api/v1/namespaces/kthena-system": absent("kthena-system"),
            "/api/v1/pods": listed(),
            "/apis/apps/v1/deployments": listed(),
            f"{here}/resourcequotas": listed(),
            f"{here}/limitranges": listed(),
        } | self.answers

    async def answer(self, target: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        if target.startswith(REVIEWS):
            asked = json.loads(self.asked[-1].body)["spec"]["resourceAttributes"]
            self.reviewed.append(asked)
            answer = {"kind": "SelfSubjectAccessReview", "status": {"allowed": asked["verb"] not in self.denied}}
            self.answers[REVIEWS] = FORBIDDEN if self.keeps_quiet else (201, answer)
        if target.startswith("/api/v1/nodes") and "/api/v1/nodes" not in self.answers:
            number = int(parse_qs(urlsplit(target).query).get("continue", ["0"])[0])
            status, page = listed(node(self.nodes[number]))
            page["metadata"] = {"continue": str(number + 1)} if number + 1 < len(self.nodes) else {}
            self.answers = {**self.answers, target.partition("?")[0]: (status, page)}
            await super().answer(target, headers, writer)
            del self.answers["/api/v1/nodes"]
            return
        await super().answer(target, headers, writer)


def stack_file(directory: Path, **declared: Any) -> Path:
    content = stacks.config("chat", **declared)
    file = directory / "Pulumi.dev.yaml"
    file.write_text(yaml.safe_dump({"config": {f"kthena-pd:{key}": value for key, value in content.items()}}))
    return file


async def survey_of(server: Server, config: Config, plan: Plan) -> Survey:
    async with serving(server):
        config(f"http://127.0.0.1:{server.port}")
        return await read_survey(await Api.connect(None), plan)


def plan(**declared: Any) -> Plan:
    return Plan(read(stacks.config("chat", **declared)))


class Run:
    """The command in a thread of its own, beside the server's loop."""

    def __init__(self, server: Server, config: Config) -> None:
        self.server, self.config = server, config

    async def __call__(self, file: Path, style: str = "text") -> int:
        async with serving(self.server):
            self.config(f"http://127.0.0.1:{self.server.port}")
            return await asyncio.to_thread(preflight.run, file, style)


def test_a_cluster_that_fits_is_exit_code_0(config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asyncio.run(Run(Cluster(), config)(stack_file(tmp_path))) == preflight.FITS
    assert capsys.readouterr().out == "no findings in 1 file\n"


def test_what_is_lacking_is_shown_together_with_its_places_and_is_exit_code_1(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Cluster(nodes=("a",), denied=frozenset({"*", "patch"}))
    server.answers["/api/v1/namespaces/ai"] = absent("ai")
    server.answers["/api/v1/namespaces/ai/resourcequotas"] = server.answers["/api/v1/namespaces/ai/limitranges"] = FORBIDDEN
    assert asyncio.run(Run(server, config)(stack_file(tmp_path, namespace="ai"))) == preflight.LACKS
    said = capsys.readouterr().out
    for code, path in [
        ("PF002", "cluster.context"),
        ("PF004", "cluster.context"),
        ("PF201", "deployments.chat.namespace"),
        ("PF401", "deployments.chat.ratio"),
    ]:
        assert any(line.startswith(f"{code} {tmp_path}") and f"kthena-pd:{path}: " in line for line in said.splitlines()), code
    assert "list resourcequotas in namespace ai" in said
    assert "may not patch" in said


def test_json_has_the_shape_of_pd_check(config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asyncio.run(Run(Cluster(nodes=("a",)), config)(stack_file(tmp_path), "json")) == preflight.LACKS
    told = json.loads(capsys.readouterr().out)
    assert (told["errors"], [one["code"] for one in told["findings"]]) == (1, ["PF401"])
    assert told["findings"][0]["path"] == "kthena-pd:deployments.chat.ratio"


@pytest.mark.parametrize("mistake", [{"ratio": "0P1D"}, {"cluster": {"context": "elsewhere"}}])
def test_mistakes_of_the_stack_file_are_findings_in_the_chosen_format_and_the_cluster_is_not_asked(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str], mistake: dict[str, Any]
) -> None:
    config("http://127.0.0.1:1")
    file = stack_file(tmp_path, **mistake)
    sys.argv = ["pd", "preflight", "--format", "json", str(file)]
    assert main() == preflight.LACKS
    said = capsys.readouterr()
    (found,) = json.loads(said.out)["findings"]
    assert (found["file"], found["severity"], found["code"]) == (str(file), "error", "PD001" if "ratio" in mistake else "PD004")
    assert found["line"] > 1
    assert said.err == ""


@pytest.mark.parametrize("broken", ["file", "cluster"])
def test_what_cannot_be_read_is_exit_code_2(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    config("http://127.0.0.1:1")
    file = stack_file(tmp_path)
    sys.argv = ["pd", "preflight", str(tmp_path / "none.yaml" if broken == "file" else file)]
    assert main() == UNREADABLE
    said = capsys.readouterr()
    expected = {"file": "No such file", "cluster": "does not answer"}[broken]
    assert said.err.startswith("error: ")
    assert expected in said.err
    assert said.out == ""


def test_all_pages_are_read_and_an_administrator_is_asked_for_once(config: Config) -> None:
    server = Cluster(nodes=("a", "b", "c"))
    seen = asyncio.run(survey_of(server, config, plan()))
    assert [one.name for one in seen.nodes or ()] == ["a", "b", "c"]
    assert [one["verb"] for one in server.reviewed] == ["*"]
    assert (seen.denied, seen.unseen) == ((), ())


def test_who_is_no_administrator_is_asked_about_each_thing_that_up_does(config: Config) -> None:
    made = plan()
    server = Cluster(denied=frozenset({"*", "delete"}))
    seen = asyncio.run(survey_of(server, config, made))
    wanted = set(needed(made.stack.cluster, made.objects))
    assert len(server.reviewed) == len(wanted) + 1
    assert {one.resource for one in seen.denied} == {one.resource for one in wanted if one.verb == "delete"} != set()
    # Pulumi applies, waits for what it has applied, and asks the router
    assert Permission("patch", "workload.serving.volcano.sh", "modelservings", "default") in wanted
    assert Permission("watch", "workload.serving.volcano.sh", "modelservings", "default") in wanted
    assert Permission("get", "", "pods/portforward", "kthena-system") in wanted
    assert Permission("patch", "apiextensions.k8s.io", "customresourcedefinitions", "") in wanted
    assert EVERYTHING not in wanted


def test_a_user_without_rights_on_the_control_plane_needs_none_where_it_is_there_already() -> None:
    made = plan(cluster={"controlPlane": {"install": False}})
    assert {one.namespace for one in needed(made.stack.cluster, made.objects)} == {"default", "kthena-system"}
    assert {one.verb for one in needed(made.stack.cluster, made.objects) if one.namespace == "kthena-system"} == {"get", "list"}


def test_monitors_and_certificates_need_rights_too() -> None:
    declared = {"monitoring": {"dashboardNamespace": "grafana"}, "controlPlane": {"certificates": "cert-manager"}}
    made = plan(cluster=declared)
    wanted = set(needed(made.stack.cluster, made.objects))
    assert Permission("patch", "monitoring.coreos.com", "podmonitors", "default") in wanted
    assert Permission("create", "cert-manager.io", "certificates", "kthena-system") in wanted
    assert {one.resource for one in wanted if one.namespace == "grafana"} == {"configmaps"}


def test_of_a_secret_only_its_existence_is_read(config: Config) -> None:
    download = {"source": "hf://a/b", "cache": {"hostPath": "/models/w"}, "credentials": "token"}
    server = Cluster()
    server.answers["/api/v1/namespaces/default/secrets/token"] = (
        200,
        {"kind": "PartialObjectMetadata", "metadata": {"name": "token"}},
    )
    seen = asyncio.run(survey_of(server, config, plan(model={"weights": {"hostPath": None, "download": download}})))
    (asked,) = [one for one in server.asked if "/secrets/" in one.target]
    assert "PartialObjectMetadata" in asked.headers["accept"]
    assert {str(reference): found for reference, found in seen.found.items() if "Secret" in str(reference)} == {
        "Secret default/token": {}
    }


def test_what_is_forbidden_is_unseen_and_all_else_is_read(config: Config) -> None:
    server = Cluster(keeps_quiet=True)
    server.answers |= {"/api/v1/nodes": FORBIDDEN, "/api/v1/pods": FORBIDDEN, "/apis/apps/v1/deployments": FORBIDDEN}
    server.answers["/apis/apps/v1/namespaces/kthena-system/deployments"] = listed({"metadata": {"name": "kthena-router"}})
    seen = asyncio.run(survey_of(server, config, plan()))
    assert (seen.nodes, seen.pods, seen.free) == (None, None, None)
    assert seen.unseen == ("create selfsubjectaccessreviews", "list nodes in the cluster", "list pods in the cluster")
    assert seen.control_planes
    assert seen.version == "v1.34.4"
