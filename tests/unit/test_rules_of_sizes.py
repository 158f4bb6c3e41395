"""Rules of parallelism, architecture, memory, batches, drafts and additionalConfig, where one example can't show the edge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rules import Finding, StackError, read
from rules.finding import dotted
from tests import stacks

A3 = {"npu": {"family": "A3", "devicePlugin": "cce"}}
OURS = ("PD204", "PD5")


def found(*, npu: Mapping[str, Any] | None = None, **deployment: Any) -> dict[str, Finding]:
    """What the rules of sizes find in the first seed's recipe with ``deployment`` over it, by code."""
    findings: list[Finding] = []
    try:
        read(stacks.config(cluster={"npu": npu} if npu else A3, **deployment), warn=findings.append)
    except StackError as error:
        findings = list(error.findings)
    return {finding.code: finding for finding in findings if finding.code.startswith(OURS)}


def draft(tokens: int, method: str = "deepseek_mtp") -> dict[str, Any]:
    return {"speculative": {"method": method, "numSpeculativeTokens": tokens}}


def model(architecture: str, **more: Any) -> dict[str, Any]:
    return {"architecture": architecture, **more}


def role(dp: int, tp: int, tokens: int, sequences: int, k: int | None = None, **more: Any) -> dict[str, Any]:
    """A role as recipes write it: parallelism, batch, draft tokens."""
    speculative = {"method": "deepseek_mtp", "numSpeculativeTokens": k} if k else None
    return {
        "parallelism": {"dp": dp, "tp": tp, **more.pop("parallelism", {})},
        "batching": {"maxNumBatchedTokens": tokens, "maxNumSeqs": sequences},
        "speculative": speculative,
        **more,
    }


def buffer(size: int) -> dict[str, Any]:
    return {"env": {"HCCL_BUFFSIZE": str(size), "VLLM_ASCEND_ENABLE_FUSED_MC2": "0"}}


DENSE = {"expertParallel": False}
TWICE: dict[str, Any] = {"parallelism": {"dp": 2, **DENSE}}
TWICE_DENSE = {"model": model("qwen3-32b", maxModelLen=40960), "prefill": TWICE, "decode": TWICE}
RECIPES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], set[str]]] = {
    "DeepSeek-V4-Flash A3": (
        {"version": "v0.23.0"},
        model("deepseek-v4-flash"),
        role(4, 4, 8192, 16, 1),
        role(16, 1, 120, 60, 1, **buffer(1024)),
        set(),
    ),
    "DeepSeek-V4-Flash A3 nightly": (
        {"version": "v0.23.0"},
        model("deepseek-v4-flash"),
        role(4, 4, 8192, 16, 1),
        role(16, 1, 240, 60, 3, **buffer(1024)),
        set(),
    ),
    "DeepSeek-V4-Pro w4a8": (
        {"version": "v0.23.0"},
        model("deepseek-v4-pro"),
        role(2, 16, 4096, 16, 1, pods=2),
        role(16, 2, 120, 60, 1, pods=2, **buffer(1800)),
        set(),
    ),
    "DeepSeek-R1 2P1D": (
        {"version": "v0.11.0"},
        model("deepseek-v3"),
        role(2, 8, 16384, 8, 1),
        role(32, 1, 256, 40, 1, pods=2, asyncScheduling=False, **buffer(600)),
        {"PD508"},
    ),
    "DeepSeek-V3.1 large EP": (
        {"version": "v0.18.0"},
        model("deepseek-v3"),
        role(2, 8, 16384, 4, 1),
        role(64, 1, 256, 28, 1, pods=4, **buffer(1100)),
        set(),
    ),
    "DeepSeek-V3.2": (
        {"version": "v0.18.0"},
        model("deepseek-v3.2"),
        role(2, 16, 32560, 64, 1, pods=2),
        role(8, 4, 12, 4, 2, pods=2, **buffer(600)),
        {"PD504"},
    ),
    "Qwen3-235B": (
        {"version": "v0.18.0"},
        model("qwen3-235b-a22b"),
        role(2, 8, 16384, 24),
        role(8, 4, 512, 128, pods=2, **buffer(512)),
        set(),
    ),
    "Qwen3-235B nightly": (
        {"version": "v0.18.0"},
        model("qwen3-235b-a22b"),
        role(1, 16, 8192, 32),
        role(4, 4, 8192, 32, **buffer(512)),
        {"PD505"},
    ),
    "Qwen3-30B in a pipeline": (
        {"version": "v0.23.0"},
        model("qwen3-30b-a3b"),
        role(1, 2, 32768, 32, parallelism={"pp": 2}),
        role(2, 2, 256, 256, **buffer(512)),
        set(),
    ),
    "Qwen3.5-397B": (
        {"version": "v0.23.0"},
        model("qwen3.5-397b-a17b"),
        role(1, 16, 4096, 64, 3),
        role(1, 16, 128, 32, 3, **buffer(1024)),
        set(),
    ),
    "GLM-4.7": (
        {"version": "v0.18.0"},
        model("glm-4.7"),
        role(2, 8, 8192, 64, 3),
        role(8, 4, 128, 4, 3, pods=2, **buffer(512)),
        set(),
    ),
    "GLM-5": (
        {"version": "v0.23.0"},
        model("glm-5"),
        role(2, 16, 4096, 64, 3, pods=2),
        role(16, 4, 32, 8, 3, pods=4, **buffer(256)),
        set(),
    ),
    "GLM-5.2 with batches below a step": (
        {"version": "v0.23.0"},
        model("glm-5"),
        role(4, 8, 8192, 64, 1, pods=2),
        role(8, 4, 164, 32, 5, pods=2, **buffer(512)),
        {"PD503"},
    ),
    "GLM-5.2 1M": (
        {"version": "v0.23.0"},
        model("glm-5"),
        role(4, 8, 16384, 8, 3, pods=2, parallelism={"dcp": 8}, gpuMemoryUtilization=0.75),
        role(4, 8, 128, 32, 3, pods=2, parallelism={"dcp": 8}, **buffer(512)),
        set(),
    ),
    "Kimi-K2.5 w4a8": (
        {"version": "v0.18.0"},
        model("kimi-k2"),
        role(2, 8, 16384, 8, 3, gpuMemoryUtilization=0.8),
        role(32, 1, 256, 48, 3, pods=2, **buffer(1100)),
        set(),
    ),
}
"""Public P/D recipes of vLLM-Ascend's tutorials and nightly tests: what the rules of sizes may say about them"""


@pytest.mark.parametrize("name", RECIPES)
def test_a_public_recipe_is_refused_nothing_and_warned_of_what_is_known(name: str) -> None:
    engine, architecture, prefill, decode, warned = RECIPES[name]
    findings = found(engine=engine, model=architecture, prefill=prefill, decode=decode)
    assert {code: str(finding) for code, finding in findings.items() if code not in warned} == {}
    assert set(findings) == warned
    assert {finding.severity for finding in findings.values()} <= {"warning"}


@pytest.mark.parametrize(
    ("version", "deployment", "code"),
    [
        ("v0.12.0rc1", {"prefill": {"parallelism": {"dp": 1, "pp": 2}}}, None),
        ("v0.11.0", {"prefill": {"parallelism": {"dp": 1, "pp": 2}}}, "PD554"),
        ("v0.13.0rc1", {"prefill": {"pods": 2}}, "PD552"),
        ("v0.13.0rc2", {"prefill": {"pods": 2}}, None),
        ("v0.11.0", {"decode": {"pods": 2}}, None),  # several decode pods have always worked
        ("v0.10.1rc1", {"decode": {"graph": "FULL_DECODE_ONLY"}}, None),
        ("v0.11.0rc2", {"decode": {"graph": "FULL_DECODE_ONLY"}}, "PD508"),
        ("v0.12.0rc1", {"decode": {"graph": "FULL_DECODE_ONLY"}}, None),
        ("v0.21.0rc1", {"model": model("deepseek-v3")}, None),
        ("v0.22.1rc1", {"model": model("deepseek-v3")}, "PD550"),
        ("v0.22.1rc1", {"model": model("deepseek-v3"), "decode": {"parallelism": {"dp": 2, "tp": 8}}}, None),
        ("v0.22.1rc1", {"model": model("qwen3-235b-a22b")}, None),
        ("v0.10.1rc1", {"model": model("deepseek-v3"), "decode": {"parallelism": {"dp": 2, "tp": 8}}}, "PD510"),
        ("v0.10.1rc1", {"model": model("deepseek-v3"), "decode": {"parallelism": {"dp": 4, "tp": 4}}}, None),
        ("v0.12.0rc1", {"model": model("deepseek-v3"), "decode": {"parallelism": {"dp": 2, "tp": 8}}}, None),
        ("v0.11.0", {"decode": {"asyncScheduling": True}}, "PD528"),
        ("v0.11.0", {"decode": {"asyncScheduling": True, "speculative": None}}, None),
        ("v0.12.0rc1", {"decode": {"asyncScheduling": True}}, None),
        ("v0.23.0", {"model": model("deepseek-v3")}, None),
        ("v0.13.0", TWICE_DENSE, None),
        ("v0.14.0rc1", TWICE_DENSE, "PD511"),
    ],
)
def test_a_defect_is_reported_in_the_releases_that_have_it(version: str, deployment: dict[str, Any], code: str | None) -> None:
    decode = {"asyncScheduling": False, "graph": "PIECEWISE", **deployment.get("decode", {})}
    codes = set(found(**{**deployment, "engine": {"version": version}, "decode": decode}))
    assert codes - {"PD506"} == ({code} if code else set())  # PIECEWISE is unusual


def test_a_name_that_the_catalogue_does_not_have_is_reported_once_and_breaks_no_other_rule() -> None:
    unknown = draft(2, "clairvoyance")
    assert set(found(model=model("no-such"), prefill=unknown, decode=unknown)) == {"PD204", "PD521"}
    assert set(found(kvTransfer={"connector": "NoSuch"})) == set()


@pytest.mark.parametrize(
    ("npu", "weights", "code"),
    [
        ({"family": "A2", "devicePlugin": "cce", "chip": "910B2"}, "300Gi", None),
        ({"family": "A2", "devicePlugin": "cce", "chip": "910B4"}, "300Gi", "PD542"),  # 37.5 of 64, 18.75 of 32 GiB on each die
        ({"family": "A2", "devicePlugin": "cce", "chip": "910B4"}, "600Gi", "PD541"),
        ({"family": "A2", "devicePlugin": "cce"}, "300Gi", None),
    ],
)
def test_weights_are_measured_against_the_memory_of_the_declared_chip(
    npu: dict[str, Any], weights: str, code: str | None
) -> None:
    sizes = {"parallelism": {"dp": 1, "tp": 16}, "gpuMemoryUtilization": 0.75}
    findings = found(npu=npu, model={"weightSize": weights}, prefill=sizes, decode={**sizes, "graph": "FULL_DECODE_ONLY"})
    assert set(findings) == ({code} if code else set())


@pytest.mark.parametrize(
    ("parallelism", "code"),
    [
        ({"dp": 4, "tp": 2, "expertParallel": True}, None),  # 20 GiB on each of eight dies
        ({"dp": 1, "tp": 4, "pp": 2, "expertParallel": False}, None),
        ({"dp": 1, "tp": 4, "expertParallel": False}, None),  # 40 of 54 GiB
        ({"dp": 1, "tp": 2, "expertParallel": False}, "PD541"),
    ],
)
def test_weights_are_shared_by_all_dies_of_an_instance(parallelism: dict[str, Any], code: str | None) -> None:
    findings = found(model={"weightSize": "160Gi"}, prefill={"parallelism": parallelism}, decode={"parallelism": {"tp": 2}})
    assert set(findings) == ({code} if code else set())


A3_REMEDIES = [
    # 28 dies would do; the experts divide among 32, which is two servers
    ("deepseek-v4-flash", "1200Gi", 0.9, "dp 4 with tp 8 and pods 2"),
    ("qwen3-32b", "400Gi", 0.9, "dp 1 with tp 16"),  # 10 dies, and 64 heads
    ("qwen3-32b", "9000Gi", 0.9, "dp x tp x pp of at least 209"),
    ("deepseek-v4-flash", "600Gi", 0.5, "dp 4 with tp 8 and pods 2, or gpuMemoryUtilization 0.9"),
    (None, "1200Gi", 0.9, "dp x tp x pp of at least 28"),
]


@pytest.mark.parametrize(("architecture", "size", "utilization", "remedy"), A3_REMEDIES)
def test_weights_that_do_not_fit_are_told_a_parallelism_that_the_model_and_the_servers_allow(
    architecture: str | None, size: str, utilization: float, remedy: str
) -> None:
    parallelism = {"dp": 2 if architecture != "qwen3-32b" else 1, "tp": 8 if architecture != "qwen3-32b" else 2}
    role = {"parallelism": parallelism, "gpuMemoryUtilization": utilization}
    findings = found(model={"architecture": architecture, "weightSize": size}, prefill=role, decode={})
    assert findings["PD541" if "PD541" in findings else "PD542"].remedy == remedy


def test_what_weights_that_do_not_fit_are_told_mends_it() -> None:
    enough = {"parallelism": {"dp": 4, "tp": 8}, "pods": 2}
    fitting = found(model={"weightSize": "1200Gi"}, prefill=enough, decode=enough)
    assert not {"PD541", "PD542"} & set(fitting)


@pytest.mark.parametrize(
    ("declared", "reported"),
    [
        ({"model": {"maxModelLen": 1048576}}, False),
        ({"model": {"maxModelLen": 1048577}}, True),
        ({"model": {"maxModelLen": 2097152}, "engine": {"extraArgs": ['--hf-overrides={"rope_scaling": {}}']}}, False),
        ({"model": {"maxModelLen": 2097152}, "decode": {"extraArgs": ["--hf-overrides", "{}"]}}, True),
        ({"model": {"maxModelLen": 2097152}, "engine": {"env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}}}, False),
        ({"model": {"maxModelLen": 2097152}, "engine": {"env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "0"}}}, True),
        ({"model": {"maxModelLen": 2097152, "architecture": None}}, False),
    ],
)
def test_a_sequence_longer_than_the_model_can_is_refused_unless_both_roles_are_told_otherwise(
    declared: dict[str, Any], *, reported: bool
) -> None:
    assert ("PD545" in found(**declared)) == reported


@pytest.mark.parametrize("quantization", ["ascend", None])
def test_a_model_of_unknown_precision_is_measured_by_its_smallest(quantization: str | None) -> None:
    declared = model("deepseek-v3", quantization=quantization)
    assert not {"PD541", "PD542"} & set(found(model=declared))
    assert "PD541" in found(model={**declared, "weightSize": "1250Gi"})


@pytest.mark.parametrize(
    ("decode", "reported"),
    [
        ({"env": {"HCCL_BUFFSIZE": "250"}}, True),
        ({"env": {"HCCL_BUFFSIZE": "300"}}, False),
        ({"env": {"HCCL_BUFFSIZE": "many"}}, False),
        ({"env": {"HCCL_BUFFSIZE": "250"}, "additionalConfig": {"enable_fused_mc2": 1}}, False),
        ({"env": {"HCCL_BUFFSIZE": "250"}, "parallelism": {"expertParallel": False}}, False),
        ({"env": {"HCCL_BUFFSIZE": "250"}, "batching": {"maxNumSeqs": None}}, False),
    ],
)
def test_the_communication_buffer_is_measured_by_what_the_dispatch_kernel_asks_for(
    decode: dict[str, Any], *, reported: bool
) -> None:
    # DeepSeek-R1's recipe: 600 MB for 80 tokens on each rank; half of what is needed is 300
    sizes = role(16, 1, 80, 40, 1)
    for key, value in decode.items():
        sizes[key] = {**(sizes.get(key) or {}), **value}
    sizes["env"]["VLLM_ASCEND_ENABLE_FUSED_MC2"] = "0"
    findings = found(model=model("deepseek-v3"), decode=sizes)
    assert ("PD543" in findings) is reported
    if reported:
        assert 590 <= int(findings["PD543"].remedy) <= 610


@pytest.mark.parametrize(("env", "path"), [({}, "decode.env"), ({"HCCL_BUFFSIZE": "250"}, "engine.env")])
def test_the_buffer_of_both_roles_or_the_default_of_200_mb_holds_where_decode_has_none(env: dict[str, str], path: str) -> None:
    decode = {"parallelism": {"tp": 2, "expertParallel": True}, "batching": {"maxNumSeqs": 2000}}
    finding = found(recipe="deepseek-v2-lite-a3", engine={"env": env}, decode=decode)["PD543"]
    assert dotted(finding.path).endswith(f".{path}.HCCL_BUFFSIZE")
    assert finding.problem.startswith(f"{env.get('HCCL_BUFFSIZE', '200')} MB")


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"enable_reduce_sample": True}, True),
        ({"enable_reduce_sample": False}, False),
        ({"enable_reduce_sample": "false"}, False),
        ({"enable_reduce_sample": "True"}, True),
        ({"dyntra_lb_config": {"enabled": True}}, True),
        ({"scheduler_config": {"dyntra_lb_config": {"enabled": True}}}, True),
        ({"scheduler_config": {"dyntra_lb_config": {"enabled": False}}, "dyntra_lb_config": {"enabled": True}}, False),
        ({"scheduler_config": {"dyntra_lb_config": {}}}, False),
        ({"scheduler_config": "none"}, False),
    ],
)
def test_a_setting_counts_where_and_how_the_engine_reads_it(given: dict[str, Any], *, reported: bool) -> None:
    assert ("PD531" in found(prefill={"additionalConfig": given})) is reported
    assert "PD531" not in found(decode={"additionalConfig": given})


@pytest.mark.parametrize(
    ("setting", "parallelism", "reported"),
    [
        ("enable_flashcomm1", {"dp": 2, "tp": 8}, False),
        ("enable_flashcomm1", {"dp": 16, "tp": 1}, True),
        ("enable_shared_expert_dp", {"dp": 2, "tp": 8, "expertParallel": False}, True),
    ],
)
def test_settings_of_split_experts_are_silently_off_without_them(
    setting: str, parallelism: dict[str, Any], *, reported: bool
) -> None:
    prefill = {"parallelism": parallelism, "additionalConfig": {setting: True}}
    assert ("PD538" in found(prefill=prefill, decode={"parallelism": {"dp": 16, "tp": 1}})) is reported


def test_sequence_parallelism_of_a_dense_model_needs_no_experts() -> None:
    dense = {"parallelism": {"dp": 1, "tp": 8, "expertParallel": False}}
    given = {**dense, "additionalConfig": {"enable_flashcomm1": True}}
    assert found(model=model("qwen3-32b", maxModelLen=40960), prefill=given, decode=dense) == {}


def test_short_requests_first_is_for_prefill() -> None:
    given = {"additionalConfig": {"scheduler_config": {"short_request_first_config": {"enabled": True}}}}
    finding = found(decode=given)["PD531"]
    assert finding.path[-4:] == ("decode", "additionalConfig", "scheduler_config", "short_request_first_config")
    assert found(prefill=given) == {}


def test_balance_scheduling_is_seen_in_the_environment_too() -> None:
    finding = found(engine={"env": {"VLLM_ASCEND_BALANCE_SCHEDULING": "1"}})["PD533"]
    assert finding.path[-3:] == ("engine", "env", "VLLM_ASCEND_BALANCE_SCHEDULING")
    assert "PD533" not in found(engine={"env": {"VLLM_ASCEND_BALANCE_SCHEDULING": "0"}})


@pytest.mark.parametrize(
    ("sizes", "more", "codes"),
    [
        ({"lmhead_tensor_parallel_size": 8}, {}, set()),
        ({"lmhead_tensor_parallel_size": 0}, {}, set()),
        ({"lmhead_tensor_parallel_size": 3}, {}, {"PD536"}),
        ({"oproj_tensor_parallel_size": 8}, {}, {"PD530", "PD562"}),
        ({"oproj_tensor_parallel_size": 8}, {"parallelism": {"dp": 16, "tp": 1}}, {"PD530"}),
        ({"oproj_tensor_parallel_size": 8}, {"parallelism": {"dp": 16, "tp": 1}, "graph": "eager"}, {"PD506", "PD530", "PD537"}),
        ({"mlp_tensor_parallel_size": "8"}, {}, set()),
    ],
)
def test_parts_of_the_model_are_split_over_data_parallel_ranks(
    sizes: dict[str, Any], more: dict[str, Any], codes: set[str]
) -> None:
    assert set(found(decode={"additionalConfig": {"finegrained_tp_config": sizes}, **more})) == codes


def test_a_dense_model_has_no_finegrained_tp() -> None:
    dense = {"parallelism": {"dp": 1, "tp": 8, "expertParallel": False}}
    config = {"finegrained_tp_config": {"lmhead_tensor_parallel_size": 1}}
    assert set(
        found(model=model("qwen3-32b", maxModelLen=40960), prefill=dense, decode={**dense, "additionalConfig": config})
    ) == {"PD536"}


@pytest.mark.parametrize(
    ("architecture", "prefill", "decode", "codes"),
    [
        (None, draft(1), draft(3), set()),
        (None, draft(3), draft(3), set()),
        (None, draft(2), draft(3), {"PD526"}),
        (None, draft(2), {"speculative": None}, {"PD526"}),
        (None, {"speculative": None}, draft(3), set()),
        ("qwen3.5-397b-a17b", draft(3), draft(3), set()),
        ("qwen3.5-397b-a17b", draft(1), draft(3), {"PD524"}),
        ("qwen3.5-397b-a17b", draft(3), draft(1), {"PD524"}),
        ("qwen3.5-397b-a17b", {"speculative": None}, draft(3), {"PD524"}),
        ("qwen3.5-397b-a17b", {"speculative": None}, {"speculative": None}, set()),
        (None, draft(5, "dspark"), draft(5, "dspark"), set()),
        (None, draft(7, "dspark"), draft(5, "dspark"), {"PD524"}),
        (None, draft(5), draft(5, "dspark"), {"PD524"}),
        ("qwen3.5-397b-a17b", draft(1), draft(5, "dspark"), {"PD524"}),
        (None, draft(4, "dspark"), draft(4, "dspark"), {"PD527"}),
    ],
)
def test_roles_draft_together(architecture: str | None, prefill: dict[str, Any], decode: dict[str, Any], codes: set[str]) -> None:
    fitting = {"batching": {"maxNumBatchedTokens": 4096, "maxNumSeqs": 64}}
    named = {"model": model(architecture)} if architecture else {}
    assert set(found(engine={"version": "v0.25.1rc1"}, prefill=prefill, decode={**decode, **fitting}, **named)) == codes


@pytest.mark.parametrize(
    ("method", "directory", "code"),
    [
        ("ngram", None, None),
        ("ngram", "draft", "PD529"),
        ("deepseek_mtp", None, None),
        ("deepseek_mtp", "draft", None),  # its layers may lie in a directory of their own
        ("eagle3", None, "PD523"),
        ("eagle3", "draft", None),
    ],
)
def test_a_draft_model_is_given_where_the_method_has_one(method: str, directory: str | None, code: str | None) -> None:
    speculative = {"method": method, "numSpeculativeTokens": 1, "model": directory}
    findings = found(prefill={"speculative": None}, decode={"speculative": speculative, "batching": {"maxNumSeqs": 72}})
    assert set(findings) == ({code} if code else set())


@pytest.mark.parametrize(
    ("architecture", "tp", "dcp", "codes"),
    [
        ("deepseek-v3", 8, 4, set()),
        ("deepseek-v3", 8, 3, {"PD557"}),
        ("qwen3-235b-a22b", 8, 2, set()),  # two copies of each of four key-value heads
        ("qwen3-235b-a22b", 4, 2, {"PD518"}),
        ("qwen3-235b-a22b", 16, 4, set()),
        ("glm-5", 8, 8, set()),
        ("glm-5", 8, 2, {"PD519"}),
    ],
)
def test_a_sequence_is_shared_by_ranks_that_hold_the_same_heads(architecture: str, tp: int, dcp: int, codes: set[str]) -> None:
    prefill = {"parallelism": {"dp": 1, "tp": tp, "dcp": dcp}}
    found_codes = set(found(engine={"version": "v0.23.0"}, model=model(architecture), prefill=prefill))
    assert {code for code in found_codes if code in {"PD518", "PD519", "PD557", "PD558"}} == codes


@pytest.mark.parametrize(("connector", "reported"), [("MooncakeConnectorV1", False), ("MooncakeHybridConnector", True)])
def test_the_hybrid_connector_alone_wants_mamba_state_split_alike(connector: str, *, reported: bool) -> None:
    drafts = draft(3)
    findings = found(
        engine={"version": "v0.23.0"},
        kvTransfer={"connector": connector},
        model=model("qwen3.5-397b-a17b"),
        prefill=drafts,
        decode={**drafts, "batching": {"maxNumBatchedTokens": 128, "maxNumSeqs": 32}},
    )
    assert set(findings) == ({"PD515"} if reported else set())


@pytest.mark.parametrize(
    ("limit", "tp", "reported"),
    [(8191, 8, True), (8192, 8, False), (65536, 8, False), (65536, 1, False), (65535, 1, True), ("6144", 8, False)],
)
def test_fused_experts_take_at_least_an_even_share(limit: Any, tp: int, *, reported: bool) -> None:
    # 8192 tokens, each of which eight experts compute
    prefill = {"parallelism": {"dp": 16 // tp, "tp": tp}, "additionalConfig": {"mega_moe_max_tokens": limit}}
    decode = {"parallelism": {"dp": 16, "tp": 1}}
    assert ("PD539" in found(model=model("deepseek-v3"), prefill=prefill, decode=decode)) is reported


@pytest.mark.parametrize(("tp", "reported"), [(8, False), (12, False), (6, True), (16, True)])
def test_attention_heads_and_their_key_value_heads_both_divide(tp: int, *, reported: bool) -> None:
    # 24 attention heads, 4 key-value heads
    dense = {"parallelism": {"dp": 1, "tp": tp, "expertParallel": False}}
    assert ("PD512" in found(model=model("qwen3.5-27b"), prefill=dense, decode=dense)) is reported


@pytest.mark.parametrize(
    ("tokens", "codes"), [(47, {"PD502"}), (48, {"PD503"}), (143, {"PD503"}), (144, set()), (4096, set()), (4097, {"PD505"})]
)
def test_a_decode_batch_holds_a_step_of_48_sequences_with_two_drafts_each_and_not_much_more(tokens: int, codes: set[str]) -> None:
    assert set(found(decode={"batching": {"maxNumBatchedTokens": tokens}})) == codes


@pytest.mark.parametrize(("tokens", "codes"), [(7199, {"PD503"}), (7200, set()), (7201, {"PD505"})])
def test_a_decode_batch_may_be_as_large_as_a_step_is(tokens: int, codes: set[str]) -> None:
    decode = {"batching": {"maxNumBatchedTokens": tokens, "maxNumSeqs": 2400}}
    assert {"PD503", "PD505"} & set(found(decode=decode)) == codes


@pytest.mark.parametrize("place", ["engine", "prefill"])
def test_prompts_that_are_not_chunked_must_fit_a_batch(place: str) -> None:
    given: dict[str, Any] = {place: {"extraArgs": ["--no-enable-chunked-prefill"]}}
    assert found(**given)["PD500"].severity == "error"
    assert "PD500" not in found(**given, model={"maxModelLen": 144})
    again = {"extraArgs": ["--no-enable-chunked-prefill", "--enable-chunked-prefill"]}
    assert "PD500" not in found(prefill=again)


def test_async_scheduling_is_questioned_only_in_a_pipeline() -> None:
    assert found(prefill={"asyncScheduling": True}) == {}


@pytest.mark.parametrize(
    ("code", "remedy", "deployment"),
    [
        (
            "PD501",
            "a decode tp of 1 or 2 or 4 or 8, or a prefill tp that is a multiple of 16",
            {"decode": {"parallelism": {"dp": 1, "tp": 16}}},
        ),
        ("PD503", "144", {"decode": {"batching": {"maxNumBatchedTokens": 100}}}),
        ("PD504", "24, for example, with 72 tokens", {"decode": {"batching": {"maxNumBatchedTokens": 60, "maxNumSeqs": 20}}}),
        ("PD505", "7200, a full step", {"decode": {"batching": {"maxNumBatchedTokens": 8192, "maxNumSeqs": 2400}}}),
        ("PD505", "144, a full step", {"decode": {"batching": {"maxNumBatchedTokens": 4097}}}),
        (
            "PD505",
            "at most 4096",
            {"decode": {"batching": {"maxNumBatchedTokens": 8192, "maxNumSeqs": None}, "speculative": None}},
        ),
        ("PD509", "maxNumSeqs: 48", {"decode": {"batching": {"maxNumSeqs": None}}}),
        ("PD509", "maxNumSeqs: 1", {"decode": {"batching": {"maxNumBatchedTokens": 2, "maxNumSeqs": None}}}),
        (
            "PD510",
            "tp 1 or 2 or 4, or eager",
            {"model": model("deepseek-v3"), "engine": {"version": "v0.10.1rc1"}, "decode": {"parallelism": {"dp": 2, "tp": 8}}},
        ),
        (
            "PD511",
            "1, and a ratio with more instances: 6 of decode",
            {
                "model": {"architecture": "qwen3-32b", "maxModelLen": 40960},
                "engine": {"version": "v0.18.0"},
                "ratio": "1P2D",
                "prefill": {"parallelism": {"dp": 1, "expertParallel": False}},
                "decode": {"parallelism": {"dp": 3, "expertParallel": False}},
            },
        ),
        (
            "PD514",
            "dp 1 or 2 or 4 or 8 or 16 or 32 or 64 with tp 4",
            {"model": {"architecture": "deepseek-v3"}, "prefill": {"parallelism": {"dp": 3, "tp": 4}}},
        ),
        (
            "PD514",
            "dp x tp that divides 256",
            {"model": {"architecture": "deepseek-v3"}, "prefill": {"parallelism": {"dp": 1, "tp": 6}}},
        ),
        ("PD526", "1 or 2", {"prefill": draft(3)}),
        (
            "PD536",
            "8, for example",
            {"decode": {"additionalConfig": {"finegrained_tp_config": {"lmhead_tensor_parallel_size": 16}}}},
        ),
        (
            "PD536",
            "4, for example",
            {"decode": {"additionalConfig": {"finegrained_tp_config": {"lmhead_tensor_parallel_size": 5}}}},
        ),
        ("PD551", "1 or 2 or 4 or 8", {"decode": {"pods": 3}}),
        ("PD553", "1, with dp 8 on the same dies", {"decode": {"parallelism": {"dp": 4, "pp": 2}}}),
    ],
)
def test_a_remedy_names_the_value_that_would_be_right(code: str, remedy: str, deployment: dict[str, Any]) -> None:
    assert found(**deployment)[code].remedy == remedy
