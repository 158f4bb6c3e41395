"""Kthena as `pulumi up` installs it from its chart: on an empty cluster, through edits, and what stays after `destroy`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.chart import template
from render.control_plane import chart_values, render_control_plane
from render.names import CONTROLLER_NAME, ROUTER_NAME
from rules import read
from tests import chart, stacks
from tests.cluster.conftest import Cluster

NAMESPACE = "kthena-system"
PROGRAMS = {CONTROLLER_NAME, ROUTER_NAME}
CRDS = {f"{plural}.{group}.serving.volcano.sh" for group, plurals in chart.KINDS.items() for plural in plurals}
BAD = """
apiVersion: networking.serving.volcano.sh/v1alpha1
kind: ModelRoute
metadata: {name: refused, namespace: default}
spec: {modelName: refused, rules: [{name: all, targetModels: [{modelServerName: x, weight: 0}]}]}
"""


def crds(cluster: Cluster) -> dict[str, dict[str, Any]]:
    found = {item["metadata"]["name"]: item for item in cluster.objects("customresourcedefinitions")}
    return {name: item for name, item in found.items() if name in CRDS}


def pods(cluster: Cluster) -> dict[str, str]:
    """Program -> uid of its pod."""
    found = cluster.objects("pods", f"--namespace={NAMESPACE}")
    return {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod["metadata"]["uid"]
        for pod in found
        if "deletionTimestamp" not in pod["metadata"]
    }


def restarts(cluster: Cluster) -> dict[str, int]:
    found = cluster.objects("pods", f"--namespace={NAMESPACE}")
    return {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in found}


def refusal(cluster: Cluster, tmp_path: Path) -> str:
    """What the API server says of an object that the webhook should not let pass."""
    (tmp_path / "bad.yaml").write_text(BAD)
    done = subprocess.run(
        ["kubectl", "create", "--dry-run=server", "-f", str(tmp_path / "bad.yaml")],
        env=cluster.environment,
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode, done.stdout
    return done.stderr


def test_the_first_up_on_an_empty_cluster_brings_kinds_webhooks_and_a_router_that_answers(
    converged: Cluster, tmp_path: Path
) -> None:
    assert crds(converged).keys() == CRDS
    assert set(pods(converged)) == PROGRAMS
    assert "weight" in refusal(converged, tmp_path)
    answer, evidence = converged.ask()
    assert answer.text
    assert evidence.proven


def test_neither_program_is_short_of_a_permission_nor_had_to_start_twice(converged: Cluster) -> None:
    for program in PROGRAMS:
        log = converged.kubectl("logs", f"--namespace={NAMESPACE}", f"deployment/{program}")
        assert "forbidden" not in log.lower()
    assert set(restarts(converged).values()) == {0}


def test_what_the_processes_write_into_the_webhooks_is_no_change_for_pulumi(converged: Cluster) -> None:
    def bundles() -> set[str]:
        found = converged.objects("validatingwebhookconfigurations,mutatingwebhookconfigurations")
        return {one["clientConfig"].get("caBundle", "") for item in found for one in item["webhooks"]}

    before = bundles()
    assert "" not in before
    converged.pulumi.run("refresh", "--yes", "--stack", "dev")
    converged.pulumi.run("preview", "--expect-no-changes", "--stack", "dev")
    converged.up()
    assert bundles() == before


def test_no_private_key_reaches_pulumis_state(converged: Cluster) -> None:
    state = converged.pulumi.run("stack", "export", "--stack", "dev").stdout
    assert not [
        resource["urn"] for resource in json.loads(state)["deployment"]["resources"] if resource["type"].endswith(":Secret")
    ]
    assert "tls.key" not in state.replace("/etc/tls/tls.key", "")


def test_another_setting_of_the_router_restarts_the_router_only(converged: Cluster) -> None:
    before, engines = pods(converged), {name: pod["metadata"]["uid"] for name, pod in converged.pods().items()}
    converged.configure("cluster.controlPlane.router.scheduler.prefixCache.topKMatches", 6)
    converged.up()
    after = pods(converged)
    assert {program for program in PROGRAMS if before[program] != after[program]} == {ROUTER_NAME}
    assert {name: pod["metadata"]["uid"] for name, pod in converged.pods().items()} == engines
    assert converged.ask()[1].proven


def test_a_chart_with_another_kind_brings_the_clusters_up_to_date(converged: Cluster) -> None:
    copy = stacks.ROOT / "local" / "charts" / "edited"
    shutil.copytree((stacks.ROOT / "local" / "charts" / "kthena").resolve(), copy)
    try:
        file = copy / "charts" / "networking" / "crds" / "networking.serving.volcano.sh_modelservers.yaml"
        crd = yaml.safe_load(file.read_text())
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["added"] = {"type": "string"}
        file.chmod(0o644)
        file.write_text(yaml.safe_dump(crd))
        uid, version = (crds(converged)[crd["metadata"]["name"]]["metadata"][key] for key in ("uid", "resourceVersion"))
        converged.configure("cluster.controlPlane.chart", "local/charts/edited")
        preview = converged.pulumi.run("preview", "--stack", "dev").stdout
        assert f"brings CRDs up to date: {crd['metadata']['name']}\n" in preview
        assert crds(converged)[crd["metadata"]["name"]]["metadata"]["resourceVersion"] == version
        converged.up()
    finally:
        shutil.rmtree(copy)
    found = crds(converged)[crd["metadata"]["name"]]
    assert "added" in found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert found["metadata"]["uid"] == uid


def test_a_chart_that_is_not_there_is_a_short_error_before_anything_is_changed(converged: Cluster) -> None:
    converged.configure("cluster.controlPlane.chart", "charts/misspelt")
    converged.configure("deployments.deepseekv4-pd.ratio", "2P1D")
    failed = converged.up(check=False)
    assert failed.returncode
    assert "there is no charts/misspelt" in failed.stdout
    assert "Traceback" not in failed.stdout + failed.stderr
    assert len(converged.pods()) == 2


def fail(cluster: Cluster) -> str:
    """What an `up` says that adds a deployment and can't."""
    cluster.configure("deployments.second.recipe", "deepseek-v2-lite-a3")
    failed = cluster.up(check=False)
    assert failed.returncode, failed.stdout
    assert "Kthena does not work, so no deployment was touched" in failed.stdout
    assert "Traceback" not in failed.stdout + failed.stderr
    assert cluster.objects("modelservings,configmaps", "--selector=app.kubernetes.io/name=second") == []
    return failed.stdout


def test_a_router_that_can_not_start_stops_an_up_before_anything_of_a_deployment_is_made_and_the_next_mends_it(
    converged: Cluster,
) -> None:
    converged.configure("cluster.controlPlane.router.image", "registry.example/nowhere:v1")
    said = fail(converged)
    assert "registry.example/nowhere:v1" in said
    assert "correct controller.image or router.image" in said
    converged.reset()
    assert converged.ask()[1].proven


@pytest.fixture
def foreign_authority(converged: Cluster) -> Iterator[Cluster]:
    """The API server takes the router's webhook for somebody else's."""
    name = f"{ROUTER_NAME}-validating-webhook"
    own, others = (
        converged.objects("validatingwebhookconfigurations", f"--field-selector=metadata.name={one}-validating-webhook")[0]
        for one in (ROUTER_NAME, CONTROLLER_NAME)
    )
    for bundle_of in (others, own):
        bundle = bundle_of["webhooks"][0]["clientConfig"]["caBundle"]
        patch = [
            {"op": "replace", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": bundle}
            for number in range(len(own["webhooks"]))
        ]
        converged.kubectl("patch", "validatingwebhookconfiguration", name, "--type=json", f"--patch={json.dumps(patch)}")
        if bundle_of is others:
            yield converged


def test_webhooks_that_do_not_answer_stop_an_up_before_anything_of_a_deployment_is_made(foreign_authority: Cluster) -> None:
    said = fail(foreign_authority)
    assert "takes no ModelRoute, no ModelServer:" in said
    assert "x509" in said


def test_destroy_leaves_the_kinds_and_the_next_up_takes_them_over(converged: Cluster) -> None:
    before = {name: item["metadata"]["uid"] for name, item in crds(converged).items()}
    converged.pulumi.run("destroy", "--yes", "--skip-preview", "--stack", "dev")
    assert {name: item["metadata"]["uid"] for name, item in crds(converged).items()} == before
    webhooks = converged.objects("validatingwebhookconfigurations,mutatingwebhookconfigurations")
    assert [item["metadata"]["name"] for item in webhooks if "kthena" in item["metadata"]["name"]] == []
    converged.up()
    assert converged.ask()[1].proven
    assert {name: item["metadata"]["uid"] for name, item in crds(converged).items()} == before


def test_the_stand_in_for_the_chart_has_the_objects_of_the_real_one(converged: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is mended in the stand-in is where the real one has it: apart from what only one has, the same comes out."""
    monkeypatch.setenv("PULUMI_HOME", str(converged.state.pulumi / "home"))
    cluster = read(stacks.stack_file("dev")).cluster
    real = template(cluster.control_plane, chart_values(cluster), stacks.ROOT)
    stand_in = chart.objects()

    def keys(objects: Any) -> set[tuple[str, str]]:
        return {(item["kind"], item["metadata"]["name"]) for item in objects}

    # the controller's mutating webhooks are mended like the validating ones
    assert keys(real) - keys(stand_in) == {("MutatingWebhookConfiguration", f"{CONTROLLER_NAME}-mutating-webhook")}
    assert keys(stand_in) - keys(real) == set()
    for name in PROGRAMS:
        shapes = [
            _shape(
                next(
                    item
                    for item in render_control_plane(cluster, objects)
                    if item["kind"] == "Deployment" and item["metadata"]["name"] == name
                )
            )
            for objects in (real, stand_in)
        ]
        assert shapes[1] - shapes[0] == set()


def _shape(value: Any, path: str = "") -> set[str]:
    """Paths of all fields."""
    if isinstance(value, dict):
        return {inner for key, item in value.items() for inner in {f"{path}.{key}", *_shape(item, f"{path}.{key}")}}
    if isinstance(value, list):
        return {inner for item in value for inner in _shape(item, path)}
    return set()
