"""The proof: given objects against those that the new stack renders, by what they mean."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from importer.declare import Given
from importer.engine import Fact, Facts
from importer.manifests import Keys, Manifest, Place
from models.quantities import amount
from models.role import ROLES
from render.names import ENTRY_LABEL, NAME_LABEL, QUEUE_ANNOTATION, ROLE_LABEL

NOWHERE = Place("", 0)


class Difference(NamedTuple):
    """What is not the same on both sides; None where one side has nothing."""

    keys: Keys
    given: Any
    rendered: Any
    place: Place
    """of what is given, or of the nearest thing around it"""


def differences(given: Facts, rendered: Facts, around: Mapping[str, Place]) -> Iterator[Difference]:
    """In the order of their keys; ``around``: first key -> where to look for what is missing in the manifest."""
    for keys in sorted(given.keys() | rendered.keys(), key=str):
        one, other = given.get(keys), rendered.get(keys)
        if one is None or other is None or not same(keys, one.value, other.value):
            place = one.place if one else around.get(str(keys[0]), NOWHERE)
            yield Difference(keys, one and one.value, other and other.value, place)


def same(keys: Keys, one: Any, other: Any) -> bool:
    """Whether two values mean the same."""
    if bool(one == other):
        return True
    if "resources" in keys:
        return bool(_amount(one) == _amount(other))
    if isinstance(one, str | int | float) and isinstance(other, str | int | float) and not isinstance(one, bool):
        return str(one) == str(other)
    return False


def _amount(quantity: Any) -> Any:
    try:
        return amount(str(quantity))
    except (ValueError, KeyError):
        return quantity


def serving_facts(given: Given) -> Facts:
    """Of a ModelServing with all its pods."""
    manifest = given.manifest
    facts: Facts = {}
    spec = manifest.spec
    template = spec.get("template") or {}

    def note(keys: Keys, value: Any, *at: str | int) -> None:
        if value is not None:
            facts[keys] = Fact(value, manifest.place(*at))

    note(("serving", "name"), manifest.name, "metadata", "name")
    note(("serving", "namespace"), manifest.namespace, "metadata", "namespace")
    note(("serving", "groups"), spec.get("replicas", 1), "spec", "replicas")
    note(("serving", "scheduler"), spec.get("schedulerName", "volcano"), "spec", "schedulerName")
    note(("serving", "recovery"), spec.get("recoveryPolicy", "RoleRecreate"), "spec", "recoveryPolicy")
    strategy = dict(spec.get("rolloutStrategy") or {})
    strategy.setdefault("type", "ServingGroupRollingUpdate")
    update = {"maxUnavailable": 1, **(strategy.pop("rollingUpdateConfiguration", None) or {})}
    for key, value in {**strategy, **(update if strategy["type"] == "ServingGroupRollingUpdate" else {})}.items():
        note(("serving", "rollout", key), value, "spec", "rolloutStrategy")
    note(("serving", "plugins"), spec.get("plugins") or None, "spec", "plugins")
    grace = template.get("restartGracePeriodSeconds", 0)
    note(("serving", "grace"), grace, "spec", "template", "restartGracePeriodSeconds")
    for key in ("gangPolicy", "networkTopology"):
        note(("serving", key), template.get(key), "spec", "template", key)
    queue = (manifest.metadata.get("annotations") or {}).get(QUEUE_ANNOTATION)
    note(("serving", "queue"), queue, "metadata", "annotations")
    order = [one["name"] for one in template.get("roles") or ()]
    note(("serving", "roles"), order, "spec", "template", "roles")
    for role in ROLES:
        one = given.roles[role]
        base = ("spec", "template", "roles", one.index)
        note((role, "replicas"), one.body.get("replicas", 1), *base, "replicas")
        note((role, "pods"), one.body.get("workerReplicas", 0) + 1, *base, "workerReplicas")
        note((role, "maxUnavailable"), one.body.get("maxUnavailable"), *base, "maxUnavailable")
        facts |= {(role, *keys): fact for keys, fact in one.entry.facts.items()}
        if one.worker:
            facts |= {(f"{role}-worker", *keys): fact for keys, fact in one.worker.facts.items()}
    return facts


def server_facts(server: Manifest) -> Facts:
    """Of a ModelServer."""
    spec = server.spec
    facts: Facts = {}
    selector = spec.get("workloadSelector") or {}
    pairs = selector.get("pdGroup") or {}
    match = {key: value for key, value in (selector.get("matchLabels") or {}).items() if key != NAME_LABEL}
    values = {
        "name": server.name,
        "engine": spec.get("inferenceEngine"),
        "model": spec.get("model"),
        "port": (spec.get("workloadPort") or {}).get("port"),
        "connector": (spec.get("kvConnector") or {}).get("type", "http"),
        "group-key": pairs.get("groupKey"),
        **{f"match {key}": value for key, value in match.items()},
        **{
            f"{role} {key}": value
            for role in ROLES
            for key, value in (pairs.get(f"{role}Labels") or {}).items()
            if key not in (ROLE_LABEL, ENTRY_LABEL)
        },
        "traffic": spec.get("trafficPolicy") or None,
    }
    for key, value in values.items():
        if value is not None and key != f"match {ENTRY_LABEL}":
            facts["server", key] = Fact(value, server.place("spec"))
    return facts


def route_facts(route: Manifest, deployments: Mapping[str, str]) -> Facts:
    """Of a ModelRoute; ``deployments``: ModelServer -> the deployment behind it."""
    spec = route.spec
    rules = [
        {
            "match": rule.get("modelMatch"),
            "shares": _shares(
                {
                    deployments.get(one["modelServerName"], one["modelServerName"]): one.get("weight", 100)
                    for one in rule["targetModels"]
                }
            ),
        }
        for rule in spec.get("rules") or ()
    ]
    values = {
        "name": route.name,
        "model": spec.get("modelName"),
        "adapters": sorted(spec.get("loraAdapters") or ()) or None,
        "rules": json.dumps(rules, sort_keys=True),
        "limit": spec.get("rateLimit"),
        "gateways": spec.get("parentRefs") or None,
    }
    return {("route", key): Fact(value, route.place("spec")) for key, value in values.items() if value is not None}


def _shares(weights: Mapping[str, int]) -> dict[str, float]:
    whole = sum(weights.values()) or 1
    return {name: round(weight / whole, 4) for name, weight in weights.items()}


def policy_facts(policy: Manifest) -> Facts:
    """Of an AutoscalingPolicy; metrics that are no pod's own stay as they are, of the others the port is derived."""
    spec = policy.spec
    values: dict[Keys, Any] = {("name",): policy.name, ("tolerance",): spec.get("tolerancePercent")}
    values |= dict(_leaves(spec.get("behavior") or {}, ("behavior",)))
    if whole := spec.get("homogeneousTarget"):
        target = whole.get("target") or {}
        values |= dict(
            _scaling("groups", {**whole, "metrics": spec.get("metrics"), "metricSources": target.get("metricSources")})
        )
    apart = spec.get("disaggregatedTarget") or {}
    for name, role in (apart.get("roles") or {}).items():
        values |= dict(_scaling(name, role))
    for key, value in (apart.get("ratioConstraint") or {}).items():
        values["ratio", key] = round(amount(str(value)), 6) if key.endswith("Ratio") else value
    return {("policy", *keys): Fact(value, policy.place("spec")) for keys, value in values.items() if value is not None}


def _scaling(what: str, scaling: Mapping[str, Any]) -> Iterator[tuple[Keys, Any]]:
    """Bounds, targets and sources of what is scaled; nothing of a role that is not."""
    if not scaling.get("metrics"):
        return
    yield (what, "min"), scaling.get("minReplicas")
    yield (what, "max"), scaling.get("maxReplicas")
    for metric in scaling["metrics"]:
        yield (what, "target", metric["name"]), amount(str(metric["targetValue"]))
    for name, source in (scaling.get("metricSources") or {}).items():
        if source.get("pod", {}).keys() - {"uri", "port"} or source.get("pod", {}).get("uri", "/metrics") != "/metrics":
            yield (what, "source", name), json.dumps(source, sort_keys=True)
        elif "prometheus" in source:
            yield (what, "source", name), json.dumps(source["prometheus"], sort_keys=True)
        else:
            yield (what, "port", name), source.get("pod", {}).get("port")


def _leaves(value: Any, keys: Keys) -> Iterator[tuple[Keys, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*keys, key))
    else:
        yield keys, value
