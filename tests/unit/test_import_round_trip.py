"""What this program has rendered comes back as a stack that renders the same: such objects are adopted without any change."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings

import catalog
from importer import Imported, Manifest, import_manifests
from importer.adoption import adoption
from models.stack import Stack
from render import render_deployment
from rules import StackError, read
from rules.shape import parse
from tests.render.declarations import stack_files

_ONLY_TARGET = re.compile(r'(?<="targetModels": \[)(\{"modelServerName": "[^"]*")(, "weight": [1-9]\d*)?\}\]')
EXAMPLES = int(os.environ.get("KTHENA_PD_EXAMPLES", "40"))
PLUGINS = {"A2": "cce", "A3": "cce", "950": "mindcluster"}
DIFFERING: dict[str, dict[str, Any]] = {
    "2P1D in two groups": {"ratio": "2P1D", "groups": 2},
    "pool": {"kvTransfer": {"pool": {"master": "mooncake.kv:50088", "segmentSize": "40Gi", "loadAsync": True}}},
    "lora": {"model": {"lora": {"adapters": {"sql": "adapters/sql", "other": "/lora/other"}, "maxRank": 16, "maxLoaded": 2}}},
    "claim": {"model": {"weights": {"claim": {"name": "models", "path": "/weights", "subPath": "v4"}}}},
    "gang and queue": {"scheduling": {"queue": "gold", "gangPolicy": {"minRoleReplicas": {"prefill": 1, "decode": 1}}}},
    "rollout by role": {"rolloutStrategy": {"type": "RoleRollingUpdate"}, "decode": {"maxUnavailable": "50%"}},
    "scaled by role": {
        "autoscaling": {
            "prefill": {"min": 1, "max": 4, "metrics": {"vllm:num_requests_waiting": "10"}},
            "decode": {"min": 1, "max": 4, "metrics": {"vllm:kv_cache_usage_perc": "0.7"}},
            "ratio": {"min": 0.25, "max": 2.0},
            "behavior": {"scaleDown": {"instances": 1, "period": "2m"}},
        }
    },
    "route": {
        "route": {
            "rules": [{"match": {"headers": {"tier": {"exact": "gold"}}}, "targets": {"mine": 70, "other": 30}}],
            "rateLimit": {"outputTokensPerUnit": 1000, "unit": "minute", "global": {"redis": {"address": "redis:6379"}}},
        }
    },
    "pods of their own": {
        "runtimeSidecar": True,
        "engine": {"env": {"SITE": "north"}, "extraArgs": ["--tokenizer-mode", "slow"]},
        "prefill": {
            "extraArgs": ["--disable-log-requests"],
            "podTemplate": {
                "metadata": {"labels": {"team": "search"}},
                "spec": {"priorityClassName": "high", "containers": [{"name": "vllm", "securityContext": {"privileged": True}}]},
            },
        },
    },
    "times": {"readiness": {"loadTimeout": "95s", "drainPeriod": "1500ms", "terminationGracePeriod": "2h"}},
}


def declared(**deployment: Any) -> Stack:
    recipe = deployment["recipe"]
    family = next((name for name in PLUGINS if recipe.endswith(f"-{name.lower()}")), "A3")
    cluster = {
        "npu": {"family": family, "devicePlugin": PLUGINS[family]},
        "scheduler": "volcano",
        "controlPlane": {"install": False},
    }
    stack, wrong = parse({"cluster": cluster, "deployments": {"mine": {"namespace": "serving", **deployment}}})
    assert stack is not None, wrong
    assert not wrong
    return stack


def objects(stack: Stack) -> list[dict[str, Any]]:
    rendered = render_deployment(stack.deployments["mine"], stack.cluster).objects
    return [json.loads(json.dumps(item)) for item in rendered]


def all_objects(stack: Stack) -> list[dict[str, Any]]:
    """Of every deployment. An empty map declares nothing, and the only target of a rule gets all, whatever its weight."""
    rendered = [
        json.loads(_ONLY_TARGET.sub(r"\1}]", json.dumps(item).replace('"metadata": {}, ', "")))
        for deployment in stack.deployments.values()
        for item in render_deployment(deployment, stack.cluster, stack.deployments).objects
    ]
    return sorted(rendered, key=lambda item: (item["kind"], item["metadata"]["namespace"], item["metadata"]["name"]))


def brought_back(stack: Stack) -> tuple[Stack, Imported]:
    family = stack.cluster.npu.family
    found = import_manifests([Manifest(item, "live.yaml", {(): 1}) for item in objects(stack)], npu=family)
    again, wrong = parse(found.config)
    assert again is not None, wrong
    return again, found


@pytest.mark.parametrize("recipe", catalog.recipe_names())
def test_a_rendered_recipe_comes_back_as_it_was_and_nothing_is_said_of_it(recipe: str) -> None:
    stack = declared(recipe=recipe)
    again, found = brought_back(stack)
    assert objects(again) == objects(stack)
    assert found.findings == ()


@pytest.mark.parametrize("difference", DIFFERING)
def test_what_a_deployment_adds_comes_back_too(difference: str) -> None:
    stack = declared(recipe="deepseek-v4-flash-w8a8-a3", **DIFFERING[difference])
    again, found = brought_back(stack)
    assert objects(again) == objects(stack)
    assert found.unexplained == ()


@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[*HealthCheck],
    phases=[Phase.generate],
)
@given(stack_files("/models/generated"))
def test_any_stack_that_passes_the_rules_comes_back(config: dict[str, Any]) -> None:
    try:
        stack = read(config)
    except StackError:
        assume(condition=False)
    assume(not any(deployment.rollout for deployment in stack.deployments.values()))
    npu, given_objects = stack.cluster.npu, all_objects(stack)
    manifests = [Manifest(item, "live.yaml", {(): 1}) for item in given_objects]
    found = import_manifests(manifests, npu=npu.family, device_plugin=npu.device_plugin)
    again, wrong = parse(found.config)
    assert again is not None, wrong
    assert found.unexplained == ()
    if not any("stands twice" in finding.problem for finding in found.findings):
        assert all_objects(again) == given_objects


def test_objects_that_are_the_same_are_adopted_with_all_their_names() -> None:
    _, found = brought_back(declared(recipe="deepseek-v4-flash-w8a8-a3"))
    assert all(one.keeps_its_name for one in found.objects)
    assert [one.has_same_pods for one in found.objects if one.given.kind == "ModelServing"] == [True]
    file = adoption(found.objects, "prod")
    assert {(entry["type"].rpartition(":")[2], entry["logicalName"], entry.get("id")) for entry in file["resources"]} == {
        ("PDDeployment", "mine", None),
        ("ConfigMap", name := found.objects[0].given.name, f"serving/{name}"),
        ("ConfigMap", name := found.objects[1].given.name, f"serving/{name}"),
        ("ModelServing", "mine", "serving/mine"),
        ("ModelServer", "mine", "serving/mine"),
        ("ModelRoute", "serving-deepseek-v4-bf27c42", "serving/deepseek-v4-bf27c42"),
    }
    assert len({entry["name"] for entry in file["resources"]}) == len(file["resources"]), "Pulumi looks parents up by name"


def test_what_is_a_default_or_derived_is_not_in_the_stack_file() -> None:
    _, found = brought_back(declared(recipe="deepseek-v4-flash-w8a8-a3"))
    deployment = found.config["deployments"]["mine"]
    assert not deployment.keys() & {"groups", "dataParallelRpcPort", "route", "recovery"}
    assert "image" not in deployment["engine"]
    assert "pods" not in deployment["prefill"]
