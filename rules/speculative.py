"""Speculative decoding on both roles."""

from __future__ import annotations

from collections.abc import Iterator

import catalog
from models.deployment import Deployment
from models.role import ROLES, RoleName, Speculative
from models.stack import Stack
from rules.architecture import architecture_of
from rules.finding import Problem, alternatives, in_deployment, one_of, roles, rule

DSPARK = "dspark"
DSPARK_BLOCK = 5
ASYNC_SINCE = "0.12.0rc1"


def _speculating(stack: Stack) -> Iterator[tuple[Deployment, RoleName, Speculative]]:
    for deployment, name, role in roles(stack):
        if role.speculative:
            yield deployment, name, role.speculative


@rule("PD521", source="catalog/engine.yaml; vLLM SpeculativeConfig", severity="warning")
def speculative_method_is_in_the_catalogue(stack: Stack) -> Iterator[Problem]:
    """vLLM refuses a name that it does not know; releases add names, though."""
    known = catalog.engine().speculative_methods
    for deployment, name, speculative in _speculating(stack):
        if speculative.method not in known:
            path = in_deployment(deployment, name, "speculative", "method")
            yield Problem(path, f"no method {speculative.method!r}", f"one of {one_of(known, speculative.method)}")


@rule("PD522", source="catalog/engine.yaml")
def speculative_method_is_in_the_engine_release(stack: Stack) -> Iterator[Problem]:
    """An older release refuses the name, or has no drafter for it."""
    for deployment, name, speculative in _speculating(stack):
        method = catalog.engine().speculative_methods.get(speculative.method)
        if method and method.since and catalog.before(deployment.engine.version, method.since):
            yield Problem(
                in_deployment(deployment, name, "speculative", "method"),
                f"{speculative.method} in release {deployment.engine.version}",
                f"engine version v{method.since} or newer",
            )


@rule("PD523", source="vLLM SpeculativeConfig")
def draft_model_is_declared_where_the_method_has_one(stack: Stack) -> Iterator[Problem]:
    """The weights of such a drafter are no part of the model's own: vLLM asks for their place and ends."""
    for deployment, name, speculative in _speculating(stack):
        method = catalog.engine().speculative_methods.get(speculative.method)
        if method and method.draft_model == "needed" and speculative.model is None:
            yield Problem(
                in_deployment(deployment, name, "speculative"),
                f"{speculative.method} without a draft model",
                f"model: its directory inside that of the weights, for example {speculative.method}",
            )


@rule("PD529", source="vLLM SpeculativeConfig", severity="warning")
def no_draft_model_is_declared_where_the_method_has_none(stack: Stack) -> Iterator[Problem]:
    """It has no effect: such a method drafts from the tokens that are there already."""
    for deployment, name, speculative in _speculating(stack):
        method = catalog.engine().speculative_methods.get(speculative.method)
        if method and method.draft_model == "none" and speculative.model is not None:
            path = in_deployment(deployment, name, "speculative", "model")
            yield Problem(path, f"{speculative.method} has no draft model", "leave it out")


@rule("PD524", source="vllm-ascend#16177 and #16160; vLLM-Ascend speculative decoding guide")
def roles_draft_as_many_tokens_where_the_kv_cache_has_a_place_for_each(stack: Stack) -> Iterator[Problem]:
    """The draft layers of dspark are part of the KV cache that decode fetches: without them on prefill, decode crashes. The Mamba
    state of a hybrid model has a place for each draft token: what prefill hands over is of another size than decode expects."""
    for deployment in stack.deployments.values():
        architecture = architecture_of(deployment)
        dspark = any(_tokens(deployment, name, DSPARK) for name in ROLES)
        if dspark or (architecture and architecture.hybrid):
            yield from _unequal(deployment, {name: _tokens(deployment, name, DSPARK if dspark else None) for name in ROLES})


def _tokens(deployment: Deployment, name: RoleName, method: str | None) -> int:
    """Draft tokens of a role, by one method or by any."""
    speculative = deployment.role(name).speculative
    return speculative.num_speculative_tokens if speculative and method in (None, speculative.method) else 0


def _unequal(deployment: Deployment, tokens: dict[RoleName, int]) -> Iterator[Problem]:
    fewer, more = sorted(ROLES, key=lambda name: tokens[name])
    speculative = deployment.role(more).speculative
    if speculative and tokens[fewer] < tokens[more]:
        yield Problem(
            in_deployment(deployment, fewer, "speculative"),
            f"{tokens[fewer]} draft tokens by {speculative.method} on {fewer}, {tokens[more]} on {more}",
            f"{{method: {speculative.method}, numSpeculativeTokens: {tokens[more]}}} on both roles",
        )


@rule("PD526", source="vLLM-Ascend speculative decoding guide and P/D recipes", severity="warning")
def prefill_drafts_one_token_or_as_many_as_decode(stack: Stack) -> Iterator[Problem]:
    """Prefill drafts to fill the draft layers' KV cache only; decode throws further tokens away, and prefill computes longer."""
    for deployment in stack.deployments.values():
        prefill, decode = deployment.prefill.speculative, deployment.decode.speculative
        architecture = architecture_of(deployment)
        if prefill is None or prefill.method == DSPARK or (architecture and architecture.hybrid):
            continue
        tokens, allowed = prefill.num_speculative_tokens, {1, decode.num_speculative_tokens if decode else 1}
        if tokens not in allowed:
            path = in_deployment(deployment, "prefill", "speculative", "numSpeculativeTokens")
            yield Problem(path, f"{tokens} on prefill", alternatives(sorted(allowed)))


@rule("PD527", source="vLLM PR #47419, SpeculativeConfig against dspark_block_size", severity="warning")
def dspark_drafts_whole_blocks(stack: Stack) -> Iterator[Problem]:
    """Its drafter was trained on blocks of five tokens, or more; from vLLM 0.26 on the engine refuses to cut them."""
    for deployment, name, speculative in _speculating(stack):
        if speculative.method == DSPARK and speculative.num_speculative_tokens < DSPARK_BLOCK:
            path = in_deployment(deployment, name, "speculative", "numSpeculativeTokens")
            yield Problem(path, f"{speculative.num_speculative_tokens} draft tokens by {DSPARK}", f"{DSPARK_BLOCK}, or more")


@rule("PD528", source="vLLM EngineArgs before 0.12")
def drafts_are_scheduled_ahead_in_releases_that_can(stack: Stack) -> Iterator[Problem]:
    """Before, the engine refused to schedule a step while it did not know how many draft tokens of the last one were taken."""
    for deployment, name, role in roles(stack):
        if role.speculative and role.async_scheduling and catalog.before(deployment.engine.version, ASYNC_SINCE):
            yield Problem(
                in_deployment(deployment, name, "asyncScheduling"),
                f"true with speculative decoding in release {deployment.engine.version}",
                f"false, or engine version v{ASYNC_SINCE} or newer",
            )
