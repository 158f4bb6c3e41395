"""A deployment as a Python program declares it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import catalog
from models.deployment import Deployment
from rules import shape
from rules.finding import one_of

if TYPE_CHECKING:  # many types, for type checkers only
    from models.overrides import DeploymentOverrides


def deployment(name: str, *, recipe: str | None = None, **overrides: Unpack[DeploymentOverrides]) -> Deployment:
    """A deployment from a recipe of the catalogue, with ``overrides`` laid over it key by key, as in the stack file.

    Keys are in Python's spelling, and editors and type checkers know them all:
    ``deployment("mine", recipe="deepseek-v2-lite-a3", decode={"batching": {"max_num_seqs": 32}})``.

    Raises:
        ValueError: there is no such recipe, or a value does not fit (then it is a pydantic.ValidationError). The rules are
            checked where the deployment is used, or by :func:`rules.check`.
    """
    if recipe is not None and recipe not in catalog.recipe_names():
        raise ValueError(f"no recipe {recipe!r}; take one of {one_of(catalog.recipe_names(), recipe)}")
    if shared := shape.shared(overrides):
        raise ValueError(f"both versions have the same {shared[0]}; leave it out of the candidate, or declare two deployments")
    below = Deployment.model_validate({**catalog.recipe(recipe), "name": name}, by_name=False) if recipe else None
    declared = shape.overlay(below.model_dump(exclude_unset=True) if below else {}, overrides)
    whole = shape.with_candidate({**declared, "name": name, "recipe": recipe})
    return Deployment.model_validate(whole, by_alias=False, by_name=True)
