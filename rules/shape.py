"""The shape of the stack file: keys, types, ranges. Source: the models; pydantic's findings in the words of the stack file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

import catalog
from models import quantities
from models.deployment import Deployment
from models.stack import Stack
from rules.finding import Check, Finding, Path, did_you_mean, one_of, shown

SHAPE = Check(
    "PD001",
    "error",
    "models/",
    "every key is known and every value fits",
    "A misspelt key would leave the default in place, and what does not fit fails in the cluster or at the engine's start.",
)
RECIPE = Check(
    "PD002",
    "error",
    "catalog/recipes",
    "recipe is in the catalogue",
    "Without its recipe nothing is known of the deployment.",
)


def parse(config: Mapping[str, Any]) -> tuple[Stack | None, list[Finding]]:
    """Build the models, deployments laid over their recipes.

    Returns:
        The stack with the deployments that are well-formed, None if the rest is not; and what is wrong.
    """
    findings = list(_booleans_for_numbers(config, ()))
    deployments: dict[str, Deployment] = {}
    declared = config.get("deployments", {})
    if not isinstance(declared, Mapping):
        findings.append(Finding(SHAPE.code, ("deployments",), f"{shown(declared)} is not a map", "declare deployments by name"))
        declared = {}
    for name, deployment in sorted(declared.items(), key=str):  # Pulumi keeps no order: findings are the same with it and without
        found = list(_misread(name, deployment))
        findings += found
        if not found:
            whole = with_candidate({**overlay(_recipe(deployment), deployment), "name": name})
            try:
                deployments[name] = Deployment.model_validate(whole, by_name=False)
            except ValidationError as error:
                findings += _once(_findings(error, ("deployments", name), whole))
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
        yield Finding(SHAPE.code, path, f"{shown(deployment)} is not a map", remedy)
        return
    if "name" in deployment:
        yield Finding(SHAPE.code, (*path, "name"), "unknown key", "the deployment's name is its key; leave this out")
    for key in shared(deployment):
        remedy = "leave it out; or declare two deployments, and their weights in route.rules"
        yield Finding(SHAPE.code, (*path, *CANDIDATE, key), "both versions have the same", remedy)
    recipe = deployment.get("recipe")
    if recipe is not None and recipe not in catalog.recipe_names():
        remedy = f"one of {one_of(catalog.recipe_names(), recipe)}"
        yield Finding(RECIPE.code, (*path, "recipe"), f"no recipe {shown(recipe)}", remedy)


def _recipe(deployment: Mapping[str, Any]) -> Mapping[str, Any]:
    return catalog.recipe(deployment["recipe"]) if deployment.get("recipe") is not None else {}


def overlay(
    base: Mapping[str, Any], over: Mapping[str, Any], around: Path = (), replaced: Callable[[Path], object] = lambda _: None
) -> dict[str, Any]:
    """``over`` on ``base``, maps key by key; a map on something else, or on another alternative of a choice, replaces it.

    ``around`` is the path of both; ``replaced`` is told each where nothing of ``base`` is left.
    """
    merged = dict(base)
    for key, value in over.items():
        path = (*around, key)
        if replaces(path, merged.get(key), value):
            replaced(path)
            merged[key] = value
        else:
            merged[key] = overlay(merged[key], value, path, replaced)
    return merged


def replaces(path: Path, below: object, value: object) -> bool:
    """Whether ``value`` takes the place of ``below``, or else is laid over it key by key."""
    if not isinstance(below, Mapping) or not isinstance(value, Mapping):
        return True
    is_choice = path[-1] in ("weights", "cache") and path[:-1] != ("deployments",)  # a deployment may be called so
    return is_choice and value.keys() != below.keys()


CANDIDATE = ("rollout", "candidate")
SHARED = frozenset({"name", "namespace", "recipe", "rollout", "route"})
"""Keys that a candidate has from its deployment"""


def with_candidate(deployment: Mapping[str, Any]) -> Mapping[str, Any]:
    """A whole deployment, and its candidate as it would be as the deployment itself."""
    candidate = _candidate(deployment)
    if candidate is None:
        return deployment
    promoted = {**overlay(deployment, candidate), "rollout": {"strategy": "Canary"}}
    return {**deployment, "rollout": {**deployment["rollout"], "candidate": promoted}}


def shared(deployment: Mapping[str, Any]) -> list[str]:
    """What a candidate declares although it has it from its ``deployment``."""
    return sorted(SHARED & (_candidate(deployment) or {}).keys())


def _candidate(deployment: Mapping[str, Any]) -> Mapping[str, Any] | None:
    rollout = deployment.get("rollout")
    candidate = rollout.get("candidate") if isinstance(rollout, Mapping) else None
    return candidate if isinstance(candidate, Mapping) else None


def _once(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Without what a candidate has from its deployment."""
    found = list(findings)
    of_deployments = {(finding.path, finding.problem) for finding in found}
    for finding in found:
        if in_candidate(finding.path) and (without_candidate(finding.path), finding.problem) in of_deployments:
            continue
        yield finding


def in_candidate(path: Path) -> bool:
    """Whether ``path`` is inside of a candidate."""
    return path[2:4] == CANDIDATE and len(path) > len(CANDIDATE) + 2


def without_candidate(path: Path) -> Path:
    """Where the same stands in the deployment itself."""
    return (*path[:2], *path[4:]) if in_candidate(path) else path


def to_candidate(path: Path) -> Path:
    """Where the same stands in the candidate."""
    return (*path[:2], *CANDIDATE, *path[2:])


def _booleans_for_numbers(value: object, path: Path) -> Iterator[Finding]:
    """``true`` where a number is wanted: pydantic takes it for 1."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _booleans_for_numbers(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _booleans_for_numbers(inner, (*path, index))
    elif isinstance(value, bool) and _bare(_declared(path).type) in (int, float):
        yield Finding(SHAPE.code, path, f"{shown(value)} is not a number", "a number")


def _findings(error: ValidationError, below: Path, deployment: Mapping[str, Any]) -> Iterator[Finding]:
    recipes = f"; or take a recipe: {one_of(catalog.recipe_names())}" if below and deployment.get("recipe") is None else ""
    for details in error.errors(include_url=False):
        # a deployment's name is its key in the stack file, and pydantic reports a refused key as (..., key, "[key]")
        location = () if below and details["loc"] == ("name",) else details["loc"]
        path = (*below, *(key for key in location if key != "[key]"))
        declared = _declared(path)
        if not location:
            declared = Declared(str, Deployment.model_fields["name"])
        elif location[-1] == "[key]":
            key = _declared(path[:-1]).key
            declared = Declared(key, _field_of(key))
        problem, remedy = _explain(details, path, declared)
        if details["type"] == "missing":
            remedy, recipes = f"{remedy}{recipes}", ""  # once is enough
        yield Finding(SHAPE.code, path, problem, remedy)


def _explain(details: ErrorDetails, path: Path, declared: Declared) -> tuple[str, str]:
    if details["type"] == "extra_forbidden":
        known = _known_keys(path[:-1])
        if len(path) == 1 and "." in str(path[0]):
            return "one key with dots in it", "the parts below each other; only a stack file may have them in one"
        return "unknown key", did_you_mean(path[-1], known, f"known here: {one_of(known)}")
    if details["type"] == "missing":
        return "is missing", f"declare it{declared.example(path[-1])}"
    return _explain_value(details, path, declared)


def _explain_value(details: ErrorDetails, path: Path, declared: Declared) -> tuple[str, str]:
    kind, given, limits = details["type"], details["input"], details.get("ctx", {})
    if kind == "value_error":
        problem, _, remedy = str(limits["error"]).partition("; ")
        return problem, remedy or declared.description or UNDESCRIBED
    problem, remedy = f"{shown(given)} is not allowed", LIMITS.get(kind, "").format(**limits)
    if kind == "string_pattern_mismatch":
        remedy = _forms().get(limits["pattern"], "")
    if kind in WANTED:
        problem, remedy = f"{shown(given)} is not {WANTED[kind]}", declared.wanted(WANTED[kind])
        if given is None and path[0] == "deployments":  # a recipe may have it
            remedy = f"leave it out, or {remedy}"
        if kind == "string_type" and isinstance(given, int | float):
            remedy = f'quotes around it: "{json.dumps(given)}"'
    if kind == "literal_error":
        return problem, f"one of {one_of(map(str, get_args(_bare(declared.type))), given)}"
    remedy = "; ".join(dict.fromkeys(filter(None, [remedy, declared.description])))
    if not remedy:
        return f"{problem}: {details['msg'][:1].lower()}{details['msg'][1:]}", UNDESCRIBED
    return problem, remedy


WANTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "a text",
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    **dict.fromkeys(("model_type", "dict_type", "model_attributes_type"), "a map"),
}
"""pydantic's error type -> what is wanted in the stack file"""
LIMITS = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "too_short": "at least {min_length}",
    "too_long": "at most {max_length}",
}
"""pydantic's error type -> the limit in the words of the stack file"""
UNDESCRIBED = "a value that fulfils this"


class Declared(NamedTuple):
    """What the models say about one place of the stack file."""

    type: Any
    """None where they have no such place"""
    field: FieldInfo | None = None

    @property
    def key(self) -> Any:
        """Type of the keys of a map."""
        return get_args(_bare(self.type))[0] if get_origin(_bare(self.type)) is dict else None

    @property
    def description(self) -> str:
        """What it is, an example, and the default."""
        field = self.field
        if field is None:
            return ""
        examples = [f"for example {json.dumps(field.examples[0])}"] if field.examples else []
        default = [] if field.is_required() or field.default is None else [f"default {shown(_plain(field.default))}"]
        return "; ".join([*([field.description] if field.description else []), *examples, *default])

    def wanted(self, kind: str) -> str:
        """``kind``, with the keys of a map that has known ones."""
        keys = list(_fields(_bare(self.type)))
        return f"{kind} of {one_of(keys)}" if keys and kind == "a map" else kind

    def example(self, key: str | int) -> str:
        """How to write it."""
        if self.field and self.field.examples:
            return f", for example {key}: {json.dumps(self.field.examples[0])}"
        return f": {self.field.description}" if self.field and self.field.description else ""


def _plain(value: object) -> object:
    return value.model_dump(by_alias=True, exclude_none=True) if isinstance(value, BaseModel) else value


def _known_keys(path: Path) -> list[str]:
    model = _bare(_declared(path).type)
    path = without_candidate(path)
    hidden = {"name"} if path[:1] == ("deployments",) and len(path) == 2 else set()  # noqa: PLR2004 - deployments.NAME
    return [name for name in _fields(model) if name not in hidden]


def _fields(model: Any) -> dict[str, FieldInfo]:
    """Key in the stack file -> field; none if ``model`` is no model."""
    if not isinstance(model, type) or not issubclass(model, BaseModel):
        return {}
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _declared(path: Path) -> Declared:
    """What stands at ``path``."""
    found = Declared(Stack)
    for key in without_candidate(path):
        around = _bare(found.type)
        if get_origin(around) is dict:
            value = get_args(around)[1]
            found = Declared(value, _field_of(value))
        elif get_origin(around) in (tuple, list):
            value = get_args(around)[0]
            found = Declared(value, _field_of(value))
        elif field := _fields(around).get(str(key)):
            found = Declared(field.annotation, field)
        else:
            return Declared(None)
    return found


def _field_of(annotation: Any) -> FieldInfo | None:
    """What a type with annotations says about itself."""
    return next((found for found in getattr(annotation, "__metadata__", ()) if isinstance(found, FieldInfo)), None)


@cache
def _forms() -> dict[str, str]:
    """Pattern of a value type -> what fulfils it, in words."""
    fields = filter(None, map(_field_of, vars(quantities).values()))
    patterns = (
        (constraint.pattern, field) for field in fields for constraint in field.metadata if hasattr(constraint, "pattern")
    )
    return {pattern: field.description for pattern, field in patterns if field.description}


def _bare(annotation: Any) -> Any:
    """A type without annotations and without None."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return _bare(next(part for part in get_args(annotation) if part is not type(None)))
    return annotation
