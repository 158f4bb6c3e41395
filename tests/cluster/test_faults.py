"""Faults in the middle of `pulumi up` and behind its back: in the end all is as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.pulumi import end_orphans
from local import cluster as descriptions
from local import control_plane, processes
from local.state import OVERRIDE
from tests import stacks
from tests.cluster.conftest import DEPLOYMENT, Cluster, is_ready, until

Object = dict[str, Any]
UP = ("up", "--yes", "--skip-preview", "--stack", "dev")
DESTROY = ("destroy", "--yes", "--skip-preview", "--stack", "dev")
EDITS = {"none": 16, "scripts": 24}
"""decode's batching.maxNumSeqs, which is in its start script: all pods are made anew"""
SEED = 8


@dataclass(frozen=True)
class Picture:
    """What an `up` leaves behind, without what the API server and Pulumi choose anew each time."""

    objects: Mapping[str, Object]
    """of the cluster, by kind and name"""
    state: Mapping[str, Object]
    """Pulumi's, by URN"""
    left: tuple[str, ...] = ()
    """operations that Pulumi calls pending, locks, processes"""


@dataclass(frozen=True)
class Project:
    """A user's directory, with the program and the stack file of the cluster's stack dev."""

    cluster: Cluster
    directory: Path

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        """Start ``command`` in the directory, with a process group of its own; all that it says is in its standard output."""
        return subprocess.Popen(
            command,
            cwd=self.directory,
            env={**self.cluster.environment, "PYTHONPATH": str(stacks.ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def pulumi(self, *arguments: str) -> subprocess.Popen[str]:
        return self.start(["pulumi", *arguments, "--non-interactive"])

    def recover(self) -> subprocess.Popen[str]:
        return self.start([sys.executable, "-m", "cli", "recover", "--stack", "dev", "--yes"])

    def edit(self, edit: str) -> None:
        self.cluster.configure(f"deployments.{DEPLOYMENT}.decode.batching.maxNumSeqs", EDITS[edit])

    def picture(self) -> Picture:
        exported = json.loads(self.cluster.pulumi.run("stack", "export", "--stack", "dev").stdout)["deployment"]
        locks = (self.cluster.state.pulumi / "backend").glob(".pulumi/locks/**/*.json")
        left = [
            *(f"{one['type']} {one['resource']['urn']}" for one in exported.get("pending_operations") or ()),
            *(lock.name for lock in locks),
            *self.processes(),
        ]
        objects = {f"{item['kind']} {item['metadata']['name']}": _declared_part(item) for item in self.cluster.ours()}
        return Picture(objects, {item["urn"]: _chosen_part(item) for item in exported.get("resources", [])}, tuple(left))

    def processes(self) -> list[str]:
        """Pulumi's, of this directory."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if process.joinpath("cwd").readlink().is_relative_to(self.directory):
                    found.append(process.joinpath("cmdline").read_text().replace("\0", " "))
            except OSError:  # it has ended meanwhile
                continue
        return [command for command in found if "pulumi" in command]


def _declared_part(item: Object) -> Object:
    """An object without what the API server and controllers add, but with the names of all who own a field of it."""
    metadata, rest = item["metadata"], {key: value for key, value in item.items() if key not in ("metadata", "status")}
    if item["kind"] == "Service":
        addresses = ("clusterIP", "clusterIPs", "ports")
        rest["spec"] = {key: value for key, value in item["spec"].items() if key not in addresses}
    for webhook in rest.get("webhooks", ()):
        webhook["clientConfig"].pop("caBundle", None)  # of a certificate that Kthena makes anew with its namespace
    annotations = {key: value for key, value in metadata["annotations"].items() if key != "deployment.kubernetes.io/revision"}
    managers = sorted({entry["manager"] for entry in metadata["managedFields"]})
    return {"labels": metadata["labels"], "annotations": annotations, "managers": managers, **rest}


def _chosen_part(resource: Object) -> Object:
    is_provider = resource["type"].startswith("pulumi:providers:")
    kept = {key: resource.get(key) for key in ("inputs", "parent", "protect", "delete", "external", "initErrors")}
    return {**kept, "id": "" if is_provider else resource.get("id"), "dependencies": sorted(resource.get("dependencies") or ())}


def said(process: subprocess.Popen[str], words: str) -> str:
    """What ``process`` has said, once it has said ``words``."""
    assert process.stdout is not None
    heard = []
    for line in process.stdout:
        heard.append(line)
        if re.search(words, line):
            return "".join(heard)
    raise AssertionError(f"it never said {words!r}, but {''.join(heard)}")


def kill(process: subprocess.Popen[str], words: str, delay: float = 0.0) -> str:
    """Kill ``process``, and what is in its group, ``delay`` seconds after it has said ``words``. What it has said until then."""
    heard = said(process, words)
    time.sleep(delay)
    assert process.poll() is None, "it was killed too late"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return heard


def end(process: subprocess.Popen[str]) -> str:
    """What ``process`` still says until it has ended well."""
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def project(cluster: Cluster) -> Iterator[Project]:
    directory = cluster.config_file.parent / "project"
    directory.mkdir()
    for name in ("Pulumi.yaml", ".venv", "__main__.py", "local"):
        (directory / name).symlink_to(stacks.ROOT / name)
    (directory / cluster.config_file.name).symlink_to(cluster.config_file)
    yield Project(cluster, directory)
    end_orphans(cluster.state.pulumi / "home", directory)  # of a test that has failed


@pytest.fixture
def settled(project: Project) -> Project:
    """The project at rest, as its stack file is committed."""
    project.edit("none")
    project.cluster.pulumi.free_dead_lock("dev")  # of a test that has failed
    project.cluster.up()
    return project


@pytest.fixture(scope="module")
def undisturbed(project: Project) -> dict[str, Picture]:
    """What each edit leads to where nothing is in its way."""
    pictures = {}
    for edit in ("none", "scripts"):
        project.edit(edit)
        end(project.pulumi(*UP))
        pictures[edit] = project.picture()
    assert not [picture.left for picture in pictures.values() if picture.left]
    return pictures


def test_a_first_up_that_is_killed_again_and_again_ends_as_an_undisturbed_one(
    settled: Project, undisturbed: Mapping[str, Picture]
) -> None:
    end(settled.pulumi(*DESTROY))
    until(lambda: not settled.cluster.pods() or None, 60)
    kill(settled.pulumi(*UP), "ServiceAccount kthena-kthena-router creating")
    assert settled.processes(), "nothing is left that could be in the way"
    kill(settled.recover(), r"ConfigMap deepseekv4-pd-decode-\w+ creating")
    kill(settled.recover(), "ModelServing deepseekv4-pd created")
    kill(settled.recover(), "ModelServing deepseekv4-pd", 2)
    kill(settled.recover(), "ModelRoute default-deepseek-v4-bf27c42 creating")
    end(settled.recover())
    assert settled.picture() == undisturbed["none"]
    settled.cluster.assert_paired(1, 1)
    assert settled.cluster.ask()[1].failures == ()


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("scripts", "refreshing"),
        ("none", r"ConfigMap deepseekv4-pd-decode-\w+ creating"),
        ("scripts", "ModelServing deepseekv4-pd updating"),
        ("none", "ModelServing deepseekv4-pd updated"),
    ],
)
def test_an_edit_that_is_killed_is_finished_by_recover(
    project: Project, undisturbed: Mapping[str, Picture], edit: str, words: str
) -> None:
    project.edit("none" if edit == "scripts" else "scripts")
    project.cluster.up()
    project.edit(edit)
    kill(project.pulumi(*UP), words, random.Random(f"{SEED} {words}").uniform(0, 1))  # noqa: S311 - the same at every run
    end(project.recover())
    assert project.picture() == undisturbed[edit]
    project.cluster.assert_paired(1, 1)


def test_a_destroy_that_is_killed_is_taken_back_by_recover(settled: Project, undisturbed: Mapping[str, Picture]) -> None:
    # the last of it: nearly all is gone, and in the namespace, which takes seconds to end, nothing can be created
    kill(settled.pulumi(*DESTROY), "Namespace kthena-kthena-system deleting", 0.3)
    # and as a kill at the wrong moment leaves it, with which Pulumi can't read the stack
    (settled.cluster.state.pulumi / "backend/.pulumi/stacks/kthena-pd/dev.json.attrs").write_text("")
    assert "to go on deleting instead: pulumi destroy" in end(settled.recover())
    assert settled.picture() == undisturbed["none"]
    settled.cluster.assert_paired(1, 1)


def test_pulumis_state_may_be_lost(settled: Project, undisturbed: Mapping[str, Picture]) -> None:
    def there() -> dict[str, str]:
        objects = [*settled.cluster.ours(), *settled.cluster.pods().values()]
        return {f"{item['kind']} {item['metadata']['name']}": item["metadata"]["uid"] for item in objects}

    before = there()
    shutil.rmtree(settled.cluster.state.pulumi / "backend")
    (settled.cluster.state.pulumi / "backend").mkdir()
    end(settled.recover())
    assert there() == before
    assert settled.picture() == undisturbed["none"]


def kill_api_server(cluster: Cluster) -> None:
    """It comes back after a second; once the first new pod is there: what Kthena is refused it tries again ever more seldom."""
    until(
        lambda: any(not is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in cluster.pods().values()) or None,
        60,
    )
    server = processes.running(cluster.state.pids, "kube-apiserver")
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    time.sleep(1)
    control_plane.up(descriptions.load(), print)


def delete_kthena(cluster: Cluster) -> None:
    """Its controller and its router; their Deployments make them anew."""
    cluster.kubectl("delete", "pods", "--all", "--namespace=kthena-system", "--wait=false")


@pytest.mark.parametrize("strike", [kill_api_server, delete_kthena])
def test_an_up_goes_on_when_what_it_works_with_is_killed(
    settled: Project, undisturbed: Mapping[str, Picture], monkeypatch: pytest.MonkeyPatch, strike: Callable[[Cluster], None]
) -> None:
    monkeypatch.setenv(OVERRIDE, str(settled.cluster.state.directory))
    settled.edit("scripts")
    up = settled.pulumi(*UP)
    said(up, "ModelServing deepseekv4-pd updated")
    strike(settled.cluster)
    end(up)
    assert settled.picture() == undisturbed["scripts"]
    settled.cluster.assert_paired(1, 1)
    assert settled.cluster.ask()[1].failures == ()


def test_what_is_deleted_behind_pulumis_back_is_there_again_after_the_next_up(
    settled: Project, undisturbed: Mapping[str, Picture]
) -> None:
    of_kind = {
        item["kind"]: item["metadata"] for item in settled.cluster.ours() if item["metadata"].get("namespace") == "default"
    }
    assert of_kind.keys() == {"ConfigMap", "ModelServing", "ModelServer", "ModelRoute"}
    for kind, metadata in of_kind.items():
        settled.cluster.kubectl("delete", f"{kind}/{metadata['name']}", "--namespace=default")
        settled.cluster.up()
        assert settled.picture() == undisturbed["none"], kind
    settled.cluster.assert_paired(1, 1)


def test_up_wins_over_what_others_have_patched_and_says_so(settled: Project, undisturbed: Mapping[str, Picture]) -> None:
    role = "/spec/template/roles"
    patches: list[dict[str, Any]] = [
        {"/metadata/labels/app.kubernetes.io~1name": "mine", "/spec/recoveryPolicy": "None", f"{role}/0/replicas": 2},
        {f"{role}/1/replicas": 2, f"{role}/1/entryTemplate/spec/containers/0/image": "quay.io/ascend/vllm-ascend:other"},
    ]
    for patch in patches:
        operations = [{"op": "replace", "path": path, "value": value} for path, value in patch.items()]
        settled.cluster.kubectl("patch", f"modelserving/{DEPLOYMENT}", "--type=json", f"--patch={json.dumps(operations)}")
        heard = end(settled.pulumi(*UP))
        assert heard.count("changed by kubectl-patch") >= len(patch), heard
        assert settled.picture() == undisturbed["none"]
        settled.cluster.assert_paired(1, 1)
