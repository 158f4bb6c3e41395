"""JSON Schema of the stack file, for editors: `make docs` writes what this module prints."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import catalog
from models.deployment import RATIO
from models.stack import Stack
from rules.finding import PROJECT


def stack_file_schema() -> dict[str, Any]:
    """Schema of a whole ``Pulumi.<stack>.yaml``, with the catalogue's names where they may stand.

    Looser than the models in one way: nothing in a deployment is required, because a recipe may bring it.
    """
    schema = Stack.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    for name in _reachable(definitions, "Deployment"):
        definitions[name].pop("required", None)
    del definitions["Deployment"]["properties"]["name"]  # its key in the map
    definitions["Ratio"] = {
        "description": definitions["Ratio"]["description"],
        "anyOf": [{"type": "string", "pattern": f"^{RATIO.pattern}$"}, {**definitions["Ratio"], "description": "both numbers"}],
    }
    _name_the_catalogue(definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Pulumi stack file of {PROJECT}",
        "type": "object",
        "properties": {
            "config": {
                "type": "object",
                "properties": {f"{PROJECT}:{key}": value for key, value in schema["properties"].items()},
                "required": [f"{PROJECT}:{key}" for key in schema["required"]],
                # an unknown key of the project's own; other projects' settings are theirs
                "patternProperties": {f"^{PROJECT}:(?!({'|'.join(schema['properties'])})$)": False},
            }
        },
        "$defs": definitions,
    }


def _name_the_catalogue(definitions: dict[str, Any]) -> None:
    """Have editors complete names of the catalogue; which of them fit together is for the rules."""
    families = catalog.npu_families().values()
    connectors = catalog.engine().connectors
    names: dict[tuple[str, str], Iterable[str]] = {
        ("Deployment", "recipe"): catalog.recipe_names(),
        ("Npu", "family"): catalog.npu_families(),
        ("Npu", "devicePlugin"): {plugin for family in families for plugin in family.device_plugins},
        ("Npu", "chip"): {chip for family in families for chip in family.chips},
        ("Model", "architecture"): catalog.models(),
        ("KVTransfer", "connector"): (name for name, connector in connectors.items() if connector.unusable is None),
        ("Speculative", "method"): catalog.engine().speculative_methods,
    }
    for (definition, key), known in names.items():
        declared = definitions[definition]["properties"][key]
        for text in declared.get("anyOf", [declared]):
            if text.get("type") == "string":
                text["enum"] = sorted(known)


def _reachable(definitions: dict[str, Any], name: str) -> set[str]:
    """``name`` and all definitions that it refers to."""
    found: set[str] = set()
    todo = [name]
    while todo:
        current = todo.pop()
        if current not in found:
            found.add(current)
            text = json.dumps(definitions[current])
            todo += [other for other in definitions if f'"#/$defs/{other}"' in text]
    return found


if __name__ == "__main__":
    print(json.dumps(stack_file_schema(), indent=2))
