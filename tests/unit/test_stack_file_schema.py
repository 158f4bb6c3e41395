"""The published JSON Schema says what the models say."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest
import yaml

import catalog
from rules.schema import base_file_schema, schemas, stack_file_schema
from tests import stacks

DIRECTORY = stacks.ROOT / "schema"
FILE = DIRECTORY / "stack-file.schema.json"
BASE = stacks.ROOT / "environments" / "base.yaml"
VALIDATOR = jsonschema.Draft202012Validator(stack_file_schema())
BASE_VALIDATOR = jsonschema.Draft202012Validator(base_file_schema())


def whole_file(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((stacks.ROOT / f"Pulumi.{name}.yaml").read_text())
    return content


def test_the_published_schemas_are_those_of_the_models_and_the_catalogue() -> None:
    published = {file.name: json.loads(file.read_text()) for file in DIRECTORY.glob("*.json")}
    assert published == schemas(), "run `make docs`"


@pytest.mark.parametrize("name", ["dev", "deepseek-v2-lite", "staging", "prod"])
def test_an_example_stack_fits_the_schema_that_it_names_for_editors(name: str) -> None:
    first_line = (stacks.ROOT / f"Pulumi.{name}.yaml").read_text().splitlines()[0]
    assert (stacks.ROOT / first_line.rpartition("=")[2]) == FILE
    assert [error.message for error in VALIDATOR.iter_errors(whole_file(name))] == []


@pytest.mark.parametrize(
    "edit",
    [
        {"ratio": "0P1D"},
        {"ratio": {"prefill": 0, "decode": 1}},
        {"ratoi": "1P1D"},
        {"groups": 0},
        {"decode": {"parallelism": {"tp": "two"}}},
        {"name": "x"},
        {"recipe": "deepseek-v9"},
        {"model": {"architecture": "deepseek-v9"}},
        {"kvTransfer": {"connector": "MultiConnector"}},
        {"prefill": {"speculative": {"method": "guess"}}},
    ],
)
def test_an_editor_marks_what_the_program_would_refuse(edit: dict[str, Any]) -> None:
    broken = copy.deepcopy(whole_file("dev"))
    broken["config"]["kthena-pd:deployments"]["deepseekv4-pd"].update(edit)
    assert not VALIDATOR.is_valid(broken)


def test_the_base_fits_the_schema_that_it_names_for_editors() -> None:
    named = BASE.read_text().splitlines()[0].rpartition("=")[2]
    assert (BASE.parent / named).resolve() == DIRECTORY / "base-file.schema.json"
    assert [error.message for error in BASE_VALIDATOR.iter_errors(yaml.safe_load(BASE.read_text()))] == []


@pytest.mark.parametrize(
    "edit",
    [{"base": "x.yaml"}, {"clutser": {}}, {"config": {}}, {"deployments": {"a": None}}, {"deployments": {"a": {"ratio": 3}}}],
)
def test_an_editor_marks_what_can_not_stand_in_a_base(edit: dict[str, Any]) -> None:
    assert not BASE_VALIDATOR.is_valid(yaml.safe_load(BASE.read_text()) | edit)


@pytest.mark.parametrize(
    ("key", "value", "fits"),
    [
        ("base", "environments/base.yaml", True),
        ("base", 3, False),
        ("cluster", {"npu": {"nodes": 8}}, True),
        ("deployments", {"chat": None}, True),
        ("deployments.chat.groups", "2", True),
        ("cluster.npu.family", "A3", True),
        ("clutser.npu.family", "A3", False),
        ("bases", "x.yaml", False),
    ],
)
def test_an_editor_knows_what_a_stack_with_a_base_may_hold(key: str, value: object, *, fits: bool) -> None:
    assert VALIDATOR.is_valid({"config": {f"kthena-pd:{key}": value}}) == fits


def test_an_editor_marks_an_unknown_key_of_the_project_and_leaves_other_projects_alone() -> None:
    broken = whole_file("dev")
    broken["config"]["kthena-pd:deploymnts"] = {}
    assert not VALIDATOR.is_valid(broken)
    fine = whole_file("dev")
    fine["config"]["pulumi:tags"] = {"owner": "x"}
    assert VALIDATOR.is_valid(fine)


@pytest.mark.parametrize(
    ("definition", "key", "name"),
    [
        *(("Deployment", "recipe", name) for name in catalog.recipe_names()),
        *(("Model", "architecture", name) for name in catalog.models()),
        *(("Npu", "family", name) for name in catalog.npu_families()),
        ("Npu", "devicePlugin", "cce"),
        ("KVTransfer", "connector", "MooncakeConnectorV1"),
        ("Speculative", "method", "deepseek_mtp"),
    ],
)
def test_an_editor_completes_names_of_the_catalogue(definition: str, key: str, name: str) -> None:
    declared = stack_file_schema()["$defs"][definition]["properties"][key]
    assert any(name in text.get("enum", ()) for text in declared.get("anyOf", [declared]))
