"""What a Python programmer declares: recipes with typed overrides."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import JsonValue, ValidationError

import models
from models.base import Declaration
from models.deployment import Deployment, Ratio
from rules import deployment, read
from tests import stacks

OVERRIDES = Path(models.__file__).parent / "overrides.py"
HEADER = '''"""Keys of a deployment as typed dicts, none of them required. Generated from the models:

pytest tests/unit/test_declaration_in_python.py --update-golden
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from pydantic import JsonValue'''


def test_a_recipe_alone_is_what_the_stack_file_makes_of_it() -> None:
    assert deployment("deepseekv4-pd", recipe=stacks.RECIPE) == read(stacks.config()).deployments["deepseekv4-pd"]


def test_overrides_go_over_the_recipe_as_in_the_stack_file() -> None:
    in_python = deployment(
        "deepseekv4-pd",
        recipe=stacks.RECIPE,
        ratio="2P1D",
        decode={"batching": {"max_num_seqs": 32}, "env": {"aB_c": "1"}},
        kv_transfer={"port": 30000},
        model={"weights": {"claim": {"name": "weights", "path": "/weights"}}},
    )
    in_the_file = stacks.config(
        cluster={"npu": {"family": "A3", "devicePlugin": "cce"}},
        ratio="2P1D",
        decode={"batching": {"maxNumSeqs": 32}, "env": {"aB_c": "1"}},
        kvTransfer={"port": 30000},
        model={"weights": {"claim": {"name": "weights", "path": "/weights"}}},
    )
    assert in_python == read(in_the_file).deployments["deepseekv4-pd"]


def test_without_a_recipe_all_that_is_required_must_be_there() -> None:
    with pytest.raises(ValidationError, match="prefill"):
        deployment("mine", ratio="1P1D")


def test_an_unknown_recipe_is_told_the_nearest_name_first() -> None:
    with pytest.raises(ValueError, match="no recipe 'deepseek-v2-lite'; take one of deepseek-v2-lite-a3, "):
        deployment("mine", recipe="deepseek-v2-lite")


def test_the_stack_files_spelling_of_a_key_is_not_pythons() -> None:
    with pytest.raises(ValidationError, match="kvTransfer"):
        deployment("mine", recipe=stacks.RECIPE, kvTransfer={"port": 30000})  # type: ignore[call-arg]


def test_a_type_checker_finds_what_does_not_fit(tmp_path: Path) -> None:
    wrong = (
        'ratoi="1P1D"',
        'decode={"batching": {"max_num_seq": 3}}',
        'decode={"batching": {"max_num_seqs": "3"}}',
        'decode={"graph": "FULL"}',
        "namespace=3",
        "engine={'image': Output.from_input('engine:1')}",
    )
    program = tmp_path / "program.py"
    calls = [f'deployment("mine", recipe="{stacks.RECIPE}", {argument})' for argument in ("groups=2", *wrong)]
    program.write_text("\n".join(["from pulumi import Output", "from rules import deployment", *calls]))
    command = [sys.executable, "-m", "mypy", "--strict", str(program)]
    checked = subprocess.run(command, cwd=stacks.ROOT, capture_output=True, text=True, check=False)
    lines = {int(line) for line in re.findall(r"program\.py:(\d+): error: ", checked.stdout)}
    assert lines == set(range(4, 4 + len(wrong))), checked.stdout


def test_the_typed_dicts_are_those_of_the_models(request: pytest.FixtureRequest) -> None:
    text = "\n\n\n".join([HEADER, *(_typed_dict(model) for model in _models(Deployment))]) + "\n"
    if request.config.getoption("--update-golden"):
        OVERRIDES.write_text(text)
    assert text == OVERRIDES.read_text(), "review the change, then run what the file's first lines say"


def _models(model: type[Declaration], found: dict[str, type[Declaration]] | None = None) -> list[type[Declaration]]:
    """``model`` and all that it consists of, each before what it refers to."""
    found = {} if found is None else found
    assert found.setdefault(model.__name__, model) is model, f"two models are named {model.__name__}"
    model.model_rebuild()  # a deployment has a deployment in it
    for field in model.model_fields.values():
        for inner in _declarations(field.annotation):
            if inner.__name__ not in found:
                _models(inner, found)
    return list(found.values())


def _declarations(annotation: Any) -> Iterator[type[Declaration]]:
    if inspect.isclass(annotation) and issubclass(annotation, Declaration):
        yield annotation
    for part in get_args(annotation):
        yield from _declarations(part)


def _typed_dict(model: type[Declaration]) -> str:
    given_apart = ("name", "recipe") if model is Deployment else ()
    keys = [f"    {name}: {_text(field.annotation)}" for name, field in model.model_fields.items() if name not in given_apart]
    head = f'class {model.__name__}Overrides(TypedDict, total=False):\n    """Of {model.__module__}.{model.__name__}."""'
    return "\n".join([head, *([""] if keys else []), *keys])


def _text(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    containers = {dict: "Mapping", tuple: "Sequence"}
    if origin is Annotated:
        text = _text(parts[0])
    elif origin is Literal:
        text = f"Literal[{', '.join(map(_quoted, parts))}]"
    elif origin in (Union, UnionType):
        text = " | ".join(map(_text, parts))
    elif origin in containers:
        text = f"{containers[origin]}[{', '.join(_text(part) for part in parts if part is not ...)}]"
    elif inspect.isclass(annotation) and issubclass(annotation, Declaration):
        text = f"{annotation.__name__}Overrides{' | str' if annotation is Ratio else ''}"
    else:
        text = {NoneType: "None", JsonValue: "JsonValue", Any: "Any"}.get(annotation) or str(annotation.__name__)
    return text


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
