"""The engine stand-in refuses what the real engine refuses, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from local.engine.arguments import CONNECTORS as REGISTERED
from local.engine.arguments import NEWEST, Engine, Version, check, parse, registers, version

MODEL = "/models/DeepSeek-V4-Flash-w8a8-mtp"
FILES = {f"{MODEL}/config.json", f"{MODEL}/chat_template.jinja", f"{MODEL}/sql/adapter_config.json", "/scripts/mooncake.json"}
V10 = "ghcr.io/volcano-sh/kthena-engine:vllm-ascend_v0.10.1rc1_mooncake_v0.3.5"
V11 = "quay.io/ascend/vllm-ascend:v0.11.0-a3"
V12 = "quay.io/ascend/vllm-ascend:v0.12.0rc1-a3"
V13 = "quay.io/ascend/vllm-ascend:v0.13.0rc3-a3"
V20 = "quay.io/ascend/vllm-ascend:v0.20.2rc1-a3"
LAYOUTS = {"prefill": {"dp_size": 2, "tp_size": 8}, "decode": {"dp_size": 8, "tp_size": 2}}
PREFILL = {
    "kv_connector": "MooncakeConnectorV1",
    "kv_role": "kv_producer",
    "kv_port": "9000",
    "engine_id": "deepseekv4-pd-0_prefill-0",
    "kv_connector_extra_config": LAYOUTS,
}
DECODE = {**PREFILL, "kv_role": "kv_consumer", "engine_id": "deepseekv4-pd-0_decode-0"}
PREFILL_SIZES = ("--data-parallel-size", "2", "--tensor-parallel-size", "8")
DECODE_SIZES = ("--data-parallel-size", "8", "--tensor-parallel-size", "2")


def launch(*flags: str, image: str = V13, **environment: str) -> Engine | list[str]:
    return check(["serve", MODEL, *flags], environment, image, FILES.__contains__)


def transfer(config: dict[str, Any], sizes: Sequence[str] = PREFILL_SIZES, image: str = V13) -> Engine | list[str]:
    return launch(*sizes, "--kv-transfer-config", json.dumps(config), image=image)


def refusals(result: Engine | list[str]) -> str:
    assert isinstance(result, list), f"accepted: {result}"
    return "\n".join(result)


def accepted(result: Engine | list[str]) -> Engine:
    assert isinstance(result, Engine), f"refused: {result}"
    return result


# Flags: what is refused with what words, and the nearest that is accepted
FLAGS = [
    (["--tensor-paralel-size", "8"], "unrecognized arguments: --tensor-paralel-size", ["--tensor-parallel-size", "8"]),
    (["--no-seed"], "unrecognized arguments: --no-seed", ["--no-enable-prefix-caching"]),
    (["stray"], "unrecognized arguments: stray", []),
    (["--port", "http"], "argument --port: invalid int value: 'http'", ["--port", "7100"]),
    (["--port"], "argument --port: expected one argument", ["--port=7100"]),
    (["--host", "--port", "7100"], "argument --host: expected one argument", ["--host", "0.0.0.0", "--port", "7100"]),
    (["--served-model-name"], "expected at least one argument", ["--served-model-name", "a", "b"]),
    (["--enforce-eager=yes"], "ignored explicit argument 'yes'", ["--enforce-eager"]),
    (["--max-model-len", "64 k"], "invalid human_readable_int value: '64 k'", ["--max-model-len", "64k"]),
    (["--additional-config", "{'a': 1}"], "cannot be converted to json object", ["--additional_config", '{"a": 1}']),
    (["--speculative-config", "[1]"], "invalid json object value: '[1]'", ["--speculative-config", "{}"]),
    (["--port", "70000"], "port: Input should be less than or equal to 65535", ["--port", "65535"]),
    (["--port", "0"], "port: Input should be greater than or equal to 1", ["--port", "1"]),
    (["-tp", "0"], "tensor_parallel_size: Input should be greater", ["-tp", "1"]),
    (["-dp", "-1"], "data_parallel_size: Input should be greater", ["-dp", "1"]),
    (["--gpu-memory-utilization", "1.5"], "at most 1.0. Got 1.5", ["--gpu-memory-utilization", "1"]),
    (["--gpu-memory-utilization", "0"], "must be greater than 0", ["--gpu-memory-utilization", "0.01"]),
    (
        ["--max-num-batched-tokens", "47", "--max-num-seqs", "48"],
        "max_num_batched_tokens (47) must be greater than or equal to max_num_seqs (48)",
        ["--max-num-batched-tokens", "48", "--max-num-seqs", "48"],
    ),
    (
        ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096", "--max-model-len", "8192"],
        "max_num_batched_tokens (4096) is smaller than max_model_len (8192)",
        ["--enable-chunked-prefill", "--max-num-batched-tokens", "4096", "--max-model-len", "8192"],
    ),
    (
        ["--chat-template", "/models/absent.jinja"],
        "(/models/absent.jinja) appears path-like, but doesn't exist!",
        ["--chat-template", f"{MODEL}/chat_template.jinja"],
    ),
    (["--chat-template", "absent"], "appears path-like", ["--chat-template", "{{ messages }}"]),
    (["--config", "settings.yaml"], "reads no configuration file", []),
    (["-tp", "8", "-dcp", "3"], "tp_size=8 must be divisible by dcp_size=3", ["-tp", "8", "-dcp", "4"]),
    (
        ["-tp", "8", "-dcp", "8", "--cp-kv-cache-interleave-size", "96"],
        "Block_size(128) should be greater than or equal to and divisible by cp_kv_cache_interleave_size (96)",
        ["-tp", "8", "-dcp", "8", "--cp-kv-cache-interleave-size", "64"],
    ),
    (["-pcp", "2", "-pp", "2"], "can't be used together", ["-pcp", "2"]),
    (["-dp", "4", "-dpn", "4"], "data_parallel_rank (4) must be in the range [0, 4)", ["-dp", "4", "-dpn", "3"]),
    (
        ["-dp", "4", "-dpl", "2", "-dpr", "3", "--headless"],
        "data parallel ranks 3-4 in this pod, but data_parallel_size is 4",
        ["-dp", "4", "-dpl", "2", "-dpr", "2", "--headless"],
    ),
    (["--headless", "-asc", "2"], "api_server_count can't be set in headless mode", ["--headless", "-asc", "1"]),
    (["--headless", "-dph"], "data_parallel_hybrid_lb is not applicable in headless mode", ["-dph"]),
    (["--headless", "-dp", "2", "-dpl", "0"], "data_parallel_size_local must be > 0 in headless mode", ["-dp", "2", "-dpl", "0"]),
    (["--lora-modules", f"sql={MODEL}/sql"], "LoRA is not enabled", ["--enable-lora", "--lora-modules", f"sql={MODEL}/sql"]),
    (["--enable-lora", "--lora-modules", "sql"], "Invalid JSON format for --lora-modules: sql", ["--enable-lora"]),
    (
        ["--enable-lora", "--lora-modules", '{"name": "sql", "path": "/absent"}'],
        "Loading lora sql failed: No adapter found for /absent",
        ["--enable-lora", "--lora-modules", json.dumps({"name": "sql", "path": f"{MODEL}/sql"})],
    ),
    (["--max-lora-rank", "48"], "max_lora_rank: Input should be 1, 8, 16", ["--max-lora-rank", "64"]),
    (
        ["--additional-config", '{"profiling_chunk_config": {"a": 1}}'],
        "profiling_chunk_config: only with pipeline parallelism",
        ["-pp", "2", "--additional-config", '{"profiling_chunk_config": {"a": 1}}'],
    ),
    (
        ["-dp", "6", "--additional-config", '{"finegrained_tp_config": {"lmhead_tensor_parallel_size": 4}}'],
        "lmhead_tensor_parallel_size 4 must divide data_parallel_size 6",
        ["-dp", "8", "--additional-config", '{"finegrained_tp_config": {"lmhead_tensor_parallel_size": 4}}'],
    ),
]


@pytest.mark.parametrize(("wrong", "words", "right"), FLAGS, ids=[words for _, words, _ in FLAGS])
def test_a_wrong_flag_is_refused_and_the_right_one_is_not(wrong: list[str], words: str, right: list[str]) -> None:
    assert words in refusals(launch(*wrong))
    accepted(launch(*right))


def test_only_serve_is_a_sub_command() -> None:
    assert "invalid choice: 'chat'" in refusals(check(["chat"], {}, V13, FILES.__contains__))
    assert "invalid choice: nothing" in refusals(check([], {}, V13, FILES.__contains__))


def test_a_model_needs_its_configuration() -> None:
    assert "must contain config.json" in refusals(check(["serve", MODEL], {}, V13, {MODEL}.__contains__))
    assert "model_tag" in refusals(check(["serve"], {}, V13, FILES.__contains__))
    accepted(check(["serve", "--model", MODEL], {}, V13, FILES.__contains__))


def test_of_repeated_flags_the_last_one_wins() -> None:
    engine = accepted(launch("--port", "7100", "--enforce-eager", "--port=7200", "--enforce-eager"))
    assert engine.port == 7200


def test_json_flags_can_be_given_key_by_key() -> None:
    _, options, problems = parse(["--kv-transfer-config.kv_role", "kv_both", "-O.mode=3", "-O3", "-O.a.b", "[1]"])
    assert problems == []
    assert options == {"kv-transfer-config": {"kv_role": "kv_both"}, "compilation-config": {"a": {"b": [1]}}}


def test_every_refusal_is_told_at_once() -> None:
    told = refusals(launch("--port", "0", "--gpu-memory-utilization", "2", "--chat-template", "absent"))
    assert len(told.splitlines()) == 3


VERSIONS = [
    (V10, (0, 10, 1, 1)),
    (V13, (0, 13, 0, 3)),
    ("localhost:5000/vllm-ascend:v0.18.0-a3-openeuler", (0, 18, 0, float("inf"))),
    ("quay.io/ascend/vllm-ascend:main", NEWEST),
    ("quay.io/ascend/vllm-ascend", NEWEST),
]


@pytest.mark.parametrize(("image", "expected"), VERSIONS, ids=[image for image, _ in VERSIONS])
def test_the_version_is_in_the_image_tag(image: str, expected: tuple[float, ...]) -> None:
    assert version(image) == expected


def test_a_release_comes_after_its_candidates() -> None:
    assert version("x:v0.12.0rc1") < version("x:v0.12.0") < version("x:v0.12.1rc1") < NEWEST


# KV transfer of a prefill engine: what is wrong in it, with what words that is refused
TRANSFERS = [
    ({"kv_role": "kv_sender"}, "Unsupported kv_role: kv_sender. Supported roles are"),
    ({"kv_role": None}, "Please specify kv_role"),
    ({"kv_conector": "x"}, "kv_conector: Unexpected keyword argument"),
    ({"kv_connector": "NixlConnector"}, "Unsupported connector type: NixlConnector"),
    ({"kv_connector_extra_config": {"prefill": LAYOUTS["prefill"]}}, "must have 'prefill' and 'decode'"),
    ({"kv_connector_extra_config": None}, "must have 'prefill' and 'decode'"),
    ({"kv_connector_extra_config": {**LAYOUTS, "decode": {"tp_size": "2"}}}, "whole numbers"),
    (
        {"kv_connector_extra_config": {**LAYOUTS, "prefill": {"dp_size": 2, "tp_size": 4}}},
        "KV transfer 'prefill' config has a conflicting tensor parallel size. Expected 8, but got 4.",
    ),
    (
        {"kv_connector_extra_config": {**LAYOUTS, "prefill": {"dp_size": 1, "tp_size": 8}}},
        "KV transfer 'prefill' config has a conflicting data parallel size. Expected 2, but got 1.",
    ),
    (
        {"kv_connector_extra_config": {**LAYOUTS, "decode": {"dp_size": 1, "tp_size": 16}}},
        "prefill_tp_size: 8 must be greater than or equal to the decode_tp_size: 16",
    ),
    (
        {"kv_connector_extra_config": {**LAYOUTS, "decode": {"dp_size": 1, "tp_size": 3}}},
        "prefill_tp_size: 8 must be divisible by decode_tp_size: 3",
    ),
    (
        {"kv_connector_extra_config": {**LAYOUTS, "decode": {"dp_size": 8, "tp_size": 2, "pp_size": 2}}},
        "decode pp_size must be 1",
    ),
    ({"kv_port": "65521"}, "kv_port 65521: 16 ranks need ports 65521-65536"),
    ({"kv_port": "none"}, "kv_port: Input should be a valid integer"),
    ({"engine_id": "$MOONCAKE_ENGINE_ID"}, "engine_id '$MOONCAKE_ENGINE_ID' is not expanded"),
]


@pytest.mark.parametrize(("change", "words"), TRANSFERS, ids=[words for _, words in TRANSFERS])
def test_a_wrong_kv_transfer_is_refused(change: dict[str, Any], words: str) -> None:
    assert words in refusals(transfer({**PREFILL, **change}))


ACCEPTED_TRANSFERS = [
    ({}, V13),
    ({"kv_port": 65520}, V13),
    ({"kv_connector": "MooncakeHybridConnector"}, V20),
    ({"kv_connector": "MooncakeConnector", "kv_connector_module_path": "vllm_ascend.distributed.mooncake"}, V13),
    ({"kv_connector": "AscendStoreConnector", "kv_connector_extra_config": {"backend": "memcache"}}, V13),
]


@pytest.mark.parametrize(("change", "image"), ACCEPTED_TRANSFERS, ids=[str(change) for change, _ in ACCEPTED_TRANSFERS])
def test_a_right_kv_transfer_is_accepted(change: dict[str, Any], image: str) -> None:
    engine = accepted(transfer({**PREFILL, **change}, image=image))
    assert engine.kv_transfer is not None
    assert engine.kv_transfer.role == "kv_producer"


# connector, image of the last version without it or the first that dropped it, image that has it
CONNECTORS = [
    ("MooncakeConnectorV1", "x:v0.9.1", "x:v0.10.1rc1"),
    ("MooncakeLayerwiseConnector", "x:v0.10.1rc1", V11),
    ("LLMDataDistCMgrConnector", V12, V11),
    ("MooncakeHybridConnector", "x:v0.18.0", V20),
    ("NoSuchConnector", "x:main", None),
]


@pytest.mark.parametrize(("connector", "since", "until"), [(name, *versions) for name, versions in REGISTERED.items()])
def test_a_connector_exists_from_its_first_version_until_the_first_without_it(
    connector: str, since: Version, until: Version | None
) -> None:
    before = (*since[:3], since[3] - 1)
    assert [registers(version, connector) for version in (before, since)] == [False, True]
    last, after = ((*until[:3], until[3] - 1), until) if until else (NEWEST, None)
    assert registers(last, connector)
    assert after is None or not registers(after, connector)


@pytest.mark.parametrize(("connector", "without", "with_it"), CONNECTORS, ids=[name for name, *_ in CONNECTORS])
def test_a_connector_exists_in_some_versions_only(connector: str, without: str, with_it: str | None) -> None:
    config = {**PREFILL, "kv_connector": connector}
    assert f"Unsupported connector type: {connector}" in refusals(transfer(config, image=without))
    if with_it:
        accepted(transfer(config, image=with_it))


def test_a_module_path_that_is_gone_is_refused() -> None:
    config = {**PREFILL, "kv_connector_module_path": "vllm_ascend.distributed.mooncake_connector"}
    accepted(transfer(config, image="x:v0.13.0"))
    assert "No module named" in refusals(transfer(config, image="x:v0.17.0rc1"))


def test_own_sizes_are_checked_from_v0_12_on_only() -> None:
    assert "conflicting data parallel size" in refusals(transfer(PREFILL, ("-tp", "8"), V12))
    accepted(transfer(PREFILL, ("-tp", "8"), V11))


def test_each_role_is_checked_against_its_own_layout() -> None:
    accepted(transfer(DECODE, DECODE_SIZES))
    told = refusals(transfer(DECODE, PREFILL_SIZES))
    assert "'decode' config has a conflicting tensor parallel size. Expected 8, but got 2." in told
    assert "'prefill'" not in told
    assert "'prefill'" in refusals(transfer({**DECODE, "kv_role": "kv_both"}, DECODE_SIZES))


def test_decode_has_no_pipeline_parallelism() -> None:
    assert "decode pp_size must be 1" in refusals(transfer(DECODE, (*DECODE_SIZES, "-pp", "2")))


def pool(*connectors: dict[str, Any], **environment: str) -> Engine | list[str]:
    multi = {"kv_connector": "MultiConnector", "kv_role": "kv_producer", "engine_id": "group-0_prefill-0"}
    config = {**multi, "kv_connector_extra_config": {"connectors": list(connectors)}}
    return launch(*PREFILL_SIZES, "--kv-transfer-config", json.dumps(config), **environment)


DIRECT = {key: value for key, value in PREFILL.items() if key != "engine_id"}
STORE = {"kv_connector": "AscendStoreConnector", "kv_role": "kv_producer", "kv_connector_extra_config": {"backend": "mooncake"}}


def test_an_engine_with_a_pool_hands_over_under_the_id_above_its_connectors() -> None:
    engine = accepted(pool(DIRECT, STORE, MOONCAKE_CONFIG_PATH="/scripts/mooncake.json"))
    assert engine.kv_transfer is not None
    assert engine.kv_transfer.hands_over
    assert (engine.kv_transfer.engine_id, engine.kv_transfer.port) == ("group-0_prefill-0", 9000)


@pytest.mark.parametrize(
    ("connectors", "environment", "words"),
    [
        ((), {}, "must have 'connectors'"),
        (({**DIRECT, "kv_role": None},), {}, "Please specify kv_role"),
        (({**DIRECT, "engine_id": "a"},), {}, "multiple values for keyword argument 'engine_id'"),
        (({**DIRECT, "kv_connector_extra_config": {}},), {}, "must have 'prefill' and 'decode'"),
        ((DIRECT, STORE), {}, "'MOONCAKE_CONFIG_PATH' is not set"),
        ((DIRECT, STORE), {"MOONCAKE_CONFIG_PATH": "/absent.json"}, "No such file or directory: '/absent.json'"),
    ],
)
def test_a_wrong_connector_inside_a_multi_connector_is_refused(
    connectors: tuple[dict[str, Any], ...], environment: dict[str, str], words: str
) -> None:
    assert words in refusals(pool(*connectors, **environment))


def test_context_parallel_ranks_hand_over_whole_blocks() -> None:
    flags = (*PREFILL_SIZES, "-dcp", "8")
    assert "(1) must be equal to block_size (128) with KV transfer" in refusals(transfer(PREFILL, flags))
    accepted(transfer(PREFILL, (*flags, "--cp-kv-cache-interleave-size", "128")))
    accepted(transfer(PREFILL, (*flags, "--block-size", "64", "--cp-kv-cache-interleave-size", "64")))
    hybrid = {**PREFILL, "kv_connector": "MooncakeHybridConnector"}
    assert "does not support context" in refusals(transfer(hybrid, (*flags, "--cp-kv-cache-interleave-size", "128"), V20))


def test_prefills_pipeline_ranks_are_those_that_its_peers_are_told() -> None:
    layouts = {**LAYOUTS, "prefill": {"dp_size": 2, "tp_size": 8, "pp_size": 2}}
    config = {**PREFILL, "kv_connector_extra_config": layouts}
    accepted(transfer(config, (*PREFILL_SIZES, "-pp", "2")))
    assert "conflicting pipeline parallel size. Expected 1, but got 2" in refusals(transfer(config, PREFILL_SIZES))
    assert "conflicting pipeline parallel size. Expected 2, but got 1" in refusals(
        transfer(PREFILL, (*PREFILL_SIZES, "-pp", "2"))
    )


ROLE_SETTINGS = [
    # setting of --additional-config, whether prefill and decode may have it
    ({"enable_balance_scheduling": True}, False, False),
    ({"short_request_first": True}, True, False),
    ({"enable_reduce_sample": True}, False, True),
    ({"enable_kv_nz": True}, False, True),
    ({"recompute_scheduler_enable": True}, True, True),
]


@pytest.mark.parametrize(("setting", "prefill", "decode"), ROLE_SETTINGS, ids=[str(setting) for setting, *_ in ROLE_SETTINGS])
def test_some_settings_are_for_one_role_only(setting: dict[str, Any], *, prefill: bool, decode: bool) -> None:
    more = ("--additional-config", json.dumps(setting))
    results = (transfer(PREFILL, (*PREFILL_SIZES, *more)), transfer(DECODE, (*DECODE_SIZES, *more)))
    assert [isinstance(result, Engine) for result in results] == [prefill, decode]


def test_output_projection_is_split_on_decode_without_tensor_parallelism_only() -> None:
    more = ("--additional-config", '{"finegrained_tp_config": {"oproj_tensor_parallel_size": 8}}')
    layouts = {"prefill": {"dp_size": 2, "tp_size": 8}, "decode": {"dp_size": 16, "tp_size": 1}}
    config = {**DECODE, "kv_connector_extra_config": layouts}
    accepted(transfer(config, ("-dp", "16", "-tp", "1", *more)))
    assert "needs tensor_parallel_size 1" in refusals(transfer(config, ("-dp", "16", "-tp", "1", "--enforce-eager", *more)))
    assert "needs tensor_parallel_size 1" in refusals(transfer(DECODE, (*DECODE_SIZES, *more)))


def test_launches_can_not_block_where_graphs_are_captured() -> None:
    assert "ASCEND_LAUNCH_BLOCKING" in refusals(launch(ASCEND_LAUNCH_BLOCKING="1"))
    accepted(launch("--enforce-eager", ASCEND_LAUNCH_BLOCKING="1"))


@pytest.mark.parametrize(("interval", "right"), [("0", True), ("16384", True), ("100", False), ("-128", False), ("x", False)])
def test_the_prefix_cache_keeps_whole_blocks(interval: str, *, right: bool) -> None:
    result = launch(VLLM_PREFIX_CACHE_RETENTION_INTERVAL=interval)
    assert isinstance(result, Engine) is right


DEVICES = [
    # flags, NPUs of the pod, whether they suffice
    (PREFILL_SIZES, "16", True),
    (PREFILL_SIZES, "8", False),
    (PREFILL_SIZES, "0", False),
    (PREFILL_SIZES, "", True),
    ((*PREFILL_SIZES, "--data-parallel-size-local", "1"), "8", True),
    ((*PREFILL_SIZES, "--data-parallel-rank", "1"), "8", True),
    ((*PREFILL_SIZES, "-pp", "2"), "16", False),
]


@pytest.mark.parametrize(("flags", "npus", "enough"), DEVICES, ids=[f"{flags} on {npus}" for flags, npus, _ in DEVICES])
def test_an_engine_needs_its_npus(flags: tuple[str, ...], npus: str, enough: bool) -> None:  # noqa: FBT001
    result = launch(*flags, LOCAL_NPUS=npus)
    if enough:
        accepted(result)
    else:
        assert "is larger than the number of available NPUs" in refusals(result)


def graphs(sizes: object, *more: str) -> Engine | list[str]:
    compilation = {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes}
    speculative = '{"method": "deepseek_mtp", "num_speculative_tokens": 2}'
    return launch("--compilation-config", json.dumps(compilation), "--speculative-config", speculative, *more)


def test_full_decode_graphs_hold_whole_speculative_steps() -> None:
    assert "[145] are not multiples of num_speculative_tokens + 1 (3)" in refusals(graphs([144, 145]))
    accepted(graphs([3, 144]))
    accepted(graphs([145], "--enforce-eager"))


def test_a_headless_worker_has_no_api_and_the_ranks_from_its_first_on() -> None:
    sizes = ("-dp", "8", "-dpl", "2", "-tp", "2", "-dpa", "127.0.0.9", "-dpp", "12321")
    worker = accepted(launch("--headless", "-dpr", "4", *sizes, LOCAL_NPUS="4"))
    assert (worker.headless, list(worker.local_ranks)) == (True, [4, 5])
    assert (worker.data_parallel_address, worker.data_parallel_rpc_port) == ("127.0.0.9", 12321)
    entry = accepted(launch(*sizes, LOCAL_NPUS="4"))
    assert (entry.headless, list(entry.local_ranks)) == (False, [0, 1])


def test_adapters_are_known_by_name_in_both_forms() -> None:
    modules = (f"sql={MODEL}/sql", json.dumps({"name": "poet=1", "path": f"{MODEL}/sql"}))
    assert accepted(launch("--enable-lora", "--lora-modules", *modules)).adapters == ("sql", "poet=1")


def test_an_engine_binds_the_address_of_its_pod_only() -> None:
    assert "[Errno 99]" in refusals(launch("--host", "127.0.0.1", LOCAL_POD_IP="127.1.0.7"))
    accepted(launch("--host", "127.1.0.7", LOCAL_POD_IP="127.1.0.7"))
    accepted(launch("--host", "0.0.0.0", LOCAL_POD_IP="127.1.0.7"))


# The two published examples


def first_example(role: str, engine_id: str) -> list[str]:
    """Flags of examples/models/deepseek-v4-flash as bash passes them on."""
    transfer_config = {
        **(PREFILL if role == "prefill" else DECODE),
        "engine_id": engine_id,
        "kv_connector_module_path": "vllm_ascend.distributed.mooncake_connector",
    }
    speculative = {"num_speculative_tokens": 1 if role == "prefill" else 2, "method": "deepseek_mtp"}
    compilation = '{"cudagraph_mode": "FULL_DECODE_ONLY","cudagraph_capture_sizes":[144]}'
    own = {
        "prefill": "--data-parallel-size 2 --data-parallel-size-local 2 --tensor-parallel-size 8 --enforce-eager "
        "--max-num-batched-tokens 8192 --max-num-seqs 4 --gpu-memory-utilization 0.85",
        "decode": "--data-parallel-size 8 --tensor-parallel-size 2 --enable-expert-parallel --async-scheduling "
        f"--max-num-batched-tokens 144 --max-num-seqs 48 --gpu-memory-utilization 0.88 --compilation-config {'{}'}",
    }[role]
    common = (
        "--host 127.0.1.1 --port 7100 --data-parallel-address 127.0.1.1 --data-parallel-rpc-port 12321 "
        "--enable-expert-parallel --seed 1024 --served-model-name deepseek_v4 --max-model-len 65536 "
        "--no-disable-hybrid-kv-cache-manager --no-enable-prefix-caching --trust-remote-code --quantization ascend"
    )
    return [
        *(compilation if word == "{}" else word for word in f"{common} {own}".split()),
        *("--chat-template", f"{MODEL}/chat_template.jinja"),
        *("--speculative-config", json.dumps(speculative)),
        *("--additional_config", '{"enable_cpu_binding": "true"}'),
        *("--kv-transfer-config", json.dumps(transfer_config, indent=1)),
    ]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_first_example_is_refused_for_its_engine_id_only(role: str) -> None:
    surroundings = {"LOCAL_NPUS": "16", "LOCAL_POD_IP": "127.0.1.1"}
    told = refusals(check(["serve", MODEL, *first_example(role, "$MOONCAKE_ENGINE_ID")], surroundings, V13, FILES.__contains__))
    assert told == "engine_id '$MOONCAKE_ENGINE_ID' is not expanded: it must be unique to each engine"
    repaired = first_example(role, f"deepseekv4-pd-0_{role}-0")
    engine = accepted(check(["serve", MODEL, *repaired], surroundings, V13, FILES.__contains__))
    assert engine.served_model_names == ("deepseek_v4",)
    assert engine.port == 7100


def second_example(role: str, image: str, **environment: str) -> Engine | list[str]:
    """Arguments of the DeepSeek-V2-Lite example, which the image's entrypoint passes on to ``vllm serve``."""
    size = {"dp_size": 2, "tp_size": 2}
    config = {
        "kv_connector": "MooncakeConnectorV1",
        "kv_buffer_device": "npu",
        "kv_role": "kv_producer" if role == "prefill" else "kv_consumer",
        "kv_parallel_size": 1,
        "kv_port": "20001" if role == "prefill" else "20002",
        "engine_id": "0" if role == "prefill" else "1",
        "kv_rank": 0 if role == "prefill" else 1,
        "kv_connector_extra_config": {"prefill": size, "decode": size},
    }
    model = "/mnt/cache/deepseek-ai/DeepSeek-V2-Lite/"
    flags = (
        "--served-model-name deepseek-ai/DeepSeekV2 --tensor-parallel-size 2 --gpu-memory-utilization 0.8 "
        "--max-model-len 8192 --max-num-batched-tokens 8192 --trust-remote-code --enforce-eager"
    )
    argv = ["serve", model, *flags.split(), "--kv-transfer-config", json.dumps(config)]
    return check(argv, {"LOCAL_NPUS": "4", **environment}, image, f"{model}config.json".__eq__)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_second_example_starts_on_its_own_image_once_the_devices_are_named(role: str) -> None:
    assert refusals(second_example(role, V10)) == "PHYSICAL_DEVICES is empty. WARNING: AscendRealDevices NOT SET"
    accepted(second_example(role, V10, PHYSICAL_DEVICES="0,1,2,3"))
    accepted(second_example(role, V10, AscendRealDevices="Ascend910-0,Ascend910-1"))


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_second_example_contradicts_itself_for_later_versions(role: str) -> None:
    told = refusals(second_example(role, V12))
    assert told == f"KV transfer '{role}' config has a conflicting data parallel size. Expected 1, but got 2."
