"""The start scripts run by bash, with a ``vllm`` that records how it was called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from models.role import RoleName
from render import render_deployment
from rules import read
from tests import stacks

PYTHON = f"""#!/bin/sh
exec {sys.executable} -I -S "$@"
"""
"""without what it looks for at its start: the scripts use its own modules only, and are started often here"""
RECORDING_VLLM = f"""#!{sys.executable} -IS
import json, os, sys
json.dump({{"argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid()}}, open(os.environ["RECORD"], "w"))
"""


@dataclass(frozen=True)
class Started:
    """A start of the engine."""

    argv: list[str]
    env: dict[str, str]
    exec: bool
    """whether vllm took the place of the shell, so that it gets the pod's signals"""

    @property
    def flags(self) -> dict[str, str | None]:
        flags: dict[str, str | None] = {}
        for word in self.argv[2:]:
            if word.startswith("--"):
                flags[last := word] = None
            else:
                flags[last] = word
        return flags

    @property
    def kv_transfer_config(self) -> dict[str, Any]:
        config: dict[str, Any] = json.loads(self.flags["--kv-transfer-config"] or "")
        return config


class Starter:
    """Runs a rendered script as a pod would."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.weights = directory / "weights"
        self.weights.mkdir()
        for name in ("config.json", "chat_template.jinja", "quant_model_description.json", "model.safetensors"):
            (self.weights / name).write_text("{}")
        self.path = directory / "bin"
        self.path.mkdir()
        for name, program in (("vllm", RECORDING_VLLM), ("python3", PYTHON)):
            (self.path / name).write_text(program)
            (self.path / name).chmod(0o755)

    def run(
        self, role: RoleName, env: dict[str, str] | None = None, worker: int = 0, **declared: Any
    ) -> tuple[subprocess.CompletedProcess[str], int]:
        """``worker``: index of the pod in its instance; 0 is the entry pod."""
        model = {"weights": {"hostPath": str(self.weights)}, **declared.pop("model", {})}
        stack = read(stacks.config(model=model, **declared))
        rendered = render_deployment(stack.deployments["deepseekv4-pd"], stack.cluster)
        name = f"{role}-worker.sh" if worker else f"{role}.sh"
        script = self.directory / name
        script.write_text(rendered.stable.scripts[role]["data"][name])
        pod = {"POD_IP": "127.0.0.1", "GROUP_NAME": "deepseekv4-pd-0", "ROLE_ID": f"{role}-0"}
        pod |= {"WORKER_INDEX": str(worker), "ENTRY_ADDRESS": "localhost"}
        environment = {
            "PATH": f"{self.path}:{os.environ['PATH']}",
            "RECORD": str(self.directory / "record"),
            **pod,
            **(env or {}),
        }
        with subprocess.Popen(
            ["bash", str(script)], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            out, err = process.communicate(timeout=20)
        return subprocess.CompletedProcess([], process.returncode, out, err), process.pid

    def start(self, role: RoleName, env: dict[str, str] | None = None, worker: int = 0, **declared: Any) -> Started:
        run, pid = self.run(role, env, worker, **declared)
        assert run.returncode == 0, run.stderr
        record = json.loads((self.directory / "record").read_text())
        return Started(record["argv"], record["env"], exec=record["pid"] == pid)


@pytest.fixture
def starter(tmp_path: Path) -> Starter:
    return Starter(tmp_path)


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        (
            "prefill",
            {
                "--data-parallel-size": "2",
                "--data-parallel-size-local": "2",
                "--tensor-parallel-size": "8",
                "--max-num-batched-tokens": "8192",
                "--max-num-seqs": "4",
                "--enforce-eager": None,
                "--gpu-memory-utilization": "0.85",
            },
        ),
        (
            "decode",
            {
                "--data-parallel-size": "8",
                "--data-parallel-size-local": "8",
                "--tensor-parallel-size": "2",
                "--max-num-batched-tokens": "144",
                "--max-num-seqs": "48",
                "--async-scheduling": None,
                "--gpu-memory-utilization": "0.88",
            },
        ),
    ],
)
def test_each_role_of_the_first_seed_starts_with_its_figures(
    starter: Starter, role: RoleName, expected: dict[str, str | None]
) -> None:
    started = starter.start(role)
    assert started.argv[:2] == ["serve", str(starter.weights)]
    shared = {"--port": "7100", "--served-model-name": "deepseek_v4", "--max-model-len": "65536", "--quantization": "ascend"}
    assert started.flags.items() >= {**expected, **shared}.items()


def test_only_decode_captures_graphs_and_for_exactly_its_full_batch(starter: Starter) -> None:
    assert "--compilation-config" not in starter.start("prefill").flags
    decode = starter.start("decode").flags
    assert json.loads(decode["--compilation-config"] or "") == {
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [144],
    }
    assert "--enforce-eager" not in decode


def test_an_edit_of_the_batch_moves_the_capture_size_with_it(starter: Starter) -> None:
    decode = starter.start("decode", decode={"batching": {"maxNumSeqs": 32, "maxNumBatchedTokens": 96}}).flags
    assert json.loads(decode["--compilation-config"] or "")["cudagraph_capture_sizes"] == [96]


def test_the_engine_id_is_expanded_and_differs_between_pods_replicas_roles_and_groups(starter: Starter) -> None:
    pods: list[tuple[RoleName, str, str, int]] = [
        ("prefill", "deepseekv4-pd-0", "prefill-0", 0),
        ("prefill", "deepseekv4-pd-0", "prefill-1", 0),
        ("decode", "deepseekv4-pd-0", "decode-0", 0),
        ("decode", "deepseekv4-pd-0", "decode-0", 1),
        ("decode", "deepseekv4-pd-1", "decode-0", 0),
    ]
    ids = [
        starter.start(role, {"GROUP_NAME": group, "ROLE_ID": role_id}, pod, **SEVERAL_PODS).kv_transfer_config["engine_id"]
        for role, group, role_id, pod in pods
    ]
    assert ids == [f"{group}_{role_id}_{pod}" for _, group, role_id, pod in pods]


def test_producer_and_consumer_agree_on_both_roles_sizes(starter: Starter) -> None:
    declared: dict[str, Any] = {"prefill": {"parallelism": {"dp": 1, "tp": 16}}, "decode": {"parallelism": {"dp": 4, "tp": 4}}}
    prefill = starter.start("prefill", **declared).kv_transfer_config
    decode = starter.start("decode", **declared).kv_transfer_config
    assert (prefill["kv_role"], decode["kv_role"]) == ("kv_producer", "kv_consumer")
    expected = {"prefill": {"dp_size": 1, "tp_size": 16}, "decode": {"dp_size": 4, "tp_size": 4}}
    assert prefill["kv_connector_extra_config"] == decode["kv_connector_extra_config"] == expected


def test_the_engine_replaces_the_shell_so_that_it_gets_the_pods_signals(starter: Starter) -> None:
    assert starter.start("decode").exec


def test_the_network_interface_is_the_one_that_carries_the_pods_address(starter: Starter) -> None:
    env = starter.start("prefill", {"POD_IP": "127.0.0.1"}).env
    assert {env[name] for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")} == {"lo"}
    assert env["HCCL_IF_IP"] == env["VLLM_HOST_IP"] == "127.0.0.1"


def test_an_address_that_no_interface_carries_stops_the_start_with_the_way_out(starter: Starter) -> None:
    run, _ = starter.run("prefill", {"POD_IP": "203.0.113.9"})
    assert run.returncode != 0
    assert "declare networkInterface" in run.stderr


def test_a_declared_network_interface_is_taken_as_it_is(starter: Starter) -> None:
    env = starter.start("prefill", {"POD_IP": "203.0.113.9"}, networkInterface="enp23s0f3").env
    assert env["GLOO_SOCKET_IFNAME"] == "enp23s0f3"


@pytest.mark.parametrize("missing", ["config.json", "chat_template.jinja", "quant_model_description.json", "model.safetensors"])
def test_missing_files_stop_the_start_and_are_named(starter: Starter, missing: str) -> None:
    (starter.weights / missing).unlink()
    run, _ = starter.run("decode")
    assert run.returncode == 1
    assert run.stderr.startswith(f"{starter.weights} is not whole on this node, it lacks ")
    assert missing.replace("model.safetensors", "weight files (*.safetensors)") in run.stderr


def test_all_that_is_missing_is_told_in_one_line(starter: Starter) -> None:
    for file in starter.weights.iterdir():
        file.unlink()
    run, _ = starter.run("prefill")
    (line,) = run.stderr.splitlines()
    lacked = "config.json; quant_model_description.json; chat_template.jinja; weight files (*.safetensors)"
    assert line.endswith(f"it lacks {lacked}")


def shards(starter: Starter, *, total: int, absent: int, index: str = "model.safetensors.index.json") -> None:
    """An index of ``total`` weight files, of which the first ``absent`` aren't there."""
    names = [f"{index[:5]}-{number:05}.safetensors" for number in range(total)]
    (starter.weights / index).write_text(json.dumps({"weight_map": {f"tensor.{name}": name for name in names}}))
    for name in names[absent:]:
        (starter.weights / name).touch()


def test_every_weight_file_of_the_index_must_be_there(starter: Starter) -> None:
    shards(starter, total=9, absent=7)
    run, _ = starter.run("prefill")
    assert run.returncode == 1
    first = ", ".join(f"model-{number:05}.safetensors" for number in range(5))
    assert run.stderr.endswith(f"it lacks 7 weight files: {first}, ...\n")
    shards(starter, total=9, absent=0)
    starter.start("prefill")


def test_weights_in_two_forms_are_whole_if_one_of_them_is(starter: Starter) -> None:
    shards(starter, total=3, absent=3)
    shards(starter, total=2, absent=0, index="quant_model_weights.safetensors.index.json")
    starter.start("prefill")


def test_an_index_that_was_not_copied_wholly_is_named(starter: Starter) -> None:
    (starter.weights / "model.safetensors.index.json").write_text('{"weight_map": {"a":')
    run, _ = starter.run("prefill")
    assert run.returncode == 1
    assert f"{starter.weights}/model.safetensors.index.json can't be read" in run.stderr


def test_weights_in_pytorchs_format_are_weights(starter: Starter) -> None:
    (starter.weights / "model.safetensors").rename(starter.weights / "pytorch_model.bin")
    starter.start("prefill")


def test_weights_without_quantization_need_no_description_of_it(starter: Starter) -> None:
    (starter.weights / "quant_model_description.json").unlink()
    assert "--quantization" not in starter.start("prefill", model={"quantization": None}).flags


@pytest.mark.parametrize("served", ["org/Model-1", "a b", "it's", 'a"b', "$HOME", "`id`", "a\\b", "${GROUP_NAME}_${ROLE_ID}"])
def test_a_model_name_reaches_the_engine_letter_by_letter(starter: Starter, served: str) -> None:
    assert starter.start("prefill", model={"served": served}).flags["--served-model-name"] == served


def test_extra_arguments_reach_the_engine_last_and_unchanged(starter: Starter) -> None:
    extra = ["--uvicorn-log-level", "$warn ing"]
    assert starter.start("prefill", prefill={"extraArgs": extra}).argv[-2:] == extra


OLD_RELEASE: dict[str, Any] = {"recipe": "deepseek-v2-lite-a3"}


def test_an_old_release_gets_its_device_numbers_and_legacy_keys(starter: Starter) -> None:
    started = starter.start("decode", {"ASCEND_REAL_DEVICES": "Ascend910-11,Ascend910-2"}, **OLD_RELEASE)
    assert started.env["PHYSICAL_DEVICES"] == "2,11"
    assert started.kv_transfer_config.items() >= {"kv_rank": 1, "kv_parallel_size": 1, "kv_buffer_device": "npu"}.items()


def test_an_old_release_without_device_numbers_stops_with_the_annotation_that_is_missing(starter: Starter) -> None:
    run, _ = starter.run("decode", **OLD_RELEASE)
    assert run.returncode == 1
    assert "huawei.com/AscendReal" in run.stderr


def test_a_current_release_gets_neither_device_numbers_nor_legacy_keys(starter: Starter) -> None:
    started = starter.start("decode", {"ASCEND_REAL_DEVICES": "Ascend910-2"})
    assert "PHYSICAL_DEVICES" not in started.env
    assert not started.kv_transfer_config.keys() & {"kv_rank", "kv_parallel_size", "kv_buffer_device"}


# An instance over several pods: decode with 8 ranks of 2 dies over 4 pods

SEVERAL_PODS: dict[str, Any] = {"decode": {"pods": 4}, "hostNetwork": False}


def test_the_entry_pod_has_its_share_of_the_ranks_and_the_api(starter: Starter) -> None:
    flags = starter.start("decode", **SEVERAL_PODS).flags
    assert (flags["--data-parallel-size"], flags["--data-parallel-size-local"]) == ("8", "2")
    assert (flags["--host"], flags["--data-parallel-address"]) == ("127.0.0.1", "127.0.0.1")
    assert not flags.keys() & {"--headless", "--data-parallel-start-rank"}


@pytest.mark.parametrize(("worker", "first"), [(1, "2"), (3, "6")])
def test_a_worker_has_the_next_share_and_joins_the_entry_pod_by_its_address(starter: Starter, worker: int, first: str) -> None:
    started = starter.start("decode", {"POD_IP": "127.0.0.7"}, worker, networkInterface="lo", **SEVERAL_PODS)
    assert started.exec
    expected = {
        "--headless": None,
        "--data-parallel-start-rank": first,
        "--data-parallel-size": "8",
        "--data-parallel-size-local": "2",
        "--data-parallel-address": "127.0.0.1",
        "--data-parallel-rpc-port": "12321",
        "--tensor-parallel-size": "2",
    }
    assert started.flags.items() >= expected.items()
    assert not started.flags.keys() & {"--host", "--port", "--chat-template"}
    assert started.env["VLLM_HOST_IP"] == "127.0.0.7"


def test_entry_and_workers_compute_the_same_way(starter: Starter) -> None:
    started = [starter.start("decode", worker=index, **SEVERAL_PODS) for index in (0, 1)]
    own = {"--host", "--port", "--chat-template", "--headless", "--data-parallel-start-rank", "--data-parallel-address"}
    entry, worker = ({name: one.flags[name] for name in one.flags.keys() - own - {"--kv-transfer-config"}} for one in started)
    assert entry == worker
    entry, worker = (one.kv_transfer_config | {"engine_id": None} for one in started)
    assert entry == worker


def test_a_worker_whose_entry_pod_never_gets_an_address_says_so_and_gives_up(starter: Starter) -> None:
    (starter.path / "getent").write_text("#!/bin/sh\nexit 2\n")
    (starter.path / "getent").chmod(0o755)
    soon: dict[str, Any] = {"readiness": {"loadTimeout": "3s"}, "accept": {"PD840": "nothing is loaded"}}
    run, _ = starter.run("decode", {"ENTRY_ADDRESS": "entry.default"}, 1, **SEVERAL_PODS, **soon)
    assert run.returncode == 1
    assert "waiting for the address of entry.default" in run.stdout
    assert "entry.default has no address after" in run.stderr


def test_only_instances_of_several_pods_have_a_worker_script() -> None:
    stack = read(stacks.config(**SEVERAL_PODS))
    scripts = render_deployment(stack.deployments["deepseekv4-pd"], stack.cluster).stable.scripts
    assert scripts["prefill"]["data"].keys() == {"prefill.sh", "drain.py"}
    assert scripts["decode"]["data"].keys() == {"decode.sh", "decode-worker.sh", "drain.py"}


# What else a role can say


def test_pipeline_parallelism_of_prefill_is_known_to_both_roles(starter: Starter) -> None:
    declared: dict[str, Any] = {"prefill": {"parallelism": {"dp": 1, "tp": 8, "pp": 2}}}
    assert starter.start("prefill", **declared).flags["--pipeline-parallel-size"] == "2"
    decode = starter.start("decode", **declared)
    assert "--pipeline-parallel-size" not in decode.flags
    extra = decode.kv_transfer_config["kv_connector_extra_config"]
    assert extra == {"prefill": {"dp_size": 1, "tp_size": 8, "pp_size": 2}, "decode": {"dp_size": 8, "tp_size": 2}}


@pytest.mark.parametrize(("model", "block"), [({}, "128"), ({"blockSize": 64}, "64")])
def test_context_parallel_ranks_keep_whole_blocks(starter: Starter, model: dict[str, Any], block: str) -> None:
    role = {"parallelism": {"dp": 2, "tp": 8, "dcp": 8}}
    declared: dict[str, Any] = {"prefill": role, "decode": role, "model": model}
    flags = starter.start("decode", **declared).flags
    sizes = [flags[name] for name in ("--decode-context-parallel-size", "--cp-kv-cache-interleave-size", "--block-size")]
    assert sizes == ["8", block, block]


def test_the_block_size_is_that_of_both_roles_or_the_engines_own(starter: Starter) -> None:
    roles: list[RoleName] = ["prefill", "decode"]
    assert [starter.start(role, model={"blockSize": 32}).flags["--block-size"] for role in roles] == ["32", "32"]
    assert "--block-size" not in starter.start("decode").flags


def test_piecewise_graphs_are_captured_for_a_full_batch_too(starter: Starter) -> None:
    flags = starter.start("prefill", prefill={"graph": "PIECEWISE"}).flags
    assert json.loads(flags["--compilation-config"] or "") == {"cudagraph_mode": "PIECEWISE", "cudagraph_capture_sizes": [8]}
    assert "--enforce-eager" not in flags


@pytest.mark.parametrize("absolute", [True, False])
def test_a_draft_model_is_given_and_must_be_there(starter: Starter, *, absolute: bool) -> None:
    draft = starter.weights / "draft"
    written = str(draft) if absolute else "draft"
    speculative = {"method": "eagle3", "numSpeculativeTokens": 3, "model": written}
    run, _ = starter.run("decode", decode={"speculative": speculative})
    assert f"{draft}/config.json" in run.stderr
    draft.mkdir()
    (draft / "config.json").touch()
    flags = starter.start("decode", decode={"speculative": speculative}).flags
    assert json.loads(flags["--speculative-config"] or "") == {
        "method": "eagle3",
        "num_speculative_tokens": 3,
        "model": str(draft),
    }


def test_seed_zero_is_a_seed(starter: Starter) -> None:
    assert starter.start("prefill", model={"seed": 0}).flags["--seed"] == "0"


def test_adapters_are_loaded_from_the_weights_directory_by_either_way_to_write_it_and_must_be_there(starter: Starter) -> None:
    elsewhere = starter.weights / "elsewhere"
    adapters = {"org/sql=1": "adapters/sql", "poet": str(elsewhere)}
    declared: dict[str, Any] = {"model": {"lora": {"adapters": adapters, "maxRank": 64, "maxLoaded": 2}}}
    run, _ = starter.run("decode", **declared)
    assert f"it lacks {starter.weights}/adapters/sql/adapter_config.json; {elsewhere}/adapter_config.json" in run.stderr
    for directory in (starter.weights / "adapters/sql", elsewhere):
        directory.mkdir(parents=True)
        (directory / "adapter_config.json").touch()
    started = starter.start("decode", **declared)
    modules = started.argv[started.argv.index("--lora-modules") + 1 :][:2]
    assert [json.loads(module) for module in modules] == [
        {"name": "org/sql=1", "path": f"{starter.weights}/adapters/sql"},
        {"name": "poet", "path": str(elsewhere)},
    ]
    assert started.flags.items() >= {"--enable-lora": None, "--max-lora-rank": "64", "--max-loras": "2"}.items()


def test_what_decode_does_with_a_failed_transfer_is_left_to_the_engine_unless_declared(starter: Starter) -> None:
    assert "kv_load_failure_policy" not in starter.start("decode").kv_transfer_config
    config = starter.start("decode", kvTransfer={"loadFailurePolicy": "recompute"}).kv_transfer_config
    assert config["kv_load_failure_policy"] == "recompute"


@pytest.mark.parametrize(("version", "wanted"), [("v0.11.0", True), ("v0.12.0rc1", False)])
def test_the_direct_transport_is_asked_for_where_releases_want_that(starter: Starter, version: str, *, wanted: bool) -> None:
    release: dict[str, Any] = {"engine": {"version": version}, "decode": {"asyncScheduling": False}}
    started = starter.start("prefill", {"ASCEND_REAL_DEVICES": "Ascend910-0"}, **release)
    assert started.kv_transfer_config["kv_connector_extra_config"].get("use_ascend_direct", False) is wanted


def test_the_interconnect_of_a_family_is_told_to_the_connector(starter: Starter) -> None:
    cluster = {"npu": {"family": "950", "devicePlugin": "mindcluster"}}
    roles: dict[str, Any] = {"prefill": {"parallelism": {"dp": 1}}, "decode": {"parallelism": {"dp": 4}}}
    extra = starter.start("prefill", cluster=cluster, **roles).kv_transfer_config["kv_connector_extra_config"]
    assert extra["ascend_local_comm_res_path"] == "/etc/hixlep"


POOL: dict[str, Any] = {"kvTransfer": {"pool": {"master": "mooncake-master.kv:50088", "segmentSize": "4Gi", "loadAsync": True}}}


@pytest.mark.parametrize(("role", "kv_role", "lookup"), [("prefill", "kv_producer", "0"), ("decode", "kv_consumer", "1")])
def test_with_a_pool_the_declared_connector_comes_first_and_the_store_second(
    starter: Starter, role: RoleName, kv_role: str, lookup: str
) -> None:
    alone = starter.start(role).kv_transfer_config
    config = starter.start(role, **POOL).kv_transfer_config
    direct, store = config.pop("kv_connector_extra_config")["connectors"]
    assert config == {"kv_connector": "MultiConnector", "kv_role": kv_role, "engine_id": f"deepseekv4-pd-0_{role}-0_0"}
    assert direct | {"engine_id": config["engine_id"]} == alone
    assert "engine_id" not in direct
    assert store == {
        "kv_connector": "AscendStoreConnector",
        "kv_role": kv_role,
        "kv_connector_extra_config": {"backend": "mooncake", "lookup_rpc_port": lookup, "load_async": True},
    }


def test_the_pools_place_and_size_stand_in_its_configuration_file() -> None:
    stack = read(stacks.config(**POOL))
    scripts = render_deployment(stack.deployments["deepseekv4-pd"], stack.cluster).stable.scripts
    (written,) = {item["data"]["mooncake.json"] for item in scripts.values()}
    config = json.loads(written)
    assert (config["master_server_address"], config["global_segment_size"]) == ("mooncake-master.kv:50088", 4 * 2**30)
    assert (config["metadata_server"], config["protocol"]) == ("P2PHANDSHAKE", "ascend")
