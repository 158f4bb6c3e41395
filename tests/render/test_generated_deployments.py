"""Generated stack files: what passes the rules is rendered as Kthena's CRDs want it, and its engines start.

``KTHENA_PD_EXAMPLES=2000`` tries that many instead of a few; the same ones at every run.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings

from render import RenderedDeployment, render_deployment
from rules import Finding, StackError, example, read, shape
from tests.render.crds import Crds
from tests.render.declarations import broken_stack_files, stack_files
from tests.render.starting import Starter

EXAMPLES = int(os.environ.get("KTHENA_PD_EXAMPLES", "60"))
REFUSED_WITHOUT_THE_RULE = (
    "PD201",
    "PD208",
    "PD301",
    "PD302",
    "PD303",
    "PD310",
    "PD312",
    "PD313",
    "PD320",
    "PD321",
    "PD326",
    "PD327",
    "PD328",
    "PD500",
    "PD501",
    "PD502",
    "PD531",
    "PD533",
    "PD534",
    "PD536",
    "PD537",
    "PD553",
    "PD557",
    "PD559",
    "PD701",
)
"""Rules with a counterpart: what they refuse, the API server, bash or the stand-in of vLLM refuses as well"""
STRICTER = {"PD301", "PD320"}
"""Of these, rules that refuse also what the engine takes: it would stand in two places"""
WARNED_OF_A_REFUSAL = ("PD313", "PD562")
"""Warnings of what is refused for certain, unless the engine is of a release that takes it"""
SETTINGS = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[*HealthCheck],
)


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Starter:
    return Starter(tmp_path_factory.mktemp("starter"))


Refusals = Callable[[RenderedDeployment], list[str]]


@pytest.fixture(scope="module")
def refusals(crds: Crds, starter: Starter) -> Refusals:
    """What the API server refuses of the objects; then what stops the pods."""
    validators = {kind: jsonschema.Draft202012Validator(crds.strict_schema(kind)) for kind in crds.versions}

    @cache  # most examples render what others render too
    def invalid(item: str) -> list[str]:
        value = json.loads(item)
        return [f"{value['kind']} {error.json_path}: {error.message}" for error in validators[value["kind"]].iter_errors(value)]

    def refused(rendered: RenderedDeployment) -> list[str]:
        kthena = [item for item in rendered.objects if item["kind"] in validators]
        return [error for item in kthena for error in invalid(json.dumps(item))] or starter.refusals(rendered)

    return refused


def test_the_rules_pass_what_is_taken_by_the_api_server_and_starts_and_refuse_what_is_not(
    starter: Starter, refusals: Refusals
) -> None:
    outcomes: Counter[str] = Counter()

    @SETTINGS
    @given(stack_files(str(starter.weights)))
    def passes(config: dict[str, Any]) -> None:
        warnings: list[Finding] = []
        try:
            stack = read(config, warn=warnings.append)
        except StackError as error:
            outcomes["refused"] += 1
            errors = {finding.code for finding in error.findings if finding.severity == "error"}
            if errors <= {*REFUSED_WITHOUT_THE_RULE} - STRICTER:
                assert refused_without_rules(config, starter, refusals), errors
            return
        if any(warning.code in WARNED_OF_A_REFUSAL for warning in warnings):
            outcomes["warned"] += 1
            return
        outcomes["passed"] += 1
        for deployment in stack.deployments.values():
            starter.provide(deployment)
            assert refusals(render_deployment(deployment, stack.cluster)) == []

    passes()
    # neither side may become so small that little is tried
    assert min(outcomes["passed"], outcomes["refused"]) > 0.2 * outcomes.total(), outcomes


@pytest.mark.parametrize("code", sorted(example.codes()))
def test_the_right_example_of_a_rule_starts(starter: Starter, refusals: Refusals, code: str) -> None:
    assert refused_without_rules(on_this_machine(example.example(code).right, starter), starter, refusals) == []


@pytest.mark.parametrize("code", REFUSED_WITHOUT_THE_RULE)
def test_what_a_rule_refuses_is_refused_without_it_too(starter: Starter, refusals: Refusals, code: str) -> None:
    assert refused_without_rules(on_this_machine(example.example(code).wrong, starter), starter, refusals)


def refused_without_rules(config: dict[str, Any], starter: Starter, refusals: Refusals) -> list[str]:
    stack, malformed = shape.parse(config)
    assert stack is not None
    assert malformed == []
    found: list[str] = []
    for deployment in stack.deployments.values():
        starter.provide(deployment)
        found += refusals(render_deployment(deployment, stack.cluster))
    return found


def on_this_machine(config: dict[str, Any], starter: Starter) -> dict[str, Any]:
    """An example with its weights where the starter has them."""
    weights = {"model": {"weights": {"hostPath": str(starter.weights)}}}
    declared = below(config["deployments"], starter)
    return {**config, "deployments": {name: shape.overlay(deployment, weights) for name, deployment in declared.items()}}


def below(value: Any, starter: Starter) -> Any:
    """``value`` with the weights' directory for each path in ``/models``."""
    if isinstance(value, dict):
        return {key: below(inner, starter) for key, inner in value.items()}
    if isinstance(value, list):
        return [below(inner, starter) for inner in value]
    return str(starter.weights) if isinstance(value, str) and value.startswith("/models/") else value


def test_anything_at_all_is_a_stack_or_a_stack_error(starter: Starter) -> None:
    outcomes: Counter[str] = Counter()

    @SETTINGS
    @given(broken_stack_files(str(starter.weights)))
    def reads(config: Any) -> None:
        try:
            read(config if isinstance(config, Mapping) else {"deployments": config})
            outcomes["passed"] += 1
        except StackError:
            outcomes["refused"] += 1

    reads()
    assert outcomes["refused"] > 0.5 * outcomes.total(), outcomes
