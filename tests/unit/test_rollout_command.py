"""`pd rollout`: what it changes in a stack file, what it leaves as it is, and when it changes nothing."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import catalog
from cli import rollout
from cli.__main__ import main
from cli.rollout_text import StackText
from render.deployment import serving_name
from rules import Source, read, read_file
from rules.shape import overlay
from tests import stacks

CLUSTER = {"npu": {"family": "A3", "devicePlugin": "cce"}, "scheduler": "default-scheduler"}
HEAD = f"""\
# ours
config:
  other:key: [ 'a',   "b" ]   # kept
  kthena-pd:cluster: {json.dumps(CLUSTER)}
  kthena-pd:deployments:
"""
BLOCK = (
    HEAD
    + f"""\
    # the one that everybody uses
    chat:
      recipe: {stacks.RECIPE}   # figures are there
      decode:
        # measured in May
        batching: {{maxNumSeqs: 48, maxNumBatchedTokens: 144}}
        env: {{B: "b"}}
      rollout:
        strategy: Canary
        # since Monday
        candidate:
          # a fix that we need
          engine:
            env: {{'A': "1"}}  # off by default
          decode:
            env:
              C: c # new
            batching:
              maxNumSeqs: 32
              maxNumBatchedTokens: 96
        steps: [ 10, 100 ]
        step: 1   # on Tuesday

    other:
      recipe: {stacks.RECIPE}
      route: {{enabled:   false}}
encryptionsalt: v1:abc=
"""
)
FLOW = (
    HEAD
    + f"    chat: {{recipe: {stacks.RECIPE}, decode: {{env: {{B: b}}}}, rollout: {{candidate: {{engine: {{env: {{A: '1'}}}}, "
    + "decode: {env: {C: c}}}, step: 1, strategy: Canary, steps: [10, 100]}}  # short\nencryptionsalt: x\n"
)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edited(text: str, action: str, name: str = "chat", *, now: bool = False, code: int = 0) -> str:
    """The text of a stack file after one edit."""
    file = Path("Pulumi.dev.yaml")
    file.write_bytes(text.encode())
    assert rollout.run(action, name, None, now=now) == code
    assert [path.name for path in Path().iterdir()] == [file.name], "nothing else is left behind"
    return file.read_bytes().decode()


def declared(text: str) -> dict[str, Any]:
    return Source("Pulumi.dev.yaml", text).config


def test_next_changes_one_number() -> None:
    assert edited(BLOCK, "next") == BLOCK.replace("step: 1 ", "step: 2 ")
    assert edited(FLOW, "next") == FLOW.replace("step: 1,", "step: 2,")


def test_the_first_step_is_written_where_there_was_none() -> None:
    without = BLOCK.replace("        step: 1   # on Tuesday\n", "")
    assert edited(without, "next") == BLOCK.replace("step: 1   # on Tuesday", "step: 1")
    assert edited(FLOW.replace("step: 1, ", ""), "next") == FLOW.replace("step: 1, ", "").replace("100]}", "100], step: 1}")


def test_abort_takes_candidate_and_step_out() -> None:
    gone = BLOCK[BLOCK.index("        candidate:") : BLOCK.index("        steps:")]
    assert edited(BLOCK, "abort") == BLOCK.replace(gone, "").replace("        step: 1   # on Tuesday\n", "")
    assert "rollout: {strategy: Canary, steps: [10, 100]}}  # short" in edited(FLOW, "abort")


def test_promote_lays_the_candidate_over_the_deployment_line_by_line() -> None:
    at_the_end = BLOCK.replace("step: 1 ", "step: 2 ")
    promoted = edited(at_the_end, "promote")
    assert (
        promoted[promoted.index("    chat:") : promoted.index("    other:\n")]
        == f"""\
    chat:
      recipe: {stacks.RECIPE}   # figures are there
      decode:
        # measured in May
        batching: {{maxNumSeqs: 32, maxNumBatchedTokens: 96}}
        env: {{B: "b", C: c}}
      # a fix that we need
      engine:
        env: {{'A': "1"}}  # off by default
      rollout:
        strategy: Canary
        # since Monday
        steps: [ 10, 100 ]

"""
    )
    assert promoted.startswith(at_the_end[: at_the_end.index("    chat:")])
    assert promoted.endswith(at_the_end[at_the_end.index("\n    other:") :])


def test_promote_within_braces_stays_within_braces() -> None:
    promoted = edited(FLOW.replace("step: 1", "step: 2"), "promote")
    assert promoted == FLOW.replace("B: b}}, rollout", "B: b, C: c}}, engine: {env: {A: '1'}}, rollout").replace(
        "candidate: {engine: {env: {A: '1'}}, decode: {env: {C: c}}}, step: 1, ", ""
    )


@pytest.mark.parametrize(
    ("own", "candidate"),
    [
        ("engine: {env: {A: a}}", "engine: {env: {A: b}}"),
        ("engine:\n  env: # ours\n    A: a # old", "engine:\n  env:\n    A: b # new"),
        ("engine: {env: {A: a}}", "engine:\n  env:\n    A: |\n      two\n      # lines\n    C: c, [d]"),
        ("engine:\n  env:\n    A: |+\n      a\n\n", "engine:\n  env:\n    A: >-\n      folded\n      text\n    C: 'c'"),
        ("engine:\n  extraArgs:\n  - --a\n  - '1'", "engine:\n    extraArgs:\n      - --b # why\n      - '2'"),
        ("ratio: 1P1D", "ratio:\n  prefill: 2\n  decode: 1\ndecode: {env: {A: a}}"),
        ("ratio: {prefill: 2,\n  decode: 1}", "ratio: 1P1D\ndecode: {env: {A: a}}"),
        ("decode: {speculative: null}", "decode: {speculative: {method: deepseek_mtp, numSpeculativeTokens: 1}}"),
        ("decode:\n  speculative:\n", "decode:\n  speculative:\n    method: deepseek_mtp\n    numSpeculativeTokens: 1"),
        ("prefill: {env: {}}", "prefill: {env: {A: 'a: b'}}"),
        ("model:\n  weights: {hostPath: /m}", "model:\n  weights:\n    claim:\n      name: w\n      path: /w"),
        ("accept: {PD703: 'small'}\nsharedMemory: 1Gi", '{"engine":{"env":{"A":"a"}},groups: 2}'),
        ("engine:\n      env:\n            A: a\n            B: b", "engine:\n  env:\n    B:\n      c\n"),
        ("groups: 1", "groups: 2\ndecode: &d {env: {A: 'a'}}\nprefill: *d"),
    ],
)
def test_whatever_way_it_is_written_the_promoted_deployment_is_the_candidate(own: str, candidate: str) -> None:
    text = (
        HEAD
        + indented(f"chat:\n  recipe: {stacks.RECIPE}\n{indented(own, 2)}\n  rollout:\n    strategy: Canary\n    step: 1", 4)
        + f"\n        candidate:\n{indented(candidate, 10)}\n    z: {{recipe: {stacks.RECIPE}, route: {{enabled: false}}}}\n"
    )
    for changed in (text, text.replace("\n", "\r\n"), text.rstrip("\n")):
        before = read(declared(changed)).deployments
        after = edited(changed, "promote", now=True)
        deployments = read(declared(after)).deployments
        candidate_of = before["chat"].candidate
        assert candidate_of is not None
        assert deployments["chat"].model_copy(update={"rollout": None}) == candidate_of.model_copy(update={"rollout": None})
        assert deployments["chat"].candidate is None
        assert deployments["z"] == before["z"]
        assert ("\r" in changed, changed[-1]) == ("\r" in after, after[-1])
        assert not re.search(r"(?<!\r)\n", after) or "\r" not in changed
        assert after.startswith(changed[: changed.index("    chat:")])


def indented(text: str, by: int) -> str:
    return "\n".join(" " * by + line if line.strip() else line for line in text.split("\n"))


def test_a_part_behind_an_alias_is_written_out_and_the_others_keep_theirs() -> None:
    text = (
        HEAD
        + f"    z: {{recipe: {stacks.RECIPE}, route: {{enabled: false}}, decode: &shared {{env: {{B: b}}}}}}\n"
        + f"    chat:\n      recipe: {stacks.RECIPE}\n      decode: *shared\n      rollout:\n        strategy: Canary\n"
        + "        candidate: {decode: {env: {A: a}}}\n"
    )
    after = edited(text, "promote", now=True)
    assert after == text.replace("decode: *shared", 'decode: {"env": {"B": "b", "A": "a"}}').replace(
        "        candidate: {decode: {env: {A: a}}}\n", ""
    )


@pytest.mark.parametrize("action", ["next", "promote", "abort"])
def test_a_rollout_that_two_deployments_share_is_not_edited(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    shared = "{strategy: Canary, candidate: {decode: {env: {A: a}}}}"
    text = (
        HEAD
        + f"    a: {{recipe: {stacks.RECIPE}, rollout: &r {shared}}}\n"
        + f"    b: &b {{recipe: {stacks.RECIPE}, model: {{served: b}}, rollout: *r}}\n    c: {{<<: *b, model: {{served: c}}}}\n"
    )
    for name in "bc":
        assert edited(text, action, name, now=action == "promote", code=1) == text
    assert capsys.readouterr().err.count("rollout stands behind an alias or <<, where others may have it too; write it out") == 2
    assert edited(text, action, "a", now=action == "promote", code=1) == text
    assert "shares a part of this by an alias" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "action", "said"),
    [
        (BLOCK.replace("step: 1 ", "step: 2 "), "next", "chat has taken all 2 steps; promote or abort it"),
        (BLOCK, "promote", "chat is at step 1 of 2, 10 % of the requests for the candidate; pd rollout next, or --now"),
        (BLOCK.replace("env: {'A'", "evn: {'A'"), "abort", "unknown key"),
        (edit := BLOCK.replace("strategy: Canary", "strategy: BlueGreen"), "next", "a candidate under BlueGreen"),
    ],
)
def test_what_can_not_be_done_says_why_and_leaves_the_file(
    text: str, action: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert edited(text, action, code=1) == text
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("error: ")
    assert said in errors


@pytest.mark.parametrize("action", ["next", "promote", "abort"])
def test_without_a_candidate_there_is_nothing_to_do(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert edited(BLOCK, action, "other", code=1) == BLOCK
    assert capsys.readouterr().err == (
        "error: other has no candidate; declare one: rollout: {strategy: Canary, candidate: {engine: {version: ...}}}\n"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        "config: [",
        BLOCK,
        BLOCK.replace("step: 1", "step: 3"),
        BLOCK.replace("step: 1", "step: 2").replace("enabled:   false", "enabled: true"),
        BLOCK.replace("step: 1", "step: 2").replace("[ 'a'", "[ 'c'"),
        BLOCK.replace("step: 1", "step: 2").replace("v1:abc=", ""),
    ],
)
def test_a_result_that_is_not_what_it_should_be_is_not_written(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StackText, "with_step", lambda *_: wrong)
    assert edited(BLOCK, "next", code=1) == BLOCK


def test_an_alias_of_something_in_the_candidate_keeps_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = BLOCK.replace("C: c #", "C: &c c #").replace("enabled:   false}", "enabled:   false}\n      decode: {env: {D: *c}}")
    assert edited(text, "abort", code=1) == text
    assert "chat shares a part of this by an alias or <<" in capsys.readouterr().err
    promoted = edited(text, "promote", now=True)
    assert "C: &c c}" in promoted
    assert "D: *c" in promoted


def test_a_recipe_that_would_show_through_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = overlay(catalog.recipe("deepseek-v2-lite-a3"), {"model": {"weights": {"download": {"credentials": "token"}}}})
    monkeypatch.setattr(catalog, "recipe", lambda _: recipe)
    text = (
        HEAD
        + "    chat:\n      recipe: deepseek-v2-lite-a3\n      model: {weights: {hostPath: /m}}\n      rollout:\n"
        + "        strategy: Canary\n        candidate: {model: {weights: {download: {source: a/b, cache: {hostPath: /c}}}}}\n"
    )
    assert edited(text, "promote", now=True, code=1) == text
    assert (
        "the recipe of chat, or its base, would show through in model.weights.download.credentials; declare"
        in capsys.readouterr().err
    )
    promoted = edited(text.replace("source: a/b", "source: a/b, credentials: null"), "promote", now=True)
    assert "{download: {source: a/b, credentials: null, cache: {hostPath: /c}}}" in promoted


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("status", "caht", None), "Pulumi.dev.yaml: no deployment caht; did you mean chat?"),
        (("status", "chat", Path("none.yaml")), "none.yaml: No such file or directory"),
        (("status", "chat", Path()), ".: Is a directory"),
    ],
)
def test_what_is_not_there_is_another_exit_code(
    arguments: tuple[str, str, Path | None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("Pulumi.dev.yaml").write_text(BLOCK)
    assert rollout.run(*arguments, now=False) == 2
    assert capsys.readouterr() == ("", f"error: {said}\n")


def test_the_stack_file_is_the_only_one_or_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert rollout.run("status", "chat", None, now=False) == 2
    assert capsys.readouterr().err == "error: no Pulumi.*.yaml in this directory\n"
    for name in ("Pulumi.dev.yaml", "Pulumi.eu.prod.yaml"):
        Path(name).write_text(BLOCK)
    assert rollout.run("next", "chat", None, now=False) == 2
    assert capsys.readouterr().err == "error: several stack files; say which: --stack-file Pulumi.dev.yaml\n"
    assert rollout.run("next", "chat", Path("Pulumi.eu.prod.yaml"), now=False) == 0
    assert capsys.readouterr().out == (
        "chat: step 2 of 2, 100 % of the requests for the candidate\nnow: pulumi up --stack eu.prod\n"
    )
    assert Path("Pulumi.dev.yaml").read_text() == BLOCK


def test_status_says_which_version_gets_what_and_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    assert edited(BLOCK, "status") == BLOCK
    stack = read_file(Path("Pulumi.dev.yaml"))[0]
    chat = stack.deployments["chat"]
    assert chat.candidate is not None
    assert capsys.readouterr().out == (
        "chat: Canary, step 1 of 2, 10 % of the requests for the candidate\n"
        f"   90 %  ModelServing {serving_name(chat, stack.cluster)}, 1 x 1P1D, 32 NPUs\n"
        f"   10 %  ModelServing {serving_name(chat.candidate, stack.cluster)}, 1 x 1P1D, 32 NPUs, the candidate:\n"
        "         decode.batching.maxNumBatchedTokens: 144 -> 96\n"
        "         decode.batching.maxNumSeqs: 48 -> 32\n"
        '         engine.env.A: absent -> "1"\n'
        '         decode.env.C: absent -> "c"\n'
    )
    assert rollout.run("status", "other", None, now=False) == 0
    assert capsys.readouterr().out == "other: ModelServing other; Kthena replaces its pods in place\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["status", "chat"], 0),
        (["next", "chat", "--stack-file", "Pulumi.dev.yaml"], 0),
        (["promote", "chat"], 1),
        (["promote", "chat", "--now"], 0),
        (["abort", "chat", "--now"], 2),
        (["abort"], 2),
        (["undo", "chat"], 2),
        (["--help"], 0),
    ],
)
def test_the_command_line_is_that_of_the_help(
    arguments: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("Pulumi.dev.yaml").write_text(BLOCK)
    monkeypatch.setattr("sys.argv", ["pd", "rollout", *arguments])
    try:
        ended: Any = main()
    except SystemExit as end:  # of argparse
        ended = end.code
    assert ended == code
    output, errors = capsys.readouterr()
    assert bool(output) == (code == 0)
    assert bool(errors) == (code != 0)
    assert (Path("Pulumi.dev.yaml").read_text() == BLOCK) == (code != 0 or arguments[0] in ("status", "--help"))


def test_mode_and_link_of_the_file_and_its_byte_order_mark_stay(directory: Path) -> None:
    (directory / "elsewhere").mkdir()
    real = directory / "elsewhere" / "stack.yaml"
    real.write_bytes(b"\xef\xbb\xbf" + BLOCK.encode())
    real.chmod(0o640)
    link = directory / "Pulumi.dev.yaml"
    link.symlink_to(real)
    assert rollout.run("next", "chat", None, now=False) == 0
    assert link.is_symlink()
    assert real.read_bytes() == b"\xef\xbb\xbf" + BLOCK.replace("step: 1 ", "step: 2 ").encode()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


SCALARS = st.sampled_from(["a", "", "it's: # odd", "- x", "two\nlines\n", "*no", "{b}, [c", "1", "true", " ", "ü\u2028"])
ENVIRONMENTS = st.dictionaries(st.sampled_from(["A", "B", "C", "NO"]), SCALARS, min_size=1, max_size=3)
PARTS = st.fixed_dictionaries(
    {},
    optional={
        "engine": st.fixed_dictionaries(
            {},
            optional={
                "env": ENVIRONMENTS,
                "extraArgs": st.lists(st.sampled_from(["--a-b", "--c-d=e f"]), max_size=2, unique=True),
            },
        ),
        "decode": st.fixed_dictionaries({}, optional={"env": ENVIRONMENTS, "gpuMemoryUtilization": st.sampled_from([0.8, 0.9])}),
        "prefill": st.fixed_dictionaries({}, optional={"env": ENVIRONMENTS}),
        "ratio": st.sampled_from(["2P1D", {"prefill": 1, "decode": 2}]),
        "groups": st.integers(1, 3),
    },
)
STYLES = st.fixed_dictionaries(
    {
        "default_flow_style": st.sampled_from([None, False, True]),
        "indent": st.integers(2, 5),
        "width": st.sampled_from([20, 80, 1000]),
        "default_style": st.sampled_from([None, None, '"', "'"]),
        "sort_keys": st.booleans(),
        "line_break": st.sampled_from(["\n", "\r\n"]),
    }
)
NEIGHBOUR = {"recipe": stacks.RECIPE, "route": {"enabled": False}, "namespace": "there", "engine": {"env": {"A": "two\nlines\n"}}}


@settings(max_examples=15, derandomize=True, database=None, deadline=None, suppress_health_check=[*HealthCheck])
@given(PARTS, PARTS, STYLES, st.sampled_from([{}, {"step": 1}]))
def test_however_a_file_is_written_the_lines_of_the_others_stay(
    own: dict[str, Any], candidate: dict[str, Any], style: dict[str, Any], step: dict[str, int]
) -> None:
    candidate = overlay(candidate, {"prefill": {"env": {"CANDIDATE": "yes"}}})
    chat = {"recipe": stacks.RECIPE, **own, "rollout": {"strategy": "Canary", "candidate": candidate, **step}}
    deployments = {"a": NEIGHBOUR, "chat": chat, "z": NEIGHBOUR}
    content = {
        "config": {"other:first": ["a", {"b": "c"}], "kthena-pd:cluster": CLUSTER, "kthena-pd:deployments": deployments},
        "encryptionsalt": "v1:x=",
    }
    text = yaml.dump(content, Dumper=_WithoutAliases, allow_unicode=True, **style)
    settled = {"strategy": "Canary"}
    after_each: dict[str, dict[str, Any]] = {
        "next": {**chat, "rollout": {**chat["rollout"], "step": 2 if step else 1}},
        "abort": {**chat, "rollout": settled},
        "promote": {**overlay(chat, candidate), "rollout": settled},
    }
    for action, expected in after_each.items():
        after = edited(text, action, now=action == "promote")
        assert declared(after)["deployments"] == deployments | {"chat": expected}
        assert outside(after) == outside(text)


class _WithoutAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's own
        return True


def outside(text: str) -> tuple[str, str]:
    """What stands before and behind the lines of deployment chat."""
    root = yaml.compose(text, Loader=yaml.BaseLoader)
    assert isinstance(root, yaml.MappingNode)
    for name in ("config", "kthena-pd:deployments", "chat"):
        key, found = next((key, value) for key, value in root.value if key.value == name)
        root = found
    return text[: key.start_mark.index], text[found.end_mark.index :]


@pytest.mark.parametrize("file", ["Pulumi.deepseek-v2-lite.yaml", "Pulumi.dev.yaml"])
def test_a_canary_in_a_stack_of_this_repository_comes_and_goes_without_a_trace(file: str) -> None:
    text = (stacks.ROOT / file).read_text()
    for name in declared(text)["deployments"]:
        lines = text.splitlines(keepends=True)
        at = next(index for index, line in enumerate(lines) if line.strip() == f"{name}:")
        tried = "      rollout:\n        candidate: {engine: {env: {A: a}}}\n        strategy: Canary\n"
        canary = "".join([*lines[: at + 1], tried, *lines[at + 1 :]])
        assert edited(canary, "abort", name) == canary.replace("        candidate: {engine: {env: {A: a}}}\n", "")
        assert edited(canary, "next", name) == canary.replace("strategy: Canary\n", "strategy: Canary\n        step: 1\n")
        promoted = edited(canary, "promote", name, now=True)
        assert sorted(promoted.splitlines()) == sorted(
            [*edited(canary, "abort", name).splitlines(), "      engine: {env: {A: a}}"]
        )
