"""The shape of the stack file: keys, types, ranges. Source: the models; pydantic's findings in the words of the stack file."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

import catalog
from models.deployment import Deployment
from models.stack import Stack
from rules.finding import Finding, Path, one_of

CODE = "PD001"
RECIPE_CODE = "PD002"


def parse(config: Mapping[str, Any]) -> tuple[Stack | None, list[Finding]]:
    """Build the models, deployments laid over their recipes.

    Returns:
        The stack with the deployments that are well-formed, None if the rest is not; and what is wrong.
    """
    findings: list[Finding] = []
    deployments: dict[str, Deployment] = {}
    declared = config.get("deployments", {})
    if not isinstance(declared, Mapping):
        findings.append(Finding(CODE, ("deployments",), f"{_shown(declared)} is not a map", "declare deployments by name"))
        declared = {}
    for name, deployment in declared.items():
        found = list(_misread(name, deployment))
        findings += found
        if not found:
            whole = {**_overlay(_recipe(deployment), deployment), "name": name}
            try:
                deployments[name] = Deployment.model_validate(whole, by_name=False)
            except ValidationError as error:
                findings += _findings(error, ("deployments", name), whole)
    rest = {key: value for key, value in config.items() if key != "deployments"}
    try:
        whole = rest | ({"deployments": deployments} if "deployments" in config else {})
        stack = Stack.model_validate(whole, by_name=False)  # a key has one spelling in the file, Python's names are Python's
    except ValidationError as error:
        return None, [*findings, *_findings(error, (), {})]
    return stack, findings


def _misread(name: str, deployment: object) -> Iterator[Finding]:
    """What stops a deployment from being laid over its recipe."""
    path: Path = ("deployments", name)
    if not isinstance(deployment, Mapping):
        remedy = f"a map, for example {{recipe: {catalog.recipe_names()[0]}}}"
        yield Finding(CODE, path, f"{_shown(deployment)} is not a map", remedy)
        return
    if "name" in deployment:
        yield Finding(CODE, (*path, "name"), "unknown key", "the deployment's name is its key; leave this out")
    recipe = deployment.get("recipe")
    if recipe is not None and recipe not in catalog.recipe_names():
        yield Finding(RECIPE_CODE, (*path, "recipe"), f"no recipe {recipe!r}", f"one of {one_of(catalog.recipe_names())}")


def _recipe(deployment: Mapping[str, Any]) -> Mapping[str, Any]:
    return catalog.recipe(deployment["recipe"]) if deployment.get("recipe") is not None else {}


def _overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` on ``base``, maps key by key; a map on something else replaces it."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        # What replaces a recipe's choice between alternatives replaces all of it.
        whole = key == "weights"
        merged[key] = _overlay(below, value) if isinstance(below, dict) and isinstance(value, Mapping) and not whole else value
    return merged


def _findings(error: ValidationError, below: Path, deployment: Mapping[str, Any]) -> Iterator[Finding]:
    for details in error.errors(include_url=False):
        # a deployment's name is its key in the stack file, and pydantic reports a refused key as (..., key, "[key]")
        location = () if below and details["loc"] == ("name",) else details["loc"]
        path = (*below, *(key for key in location if key != "[key]"))
        yield Finding(CODE, path, *_explain(details, path, has_recipe=deployment.get("recipe") is not None))


def _explain(details: ErrorDetails, path: Path, *, has_recipe: bool) -> tuple[str, str]:
    kind, given = details["type"], details["input"]
    field = _field(path)
    if kind == "extra_forbidden":
        known = _known_keys(path[:-1])
        close = difflib.get_close_matches(str(path[-1]), known, n=1)
        return "unknown key", f"did you mean {close[0]}?" if close else f"known here: {one_of(known)}"
    if kind == "missing":
        remedy = f"declare it{_example(path[-1], field)}"
        if path[0] == "deployments" and len(path) > 1 and not has_recipe:
            remedy += f"; or take a recipe: {one_of(catalog.recipe_names())}"
        return "is missing", remedy
    if kind == "value_error":
        problem, _, remedy = str(details["ctx"]["error"]).partition("; ")
        return problem, remedy or _description(field)
    wanted = next((words for types, words in WANTED.items() if kind in types), None)
    if wanted is None:
        return f"{_shown(given)} is not allowed: {details['msg'][:1].lower()}{details['msg'][1:]}", _description(field)
    described = _description(field)
    return f"{_shown(given)} is not {wanted}", wanted if described == UNDESCRIBED else f"{wanted}: {described}"


WANTED = {
    ("int_type", "int_parsing", "int_from_float"): "a whole number",
    ("float_type", "float_parsing"): "a number",
    ("bool_type", "bool_parsing"): "true or false",
    ("string_type",): "a text (in YAML a number needs quotes to be one)",
    ("tuple_type", "list_type"): "a list",
    ("model_type", "dict_type", "model_attributes_type"): "a map",
}
"""pydantic's error types -> what is wanted in the stack file"""
UNDESCRIBED = "a value that fulfils this"


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - a line


def _example(key: str | int, field: FieldInfo | None) -> str:
    if field and field.examples:
        return f", for example {key}: {json.dumps(field.examples[0])}"
    return f": {field.description}" if field and field.description else ""


def _description(field: FieldInfo | None) -> str:
    if field is None:
        return UNDESCRIBED
    examples = [f"for example {json.dumps(field.examples[0])}"] if field.examples else []
    default = [] if field.is_required() or field.default is None else [f"default {_shown(_plain(field.default))}"]
    return "; ".join([*([field.description] if field.description else []), *examples, *default]) or UNDESCRIBED


def _plain(value: object) -> object:
    return value.model_dump(by_alias=True, exclude_none=True) if isinstance(value, BaseModel) else value


def _known_keys(path: Path) -> list[str]:
    model = _model(path)
    hidden = {"name"} if path[:1] == ("deployments",) and len(path) == 2 else set()  # noqa: PLR2004 - deployments.NAME
    return [] if model is None else [name for name in _aliases(model) if name not in hidden]


def _aliases(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _field(path: Path) -> FieldInfo | None:
    """The model field that the last key of ``path`` names."""
    model = _model(path[:-1])
    return _aliases(model).get(str(path[-1])) if model else None


def _model(path: Path) -> type[BaseModel] | None:
    """The model whose keys stand at ``path``."""
    annotation: Any = Stack
    for key in path:
        model = _model_in(annotation)
        if model is None:
            return None
        if get_origin(annotation) is dict:
            annotation = model  # the key of a map
            continue
        field = _aliases(model).get(str(key))
        if field is None:
            return None
        annotation = field.annotation
    return _model_in(annotation)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part))), None)
