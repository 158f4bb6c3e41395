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
from models.stack import Stack
from rules.finding import Finding, Path, StackError, one_of

CODE = "PD001"
RECIPE_CODE = "PD002"


def parse(config: Mapping[str, Any]) -> Stack:
    """Build the models, deployments laid over their recipes.

    Raises:
        StackError: the shape is wrong.
    """
    findings: list[Finding] = []
    deployments = config.get("deployments", {})
    declared: dict[str, Any] = {}
    if isinstance(deployments, Mapping):
        for name, deployment in deployments.items():
            path: Path = ("deployments", name)
            if not isinstance(deployment, Mapping):
                findings.append(Finding(CODE, path, f"is {deployment!r}, not a map", "declare it as recipe: NAME"))
            elif "name" in deployment:
                findings.append(Finding(CODE, (*path, "name"), "unknown key", "the deployment's name is its key; leave this out"))
            elif "recipe" in deployment and deployment["recipe"] not in catalog.recipe_names():
                remedy = f"one of {one_of(catalog.recipe_names())}"
                findings.append(Finding(RECIPE_CODE, (*path, "recipe"), f"no recipe {deployment['recipe']!r}", remedy))
            else:
                recipe = catalog.recipe(deployment["recipe"]) if "recipe" in deployment else {}
                declared[name] = {**_overlay(recipe, deployment), "name": name}
    else:
        findings.append(Finding(CODE, ("deployments",), "is not a map", "declare a map of deployments by name"))
    read = {**config, "deployments": declared} if "deployments" in config else config
    try:
        stack = Stack.model_validate(read)
    except ValidationError as error:
        findings.extend(_findings(error, declared))
        raise StackError(findings) from None
    if findings:
        raise StackError(findings)
    return stack


def _overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` on ``base``, maps key by key; a map on something else replaces it."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        # What replaces a recipe's choice between alternatives replaces all of it.
        whole = key == "weights"
        merged[key] = _overlay(below, value) if isinstance(below, dict) and isinstance(value, Mapping) and not whole else value
    return merged


def _findings(error: ValidationError, declared: Mapping[str, Any]) -> Iterator[Finding]:
    for details in error.errors(include_url=False):
        path = _path(details["loc"])
        yield Finding(CODE, path, *_explain(details, path, declared))


def _path(location: tuple[str | int, ...]) -> Path:
    # A deployment's name is its key in the stack file, and pydantic reports a refused key as (..., key, "[key]").
    is_name = len(location) == 3 and location[0] == "deployments" and location[2] == "name"  # noqa: PLR2004
    return tuple(key for key in location[: 2 if is_name else None] if key != "[key]")


def _explain(details: ErrorDetails, path: Path, declared: Mapping[str, Any]) -> tuple[str, str]:
    kind, given = details["type"], details["input"]
    field = _field(path)
    if kind == "extra_forbidden":
        known = _known_keys(path[:-1])
        close = difflib.get_close_matches(str(path[-1]), known, n=1)
        return "unknown key", f"did you mean {close[0]}?" if close else f"known here: {one_of(known)}"
    if kind == "missing":
        remedy = f"declare it{_example(path[-1], field)}"
        in_bare_deployment = len(path) > 1 and path[0] == "deployments" and "recipe" not in declared.get(str(path[1]), {})
        if in_bare_deployment:
            remedy += f"; or take a recipe: {one_of(catalog.recipe_names())}"
        return "is missing", remedy
    if kind == "value_error":
        problem, _, remedy = str(details["ctx"]["error"]).partition("; ")
        return problem, remedy or _description(field)
    if kind == "model_type":
        return f"{_shown(given)} is not a map", _description(field)
    return f"{_shown(given)} is not allowed: {details['msg'][:1].lower()}{details['msg'][1:]}", _description(field)


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - a line


def _example(key: str | int, field: FieldInfo | None) -> str:
    if field and field.examples:
        return f", for example {key}: {json.dumps(field.examples[0])}"
    return f": {field.description}" if field and field.description else ""


def _description(field: FieldInfo | None) -> str:
    if field is None:
        return "see the README for what goes here"
    examples = [f"for example {json.dumps(field.examples[0])}"] if field.examples else []
    default = [] if field.is_required() or field.default is None else [f"default {_shown(_plain(field.default))}"]
    return "; ".join([*([field.description] if field.description else []), *examples, *default]) or "a value that fulfils this"


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
