"""Whatever a stack file holds, reading it ends in a stack or in findings that say where and what: never in a traceback."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from local import pulumi as local_pulumi
from local.__main__ import main as local_main
from models.stack import Stack
from rules import Finding, Source, StackError, read_file
from rules.finding import dotted, one_of
from rules.source import LARGEST_FILE
from tests import stacks

Check = Callable[[str | bytes], Stack | tuple[Finding, ...]]
DEV = (stacks.ROOT / "Pulumi.dev.yaml").read_text()
HEAD = """\
config:
  kthena-pd:cluster: {npu: {family: A3, devicePlugin: cce}, scheduler: default-scheduler}
  kthena-pd:deployments:
"""


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """The stack in a file with this content, or what is wrong with it."""
    monkeypatch.chdir(tmp_path)

    def checked(content: str | bytes) -> Stack | tuple[Finding, ...]:
        file = Path("Pulumi.x.yaml")
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        try:
            return read_file(file)[0]
        except StackError as error:
            return error.findings

    return checked


def only(checked: Stack | tuple[Finding, ...]) -> Finding:
    assert isinstance(checked, tuple)
    (finding,) = checked
    assert finding.file == "Pulumi.x.yaml"
    return finding


@pytest.mark.parametrize(
    ("content", "place", "problem", "remedy"),
    [
        ("config:\n\ta: 1\n", (2, 1), "not YAML", "no tabs"),
        ("config: {a: 1\nb: 2\n", (2, 2), "begins on line 1", "closing }"),
        ("config:\n  a: [1, 2\n  b: 2\n", (3, 4), "begins on line 2", "closing ]"),
        ("config:\n  a: 'x\n  b: 2\n", (4, 1), "begins on line 2", "closing quote"),
        ("config:\n  a: b: c\n", (2, 7), "mapping values", "quotes around a text with a colon"),
        ("config:\n  a: *weights\n", (2, 6), "undefined alias", "&NAME"),
        ("config:\n  a: @x\n", (2, 6), "cannot start any token", "quotes"),
        ('config:\n  a: "\\d"\n', (2, 7), "escape", "backslash written twice"),
        ("--- \nconfig: {}\n---\nconfig: {}\n", (3, 1), "another document", "one document"),
        ("config: !custom {}\n", (1, 9), "!custom", "leave it out"),
        ("config:\n  ? [a]\n  : b\n", (2, 5), "a key that is no text", "a text"),
        ("config: {a: 1,\n  b: 2,\n  a: 3}\n", (3, 3), '"a" is on line 1 already', "leave one"),
        ("config: &a [*a]\n", (1, 9), "an alias inside what it stands for", "write it out"),
        ("a: &a {<<: *a}\n", (1, 4), "an alias inside what it stands for", "write it out"),
        ("a: {<<: 3}\n", (1, 9), "<< without a map", "<<: *NAME"),
        (f"a: {'[' * 100}{']' * 100}\n", (1, 67), "levels", "fewer levels"),
        (f"a: {'[' * 5000}{']' * 5000}\n", (1, 1003), "nesting depth", ""),
        ("config:\n  a: \x07\n", (2, 6), r"'\x07'", "text"),
        (b"config:\n  a: \xff\n", (2, 6), "0xff is not UTF-8", "UTF-8"),
        (DEV.encode("utf-16"), (1, 1), "is not UTF-8", "UTF-8"),
        (b"\x80\x00\x01", (1, 1), "0x80 is not UTF-8", "UTF-8"),
        ("- config\n", (1, 1), "not a map", "config"),
        ("[]\n", (1, 1), "not a map", "config"),
        ("just a text\n", (1, 1), "not a map", "config"),
        ("a: 1\nconfig: 3\n", (2, 1), "config is not a map", "kthena-pd:cluster"),
        ("x" * (LARGEST_FILE + 1), (1, 1), f"larger than {LARGEST_FILE} bytes", "several smaller"),
        ("config:\n  kthena-pd:deployments: {secure: AAAB}\n", (2, 26), "only Pulumi can read it", "write it plainly"),
        (f"{HEAD}    a: {{model: {{served: {{secure: x}}}}}}\n", (4, 25), "only Pulumi can read it", "write it plainly"),
    ],
)
def test_what_is_no_stack_file_is_refused_with_its_place(
    check: Check, content: str | bytes, place: tuple[int, int], problem: str, remedy: str
) -> None:
    finding = only(check(content))
    assert finding.code == "PD000"
    assert problem in finding.problem
    assert remedy in finding.remedy
    assert (finding.line, finding.column) == place
    assert f"Pulumi.x.yaml:{place[0]}:{place[1]}" in str(finding)


def test_every_key_that_stands_twice_is_named_with_both_lines_and_its_path(check: Check) -> None:
    found = check(f"{HEAD}    mine:\n      ratio: 1P1D\n      groups: 1\n      ratio: 2P1D\n      groups: 2\n")
    assert isinstance(found, tuple)
    assert [(dotted(finding.path), finding.line, finding.problem) for finding in found] == [
        ("kthena-pd:deployments.mine.ratio", 7, '"ratio" is on line 5 already'),
        ("kthena-pd:deployments.mine.groups", 8, '"groups" is on line 6 already'),
    ]


@pytest.mark.parametrize("level", ["[{}]", "{{<<: [{}]}}"])
def test_a_few_lines_of_aliases_that_stand_for_billions_of_values_are_refused_at_once(check: Check, level: str) -> None:
    levels = [f"a{number}: &a{number} {level.format(', '.join([f'*a{number - 1}'] * 10))}" for number in range(1, 12)]
    lines = ["a0: &a0 {x: 1}", *levels]
    assert "aliases" in only(check("\n".join(lines))).problem


@pytest.mark.parametrize(
    "content", ["", "\n", "# nothing yet\n", "config:\n", "config: {}\n", "encryptionsalt: v1:x\n", "null\n"]
)
def test_a_file_without_settings_lacks_both_keys(check: Check, content: str) -> None:
    found = check(content)
    assert isinstance(found, tuple)
    assert [(finding.code, dotted(finding.path), finding.problem) for finding in found] == [
        ("PD001", "kthena-pd:cluster", "is missing"),
        ("PD001", "kthena-pd:deployments", "is missing"),
    ]
    assert all(finding.line for finding in found)


@pytest.mark.parametrize(
    "change", [lambda text: f"\ufeff{text}", lambda text: text.replace("\n", "\r\n"), lambda text: text.rstrip()]
)
def test_a_byte_order_mark_and_windows_line_ends_change_nothing(check: Check, change: Callable[[str], str]) -> None:
    wrong = DEV.replace("groups: 1", "groups: 0")
    assert isinstance(check(change(DEV)), Stack)
    assert only(check(change(wrong))).line == only(check(wrong)).line > 20


def test_anchors_and_merge_keys_work_and_a_mistake_is_shown_where_it_is_written(check: Check) -> None:
    text = f"""\
{HEAD}    first: &first
      recipe: {stacks.RECIPE}
      groups: 1
    second:
      <<: *first
      model: {{served: second}}
      groups: 2
"""
    stack = check(text)
    assert isinstance(stack, Stack)
    assert (stack.deployments["first"].groups, stack.deployments["second"].groups) == (1, 2)
    assert stack.deployments["second"].recipe == stacks.RECIPE
    found = check(text.replace("groups: 1", "ratio: 0P1D"))
    assert isinstance(found, tuple)
    assert [(dotted(finding.path), finding.line) for finding in found] == [
        ("kthena-pd:deployments.first.ratio", 6),
        ("kthena-pd:deployments.second.ratio", 6),
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("1_000", 1000), ("0x1f", 31), ("010", 8), ("0o10", 8), ("-0b11", -3), ("1e3", 1000.0), (".5", 0.5),
        ("08", 8.0), ("true", True), ("FALSE", False), ("~", None), ("", None), ("on", "on"), ("no", "no"), ("tRUE", "tRUE"),
        ("12:30", "12:30"), ("1e999", "1e999"), ("2024-01-01", "2024-01-01"), ("_1", "_1"), ("1.2.3", "1.2.3"),
        ("'1'", "1"), ("!!str 1", "1"), ("!!int '1'", 1), ("9" * 30, 1e30), ("9" * 5000, "9" * 5000),
    ],
)  # fmt: skip
def test_values_are_those_that_pulumi_reads(text: str, value: object) -> None:
    config = Source("x", f"config:\n  kthena-pd:a:\n    b: {text}\n").config
    assert config == {"a": {"b": value}}
    assert type(config["a"]["b"]) is type(value)


def test_keys_are_texts_as_in_what_pulumi_hands_over() -> None:
    config = Source("x", "config: {kthena-pd:a: {1: x, true: y, ~: z}}").config
    assert config == {"a": {"1": "x", "true": "y", "~": "z"}}


@pytest.mark.parametrize("name", ["1", "1.5", "größe", "部署", "Prod", "a b", "'🚀'", '"\\x07"', "''"])
def test_a_deployments_name_that_is_no_label_is_refused_with_what_a_name_is(check: Check, name: str) -> None:
    finding = only(check(f"{HEAD}    {name}: {{recipe: {stacks.RECIPE}}}\n"))
    assert (finding.code, finding.line) == ("PD001", 4)
    assert "is not allowed" in finding.problem
    assert "DNS label" in finding.remedy


@pytest.mark.parametrize(
    ("edit", "problem", "remedy"),
    [
        ("groups: two", '"two" is not a whole number', "a whole number"),
        ("groups: 1.5", "1.5 is not a whole number", "a whole number"),
        ("groups: true", "true is not a number", "a number"),
        ("groups: 0", "0 is not allowed", "at least 1"),
        ("groups: [1]", "[1] is not a whole number", "a whole number"),
        ("port: 8O00", '"8O00" is not a whole number', "engines' API port"),
        ("hostNetwork: maybe", '"maybe" is not true or false', "true or false"),
        ("prefill: {env: {HCCL_BUFFSIZE: 1024}}", "1024 is not a text", 'quotes around it: "1024"'),
        ("prefill: {env: {LAUNCH: true}}", "true is not a text", 'quotes around it: "true"'),
        ("prefill: {extraArgs: --foo}", '"--foo" is not a list', "a list"),
        ("prefill: {gpuMemoryUtilization: 90}", "90 is not allowed", "at most 1"),
        ("prefill: null", "null is not a map", "a map"),
        ("decode: {graph: FULL_DECODE}", '"FULL_DECODE" is not allowed', "one of FULL_DECODE_ONLY"),
        ("recovery: {policy: RoleRestart}", '"RoleRestart" is not allowed', "one of RoleRecreate"),
        ("route: {rules: [{targts: {}}]}", "unknown key", "did you mean targets?"),
        ("accept: {PD703: 1}", "1 is not a text", 'quotes around it: "1"'),
        ("engine: {version: 0.13.0}", '"0.13.0" is not allowed', "for example v0.23.0"),
    ],
)
def test_a_value_of_another_type_is_refused_with_how_to_write_it(check: Check, edit: str, problem: str, remedy: str) -> None:
    found = check(f"{HEAD}    mine:\n      recipe: {stacks.RECIPE}\n      {edit}\n")
    assert isinstance(found, tuple)
    said = [finding for finding in found if problem in finding.problem]
    assert [(finding.code, finding.line) for finding in said] == [("PD001", 6)]
    assert remedy in said[0].remedy


def test_a_key_that_is_none_of_those_that_are_allowed_is_told_which_are(check: Check) -> None:
    score = "{least-requests: 1}"
    router = f"controlPlane: {{router: {{scheduler: {{score: {score}}}}}}}"
    finding = only(check(HEAD.replace("scheduler: default", f"{router}, scheduler: default") + "    {}\n"))
    assert dotted(finding.path).endswith("router.scheduler.score.least-requests")
    assert finding.remedy.startswith("one of least-request, ")


def test_every_mistake_is_found_beside_a_true_that_should_be_a_number(check: Check) -> None:
    found = check(f"{HEAD}    mine:\n      recipe: {stacks.RECIPE}\n      groups: true\n      port: none\n")
    assert isinstance(found, tuple)
    assert [dotted(finding.path) for finding in found] == [
        "kthena-pd:deployments.mine.groups",
        "kthena-pd:deployments.mine.port",
    ]


@pytest.mark.parametrize("given", ["deepseek-v4-flash", "DeepSeek-V4-Flash-W8A8", "deepseek-v4-flash-w8a8"])
def test_an_unknown_recipe_is_told_the_nearest_names_first(check: Check, given: str) -> None:
    finding = only(check(f"{HEAD}    mine: {{recipe: {given}}}\n"))
    assert finding.code == "PD002"
    assert finding.remedy.startswith("one of deepseek-v4-flash-")
    assert "deepseek-v2-lite-a3" in finding.remedy


@pytest.mark.parametrize("recipe", ["1", "[a]", "{a: b}", "true", "../engine", "''"])
def test_what_can_be_no_recipe_is_told_which_there_are(check: Check, recipe: str) -> None:
    finding = only(check(f"{HEAD}    mine: {{recipe: {recipe}}}\n"))
    assert finding.code == "PD002"
    assert stacks.RECIPE in finding.remedy


def test_names_are_listed_nearest_first_and_each_once() -> None:
    assert one_of(["alpha", "beta", "gamma"]) == "alpha, beta, gamma"
    assert one_of(["alpha", "beta", "gamma"], "GAMA") == "gamma, alpha, beta"
    assert one_of(["alpha", "beta"], 5) == "alpha, beta"
    assert one_of([], "x") == "(none)"


def test_what_was_read_from_elsewhere_has_no_places_in_this_file() -> None:
    source = Source("x", DEV)
    assert source.places(source.config)
    assert source.places({**source.config, "cluster": {}}) == {}
    assert Source("x", "a: [").places({}) == {}


WORDS = ["true", "null", "0", "-1", "1e9", "''", "[]", "{}", "x", "'", '"', ":", "- ", "&a ", "*a", "<<: ", "\t", "#", "|",
         "!!int ", "ü", "\x00", "{secure: x}", "999999999999999999999", "0P1D", ".nan", "\n"]  # fmt: skip


def mutated(text: str, chance: random.Random) -> bytes:
    """``text`` with one or two things done to it that people, editors and version control do."""
    for _ in range(chance.randint(1, 2)):
        lines = text.splitlines(keepends=True) or [""]
        at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        line = lines[at]
        begin = chance.randrange(len(line) + 1)
        lines[at] = chance.choice(
            [
                "",
                line * 2,
                lines[other],
                line.replace(":", ""),
                f"  {line}",
                line[1:],
                line[:begin] + line[begin + 1 :],
                line[:begin] + chance.choice(WORDS) + line[begin:],
                f"{line.partition(':')[0]}: {chance.choice(WORDS)}\n",
                f"{line.rstrip()} {chance.choice(WORDS)}\n",
            ]
        )
        text = "".join(lines)
    content = text.encode()
    cut = chance.randrange(len(content) + 1)
    return content[:cut] if chance.random() < 0.05 else content


def whole(name: str) -> str:
    """A stack with every figure of a recipe written out."""
    recipe = yaml.safe_load((stacks.ROOT / "catalog" / "recipes" / f"{name}.yaml").read_text())
    content: dict[str, Any] = {"config": {"kthena-pd:cluster": stacks.CLUSTER, "kthena-pd:deployments": {"mine": recipe}}}
    return yaml.safe_dump(json.loads(json.dumps(content)), sort_keys=False)


def test_a_damaged_stack_file_gives_a_stack_or_findings_with_places(check: Check) -> None:
    chance = random.Random(20261130)  # noqa: S311 - the same damages each time
    texts = [DEV, whole(stacks.RECIPE)]
    stacks_read = refused = unreadable = 0
    for number in range(600):
        content = mutated(texts[number % 2], chance)
        result = check(content)
        if isinstance(result, Stack):
            stacks_read += 1
            continue
        assert result, content
        assert all(finding.line and finding.column for finding in result), (content, result)
        unreadable += result[0].code == "PD000"
        refused += result[0].code != "PD000"
    assert min(stacks_read, refused, unreadable) > 50


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("config: [\n", "PD000 Pulumi.x.yaml:2:1: not YAML"),
        (DEV.replace("1P1D", "0P1D"), "kthena-pd:deployments.deepseekv4-pd.ratio: '0P1D' is not a ratio"),
    ],
)
def test_the_local_cluster_is_not_touched_for_a_stack_file_with_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("Pulumi.x.yaml").write_text(content)
    monkeypatch.setattr("sys.argv", ["local", "up", "--stack", "x", "--config-file", "Pulumi.x.yaml"])
    monkeypatch.setattr(local_pulumi, "find", lambda *_: pytest.fail("something was built"))
    assert local_main() == 1
    assert said in capsys.readouterr().err
