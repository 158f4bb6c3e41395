"""A deployment that somebody has applied by hand becomes a stack's: by the commands that `pd import` prints, pods as they are."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import stacks
from tests.cluster.conftest import Cluster, Pods, is_ready, uids, until

MANIFEST = stacks.ROOT / "tests" / "importer" / "hand-written.yaml"
KINDS = "modelservings,modelservers,modelroutes,configmaps"
STACK = "moved"


@pytest.fixture(scope="module")
def project(cluster: Cluster) -> Path:
    """A checkout of the user's own, without stack files."""
    directory = cluster.config_file.parent / "project-of-import"
    directory.mkdir()
    for entry in stacks.ROOT.iterdir():
        if not entry.match("Pulumi.*.yaml") and entry.name != ".git":
            (directory / entry.name).symlink_to(entry)
    return directory


@pytest.fixture(scope="module")
def hand_written(cluster: Cluster) -> Iterator[Pods]:
    """The pods of the deployment as kubectl has made it."""
    cluster.reset()  # the tests before may have left no Kthena
    cluster.kubectl("apply", "-f", str(MANIFEST))

    def ready() -> Pods | None:
        pods = cluster.pods("hand")
        return pods if len(pods) == 2 and all(is_ready(pod) for pod in pods.values()) else None

    yield until(ready, 120)
    cluster.kubectl("delete", "-f", str(MANIFEST), "--ignore-not-found")


def run(cluster: Cluster, project: Path, command: str) -> subprocess.CompletedProcess[str]:
    environment = {**cluster.environment, "PULUMI_SKIP_CONFIRMATIONS": "true", "PYTHON": sys.executable}
    return subprocess.run(
        shlex.split(command), cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def printed_commands(report: str) -> list[str]:
    lines = [line.strip() for line in report.partition("can be adopted")[2].splitlines()]
    return [line for line in lines if line.startswith(("kubectl ", "pulumi ", "./pd "))]


def test_the_printed_commands_adopt_live_objects_and_then_change_what_was_said(
    cluster: Cluster, project: Path, hand_written: Pods
) -> None:
    live = project / "live.yaml"
    live.write_text(cluster.kubectl("get", KINDS, "--namespace=default", "--output=yaml"))
    own = [document for document in live.read_text().split("- apiVersion:") if "name: hand" in document]
    live.write_text("apiVersion: v1\nkind: List\nitems:\n- apiVersion:" + "- apiVersion:".join(own))

    imported = run(cluster, project, f"./pd import live.yaml --to Pulumi.{STACK}.yaml --adopt adopt.json")
    assert imported.returncode == 0, imported.stdout + imported.stderr
    assert "IM900" not in imported.stdout
    commands = printed_commands(imported.stdout)
    diff = commands.index(f"./pd diff Pulumi.{STACK}.yaml")

    for command in commands[:diff]:
        done = run(cluster, project, command)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert uids(cluster.pods("hand")) == uids(hand_written), "adopting reads"
    state = run(cluster, project, f"pulumi stack --stack {STACK} --show-urns").stdout
    assert f"urn:pulumi:{STACK}::kthena-pd::kthena-pd:serving:PDDeployment$kubernetes:workload" in state

    said = run(cluster, project, commands[diff])
    assert said.returncode == 1, "something will change"
    assert "groups rolled, 1P1D in 1 group" in said.stdout
    assert "-/+ hand-0-decode-0-0, hand-0-prefill-0-0" in said.stdout
    assert uids(cluster.pods("hand")) == uids(hand_written), "looking changes nothing"

    try:
        up = run(cluster, project, commands[diff + 1])
        assert up.returncode == 0, up.stdout + up.stderr
        assert "takes over 2 objects that others have made: ModelServing default/hand, ModelServer default/hand" in up.stdout
        assert "reverts it" not in up.stdout, "what the import changes is nobody's edit"
        assert "created" in up.stdout, "scripts and route"
        assert " replaced" not in up.stdout, "the ModelServing is updated, not made anew"
        rolled = cluster.settled_pods("hand")
        assert rolled.keys() == hand_written.keys()
        assert not set(uids(rolled).values()) & set(uids(hand_written).values()), "as `pd diff` has said"
        for command in commands[diff + 2 :]:
            assert run(cluster, project, command).returncode == 0, command
        cluster.assert_paired(1, 1, "hand", "default")
        assert cluster.ask(model="hand")[1].failures == ()
        again = run(cluster, project, f"pulumi up --stack {STACK} --expect-no-changes")
        assert again.returncode == 0, again.stdout + again.stderr
    finally:
        done = run(cluster, project, f"pulumi destroy --stack {STACK}")
        assert done.returncode == 0, done.stdout + done.stderr


def test_objects_of_a_stack_whose_state_is_lost_are_adopted_without_a_new_pod(cluster: Cluster, project: Path) -> None:
    """What the importer writes renders the same pods."""
    before = uids(cluster.settled_pods())
    live = project / "rendered.yaml"
    live.write_text(
        cluster.kubectl("get", KINDS, "--namespace=default", "--selector=app.kubernetes.io/managed-by=kthena-pd", "--output=yaml")
    )
    target = project / "Pulumi.again.yaml"
    imported = run(cluster, project, f"./pd import {live.name} --to {target.name}")
    assert imported.returncode == 0, imported.stdout + imported.stderr
    diff = run(cluster, project, f"./pd diff {target.name}")
    assert "-/+" not in diff.stdout, diff.stdout
    assert "created" not in diff.stdout, diff.stdout
    assert uids(cluster.pods()) == before
