"""Who may import whom: data flows one way, stack file -> models (+ catalog) -> render, rules -> components, cli."""

from __future__ import annotations

import ast
import sys

import pytest

from tests import stacks

MAY_IMPORT = {
    "models": {"pydantic", "pydantic_core"},
    "catalog": {"models", "packaging", "pydantic", "yaml"},
    "render": {"catalog", "models", "yaml"},
    "rules": {"catalog", "models", "render", "jsonschema", "pydantic", "pydantic_core", "re2", "yaml"},
    # the only room that talks to the user's cluster beside Pulumi
    "live": {"kr8s", "httpx", "httpx_ws", "models", "render", "yaml"},
    "impact": {"live", "models", "render", "rules"},
    "convergence": {"live", "models", "render"},
    "preflight": {"catalog", "live", "models", "render", "rules"},
    # text in, text out: manifests are read, nothing is asked of a cluster
    "importer": {"catalog", "jsonschema", "models", "pydantic", "render", "rules", "yaml"},
    # of pulumi only the protocol that its plugins speak, without an engine (cli/chart.py)
    "cli": {
        "catalog",
        "impact",
        "importer",
        "live",
        "models",
        "preflight",
        "render",
        "rules",
        "yaml",
        "google",
        "grpc",
        "pulumi",
    },
    "components": {"convergence", "impact", "live", "models", "preflight", "render", "rules", "pulumi", "yaml"},
    # what a program that composes deployments needs
    "examples": {"components", "models", "rules", "pulumi", "pulumi_kubernetes"},
    # never pulumi: the local cluster drives the command line, as a user does
    "local": {"cli", "models", "rules", "cryptography", "h11", "httpx", "pydantic", "wsproto", "yaml"},
}
STANDARD_LIBRARY_ONLY = "local/engine"
"""starts with every engine, and has to be quick"""


def imported(room: str) -> dict[str, set[str]]:
    """File -> top-level names that it imports, less the standard library's and its own room's."""
    found: dict[str, set[str]] = {}
    for file in sorted((stacks.ROOT / room).rglob("*.py")):
        names: set[str] = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
        top = {name.partition(".")[0] for name in names}
        found[str(file.relative_to(stacks.ROOT))] = top - set(sys.stdlib_module_names) - {room.partition("/")[0]}
    assert found
    return found


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_lies_below_it(room: str) -> None:
    assert {file: names - MAY_IMPORT[room] for file, names in imported(room).items() if names - MAY_IMPORT[room]} == {}


def test_the_stand_in_of_the_engine_needs_the_standard_library_only() -> None:
    assert {file: names for file, names in imported(STANDARD_LIBRARY_ONLY).items() if names} == {}
