"""`pd render`: what kubectl makes of the files, as docs/gitops.md says it, is what `pulumi up` makes of the stack."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from local import chat
from tests import stacks
from tests.cluster.conftest import Cluster, uids

FILES = "deploy/prod"
"""as in docs/gitops.md"""
DOCUMENTED = re.findall(r"```sh\n(.*?)```", (stacks.ROOT / "docs" / "gitops.md").read_text(), re.DOTALL)
Objects = dict[tuple[str, str], dict[str, Any]]
"""(kind, name) -> what of an object is declared"""


@dataclass(frozen=True)
class Exported:
    """One stack, made by Pulumi, then by kubectl on the emptied cluster, and handed to and fro between them."""

    directory: Path
    made_by_pulumi: set[tuple[str, str]]
    """all that has the project's label"""
    by_pulumi: Objects
    by_kubectl: Objects
    evidence: chat.Evidence
    """of a request to what kubectl has made"""
    pods: tuple[dict[str, str], ...]
    """uids of the pods that kubectl's objects led to, then after an `up`, and after kubectl has taken over again"""


@pytest.fixture(scope="module")
def exported(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    directory = tmp_path_factory.mktemp("export")
    cluster.reset()
    shutil.copy(cluster.config_file, directory / "Pulumi.dev.yaml")
    (directory / "local").symlink_to(stacks.ROOT / "local")  # where the chart is
    stream = directory / "stream.yaml"
    stream.write_text(render(cluster, directory, "-"))
    render(cluster, directory, FILES)

    made_by_pulumi = {identity(item) for item in cluster.ours()}
    by_pulumi = live(cluster, stream)
    cluster.pulumi.run("destroy", "--yes", "--skip-preview", "--stack", "dev")
    cluster.kubectl("delete", "--ignore-not-found", f"--kustomize={directory}/{FILES}/crds")
    try:
        commands, *_ = DOCUMENTED
        run(cluster, directory, "bash", "-e", "-c", commands)
        by_kubectl = live(cluster, stream)
        chat.wait_until_paired(f"http://127.0.0.1:{cluster.debug_port}", "default", "deepseekv4-pd", 1, 1, timeout=30)
        evidence = cluster.ask()[1]
        pods = [uids(all_pods(cluster))]
        cluster.up()
        pods.append(uids(all_pods(cluster)))
        run(cluster, directory, "kubectl", "apply", "--server-side", "--force-conflicts", f"--kustomize={FILES}")
        pods.append(uids(all_pods(cluster)))
        yield Exported(directory, made_by_pulumi, by_pulumi, by_kubectl, evidence, tuple(pods))
    finally:
        cluster.pulumi.run("destroy", "--yes", "--skip-preview", "--stack", "dev")


def run(cluster: Cluster, directory: Path, *command: str) -> str:
    done = subprocess.run(
        command, env=cluster.environment, cwd=directory, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def render(cluster: Cluster, directory: Path, to: str) -> str:
    return run(cluster, directory, str(stacks.ROOT / "pd"), "render", "Pulumi.dev.yaml", "--to", to)


def identity(item: dict[str, Any]) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]


def live(cluster: Cluster, stream: Path) -> Objects:
    items = json.loads(cluster.kubectl("get", "--output=json", f"--filename={stream}"))["items"]
    return {identity(item): declared(item) for item in items}


def declared(item: dict[str, Any]) -> dict[str, Any]:
    """``item`` less its status, what only Pulumi reads, and what the cluster chooses anew for each object."""
    metadata = item["metadata"]
    annotations = {
        key: value
        for key, value in metadata.get("annotations", {}).items()
        if not key.startswith(("pulumi.com/", "kthena-pd/", "deployment.kubernetes.io/"))
    }
    found: dict[str, Any] = {key: value for key, value in item.items() if key not in ("metadata", "status")}
    found["metadata"] = {key: metadata.get(key) for key in ("name", "namespace", "labels")} | {"annotations": annotations}
    if item["kind"] == "Service":
        for chosen in ("clusterIP", "clusterIPs"):
            found["spec"].pop(chosen)
        for port in found["spec"]["ports"]:
            port.pop("nodePort", None)
    for webhook in found.get("webhooks", ()):
        webhook["clientConfig"].pop("caBundle", None)
    return found


def all_pods(cluster: Cluster) -> dict[str, dict[str, Any]]:
    return {pod["metadata"]["name"]: pod for pod in cluster.objects("pods", "--all-namespaces")}


def test_kubectl_makes_of_the_files_what_pulumi_makes_of_the_stack(exported: Exported) -> None:
    assert len(exported.by_pulumi) > 25
    assert exported.by_kubectl == exported.by_pulumi


def test_nothing_that_pulumi_makes_is_missing_in_the_files(exported: Exported) -> None:
    assert exported.made_by_pulumi - exported.by_kubectl.keys() == set()


def test_what_kubectl_has_made_answers_by_prefill_and_decode(exported: Exported) -> None:
    assert exported.evidence.proven


def test_no_pod_is_made_anew_on_the_way_to_pulumi_and_back(exported: Exported) -> None:
    by_kubectl, by_pulumi, by_kubectl_again = exported.pods
    assert len(by_kubectl) == 4
    assert by_kubectl == by_pulumi == by_kubectl_again


def test_kustomize_reads_each_object_as_it_was_written_and_in_the_order_of_creation(cluster: Cluster, exported: Exported) -> None:
    built = run(cluster, exported.directory, "kubectl", "kustomize", FILES)
    written = (exported.directory / "stream.yaml").read_text()
    assert list(yaml.load_all(built, Loader=yaml.CSafeLoader)) == list(yaml.load_all(written, Loader=yaml.CSafeLoader))


def test_no_secret_is_in_the_files(exported: Exported) -> None:
    assert "Secret" not in {kind for kind, _ in exported.by_kubectl}
