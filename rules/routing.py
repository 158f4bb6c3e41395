"""Routes: which requests reach which deployment."""

from __future__ import annotations

import graphlib
from collections.abc import Iterator

from models.deployment import Deployment
from models.kthena.model_route import ModelMatch, RateLimit, StringMatch
from models.route import WeightedRule
from models.stack import Stack
from rules.finding import Path, Problem, in_deployment, one_of, rule

_STORE = "Kthena v1.0.0 pkg/kthena-router/datastore/store.go"
_WEBHOOK = "Kthena v1.0.0 pkg/kthena-router/webhook/validator.go"
_LIMITER = "Kthena v1.0.0 pkg/kthena-router/filters/ratelimit"
_API = "/v1/"
"""the router serves model routes below it (pkg/kthena-router/router/router.go)"""


def _rules(stack: Stack) -> Iterator[tuple[Deployment, Path, WeightedRule]]:
    for deployment in stack.deployments.values():
        for index, declared in enumerate(deployment.route.rules):
            yield deployment, in_deployment(deployment, "route", "rules", index), declared


def _targets(stack: Stack) -> Iterator[tuple[Deployment, Path, Deployment]]:
    """Deployments that get requests by another's route."""
    for deployment, path, declared in _rules(stack):
        for name, weight in declared.targets.items():
            target = stack.deployments.get(name)
            if target and target is not deployment and weight > 0:
                yield deployment, (*path, "targets", name), target


def _limits(stack: Stack) -> Iterator[tuple[Deployment, RateLimit, Path]]:
    for deployment in stack.deployments.values():
        if deployment.route.rate_limit:
            yield deployment, deployment.route.rate_limit, in_deployment(deployment, "route", "rateLimit")


def _adapters(deployment: Deployment) -> frozenset[str]:
    return frozenset(deployment.model.lora.adapters if deployment.model.lora else ())


def _peers(stack: Stack, deployment: Deployment) -> list[str]:
    """Deployments that a route of this one can lead to."""
    return [other.name for other in stack.deployments.values() if other.namespace == deployment.namespace]


@rule("PD410", source=f"{_STORE}: a target is a ModelServer of the route's namespace; the webhook does not look for it")
def route_targets_are_in_the_namespace_of_the_route(stack: Stack) -> Iterator[Problem]:
    """The share of requests that goes to a ModelServer that is not there is answered with 404."""
    for deployment, path, declared in _rules(stack):
        peers = _peers(stack, deployment)
        for name in declared.targets:
            if name in stack.deployments and name not in peers:
                other = stack.deployments[name].namespace
                yield Problem(
                    (*path, "targets", name),
                    f"{name} is in another namespace, {other}",
                    f"the same namespace for both, {deployment.namespace} or {other}, or one of {one_of(peers, name)}",
                )


@rule(
    "PD425",
    source=f"{_STORE}: a target is a ModelServer of the route's namespace; the webhook does not look for it",
    severity="warning",
)
def route_targets_are_deployments_of_the_stack(stack: Stack) -> Iterator[Problem]:
    """Another stack, or somebody's hand, has to have made such a ModelServer: where nobody has, its share of the requests is
    answered with 404."""
    for deployment, path, declared in _rules(stack):
        for name in declared.targets.keys() - stack.deployments.keys():
            peers = _peers(stack, deployment)
            yield Problem((*path, "targets", name), f"{name} is not in this stack", f"one of {one_of(peers, name)}")


@rule("PD411", source=f"{_WEBHOOK}, validateModelRoute")
def some_target_has_weight(stack: Stack) -> Iterator[Problem]:
    """Kthena refuses a rule that shares requests out among nobody."""
    for _, path, declared in _rules(stack):
        if not any(declared.targets.values()):
            yield Problem((*path, "targets"), "all weights are 0", "at least one from 1 to 100")


@rule("PD412", source=f"{_WEBHOOK}; Go's regexp is RE2: https://github.com/google/re2/wiki/Syntax")
def regular_expressions_are_gos(stack: Stack) -> Iterator[Problem]:
    """Kthena refuses what Go does not compile; without its webhook such a match is never true. Go has no look-around and no
    references to groups, which other languages have."""
    for _, path, declared in _rules(stack):
        for keys, match in _string_matches(declared.match):
            complaint = _complaint(match.regex) if match.regex else ""
            if complaint:
                yield Problem((*path, "match", *keys, "regex"), complaint, "an expression of RE2's syntax; or exact or prefix")


def _complaint(regex: str) -> str:
    """What Go would not compile in ``regex``; empty if it would."""
    import re2  # noqa: PLC0415 - most stacks have no expressions

    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(regex, options)
    except re2.error as error:
        complaint: str = error.args[0].decode(errors="replace")
        return complaint
    return ""


def _string_matches(match: ModelMatch | None) -> Iterator[tuple[Path, StringMatch]]:
    if match and match.uri:
        yield ("uri",), match.uri
    for name, value in (match.headers or {}).items() if match else ():
        yield ("headers", name), value


@rule("PD413", source="a route is made after the deployments that it leads to")
def routes_lead_in_no_circle(stack: Stack) -> Iterator[Problem]:
    """Each of the deployments in a circle would have to be there before the others."""
    targets = {
        name: [target for target in deployment.route.targets if target in stack.deployments and target != name]
        for name, deployment in stack.deployments.items()
    }
    try:
        graphlib.TopologicalSorter(targets).prepare()
    except graphlib.CycleError as error:
        circle = sorted(set(error.args[1]))
        yield Problem(
            in_deployment(stack.deployments[circle[0]], "route", "rules"),
            f"routes lead in a circle through {', '.join(circle)}",
            "let one of them have the route, and the others route.enabled: false",
        )


def _matches_all(match: ModelMatch | None) -> bool:
    return match is None or not (match.headers or match.uri or (match.body and match.body.model is not None))


@rule("PD414", source=f"{_STORE} selectRule: the first rule that matches decides", severity="warning")
def every_route_rule_can_be_reached(stack: Stack) -> Iterator[Problem]:
    """A rule behind one that takes every request never takes any."""
    for deployment in stack.deployments.values():
        declared = deployment.route.rules
        taken = next((index for index, item in enumerate(declared) if _matches_all(item.match)), len(declared))
        if taken < len(declared) - 1:
            yield Problem(
                in_deployment(deployment, "route", "rules", taken + 1),
                f"rule {taken} of this route takes every request",
                f"its targets in rule {taken}, with their weights"
                if _matches_all(declared[taken + 1].match)
                else "put the rule without a match last",
            )


@rule("PD415", source=f"{_STORE} selectRule and matchString; pkg/kthena-router/router/router.go", severity="warning")
def route_matches_can_be_true(stack: Stack) -> Iterator[Problem]:
    """A rule that can match no request of this route is never used."""
    for deployment, path, declared in _rules(stack):
        match = declared.match
        names = {deployment.model.served} | _adapters(deployment)
        if match and match.body and match.body.model is not None and match.body.model not in names:
            yield Problem(
                (*path, "match", "body", "model"),
                f"no request for {match.body.model!r} comes to this route",
                f"one of {one_of(names, match.body.model)}",
            )
        uri = match.uri if match else None
        for key, text in {"exact": uri.exact, "prefix": uri.prefix}.items() if uri else ():
            if text is not None and not text.startswith(_API) and not (key == "prefix" and _API.startswith(text)):
                yield Problem(
                    (*path, "match", "uri", key),
                    f"{text!r} is outside of {_API}, where the router serves models",
                    f"/{text}" if f"/{text}".startswith(_API) else f"a path below {_API}, for example /v1/chat/completions",
                )


@rule("PD416", source="render/route.py", severity="warning")
def a_route_that_is_off_declares_nothing(stack: Stack) -> Iterator[Problem]:
    """Without a ModelRoute nothing carries its rules, limits and Gateways."""
    for deployment in stack.deployments.values():
        route = deployment.route
        given = {"rules": route.rules, "rateLimit": route.rate_limit, "parentRefs": route.parent_refs}
        for key, value in given.items():
            if value and not route.enabled:
                yield Problem(in_deployment(deployment, "route", key), "the route is off", "leave it out, or enabled: true")


@rule("PD417", source=f"{_STORE} MatchModelServer", severity="warning")
def every_deployment_can_be_reached(stack: Stack) -> Iterator[Problem]:
    """NPUs that no request reaches."""
    reached = {target.name for _, _, target in _targets(stack)}
    for deployment in stack.deployments.values():
        if not deployment.route.enabled and deployment.name not in reached:
            yield Problem(
                in_deployment(deployment, "route", "enabled"),
                "no route leads to this deployment",
                "a target with weight in another deployment's route.rules, or enabled: true",
            )


@rule("PD418", source=f"{_STORE} MatchModelServer; render/control_plane.py")
def gateways_are_left_to_a_router_that_serves_them(stack: Stack) -> Iterator[Problem]:
    """The router that this stack installs has the Gateway API off, and then skips every route that names a Gateway."""
    if not stack.cluster.control_plane.install:
        return
    for deployment in stack.deployments.values():
        if deployment.route.parent_refs:
            yield Problem(
                in_deployment(deployment, "route", "parentRefs"),
                "the installed router does not serve the Gateway API",
                "leave it out; or cluster.controlPlane.install: false with a router of your own, run with --enable-gateway-api",
            )


@rule("PD419", source=f"{_LIMITER}/ratelimit.go: one Redis client for the process", severity="warning")
def routers_count_in_one_redis(stack: Stack) -> Iterator[Problem]:
    """The router connects to the first Redis that it hears of and counts all other models' tokens there too."""
    first = ""
    for _, limit, path in _limits(stack):
        address = limit.global_.redis.address if limit.global_ else ""
        first = first or address
        if address not in ("", first):
            yield Problem((*path, "global", "redis", "address"), f"{address} besides {first}", first)


@rule("PD420", source=f"{_STORE} MatchModelServer; pkg/kthena-router/router/router.go: an adapter's name is not rewritten")
def route_targets_load_the_adapters(stack: Stack) -> Iterator[Problem]:
    """An engine that does not know the adapter answers 404 to its share of the requests."""
    for deployment in stack.deployments.values():
        adapters = _adapters(deployment)
        for index, declared in enumerate(deployment.route.rules):
            match = declared.match
            only = match.body.model if match and match.body else None
            here = {name for name in adapters if only in (None, name)}
            for name, weight in declared.targets.items():
                target = stack.deployments.get(name)
                missing = here - _adapters(target) if target else set()
                if missing and weight > 0:
                    yield Problem(
                        in_deployment(deployment, "route", "rules", index, "targets", name),
                        f"{name} does not load {', '.join(sorted(missing))}",
                        f"the same model.lora.adapters in {name}; or before this rule one with match.body.model for each adapter",
                    )
            if not (match and (match.headers or match.uri)):
                adapters = adapters - here


@rule("PD421", source="Kthena v1.0.0 pkg/kthena-router/router/router.go: limits are kept by spec.modelName", severity="warning")
def limits_hold_for_all_names(stack: Stack) -> Iterator[Problem]:
    """Requests for an adapter are not limited, and not counted."""
    for deployment, _, path in _limits(stack):
        if _adapters(deployment):
            yield Problem(
                path,
                f"does not hold for {', '.join(sorted(_adapters(deployment)))}",
                "accept it, or serve adapters by a deployment of their own",
            )


@rule("PD422", source="kthena#1498, kthena#1729: v1.0.0 stores spec.trafficPolicy and reads it nowhere", severity="warning")
def nothing_is_declared_that_the_router_does_not_read(stack: Stack) -> Iterator[Problem]:
    """Whatever is declared, a request never times out, and is tried anew on up to five pods without a pause."""
    for deployment in stack.deployments.values():
        if "traffic" in deployment.model_fields_set:
            yield Problem(
                in_deployment(deployment, "traffic"),
                "Kthena v1.0.0 does not read it",
                "leave it out; or accept it, where it waits for a release that does",
            )


@rule("PD423", source=f"{_LIMITER}/ratelimit.go, NewLocalLimiter", severity="warning")
def limits_are_counted_once(stack: Stack) -> Iterator[Problem]:
    """Without Redis every router counts for itself: together they let through a multiple of the limit."""
    router, installed = stack.cluster.control_plane.router, stack.cluster.control_plane.install
    for _, limit, path in _limits(stack):
        if installed and router.replicas > 1 and limit.global_ is None:
            yield Problem(
                path, f"{router.replicas} routers count for themselves", "global.redis.address, or a limit for each router"
            )


@rule("PD424", source=f"{_LIMITER}: a bucket holds the tokens of one unit", severity="warning")
def one_prompt_is_within_the_limit(stack: Stack) -> Iterator[Problem]:
    """A prompt with more tokens than the bucket holds is refused whenever it comes, also by an idle router."""
    for deployment, limit, path in _limits(stack):
        tokens, longest = limit.input_tokens_per_unit, deployment.model.max_model_len
        if tokens is not None and tokens < longest:
            yield Problem(
                (*path, "inputTokensPerUnit"),
                f"{tokens} a {limit.unit}, and a prompt may have {longest} tokens",
                f"{longest} or more, in a longer unit if need be",
            )


ABOUT_WHAT_IS_ABSENT = {every_deployment_can_be_reached.code, route_targets_are_deployments_of_the_stack.code}
"""Rules that are right only where every deployment of the file is in the stack"""
