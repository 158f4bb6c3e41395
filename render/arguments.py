"""Arguments of ``vllm serve``, derived from the declaration. Sources: vLLM's and vLLM-Ascend's argument references."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

import catalog
from models.deployment import ROLES, Deployment, RoleName

KV_ROLE = {"prefill": "kv_producer", "decode": "kv_consumer"}
ENGINE_ID = "${GROUP_NAME}_${ROLE_ID}"
"""Expanded by the start script: unique for every role replica of every group"""


@dataclass(frozen=True)
class Argument:
    """One argument as a start script writes it."""

    flag: str
    value: str | None = None
    """shell text, quoted already"""

    def __str__(self) -> str:
        return self.flag if self.value is None else f"{self.flag} {self.value}"


def vllm_arguments(deployment: Deployment, role_name: RoleName) -> tuple[Argument, ...]:
    """Arguments after ``vllm serve <weights>`` for one role; ``--kv-transfer-config`` is the script's own."""
    role, model = deployment.role(role_name), deployment.model
    parallelism = role.parallelism
    optional: tuple[tuple[str, object], ...] = (
        ("--max-num-seqs", role.batching.max_num_seqs),
        ("--enable-expert-parallel", parallelism.expert_parallel),
        ("--seed", model.seed),
        ("--quantization", model.quantization),
        ("--trust-remote-code", model.trust_remote_code),
        ("--no-disable-hybrid-kv-cache-manager", model.hybrid_kv_cache_manager is True),
        ("--disable-hybrid-kv-cache-manager", model.hybrid_kv_cache_manager is False),
        ("--enforce-eager", role.graph == "eager"),
        ("--async-scheduling", role.async_scheduling),
        ("--speculative-config", _speculative(deployment, role_name)),
        ("--compilation-config", _compilation(deployment, role_name)),
        ("--additional-config", role.additional_config or None),
    )
    return (
        Argument("--served-model-name", shlex.quote(model.served)),
        Argument("--host", '"$POD_IP"'),
        Argument("--port", str(deployment.port)),
        *_data_parallel(deployment, role_name),
        Argument("--tensor-parallel-size", str(parallelism.tp)),
        Argument("--max-model-len", str(model.max_model_len)),
        Argument("--max-num-batched-tokens", str(role.batching.max_num_batched_tokens)),
        Argument("--gpu-memory-utilization", str(role.gpu_memory_utilization)),
        Argument("--enable-prefix-caching" if model.prefix_caching else "--no-enable-prefix-caching"),
        *(_argument(flag, value) for flag, value in optional if value is not None and value is not False),
        *((Argument("--chat-template", '"$WEIGHTS/' + model.chat_template + '"'),) if model.chat_template else ()),
    )


def kv_transfer_config(deployment: Deployment, role_name: RoleName) -> dict[str, Any]:
    """``--kv-transfer-config`` of one role. Both carry both sizes: an engine checks its own and maps the other's ranks."""
    config: dict[str, Any] = {
        "kv_connector": deployment.kv_transfer.connector,
        "kv_role": KV_ROLE[role_name],
        "kv_port": str(deployment.kv_transfer.port),
        "engine_id": ENGINE_ID,
    }
    legacy = catalog.engine().legacy_kv_transfer_keys
    if catalog.before(deployment.engine.version, legacy.until):
        config |= {**legacy.shared, legacy.rank: ROLES.index(role_name)}
    config["kv_connector_extra_config"] = {
        name: {
            "dp_size": deployment.role(name).parallelism.dp,
            "tp_size": deployment.role(name).parallelism.tp,
        }
        for name in ROLES
    }
    return config


def tokens_per_decode_step(deployment: Deployment, role_name: RoleName) -> int | None:
    """Tokens that one engine computes in a step in which every sequence decodes; None where the engine's default holds."""
    role = deployment.role(role_name)
    if role.batching.max_num_seqs is None:
        return None
    drafted = role.speculative.num_speculative_tokens if role.speculative else 0
    return role.batching.max_num_seqs * (drafted + 1)


def derived_flags(deployment: Deployment, role_name: RoleName) -> frozenset[str]:
    """Flags that the declaration decides, given or not: what ``extraArgs`` may not repeat."""
    given = {argument.flag for argument in vllm_arguments(deployment, role_name)}
    return frozenset(given | _ALWAYS_DERIVED)


_ALWAYS_DERIVED = frozenset(
    {
        "--additional-config",
        "--chat-template",
        "--compilation-config",
        "--data-parallel-address",
        "--data-parallel-rpc-port",
        "--data-parallel-size",
        "--data-parallel-size-local",
        "--disable-hybrid-kv-cache-manager",
        "--enable-expert-parallel",
        "--enable-prefix-caching",
        "--enforce-eager",
        "--async-scheduling",
        "--kv-transfer-config",
        "--max-num-seqs",
        "--no-disable-hybrid-kv-cache-manager",
        "--no-enable-prefix-caching",
        "--quantization",
        "--seed",
        "--speculative-config",
        "--trust-remote-code",
    }
)


def _argument(flag: str, value: object) -> Argument:
    if value is True:
        return Argument(flag)
    return Argument(flag, shlex.quote(value if isinstance(value, str) else json.dumps(value)))


def _data_parallel(deployment: Deployment, role_name: RoleName) -> tuple[Argument, ...]:
    size = deployment.role(role_name).parallelism.dp
    if size == 1:
        return ()
    # Internal data parallelism: one API server a pod, because Kthena's router knows one port a pod.
    return (
        Argument("--data-parallel-size", str(size)),
        Argument("--data-parallel-size-local", str(size)),
        Argument("--data-parallel-address", '"$POD_IP"'),
        Argument("--data-parallel-rpc-port", str(deployment.data_parallel_rpc_port)),
    )


def _speculative(deployment: Deployment, role_name: RoleName) -> dict[str, Any] | None:
    speculative = deployment.role(role_name).speculative
    if speculative is None:
        return None
    return {"method": speculative.method, "num_speculative_tokens": speculative.num_speculative_tokens}


def _compilation(deployment: Deployment, role_name: RoleName) -> dict[str, Any] | None:
    role = deployment.role(role_name)
    if role.graph == "eager":
        return None
    tokens = tokens_per_decode_step(deployment, role_name)
    return {"cudagraph_mode": role.graph} | ({} if tokens is None else {"cudagraph_capture_sizes": [tokens]})
