"""What `pulumi new` asks for, and what it copies."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import catalog
from rules import Finding, StackError, read, settings
from tests import stacks

PROJECT: dict[str, Any] = yaml.safe_load((stacks.ROOT / "Pulumi.yaml").read_text())
PROMPTS: dict[str, dict[str, str]] = PROJECT["template"]["config"]


def answered(**answers: str) -> dict[str, Any]:
    """What the stack file holds, without the project's prefix; ``answers`` by the last part of the key, else the defaults."""
    given = {key: answers.get(key.rpartition(".")[2], prompt.get("default", "")) for key, prompt in PROMPTS.items()}
    own = {key.removeprefix("kthena-pd:"): text for key, text in given.items() if text}  # Pulumi leaves empty answers out
    return settings(own)


def findings(config: dict[str, Any]) -> list[Finding]:
    found: list[Finding] = []
    try:
        read(config, warn=found.append)
    except StackError as error:
        return list(error.findings)
    return found


def choices(key: str) -> list[str]:
    (prompt,) = (prompt for name, prompt in PROMPTS.items() if name.endswith(f".{key}"))
    return prompt["description"].partition(": ")[2].split(", ")


def test_the_defaults_are_a_stack_without_findings() -> None:
    config = answered()
    assert findings(config) == []
    stack = read(config)
    assert (stack.cluster.context, stack.cluster.npu.family, stack.cluster.scheduler) == (None, "A3", "volcano")
    assert stack.deployments["chat"].recipe == "deepseek-v4-flash-w8a8-a3"


def test_a_context_is_taken_over() -> None:
    assert read(answered(context="prod")).cluster.context == "prod"


@pytest.mark.parametrize("plugin", choices("devicePlugin"))
@pytest.mark.parametrize("family", choices("family"))
def test_every_answer_that_is_offered_fits_with_a_recipe_of_the_family(family: str, plugin: str) -> None:
    known = catalog.npu_families()[family]
    recipe = next(name for name in catalog.recipe_names() if name.endswith(f"-{family.lower()}"))
    found = findings(answered(family=family, devicePlugin=plugin, recipe=recipe))
    errors = {finding.code for finding in found if finding.severity == "error"}
    # what does not fit is said, with what would: 950 has one plugin, and hami's resource names have A2's chips in them
    assert errors == (
        {"PD101"} if plugin not in known.device_plugins else {"PD104"} if (plugin, family) == ("hami", "A2") else set()
    )


@pytest.mark.parametrize("scheduler", choices("scheduler"))
def test_every_scheduler_that_is_offered_is_one(scheduler: str) -> None:
    assert read(answered(scheduler=scheduler)).cluster.scheduler == scheduler


def test_a_wrong_answer_is_told_by_its_key() -> None:
    (finding,) = findings(answered(recipe="deepseek-v9"))
    assert (finding.code, finding.path) == ("PD002", ("deployments", "chat", "recipe"))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made") / "template"
    subprocess.run(["make", "--silent", "template", f"TEMPLATE={directory}"], cwd=stacks.ROOT, check=True, capture_output=True)
    return directory


def test_the_template_has_no_stack_of_ours_and_nothing_that_only_we_need(template: Path) -> None:
    assert list(template.glob("Pulumi.*.yaml")) == []
    names = {path.name for path in template.iterdir()}
    assert names.isdisjoint({"tests", "local", "tools", "bench", ".venv", ".git", ".local"})
    assert list(template.rglob("__pycache__")) == []


def test_the_template_can_be_made_of_a_project_without_what_its_user_keeps_there(template: Path, tmp_path: Path) -> None:
    project, made = tmp_path / "project", tmp_path / "made"
    shutil.copytree(template, project)
    (project / "deploy").mkdir()
    for own in ("deploy/secret.yaml", "Pulumi.prod.yaml", "notes.md"):
        (project / own).write_text("the user's own")
    subprocess.run(["make", "--silent", "template", f"TEMPLATE={made}"], cwd=project, check=True, capture_output=True)
    assert {path.relative_to(made) for path in made.rglob("*")} == {path.relative_to(template) for path in template.rglob("*")}


def test_the_template_has_every_room_that_its_code_and_its_targets_run(template: Path) -> None:
    rooms = {path.parent.name for path in stacks.ROOT.glob("*/__init__.py")}
    imported = {
        name.partition(".")[0]
        for file in template.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in getattr(node, "names", [])]
        )
    }
    run = set(re.findall(r"-m (\w+)", (template / "Makefile").read_text()))
    assert {"components", "rules"} <= imported & rooms
    assert {name for name in (imported | run) & rooms if not (template / name).is_dir()} == set()
    offered = subprocess.run(["make", "--silent"], cwd=template, check=True, capture_output=True, text=True).stdout
    assert "make check" in offered
    assert not re.search(r"make (up|test|bench|env)\b", offered)


def test_the_template_checks_a_stack_without_the_checkout(template: Path, tmp_path: Path) -> None:
    file = tmp_path / "Pulumi.x.yaml"
    file.write_text(yaml.safe_dump({"config": {f"kthena-pd:{key}": value for key, value in answered().items()}}))
    python = str(stacks.ROOT / ".venv" / "bin" / "python")
    command = [python, "-P", "-B", "-c", "import sys, cli.__main__ as pd; sys.exit(pd.main())", "check", str(file)]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(template)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "no findings in 1 file\n", "")


def test_pulumi_finds_the_requirements_by_the_name_that_it_looks_for(template: Path) -> None:
    (line,) = (line for line in (template / "requirements.txt").read_text().splitlines() if not line.startswith("#"))
    assert (template / line.removeprefix("-r ")).read_text() == (stacks.ROOT / "requirements.lock").read_text()


def test_a_place_that_holds_something_is_no_place_for_the_template(template: Path) -> None:
    command = ["make", "--silent", "template", f"TEMPLATE={template}"]
    assert subprocess.run(command, cwd=stacks.ROOT, check=False, capture_output=True).returncode
    assert (template / "Pulumi.yaml").exists()
