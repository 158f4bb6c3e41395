"""Rules of capacity, releases, connectors, environment, arguments, ports and times, where one example can't show the edge."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

import pytest

from models.deployment import Deployment
from models.quantities import LAST_PORT
from models.role import Role
from render.arguments import derived_flags
from rules import Finding, StackError, escape_hatch, read
from rules.finding import dotted
from tests import stacks

LITE = "deepseek-v2-lite-a3"
POOL = {"master": "mooncake-master.default:50051"}
SMALL = {"prefill": {"parallelism": {"dp": 1}}, "decode": {"parallelism": {"dp": 4}}}
"""eight dies a pod"""


def findings_of(config: dict[str, Any]) -> list[Finding]:
    findings: list[Finding] = []
    try:
        read(config, warn=findings.append)
    except StackError as error:
        findings = list(error.findings)
    return findings


def paths(config: dict[str, Any], code: str) -> list[str]:
    """Where ``code`` is found, below the deployments."""
    return sorted(
        dotted(finding.path).removeprefix("kthena-pd:deployments.") for finding in findings_of(config) if finding.code == code
    )


def remedy(config: dict[str, Any], code: str) -> str:
    return next(finding.remedy for finding in findings_of(config) if finding.code == code)


def cluster(family: str = "A3", plugin: str = "cce", **npu: Any) -> dict[str, Any]:
    return {"npu": {"family": family, "devicePlugin": plugin, **npu}}


def of(**deployment: Any) -> dict[str, Any]:
    """The first seed's recipe on a cluster of unknown size."""
    return stacks.config(**{"cluster": cluster(), **deployment})


def both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two deployments of different models beside each other."""
    config = of(**one)
    config["deployments"]["other"] = {"recipe": stacks.RECIPE, "model": {"served": "other"}, **other}
    return config


# NPUs


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ({"parallelism": {"dp": 32, "tp": 1}}, "pods: 2"),
        ({"parallelism": {"dp": 6, "tp": 4}}, "pods: 2"),
        ({"parallelism": {"dp": 9, "tp": 2}}, "pods: 3"),
        ({"parallelism": {"dp": 17, "tp": 1}}, "pods: 17"),
        ({"parallelism": {"dp": 1, "tp": 32}}, "make tp x pp at most 16"),
        ({"parallelism": {"dp": 64, "tp": 1}, "pods": 2}, "pods: 4"),
    ],
)
def test_a_pod_that_no_server_holds_is_told_how_many_pods_would_do(role: dict[str, Any], expected: str) -> None:
    config = of(decode=role)
    assert paths(config, "PD102") == ["deepseekv4-pd.decode.parallelism"]
    assert expected in remedy(config, "PD102")


def test_prefill_of_several_pods_is_advised_with_the_release_that_has_it() -> None:
    old = {"version": "v0.12.0rc1"}
    assert "pods: 2 from engine.version v0.13" in remedy(of(prefill={"parallelism": {"dp": 4}}, engine=old), "PD102")
    assert "pods: 2, or" in remedy(of(decode={"parallelism": {"dp": 16}}, engine=old), "PD102")


def test_the_number_of_servers_that_is_asked_for_is_enough_for_everything() -> None:
    declared: dict[str, Any] = {"ratio": "2P1D", "groups": 3, "decode": {"pods": 2}}
    asked = re.search(r"nodes of at least (\d+)", remedy(of(cluster=cluster(nodes=8), **declared), "PD102"))
    assert asked
    assert "PD102" not in {found.code for found in findings_of(of(cluster=cluster(nodes=int(asked[1])), **declared))}


def test_an_instance_over_more_pods_than_it_needs_may_be_told_to_take_fewer() -> None:
    assert remedy(of(cluster=cluster(nodes=2), decode={"pods": 2}), "PD102").startswith("decode.pods: 1, or")


@pytest.mark.parametrize(("nodes", "fits"), [(3, True), (2, False)])
def test_workers_take_servers_too(nodes: int, *, fits: bool) -> None:
    decode = {"parallelism": {"dp": 32, "tp": 1}, "pods": 2}
    assert ("PD102" in {found.code for found in findings_of(of(cluster=cluster(nodes=nodes), decode=decode))}) is not fits


def test_with_the_hosts_network_the_workers_of_a_deployment_do_not_share_a_server() -> None:
    decode = {"parallelism": {"dp": 8, "tp": 2}, "pods": 2}
    assert paths(of(cluster=cluster(nodes=2), decode=decode, hostNetwork=True), "PD102")
    assert not paths(of(cluster=cluster(nodes=2), decode=decode, hostNetwork=False), "PD102")


@pytest.mark.parametrize(
    ("nodes", "ratio", "prefill", "decode", "codes"),
    [
        (2, "2P2D", 6, 6, []),
        (2, "3P2D", 6, 6, ["PD102"]),  # a server holds two of them
        (2, "2P2D", 6, 10, []),
        (2, "3P2D", 2, 12, []),
        (2, "1P2D", 5, 12, ["PD102"]),  # beside twelve there is no room for five
        (2, "4P3D", 5, 3, []),
        (2, "4P4D", 5, 3, ["PD106"]),  # 5 + 5 + 3 + 3 on each would fit, and it begins with 5 + 5 + 5
        (3, "4P4D", 5, 3, []),
    ],
)
def test_that_pods_fit_is_refused_where_they_can_not_and_warned_of_where_nobody_found_how(
    nodes: int, ratio: str, prefill: int, decode: int, codes: list[str]
) -> None:
    split = {"prefill": {"parallelism": {"dp": prefill, "tp": 1}}, "decode": {"parallelism": {"dp": decode, "tp": 1}}}
    config = stacks.config(cluster=cluster(nodes=nodes), recipe=LITE, ratio=ratio, **split)
    found = {finding.code: finding.severity for finding in findings_of(config) if finding.code in ("PD102", "PD106")}
    assert list(found) == codes
    assert found.get("PD106") in (None, "warning")


@pytest.mark.parametrize(
    ("npu", "codes"),
    [
        ({"family": "A9", "plugin": "cce"}, {"PD101", "PD502", "PD601"}),
        ({"family": "A3", "plugin": "acme"}, {"PD101", "PD502", "PD601"}),
        ({"family": "A3", "plugin": "cce", "chip": "910C"}, {"PD104", "PD328", "PD502", "PD601"}),
    ],
)
def test_npus_that_are_not_known_hide_only_what_depends_on_them(npu: dict[str, Any], codes: set[str]) -> None:
    added = {"podTemplate": {"spec": {"containers": [{"name": "exporter"}]}}}
    config = of(cluster=cluster(**npu, nodes=1), decode={"batching": {"maxNumBatchedTokens": 1}, **added}, port=9000)
    assert {finding.code for finding in findings_of(config) if finding.severity == "error"} - {"PD102"} == codes


@pytest.mark.parametrize(
    ("nodes", "scaling", "wrong"),
    [
        (4, {"groups": {"min": 1, "max": 2}}, False),
        (4, {"groups": {"min": 1, "max": 3}}, True),
        (4, {"decode": {"min": 1, "max": 3}}, False),
        (4, {"prefill": {"min": 1, "max": 2}, "decode": {"min": 1, "max": 3}}, True),
        (None, {"groups": {"min": 1, "max": 30}}, False),
        (1, {"groups": {"min": 1, "max": 3}}, False),  # the declared number already is too much: PD102's
    ],
)
def test_an_autoscaler_may_ask_for_no_more_than_there_is(nodes: int | None, scaling: dict[str, Any], *, wrong: bool) -> None:
    metrics = {"metrics": {"vllm:num_requests_waiting": "10"}}
    config = of(cluster=cluster(nodes=nodes), autoscaling={name: {**bounds, **metrics} for name, bounds in scaling.items()})
    assert paths(config, "PD105") == (["deepseekv4-pd.autoscaling"] if wrong else [])


@pytest.mark.parametrize(
    ("npu", "wrong"),
    [
        ({"family": "A2", "plugin": "hami"}, True),
        ({"family": "A2", "plugin": "hami", "chip": "910B3"}, False),
        ({"family": "A2", "plugin": "hami", "chip": "910B9"}, True),
        ({"family": "A2"}, False),
        ({"family": "A3", "chip": "910B3"}, True),
    ],
)
def test_a_chip_is_declared_where_it_decides_and_known(npu: dict[str, Any], *, wrong: bool) -> None:
    found = [finding.code for finding in findings_of(of(cluster=cluster(**npu), **SMALL)) if finding.path[0] == "cluster"]
    assert found == (["PD104"] if wrong else [])


def test_numbers_beyond_all_bounds_are_findings_and_no_traceback() -> None:
    huge = 10**9
    config = of(
        cluster=cluster(nodes=4),
        ratio={"prefill": huge, "decode": huge},
        decode={"parallelism": {"dp": LAST_PORT, "tp": 1}, "pods": LAST_PORT},
        engine={"env": {"ASCEND_BASE_PORT": "9" * 5000, "HCCL_IF_BASE_PORT": "9" * 5000}},
        kvTransfer={"pool": {**POOL, "segmentSize": "9" * 400 + "P"}},
        traffic={"timeout": "9" * 400 + "h"},
    )
    assert {"PD102", "PD306", "PD601"} <= {finding.code for finding in findings_of(config)}


# The release


@pytest.mark.parametrize(
    ("version", "known"),
    [("v0.9.1", True), ("v0.13.0rc3", True), ("v0.25.1rc1", True), ("v0.9.0", False), ("v0.25.1", False), ("v1.0.0", False)],
)
def test_a_release_outside_of_what_was_looked_up_is_a_warning(version: str, *, known: bool) -> None:
    assert paths(of(engine={"version": version}), "PD210") == ([] if known else ["deepseekv4-pd.engine.version"])


@pytest.mark.parametrize(
    ("connector", "version", "wrong"),
    [
        ("MooncakeConnectorV1", "v0.10.0rc1", ["PD201"]),
        ("MooncakeConnectorV1", "v0.10.1rc1", []),
        ("MooncakeHybridConnector", "v0.18.0", ["PD201"]),
        ("MooncakeHybridConnector", "v0.20.2rc1", []),
        ("MooncakeLayerwiseConnector", "v0.13.0", ["PD205"]),
        ("AscendStoreConnector", "v0.13.0", ["PD205"]),
        ("MultiConnector", "v0.13.0", ["PD205"]),
        ("LLMDataDistCMgrConnector", "v0.13.0", ["PD205"]),
        ("Mooncake", "v0.13.0", ["PD205"]),
    ],
)
def test_a_connector_is_one_that_the_release_has_and_the_router_speaks_to(connector: str, version: str, wrong: list[str]) -> None:
    found = findings_of(of(kvTransfer={"connector": connector}, engine={"version": version}))
    assert [finding.code for finding in found if finding.code in ("PD201", "PD205")] == wrong


@pytest.mark.parametrize(("version", "wrong"), [("v0.13.0", False), ("v0.20.2rc1", True), ("v0.25.1rc1", True)])
def test_deepseek_v4_needs_the_hybrid_connector_in_each_release_that_has_it(version: str, *, wrong: bool) -> None:
    config = of(engine={"version": version}, model={"architecture": "deepseek-v4-flash"})
    assert paths(config, "PD206") == (["deepseekv4-pd.kvTransfer.connector"] if wrong else [])


@pytest.mark.parametrize(
    ("image", "version", "wrong"),
    [
        ("quay.io/ascend/vllm-ascend:v0.13.0rc3-a3", "v0.13.0rc3", []),
        ("quay.io/ascend/vllm-ascend:v0.13.0rc3-a3-openeuler", "v0.13.0rc3", []),
        ("quay.io/ascend/vllm-ascend:v0.13.0-a3", "v0.13.0rc3", ["PD211"]),
        ("quay.io/ascend/vllm-ascend:v0.13.0rc3", "v0.13.0rc3", ["PD203"]),
        ("quay.io/ascend/vllm-ascend:main-a3", "v0.13.0rc3", []),
        ("quay.io/ascend/vllm-ascend:v0.13.0rc3-a3@sha256:" + "a" * 64, "v0.13.0", ["PD211"]),
        ("quay.io/ascend/vllm-ascend@sha256:" + "a" * 64, "v0.13.0", []),
        ("registry.example:5000/ascend/vllm-ascend:v0.17.0rc1-a3", "v0.13.0", ["PD211"]),
        ("registry.example:5000/serving/engine:v2.0.0", "v0.13.0", []),
        ("registry.example:5000/serving/engine", "v0.10.1rc1", []),
        ("ghcr.io/volcano-sh/kthena-engine:vllm-ascend_v0.10.1rc1_mooncake_v0.3.5", "v0.10.1rc1", []),
        ("ghcr.io/volcano-sh/kthena-engine:vllm-ascend_v0.10.1rc1_mooncake_v0.3.5", "v0.13.0", ["PD211"]),
        ("quay.io/ascend/vllm-ascend:v0.10.1rc1-a3", "v0.10.1rc1", ["PD212"]),
        (None, "v0.10.1rc1", ["PD212"]),
        (None, "v0.11.0", []),
    ],
)
def test_an_image_is_of_the_declared_release_and_family_and_has_mooncake(
    image: str | None, version: str, wrong: list[str]
) -> None:
    found = findings_of(of(engine={"version": version, "image": image}))
    assert [finding.code for finding in found if finding.code in ("PD203", "PD211", "PD212")] == wrong


@pytest.mark.parametrize(
    ("image", "wrong"),
    [
        ("registry.example:5000/serving/engine", True),
        ("registry.example:5000/serving/engine:v1", False),
        ("registry.example:5000/serving/engine@sha256:" + "a" * 64, False),
        (None, False),
    ],
)
def test_an_image_without_a_tag_or_a_digest_may_be_another_one_on_each_node(image: str | None, *, wrong: bool) -> None:
    assert paths(of(engine={"image": image}), "PD214") == (["deepseekv4-pd.engine.image"] if wrong else [])


@pytest.mark.parametrize(
    ("decode", "at", "meant"),
    [
        ({"env": {"HCCL_BUFFSIZ": "1"}}, "env.HCCL_BUFFSIZ", "HCCL_BUFFSIZE"),
        ({"env": {"hccl_op_expansion_mode": "AIV"}}, "env.hccl_op_expansion_mode", "HCCL_OP_EXPANSION_MODE"),
        ({"env": {"VLLM_USE_V_1": "1"}}, "env.VLLM_USE_V_1", "VLLM_USE_V1"),
        ({"additionalConfig": {"recomputeSchedulerEnable": True}}, "additionalConfig.recomputeSchedulerEnable", "recompute_sch"),
        (
            {"additionalConfig": {"eplb_config": {"dynamic_epbl": True}}},
            "additionalConfig.eplb_config.dynamic_epbl",
            "dynamic_eplb",
        ),
    ],
)
def test_a_name_that_is_nearly_known_is_taken_for_a_slip(decode: dict[str, Any], at: str, meant: str) -> None:
    config = of(decode=decode)
    assert paths(config, "PD315") == [f"deepseekv4-pd.decode.{at}"]
    assert remedy(config, "PD315").startswith(f"did you mean {meant}")


@pytest.mark.parametrize(
    "decode",
    [
        {"env": {"SITE": "a", "MY_BUFFSIZE": "1", "HCCL_NEXT_YEARS_SWITCH": "1", "VLLM_USE_V1": "1"}},
        {"additionalConfig": {"next_years_config": {"enabled": True}, "finegrained_tp_config": {"attention_size": 1}}},
        {"additionalConfig": {"dyntra_lb_config": {"enabeld": True}, "eplb_config": [1]}},
    ],
)
def test_a_name_that_is_close_to_nothing_is_somebodys_own(decode: dict[str, Any]) -> None:
    assert paths(of(decode=decode), "PD315") == []


@pytest.mark.parametrize(
    ("family", "plugin", "suffix", "fits"),
    [
        ("950", "mindcluster", "-a5", True),
        ("950", "mindcluster", "-950dt", True),
        ("950", "mindcluster", "", False),
        ("A2", "cce", "-950dt", False),
        ("A2", "cce", "-a5", False),
        ("A2", "cce", "", True),
    ],
)
def test_every_name_of_a_familys_images_is_known(family: str, plugin: str, suffix: str, *, fits: bool) -> None:
    engine = {"version": "v0.23.0", "image": f"quay.io/ascend/vllm-ascend:v0.23.0{suffix}"}
    found = findings_of(of(cluster={"npu": {"family": family, "devicePlugin": plugin}}, engine=engine))
    assert ("PD203" not in [finding.code for finding in found]) is fits


def test_what_both_roles_are_given_is_found_once_at_its_place() -> None:
    config = of(engine={"env": {"VLLM_USE_V1": "1", "POD_IP": "x"}, "extraArgs": ["--headless"]})
    assert paths(config, "PD202") == ["deepseekv4-pd.engine.env.VLLM_USE_V1"]
    assert paths(config, "PD302") == ["deepseekv4-pd.engine.env.POD_IP"]
    assert paths(config, "PD301") == ["deepseekv4-pd.engine.extraArgs[0]"]


# Environment


@pytest.mark.parametrize("value", ["abc", "", "1e3", "-1", "119", "7201", "1200 ", "12_00", "١٢٠٠", "9" * 5000])
def test_a_time_that_hccl_does_not_take_is_refused(value: str) -> None:
    assert paths(of(prefill={"env": {"HCCL_CONNECT_TIMEOUT": value}}), "PD306") == [
        "deepseekv4-pd.prefill.env.HCCL_CONNECT_TIMEOUT"
    ]


def test_a_roles_own_environment_goes_over_that_of_both() -> None:
    short, long = ({"env": {"HCCL_CONNECT_TIMEOUT": seconds}} for seconds in ("120", "1200"))
    assert not paths(of(engine=short, prefill=long, decode=long), "PD307")
    assert paths(of(engine=short, prefill=long), "PD307") == ["deepseekv4-pd.engine.env.HCCL_CONNECT_TIMEOUT"]
    assert paths(of(engine=long, decode=short), "PD307") == ["deepseekv4-pd.decode.env.HCCL_CONNECT_TIMEOUT"]


@pytest.mark.parametrize(
    ("family", "deployment", "wrong"),
    [
        ("A2", {"recipe": LITE}, True),
        ("A2", {"recipe": LITE, "hostNetwork": True}, False),  # equal ports keep them on servers of their own
        ("A2", {"recipe": LITE, "prefill": {"parallelism": {"tp": 8}}}, False),  # a server is full of one of them
        ("A2", {**SMALL, "kvTransfer": {"pool": POOL}}, True),
        ("A3", {"recipe": LITE}, False),
        ("A3", {"kvTransfer": {"pool": POOL}}, False),
        ("A2", {"recipe": LITE, "engine": {"env": {"HCCL_INTRA_ROCE_ENABLE": "1"}}}, False),
        ("A2", {"recipe": LITE, "engine": {"env": {"HCCL_INTRA_ROCE_ENABLE": "0"}}}, True),
    ],
)
def test_on_a2_a_transfer_inside_a_server_wants_roce(family: str, deployment: dict[str, Any], *, wrong: bool) -> None:
    assert bool(paths(of(cluster=cluster(family), **deployment), "PD308")) is wrong


# Arguments


@pytest.mark.parametrize(
    ("prefill", "decode", "wrong"),
    [
        (["--dtype", "bfloat16"], ["--dtype=bfloat16"], []),
        (["--dtype", "bfloat16"], ["--dtype=float16"], ["decode.extraArgs[0]", "prefill.extraArgs[0]"]),
        (["--kv_cache_dtype=int8"], [], ["prefill.extraArgs[0]"]),
        ([], ["--uvicorn-log-level=warning", "--hf-overrides", '{"a": 1}'], ["decode.extraArgs[1]"]),
        ([], ["--reasoning-parser", "deepseek_v4", "--tool-call-parser=deepseek_v4"], []),
    ],
)
def test_what_decides_the_kv_cache_is_the_same_on_both_roles(prefill: list[str], decode: list[str], wrong: list[str]) -> None:
    found = paths(of(prefill={"extraArgs": prefill}, decode={"extraArgs": decode}), "PD311")
    assert found == [f"deepseekv4-pd.{path}" for path in wrong]


def test_a_roles_argument_over_that_of_both_is_a_difference() -> None:
    config = of(engine={"extraArgs": ["--dtype=bfloat16"]}, decode={"extraArgs": ["--dtype=float16"]})
    assert paths(config, "PD311") == ["deepseekv4-pd.decode.extraArgs[0]"]


@pytest.mark.parametrize(
    ("words", "wrong", "remedy_has"),
    [
        (["--max-log-len", "100"], [], ""),
        (["--api-key", "a", "b", "c"], [], ""),
        (["--disable-log-stats"], [], ""),
        (["--max-log-len", "-1"], [], ""),
        (["--no-such-flag-at-all", "1", "2"], [], ""),  # unknown: PD313's
        (["max-log-len=100"], [0], "--max-log-len, with its dashes"),
        (["--max-log-len", "100", "200"], [2], "leave it out"),
        (["--disable-log-stats", "true"], [1], "leave it out"),
        (["--max-log-len 100"], [0], "two words: [--max-log-len, 100]"),
        (["--max-log-len"], [0], "--max-log-len=VALUE"),
        (["--max-log-len", "--disable-log-stats"], [0], "--max-log-len=VALUE"),
    ],
)
def test_each_word_is_a_flag_or_belongs_to_one(words: list[str], wrong: list[int], remedy_has: str) -> None:
    config = of(engine={"extraArgs": words})
    assert paths(config, "PD312") == [f"deepseekv4-pd.engine.extraArgs[{index}]" for index in wrong]
    if wrong:
        assert remedy_has in remedy(config, "PD312")


def test_an_unknown_flag_is_a_warning_with_the_nearest_one() -> None:
    config = of(decode={"extraArgs": ["--resoning-parser=deepseek_v4"]})
    assert paths(config, "PD313") == ["deepseekv4-pd.decode.extraArgs[0]"]
    assert remedy(config, "PD313") == "did you mean --reasoning-parser?"


@pytest.mark.parametrize("argument", ["--data-parallel-rank=1", "-dpn=1", "--data-parallel-external-lb", "-dph", "-dcp=2"])
def test_ranks_with_api_servers_of_their_own_are_not_for_a_router_that_knows_one_port(argument: str) -> None:
    assert paths(of(engine={"extraArgs": [argument]}), "PD301") == ["deepseekv4-pd.engine.extraArgs[0]"]


@pytest.mark.parametrize(
    ("place", "argument", "expected"),
    [
        ("prefill", "-tp=4", "declare prefill.parallelism.tp and leave it out here"),
        ("engine", "-tp=4", "declare parallelism.tp of prefill and decode and leave it out here"),
        ("decode", "--max_model_len=8192", "declare model.maxModelLen and leave it out here"),
        ("decode", "--headless", "leave it out"),
    ],
)
def test_a_derived_flag_is_told_the_field_that_decides_it(place: str, argument: str, expected: str) -> None:
    assert remedy(of(**{place: {"extraArgs": [argument]}}), "PD301") == expected


@pytest.mark.parametrize(("flag", "field"), escape_hatch.FIELDS.items())
def test_the_field_of_a_derived_flag_is_there(flag: str, field: str) -> None:
    deployment = read(stacks.config()).deployments["deepseekv4-pd"]
    assert flag in derived_flags(deployment, "prefill")
    model: Any = Role if field.startswith(".") else Deployment
    for key in field.strip(".").split("."):
        fields = {found.alias: found.annotation for found in model.model_fields.values()}
        assert key in fields
        model = next((part for part in (fields[key], *get_args(fields[key])) if hasattr(part, "model_fields")), None)


# Ports


@pytest.mark.parametrize(
    ("edit", "code", "wrong"),
    [
        ({"kvTransfer": {"port": 35985}}, "PD603", True),
        ({"kvTransfer": {"port": 36000}}, "PD603", False),
        ({"kvTransfer": {"port": 19984}}, "PD603", False),
        ({"kvTransfer": {"port": 19985}}, "PD603", True),
        ({"kvTransfer": {"port": 30000}, "engine": {"env": {"ASCEND_BASE_PORT": "40000"}}}, "PD603", False),
        ({"kvTransfer": {"port": 45000}, "engine": {"env": {"ASCEND_BASE_PORT": "40000"}}}, "PD603", True),
        ({"kvTransfer": {"port": 45000}, "decode": {"env": {"ASCEND_BASE_PORT": "40000"}}}, "PD603", True),
        ({"cluster": cluster("A2"), "kvTransfer": {"port": 28000}, **SMALL}, "PD603", False),
        ({"cluster": cluster("A2"), "kvTransfer": {"port": 27999}, **SMALL}, "PD603", True),
        # the second of two pods
        ({"kvTransfer": {"port": 19969}, "decode": {"parallelism": {"dp": 16}, "pods": 2}}, "PD603", True),
        ({"kvTransfer": {"port": 19968}, "decode": {"parallelism": {"dp": 16}, "pods": 2}}, "PD603", False),
        ({"port": 25000}, "PD603", True),
        ({"dataParallelRpcPort": 29550}, "PD603", True),
        ({"kvTransfer": {"port": 60031}}, "PD604", True),
        ({"kvTransfer": {"port": 60032}}, "PD604", False),
        ({"kvTransfer": {"port": 60000}, "engine": {"env": {"HCCL_IF_BASE_PORT": "50000"}}}, "PD604", False),
        ({"kvTransfer": {"port": 50031}, "engine": {"env": {"HCCL_IF_BASE_PORT": "50000"}}}, "PD604", True),
        ({"kvTransfer": {"port": 60000}, "engine": {"env": {"HCCL_HOST_SOCKET_PORT_RANGE": "auto"}}}, "PD604", False),
        ({"kvTransfer": {"port": 60000}, "engine": {"env": {"HCCL_HOST_SOCKET_PORT_RANGE": "61000,60010-60011"}}}, "PD604", True),
        ({"kvTransfer": {"port": 60000}, "engine": {"env": {"HCCL_HOST_SOCKET_PORT_RANGE": "61000-61050"}}}, "PD604", False),
    ],
)
def test_ports_keep_out_of_the_ranges_of_mooncake_and_hccl_wherever_these_are(
    edit: dict[str, Any], code: str, *, wrong: bool
) -> None:
    assert bool(paths(of(**edit), code)) is wrong


def test_a_worker_has_the_ports_of_its_own_ranks_only() -> None:
    role = {"parallelism": {"dp": 16, "tp": 2}, "pods": 2}
    edit = {"prefill": {"parallelism": {"dp": 2, "tp": 2}}, "decode": role, "kvTransfer": {"port": 9000}}
    assert not paths(of(port=9020, **edit), "PD601")  # a rank of the worker pod has that number
    assert paths(of(port=9015, **edit), "PD601") == ["deepseekv4-pd.kvTransfer.port"]
    assert paths(of(**{**edit, "kvTransfer": {"port": 65510}}), "PD601") == ["deepseekv4-pd.kvTransfer.port"]


OTHER_PORTS = {"port": 7101, "dataParallelRpcPort": 12322}


@pytest.mark.parametrize(
    ("one", "other", "wrong"),
    [
        (SMALL, {**SMALL, **OTHER_PORTS, "kvTransfer": {"port": 9004}}, ["other.kvTransfer.port"]),
        (SMALL, {**SMALL, **OTHER_PORTS, "kvTransfer": {"port": 9008}}, []),
        (SMALL, {**SMALL, **OTHER_PORTS, "kvTransfer": {"port": 8992}}, []),
        (SMALL, {**SMALL, **OTHER_PORTS, "kvTransfer": {"port": 7096}}, ["other.kvTransfer.port"]),  # the API port of the first
        # one declared port is the same: the scheduler keeps them apart
        (SMALL, {**SMALL, **OTHER_PORTS, "port": 7100, "kvTransfer": {"port": 9004}, "dataParallelRpcPort": 12321}, []),
        # both take a whole server
        ({}, {**OTHER_PORTS, "kvTransfer": {"port": 9004}}, []),
        # with networks of their own they can't meet
        ({**SMALL, "hostNetwork": False}, {**SMALL, **OTHER_PORTS, "kvTransfer": {"port": 9004}}, []),
        # placed by hand
        (
            SMALL,
            {
                "prefill": {**SMALL["prefill"], "podTemplate": {"spec": {"nodeSelector": {"pool": "other"}}}},
                "decode": {**SMALL["decode"], "podTemplate": {"spec": {"nodeSelector": {"pool": "other"}}}},
                **OTHER_PORTS,
                "kvTransfer": {"port": 9004},
            },
            [],
        ),
    ],
)
def test_deployments_that_may_lie_on_one_server_have_ports_of_their_own(
    one: dict[str, Any], other: dict[str, Any], wrong: list[str]
) -> None:
    assert paths(both(one, other), "PD605") == wrong


def test_a_port_that_meets_another_deployments_is_told_where_it_fits() -> None:
    config = both(SMALL, {**SMALL, **OTHER_PORTS, "kvTransfer": {"port": 9004}})
    assert remedy(config, "PD605") == "a port from 9008 on, or up to 8992"
    config["deployments"]["other"]["kvTransfer"] = {"port": 9008}
    assert not paths(config, "PD605")


# Memory and times


def test_shared_memory_goes_by_the_ranks_of_one_pod() -> None:
    def pods(count: int, memory: str) -> dict[str, Any]:
        prefill, decode = {"parallelism": {"dp": 1, "tp": 4}}, {"parallelism": {"dp": 32, "tp": 1}, "pods": count}
        return of(sharedMemory=memory, prefill=prefill, decode=decode)

    assert not paths(pods(8, "4Gi"), "PD703")
    assert paths(pods(8, "3Gi"), "PD703")
    assert not paths(pods(4, "16Gi"), "PD703")
    assert paths(pods(4, "15Gi"), "PD703")


@pytest.mark.parametrize(
    ("segment", "memory", "wrong"),
    [("80Gi", "1800Gi", False), ("81Gi", "1800Gi", True), ("1Gi", "528Gi", False), ("2Gi", "528Gi", True)],
)
def test_the_pools_segments_fit_beside_shared_memory(segment: str, memory: str, *, wrong: bool) -> None:
    resources = {"resources": {"requests": {"memory": "528Gi"}, "limits": {"memory": memory}}}
    config = of(kvTransfer={"pool": {**POOL, "segmentSize": segment}}, decode=resources)
    assert bool(paths(config, "PD704")) is wrong


@pytest.mark.parametrize(
    ("size", "time", "wrong"),
    [("200Gi", "2799s", True), ("200Gi", "2800s", False), ("199Gi", "30m", False), ("1Ti", "46m", True)],
)
def test_large_weights_are_given_the_time_that_vllm_ascends_own_tests_wait(size: str, time: str, *, wrong: bool) -> None:
    assert bool(paths(of(model={"weightSize": size}, readiness={"loadTimeout": time}), "PD840")) is wrong


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("700", "did you mean 700Gi?"),
        ("700Mi", "did you mean 700Gi?"),
        ("0.5Gi", "at least 1Gi"),
        ("1Gi", None),
        ("700Gi", None),
    ],
)
def test_memory_below_a_gibibyte_lacks_its_unit(written: str, meant: str | None) -> None:
    config = of(prefill={"resources": {"requests": {"memory": written}}})
    assert paths(config, "PD705") == (["deepseekv4-pd.prefill.resources.requests.memory"] if meant else [])
    assert meant is None or remedy(config, "PD705") == meant


def test_a_directory_that_is_not_mounted_is_told_what_mounts_it() -> None:
    config = of(model={"lora": {"adapters": {"law": "/adapters/law"}}})
    assert "a volumeMount in container vllm" in remedy(config, "PD712")
