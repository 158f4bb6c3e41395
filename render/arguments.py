"""Arguments of ``vllm serve``, derived from the declaration. Sources: vLLM's and vLLM-Ascend's argument references."""

from __future__ import annotations

import json
import shlex
from typing import Any

import catalog
from models.deployment import ROLES, Deployment, RoleName

KV_ROLE = {"prefill": "kv_producer", "decode": "kv_consumer"}
ENGINE_ID = "${GROUP_NAME}_${ROLE_ID}"
"""Expanded by the start script: unique for every role replica of every group"""


class Shell(str):
    """A value that the start script's shell expands, quoted already."""

    __slots__ = ()


Value = Shell | str | int | float | bool | dict[str, Any] | None
"""True is a flag alone; False and None leave it out; a dict is JSON"""


def vllm_arguments(deployment: Deployment, role_name: RoleName) -> list[str]:
    """Words of shell after ``vllm serve <weights>``, one for each flag with its value."""
    return [_word(flag, value) for flag, value in _flags(deployment, role_name).items() if value not in (None, False)]


def derived_flags(deployment: Deployment, role_name: RoleName) -> frozenset[str]:
    """Flags that the declaration decides, given or left out: what ``extraArgs`` may not say."""
    return frozenset(_flags(deployment, role_name))


def _flags(deployment: Deployment, role_name: RoleName) -> dict[str, Value]:
    role, model = deployment.role(role_name), deployment.model
    dp = role.parallelism.dp if role.parallelism.dp > 1 else None
    hybrid = model.hybrid_kv_cache_manager
    return {
        "--served-model-name": model.served,
        "--host": Shell('"$POD_IP"'),
        "--port": deployment.port,
        # Internal data parallelism: one API server a pod, because Kthena's router knows one port a pod.
        "--data-parallel-size": dp,
        "--data-parallel-size-local": dp,
        "--data-parallel-address": dp and Shell('"$POD_IP"'),
        "--data-parallel-rpc-port": dp and deployment.data_parallel_rpc_port,
        "--headless": None,
        "--tensor-parallel-size": role.parallelism.tp,
        "--pipeline-parallel-size": None,
        "--enable-expert-parallel": role.parallelism.expert_parallel,
        "--max-model-len": model.max_model_len,
        "--max-num-batched-tokens": role.batching.max_num_batched_tokens,
        "--max-num-seqs": role.batching.max_num_seqs,
        "--gpu-memory-utilization": role.gpu_memory_utilization,
        "--enable-prefix-caching": role.prefix_caching,
        "--no-enable-prefix-caching": not role.prefix_caching,
        "--disable-hybrid-kv-cache-manager": hybrid is False,
        "--no-disable-hybrid-kv-cache-manager": hybrid is True,
        "--enforce-eager": role.graph == "eager",
        "--compilation-config": _compilation(deployment, role_name),
        "--async-scheduling": role.async_scheduling,
        "--speculative-config": _speculative(deployment, role_name),
        "--quantization": model.quantization,
        "--chat-template": model.chat_template and Shell(f'"$WEIGHTS/{model.chat_template}"'),
        "--trust-remote-code": model.trust_remote_code,
        "--seed": model.seed,
        "--additional-config": role.additional_config or None,
        # laid out by the script, where the shell expands the engine id
        "--kv-transfer-config": Shell('"$KV_TRANSFER_CONFIG"'),
    }


def _word(flag: str, value: Value) -> str:
    if value is True:
        return flag
    if isinstance(value, Shell):
        return f"{flag} {value}"
    return f"{flag} {shlex.quote(json.dumps(value) if isinstance(value, dict) else str(value))}"


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
        name: {"dp_size": parallelism.dp, "tp_size": parallelism.tp}
        for name in ROLES
        for parallelism in (deployment.role(name).parallelism,)
    }
    return config


def tokens_per_decode_step(deployment: Deployment, role_name: RoleName) -> int | None:
    """Tokens that one engine computes in a step in which every sequence decodes; None where the engine's default holds."""
    role = deployment.role(role_name)
    if role.batching.max_num_seqs is None:
        return None
    drafted = role.speculative.num_speculative_tokens if role.speculative else 0
    return role.batching.max_num_seqs * (drafted + 1)


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
