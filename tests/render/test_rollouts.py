"""Two versions of a deployment side by side: their names, what each name stands for, and the route's weights between them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from math import gcd, lcm
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from models.deployment import Rollout
from render import RenderedDeployment, render_deployment
from render.deployment import RenderedServing
from rules import StackError, deployment, read
from rules.shape import SHARED, overlay
from tests import stacks
from tests.render.declarations import EDITS, Declared

NAME = "deepseekv4-pd"
CLUSTER: Declared = {"npu": {"family": "A3", "devicePlugin": "cce"}, "scheduler": "volcano"}
BLUE_GREEN = {"strategy": "BlueGreen"}
FEW = settings(max_examples=40, derandomize=True, database=None, deadline=None, suppress_health_check=[*HealthCheck])


def render(declared: Mapping[str, Any]) -> RenderedDeployment:
    stack = read({"cluster": CLUSTER, "deployments": {NAME: {"recipe": stacks.RECIPE, **declared}}})
    return render_deployment(stack.deployments[NAME], stack.cluster)


def canary(candidate: Declared, **more: Any) -> Declared:
    return {"rollout": {"strategy": "Canary", "candidate": candidate, **more}}


@st.composite
def edits(draw: st.DrawFn) -> Declared:
    """What a deployment may declare beside its recipe, of up to two kinds."""
    declared: Declared = {}
    for kind in draw(st.lists(st.sampled_from(sorted(EDITS)), max_size=2, unique=True)):
        declared = overlay(declared, draw(EDITS[kind]))
    return declared


def test_a_candidate_that_is_promoted_is_the_same_objects_under_the_same_names() -> None:
    outcomes: Counter[str] = Counter()

    @FEW
    @given(edits(), edits())
    def promotes(own: Declared, candidate: Declared) -> None:
        candidate = {key: value for key, value in candidate.items() if key not in SHARED}
        candidate = overlay(candidate, {"decode": {"env": {"CANDIDATE": "yes"}}})
        try:
            tried = render(own | canary(candidate))
        except StackError:
            outcomes["refused"] += 1
            return
        outcomes["rendered"] += 1
        promoted = render(overlay(own, candidate) | {"rollout": {"strategy": "Canary"}})
        assert tried.candidate == promoted.stable
        assert promoted.candidate is None
        aborted = render(own | {"rollout": {"strategy": "Canary"}})
        assert tried.stable == aborted.stable
        assert not {item["metadata"]["name"] for item in tried.stable.objects} & {
            item["metadata"]["name"] for item in promoted.stable.objects
        }

    promotes()
    assert outcomes["rendered"] > 0.2 * outcomes.total(), outcomes


def in_the_pods(serving: RenderedServing) -> str:
    """All that makes a pod another pod, without the names of the version."""
    template = serving.model_serving["spec"]["template"]
    roles = [{key: role.get(key) for key in ("workerReplicas", "entryTemplate", "workerTemplate")} for role in template["roles"]]
    text = json.dumps([roles, [item["data"] for item in serving.scripts.values()], template.get("gangPolicy")], sort_keys=True)
    for item in serving.scripts.values():
        text = text.replace(item["metadata"]["name"], "")
    return text


def test_one_name_stands_for_one_kind_of_pods_and_one_selector() -> None:
    outcomes: Counter[str] = Counter()

    @FEW
    @given(edits(), edits(), st.sampled_from([{}, {"rollout": BLUE_GREEN}]))
    def is_told_by_its_name(own: Declared, edit: Declared, rollout: Declared) -> None:
        try:
            before, after = (render(declared | rollout).stable for declared in (own, overlay(own, edit)))
        except StackError:
            outcomes["refused"] += 1
            return
        outcomes["rendered"] += 1
        if rollout:
            assert (before.name == after.name) == (in_the_pods(before) == in_the_pods(after))
        if before.name == after.name:
            selectors = [one.model_server["spec"]["workloadSelector"] for one in (before, after)]
            assert selectors[0] == selectors[1]
            gangs = [one.model_serving["spec"]["template"].get("gangPolicy") for one in (before, after)]
            assert gangs[0] == gangs[1]

    is_told_by_its_name()
    assert outcomes["rendered"] > 0.2 * outcomes.total(), outcomes


BEFORE: Declared = {"ratio": "2P1D", "rollout": BLUE_GREEN}


@pytest.mark.parametrize(
    "edit",
    [
        {"ratio": "1P3D"},
        {"groups": 2},
        {"autoscaling": {"groups": {"min": 1, "max": 2, "metrics": {"vllm:num_requests_waiting": "10"}}}},
        {"route": {"rateLimit": {"unit": "hour", "outputTokensPerUnit": 1000}}},
        {"traffic": {"timeout": "10s"}},
        {"recovery": {"policy": "RoleRecreate", "restartGracePeriodSeconds": 5}},
        {
            "rolloutStrategy": {"type": "RoleRollingUpdate"},
            "recovery": {"policy": "RoleRecreate"},
            "prefill": {"maxUnavailable": 1},
        },
        {"scheduling": {"queue": "night", "networkTopology": {"groupPolicy": {"mode": "soft", "highestTierAllowed": 1}}}},
        {"readiness": {"schedulingTimeout": "20m"}},
        {"accept": {"PD808": "meant"}},
    ],
    ids=str,
)
def test_what_the_controller_or_the_router_can_change_under_one_name_keeps_it(edit: Declared) -> None:
    before, after = render(BEFORE).stable, render(overlay(BEFORE, edit)).stable
    assert after.name == before.name
    assert after.scripts == before.scripts


@pytest.mark.parametrize(
    "edit",
    [
        {"engine": {"env": {"A": "b"}}},
        {"engine": {"image": "registry.local/vllm-ascend:v0.13.0rc3-a3"}},
        {"decode": {"extraArgs": ["--enable-log-requests"]}},
        {"decode": {"batching": {"maxNumSeqs": 32, "maxNumBatchedTokens": 96}}},
        {"prefill": {"resources": {"limits": {"cpu": "150"}}}},
        {"prefill": {"podTemplate": {"metadata": {"annotations": {"team": "a"}}}}},
        {"decode": {"pods": 2}},
        {"sharedMemory": "32Gi"},
        {"port": 8001},
        {"kvTransfer": {"port": 37000}},
        {"model": {"weights": {"nfs": {"server": "a", "export": "/b", "path": "/c"}}}},
        {"networkInterface": "eth7"},
        {"runtimeSidecar": True},
        {"readiness": {"loadTimeout": "40m"}},
        {"readiness": {"drainPeriod": "11s"}},
        {"readiness": {"terminationGracePeriod": "90s"}},
        {"scheduling": {"gangPolicy": {"minRoleReplicas": {"prefill": 1, "decode": 1}}}},
    ],
    ids=str,
)
def test_an_edit_of_the_pods_leaves_only_the_routes_name(edit: Declared) -> None:
    before, after = render(BEFORE), render(overlay(BEFORE, edit))
    names = [{(item["kind"], item["metadata"]["name"]) for item in one.objects} for one in (before, after)]
    assert before.model_route is not None
    assert names[0] & names[1] == {("ModelRoute", before.model_route["metadata"]["name"])}
    assert before.stable.name not in json.dumps(after.objects)


def test_another_gang_is_another_name_also_without_a_rollout() -> None:
    def name(**least: int) -> str:
        return render({"ratio": "2P2D", "scheduling": {"gangPolicy": {"minRoleReplicas": least}}}).stable.name

    assert len({name(prefill=1), name(prefill=2), name(prefill=1, decode=1), render({"ratio": "2P2D"}).stable.name}) == 4
    assert render({"ratio": "2P2D"}).stable.name == NAME


ENGINE = {"engine": {"env": {"A": "b"}}}


@pytest.mark.parametrize(
    ("step", "weights"), [(0, {"stable": 100}), (1, {"stable": 90, "candidate": 10}), (2, {"candidate": 100})]
)
def test_each_step_is_the_weights_of_the_route(step: int, weights: dict[str, int]) -> None:
    rendered = render(canary(ENGINE, steps=[10, 100], step=step))
    assert rendered.candidate is not None
    assert rendered.model_route is not None
    (rule,) = rendered.model_route["spec"]["rules"]
    names = {rendered.stable.name: "stable", rendered.candidate.name: "candidate"}
    assert {names[target["modelServerName"]]: target["weight"] for target in rule["targetModels"]} == weights


TRIED = {
    name: deployment(name, recipe=stacks.RECIPE, rollout={"strategy": "Canary", "candidate": {"engine": {"env": {"A": name}}}})
    for name in "abc"
}
STACK = read({"cluster": CLUSTER, "deployments": {"a": {"recipe": stacks.RECIPE}}})
VERSIONS = {name: [one.name for one in render_deployment(tried, STACK.cluster).servings] for name, tried in TRIED.items()}
PERCENT = st.sampled_from([None, 0, 1, 10, 25, 33, 50, 99, 100])


@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcz"), st.integers(0, 100) | st.sampled_from([0, 1, 50, 60, 90, 100]), min_size=1),
    st.fixed_dictionaries(dict.fromkeys("abc", PERCENT)),
)
def test_weights_of_several_deployments_are_shared_out_between_their_versions(
    weights: dict[str, int], percents: dict[str, int | None]
) -> None:
    assume(any(weights.values()))
    declared = {}
    for name, percent in percents.items():
        tried = TRIED[name]
        steps = {"steps": (percent,), "step": 1} if percent else {"step": 0}
        rollout = Rollout.model_validate({"strategy": "Canary", "candidate": tried.candidate, **steps})
        declared[name] = tried.model_copy(update={"rollout": None if percent is None else rollout})
    own = declared["a"].model_copy(update={"route": declared["a"].route.model_validate({"rules": [{"targets": weights}]})})
    rendered = render_deployment(own, STACK.cluster, declared)
    assert rendered.model_route is not None
    (rule,) = rendered.model_route["spec"]["rules"]
    found = {target["modelServerName"]: target["weight"] for target in rule["targetModels"]}

    wanted: dict[str, Fraction] = {}
    for name, weight in weights.items():
        percent = percents.get(name)
        shares = {name: 100} if percent is None else dict(zip(VERSIONS[name], (100 - percent, percent), strict=True))
        wanted |= {server: Fraction(weight * share, 100) for server, share in shares.items() if share}
    assert found.keys() == wanted.keys()
    assert all((weight > 0) == (wanted[server] > 0) and 0 <= weight <= 100 for server, weight in found.items())
    positive = [share for share in wanted.values() if share]
    smallest = Fraction(lcm(*(share.denominator for share in positive)), gcd(*(share.numerator for share in positive)))
    is_possible = max(positive) * smallest <= 100
    largest = max(found.values())
    for server, share in wanted.items():
        exact = share / max(positive) * largest
        assert found[server] == exact if is_possible else abs(found[server] - exact) <= 1
    if all(share.denominator == 1 for share in positive):
        assert found == wanted, "what is declared in whole numbers stays as it is"
