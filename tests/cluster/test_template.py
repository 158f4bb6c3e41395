"""`pulumi new` with the real engine: a project of another name that previews on the real API server."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests import stacks
from tests.cluster.conftest import Cluster

PYTHON = f"""\
#!/bin/sh
# What pip would download is in this environment.
case "$1 $2 $3" in
  "-m venv "*)
    for directory; do :; done
    mkdir -p "$directory/bin" && cp "$0" "$directory/bin/python" && cp "$0" "$directory/bin/python3"
    exit;;
  "-m pip install") exit;;
esac
exec {sys.executable} "$@"
"""
ANSWERS = {
    "cluster.context": "kthena-pd-local",
    "cluster.npu.devicePlugin": "cce",
    "cluster.scheduler": "default-scheduler",
    "cluster.controlPlane.install": "false",  # stack dev has made one
    "deployments.chat.recipe": "qwen3-30b-a3b-a3",
}
Pulumi = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def pulumi(cluster: Cluster, tmp_path: Path) -> Pulumi:
    """``pulumi ARGUMENTS`` in an empty directory, the template beside it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "serving").mkdir()
    python = tmp_path / "bin" / "python3"
    python.write_text(PYTHON)
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    subprocess.run(["make", "--silent", "template", f"TEMPLATE={tmp_path / 'template'}"], cwd=stacks.ROOT, check=True)
    path = os.pathsep.join([str(tmp_path / "bin"), cluster.environment["PATH"]])

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["pulumi", *arguments, "--non-interactive", "--color=never"]
        return subprocess.run(
            command,
            cwd=tmp_path / "serving",
            env={**cluster.environment, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


def test_a_new_project_previews_with_the_answers_alone(pulumi: Pulumi, tmp_path: Path) -> None:
    answers = [word for key, value in ANSWERS.items() for word in ("--config", f"kthena-pd:{key}={value}")]
    made = pulumi("new", "../template", "--offline", "--yes", "--name", "serving", "--stack", "prod", *answers)
    assert made.returncode == 0, made.stdout + made.stderr
    assert (tmp_path / "serving" / ".venv" / "bin" / "python").exists()  # as Pulumi.yaml has it
    assert not (tmp_path / "serving" / "bin").exists()
    project = yaml.safe_load((tmp_path / "serving" / "Pulumi.yaml").read_text())
    assert project["name"] == "serving"
    assert "template" not in project
    config = yaml.safe_load((tmp_path / "serving" / "Pulumi.prod.yaml").read_text())["config"]
    assert config.items() >= {f"kthena-pd:{key}": value for key, value in ANSWERS.items()}.items()
    assert config["kthena-pd:cluster.npu.family"] == "A3"  # the default of what was not answered
    previewed = pulumi("preview", "--stack", "prod")
    assert previewed.returncode == 0, previewed.stdout + previewed.stderr
    assert "ModelServing" in previewed.stdout

    pulumi("config", "set", "--stack", "prod", "kthena-pd:deployments.chat.ratio", "0P1D")
    refused = pulumi("preview", "--stack", "prod")
    assert refused.returncode
    assert "PD001 Pulumi.prod.yaml:" in refused.stdout
    assert "kthena-pd:deployments.chat.ratio: '0P1D' is not a ratio" in refused.stdout
