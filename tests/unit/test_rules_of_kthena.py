"""Edges of the rules about Kthena's objects that one example cannot show."""

from __future__ import annotations

from typing import Any

import pytest

from rules import Finding, StackError, read
from rules.finding import dotted
from tests import stacks

NAME = "deepseekv4-pd"
CANARY = "deepseekv4-pd-canary"
WAITING = "vllm:num_requests_waiting"
ADAPTERS = {"lora": {"adapters": {"law": "adapters/law"}}}
ROLES_ROLL: dict[str, Any] = {"rolloutStrategy": {"type": "RoleRollingUpdate"}, "recovery": {"policy": "RoleRecreate"}}


def found(others: dict[str, Any] | None = None, /, **declared: Any) -> list[tuple[str, str]]:
    """(code, path below the deployments) of everything that is wrong, warnings included."""
    config = stacks.config(**{"cluster": {"npu": {"family": "A3", "devicePlugin": "cce"}}, **declared})
    config["deployments"].update({name: {"recipe": stacks.RECIPE, **other} for name, other in (others or {}).items()})
    findings: list[Finding] = []
    try:
        read(config, warn=findings.append)
    except StackError as error:
        findings = list(error.findings)
    return [(finding.code, dotted(finding.path).removeprefix("kthena-pd:deployments.")) for finding in findings]


def codes(others: dict[str, Any] | None = None, /, **declared: Any) -> list[str]:
    return [code for code, _ in found(others, **declared)]


def rule(**declared: Any) -> dict[str, Any]:
    return {"rules": [{"targets": {NAME: 1}, **declared}]}


def scaling(least: int, most: int, **more: Any) -> dict[str, Any]:
    return {"min": least, "max": most, "metrics": {WAITING: "10"}, **more}


def groups_roll(**configuration: Any) -> dict[str, Any]:
    return {"rolloutStrategy": {"type": "ServingGroupRollingUpdate", "rollingUpdateConfiguration": configuration}}


@pytest.mark.parametrize(
    "expression",
    [
        "^prod-",
        r"\d+(\.\d+)?",
        r"[[:alpha:]]+\z",
        r"\p{Han}|\pL",
        "(?i)premium",
        "a(?i:b)c",
        "(?P<user>x)",
        "(?<user>x)",
        r"\Qa(b++\E",
        r"[(?=+]+\+\+",
        r"\0123\12",
        "a{1000}",
        "(?U)a+",
        "x*?",
        "^*a$+",
        "a{,3}",
        r"\_\x41\x{4e00}",
        r"\(?=",
        r"\\[(?!]",
        r"[]\](?=]",
        "[(]",
        r"a\)",
        r"\Q(*\E",
        "[a]*",
        "(?:a)?(|b)",
        "]",
        "()",
    ],
)
def test_what_go_compiles_is_a_match(expression: str) -> None:
    assert found(route=rule(match={"headers": {"x-user": {"regex": expression}}})) == []


@pytest.mark.parametrize(
    "expression",
    [
        *("(?=a)", "(?!a)", "(?<=a)", "(?<!a)", r"(a)\1", r"(a)\\\1", r"(a)\18", r"a\9", "(?P<a>x)(?P=a)", r"[a](?!\])"),
        *("(", ")", "a)(b", "((a)", "[a", "[]", "[^]", r"[a\]", "(a]", r"\((a"),
        *("*", "*.example.com", "+", "?", "a|*", "(*a)", "a|?"),
    ],
)
def test_what_go_does_not_compile_is_no_match(expression: str) -> None:
    path = f"{NAME}.route.rules[0].match.uri.regex"
    assert found(route=rule(match={"uri": {"regex": expression}})) == [("PD412", path)]


@pytest.mark.parametrize(
    ("uri", "fits"),
    [
        ({"exact": "/v1/chat/completions"}, True),
        ({"prefix": "/v1"}, True),
        ({"prefix": "/"}, True),
        ({"exact": "/v1"}, False),
        ({"exact": "/chat/completions"}, False),
        ({"prefix": "/v2/"}, False),
        ({"regex": "^/v2/"}, True),  # not looked into
    ],
)
def test_only_paths_below_v1_reach_a_route(uri: dict[str, str], *, fits: bool) -> None:
    assert codes(route=rule(match={"uri": uri})) == ([] if fits else ["PD415"])


@pytest.mark.parametrize(
    ("route", "path"),
    [
        ({"rules": [{"targets": {}}]}, ".rules[0].targets"),
        ({"rules": [{"targets": {NAME: 101}}]}, f".rules[0].targets.{NAME}"),
        ({"rules": [{"targets": {NAME: 1}}] * 17}, ".rules"),
        (rule(match={"headers": {"a": {"exact": "1", "prefix": "1"}}}), ".rules[0].match.headers.a"),
        (rule(match={"uri": {}}), ".rules[0].match.uri"),
        ({"rateLimit": {"unit": "minute"}}, ".rateLimit"),
        ({"rateLimit": {"unit": "year", "inputTokensPerUnit": 1}}, ".rateLimit.unit"),
        ({"rateLimit": {"unit": "day", "inputTokensPerUnit": 0}}, ".rateLimit.inputTokensPerUnit"),
    ],
)
def test_a_route_that_kthena_would_refuse_or_ignore_can_not_be_declared(route: dict[str, Any], path: str) -> None:
    assert found(route=route) == [("PD001", f"{NAME}.route{path}")]


def test_a_target_is_a_deployment_of_the_same_namespace() -> None:
    share = {"route": {"rules": [{"targets": {NAME: 1, CANARY: 1}}]}}
    assert found({CANARY: {"route": {"enabled": False}}}, **share) == []
    elsewhere = {CANARY: {"route": {"enabled": False}, "namespace": "other"}}
    assert ("PD410", f"{NAME}.route.rules[0].targets.{CANARY}") in found(elsewhere, **share)
    assert found(**share) == [("PD425", f"{NAME}.route.rules[0].targets.{CANARY}")]  # another stack's, perhaps


def test_a_deployment_with_no_weight_anywhere_is_not_reached() -> None:
    share = {"route": {"rules": [{"targets": {NAME: 1, CANARY: 0}}]}}
    assert found({CANARY: {"route": {"enabled": False}}}, **share) == [("PD417", f"{CANARY}.route.enabled")]


def test_a_route_to_itself_is_no_circle() -> None:
    assert found(route=rule()) == []


def test_an_adapter_is_not_asked_of_a_target_that_an_earlier_rule_keeps_it_from() -> None:
    other = {CANARY: {"route": {"enabled": False}}}
    share = {"targets": {NAME: 1, CANARY: 1}}
    kept = {"match": {"body": {"model": "law"}}, "targets": {NAME: 1}}
    sometimes = {"match": {"body": {"model": "law"}, "headers": {"a": {"exact": "1"}}}, "targets": {NAME: 1}}
    base = {"match": {"body": {"model": "deepseek_v4"}}, **share}
    assert codes(other, model=ADAPTERS, route={"rules": [share]}) == ["PD420"]
    assert codes(other, model=ADAPTERS, route={"rules": [kept, share]}) == []
    assert codes(other, model=ADAPTERS, route={"rules": [sometimes, share]}) == ["PD420"]
    assert codes(other, model=ADAPTERS, route={"rules": [base]}) == []


@pytest.mark.parametrize(
    ("mine", "theirs", "path"),
    [
        ({}, {}, f"{CANARY}.model.served"),
        (ADAPTERS, {"served": "other", **ADAPTERS}, f"{CANARY}.model.lora.adapters.law"),
        (ADAPTERS, {"served": "law"}, f"{NAME}.model.lora.adapters.law"),
    ],
)
def test_a_name_that_clients_ask_for_leads_to_one_deployment(mine: dict[str, Any], theirs: dict[str, Any], path: str) -> None:
    assert found({CANARY: {"model": theirs}}, model=mine) == [("PD403", path)]


def test_one_name_may_lead_to_two_deployments_through_two_gateways() -> None:
    cluster = {"npu": {"family": "A3", "devicePlugin": "cce"}, "controlPlane": {"install": False}}

    def through(*gateways: str) -> dict[str, Any]:
        return {"parentRefs": [{"name": gateway} for gateway in gateways]}

    assert codes({CANARY: {"route": through("b")}}, cluster=cluster, route=through("a")) == []
    assert codes({CANARY: {"route": through("b", "a")}}, cluster=cluster, route=through("a")) == ["PD403"]


def test_names_count_what_the_autoscaler_may_make() -> None:
    config = stacks.config("a" * 48, cluster={"npu": {"family": "A3", "devicePlugin": "cce"}})
    assert [finding for finding in _errors(config) if finding.code == "PD401"] == []
    config["deployments"]["a" * 48]["autoscaling"] = {"groups": scaling(1, 1000)}
    assert [finding.code for finding in _errors(config)] == ["PD401"]


def _errors(config: dict[str, Any]) -> list[Finding]:
    try:
        read(config)
    except StackError as error:
        return list(error.findings)
    return []


@pytest.mark.parametrize(
    ("declared", "wrong"),
    [
        ({"groups": 4, **groups_roll(maxUnavailable=4)}, []),
        ({"groups": 4, **groups_roll(maxUnavailable=5)}, ["PD805"]),
        ({"groups": 4, **groups_roll(maxUnavailable=0)}, ["PD805"]),
        ({"groups": 4, **groups_roll(maxUnavailable="25%")}, []),
        ({"groups": 4, **groups_roll(maxUnavailable="24%")}, ["PD805"]),
        ({"groups": 4, "autoscaling": {"groups": scaling(1, 4)}, **groups_roll(maxUnavailable="50%")}, ["PD805"]),
        ({"groups": 4, "autoscaling": {"groups": scaling(2, 8)}, **groups_roll(maxUnavailable="50%", partition=8)}, []),
        ({"ratio": "4P1D", "prefill": {"maxUnavailable": 4}, **ROLES_ROLL}, []),
        ({"ratio": "4P1D", "prefill": {"maxUnavailable": 5}, **ROLES_ROLL}, ["PD805"]),
        ({"ratio": "4P1D", "prefill": {"maxUnavailable": "20%"}, **ROLES_ROLL}, ["PD805"]),
        ({"groups": 2, **groups_roll(partition="100%")}, []),
        (ROLES_ROLL, []),
    ],
)
def test_what_may_be_down_at_once_is_counted_as_kthena_counts_it(declared: dict[str, Any], wrong: list[str]) -> None:
    assert codes(**declared) == wrong


@pytest.mark.parametrize("limit", [-1, "10", "101%", "1.5%", 1.5, True])
def test_a_limit_is_a_number_or_a_percentage(limit: object) -> None:
    path = f"{NAME}.rolloutStrategy.rollingUpdateConfiguration.maxUnavailable"
    assert set(found(**groups_roll(maxUnavailable=limit))) == {("PD001", path)}


def test_a_gang_is_no_larger_than_the_autoscaler_may_leave() -> None:
    cluster = {"npu": {"family": "A3", "devicePlugin": "cce"}, "scheduler": "volcano"}
    gang = {"scheduling": {"gangPolicy": {"minRoleReplicas": {"prefill": 2}}}, "ratio": "2P1D"}
    assert codes(cluster=cluster, **gang) == []
    assert codes(cluster=cluster, autoscaling={"prefill": scaling(1, 2)}, **gang) == ["PD821"]


def test_every_setting_of_volcano_is_named() -> None:
    declared = {
        "queue": "q",
        "gangPolicy": {"minRoleReplicas": {"prefill": 1}},
        "networkTopology": {"groupPolicy": {"mode": "soft"}},
    }
    assert found(scheduling=declared) == [(("PD820"), f"{NAME}.scheduling.{key}") for key in sorted(declared)]


@pytest.mark.parametrize(
    ("scheduling", "path"),
    [
        (
            {"networkTopology": {"groupPolicy": {"highestTierAllowed": 1, "highestTierName": "rack"}}},
            ".networkTopology.groupPolicy",
        ),
        ({"gangPolicy": {}}, ".gangPolicy.minRoleReplicas"),
        ({"gangPolicy": {"minRoleReplicas": {"prefill": -1}}}, ".gangPolicy.minRoleReplicas.prefill"),
    ],
)
def test_scheduling_that_means_nothing_can_not_be_declared(scheduling: dict[str, Any], path: str) -> None:
    assert found(scheduling=scheduling) == [("PD001", f"{NAME}.scheduling{path}")]


@pytest.mark.parametrize(
    ("autoscaling", "path"),
    [
        ({}, ""),
        ({"groups": scaling(1, 2), "prefill": scaling(1, 2)}, ""),
        ({"groups": scaling(1, 2), "ratio": {"min": 1, "max": 1}}, ""),
        ({"groups": scaling(3, 2)}, ".groups"),
        ({"groups": {"min": 1, "max": 2, "metrics": {}}}, ".groups.metrics"),
        ({"groups": {"min": 1, "max": 2, "metrics": {WAITING: "0"}}}, f'.groups.metrics["{WAITING}"]'),
        ({"groups": scaling(1, 2, metricSources={"other": {"pod": {}}})}, ".groups"),
        ({"groups": scaling(1, 2, metricSources={WAITING: {}})}, f'.groups.metricSources["{WAITING}"]'),
        ({"prefill": scaling(1, 2), "ratio": {"min": 2, "max": 1}}, ".ratio"),
        ({"prefill": scaling(1, 2), "ratio": {"min": 1, "max": float("inf")}}, ".ratio.max"),
        ({"groups": scaling(1, 2), "behavior": {"scaleDown": {"period": "31m"}}}, ".behavior.scaleDown.period"),
    ],
)
def test_a_policy_that_kthena_would_refuse_can_not_be_declared(autoscaling: dict[str, Any], path: str) -> None:
    assert found(autoscaling=autoscaling) == [("PD001", f"{NAME}.autoscaling{path}")]


@pytest.mark.parametrize(
    ("declared", "wrong"),
    [
        ({"autoscaling": {"prefill": scaling(1, 4)}}, []),
        ({"autoscaling": {"prefill": scaling(1, 4), "decode": scaling(1, 4)}}, []),
        ({"ratio": "2P1D", "autoscaling": {"prefill": scaling(2, 8), "decode": scaling(1, 4)}}, []),
        ({"ratio": "2P1D", "autoscaling": {"prefill": scaling(2, 8), "decode": scaling(1, 5)}}, ["PD832"]),
        ({"ratio": "1P3D", "autoscaling": {"prefill": scaling(1, 2), "decode": scaling(3, 6)}}, []),
        ({"autoscaling": {"prefill": scaling(1, 4), "ratio": {"min": 1, "max": 2}}}, ["PD832"]),
        ({"autoscaling": {"prefill": scaling(1, 4), "ratio": {"min": 0, "max": 4}}}, []),
        ({"autoscaling": {"prefill": scaling(2, 4), "ratio": {"min": 1, "max": 4}}}, ["PD830"]),
        ({"autoscaling": {"prefill": scaling(1, 4), "ratio": {"min": 2, "max": 4}}}, ["PD830"]),
        ({"groups": 3, "autoscaling": {"groups": scaling(1, 2)}}, ["PD830"]),
    ],
)
def test_bounds_hold_what_is_declared_and_the_ratio_lets_them_be_reached(declared: dict[str, Any], wrong: list[str]) -> None:
    assert codes(**declared) == wrong


@pytest.mark.parametrize(
    ("metric", "source", "wrong"),
    [
        ("vllm:kv_cache_usage_perc", None, []),
        ("vllm:kv_cache_usage", None, ["PD836"]),
        ("vllm:generation_tokens_total", None, ["PD837"]),
        ("load", {"pod": {"name": WAITING}}, []),
        ("load", {"pod": {"name": "vllm:prompt_tokens_total"}}, ["PD837"]),
        ("load", {"pod": {"port": 8100}}, []),  # not the engine's
        ("load", {"prometheus": {"serverURL": "http://prometheus:9090", "query": "up"}}, []),
    ],
)
def test_metrics_of_the_engines_are_known_and_fall_again(metric: str, source: dict[str, Any] | None, wrong: list[str]) -> None:
    declared = {"min": 1, "max": 2, "metrics": {metric: "1"}, "metricSources": {metric: source} if source else {}}
    assert codes(autoscaling={"groups": declared}) == wrong


@pytest.mark.parametrize("scope", [{"roles": ["decoder"]}, {"target": "Worker"}])
def test_a_plugin_that_no_pod_sees_is_named(scope: dict[str, Any]) -> None:
    assert codes(plugins=[{"name": "demo-pod-tweaks", "scope": scope}]) == ["PD824"]


def test_plugins_of_a_controller_of_the_clusters_own_are_its_affair() -> None:
    npu = {"family": "A3", "devicePlugin": "cce"}
    assert codes(plugins=[{"name": "acme"}]) == ["PD823"]
    assert codes(cluster={"npu": npu, "controlPlane": {"install": False}}, plugins=[{"name": "acme"}]) == []


def test_scaling_to_zero_is_an_error_or_a_warning_and_never_both() -> None:
    outside = {"metricSources": {WAITING: {"prometheus": {"serverURL": "http://prometheus:9090", "query": "up"}}}}
    assert codes(autoscaling={"groups": scaling(0, 2)}) == ["PD834"]
    assert codes(autoscaling={"groups": scaling(0, 2, **outside)}) == ["PD835"]


def test_a_plugin_for_workers_has_workers() -> None:
    plugins = [{"name": "demo-pod-tweaks", "scope": {"target": "Worker"}}]
    assert codes(plugins=plugins, decode={"pods": 2}) == []
