"""`pd import`: what it writes, what it prints, and its exit code."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.__main__ import main
from rules import read_file
from tests import stacks

OWN = stacks.ROOT / "tests" / "importer"
HAND_WRITTEN = OWN / "hand-written.yaml"


class Run:
    """What `pd import` did."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        sys.argv = ["pd", "import", *arguments]
        try:
            self.code: Any = main()
        except SystemExit as ended:  # of argparse
            self.code = ended.code
        self.output, self.errors = capsys.readouterr()


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given.yaml").write_text(HAND_WRITTEN.read_text())
    return tmp_path


def test_a_stack_file_goes_to_standard_output_and_what_is_said_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    done = Run(capsys, "given.yaml")
    assert done.code == 0
    assert done.output.startswith("# yaml-language-server:")
    assert "IM121 given.yaml:7:1" in done.errors
    assert "facts of given and rendered objects were compared" in done.errors


def test_standard_input_is_a_file_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(HAND_WRITTEN.read_text()))
    done = Run(capsys, "-")
    assert done.code == 0
    assert "IM121 standard input:7:1" in done.errors


def test_what_is_written_is_a_stack_without_errors(capsys: pytest.CaptureFixture[str], directory: Path) -> None:
    assert Run(capsys, "given.yaml", "--to", "Pulumi.new.yaml").code == 0
    stack, _ = read_file(directory / "Pulumi.new.yaml")
    assert stack.deployments.keys() == {"hand"}
    assert stack.cluster.scheduler == "default-scheduler"
    assert not stack.cluster.control_plane.install


def test_the_adoption_file_has_the_names_that_the_program_gives(capsys: pytest.CaptureFixture[str], directory: Path) -> None:
    done = Run(capsys, "given.yaml", "--to", "Pulumi.new.yaml", "--adopt", "adopt.json")
    file = json.loads((directory / "adopt.json").read_text())
    assert file["nameTable"] == {"kubernetes": "urn:pulumi:new::kthena-pd::pulumi:providers:kubernetes::kubernetes"}
    component, serving, server = file["resources"]
    assert (component["type"], component["logicalName"]) == ("kthena-pd:serving:PDDeployment", "hand")
    for resource in (serving, server):
        assert (resource["id"], resource["parent"], resource["provider"]) == ("default/hand", component["name"], "kubernetes")
    assert "./pd diff Pulumi.new.yaml" in done.output
    assert "kubectl label" not in done.output, "a ModelServing is known by its name"
    assert "kubectl delete modelroute hand --namespace default" in done.output
    assert "makes new pods of hand" in done.output


def test_the_family_and_the_device_plugin_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    done = Run(capsys, str(OWN / "canary.yaml"), "--npu", "A2", "--device-plugin", "hami")
    assert "npu: {family: A2, devicePlugin: hami" in done.output


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["no.yaml"], 2, "no.yaml: No such file or directory"),
        (["broken.yaml"], 2, "broken.yaml:1: not YAML"),
        (["latin.yaml"], 2, "latin.yaml is not UTF-8"),
        (["given.yaml", "--to", "new.yaml"], 2, "Pulumi.NAME.yaml is"),
        (["given.yaml", "--adopt", "adopt.json"], 2, "--adopt needs --to"),
        (["given.yaml", "--to", "Pulumi.there.yaml"], 2, "--force writes over it"),
        (["given.yaml", "--to", "no/Pulumi.new.yaml"], 2, "No such file or directory"),
        (["given.yaml", "--npu", "A9"], 2, "invalid choice"),
        (["nothing.yaml"], 1, "no deployment could be taken over"),
        (["half.yaml"], 1, "maxNumBatchedTokens"),
        (["half.yaml"], 1, "hand was compared without what its stack file still lacks"),
        (["release.yaml"], 1, "nothing was compared"),
        (["half.yaml", "--to", "Pulumi.new.yaml", "--adopt", "adopt.json"], 1, "adopt.json is not written"),
        (["given.yaml", "--to", "Pulumi.new.yaml", "--adopt", "Pulumi.new.yaml"], 2, "over itself"),
        (["Pulumi.there.yaml", "--to", "Pulumi.there.yaml", "--force"], 2, "over what is read"),
        (["inside.yaml"], 2, "an anchor is used inside of itself"),
        (["aliases.yaml"], 2, "aliases make too much"),
        (["empty.yaml"], 2, "no Kubernetes object is in empty.yaml"),
        (["list.yaml"], 2, "no Kubernetes object is in list.yaml"),
        (["items.yaml"], 2, "items.yaml:1: not a Kubernetes object"),
    ],
)
def test_what_does_not_work_is_said_in_a_line(
    arguments: list[str], code: int, words: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "broken.yaml").write_text("a: [")
    (directory / "latin.yaml").write_bytes(b"a: \xe9")
    (directory / "nothing.yaml").write_text("apiVersion: v1\nkind: Service\nmetadata: {name: a}\n")
    (directory / "half.yaml").write_text(HAND_WRITTEN.read_text().replace("--max-num-batched-tokens $BATCH", ""))
    (directory / "release.yaml").write_text(HAND_WRITTEN.read_text().replace("vllm-ascend:v0.13.0rc3-a3", "vllm-ascend:mine"))
    (directory / "empty.yaml").write_text("# nothing\n---\n")
    (directory / "list.yaml").write_text("apiVersion: v1\nkind: List\nitems: null\n")
    (directory / "items.yaml").write_text("a: &a [*a]\n")
    (directory / "inside.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: &a {b: *a}\n")
    (directory / "aliases.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\na0: &a0 []\n" + "".join(f"a{n + 1}: &a{n + 1} [{f'*a{n},' * 9}]\n" for n in range(9))
    )
    (directory / "Pulumi.there.yaml").write_text("mine")
    done = Run(capsys, *arguments)
    assert done.code == code
    assert words in done.output + done.errors
    assert "Traceback" not in done.errors
    assert (directory / "Pulumi.there.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("kind", "spec", "said"),
    [
        ("apps/v1 Deployment", "", "Deployment default/a is not taken over"),
        ("networking.serving.volcano.sh/v1alpha1 ModelRoute", "modelName: a", "leads to none of the given deployments"),
        ("workload.serving.volcano.sh/v1alpha1 ModelServing", "template: {roles: []}", "it has no roles"),
        (
            "workload.serving.volcano.sh/v1alpha1 ModelServing",
            "template: {roles: [{name: decode, entryTemplate: {spec: {containers: [{name: a}]}}}]}",
            "decode is its only role",
        ),
        (
            "workload.serving.volcano.sh/v1alpha1 ModelServing",
            "template: {roles: [{name: prefill, entryTemplate: {}}, {name: decode, entryTemplate: {spec: {containers: []}}}]}",
            "prefill and decode without containers",
        ),
        (
            "workload.serving.volcano.sh/v1alpha1 ModelServing",
            "template: {roles: [{name: d, entryTemplate: &a {spec: {containers: [{name: a}]}}}, {name: x, entryTemplate: *a}]}",
            "x is neither prefill nor decode",
        ),
    ],
)
def test_of_what_is_no_deployment_the_cause_is_said_and_nothing_of_a_stack_that_nobody_gets(
    kind: str, spec: str, said: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version, _, name = kind.partition(" ")
    (directory / "other.yaml").write_text(f"apiVersion: {version}\nkind: {name}\nmetadata: {{name: a}}\nspec: {{{spec}}}\n")
    done = Run(capsys, "other.yaml")
    assert (done.code, done.output) == (1, "")
    assert said in done.errors
    assert "In the new stack file" not in done.errors
