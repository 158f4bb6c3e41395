"""What several stacks share stands once: a base below the stack files, and what is said where both have a part."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.__main__ import main
from models.stack import Stack
from render import render_deployment
from rules import Finding, Source, StackError, read, read_file, require_context, settings
from rules.finding import dotted
from tests import stacks

BASE = f"""\
cluster:
  npu: {{family: A3, devicePlugin: cce}}
  scheduler: default-scheduler
deployments:
  chat:
    recipe: {stacks.RECIPE}
    groups: 2
    model:
      served: chat
      weights: {{hostPath: /models/chat}}
  search:
    recipe: deepseek-v2-lite-a3
"""
OWN = "config:\n  kthena-pd:base: shared/base.yaml\n"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """The stack file with these lines below its config, and its base."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shared").mkdir()

    def written(own: str = "", base: str = BASE) -> Path:
        Path("shared/base.yaml").write_text(base)
        Path("Pulumi.x.yaml").write_text(OWN + own)
        return Path("Pulumi.x.yaml")

    return written


def stack(file: Path) -> Stack:
    declared, warnings = read_file(file)
    assert warnings == []
    return declared


def found(file: Path) -> list[tuple[str, str, str, int]]:
    """Code, path, file and line of everything that is wrong, warnings included."""
    try:
        findings: Any = read_file(file)[1]
    except StackError as error:
        findings = error.findings
    return [(finding.code, dotted(finding.path), finding.file, finding.line) for finding in findings]


def below(lines: str, *, key: str = "deployments") -> str:
    return f"  kthena-pd:{key}:\n" + "".join(f"    {line}\n" for line in lines.splitlines())


def test_a_stack_may_have_all_from_its_base(write: Write) -> None:
    assert stack(write()) == read(yaml.safe_load(BASE)).model_copy(update={"base": "shared/base.yaml"})


def test_a_base_is_looked_for_beside_the_stack_file_from_wherever_that_is_read(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write().absolute()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert stack(file).deployments.keys() == {"chat", "search"}
    assert stack(Path("../Pulumi.x.yaml")).deployments.keys() == {"chat", "search"}


def test_the_stack_goes_over_its_base_key_by_key_and_both_over_the_recipe(write: Write) -> None:
    own = below("{npu: {nodes: 8}, context: prod}", key="cluster") + below("chat:\n  groups: 3\n  model: {maxModelLen: 4096}")
    declared = stack(write(own))
    assert (declared.cluster.npu.nodes, declared.cluster.npu.family, declared.cluster.context) == (8, "A3", "prod")
    chat = declared.deployments["chat"]
    assert (chat.groups, chat.model.served, chat.model.max_model_len, chat.model.quantization) == (3, "chat", 4096, "ascend")


def test_the_recipe_may_be_the_stacks_and_what_differs_from_it_the_bases(write: Write) -> None:
    declared = stack(write(below("chat: {recipe: qwen3-30b-a3b-a3}")))
    chat = declared.deployments["chat"]
    assert (chat.recipe, chat.groups, chat.model.served, chat.model.architecture) == (
        "qwen3-30b-a3b-a3",
        2,
        "chat",
        "qwen3-30b-a3b",
    )


def test_another_choice_of_weights_replaces_that_of_the_base(write: Write) -> None:
    weights = stack(write(below("chat: {model: {weights: {claim: {name: models, path: /m}}}}"))).deployments["chat"].model.weights
    assert (weights.host_path, weights.path) == (None, "/m")


@pytest.mark.parametrize("name", ["weights", "cache"])
def test_a_deployment_is_laid_over_whatever_it_is_called(write: Write, name: str) -> None:
    declared = stack(write(below(f"{name}: {{groups: 3}}"), BASE.replace("  chat:", f"  {name}:")))
    assert (declared.deployments[name].groups, declared.deployments[name].model.served) == (3, "chat")


def test_null_takes_a_deployment_or_a_setting_of_the_base_out(write: Write) -> None:
    autoscaled = BASE.replace(
        "    groups: 2\n", "    autoscaling: {groups: {min: 1, max: 2, metrics: {'vllm:num_requests_waiting': '8'}}}\n"
    )
    assert stack(write(base=autoscaled)).deployments["chat"].autoscaling
    declared = stack(write(below("search: null\nchat: {autoscaling: null}"), autoscaled))
    assert declared.deployments.keys() == {"chat"}
    assert declared.deployments["chat"].autoscaling is None


def test_null_for_a_deployment_that_the_base_does_not_have_is_no_map(write: Write) -> None:
    assert found(write(below("chta: null"))) == [("PD001", "kthena-pd:deployments.chta", "Pulumi.x.yaml", 4)]


def test_every_mistake_is_said_with_the_file_and_line_where_it_stands(write: Write) -> None:
    base = BASE.replace("groups: 2", "groups: 0").replace("scheduler:", "sheduler:").replace("  search:", "  Search_:")
    own = below("chat: {ratio: 0P1D}") + below("{npu: {nodes: none}}", key="cluster") + "  kthena-pd:clutser: {}\n"
    assert found(write(own, base)) == [
        ("PD001", "kthena-pd:deployments.chat.ratio", "Pulumi.x.yaml", 4),
        ("PD001", "kthena-pd:cluster.npu.nodes", "Pulumi.x.yaml", 6),
        ("PD001", "kthena-pd:clutser", "Pulumi.x.yaml", 7),
        ("PD001", "kthena-pd:cluster.sheduler", "shared/base.yaml", 3),
        ("PD001", "kthena-pd:deployments.chat.groups", "shared/base.yaml", 7),
        ("PD001", "kthena-pd:deployments.Search_", "shared/base.yaml", 11),
    ]


def test_a_rule_names_the_line_of_the_base_for_a_value_that_stands_there(write: Write) -> None:
    assert found(write(below("chat: {groups: 1}"), BASE.replace("    groups: 2\n", "    sharedMemory: 1Gi\n"))) == [
        ("PD703", "kthena-pd:deployments.chat.sharedMemory", "shared/base.yaml", 7)
    ]


def test_what_the_stack_has_replaced_is_not_looked_for_in_the_base(write: Write) -> None:
    rules = "    route: {rules: [{targets: {chat: 1}, match: {uri: {prefix: /v1/}}}]}\n"
    own = below("chat:\n  route: {rules: [{targets: {chat: 200}}]}")
    (finding,) = found(write(own, BASE.replace("    groups: 2\n", rules)))
    assert finding[2:] == ("Pulumi.x.yaml", 5)


def test_what_is_missing_in_both_is_said_at_the_nearest_place(write: Write) -> None:
    base = BASE.replace(", devicePlugin: cce", "")
    assert found(write(base=base)) == [("PD001", "kthena-pd:cluster.npu.devicePlugin", "shared/base.yaml", 2)]
    own = below("{npu: {nodes: 8}}", key="cluster")
    assert found(write(own, base)) == [("PD001", "kthena-pd:cluster.npu.devicePlugin", "Pulumi.x.yaml", 4)]


@pytest.mark.parametrize("written", ["nowhere.yaml", "shared", '"a\\0b"'])
def test_a_base_that_can_not_be_opened_is_one_finding_at_its_name(write: Write, written: str) -> None:
    file = write()
    file.write_text(f"config:\n  kthena-pd:base: {written}\n")
    assert found(file) == [("PD005", "kthena-pd:base", "Pulumi.x.yaml", 2)]


@pytest.mark.parametrize(
    ("base", "line"), [("cluster: [\n", 2), ("- cluster\n", 1), ("cluster: {}\ncluster: {}\n", 2), ("a: &a [*a]\n", 1)]
)
def test_a_base_that_is_no_yaml_is_refused_with_its_line(write: Write, base: str, line: int) -> None:
    ((code, _, file, at),) = found(write(base=base))
    assert (code, file, at) == ("PD000", "shared/base.yaml", line)


@pytest.mark.parametrize(
    ("own", "at"), [("3", "base"), ("[a]", "base"), ("{a: b}", "base"), ('""', "cluster"), ("null", "cluster")]
)
def test_a_base_is_a_path(tmp_path: Path, own: str, at: str) -> None:
    file = tmp_path / "Pulumi.x.yaml"
    file.write_text(f"config:\n  kthena-pd:base: {own}\n")
    assert ("PD001", f"kthena-pd:{at}", str(file)) in [finding[:3] for finding in found(file)]


def test_a_base_has_no_base(write: Write) -> None:
    assert found(write(base=f"{BASE}base: other.yaml\n")) == [("PD005", "kthena-pd:base", "shared/base.yaml", 13)]


def test_an_empty_base_lacks_what_the_stack_does_not_have_either(write: Write) -> None:
    assert [finding[:2] for finding in found(write(base="# nothing yet\n"))] == [
        ("PD001", "kthena-pd:cluster"),
        ("PD001", "kthena-pd:deployments"),
    ]


def test_what_the_base_accepts_may_occur_in_another_stack_only(write: Write) -> None:
    accepting = BASE.replace("    groups: 2\n", "    accept: {PD703: measured}\n")
    assert found(write(base=accepting)) == []
    assert found(write(below("chat: {sharedMemory: 1Gi}"), accepting)) == []
    assert found(write(below("chat: {accept: {PD703: measured}}"), accepting)) == [
        ("PD003", "kthena-pd:deployments.chat.accept.PD703", "Pulumi.x.yaml", 4)
    ]


def test_a_context_that_there_is_not_is_said_where_it_stands(write: Write) -> None:
    source = Source.load(write(base=BASE.replace("cluster:\n", "cluster:\n  context: nowhere\n")))
    with pytest.raises(StackError, match=r"PD004 shared/base\.yaml:2:3") as raised:
        require_context(read(source.config, source), ["here"], source)
    assert len(raised.value.findings) == 1


def test_without_the_stack_file_a_mistake_in_it_is_not_said_to_be_in_the_base(write: Write) -> None:
    config = yaml.safe_load(write(below("chat: {model: {served: 3}, ratio: 0P1D}")).read_text())["config"]
    with pytest.raises(StackError) as raised:
        read({key.removeprefix("kthena-pd:"): value for key, value in config.items()})
    assert {(dotted(finding.path), finding.file) for finding in raised.value.findings} == {
        ("kthena-pd:deployments.chat.model.served", ""),
        ("kthena-pd:deployments.chat.ratio", ""),
    }


@pytest.mark.parametrize("indirect", ["weights: {hostPath: /m/}", "served: ''"])
def test_without_the_stack_file_only_what_is_exactly_in_the_base_has_a_place(write: Write, indirect: str) -> None:
    base = BASE.replace("weights: {hostPath: /models/chat}", indirect)
    base = base.replace("      served: chat\n", "") if indirect.startswith("served") else base
    write(base=base)
    with pytest.raises(StackError) as raised:
        read({"base": "shared/base.yaml"})
    (finding,) = raised.value.findings
    assert (finding.file, finding.line) == ("shared/base.yaml", base[: base.index(indirect)].count("\n") + 1)


def test_keys_with_dots_are_paths_as_the_answers_to_pulumi_new_are(write: Write) -> None:
    own = '  kthena-pd:cluster.npu.nodes: "8"\n  kthena-pd:cluster.protect: "false"\n  kthena-pd:deployments.chat.groups: 3\n'
    declared = stack(write(own))
    assert (declared.cluster.npu.nodes, declared.cluster.protect, declared.deployments["chat"].groups) == (8, False, 3)


@pytest.mark.parametrize(
    ("own", "wrong", "line"),
    [
        ("  kthena-pd:cluster.npu.nodes: many\n", "cluster.npu.nodes", 3),
        ("  kthena-pd:cluster.npu.nods: 8\n", "cluster.npu.nods", 3),
        ("  kthena-pd:clutser.npu.nodes: 8\n", "clutser", 3),
        ("  kthena-pd:deployments.chat: 8\n", "deployments.chat", 3),
    ],
)
def test_a_mistake_in_a_key_with_dots_has_its_line(write: Write, own: str, wrong: str, line: int) -> None:
    assert found(write(own)) == [("PD001", f"kthena-pd:{wrong}", "Pulumi.x.yaml", line)]


@pytest.mark.parametrize("nested", ["{scheduler: volcano}", "{scheduler: {a: b}}", "3"])
def test_what_stands_with_dots_and_by_its_parts_stands_twice(write: Write, nested: str) -> None:
    own = f"  kthena-pd:cluster: {nested}\n  kthena-pd:cluster.scheduler: default-scheduler\n"
    assert ("PD001", 'kthena-pd:["cluster.scheduler"]', "Pulumi.x.yaml", 4) in found(write(own))


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("base", "a.yaml", "a.yaml"),
        ("cluster", '{"npu": {}}', {"npu": {}}),
        ("cluster", "{oops", "{oops"),
        ("cluster", "3", 3),
        ("cluster.npu.nodes", "3", "3"),
        ("cluster.protect", "true", "true"),
        ("deployments.chat", '{"groups": 2}', {"groups": 2}),
        ("base", "9" * 5000, "9" * 5000),
        ("deployments.chat", "", None),
        ("deployments.chat", "null", None),
    ],
)
def test_the_program_takes_what_pulumi_hands_it_for_what_stands_in_the_file(key: str, text: str, value: Any) -> None:
    assert settings({"base": "", "cluster": "null", "deployments": None} | {key: text}) == {key: value}


def test_what_was_set_as_json_is_read_as_the_program_reads_it(write: Write) -> None:
    assert stack(write("  kthena-pd:cluster.namespaces: '[\"llm\"]'\n")).cluster.namespaces == ("llm",)
    deployments = stack(write('  kthena-pd:deployments: \'{"search": null, "chat": {"groups": 3}}\'\n')).deployments
    assert {name: one.groups for name, one in deployments.items()} == {"chat": 3}


# Pulumi 3.274 takes null for an empty text, says so, and writes it into the file at the next `pulumi config set`.
@pytest.mark.parametrize("nothing", ["", "null", "'null'", "''"])
def test_nothing_is_null_at_the_end_of_a_path_and_else_as_if_it_were_absent(write: Write, nothing: str) -> None:
    base = BASE.replace("cluster:\n", "cluster:\n  context: nowhere\n")
    own = "".join(
        f"  kthena-pd:{key}: {nothing}\n" for key in ("cluster", "deployments", "deployments.search", "cluster.context")
    )
    declared = stack(write(own, base))
    assert (set(declared.deployments), declared.cluster.context, declared.cluster.npu.family) == ({"chat"}, None, "A3")


@pytest.mark.parametrize("line", ["cluster.npu.nodes: 8", 'cluster.npu.nodes: "8"', "cluster.protect: false"])
def test_a_key_with_dots_has_its_place_in_the_program_too(write: Write, line: str) -> None:
    file = write(f"  kthena-pd:{line}\n  kthena-pd:cluster.npu.chip: wrong\n")
    key, _, value = line.partition(": ")
    handed_over = {"base": "shared/base.yaml", key: value.strip('"'), "cluster.npu.chip": "wrong"}
    with pytest.raises(StackError) as raised:
        read(settings(handed_over), Source.load(file))
    assert [(finding.file, finding.line) for finding in raised.value.findings] == [("Pulumi.x.yaml", 4)]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["pd", *arguments])
    return main()


@pytest.mark.parametrize("action", ["next", "promote", "abort"])
def test_a_rollout_that_stands_in_the_base_is_not_edited_for_one_of_its_stacks(
    write: Write, action: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    canary = "    rollout: {strategy: Canary, candidate: {model: {maxModelLen: 4096}}}\n"
    file = write(base=BASE.replace("    groups: 2\n", canary))
    before = file.read_text()
    assert run(monkeypatch, "rollout", "status", "chat", "--stack-file", str(file)) == 0
    assert "model.maxModelLen: 65536 -> 4096" in capsys.readouterr().out
    assert run(monkeypatch, "rollout", action, "chat", "--stack-file", str(file)) == 1
    assert "shared/base.yaml, which other stacks share; declare it in Pulumi.x.yaml" in capsys.readouterr().err
    assert file.read_text() == before


def test_a_candidate_of_the_stacks_own_is_promoted_over_its_base(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(below("chat:\n  groups: 3\n  rollout: {strategy: Canary, candidate: {model: {maxModelLen: 4096}}}"))
    assert run(monkeypatch, "rollout", "next", "chat", "--stack-file", str(file)) == 0
    assert run(monkeypatch, "rollout", "promote", "chat", "--now", "--stack-file", str(file)) == 0
    chat = stack(file).deployments["chat"]
    assert (chat.model.max_model_len, chat.model.served, chat.candidate) == (4096, "chat", None)


@pytest.mark.parametrize("action", ["promote", "abort"])
def test_a_candidate_that_the_base_adds_to_can_not_be_settled_in_the_stack(
    write: Write, action: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    canary = "    rollout: {strategy: Canary, candidate: {model: {maxModelLen: 4096}}}\n"
    file = write(below("chat:\n  groups: 3\n  rollout: {candidate: {groups: 4}}"), BASE.replace("    groups: 2\n", canary))
    now = ["--now"] if action == "promote" else []
    assert run(monkeypatch, "rollout", action, "chat", *now, "--stack-file", str(file)) == 1
    assert "shared/base.yaml has a part of the candidate of chat too" in capsys.readouterr().err


EXAMPLES = sorted(stacks.ROOT.glob("Pulumi.*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_a_stack_of_this_repository_has_no_finding_and_renders(file: Path) -> None:
    warnings: list[Finding] = []
    source = Source.load(file)
    declared = read(source.config, source, warn=warnings.append)
    assert warnings == []
    assert declared.deployments
    for deployment in declared.deployments.values():
        assert render_deployment(deployment, declared.cluster).servings


def test_staging_and_prod_serve_the_same_definition() -> None:
    staging, prod = (stack(stacks.ROOT / f"Pulumi.{name}.yaml") for name in ("staging", "prod"))
    assert staging.base == prod.base
    one, other = staging.deployments["deepseek-v4"], prod.deployments["deepseek-v4"]
    assert (one.model, one.prefill, one.decode, one.engine) == (other.model, other.prefill, other.decode, other.engine)


def test_prod_has_what_production_needs() -> None:
    prod = stack(stacks.ROOT / "Pulumi.prod.yaml")
    deployment, control_plane = prod.deployments["deepseek-v4"], prod.cluster.control_plane
    assert prod.cluster.protect
    assert prod.cluster.scheduler == "volcano"
    assert deployment.scheduling.gang_policy
    assert deployment.groups == 2
    assert deployment.autoscaling
    assert deployment.rollout
    assert deployment.rollout.strategy == "BlueGreen"
    assert prod.cluster.network_policy
    assert not deployment.host_network  # where a network policy reaches its pods
    assert prod.cluster.monitoring
    assert (control_plane.router.replicas, control_plane.controller.replicas) == (2, 2)


def test_the_image_of_prod_is_to_be_pinned_and_then_nothing_is_to_be_accepted(tmp_path: Path) -> None:
    text = (stacks.ROOT / "Pulumi.prod.yaml").read_text()
    accept = next(line for line in text.splitlines(keepends=True) if "accept:" in line)
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "base.yaml").write_text((stacks.ROOT / "environments" / "base.yaml").read_text())
    file = tmp_path / "Pulumi.prod.yaml"
    file.write_text(text.replace(accept, ""))
    assert [finding[:2] for finding in found(file)] == [("PD215", "kthena-pd:deployments.deepseek-v4.engine.image")]
    pinned = next(line for line in text.splitlines(keepends=True) if "# engine:" in line)
    file.write_text(text.replace(accept, "").replace(pinned, pinned.replace("# ", "").replace("...", "0" * 64)))
    assert found(file) == []
