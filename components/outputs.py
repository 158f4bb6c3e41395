"""Outputs of other resources inside a declaration, which holds plain texts only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pulumi

_PLACEHOLDER = re.compile(r"(pulumi-output-\d+)")
_OUTPUTS: dict[str, pulumi.Input[str]] = {}
"""Of this run of the program: placeholder -> what stands behind it"""


IS_A_KEY = " (a key)"
"""after a place in :func:`placeholders` that no Output can take"""


def placeholder(value: pulumi.Input[str]) -> str:
    """A text to declare where the value is known only during ``up``: ``namespace=placeholder(namespace.metadata.name)``.

    The rules see the text; the objects get the value, and depend on what it comes from. It may be a deployment's namespace, and
    stand in anything that becomes part of a pod or of the ModelServing's annotations: an image, the name of a claim, Secret,
    ConfigMap or queue, a value of the environment. One text for each value: what must be equal is declared by the same one.
    """
    text = f"pulumi-output-{len(_OUTPUTS)}"
    _OUTPUTS[text] = value
    return text


def filled(value: Any) -> Any:
    """``value``, with lists and maps entered, and Outputs in the place of their placeholders."""
    if isinstance(value, dict):
        return {key: filled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item) for item in value]
    if not isinstance(value, str) or not _PLACEHOLDER.search(value):
        return value
    return pulumi.Output.concat(*(_OUTPUTS.get(part, part) for part in _PLACEHOLDER.split(value)))


def placeholders(value: Any, place: str = "") -> Iterator[str]:
    """Places of placeholders in ``value``, for example ``.spec.modelName``; keys of maps are places too."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from placeholders(key, f"{place}.{key}{IS_A_KEY}")
            yield from placeholders(item, f"{place}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from placeholders(item, f"{place}[{index}]")
    elif isinstance(value, str) and _PLACEHOLDER.search(value):
        yield place


def once(known: pulumi.Output[Any], needed: Sequence[pulumi.Resource]) -> pulumi.Input[Sequence[pulumi.Resource]]:
    """What is needed, and not before something is ``known``; in a preview it may never be."""
    return needed if pulumi.runtime.is_dry_run() else known.apply(lambda _: needed)
