"""From the raw stack configuration to a checked stack, or to everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import catalog
from models.stack import Stack
from rules import capacity, engine, escape_hatch, names, parallelism, ports, shape
from rules.finding import Finding, StackError

Rule = Callable[[Stack], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    capacity.npu_family_is_in_the_catalogue,
    capacity.cluster_has_the_npus,
    engine.connector_is_in_the_engine_release,
    escape_hatch.extra_args_repeat_no_derived_flag,
    escape_hatch.env_sets_nothing_derived_or_reserved,
    names.pod_names_fit,
    names.namespaces_have_one_owner,
    names.served_model_has_one_route,
    parallelism.prefill_tp_is_a_multiple_of_decode_tp,
    parallelism.batch_holds_every_sequence,
    ports.engine_ports_are_disjoint,
    ports.router_ports_differ,
)


def read(config: Mapping[str, Any]) -> Stack:
    """Read ``{"cluster": ..., "deployments": ...}`` as the stack file has it, recipes filled in, and check it.

    Raises:
        StackError: with all findings. Where the shape is wrong the rules can't run, so only those are in it.
    """
    stack = shape.parse(config)
    findings = check(stack)
    if findings:
        raise StackError(findings)
    return stack


def check(stack: Stack) -> list[Finding]:
    """Findings of all rules. An unknown NPU family hides what depends on it."""
    if stack.cluster.npu.family not in catalog.npu_families():
        return list(capacity.npu_family_is_in_the_catalogue(stack))
    return [finding for rule in RULES for finding in rule(stack)]
