"""From the raw stack configuration to a checked stack, or to everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.stack import Stack
from rules import (
    additional_config,
    architecture,
    autoscaling,
    batching,
    capacity,
    engine,
    environment,
    escape_hatch,
    memory,
    names,
    parallelism,
    pod_template,
    ports,
    recovery,
    resources,
    rollout,
    routing,
    scheduling,
    shape,
    speculative,
    timeouts,
)
from rules.finding import Finding, Path, Rule, StackError, in_deployment, one_of, refuse_errors
from rules.source import Source

_SUBJECTS = (
    additional_config,
    architecture,
    autoscaling,
    batching,
    capacity,
    engine,
    environment,
    escape_hatch,
    memory,
    names,
    parallelism,
    pod_template,
    ports,
    recovery,
    resources,
    rollout,
    routing,
    scheduling,
    speculative,
    timeouts,
)
RULES: tuple[Rule, ...] = tuple(found for subject in _SUBJECTS for found in vars(subject).values() if isinstance(found, Rule))


def read(config: Mapping[str, Any], source: Source | None = None, warn: Callable[[Finding], object] = lambda _: None) -> Stack:
    """Read ``{"cluster": ..., "deployments": ...}`` as the stack file has it, recipes filled in, and check it.

    Args:
        config: what the stack file declares
        source: the file itself, to name the lines of what is wrong
        warn: is told each warning of a stack without errors

    Raises:
        StackError: with all findings. The rules see the deployments that are well-formed.
    """
    lines = source.lines(config) if source else {}
    name = source.name if source else ""
    stack, malformed = shape.parse(config)
    findings = [_placed(finding, name, lines) for finding in [*malformed, *(check(stack) if stack else ())]]
    refuse_errors(findings)
    if stack is None:  # never without an error that says why
        raise StackError(findings)
    for finding in findings:
        warn(finding)
    return stack


def require_context(stack: Stack, contexts: Collection[str]) -> None:
    """Check the declared context against those of the kubeconfig.

    It must be done before Pulumi keeps a context that does not exist in its state: it would look there at every later run.

    Raises:
        StackError: the context is not there.
    """
    context = stack.cluster.context
    if context is not None and context not in contexts:
        remedy = f"one of {one_of(contexts)}; KUBECONFIG says where they are looked for"
        raise StackError([Finding("PD004", ("cluster", "context"), f"the kubeconfig has no context {context!r}", remedy)])


def _placed(finding: Finding, name: str, lines: Mapping[Path, int]) -> Finding:
    """``finding`` with the line of its path, or of the nearest thing around it that the file has."""
    around = (finding.path[:length] for length in range(len(finding.path), 0, -1))
    line = next((lines[path] for path in around if path in lines), None)
    return finding if line is None else replace(finding, file=name, line=line)


def check(stack: Stack) -> list[Finding]:
    """Findings of all rules less the accepted warnings. NPUs that are not in the catalogue hide what depends on them."""
    unknown = list(capacity.npu_family_is_in_the_catalogue(stack))
    if unknown:
        return unknown
    found = [finding for rule in RULES for finding in rule(stack)]
    return [finding for finding in found if not _is_accepted(stack, finding)] + list(_useless_acceptances(stack, found))


def _is_accepted(stack: Stack, finding: Finding) -> bool:
    if finding.severity == "error" or finding.path[0] != "deployments":
        return False
    return finding.code in stack.deployments[str(finding.path[1])].accept


def _useless_acceptances(stack: Stack, found: Sequence[Finding]) -> Iterator[Finding]:
    """What is accepted and does not occur, or can't be accepted: left standing, it would hide the next one."""
    severities = {rule.code: rule.severity for rule in RULES}
    occurring = {(finding.code, finding.path[1]) for finding in found}
    for deployment in stack.deployments.values():
        for code in deployment.accept:
            path = in_deployment(deployment, "accept", code)
            if severities.get(code) != "warning":
                problem = f"{code} is an error, which can't be accepted" if code in severities else f"there is no rule {code}"
                yield Finding("PD003", path, problem, "leave it out")
            elif (code, deployment.name) not in occurring:
                yield Finding("PD003", path, f"there is no {code} here to accept", "leave it out", "warning")
