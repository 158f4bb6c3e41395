"""`pd check`: findings of stack files for people and machines, and its exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.__main__ import main
from rules import CHECKS
from tests import stacks

CLUSTER = "kthena-pd:cluster: {npu: {family: A3, devicePlugin: cce}, scheduler: default-scheduler}"
ERROR = "PD001", "kthena-pd:deployments.mine.ratio"
WARNING = "PD703", "kthena-pd:deployments.mine.sharedMemory"


def stack_file(**settings: str) -> str:
    lines = [f"      {key}: {value}" for key, value in {"recipe": stacks.RECIPE, **settings}.items()]
    return "\n".join(["config:", f"  {CLUSTER}", "  kthena-pd:deployments:", "    mine:", *lines, ""])


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a right file, one with an error, one with a warning."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "right": stack_file(),
        "error": stack_file(ratio="0P1D"),
        "warning": stack_file(sharedMemory="1Gi"),
    }.items():
        (tmp_path / f"Pulumi.{name}.yaml").write_text(text)
    (tmp_path / "Pulumi.yaml").write_text("name: x\n")
    return tmp_path


class Checked:
    """What `pd check` did."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        sys.argv = ["pd", "check", *arguments]
        try:
            self.code: Any = main()
        except SystemExit as ended:  # of argparse
            self.code = ended.code
        self.output, self.errors = capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["Pulumi.right.yaml"], 0),
        (["Pulumi.warning.yaml"], 0),
        (["--strict", "Pulumi.right.yaml"], 0),
        (["--strict", "Pulumi.warning.yaml"], 1),
        (["Pulumi.error.yaml"], 1),
        (["Pulumi.right.yaml", "Pulumi.error.yaml"], 1),
        (["no-such.yaml"], 2),
        (["."], 2),
        (["Pulumi.error.yaml", "no-such.yaml"], 2),
        (["--format", "xml"], 2),
        (["--help"], 0),
    ],
)
def test_the_exit_code_tells_findings_from_files_that_could_not_be_opened(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    assert Checked(capsys, *arguments).code == code


def test_without_a_file_all_stacks_of_the_directory_are_checked_in_the_order_of_their_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    checked = Checked(capsys)
    assert re.findall(r"^(PD\d+) (\S+) ", checked.output, re.MULTILINE) == [
        ("PD001", "Pulumi.error.yaml:6:7"),
        ("PD703", "Pulumi.warning.yaml:6:7"),
    ]
    assert checked.output.endswith("\n\n1 error and 1 warning in 3 files\n")
    assert checked.errors == ""


def test_a_directory_without_stacks_is_no_success(
    capsys: pytest.CaptureFixture[str], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "empty").mkdir()
    monkeypatch.chdir(directory / "empty")
    checked = Checked(capsys)
    assert (checked.code, checked.output) == (2, "")
    assert "no Pulumi.*.yaml" in checked.errors


def test_a_file_that_can_not_be_opened_hides_nothing_of_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    checked = Checked(capsys, "no-such.yaml", "Pulumi.error.yaml")
    assert checked.errors == "error: no-such.yaml: No such file or directory\n"
    assert checked.output.endswith("1 error in 1 file\n")


def test_text_says_what_is_wrong_where_and_what_would_be_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert Checked(capsys, "Pulumi.error.yaml").output == (
        "PD001 Pulumi.error.yaml:6:7 kthena-pd:deployments.mine.ratio: '0P1D' is not a ratio\n"
        "      -> write <prefill>P<decode>D with both numbers at least 1, for example 2P1D\n"
        "\n"
        "1 error in 1 file\n"
    )
    assert Checked(capsys, "Pulumi.right.yaml").output == "no findings in 1 file\n"


def test_json_has_every_finding_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    whole = json.loads(Checked(capsys, "--format", "json").output)
    assert (whole["files"], whole["errors"], whole["warnings"]) == (3, 1, 1)
    assert [(found["code"], found["path"], found["severity"]) for found in whole["findings"]] == [
        (*ERROR, "error"),
        (*WARNING, "warning"),
    ]
    assert {(found["line"], found["column"]) for found in whole["findings"]} == {(6, 7)}
    assert all(found["problem"] and found["remedy"] for found in whole["findings"])


def test_sarif_names_the_rule_of_each_result_and_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    log = json.loads(Checked(capsys, "--format", "sarif").output)
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert log["version"] == "2.1.0"
    assert [rule["id"] for rule in rules] == [check.code for check in CHECKS]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["shortDescription"]["text"]
        assert rule["fullDescription"]["text"]
        assert "Source: " in rule["help"]["text"]
        assert rule["defaultConfiguration"]["level"] in ("error", "warning")
    for result, (code, path), level in zip(run["results"], [ERROR, WARNING], ["error", "warning"], strict=True):
        assert (result["ruleId"], rules[result["ruleIndex"]]["id"], result["level"]) == (code, code, level)
        (location,) = result["locations"]
        assert location["physicalLocation"]["region"] == {"startLine": 6, "startColumn": 7}
        assert location["logicalLocations"] == [{"fullyQualifiedName": path}]
        assert result["message"]["text"].startswith(path)
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "Pulumi.error.yaml"


def test_sarif_writes_the_name_of_a_file_as_a_uri(capsys: pytest.CaptureFixture[str], directory: Path) -> None:
    file = directory / "Pulumi.a b#ü.yaml"
    file.write_text(stack_file(ratio="0P1D"))
    for given, uri in (file.name, "Pulumi.a%20b%23%C3%BC.yaml"), (str(file), file.as_uri()):
        (run,) = json.loads(Checked(capsys, "--format", "sarif", given).output)["runs"]
        assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_github_gets_one_annotation_a_finding_with_its_line_ends_escaped(
    capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    (directory / "Pulumi.a,b:c%.yaml").write_text(stack_file(ratio='"50%"'))
    annotations = [line for line in Checked(capsys, "--format", "github").output.splitlines() if line.startswith("::")]
    first, error, warning = annotations
    assert first.startswith(
        "::error file=Pulumi.a%2Cb%3Ac%25.yaml,line=6,col=7,title=PD001::kthena-pd:deployments.mine.ratio: '50%25'"
    )
    assert error.startswith("::error file=Pulumi.error.yaml,line=6,col=7,title=PD001::")
    assert "is not a ratio%0A-> write" in error
    assert warning.startswith("::warning file=Pulumi.warning.yaml,")


@pytest.mark.parametrize("style", ["text", "json", "sarif", "github"])
def test_a_file_that_is_not_yaml_is_a_finding_in_every_format(
    capsys: pytest.CaptureFixture[str], directory: Path, style: str
) -> None:
    (directory / "Pulumi.bad.yaml").write_text("config: [\n")
    checked = Checked(capsys, "--format", style, "Pulumi.bad.yaml")
    assert checked.code == 1
    assert "PD000" in checked.output


def test_help_teaches_with_examples_and_names_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    said = Checked(capsys, "--help").output
    assert "pd check --strict --format sarif" in said
    assert [code for code in "012" if re.search(rf"^  {code}  ", said, re.MULTILINE)] == ["0", "1", "2"]


def test_the_launcher_works_from_any_directory_and_takes_no_module_from_there(directory: Path) -> None:
    for name in ("rules", "cli", "yaml"):
        (directory / f"{name}.py").write_text("raise SystemExit('a module of the current directory was taken')\n")
    (directory / "pd").symlink_to(stacks.ROOT / "pd")
    done = subprocess.run(["./pd", "check", "Pulumi.error.yaml"], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("PD001 Pulumi.error.yaml:6:7 ")


def piped(reader: str, **environment: str) -> tuple[str, str]:
    """What a reader gets of the findings, and what is on standard error."""
    command = f"{sys.executable} -m cli check Pulumi.name.yaml | {reader}"
    variables = {**os.environ, "PYTHONPATH": str(stacks.ROOT), **environment}
    done = subprocess.run(["sh", "-c", command], env=variables, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout, done.stderr


def test_a_name_that_the_terminal_can_not_show_is_written_in_letters_that_it_can(directory: Path) -> None:
    (directory / "Pulumi.name.yaml").write_text(stack_file().replace("mine", "größe"))
    shown, errors = piped("cat", PYTHONIOENCODING="ascii")
    assert '"gr\\xf6\\xdfe" is not allowed' in shown
    assert errors == ""


def test_a_reader_that_has_gone_is_no_failure(directory: Path) -> None:
    (directory / "Pulumi.name.yaml").write_text(stack_file(ratio="0P1D"))
    assert piped("true") == ("", "")


def test_nothing_of_pulumi_is_imported() -> None:
    program = "import sys, cli.__main__; sys.exit(any(name.startswith('pulumi') for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=stacks.ROOT, check=False, timeout=60)
    assert done.returncode == 0
