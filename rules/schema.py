"""JSON Schemas of the stack file and of the base that stacks share, for editors: `make docs` writes what this module makes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import catalog
from models.deployment import RATIO
from models.stack import Stack
from rules.finding import PROJECT

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, dict[str, Any]]:
    """Name of a published file -> schema."""
    return {"stack-file.schema.json": stack_file_schema(), "base-file.schema.json": base_file_schema()}


def stack_file_schema() -> dict[str, Any]:
    """Schema of a whole ``Pulumi.<stack>.yaml``, with the catalogue's names where they may stand.

    Looser than the models in one way: nothing in cluster and deployments is required, because a base or a recipe may bring it.
    """
    properties, definitions = _declarations()
    known = "|".join(properties)
    of_the_base = {"anyOf": [properties["deployments"]["additionalProperties"], {"type": "null"}]}
    return {
        "$schema": DIALECT,
        "title": f"Pulumi stack file of {PROJECT}",
        "type": "object",
        "properties": {
            "config": {
                "type": "object",
                "properties": {
                    f"{PROJECT}:{key}": value
                    for key, value in (
                        properties | {"deployments": properties["deployments"] | {"additionalProperties": of_the_base}}
                    ).items()
                },
                # an unknown key of the project's own; other projects' settings are theirs
                "patternProperties": {rf"^{PROJECT}:(?!({known})$|(cluster|deployments)\.)": False},
            }
        },
        "$defs": definitions,
    }


def base_file_schema() -> dict[str, Any]:
    """Schema of what stacks share; as loose."""
    properties, definitions = _declarations()
    del properties["base"]
    return {
        "$schema": DIALECT,
        "title": f"What several stacks of {PROJECT} share",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "$defs": definitions,
    }


def _declarations() -> tuple[dict[str, Any], dict[str, Any]]:
    """What stands at the top, and all definitions below it."""
    schema = Stack.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    for definition in definitions.values():
        definition.pop("required", None)
    del definitions["Deployment"]["properties"]["name"]  # its key in the map
    definitions["Ratio"] = {
        "description": definitions["Ratio"]["description"],
        "anyOf": [{"type": "string", "pattern": f"^{RATIO.pattern}$"}, {**definitions["Ratio"], "description": "both numbers"}],
    }
    _name_the_catalogue(definitions)
    return schema["properties"], definitions


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


if __name__ == "__main__":
    for name, schema in schemas().items():
        Path(sys.argv[1], name).write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")
