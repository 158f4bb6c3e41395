"""What this version of the program makes of the state that an earlier one left: stack dev, recorded after its `up`.

A state is recorded whenever resources change their names or types: `pulumi stack export`, less times and ``managedFields``.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from render.names import CONTROLLER_NAME, ROUTER_NAME
from tests import stacks
from tests.cluster.conftest import Cluster

CONTENT_HASH = re.compile("-[0-9a-f]{7}$")
STATES = Path(__file__).parent / "states"
# Kthena is installed from its chart, with its kinds and its webhooks.
FROM_THE_CHART = {
    *(("create", kind, f"kthena-{name}") for kind in ("Role", "RoleBinding") for name in (CONTROLLER_NAME, ROUTER_NAME)),
    *(("create", "Service", f"kthena-{name}-webhook") for name in (CONTROLLER_NAME, ROUTER_NAME)),
    *(
        ("create", "ValidatingWebhookConfiguration", f"kthena-{name}-validating-webhook")
        for name in (CONTROLLER_NAME, ROUTER_NAME)
    ),
    ("create", "MutatingWebhookConfiguration", f"kthena-{CONTROLLER_NAME}-mutating-webhook"),
    ("create", "ConfigMap", "kthena-model-booster-controller-config"),
}
PLANNED = {
    "webhooks-off": FROM_THE_CHART,
    # each role's scripts got a ConfigMap of its own
    "one-scripts-config-map": FROM_THE_CHART
    | {
        ("create", "ConfigMap", "deepseekv4-pd-prefill"),
        ("create", "ConfigMap", "deepseekv4-pd-decode"),
        ("delete", "ConfigMap", "deepseekv4-pd-scripts"),
    },
}


def test_every_recorded_state_is_tried() -> None:
    assert {file.stem for file in STATES.glob("*.json")} == PLANNED.keys()


@pytest.mark.parametrize("recorded", PLANNED)
def test_an_upgrade_of_the_program_replaces_nothing_that_was_not_planned(
    converged: Cluster, recorded: str, tmp_path: Path
) -> None:
    environment = {**converged.environment, "PULUMI_BACKEND_URL": f"file://{tmp_path}"}

    def pulumi(*arguments: str) -> str:
        command = ["pulumi", *arguments, "--non-interactive"]
        done = subprocess.run(command, env=environment, cwd=stacks.ROOT, text=True, capture_output=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pulumi("stack", "init", "dev")
    pulumi("stack", "import", "--stack", "dev", "--file", str(STATES / f"{recorded}.json"))
    # without refresh: what the earlier version has made is not in this cluster
    plan = pulumi("preview", "--refresh=false", "--json", "--stack", "dev", "--config-file", str(converged.config_file))
    steps = set()
    for step in json.loads(plan)["steps"]:
        _, _, kind, name = step["urn"].split("::")
        steps.add((step["op"], kind.rpartition(":")[2], CONTENT_HASH.sub("", name)))
    assert ("update", "ModelServing", "deepseekv4-pd") in steps
    assert {step for step in steps if step[0] not in ("same", "update")} == PLANNED[recorded]
