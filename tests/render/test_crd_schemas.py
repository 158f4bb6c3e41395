"""Everything that is rendered against the schemas that the API server enforces."""

from __future__ import annotations

import copy
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import catalog
from models.kthena import AutoscalingPolicy, ModelRoute, ModelServer, ModelServing
from render import render_deployment
from rules import read
from tests import stacks
from tests.render.crds import Crds, field_paths, given_paths

KINDS = ("ModelServing", "ModelServer", "ModelRoute")


def rendered(**declared: Any) -> Any:
    stack = read(stacks.config(**declared))
    return render_deployment(stack.deployments["deepseekv4-pd"], stack.cluster)


@pytest.mark.parametrize("recipe", catalog.recipe_names())
@pytest.mark.parametrize("ratio", ["1P1D", "2P1D", "1P2D"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_recipe_renders_objects_without_an_unknown_or_ill_typed_field(
    crds: Crds, recipe: str, ratio: str, kind: str
) -> None:
    families = {name.lower(): name for name in catalog.npu_families()}
    npu = {"family": families[recipe.rpartition("-")[2]], "devicePlugin": "mindcluster"}
    objects = rendered(recipe=recipe, ratio=ratio, cluster={"npu": npu}).objects
    assert [crds.errors(item) for item in objects if item["kind"] == kind] == [[]]


WEIGHTS: dict[str, dict[str, Any]] = {
    "host path": {"hostPath": "/models/m"},
    "claim": {"claim": {"name": "weights", "path": "/models/m", "subPath": "m"}},
    "download": {"download": {"source": "s3://bucket/m", "cache": {"hostPath": "/cache/m"}, "credentials": "s3"}},
}


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS.keys())
def test_weights_from_anywhere_render_objects_that_fit(crds: Crds, weights: dict[str, Any]) -> None:
    assert crds.errors(rendered(model={"weights": weights}).stable.model_serving) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_check_itself_refuses_a_field_that_the_api_server_would_not_know(crds: Crds, kind: str) -> None:
    (broken,) = copy.deepcopy([item for item in rendered().objects if item["kind"] == kind])
    broken["spec"]["modelname"] = "x"
    assert any("modelname" in error for error in crds.errors(broken))


def test_the_check_itself_looks_into_pod_templates(crds: Crds) -> None:
    broken = copy.deepcopy(rendered().stable.model_serving)
    broken["spec"]["template"]["roles"][1]["entryTemplate"]["spec"]["containers"][0]["volumeMount"] = []
    assert any("volumeMount" in error for error in crds.errors(broken))


@pytest.mark.parametrize("model", [ModelServing, ModelServer, ModelRoute, AutoscalingPolicy])
def test_the_models_know_every_field_of_the_crd_and_no_other(crds: Crds, model: type[BaseModel]) -> None:
    spec = crds.schema(model.__name__)["properties"]["spec"]
    # a pod's spec stays Kubernetes' own
    theirs = {path for path in field_paths(spec) if ".spec." not in path}
    ours = set(_model_paths(_model(model.model_fields["spec"].annotation)))
    assert ours == theirs


CANARY = {"recipe": stacks.RECIPE, "route": {"enabled": False}, "model": {"lora": {"adapters": {"law": "adapters/law"}}}}
TEMPLATE = {"metadata": {"labels": {"team": "a"}, "annotations": {"cost": "b"}}}
WINDOWS: dict[str, Any] = {
    "instances": 1,
    "percent": 50,
    "period": "1m",
    "selectPolicy": "And",
    "stabilizationWindow": "5m",
}
POD_METRIC = {
    "name": "vllm:num_requests_waiting",
    "uri": "/metrics",
    "port": 7100,
    "labelSelector": {
        "matchLabels": {"modelserving.volcano.sh/role": "decode"},
        "matchExpressions": [{"key": "team", "operator": "In", "values": ["a"]}],
    },
}
SCALING: dict[str, Any] = {
    "min": 1,
    "max": 4,
    "metrics": {"waiting": "10", "rate": "0.5"},
    "metricSources": {
        "waiting": {"pod": POD_METRIC},
        "rate": {"prometheus": {"serverURL": "http://prometheus:9090", "query": "sum(rate(requests[2m]))", "auth": {}}},
    },
}
MAXIMAL: tuple[dict[str, Any], ...] = (
    {
        "ratio": "2P2D",
        "groups": 2,
        "model": {"lora": {"adapters": {"law": "adapters/law"}}},
        "prefill": {"podTemplate": TEMPLATE},
        "decode": {"pods": 2, "podTemplate": TEMPLATE},
        "rolloutStrategy": {
            "type": "ServingGroupRollingUpdate",
            "rollingUpdateConfiguration": {"maxUnavailable": "50%", "partition": 1},
        },
        "scheduling": {
            "queue": "inference",
            "gangPolicy": {"minRoleReplicas": {"prefill": 1}},
            "networkTopology": {
                "groupPolicy": {"mode": "soft", "highestTierAllowed": 2},
                "rolePolicy": {"mode": "hard", "highestTierName": "rack"},
            },
        },
        "plugins": [
            {
                "name": "demo-pod-tweaks",
                "type": "BuiltIn",
                "config": {"annotations": {"a": "b"}},
                "scope": {"roles": ["decode"], "target": "Worker"},
            }
        ],
        "autoscaling": {
            "groups": SCALING | {"min": 2},
            "tolerancePercent": 20,
            "behavior": {
                "scaleDown": WINDOWS,
                "scaleUp": {
                    "stablePolicy": WINDOWS,
                    "panicPolicy": {"percent": 200, "period": "10s", "panicThresholdPercent": 150, "panicModeHold": "60s"},
                },
            },
        },
        "route": {
            "parentRefs": [
                {
                    "group": "gateway.networking.k8s.io",
                    "kind": "Gateway",
                    "name": "main",
                    "namespace": "gateways",
                    "sectionName": "http",
                    "port": 80,
                }
            ],
            "rules": [
                {
                    "name": "adapters",
                    "match": {
                        "headers": {"a": {"exact": "1"}, "b": {"prefix": "1"}, "c": {"regex": "^1"}},
                        "uri": {"exact": "/v1/chat/completions"},
                        "body": {"model": "law"},
                    },
                    "targets": {"deepseekv4-pd": 90, "deepseekv4-pd-canary": 10},
                },
                {"match": {"uri": {"prefix": "/v1/chat"}}, "targets": {"deepseekv4-pd": 1}},
                {"match": {"uri": {"regex": "completions$"}}, "targets": {"deepseekv4-pd": 1}},
            ],
            "rateLimit": {
                "inputTokensPerUnit": 1000,
                "outputTokensPerUnit": 1000,
                "unit": "minute",
                "global": {"redis": {"address": "redis:6379"}},
            },
        },
    },
    {
        "ratio": "2P2D",
        "recovery": {"policy": "RoleRecreate"},
        "rolloutStrategy": {"type": "RoleRollingUpdate"},
        "prefill": {"maxUnavailable": 1},
        "decode": {"maxUnavailable": "100%"},
        "scheduling": {
            "networkTopology": {
                "groupPolicy": {"highestTierName": "spine"},
                "rolePolicy": {"highestTierAllowed": 1},
            },
        },
        "autoscaling": {"prefill": SCALING, "decode": SCALING, "ratio": {"min": 0.5, "max": 2}},
    },
)
UNSAID = {
    "heterogeneousTarget": "shares load among several ModelServings, and a policy belongs to one deployment",
    "targetRef.namespace": "a policy scales the ModelServing beside it",
    "targetRef.fieldPath": "of Kubernetes' reference type; nothing reads it",
    "targetRef.resourceVersion": "of Kubernetes' reference type; nothing reads it",
    "targetRef.uid": "of Kubernetes' reference type; nothing reads it",
}
"""part of the path of a field that no declaration renders -> why"""


def maximal(declared: dict[str, Any]) -> Any:
    config = stacks.config(
        **declared,
        cluster={"npu": {"family": "A3", "devicePlugin": "cce"}, "scheduler": "volcano", "controlPlane": {"install": False}},
    )
    config["deployments"]["deepseekv4-pd-canary"] = CANARY
    stack = read(config)
    return render_deployment(stack.deployments["deepseekv4-pd"], stack.cluster)


@pytest.mark.parametrize("model", [ModelServing, ModelServer, ModelRoute, AutoscalingPolicy])
def test_every_field_of_the_crd_is_reached_by_some_declaration(crds: Crds, model: type[BaseModel]) -> None:
    schema = crds.schema(model.__name__)["properties"]["spec"]
    objects = [item for declared in MAXIMAL for item in maximal(declared).objects if item["kind"] == model.__name__]
    assert [error for item in objects for error in crds.errors(item)] == []
    reached = {path for item in objects for path in given_paths(item["spec"], schema)}
    # a pod's spec is reached by podTemplate, and is Kubernetes' own
    missing = {path for path in field_paths(schema) if ".spec." not in path} - reached
    assert {path for path in missing if not any(part in path for part in UNSAID)} == set()


def _model_paths(model: type[BaseModel], below: str = "") -> list[str]:
    paths: list[str] = []
    for name, field in model.model_fields.items():
        path = f"{below}.{field.alias or name}" if below else field.alias or name
        paths.append(path)
        inner = _nested(field.annotation)
        if inner:
            paths.extend(_model_paths(inner, path))
    return paths


def _nested(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _nested(part))), None)


def _model(annotation: Any) -> type[BaseModel]:
    model = _nested(annotation)
    assert model is not None
    return model
