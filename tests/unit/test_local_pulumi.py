"""What is cleaned up after a Pulumi that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.pulumi import _orphans


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[dict[str, int]]:
    """Two processes that were left behind with one Pulumi home: a plugin of Pulumi's, and a program of somebody else's."""
    pids: dict[str, int] = {}
    for name in ("pulumi-resource-kubernetes", "kube-apiserver"):
        program = tmp_path / name
        program.write_text("#!/bin/bash\nwhile sleep 60; do :; done\n")
        program.chmod(0o755)
        left_behind = subprocess.run(
            ["bash", "-c", f"setsid {program} >/dev/null 2>&1 </dev/null & echo $!"],
            env={**os.environ, "PULUMI_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            check=True,
        )
        pids[name] = int(left_behind.stdout)
    yield pids
    for pid in pids.values():
        os.killpg(pid, signal.SIGKILL)


def test_only_plugins_of_this_pulumi_home_are_orphans_not_the_cluster_that_was_started_beside_them(
    tmp_path: Path, orphan: dict[str, int]
) -> None:
    assert _orphans(tmp_path / "home") == [orphan["pulumi-resource-kubernetes"]]
    assert _orphans(tmp_path / "another home") == []
