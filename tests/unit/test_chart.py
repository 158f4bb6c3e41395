"""Templating by Pulumi's Kubernetes provider without an engine: what it is asked, and what is made of its answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cli import chart
from models.cluster import ControlPlane
from render.chart import ChartError

DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "router"}, "spec": {"replicas": 2, "x": 0.5}}
PLUGIN = """#!{python}
import json, sys
from concurrent.futures import ThreadPoolExecutor
import grpc
from google.protobuf.struct_pb2 import Struct
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

class Provider(provider_pb2_grpc.ResourceProviderServicer):
    def Configure(self, request, context):
        self.asked = {{"arguments": sys.argv[1:], "variables": dict(request.variables)}}
        return provider_pb2.ConfigureResponse()

    def Invoke(self, request, context):
        self.asked |= {{"token": request.tok, "options": json.loads(request.args["jsonOpts"])}}
        open({asked!r}, "w").write(json.dumps(self.asked))
        if {refusal!r}:
            context.abort(grpc.StatusCode.UNKNOWN, {refusal!r})
        answer = provider_pb2.InvokeResponse()
        getattr(answer, "return").update({{"result": [{answer!r}]}})
        return answer

print("a warning\\n" * 100_000, file=sys.stderr)
server = grpc.server(ThreadPoolExecutor(1))
provider_pb2_grpc.add_ResourceProviderServicer_to_server(Provider(), server)
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Pulumi home without plugins, and nothing on PATH."""
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "home"


def install(directory: Path, text: str) -> None:
    directory.mkdir(parents=True)
    program = directory / chart.PROGRAM
    program.write_text(text)
    program.chmod(0o755)


def plugin(asked: Path, refusal: str = "") -> str:
    return PLUGIN.format(python=sys.executable, asked=str(asked), refusal=refusal, answer=DEPLOYMENT)


def template(directory: Path) -> Any:
    return chart.template(ControlPlane(chart="charts/kthena", namespace="serving"), {"a": {"b": "1"}}, directory)


def test_the_provider_is_asked_without_a_cluster_and_its_answer_is_what_stands_in_the_chart(home: Path, tmp_path: Path) -> None:
    install(home / "plugins" / "resource-kubernetes-v4.25.0", plugin(tmp_path / "asked"))
    (found,) = template(tmp_path)
    assert found == DEPLOYMENT
    assert isinstance(found["spec"]["replicas"], int)
    asked = json.loads((tmp_path / "asked").read_text())
    assert asked.pop("options") == {
        "chart": "kthena",
        "path": str(tmp_path / "charts"),
        "release_name": "kthena",
        "namespace": "serving",
        "kube_version": "1.34.0",
        "values": {"a": {"b": "1"}},
    }
    assert asked == {
        "token": "kubernetes:helm:template",
        "arguments": [],
        "variables": {"kubernetes:config:kubeconfig": "{}"},
    }


def test_the_environments_proxy_is_not_for_the_provider(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    install(home / "plugins" / "resource-kubernetes-v4.25.0", plugin(tmp_path / "asked"))
    assert template(tmp_path) == (DEPLOYMENT,)


def test_the_provider_of_path_will_do(tmp_path: Path) -> None:
    install(tmp_path / "bin", plugin(tmp_path / "asked"))
    assert template(tmp_path) == (DEPLOYMENT,)


def test_what_the_provider_refuses_is_said(home: Path, tmp_path: Path) -> None:
    (tmp_path / "charts" / "kthena").mkdir(parents=True)
    install(home / "plugins" / "resource-kubernetes-v4.25.0", plugin(tmp_path / "asked", refusal="Chart.yaml file is missing"))
    with pytest.raises(ChartError, match=r"charts/kthena can't be templated: Chart\.yaml file is missing\n  -> "):
        template(tmp_path)


def test_where_the_provider_is_missing_it_is_said_how_to_get_it(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ChartError) as refused:
        template(tmp_path)
    assert str(refused.value) == (
        f"Kthena's chart is templated by Pulumi's Kubernetes provider, and {home}/plugins/resource-kubernetes-v4.25.0/"
        "pulumi-resource-kubernetes is not there\n"
        "  -> pulumi plugin install resource kubernetes 4.25.0; or --without-control-plane"
    )


def test_a_provider_that_does_not_start_is_no_puzzle(home: Path, tmp_path: Path) -> None:
    install(home / "plugins" / "resource-kubernetes-v4.25.0", "#!/bin/sh\necho 'no such syscall' >&2\nexit 1\n")
    with pytest.raises(ChartError, match=r"^pulumi-resource-kubernetes does not start: no such syscall$"):
        template(tmp_path)
