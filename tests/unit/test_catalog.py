"""The catalogue's files: each one valid, and a bad one named with its line."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from packaging.version import Version

import catalog
from catalog import CatalogError
from catalog.lines import lines
from catalog.types import EngineCatalog, ModelArchitecture, NpuFamily
from models.deployment import Deployment
from rules.additional_config import ONLY_ROLE
from rules.architecture import LONGER_THAN_THE_MODEL
from rules.environment import NUMBERS, SAME_ON_BOTH
from tests import stacks

SHAPES: dict[str, tuple[type[Any], dict[str, str]]] = {
    "npu": (NpuFamily, {}),
    "models": (ModelArchitecture, {}),
    # its key in the stack file is a deployment's name
    "recipes": (Deployment, {"name": "any"}),
}
FILES = [(kind, path) for kind in SHAPES for path in catalog.files(kind).values()]
ENGINE = stacks.ROOT / "catalog" / "engine.yaml"
OTHERS = [stacks.ROOT / "catalog" / name for name in ("settings.yaml", "pod_spec_values.yaml")]


@cache
def recipes() -> list[Deployment]:
    return [catalog.load(path, *SHAPES["recipes"]) for path in catalog.files("recipes").values()]


@pytest.mark.parametrize(("kind", "path"), FILES, ids=[path.stem for _, path in FILES])
def test_every_file_is_of_its_kind(kind: str, path: Path) -> None:
    shape, beside = SHAPES[kind]
    assert catalog.load(path, shape, beside)


def test_a_familys_and_a_models_name_is_that_of_its_file() -> None:
    assert {name.lower() for name in catalog.npu_families()} == set(catalog.files("npu"))
    assert set(catalog.models()) == set(catalog.files("models"))


def test_a_recipes_name_ends_with_its_npu_family() -> None:
    assert {name.rpartition("-")[2] for name in catalog.recipe_names()} <= set(catalog.files("npu"))


@pytest.mark.parametrize("path", [ENGINE, *OTHERS, *(path for _, path in FILES)], ids=lambda path: path.stem)
def test_no_key_stands_twice_in_one_map(path: Path) -> None:
    places = [place for place, _ in lines(yaml.compose(path.read_text(), Loader=yaml.SafeLoader))]
    assert len(places) == len(set(places))


def test_names_of_connectors_models_methods_and_releases_are_those_of_the_catalogue() -> None:
    engine = catalog.engine()
    assert {recipe.kv_transfer.connector for recipe in recipes()} <= set(engine.connectors)
    assert {model.connector for model in catalog.models().values()} - {None} <= set(engine.connectors)
    assert {recipe.model.architecture for recipe in recipes()} <= set(catalog.models())
    drafted = [role.speculative.method for recipe in recipes() for role in (recipe.prefill, recipe.decode) if role.speculative]
    assert set(drafted) <= set(engine.speculative_methods)
    assert {recipe.engine.version.removeprefix("v") for recipe in recipes()} <= set(engine.releases)


def test_releases_stand_in_their_order() -> None:
    releases = catalog.engine().releases
    assert list(releases) == sorted(releases, key=Version)


def test_a_model_with_grouped_heads_says_how_many_there_are() -> None:
    for name, model in catalog.models().items():
        assert (model.key_value_heads is not None) == (model.attention == "GQA"), name
        assert (model.experts is None) == (model.experts_per_token is None), name


def test_settings_that_recipes_and_rules_name_are_known() -> None:
    settings, roles = catalog.settings(), [role for recipe in recipes() for role in (recipe.prefill, recipe.decode)]
    variables = {*NUMBERS, *SAME_ON_BOTH, LONGER_THAN_THE_MODEL, *(name for role in roles for name in role.env)}
    variables |= {name for recipe in recipes() for name in recipe.engine.env}
    assert variables - set(settings.environment) == set()
    given = {key: value for role in roles for key, value in role.additional_config.items()}
    assert given.keys() | ONLY_ROLE.keys() <= settings.additional_config.keys()
    for key, value in given.items():
        assert not isinstance(value, dict) or value.keys() <= set(settings.additional_config[key]), key


def test_every_value_of_a_pod_spec_is_laid_over_a_field_that_is_there() -> None:
    places = [place for place, _ in catalog.fields(catalog.pod_spec_schema())]
    for pattern in catalog.pod_spec_values():
        assert any(fnmatchcase(place, pattern) for place in places), pattern
    Draft202012Validator.check_schema(catalog.valid_pod_spec_schema())


def test_no_recipe_is_longer_than_its_model() -> None:
    for recipe in recipes():
        longest = catalog.models()[str(recipe.model.architecture)].max_model_len
        assert longest is None or recipe.model.max_model_len <= longest, recipe.model.served


GOOD = """\
# a model
name: small
attention: GQA
attentionHeads: 8
keyValueHeads: 2
hiddenSize: 64
weights: {bf16: 1Gi}
"""


def refused(write: Callable[[str], Path], text: str, shape: type[Any] = ModelArchitecture) -> list[str]:
    path = write(text)
    with pytest.raises(CatalogError) as raised:
        catalog.load(path, shape)
    return str(raised.value).replace(f"{path}:", "").splitlines()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    path = tmp_path / "small.yaml"

    def written(text: str) -> Path:
        path.write_text(text)
        return path

    return written


def test_a_good_file_is_read(write: Callable[[str], Path]) -> None:
    assert catalog.load(write(GOOD), ModelArchitecture).key_value_heads == 2


def test_every_mistake_of_a_bad_file_is_named_with_its_line(write: Callable[[str], Path]) -> None:
    bad = GOOD.replace("attentionHeads: 8", "attentionHeads: eight").replace("hiddenSize", "hidenSize").replace("1Gi", "1 GB")
    found = refused(write, bad)
    assert [mistake.partition(":")[0] for mistake in found] == [
        "1 hiddenSize",
        "4 attentionHeads",
        "6 hidenSize",
        "7 weights.bf16",
    ]


def test_a_key_has_its_camel_case_spelling_only(write: Callable[[str], Path]) -> None:
    assert refused(write, GOOD.replace("hiddenSize", "hidden_size"))[-1].startswith("6 hidden_size:")


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (GOOD + "more: [1, 2\n", "9 not YAML"),
        (GOOD + "\tmore: 1\n", "8 not YAML"),
        ("", "1 not a map"),
        ("- name: small\n", "1 not a map"),
        ("name: \x07\n", "1 not YAML"),
    ],
)
def test_what_is_no_yaml_or_no_map_is_refused_with_its_line(write: Callable[[str], Path], text: str, mistake: str) -> None:
    (found,) = refused(write, text)
    assert found.startswith(mistake)
    with pytest.raises(CatalogError):
        catalog.read(write(text))


def test_a_bad_recipe_is_named_with_its_line(write: Callable[[str], Path]) -> None:
    good = catalog.files("recipes")[stacks.RECIPE].read_text()
    line = next(number for number, text in enumerate(good.splitlines(), 1) if text.startswith("ratio:"))
    with pytest.raises(CatalogError, match=rf"small\.yaml:{line} ratio: .*not a ratio"):
        catalog.load(write(good.replace("ratio: 1P1D", "ratio: one")), Deployment, {"name": "any"})


def test_a_file_of_the_catalogue_is_shown_by_its_path_in_the_project() -> None:
    with pytest.raises(CatalogError, match=r"^catalog/engine\.yaml:\d+ "):
        catalog.load(ENGINE, NpuFamily)


def test_an_unknown_recipe_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        catalog.recipe("no-such")


def test_the_engine_catalogue_is_read_once() -> None:
    assert isinstance(catalog.engine(), EngineCatalog)
    assert catalog.engine() is catalog.engine()
