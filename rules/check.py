"""From the raw stack configuration to a checked stack, or to everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as File
from typing import Any

import catalog
from models.stack import Stack
from rules import (  # noqa: F401 - each registers its rules
    additional_config,
    architecture,
    autoscaling,
    batching,
    capacity,
    control_plane,
    engine,
    environment,
    escape_hatch,
    lifecycle,
    memory,
    monitoring,
    names,
    npu,
    parallelism,
    pod_template,
    ports,
    resources,
    rollout,
    routing,
    scheduling,
    shape,
    speculative,
    weights,
)
from rules.finding import PROJECT, RULES, Check, Finding, StackError, in_deployment, in_order, one_of, refuse_errors
from rules.layers import BASE, Declared, declared
from rules.source import FILE, Source

ACCEPTANCE = Check(
    "PD003",
    "error",
    "rules/",
    "what is accepted occurs",
    "An acceptance that is left standing hides the next finding of its code. Of a warning it is one itself.",
)
CONTEXT = Check(
    "PD004",
    "error",
    "Pulumi's Kubernetes provider",
    "context is in the kubeconfig",
    "Pulumi keeps the context in its state, and would look for the cluster there at every later run. `pd check` reads no "
    "kubeconfig and leaves this to `pulumi preview` and `pulumi up`.",
)
CHECKS: tuple[Check, ...] = (
    FILE,
    shape.SHAPE,
    shape.RECIPE,
    ACCEPTANCE,
    CONTEXT,
    BASE,
    *sorted(RULES, key=lambda rule: rule.code),
)
"""Everything that has a code, in the order of the codes"""


def read_file(file: File) -> tuple[Stack, list[Finding]]:
    """Read a stack file and check it: the stack, and the warnings about it.

    Raises:
        OSError: there is no such file, or it may not be read.
        StackError: with all findings, if there is an error among them.
    """
    warnings: list[Finding] = []
    source = Source.load(file)
    return read(source.config, source, warn=warnings.append), warnings


def read(config: Mapping[str, Any], source: Source | None = None, warn: Callable[[Finding], object] = lambda _: None) -> Stack:
    """Read ``{"cluster": ..., "deployments": ...}`` as the stack file has it, base and recipes filled in, and check it.

    Args:
        config: what the stack file declares
        source: the file itself, to name the places of what is wrong, and to find the base; without it that is looked for from
            the current directory
        warn: is told each warning of a stack without errors

    Raises:
        StackError: with all findings. The rules see the deployments that are well-formed.
    """
    whole = declared(config, source)
    stack, malformed = shape.parse(whole.config)
    found = check(stack) if stack else []
    if malformed:  # what is not in the stack may be in the file
        found = [finding for finding in found if finding.code not in routing.ABOUT_WHAT_IS_ABSENT]
    found = [finding for finding in found if not _is_for_other_stacks(finding, whole)]
    findings = in_order(finding if finding.line else whole.placed(finding) for finding in [*whole.findings, *malformed, *found])
    refuse_errors(findings)
    if stack is None:  # never without an error that says why
        raise StackError(findings)
    for finding in findings:
        warn(finding)
    return stack


def require_context(stack: Stack, contexts: Collection[str], source: Source | None = None) -> None:
    """Check the declared context against those of the kubeconfig; ``source``: the stack file, to name the place.

    It must be done before Pulumi keeps a context that does not exist in its state: it would look there at every later run.

    Raises:
        StackError: the context is not there.
    """
    context = stack.cluster.context
    if context is not None and context not in contexts:
        remedy = f"one of {one_of(contexts, context)}; KUBECONFIG says where they are looked for"
        found = Finding(CONTEXT.code, ("cluster", "context"), f"the kubeconfig has no context {context!r}", remedy)
        raise StackError([declared(source.config, source).placed(found) if source else found])


def require_prefix(keys: Iterable[str], project: str) -> None:
    """Check that no setting has the prefix of a project of another name: `pulumi config set base ...` would give it that.

    Raises:
        StackError: some have.
    """
    others = sorted(key for key in keys if key.startswith(f"{project}:")) if project != PROJECT else []
    if others:
        raise StackError(
            [
                Finding(shape.SHAPE.code, (), f"nothing reads {key}", f"{PROJECT}:{key.partition(':')[2]} in its place")
                for key in others
            ]
        )


def _is_for_other_stacks(finding: Finding, whole: Declared) -> bool:
    """A warning about what the base accepts for another of the stacks that share it."""
    return finding.code == ACCEPTANCE.code and finding.severity == "warning" and finding.path in whole.base


def check(stack: Stack) -> list[Finding]:
    """Findings of all rules less the accepted warnings."""
    found = [finding for rule in RULES for finding in rule(stack)]
    found += _of_candidates(stack, found)
    return [finding for finding in found if not _is_accepted(stack, finding)] + list(_useless_acceptances(stack, found))


def _of_candidates(stack: Stack, found: Sequence[Finding]) -> Iterator[Finding]:
    """What would be wrong with the stack if its candidates were promoted, and is not wrong without."""
    promoted = {name: one.candidate for name, one in stack.deployments.items() if one.candidate}
    if not promoted:
        return
    known = {(finding.code, finding.path, finding.problem) for finding in found}
    whole = Stack(cluster=stack.cluster, deployments=stack.deployments | promoted)
    for finding in (finding for rule in RULES for finding in rule(whole)):
        of_candidate = finding.path[0] == "deployments" and finding.path[1] in promoted
        if (finding.code, finding.path, finding.problem) in known or (of_candidate and finding.path[2:3] == ("rollout",)):
            continue
        yield replace(finding, path=shape.to_candidate(finding.path)) if of_candidate else finding


def _is_accepted(stack: Stack, finding: Finding) -> bool:
    if finding.severity == "error" or finding.path[0] != "deployments":
        return False
    deployment = stack.deployments[str(finding.path[1])]
    of_candidate = finding.path[2:4] == shape.CANDIDATE
    return finding.code in ((deployment.candidate if of_candidate else None) or deployment).accept


def _useless_acceptances(stack: Stack, found: Sequence[Finding]) -> Iterator[Finding]:
    """What is accepted and does not occur, or can't be accepted: left standing, it would hide the next one."""
    severities = {check.code: check.severity for check in CHECKS}
    occurring = {(finding.code, finding.path[1]) for finding in found}
    for deployment in stack.deployments.values():
        # what the recipe accepts, the user can't leave out
        recipe = catalog.recipe(deployment.recipe) if deployment.recipe in catalog.recipe_names() else {}
        own = deployment.accept.keys() - recipe.get("accept", {}).keys()
        of_candidate = deployment.candidate.accept.keys() - deployment.accept.keys() if deployment.candidate else set()
        for code in own | of_candidate:
            path = in_deployment(deployment, "accept", code)
            path = path if code in own else shape.to_candidate(path)
            if severities.get(code) != "warning":
                problem = f"{code} is an error, which can't be accepted" if code in severities else f"there is no rule {code}"
                yield Finding(ACCEPTANCE.code, path, problem, "leave it out")
            elif (code, deployment.name) not in occurring:
                yield Finding(ACCEPTANCE.code, path, f"there is no {code} here to accept", "leave it out", "warning")
