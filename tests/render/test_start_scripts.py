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

from models.deployment import RoleName
from render import render_deployment
from rules import read
from tests import stacks

RECORDING_VLLM = f"""#!{sys.executable}
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
        for name in ("config.json", "chat_template.jinja"):
            (self.weights / name).write_text("{}")
        self.path = directory / "bin"
        self.path.mkdir()
        (self.path / "vllm").write_text(RECORDING_VLLM)
        (self.path / "vllm").chmod(0o755)

    def run(
        self, role: RoleName, env: dict[str, str] | None = None, **declared: Any
    ) -> tuple[subprocess.CompletedProcess[str], int]:
        model = {"weights": {"hostPath": str(self.weights)}, **declared.pop("model", {})}
        stack = read(stacks.config(model=model, **declared))
        rendered = render_deployment(stack.deployments["deepseekv4-pd"], stack.cluster)
        script = self.directory / f"{role}.sh"
        script.write_text(rendered.scripts["data"][f"{role}.sh"])
        pod = {"POD_IP": "127.0.0.1", "GROUP_NAME": "deepseekv4-pd-0", "ROLE_ID": f"{role}-0"}
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

    def start(self, role: RoleName, env: dict[str, str] | None = None, **declared: Any) -> Started:
        run, pid = self.run(role, env, **declared)
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


def test_the_engine_id_is_expanded_and_differs_between_replicas_roles_and_groups(starter: Starter) -> None:
    pods: list[tuple[RoleName, str, str]] = [
        ("prefill", "deepseekv4-pd-0", "prefill-0"),
        ("prefill", "deepseekv4-pd-0", "prefill-1"),
        ("decode", "deepseekv4-pd-0", "decode-0"),
        ("decode", "deepseekv4-pd-1", "decode-0"),
    ]
    ids = [
        starter.start(role, {"GROUP_NAME": group, "ROLE_ID": role_id}).kv_transfer_config["engine_id"]
        for role, group, role_id in pods
    ]
    assert ids == [f"{group}_{role_id}" for _, group, role_id in pods]


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


@pytest.mark.parametrize("missing", ["config.json", "chat_template.jinja"])
def test_missing_weights_stop_the_start_and_are_named(starter: Starter, missing: str) -> None:
    (starter.weights / missing).unlink()
    run, _ = starter.run("decode")
    assert run.returncode == 1
    assert f"{starter.weights}/{missing} is missing" in run.stderr


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
