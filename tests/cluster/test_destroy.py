"""`pulumi destroy` on a real control plane: what goes, in which order, what stays, and what is kept from it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.conftest import DEPLOYMENT, Cluster, is_ready, uids, until

WATCHED = ("modelroutes", "modelservers", "modelservings", "configmaps", "pods")
OTHER = "of-somebody-else"
OTHERS = f"""\
apiVersion: v1
kind: ConfigMap
metadata: {{name: {OTHER}}}
data: {{key: value}}
---
apiVersion: workload.serving.volcano.sh/v1alpha1
kind: ModelServing
metadata: {{name: {OTHER}}}
spec:
  schedulerName: default-scheduler
  template:
    roles:
      - name: only
        replicas: 1
        workerReplicas: 0
        entryTemplate:
          spec:
            containers:
              - {{name: idle, image: "quay.io/ascend/vllm-ascend:v0.23.0-a3", command: [sleep, infinity]}}
"""


@dataclass(frozen=True)
class Watch:
    """All that happens to the objects of some kinds in namespace default, as `kubectl get --watch` tells it."""

    files: Mapping[str, Path]

    def gone(self, kind: str, name: str = DEPLOYMENT) -> list[int]:
        """When those whose names begin so were deleted, in revisions of etcd: one order over all kinds."""
        deleted = [event["object"]["metadata"] for event in _documents(self.files[kind]) if event["type"] == "DELETED"]
        return [int(metadata["resourceVersion"]) for metadata in deleted if metadata["name"].startswith(name)]


@contextmanager
def watching(cluster: Cluster, directory: Path) -> Iterator[Watch]:
    command = ["kubectl", "get", "--namespace=default", "--watch", "--output-watch-events", "--output=json"]
    files = {kind: directory / kind for kind in WATCHED}
    running = []
    try:
        for kind, file in files.items():
            with file.open("w") as output:
                running.append(subprocess.Popen([*command, kind], env=cluster.environment, stdout=output))
        until(lambda: all(file.stat().st_size for file in files.values()) or None, 30)  # each begins with what is there
        yield Watch(files)
    finally:
        for process in running:
            process.terminate()
            process.wait()


def _documents(file: Path) -> Iterator[dict[str, Any]]:
    """The whole ones; the last may still be being written."""
    rest, decoder = file.read_text().lstrip(), json.JSONDecoder()
    with suppress(json.JSONDecodeError):
        while rest:
            document, length = decoder.raw_decode(rest)
            yield document
            rest = rest[length:].lstrip()


def identity(items: list[dict[str, Any]]) -> dict[str, str]:
    """Which objects these are."""
    return {f"{item['kind']} {item['metadata']['name']}": item["metadata"]["uid"] for item in items}


def destroy(cluster: Cluster, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    return cluster.pulumi.run("destroy", "--yes", "--skip-preview", "--stack", "dev", check=check)


@pytest.fixture
def others(converged: Cluster, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A ConfigMap and a ModelServing with its pod, of somebody else in the same namespace."""
    manifest = tmp_path / "others.yaml"
    manifest.write_text(OTHERS)
    converged.kubectl("apply", "--namespace=default", "--filename", str(manifest))
    until(lambda: (all(is_ready(pod) for pod in converged.pods(OTHER).values()) and converged.pods(OTHER)) or None, 30)
    yield of_others(converged)
    converged.kubectl("delete", "--namespace=default", "--filename", str(manifest))


def of_others(cluster: Cluster) -> dict[str, str]:
    found = identity(cluster.objects("configmaps,modelservings,pods", "--namespace=default"))
    return {name: uid for name, uid in found.items() if OTHER in name}


def test_destroy_takes_route_server_and_groups_in_this_order_and_nothing_of_others(
    converged: Cluster, others: dict[str, str], tmp_path: Path
) -> None:
    pods = converged.settled_pods()
    with watching(converged, tmp_path) as watch:
        destroy(converged)
        until(lambda: len(watch.gone("pods")) >= len(pods) or None, 60)
        until(lambda: len(watch.gone("configmaps")) == 2 or None, 10)
        (route,), (server,), (serving,) = (
            watch.gone("modelroutes", ""),
            watch.gone("modelservers"),
            watch.gone("modelservings"),
        )
        assert route < server < serving < min(watch.gone("configmaps"))
        assert serving < min(watch.gone("pods"))
        assert len(watch.gone("pods")) == len(pods), "pods were made anew while the groups went"
    assert identity(converged.ours()) == {}
    assert of_others(converged) == others
    crds = {item["metadata"]["name"] for item in converged.objects("customresourcedefinitions")}
    assert "modelservings.workload.serving.volcano.sh" in crds
    exported = json.loads(converged.pulumi.run("stack", "export", "--stack", "dev").stdout)
    assert exported["deployment"].get("resources", []) == []

    converged.up()
    converged.assert_paired(1, 1)
    assert converged.ask()[1].failures == ()


def test_what_is_protected_is_neither_destroyed_nor_dropped_but_edited(converged: Cluster) -> None:
    committed = converged.config_file.read_text()
    converged.configure("cluster.protect", "true")
    converged.up()
    before = identity([*converged.ours(), *converged.settled_pods().values()])
    without = yaml.safe_load(converged.config_file.read_text())
    declared = converged.config_file.read_text()

    refused = destroy(converged, check=False)
    without["config"]["kthena-pd:deployments"] = {}
    converged.config_file.write_text(yaml.safe_dump(without))
    dropped = converged.up(check=False)
    converged.config_file.write_text(declared)
    for done in (refused, dropped):
        assert done.returncode != 0
        assert "protect" in done.stdout + done.stderr
    assert identity([*converged.ours(), *converged.pods().values()]) == before

    converged.configure(f"deployments.{DEPLOYMENT}.decode.batching.maxNumSeqs", 24)
    converged.up()
    edited = identity([*converged.ours(), *converged.settled_pods().values()])
    assert [name for name in before if name.startswith("ConfigMap") and name not in edited], "the old scripts are still there"
    assert not set(uids(converged.pods()).values()) & set(before.values())
    converged.assert_paired(1, 1)

    converged.config_file.write_text(committed)
    converged.up()
    destroy(converged)
    assert identity(converged.ours()) == {}
