"""Kthena's real admission webhooks, and the API server's validation of its CRDs: what is rendered is admitted, and what they
refuse is refused before, by the rules.

Objects are created as dry runs, which the webhooks are asked about too. Refusals are those of Kthena v1.0.0's webhooks
(pkg/*/webhook) and of its CRDs; what a stack file can't lead to has no declaration here.
"""

from __future__ import annotations

import copy
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import yaml
from hypothesis import HealthCheck, given, settings

import catalog
from live import paths
from render import render_deployment
from rules import Finding, StackError, read
from tests import stacks
from tests.cluster.conftest import Cluster
from tests.render.declarations import stack_files

Json = dict[str, Any]

NAMESPACE = "admission"
"""where nothing runs, so that every dry run is a creation"""
CLUSTER: Json = {"namespaces": [NAMESPACE], "scheduler": "volcano", "npu": {"family": "A3", "devicePlugin": "cce", "nodes": 64}}
WEBHOOK = "denied the request"
"""what the API server says of an object that a webhook has refused"""


class Admission:
    """Asks the API server whether it would take an object."""

    def __init__(self, cluster: Cluster) -> None:
        config = yaml.safe_load(cluster.state.kubeconfig.read_text())
        there, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.http = httpx.Client(
            base_url=there["server"],
            headers={"Authorization": f"Bearer {user['token']}"},
            verify=ssl.create_default_context(cafile=there["certificate-authority"]),
            trust_env=False,
            timeout=40,
        )

    def refusal(self, item: Json) -> str:
        """Why ``item`` would not be created; empty if it would."""
        placed = {**item, "metadata": {**item["metadata"], "namespace": NAMESPACE}}
        options = {"dryRun": "All", "fieldValidation": "Strict"}
        answer = self.http.post(paths.collection(placed), json=placed, params=options)
        return "" if answer.is_success else str(answer.json()["message"])


@pytest.fixture(scope="module")
def admission(cluster: Cluster) -> Iterator[Admission]:
    """The API server of a cluster on which stack dev has converged, webhooks and all."""
    cluster.reset()
    cluster.kubectl("create", "namespace", NAMESPACE)
    made = Admission(cluster)
    with made.http:
        yield made
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def objects(config: Json) -> list[Json]:
    """All objects of a stack's deployments."""
    stack = read(config)
    return [item for deployment in stack.deployments.values() for item in render_deployment(deployment, stack.cluster).objects]


def declare(name: str = "chat", /, *, cluster: Json | None = None, **deployment: Any) -> Json:
    """A stack with one deployment of the first seed's recipe and what differs from it."""
    return stacks.config(name, cluster={**CLUSTER, **(cluster or {})}, **deployment)


def refused(admission: Admission, items: list[Json]) -> dict[str, str]:
    """What the API server would not create, and why."""
    reasons = {f"{item['kind']} {item['metadata']['name']}": admission.refusal(item) for item in items}
    return {name: reason for name, reason in reasons.items() if reason}


# what is rendered is admitted


@pytest.mark.parametrize("recipe", catalog.recipe_names())
def test_every_object_of_a_recipe_is_admitted(admission: Admission, recipe: str) -> None:
    family = next((one for one in catalog.npu_families() if recipe.endswith(f"-{one.lower()}")), "A3")
    plugin = min(catalog.npu_families()[family].device_plugins)
    npu = {"family": family, "devicePlugin": plugin}
    rendered = objects({"cluster": {"npu": npu}, "deployments": {"chat": {"recipe": recipe}}})
    assert refused(admission, rendered) == {}


@pytest.mark.parametrize("stack", ["dev", "deepseek-v2-lite"])
def test_every_object_of_an_example_stack_is_admitted(admission: Admission, stack: str) -> None:
    assert refused(admission, objects(stacks.stack_file(stack))) == {}


def test_every_object_of_a_stack_that_passes_the_rules_is_admitted(admission: Admission) -> None:
    admitted = 0

    @settings(max_examples=80, derandomize=True, database=None, deadline=None, suppress_health_check=[*HealthCheck])
    @given(stack_files("/models/DeepSeek-V4-Flash-w8a8-mtp"))
    def passes(config: Json) -> None:
        nonlocal admitted
        try:
            rendered = objects(config)
        except StackError:
            return
        assert refused(admission, rendered) == {}
        admitted += len(rendered)

    passes()
    assert admitted > 100, "too few stacks passed the rules for this to say much"


# what is refused is refused before


@dataclass(frozen=True)
class Refusal:
    """An object that the API server refuses, and how a stack file would come to it."""

    kind: str
    edits: Json
    """path in a good object -> what stands there instead; None: nothing"""
    said: str
    """part of the refusal"""
    code: str = ""
    """of the rule that refuses the declaration"""
    declared: Json | None = None
    """what would be rendered so; None: no stack file leads to it"""
    by: str = WEBHOOK
    """part of the refusal that tells who refuses"""
    good: Json = field(default_factory=declare)
    """the stack of the good object"""

    def item(self) -> Json:
        """The bad object."""
        item = copy.deepcopy(next(one for one in objects(self.good) if one["kind"] == self.kind))
        for path, value in self.edits.items():
            *way, last = [int(step) if step.isdecimal() else step for step in path.split("/")]
            place: Any = item
            for step in way:
                place = place[step] if isinstance(step, int) else place.setdefault(step, {})
            if value is None:
                del place[last]
            else:
                place[last] = value
        return item

    def __str__(self) -> str:
        return f"{self.kind}-{','.join(self.edits)}-{','.join(str(value)[:20] for value in self.edits.values())}"


SCHEMA = "is invalid"
"""what the API server says of an object that does not fit its CRD"""
ROLE = "spec/template/roles/0"
IMAGE = f"{ROLE}/entryTemplate/spec/containers/0/image"
STRATEGY = "spec/rolloutStrategy"
LIMITS = f"{STRATEGY}/rollingUpdateConfiguration"
BY_GROUP = {"type": "ServingGroupRollingUpdate"}
BY_ROLE = {"type": "RoleRollingUpdate"}
ALONE = {"policy": "RoleRecreate"}
LONG = "d" * 58


def limited(**limits: Any) -> Json:
    """Declaration of a rollout by group."""
    return declare(groups=2, rolloutStrategy={**BY_GROUP, "rollingUpdateConfiguration": limits})


def gang(**least: int) -> Json:
    return declare(scheduling={"gangPolicy": {"minRoleReplicas": least}})


MODEL_SERVINGS = [
    Refusal("ModelServing", {"metadata/name": LONG}, "must be no more than 63", "PD401", declare(LONG)),
    Refusal("ModelServing", {"metadata/name": "a.b"}, "invalid name", "PD001", declare("a.b")),
    Refusal("ModelServing", {"metadata/name": "1a"}, "invalid name", "PD001", declare("1a")),
    Refusal("ModelServing", {f"{ROLE}/name": "Prefill"}, "invalid name"),
    Refusal("ModelServing", {f"{ROLE}/name": "1p"}, "role name must be a valid DNS-1035 label"),
    Refusal("ModelServing", {f"{ROLE}/name": "p" * 13}, "Too long", by=SCHEMA),
    Refusal("ModelServing", {f"{ROLE}/name": "decode"}, "roles name must be unique", by=SCHEMA),
    Refusal("ModelServing", {"spec/template/roles": []}, "should have at least 1 items", by=SCHEMA),
    Refusal("ModelServing", {IMAGE: " "}, "empty or whitespace", "PD001", declare(engine={"image": " "})),
    Refusal("ModelServing", {IMAGE: "a b:1"}, "cannot contain spaces", "PD001", declare(engine={"image": "a b:1"})),
    Refusal("ModelServing", {f"{ROLE}/replicas": -1}, "non-negative", "PD001", declare(ratio={"prefill": -1, "decode": 1})),
    Refusal("ModelServing", {f"{ROLE}/replicas": 1.5}, "type", "PD001", declare(ratio={"prefill": 1.5, "decode": 1}), by=""),
    Refusal("ModelServing", {"spec/replicas": -1}, "non-negative", "PD001", declare(groups=-1), by=SCHEMA),
    Refusal("ModelServing", {f"{ROLE}/workerReplicas": -1}, "non-negative", "PD001", declare(prefill={"pods": 0})),
    Refusal("ModelServing", {f"{ROLE}/workerReplicas": 1}, "workerTemplate is required"),
    Refusal("ModelServing", {f"{ROLE}/workerReplicas": None}, "Required value", by=SCHEMA),
    Refusal(
        "ModelServing",
        {STRATEGY: {**BY_ROLE, "rollingUpdateConfiguration": {"maxUnavailable": 1}}, "spec/recoveryPolicy": "RoleRecreate"},
        "only valid when rolloutStrategy.type is ServingGroupRollingUpdate",
        "PD803",
        declare(recovery=ALONE, rolloutStrategy={**BY_ROLE, "rollingUpdateConfiguration": {"maxUnavailable": 1}}),
    ),
    Refusal(
        "ModelServing",
        {f"{ROLE}/maxUnavailable": 1},
        "only valid when rolloutStrategy.type is RoleRollingUpdate",
        "PD804",
        declare(prefill={"maxUnavailable": 1}),
    ),
    *(
        Refusal(
            "ModelServing",
            {STRATEGY: BY_ROLE, "spec/recoveryPolicy": "RoleRecreate", f"{ROLE}/maxUnavailable": amount},
            said,
            code,
            declare(recovery=ALONE, rolloutStrategy=BY_ROLE, prefill={"maxUnavailable": amount}),
        )
        for amount, said, code in [
            (2, "cannot be greater than replicas", "PD805"),
            (0, "maxUnavailable cannot be 0", "PD805"),
            ("50%", "maxUnavailable cannot be 0", "PD805"),
            ("101%", "must be a valid percent value", "PD001"),
            (-1, "must be a non-negative integer", "PD001"),
        ]
    ),
    Refusal(
        "ModelServing",
        {STRATEGY: BY_ROLE, "spec/recoveryPolicy": "ServingGroupRecreate"},
        "incompatible recoveryPolicy",
        "PD802",
        declare(recovery={"policy": "ServingGroupRecreate"}, rolloutStrategy=BY_ROLE),
    ),
    *(
        Refusal(
            "ModelServing",
            {"spec/replicas": 2, STRATEGY: BY_GROUP, f"{LIMITS}/{key}": amount},
            said,
            code,
            limited(**{key: amount}),
        )
        for key, amount, said, code in [
            ("maxUnavailable", 0, "maxUnavailable cannot be 0", "PD805"),
            ("maxUnavailable", "10%", "maxUnavailable cannot be 0", "PD805"),
            ("maxUnavailable", "150%", "must be a valid percent value", "PD001"),
            ("maxUnavailable", "many", "a valid percent string", "PD001"),
            ("maxUnavailable", -1, "must be a non-negative integer", "PD001"),
            ("partition", -1, "must be a non-negative integer", "PD001"),
            ("partition", "101%", "must be a valid percent value", "PD001"),
        ]
    ),
    *(
        Refusal("ModelServing", {"spec/template/gangPolicy/minRoleReplicas": least}, said, code, gang(**least))
        for least, said, code in [
            ({"server": 1}, "does not exist in template.roles", "PD821"),
            ({"prefill": 2}, "cannot exceed replicas", "PD821"),
            ({"prefill": -1}, "must be non-negative", "PD001"),
        ]
    ),
    Refusal(
        "ModelServing",
        {f"{ROLE}/entryTemplate/spec/containers/0/resources/limits/memory": "64Gb"},
        "should match",
        "PD001",
        declare(prefill={"resources": {"limits": {"memory": "64Gb"}}}),
        by="",
    ),
    Refusal(
        "ModelServing",
        {"spec/recoveryPolicy": "Always"},
        "Unsupported value",
        "PD001",
        declare(recovery={"policy": "Always"}),
        by=SCHEMA,
    ),
    Refusal("ModelServing", {"spec/surprise": 1}, "unknown field", "PD001", declare(surprise=1), by="strict decoding error"),
]

TARGETS = "spec/rules/0/targetModels"


def routed(**rule: Any) -> Json:
    """Declaration of a route with one rule."""
    return declare(route={"rules": [{"targets": {"chat": 100}, **rule}]})


MODEL_ROUTES = [
    Refusal("ModelRoute", {f"{TARGETS}/0/modelServerName": ""}, "cannot be an empty string", "PD001", routed(targets={"": 100})),
    Refusal(
        "ModelRoute", {f"{TARGETS}/0/weight": 0}, "total weight must be greater than zero", "PD411", routed(targets={"chat": 0})
    ),
    Refusal(
        "ModelRoute", {f"{TARGETS}/0/weight": 101}, "less than or equal to 100", "PD001", routed(targets={"chat": 101}), by=SCHEMA
    ),
    Refusal("ModelRoute", {TARGETS: []}, "at least 1 items", "PD001", routed(targets={}), by=SCHEMA),
    Refusal(
        "ModelRoute",
        {"spec/rules/0/modelMatch": {"uri": {"regex": "("}}},
        "missing closing )",
        "PD412",
        routed(match={"uri": {"regex": "("}}),
    ),
    Refusal(
        "ModelRoute",
        {"spec/rules/0/modelMatch": {"headers": {"user": {"regex": "(?=a)"}}}},
        "invalid or unsupported Perl syntax",
        "PD412",
        routed(match={"headers": {"user": {"regex": "(?=a)"}}}),
    ),
    Refusal(
        "ModelRoute",
        {"spec/loraAdapters": [""]},
        "lora adapter name cannot be an empty string",
        "PD001",
        declare(model={"lora": {"adapters": {"": "adapters/one"}}}),
    ),
    Refusal("ModelRoute", {"spec/modelName": ""}, "cannot both be empty", "PD001", declare(model={"served": ""}), by=SCHEMA),
    Refusal(
        "ModelRoute",
        {"spec/rateLimit": {"unit": "year", "inputTokensPerUnit": 1}},
        "Unsupported value",
        "PD001",
        declare(route={"rateLimit": {"unit": "year", "inputTokensPerUnit": 1}}),
        by=SCHEMA,
    ),
]

MODEL_SERVERS = [
    # the webhook can't read such a duration, which looks like a webhook that is broken
    Refusal(
        "ModelServer",
        {"spec/trafficPolicy/timeout": "xyz"},
        "failed calling webhook",
        "PD001",
        declare(traffic={"timeout": "xyz"}),
        by="",
    ),
    Refusal(
        "ModelServer",
        {"spec/trafficPolicy/timeout": 5},
        "must be of type string",
        "PD001",
        declare(traffic={"timeout": 5}),
        by=SCHEMA,
    ),
    Refusal("ModelServer", {"spec/workloadPort/port": 0}, "greater than or equal to 1", "PD001", declare(port=0), by=SCHEMA),
    Refusal("ModelServer", {"spec/kvConnector/type": "foo"}, "Unsupported value", by=SCHEMA),
    Refusal("ModelServer", {"spec/inferenceEngine": "TGI"}, "Unsupported value", by=SCHEMA),
]

WAITING = "vllm:num_requests_waiting"
GROUPS: Json = {"min": 1, "max": 4, "metrics": {WAITING: "10"}}
ROLES: Json = {
    "prefill": {"min": 1, "max": 4, "metrics": {WAITING: "10"}},
    "decode": {"min": 1, "max": 4, "metrics": {WAITING: "10"}},
    "ratio": {"min": 0.5, "max": 2},
}
BY_GROUPS, BY_ROLES = declare(autoscaling={"groups": GROUPS}), declare(autoscaling=ROLES)
SCALED = "spec/disaggregatedTarget"
PREFILL = f"{SCALED}/roles/prefill"


def scaled_groups(**edits: Any) -> Json:
    return declare(autoscaling={"groups": {**GROUPS, **edits}})


def scaled_roles(**edits: Any) -> Json:
    return declare(autoscaling={**ROLES, **edits})


def behaving(path: str, value: Any) -> Json:
    """Declaration with ``value`` at a path below ``behavior``, which is that of the object."""
    for step in reversed(path.split("/")):
        value = {step: value}
    return declare(autoscaling={"groups": GROUPS, "behavior": value})


def of_groups(edits: Json, said: str, code: str = "", declared: Json | None = None, by: str = WEBHOOK) -> Refusal:
    return Refusal("AutoscalingPolicy", edits, said, code, declared, by, BY_GROUPS)


def of_roles(edits: Json, said: str, code: str = "", declared: Json | None = None, by: str = WEBHOOK) -> Refusal:
    return Refusal("AutoscalingPolicy", edits, said, code, declared, by, BY_ROLES)


AUTOSCALING_POLICIES = [
    of_groups({"spec/metrics/0/targetValue": "0"}, "greater than 0", "PD001", scaled_groups(metrics={WAITING: "0"})),
    of_groups({"spec/metrics": [{"name": "a", "targetValue": "1"}] * 2}, "duplicate metric name"),
    of_groups({"spec/metrics": []}, "at least one metric", "PD001", scaled_groups(metrics={}), by=""),
    of_groups({"spec/homogeneousTarget": None}, "exactly one of", "PD001", declare(autoscaling={"tolerancePercent": 5}), by=""),
    of_groups(
        {SCALED: {"targetRef": {"name": "chat"}, "roles": {"prefill": {"minReplicas": 1, "maxReplicas": 1}}}},
        "exactly one of",
        "PD001",
        declare(autoscaling={"groups": GROUPS, **ROLES}),
        by="",
    ),
    of_groups({"spec/homogeneousTarget/target/targetRef/name": ""}, "targetRef.name must be set"),
    of_groups({"spec/homogeneousTarget/target/targetRef/kind": "Deployment"}, "targetRef.kind must be ModelServing"),
    *(
        of_groups({f"spec/behavior/{path}": "31m"}, said, "PD001", behaving(path, "31m"))
        for path, said in [
            ("scaleDown/period", "period must be between 0 and 30 minutes"),
            ("scaleDown/stabilizationWindow", "stabilization window must be between 0 and 30 minutes"),
            ("scaleUp/stablePolicy/period", "period must be between 0 and 30 minutes"),
            ("scaleUp/stablePolicy/stabilizationWindow", "stabilization window must be between 0 and 30 minutes"),
            ("scaleUp/panicPolicy/period", "panic policy period must be between 0 and 30 minutes"),
            ("scaleUp/panicPolicy/panicModeHold", "panic mode hold must be between 0 and 30 minutes"),
        ]
    ),
    of_roles(
        {f"{PREFILL}/minReplicas": 5},
        "minReplicas must be <= maxReplicas",
        "PD001",
        scaled_roles(prefill={**ROLES["prefill"], "min": 5}),
    ),
    of_roles({f"{PREFILL}/metrics": None}, "metrics must be set", "PD001", scaled_roles(prefill={"min": 1, "max": 4})),
    of_roles({f"{PREFILL}/metricSources": None}, "metricSources must be set"),
    of_roles(
        {f"{PREFILL}/metricSources/other": {"pod": {}}},
        "must match an effective metric name",
        "PD001",
        scaled_roles(prefill={**ROLES["prefill"], "metricSources": {"other": {"pod": {}}}}),
    ),
    of_roles(
        {f"{PREFILL}/metrics/0/targetValue": "0"},
        "greater than 0",
        "PD001",
        scaled_roles(prefill={**ROLES["prefill"], "metrics": {WAITING: "0"}}),
    ),
    of_roles({f"{SCALED}/ratioConstraint/denominatorRole": "prefill"}, "must differ", by=SCHEMA),
    of_roles({f"{SCALED}/ratioConstraint/numeratorRole": "server"}, "numeratorRole must exist in roles"),
    of_roles(
        {f"{SCALED}/ratioConstraint/minRatio": "3"},
        "minRatio must be <= maxRatio",
        "PD001",
        scaled_roles(ratio={"min": 3, "max": 2}),
    ),
    of_roles(
        {f"{SCALED}/ratioConstraint/minRatio": "-1"}, "minRatio must be >= 0", "PD001", scaled_roles(ratio={"min": -1, "max": 2})
    ),
    of_roles(
        {f"{PREFILL}/minReplicas": 0},
        "scalable-to-zero together",
        "PD833",
        scaled_roles(prefill={**ROLES["prefill"], "min": 0}),
    ),
    of_roles(
        {f"{SCALED}/ratioConstraint/minRatio": "8", f"{SCALED}/ratioConstraint/maxRatio": "9"},
        "not achievable",
        "PD830",
        scaled_roles(ratio={"min": 8, "max": 9}),
    ),
    of_roles({f"{SCALED}/roles": {}}, "should have at least 1 properties", by=SCHEMA),
]

REFUSALS = [*MODEL_SERVINGS, *MODEL_ROUTES, *MODEL_SERVERS, *AUTOSCALING_POLICIES]


@pytest.mark.parametrize("bad", REFUSALS, ids=str)
def test_what_the_api_server_refuses_is_refused_before(admission: Admission, bad: Refusal) -> None:
    refusal = admission.refusal(bad.item())
    assert bad.said in refusal
    assert bad.by in refusal
    if bad.declared:
        with pytest.raises(StackError) as caught:
            read(bad.declared)
        assert bad.code in codes(caught.value.findings)


def codes(findings: Iterable[Finding]) -> set[str]:
    return {finding.code for finding in findings if finding.severity == "error"}


def test_the_good_objects_of_the_table_are_admitted(admission: Admission) -> None:
    for good in (declare(), BY_GROUPS, BY_ROLES):
        assert refused(admission, objects(good)) == {}
