"""`pd render`: a stack's objects as files, for GitOps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import render as command
from cli.__main__ import main
from models.cluster import ControlPlane
from render import render_deployment
from render.chart import ChartError
from render.files import WAVE, text
from rules import read_file
from tests import stacks

CLUSTER = "kthena-pd:cluster: {npu: {family: A3, devicePlugin: cce}, scheduler: default-scheduler, namespaces: [models]}"
CHART: tuple[dict[str, Any], ...] = (
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kthena-system"}},
    {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "things"}},
    {"spec": {}, "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "router", "namespace": "kthena-system"}},
)
"""in place of Kthena's"""
Tree = dict[str, str]
"""path below the directory -> text"""


def stack_file(**deployments: Mapping[str, Any]) -> str:
    lines = [f"    {name}: {{recipe: {stacks.RECIPE}, {of_flow(settings)}}}" for name, settings in deployments.items()]
    return "\n".join(["config:", f"  {CLUSTER}", "  kthena-pd:deployments:", *lines, ""])


def of_flow(settings: Mapping[str, Any]) -> str:
    return yaml.safe_dump(settings, default_flow_style=True, width=10**6).strip().removeprefix("{").removesuffix("}")


def route(**targets: int) -> dict[str, Any]:
    return {"route": {"rules": [{"targets": targets}]}}


ALONE = {"route": {"enabled": False}}


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with the stack file of a deployment; the control plane is a small one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Pulumi.test.yaml").write_text(stack_file(mine={}))
    monkeypatch.setattr(command, "template", lambda *_: CHART)
    monkeypatch.setattr(command, "render_control_plane", lambda _, chart: chart)
    return tmp_path


class Rendered:
    """What `pd render` did."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str, file: str = "Pulumi.test.yaml") -> None:
        sys.argv = ["pd", "render", file, "--to", "out", *arguments]
        self.code = main()
        self.output, self.errors = capsys.readouterr()


def tree(directory: Path) -> Tree:
    return {str(file.relative_to(directory)): file.read_text() for file in sorted(directory.rglob("*")) if file.is_file()}


def listed(directory: Path) -> Iterator[dict[str, Any]]:
    """The objects that a kustomization leads to, in its order."""
    for name in yaml.safe_load((directory / "kustomization.yaml").read_text())["resources"]:
        resource = directory / name
        if resource.is_dir():
            yield from listed(resource)
        else:
            yield yaml.safe_load(resource.read_text())


def deployment_objects(*names: str) -> list[dict[str, Any]]:
    stack = read_file(Path("Pulumi.test.yaml"))[0]
    rendered = (render_deployment(stack.deployments[name], stack.cluster, stack.deployments) for name in names)
    return [item for one in rendered for item in one.objects]


def test_each_object_is_a_file_and_the_kustomizations_list_them_in_the_order_of_creation(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = Rendered(capsys)
    assert (done.code, done.errors) == (0, "")
    namespace, crd, router = CHART
    found = list(listed(directory / "out"))
    assert found[:3] == [crd, namespace, router]
    assert found[3]["metadata"]["name"] == "models"
    assert found[4:] == deployment_objects("mine")
    files = tree(directory / "out")
    assert {path for path in files if not path.endswith("kustomization.yaml")} >= {
        "crds/customresourcedefinition-things.yaml",
        "control-plane/namespace-kthena-system.yaml",
        "namespaces/namespace-models.yaml",
        "deployments/mine/modelserving-mine.yaml",
    }
    assert len(files) == len(found) + 6  # a kustomization for the whole, and for each of the five directories
    assert done.output == f"out: {len(files)} files, {len(files)} of them written, 0 others removed\n"


def test_a_route_comes_after_the_deployments_that_it_leads_to(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"first": route(second=50, third=50), "second": ALONE, "third": ALONE}
    (directory / "Pulumi.test.yaml").write_text(stack_file(**given))
    assert Rendered(capsys).code == 0
    assert list(listed(directory / "out" / "deployments")) == deployment_objects("second", "third", "first")


def test_the_text_does_not_depend_on_the_run(directory: Path) -> None:
    targets = {f"one-{number}": 10 for number in range(8)}
    (directory / "Pulumi.test.yaml").write_text(stack_file(mine=route(**targets), **dict.fromkeys(targets, ALONE)))
    program = "import sys, cli.__main__ as pd; sys.exit(pd.main())"
    arguments = ["render", "Pulumi.test.yaml", "--to", "-", "--without-control-plane"]
    said = [
        subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env={**os.environ, "PYTHONPATH": str(stacks.ROOT), "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert said[0].count(b"\n---\n") > 8 * 4


def test_scripts_are_written_as_they_are_read(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Rendered(capsys)
    files = tree(directory / "out")
    scripts = [path for path in files if "/configmap-" in path]
    assert len(scripts) == 2
    for path in scripts:
        role = "prefill" if "prefill" in path else "decode"
        assert f"\n  {role}.sh: |\n    #!/usr/bin/env bash\n" in files[path]
        assert "\n    exec vllm serve " in files[path]


def test_nothing_is_told_to_pulumi(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Rendered(capsys)
    assert [path for path, content in tree(directory / "out").items() if "pulumi.com" in content or "kthena-pd/" in content] == []


@pytest.mark.parametrize(
    "value", ["1e3", "1E+3", ".5", "1.", "-2", "0x1F", "0o17", "0b1", "1_000", "1:30", "yes", "on", "y", "N", "null", "~", ""]
)
def test_a_text_that_some_parser_takes_for_something_else_is_quoted(value: str) -> None:
    assert text({"value": value}) == f"value: '{value}'\n"


@pytest.mark.parametrize("value", ["1.0.0", "400m", "e5", "10.0.0.1", "yellow", "0123abc", "--v=2"])
def test_a_text_that_no_parser_takes_for_something_else_is_not_quoted(value: str) -> None:
    assert text({"value": value}) == f"value: {value}\n"


def test_what_two_places_share_is_written_twice() -> None:
    shared = {"a": [1]}
    assert text({"one": shared, "two": shared}) == "one:\n  a:\n  - 1\ntwo:\n  a:\n  - 1\n"


def test_one_stream_has_all_objects_and_nothing_else(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = Rendered(capsys, "--to", "-")
    namespace, crd, router = CHART
    found = list(yaml.safe_load_all(done.output))
    assert [*found[:3], *found[4:]] == [crd, namespace, router, *deployment_objects("mine")]
    assert not (directory / "out").exists()


def test_a_reader_that_has_seen_enough_is_no_error(directory: Path) -> None:
    arguments = ["render", "Pulumi.test.yaml", "--to", "-", "--without-control-plane"]
    with subprocess.Popen(
        [sys.executable, "-m", "cli", *arguments],
        env={**os.environ, "PYTHONPATH": str(stacks.ROOT)},
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_a_stream_is_utf_8_whatever_the_terminal_has(directory: Path) -> None:
    (directory / "Pulumi.test.yaml").write_text(stack_file(mine={"model": {"served": "聊天"}}), encoding="utf-8")
    arguments = ["render", "Pulumi.test.yaml", "--to", "-", "--without-control-plane"]
    done = subprocess.run(
        [sys.executable, "-m", "cli", *arguments],
        env={**os.environ, "PYTHONPATH": str(stacks.ROOT), "PYTHONIOENCODING": "gbk"},
        capture_output=True,
        check=True,
    )
    assert "聊天" in done.stdout.decode("utf-8")


@pytest.mark.parametrize("name", ["Pulumi.a\nb: [.yaml", os.fsdecode(b"Pulumi.\xff.yaml"), "Pulumi.生产.yaml"])
def test_a_stack_file_may_have_any_name(directory: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "Pulumi.test.yaml").rename(directory / name)
    assert Rendered(capsys, file=name).code == 0
    assert [item["kind"] for item in listed(directory / "out")][-1] == "ModelRoute"
    assert "0 of them written" in Rendered(capsys, file=name).output


def test_an_interrupted_run_says_nothing(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "template", interrupt)
    done = Rendered(capsys)
    assert (done.code, done.output, done.errors) == (130, "", "")
    assert not (directory / "out").exists()


@pytest.mark.parametrize("how", ["asked", "declared"])
def test_the_control_plane_can_be_left_out(
    how: str, directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "template", None)  # it is not called
    file = directory / "Pulumi.test.yaml"
    if how == "declared":
        file.write_text(file.read_text().replace("namespaces: [models]", "controlPlane: {install: false}"))
    assert Rendered(capsys, *(["--without-control-plane"] if how == "asked" else [])).code == 0
    assert [item for item in listed(directory / "out") if item["kind"] != "Namespace"] == deployment_objects("mine")


def test_sync_waves_come_when_they_are_asked_for(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scaled = {"min": 1, "max": 2, "metrics": {"vllm:num_requests_waiting": "10"}}
    text = stack_file(mine={"autoscaling": {"prefill": scaled}}).replace("namespaces:", "monitoring: {}, namespaces:")
    (directory / "Pulumi.test.yaml").write_text(text)
    Rendered(capsys)
    plain = list(listed(directory / "out"))
    assert not any(WAVE in item["metadata"].get("annotations", {}) for item in plain)
    Rendered(capsys, "--sync-waves")
    found = list(listed(directory / "out"))
    waves = {item["kind"]: int(item["metadata"]["annotations"].pop(WAVE)) for item in found}
    order = ["CustomResourceDefinition", "Deployment", "ModelServing", "ModelServer", "ModelRoute"]
    assert sorted({waves[kind] for kind in order}) == [waves[kind] for kind in order]
    assert waves["ConfigMap"] < waves["ModelServing"]
    assert waves["PrometheusRule"] == waves["ModelRoute"]  # while a model loads for the first time nobody is to be called
    assert waves["Deployment"] < waves["AutoscalingPolicy"]  # a webhook has to admit it
    for item in found:
        if not item["metadata"]["annotations"]:
            del item["metadata"]["annotations"]
    assert found == plain


def test_a_second_run_writes_what_has_changed_and_removes_what_is_gone(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = directory / "Pulumi.test.yaml"
    file.write_text(stack_file(mine={}, gone=ALONE))
    Rendered(capsys)
    foreign = {"README.md": "mine", "deployments/mine/patch.yaml": "kind: Mine\n", "deployments/gone/.gitkeep": ""}
    for path, content in foreign.items():
        (directory / "out" / path).write_text(content)
    before = tree(directory / "out")
    file.write_text(stack_file(mine={"groups": 2}))
    done = Rendered(capsys)
    after = tree(directory / "out")
    changed = {path for path in after if after[path] != before.get(path)}
    assert changed == {"deployments/kustomization.yaml", "deployments/mine/modelserving-mine.yaml"}
    assert f", 2 of them written, {len(before) - len(after)} others removed" in done.output
    assert {path: after[path] for path in foreign} == foreign
    assert {path for path in after if path.startswith("deployments/gone")} == {"deployments/gone/.gitkeep"}
    (directory / "out/deployments/gone/.gitkeep").unlink()
    (directory / "out/deployments/gone").rmdir()
    kept = {path: (directory / "out" / path).stat().st_mtime_ns for path in after if "gone" not in path}
    assert "0 of them written, 0 others removed" in Rendered(capsys).output
    assert {path: (directory / "out" / path).stat().st_mtime_ns for path in kept} == kept


def test_directories_that_become_empty_go(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Rendered(capsys)
    file = directory / "Pulumi.test.yaml"
    file.write_text(stack_file(other={}).replace(", namespaces: [models]", ""))
    Rendered(capsys)
    left = {str(path.relative_to(directory / "out")) for path in (directory / "out").rglob("*") if path.is_dir()}
    assert left == {"control-plane", "crds", "deployments", "deployments/other"}


def prepare_other_stack(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (out.parent / "Pulumi.other.yaml").write_text(stack_file(mine={}))
    Rendered(capsys, file="Pulumi.other.yaml")


def prepare_foreign_files(out: Path, _: pytest.CaptureFixture[str]) -> None:
    out.mkdir()
    (out / "kustomization.yaml").write_text("resources: [mine]\n")


def prepare_file_in_the_way(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Rendered(capsys)
    (out / "deployments/mine/modelserver-mine.yaml").write_text("kind: Mine\n")


def prepare_file_for_a_directory(out: Path, _: pytest.CaptureFixture[str]) -> None:
    out.write_text("mine")


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (
            prepare_other_stack,
            "out is not empty, and was not written by `pd render` from Pulumi.test.yaml; nothing was written\n",
        ),
        (
            prepare_foreign_files,
            "out is not empty, and was not written by `pd render` from Pulumi.test.yaml; nothing was written\n",
        ),
        (prepare_file_in_the_way, "in the way: out/deployments/mine/modelserver-mine.yaml; nothing was written\n"),
        (prepare_file_for_a_directory, "out: Not a directory\n"),
    ],
)
def test_what_is_not_its_own_is_left_alone(prepare: Any, said: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(directory / "out", capsys)
    (directory / "Pulumi.test.yaml").write_text(stack_file(mine={"groups": 2}))
    before = tree(directory)
    done = Rendered(capsys)
    assert (done.code, done.output) == (2, "")
    assert said in done.errors
    assert tree(directory) == before


def test_nothing_is_written_of_a_stack_with_errors(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "Pulumi.test.yaml").write_text(stack_file(mine={"ratio": "0P1D"}))
    done = Rendered(capsys)
    assert (done.code, done.output) == (1, "")
    assert "PD001 Pulumi.test.yaml:" in done.errors
    assert not (directory / "out").exists()


def test_warnings_are_shown_beside_what_is_written(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "Pulumi.test.yaml").write_text(stack_file(mine={"sharedMemory": "1Gi"}))
    done = Rendered(capsys, "--to", "-")
    assert done.code == 0
    assert done.errors.startswith("PD703 ")
    assert done.output.startswith("---\napiVersion: ")


def test_a_stack_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    done = Rendered(capsys, file="Pulumi.none.yaml")
    assert (done.code, done.output, done.errors) == (2, "", "error: Pulumi.none.yaml: No such file or directory\n")


def test_nothing_is_written_without_the_chart(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(control_plane: ControlPlane, _: Any, beside: Path) -> Any:
        raise ChartError(f"no chart {control_plane.chart} in {beside}")

    monkeypatch.setattr(command, "template", refuse)
    done = Rendered(capsys)
    assert (done.code, done.output) == (2, "")
    assert done.errors == "error: no chart oci://ghcr.io/volcano-sh/charts/kthena in .\n"
    assert not (directory / "out").exists()


def test_objects_of_one_name_in_two_namespaces_are_two_files(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "same:x", "namespace": name}} for name in ("a", "b")]
    monkeypatch.setattr(command, "render_control_plane", lambda _, __: twice)
    Rendered(capsys)
    assert list(listed(directory / "out/control-plane")) == twice
    assert {path.name for path in (directory / "out/control-plane").iterdir()} == {
        "kustomization.yaml",
        "configmap-same-x.yaml",
        "configmap-same-x-b.yaml",
    }
