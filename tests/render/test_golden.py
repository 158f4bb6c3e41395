"""The example stacks as plain objects, in full: a change of any byte that reaches a cluster shows up in review."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from render import render_control_plane, render_deployment, render_namespace
from rules import read
from tests import chart, stacks

GOLDEN = Path(__file__).parent / "golden"


class _Dumper(yaml.SafeDumper):
    """Scripts as blocks, so that a difference can be read."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


@pytest.mark.parametrize("name", ["dev", "deepseek-v2-lite"])
def test_an_example_stack_renders_what_was_reviewed(name: str, request: pytest.FixtureRequest) -> None:
    stack = read(stacks.stack_file(name))
    objects: list[dict[str, Any]] = [
        *render_control_plane(stack.cluster, chart.objects()),
        *map(render_namespace, stack.cluster.namespaces),
        *(item for deployment in stack.deployments.values() for item in render_deployment(deployment, stack.cluster).objects),
    ]
    rendered = yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=1000)
    golden = GOLDEN / f"{name}.yaml"
    if request.config.getoption("--update-golden"):
        golden.write_text(rendered)
    assert rendered == golden.read_text(), f"review the change, then: pytest tests/render --update-golden ({golden.name})"
