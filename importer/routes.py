"""From ModelServer, ModelRoute and AutoscalingPolicy to what a deployment says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from importer.declare import Draft, Given, RoleGiven
from importer.findings import Findings
from importer.manifests import Manifest
from models.role import ROLES
from render.names import ENTRY_LABEL, GROUP_LABEL, MANAGED, MANAGED_LABEL, NAME_LABEL, ROLE_LABEL

HANDS_OVER = ("nixl", "mooncake")
"""Connectors of the router that take prefill's answer to decode: one and the same in Kthena v1.0.0"""


def selects(server: Manifest, given: Given) -> bool:
    """Whether a ModelServer selects the pods of a ModelServing; by its role labels it may then find none of them."""
    if server.namespace != given.manifest.namespace:
        return False
    wanted = (server.spec.get("workloadSelector") or {}).get("matchLabels") or {}
    return bool(wanted) and all(_has(given, role, wanted) for role in given.roles.values())


def _has(given: Given, role: RoleGiven, wanted: Mapping[str, str]) -> bool:
    labels = {NAME_LABEL: given.manifest.name, ROLE_LABEL: role.name, ENTRY_LABEL: "true"}
    labels |= {str(keys[1]): str(fact.value) for keys, fact in role.entry.facts.items() if keys[0] == "labels"}
    return all(key == GROUP_LABEL or labels.get(key) == value for key, value in wanted.items())


def declare_server(server: Manifest, given: Given, draft: Draft, findings: Findings) -> None:
    """Traffic, port and name of the model; and what of the selectors can't work."""
    spec = server.spec
    if port := (spec.get("workloadPort") or {}).get("port"):
        listening = draft.get("port") or 8000  # vLLM's own
        if draft.get("port") is not None and port != listening:
            findings.add(
                "IM109",
                server.place("spec", "workloadPort", "port"),
                f"the router asks port {port}, the engines listen on {listening}",
                f"port: {listening}, from which both follow",
                "error",
            )
        else:
            draft.set(("port",), port, server.place("spec", "workloadPort", "port"))
    # nothing reads it: that our own default is not in a ModelServer matters only where we have rendered that one
    is_ours = (server.metadata.get("labels") or {}).get(MANAGED_LABEL) == MANAGED[MANAGED_LABEL]
    draft.set(("traffic",), spec.get("trafficPolicy", {} if is_ours else None), server.place("spec", "trafficPolicy"))
    _check_selector(server, given, findings)
    _check_connector(server, draft, findings)
    served = draft.get("model", "served")
    if spec.get("model") and served is None:
        draft.set(("model", "served"), spec["model"], server.place("spec", "model"))
    elif spec.get("model") and spec["model"] != served:
        findings.add(
            "IM107",
            server.place("spec", "model"),
            f"the router asks the engines for {spec['model']}, they serve {served}: each request is answered with 404",
            "model.served, which ModelServer, ModelRoute and engines get",
            "error",
        )
    if spec.get("inferenceEngine", "vLLM") != "vLLM":
        findings.add("IM003", server.place("spec", "inferenceEngine"), f"{spec['inferenceEngine']} is not vLLM", "vLLM", "error")


def _check_selector(server: Manifest, given: Given, findings: Findings) -> None:
    selector = server.spec.get("workloadSelector") or {}
    pairs = selector.get("pdGroup")
    here = ("spec", "workloadSelector")
    if not pairs:
        findings.add(
            "IM109",
            server.place(*here),
            "without pdGroup the router sends whole requests to prefill and decode pods alike",
            "a pdGroup, derived from the roles",
            "error",
        )
        return
    if pairs.get("groupKey") != GROUP_LABEL:
        findings.add(
            "IM109",
            server.place(*here, "pdGroup", "groupKey"),
            f"prefill and decode are paired by {pairs.get('groupKey')}, which tells Kthena's groups not apart",
            GROUP_LABEL,
            "error",
        )
    for role in ROLES:
        wanted = pairs.get(f"{role}Labels") or {}
        if not _has(given, given.roles[role], wanted):
            findings.add(
                "IM109",
                server.place(*here, "pdGroup", f"{role}Labels"),
                f"no {role} pod has {_shown(wanted)}",
                "labels derived from the role",
                "error",
            )
        entry = {**(selector.get("matchLabels") or {}), **wanted}.get(ENTRY_LABEL)
        if given.roles[role].worker and entry != "true":
            findings.add(
                "IM109",
                server.place(*here, "pdGroup", f"{role}Labels"),
                f"workers of {role} have these labels too, and no API: requests to them fail",
                f"{ENTRY_LABEL}: 'true' beside them",
                "error",
            )


def _check_connector(server: Manifest, draft: Draft, findings: Findings) -> None:
    kind = (server.spec.get("kvConnector") or {}).get("type", "http")
    connector = draft.get("kvTransfer", "connector")
    place = server.place("spec", "kvConnector", "type")
    if kind not in HANDS_OVER:
        findings.add(
            "IM108",
            place,
            f"router connector {kind} takes no kv_transfer_params to decode: it computes every prompt itself, and answers 200",
            "mooncake",
            "error",
        )
    elif kind == "nixl" and "Mooncake" in str(connector):
        findings.add(
            "IM108",
            place,
            f"nixl, though the engines have {connector}: it works only because both are one code path in Kthena v1.0.0",
            "mooncake",
        )


def declare_route(route: Manifest, deployments: Mapping[str, str], drafts: Mapping[str, Draft], findings: Findings) -> str | None:
    """Rules, limits and gateways of the deployment whose model it is.

    Args:
        route: the ModelRoute
        deployments: its namespace's ModelServers -> deployment
        drafts: by their names
        findings: gets what is wrong

    Returns:
        The deployment; None where it leads to none of them.
    """
    spec = route.spec
    rules: Sequence[Any] = spec.get("rules") or ()
    targets = [
        deployments[name]
        for rule in rules
        for target in rule.get("targetModels") or ()
        if (name := _server(target)) in deployments
    ]
    if not targets:
        return None
    name = str(spec.get("modelName") or "")
    owner = max(targets, key=lambda one: (drafts[one].get("model", "served") == name, _weight(rules, deployments, one)))
    draft = drafts[owner]
    served = draft.get("model", "served")
    if name and served != name:
        findings.add(
            "IM107",
            route.place("spec", "modelName"),
            f"clients ask for {name}, the engines serve {served}",
            "model.served is what clients ask for; the engines get it too",
        )
        draft.set(("model", "served"), name, route.place("spec", "modelName"))
    adapters = draft.get("model", "lora", "adapters") or {}
    for adapter in spec.get("loraAdapters") or ():
        if adapter not in adapters:
            findings.add(
                "IM107", route.place("spec", "loraAdapters"), f"no engine loads adapter {adapter}", "model.lora.adapters", "error"
            )
    declared = [_rule(rule, deployments) for rule in rules]
    if not _is_default(declared, owner):
        draft.set(("route", "rules"), declared, route.place("spec", "rules"))
    draft.set(("route", "rateLimit"), spec.get("rateLimit"), route.place("spec", "rateLimit"))
    draft.set(("route", "parentRefs"), spec.get("parentRefs"), route.place("spec", "parentRefs"))
    return owner


def _weight(rules: Sequence[Any], deployments: Mapping[str, str], deployment: str) -> int:
    """What a deployment gets of the requests that no rule picks out."""
    targets = [target for rule in rules if not rule.get("modelMatch") for target in rule.get("targetModels") or ()]
    return sum(target.get("weight", 100) for target in targets if deployments.get(_server(target)) == deployment)


def _server(target: Mapping[str, Any]) -> str:
    return str(target.get("modelServerName"))


def _rule(rule: Mapping[str, Any], deployments: Mapping[str, str]) -> dict[str, Any]:
    targets = {deployments.get(_server(one), _server(one)): one.get("weight", 100) for one in rule.get("targetModels") or ()}
    return {
        **({"name": rule["name"]} if rule.get("name") else {}),
        **({"match": rule["modelMatch"]} if rule.get("modelMatch") else {}),
        "targets": targets,
    }


def _is_default(rules: Sequence[Mapping[str, Any]], owner: str) -> bool:
    """Whether all requests go to the deployment itself."""
    return len(rules) == 1 and "match" not in rules[0] and rules[0]["targets"].keys() == {owner}


def declare_scaling(policy: Manifest, given: Given, draft: Draft, findings: Findings) -> None:
    """Bounds and metrics of groups, or of the roles."""
    spec = policy.spec
    here = policy.place("spec")
    draft.set(("autoscaling", "tolerancePercent"), spec.get("tolerancePercent"), here)
    draft.set(("autoscaling", "behavior"), spec.get("behavior"), policy.place("spec", "behavior"))
    if whole := spec.get("homogeneousTarget"):
        target = whole.get("target") or {}
        draft.set(("autoscaling", "groups"), _scaling(whole, spec.get("metrics") or (), target.get("metricSources")), here)
        return
    apart = spec.get("disaggregatedTarget") or {}
    for role in ROLES:
        one = (apart.get("roles") or {}).get(given.roles[role].name) or {}
        if one.get("metrics"):
            place = policy.place("spec", "disaggregatedTarget", "roles", given.roles[role].name)
            draft.set(("autoscaling", role), _scaling(one, one["metrics"], one.get("metricSources")), place)
    if ratio := apart.get("ratioConstraint"):
        place = policy.place("spec", "disaggregatedTarget", "ratioConstraint")
        numbers = {name: float(str(ratio[f"{name}Ratio"])) for name in ("min", "max")}
        if ratio.get("numeratorRole") != given.roles["prefill"].name:
            findings.add("IM006", place, "a ratio of decode to prefill is turned round", "autoscaling.ratio is prefill to decode")
            numbers = {"min": 1 / numbers["max"], "max": 1 / numbers["min"]}
        draft.set(("autoscaling", "ratio"), numbers, place)


def _scaling(
    bounds: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]], sources: Mapping[str, Any] | None
) -> dict[str, Any]:
    named = {str(metric["name"]): str(metric["targetValue"]) for metric in metrics}
    return {
        "min": bounds.get("minReplicas"),
        "max": bounds.get("maxReplicas"),
        "metrics": named,
        **({"metricSources": dict(sources)} if sources else {}),
    }


def targets_of(policy: Manifest) -> list[str]:
    """ModelServings that a policy scales."""
    spec = policy.spec
    references = [
        ((spec.get("homogeneousTarget") or {}).get("target") or {}).get("targetRef"),
        (spec.get("disaggregatedTarget") or {}).get("targetRef"),
        *((one.get("target") or {}).get("targetRef") for one in (spec.get("heterogeneousTarget") or {}).get("params") or ()),
    ]
    return [str(reference.get("name")) for reference in references if reference]


def bound_policy(binding: Manifest, policies: Mapping[tuple[str, str], Manifest], findings: Findings) -> Manifest | None:
    """v0.x kept bounds and targets in an AutoscalingPolicyBinding: the policy that it would be in v1.0.0."""
    spec = binding.spec
    name = str((spec.get("policyRef") or {}).get("name"))
    findings.add(
        "IM002",
        binding.place(),
        f"AutoscalingPolicyBinding {binding.name} is gone since Kthena v1.0.0",
        "targets and bounds are in the AutoscalingPolicy, which autoscaling renders",
        "error",
    )
    policy = policies.get((binding.namespace, name))
    if policy is None:
        findings.add(
            "IM006", binding.place("spec", "policyRef"), f"AutoscalingPolicy {name} is not given", "give it too", "error"
        )
        return None
    targets = {key: value for key, value in spec.items() if key.endswith("Target")}
    if whole := targets.get("homogeneousTarget"):
        targets = _of_old_target(whole, policy)
    body = {**policy.body, "spec": {**policy.spec, **targets}}
    return Manifest(body, policy.file, policy.lines)


def _of_old_target(whole: Mapping[str, Any], policy: Manifest) -> dict[str, Any]:
    """v0.x had one endpoint for all metrics of a target, and scaled one role by a ``subTargets`` of it."""
    target = dict(whole.get("target") or {})
    endpoint, part = target.pop("metricEndpoint", None), target.pop("subTargets", None)
    metrics = policy.spec.get("metrics") or ()
    sources = {"metricSources": {str(metric["name"]): {"pod": endpoint} for metric in metrics}} if endpoint else {}
    if not part:
        return {"homogeneousTarget": {**whole, "target": {**target, **sources}}}
    bounds = {key: whole[key] for key in ("minReplicas", "maxReplicas") if key in whole}
    role = {**bounds, "metrics": list(metrics), **sources}
    return {"disaggregatedTarget": {"targetRef": target.get("targetRef"), "roles": {str(part.get("name")): role}}}


def _shown(labels: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items()) or "(no labels)"


def old_serving(manifest: Manifest, findings: Findings) -> Manifest:
    """A ModelServing with v0.x fields as v1.0.0 has them."""
    spec = dict(manifest.spec)
    template = dict(spec.get("template") or {})
    topology = template.get("networkTopology") or {}
    if topology.keys() & {"mode", "highestTierAllowed", "highestTierName"}:
        findings.add(
            "IM002",
            manifest.place("spec", "template", "networkTopology"),
            "a topology of its own is how v0.x wrote that of groups; v1.0.0 ignores or refuses it",
            "scheduling.networkTopology.groupPolicy",
            "error",
        )
        template["networkTopology"] = {"groupPolicy": topology}
    strategy = dict(spec.get("rolloutStrategy") or {})
    update = dict(strategy.get("rollingUpdateConfiguration") or {})
    for holder, keys, name, instead in (
        (update, ("spec", "rolloutStrategy", "rollingUpdateConfiguration"), "maxSurge", "rollout: {strategy: BlueGreen}"),
        (spec, ("spec",), "topologySpreadConstraints", "topologySpreadConstraints of each role's podTemplate.spec"),
    ):
        if holder.pop(name, None) is not None:
            what = f"{name} is gone since Kthena v1.0.0, and left out"
            findings.add("IM002", manifest.place(*keys, name), what, instead, "error")
    if strategy:
        strategy |= {"rollingUpdateConfiguration": update} if update else {}
        strategy.setdefault("type", "ServingGroupRollingUpdate")
        spec["rolloutStrategy"] = strategy
    roles = []
    for index, role in enumerate(template.get("roles") or ()):
        if "workerReplicas" not in role:
            findings.add(
                "IM002",
                manifest.place("spec", "template", "roles", index),
                f"role {role.get('name')} has no workerReplicas, which v1.0.0 demands",
                "pods of the role, 1 where absent",
                "error",
            )
        roles.append(role)
    return Manifest({**manifest.body, "spec": {**spec, "template": {**template, "roles": roles}}}, manifest.file, manifest.lines)
