"""Stack file in, checked models or findings out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import catalog
from rules import CHECKS, RULES, Finding, Source, StackError, example, read
from rules.finding import dotted
from rules.page import pages, publish, published
from tests import stacks

HEAVY = {"parallelism": {"tp": 16}, "batching": {"maxNumBatchedTokens": 8192}}


def findings(config: dict[str, Any]) -> list[tuple[str, str]]:
    """(code, path) of everything that is wrong, warnings included."""
    warnings: list[Finding] = []
    try:
        read(config, warn=warnings.append)
    except StackError as error:
        return [(finding.code, dotted(finding.path)) for finding in error.findings]
    assert {warning.severity for warning in warnings} <= {"warning"}
    return [(finding.code, dotted(finding.path)) for finding in warnings]


def in_deployment(path: str) -> str:
    return f"kthena-pd:deployments.deepseekv4-pd{path}"


@pytest.mark.parametrize("name", ["dev", "deepseek-v2-lite"])
def test_the_example_stacks_have_no_findings(name: str) -> None:
    assert findings(stacks.stack_file(name)) == []


@pytest.mark.parametrize("recipe", catalog.recipe_names())
def test_a_recipe_alone_is_a_whole_deployment(recipe: str) -> None:
    families = {name.lower(): name for name in catalog.npu_families()}
    npu = {"family": families[recipe.rpartition("-")[2]], "devicePlugin": "mindcluster"}
    assert findings(stacks.config(recipe=recipe, cluster={"npu": npu})) == []


def test_what_only_the_recipe_accepts_is_no_finding_where_it_does_not_occur() -> None:
    mended = stacks.config(recipe="deepseek-v2-lite-a3", decode={"graph": "FULL_DECODE_ONLY"})
    assert [code for code, _ in findings(mended) if code == "PD003"] == []


@pytest.mark.parametrize(
    ("written", "prefill", "decode"),
    [("1P1D", 1, 1), ("2P1D", 2, 1), ("1P2D", 1, 2), ("10P3D", 10, 3), ({"prefill": 2, "decode": 1}, 2, 1)],
)
def test_a_ratio_is_read_in_both_ways_of_writing_it(written: Any, prefill: int, decode: int) -> None:
    config = stacks.config(ratio=written, cluster={"npu": {"family": "A3", "devicePlugin": "cce"}})
    ratio = read(config).deployments["deepseekv4-pd"].ratio
    assert (ratio.prefill, ratio.decode) == (prefill, decode)
    assert str(ratio) == f"{prefill}P{decode}D"


@pytest.mark.parametrize("written", ["0P1D", "1P0D", "P1D", "1P", "1P-1D", "1p1d", "1P1D ", "", "01P1D", "1.5P1D"])
def test_what_is_no_ratio_is_refused_with_an_example(written: str) -> None:
    with pytest.raises(StackError, match="for example 2P1D") as raised:
        read(stacks.config(ratio=written))
    assert [dotted(finding.path) for finding in raised.value.findings] == [in_deployment(".ratio")]


@pytest.mark.parametrize(
    ("edit", "path"),
    [
        ({"ratio": 3}, ".ratio"),
        ({"ratio": {"prefill": 0, "decode": 1}}, ".ratio.prefill"),
        ({"ratio": {"prefill": 1}}, ".ratio.decode"),
        ({"groups": 0}, ".groups"),
        ({"groups": "two"}, ".groups"),
        ({"prefill": {"parallelism": None}}, ".prefill.parallelism"),
        ({"prefill": {"parallelism": {"tp": 0}}}, ".prefill.parallelism.tp"),
        ({"decode": 5}, ".decode"),
        ({"prefill": {"env": {"A": 1}}}, ".prefill.env.A"),
        ({"traffic": {"timeout": "xyz"}}, ".traffic.timeout"),
        ({"port": 70000}, ".port"),
        ({"model": {"weights": {}}}, ".model.weights"),
        ({"model": {"weights": {"hostPath": "/a", "claim": {"name": "b", "path": "/b"}}}}, ".model.weights"),
        ({"model": {"weights": {"hostPath": "/m/"}}}, ".model.weights.hostPath"),
        ({"engine": {"version": "latest"}}, ".engine.version"),
        ({"engine": {"version": "v0.13.0-openeuler"}}, ".engine.version"),
        ({"readiness": {"loadTimeout": "0s"}}, ".readiness.loadTimeout"),
        ({"prefill": {"env": {"A B=": "1"}}}, '.prefill.env["A B="]'),
        ({"deployments": 1}, ".deployments"),
        ({"sharedMemory": "64Gb"}, ".sharedMemory"),
        ({"name": "x"}, ".name"),
        ({"recipe": "no-such"}, ".recipe"),
        ({"prefill": {"extraArgs": ["--ok", 3]}}, ".prefill.extraArgs[1]"),
    ],
)
def test_a_value_of_the_wrong_shape_is_named_by_its_path_in_the_users_file(edit: dict[str, Any], path: str) -> None:
    assert [found for _, found in findings(stacks.config(**edit))] == [in_deployment(path)]


@pytest.mark.parametrize(
    ("edit", "path", "remedy"),
    [
        ({"ratoi": "1P1D"}, ".ratoi", "did you mean ratio?"),
        ({"prefill": {"paralelism": {}}}, ".prefill.paralelism", "did you mean parallelism?"),
        ({"decode": {"batching": {"max_num_seqs": 3}}}, ".decode.batching.max_num_seqs", "did you mean maxNumSeqs?"),
        ({"decode": {"extra_args": []}}, ".decode.extra_args", "did you mean extraArgs?"),
        ({"kvTransfer": {"zzz": 1}}, ".kvTransfer.zzz", "known here: connector, loadFailurePolicy, pool, port"),
    ],
)
def test_an_unknown_key_is_refused_with_the_key_that_was_meant(edit: dict[str, Any], path: str, remedy: str) -> None:
    with pytest.raises(StackError) as raised:
        read(stacks.config(**edit))
    assert f"{in_deployment(path)}: unknown key" in str(raised.value)
    assert remedy in str(raised.value)


@pytest.mark.parametrize("path", ["npu.nodeSelector", "monitoring.labels", "monitoring.dashboard"])
@pytest.mark.parametrize("label", [("a b", ""), ("/a", ""), ("a/b/c", ""), ("", ""), ("a" * 64, ""), ("a", "b c"), ("a", "-b")])
def test_a_label_that_kubernetes_does_not_take_is_refused(path: str, label: tuple[str, str]) -> None:
    around, key = path.split(".")
    whole = stacks.CLUSTER.get(around, {}) | {key: dict([label])}
    assert findings(stacks.config(cluster={around: whole})) == [("PD001", dotted(("cluster", around, key, label[0])))]
    whole = stacks.CLUSTER.get(around, {}) | {key: {"node.example/Pool_1.a": "B_1.2-c", "empty": ""}}
    assert findings(stacks.config(cluster={around: whole})) == []


def test_a_role_without_parallelism_is_told_what_to_write_and_which_recipes_there_are() -> None:
    bare = {**catalog.recipe(stacks.RECIPE)}
    bare["prefill"] = {key: value for key, value in bare["prefill"].items() if key != "parallelism"}
    with pytest.raises(StackError) as raised:
        read({"cluster": stacks.CLUSTER, "deployments": {"mine": bare}})
    assert "kthena-pd:deployments.mine.prefill.parallelism: is missing" in str(raised.value)
    assert '"tp": 8' in str(raised.value)
    assert stacks.RECIPE in str(raised.value)


def test_every_mistake_is_shown_at_once() -> None:
    config = stacks.config(ratio="0P1D", groups=0, ratoi=1)
    config["cluster"] = {"npu": {"family": "A3"}, "sheduler": "volcano"}
    config["deployments"]["other"] = 3
    assert len(findings(config)) == 6


def test_a_stack_without_a_cluster_or_with_unknown_keys_is_refused() -> None:
    assert findings({"deployments": {}, "deployment": {}}) == [
        ("PD001", "kthena-pd:cluster"),
        ("PD001", "kthena-pd:deployment"),
    ]


def test_what_the_stack_file_says_goes_over_the_recipe_and_the_rest_stays() -> None:
    deployment = read(stacks.config(decode={"batching": {"maxNumSeqs": 32}})).deployments["deepseekv4-pd"]
    assert deployment.decode.batching.max_num_seqs == 32
    assert deployment.decode.batching.max_num_batched_tokens == 144
    assert deployment.prefill.batching.max_num_seqs == 4


def test_more_of_the_same_choice_goes_over_the_recipe_and_another_one_replaces_it() -> None:
    secret = read(stacks.config(recipe="deepseek-v2-lite-a3", model={"weights": {"download": {"credentials": "hf"}}}))
    download = secret.deployments["deepseekv4-pd"].model.weights.download
    assert download is not None
    assert (download.source, download.credentials) == ("deepseek-ai/DeepSeek-V2-Lite", "hf")
    claim = {"claim": {"name": "cache", "path": "/cache"}}
    elsewhere = read(stacks.config(recipe="deepseek-v2-lite-a3", model={"weights": {"download": {"cache": claim}}}))
    download = elsewhere.deployments["deepseekv4-pd"].model.weights.download
    assert download is not None
    assert (download.source, download.cache.host_path) == ("deepseek-ai/DeepSeek-V2-Lite", None)


def test_downloaded_weights_replace_the_recipes_host_path() -> None:
    weights = {"download": {"source": "org/model", "cache": {"hostPath": "/cache/model"}}}
    deployment = read(stacks.config(model={"weights": weights})).deployments["deepseekv4-pd"]
    assert deployment.model.weights.path == "/cache/model"


def test_everything_with_a_code_has_an_example_but_what_no_stack_alone_can_break() -> None:
    assert {check.code for check in CHECKS} - {"PD000", "PD004", "PD005"} == example.codes()


@pytest.mark.parametrize("code", sorted(example.codes()))
def test_a_stack_that_breaks_one_rule_has_exactly_its_findings_and_the_right_one_none(code: str) -> None:
    shown = example.example(code)
    assert sorted(findings(shown.wrong)) == [(code, path) for path in sorted(shown.at)]
    assert findings(shown.right) == []
    assert shown.at


def test_every_rule_has_a_code_of_its_own_a_reason_and_a_source() -> None:
    assert len({check.code for check in CHECKS}) == len(CHECKS) > len(RULES)
    for rule in CHECKS:
        assert re.fullmatch(r"PD\d{3}", rule.code)
        assert len(rule.why) > 20
        assert rule.source


def test_the_published_pages_of_the_rules_are_those_of_the_code() -> None:
    assert published(stacks.ROOT / "docs") == pages(), "run `make docs`"


def test_publishing_writes_a_page_for_each_code_and_takes_away_those_of_rules_that_are_gone(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "PD998.md").write_text("# PD998: gone\n")
    publish(tmp_path)
    assert published(tmp_path) == pages()
    assert {check.code for check in CHECKS} == {file.stem for file in (tmp_path / "rules").iterdir()}


def test_a_page_shows_what_is_wrong_what_is_said_and_what_is_right_as_it_stands_in_a_stack_file() -> None:
    page = pages()["rules/PD703.md"]
    wrong, right = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    shown = example.declared("PD703")
    assert wrong == {f"kthena-pd:{key}": value for key, value in shown["wrong"].items()}
    assert right == {f"kthena-pd:{key}": value for key, value in shown["right"].items()}
    assert "```text\nPD703 kthena-pd:deployments.deepseekv4-pd.sharedMemory: warning: " in page
    assert "[PD703](rules/PD703.md) | warning |" in pages()["rules.md"]


def test_a_warning_lets_the_stack_through_and_an_error_beside_it_does_not() -> None:
    seen: list[Finding] = []
    read(stacks.config(sharedMemory="1Gi"), warn=seen.append)
    assert [finding.code for finding in seen] == ["PD703"]
    with pytest.raises(StackError) as raised:
        read(stacks.config(sharedMemory="1Gi", port=9000))
    assert [finding.code for finding in raised.value.findings] == ["PD601", "PD703"]
    assert str(raised.value).startswith("1 mistake in")
    assert "PD703 kthena-pd:deployments.deepseekv4-pd.sharedMemory: warning: 1Gi for 16 ranks" in str(raised.value)


def test_a_warning_is_accepted_with_a_reason_and_no_longer_shown() -> None:
    assert findings(stacks.config(sharedMemory="1Gi", accept={"PD703": "measured: 200 MiB are in use"})) == []


@pytest.mark.parametrize(
    ("accept", "said"),
    [
        ({"PD703": ""}, ("PD001", ".accept.PD703")),
        ({"PD703": "because"}, ("PD003", ".accept.PD703")),  # it does not occur
        ({"PD601": "because"}, ("PD003", ".accept.PD601")),  # an error
        ({"PD999": "because"}, ("PD003", ".accept.PD999")),  # no such rule
    ],
)
def test_what_can_not_be_accepted_or_does_not_occur_is_said(accept: dict[str, str], said: tuple[str, str]) -> None:
    assert findings(stacks.config(accept=accept)) == [(said[0], in_deployment(said[1]))]


@pytest.mark.parametrize(
    ("edit", "fits"),
    [
        ({"ratio": "2P2D"}, True),
        ({"ratio": "3P2D"}, False),
        ({"groups": 2}, True),
        ({"groups": 3}, False),
        # half a server a pod: two share one
        ({"ratio": "4P4D", "prefill": {"parallelism": {"dp": 1}}, "decode": {"parallelism": {"dp": 4}}}, True),
        ({"ratio": "5P4D", "prefill": {"parallelism": {"dp": 1}}, "decode": {"parallelism": {"dp": 4}}}, False),
        # the host's network: they would share its ports
        (
            {
                "ratio": "4P4D",
                "prefill": {"parallelism": {"dp": 1}},
                "decode": {"parallelism": {"dp": 4}},
                "hostNetwork": True,
            },
            False,
        ),
        # 12 of 16 dies: 4 are left on each server, and no 8 of them on one
        ({"ratio": "4P1D", "prefill": {"parallelism": {"dp": 3, "tp": 4}}, "decode": {"parallelism": {"dp": 4}}}, False),
        ({"ratio": "4P4D", "prefill": {"parallelism": {"dp": 3, "tp": 4}}, "decode": {"parallelism": {"dp": 2}}}, True),
    ],
)
def test_pods_must_fit_whole_onto_servers(edit: dict[str, Any], *, fits: bool) -> None:
    assert ("PD102" not in {code for code, _ in findings(stacks.config(**{"hostNetwork": False, **edit}))}) is fits


@pytest.mark.parametrize(
    "argument",
    [
        "--tensor-parallel-size",
        "--tensor_parallel_size=4",
        "-tp",
        "-tp=4",
        "--no-async-scheduling",
        "--no-enforce-eager",
        "--enforce-eager",
        "--speculative-config.num_speculative_tokens=3",
        "--kv-transfer-config.kv_role=kv_both",
        "-O3",
        "--headless",
        "--enable-prefix-caching",
        "--pipeline-parallel-size=2",
    ],
)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_derived_flag_is_refused_in_every_way_of_writing_it(role: str, argument: str) -> None:
    assert findings(stacks.config(**{role: {"extraArgs": ["--uvicorn-log-level=warning", argument]}})) == [
        ("PD301", in_deployment(f".{role}.extraArgs[1]"))
    ]


def test_a_stack_file_without_deployments_is_not_taken_for_an_empty_one() -> None:
    misspelt = {"cluster": stacks.CLUSTER}
    assert findings(misspelt) == [("PD001", "kthena-pd:deployments")]
    assert findings({**misspelt, "deployments": {}}) == []


def test_settings_of_other_projects_in_the_stack_file_are_theirs() -> None:
    source = Source("x", "config:\n  kubernetes:context: x\n  kthena-pd:cluster: {a: 1}\n")
    assert source.config == {"cluster": {"a": 1}}


@pytest.mark.parametrize(("prefill", "decode", "works"), [(8, 8, True), (8, 2, True), (8, 3, False), (2, 4, False), (6, 3, True)])
def test_prefill_tp_is_a_multiple_of_decode_tp(prefill: int, decode: int, *, works: bool) -> None:
    edit = {"prefill": {"parallelism": {"dp": 1, "tp": prefill}}, "decode": {"parallelism": {"dp": 1, "tp": decode}}}
    assert ("PD501" not in {code for code, _ in findings(stacks.config(**edit))}) is works


def dense(**parallelism: Any) -> dict[str, Any]:
    """Both roles of a dense model with 64 heads and 8 key-value heads."""
    role = {"parallelism": {"dp": 1, "expertParallel": False, **parallelism}}
    return stacks.config(model={"architecture": "qwen3-32b"}, prefill=role, decode=role)


@pytest.mark.parametrize(("tp", "works"), [(1, True), (2, True), (8, True), (16, True), (3, False), (12, False)])
def test_grouped_heads_are_split_or_copied_evenly(tp: int, *, works: bool) -> None:
    assert ("PD512" not in {code for code, _ in findings(dense(tp=tp))}) is works


def test_deployments_share_the_servers() -> None:
    config = stacks.config(ratio="2P1D")
    config["deployments"]["other"] = {"recipe": stacks.RECIPE, "model": {"served": "other"}}
    assert findings(config) == [("PD102", "kthena-pd:deployments.other.ratio")]


def test_without_a_declared_number_of_servers_capacity_is_not_guessed() -> None:
    assert findings(stacks.config(ratio="30P20D", cluster={"npu": {"family": "A3", "devicePlugin": "cce"}})) == []


@pytest.mark.parametrize(
    ("edit", "path"),
    [
        ({"kvTransfer": {"port": 65530}}, ".kvTransfer.port"),
        ({"dataParallelRpcPort": 7100}, ".dataParallelRpcPort"),
        ({"runtimeSidecar": True, "port": 8100}, ".port"),
        ({"runtimeSidecar": True, "kvTransfer": {"port": 8090}}, ".kvTransfer.port"),
        ({"kvTransfer": {"port": 7090}}, ".kvTransfer.port"),
    ],
)
def test_ports_of_one_pod_that_meet_or_overflow_are_refused(edit: dict[str, Any], path: str) -> None:
    assert findings(stacks.config(**edit)) == [("PD601", in_deployment(path))]


TEXT = """\
config:
  pulumi:tags: {}
  kthena-pd:cluster:
    npu: {family: A3, devicePlugin: cce}
  kthena-pd:deployments:
    mine:
      recipe: deepseek-v4-flash-w8a8-a3
      ratio: 0P1D
      prefill:
        parallelism: {dp: two}
        extraArgs:
          - --fine
          - 3
    other:
      ratio: 1P1D
"""


def places(text: str, config: dict[str, Any]) -> dict[str, tuple[str, int]]:
    with pytest.raises(StackError) as raised:
        read(config, Source("Pulumi.x.yaml", text))
    findings = raised.value.findings
    assert [finding.line for finding in findings] == sorted(finding.line for finding in findings)
    return {dotted(finding.path).removeprefix("kthena-pd:deployments."): (finding.file, finding.line) for finding in findings}


def test_every_mistake_has_the_line_of_the_users_file_that_is_nearest_to_it() -> None:
    config = {key.removeprefix("kthena-pd:"): value for key, value in yaml.safe_load(TEXT)["config"].items() if "kthena" in key}
    found = places(TEXT, config)
    assert found["mine.ratio"] == ("Pulumi.x.yaml", 8)
    assert found["mine.prefill.parallelism.dp"] == ("Pulumi.x.yaml", 10)
    assert found["mine.prefill.extraArgs[1]"] == ("Pulumi.x.yaml", 13)
    assert found["other.prefill"] == ("Pulumi.x.yaml", 14)  # missing: the deployment that lacks it


def test_a_file_that_is_not_what_was_read_gives_no_lines() -> None:
    assert set(places(TEXT, stacks.config(ratio="0P1D")).values()) == {("", 0)}
