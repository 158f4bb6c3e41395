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
from tests.render.crds import Crds, field_paths

KINDS = ("model_serving", "model_server", "model_route")


def rendered(**declared: Any) -> Any:
    stack = read(stacks.config(**declared))
    return render_deployment(stack.deployments["deepseekv4-pd"], stack.cluster)


@pytest.mark.parametrize("recipe", catalog.recipe_names())
@pytest.mark.parametrize("ratio", ["1P1D", "2P1D", "1P2D"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_recipe_renders_objects_without_an_unknown_or_ill_typed_field(
    crds: Crds, recipe: str, ratio: str, kind: str
) -> None:
    assert crds.errors(getattr(rendered(recipe=recipe, ratio=ratio), kind)) == []


WEIGHTS: dict[str, dict[str, Any]] = {
    "host path": {"hostPath": "/models/m"},
    "claim": {"claim": {"name": "weights", "path": "/models/m", "subPath": "m"}},
    "download": {"download": {"source": "s3://bucket/m", "cache": {"hostPath": "/cache/m"}, "credentials": "s3"}},
}


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS.keys())
def test_weights_from_anywhere_render_objects_that_fit(crds: Crds, weights: dict[str, Any]) -> None:
    assert crds.errors(rendered(model={"weights": weights}).model_serving) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_check_itself_refuses_a_field_that_the_api_server_would_not_know(crds: Crds, kind: str) -> None:
    broken = copy.deepcopy(getattr(rendered(), kind))
    broken["spec"]["modelname"] = "x"
    assert any("modelname" in error for error in crds.errors(broken))


def test_the_check_itself_looks_into_pod_templates(crds: Crds) -> None:
    broken = copy.deepcopy(rendered().model_serving)
    broken["spec"]["template"]["roles"][1]["entryTemplate"]["spec"]["containers"][0]["volumeMount"] = []
    assert any("volumeMount" in error for error in crds.errors(broken))


@pytest.mark.parametrize("model", [ModelServing, ModelServer, ModelRoute, AutoscalingPolicy])
def test_the_models_know_every_field_of_the_crd_and_no_other(crds: Crds, model: type[BaseModel]) -> None:
    spec = crds.schema(model.__name__)["properties"]["spec"]
    # a pod's spec stays Kubernetes' own
    theirs = {path for path in field_paths(spec) if ".spec." not in path}
    ours = set(_model_paths(_model(model.model_fields["spec"].annotation)))
    assert ours == theirs


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
