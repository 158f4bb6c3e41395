"""The engine stand-in refuses what the real engine refuses, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from local.engine.arguments import CONNECTORS as REGISTERED
from local.engine.arguments import NEWEST, Engine, Version, check, parse, registers, version

MODEL = "/models/DeepSeek-V4-Flash-w8a8-mtp"
FILES = {f"{MODEL}/config.json", f"{MODEL}/chat_template.jinja"}
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
    ({"kv_connector": "AscendStoreConnector", "kv_connector_extra_config": {"backend": "mooncake"}}, V13),
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


def test_connectors_inside_a_multi_connector_are_checked_too() -> None:
    multi = {"kv_connector": "MultiConnector", "kv_role": "kv_producer", "engine_id": "a"}
    engine = accepted(transfer({**multi, "kv_connector_extra_config": {"connectors": [PREFILL]}}))
    assert engine.kv_transfer is not None
    assert engine.kv_transfer.hands_over
    wrong = {**PREFILL, "engine_id": "$ID"}
    assert "not expanded" in refusals(transfer({**multi, "kv_connector_extra_config": {"connectors": [wrong]}}))


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


def test_a_headless_worker_has_no_api() -> None:
    assert accepted(launch("--headless", *PREFILL_SIZES)).headless
    assert not accepted(launch(*PREFILL_SIZES)).headless


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
