"""From the raw stack configuration to a checked stack, or to everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import catalog
from models.stack import Stack
from rules import capacity, engine, escape_hatch, names, parallelism, ports, resources, shape
from rules.finding import Finding, Path, StackError
from rules.source import Source

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
    resources.requests_are_within_limits,
    resources.shared_memory_is_within_the_memory_limit,
)


def read(config: Mapping[str, Any], source: Source | None = None) -> Stack:
    """Read ``{"cluster": ..., "deployments": ...}`` as the stack file has it, recipes filled in, and check it.

    Args:
        config: what the stack file declares
        source: the file itself, to name the lines of what is wrong

    Raises:
        StackError: with all findings. Where the shape is wrong the rules can't run, so only those are in it.
    """
    try:
        stack = shape.parse(config)
        findings = check(stack)
        if findings:
            raise StackError(findings)
    except StackError as error:
        if source is None:
            raise
        lines = source.lines(config)
        raise StackError([_placed(finding, source.name, lines) for finding in error.findings]) from None
    return stack


def _placed(finding: Finding, name: str, lines: Mapping[Path, int]) -> Finding:
    """``finding`` with the line of its path, or of the nearest thing around it that the file has."""
    around = (finding.path[:length] for length in range(len(finding.path), 0, -1))
    line = next((lines[path] for path in around if path in lines), None)
    return finding if line is None else replace(finding, file=name, line=line)


def check(stack: Stack) -> list[Finding]:
    """Findings of all rules. An unknown NPU family hides what depends on it."""
    if stack.cluster.npu.family not in catalog.npu_families():
        return list(capacity.npu_family_is_in_the_catalogue(stack))
    return [finding for rule in RULES for finding in rule(stack)]
