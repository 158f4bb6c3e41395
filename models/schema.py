"""JSON Schema of the stack file, for editors: `make docs` writes what this module prints."""

from __future__ import annotations

import json
from typing import Any

from models.deployment import RATIO
from models.stack import Stack


def stack_file_schema(project: str = "kthena-pd") -> dict[str, Any]:
    """Schema of a whole ``Pulumi.<stack>.yaml``.

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
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Pulumi stack file of kthena-pd",
        "type": "object",
        "properties": {
            "config": {
                "type": "object",
                "properties": {f"{project}:{key}": value for key, value in schema["properties"].items()},
                "required": [f"{project}:{key}" for key in schema["required"]],
                # an unknown key of the project's own; other projects' settings are theirs
                "patternProperties": {f"^{project}:(?!({'|'.join(schema['properties'])})$)": False},
            }
        },
        "$defs": definitions,
    }


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
