"""Arguments of ``vllm serve``, derived from the declaration. Sources: vLLM's and vLLM-Ascend's argument references."""

from __future__ import annotations

import json
import posixpath
import shlex
from typing import Any

import catalog
from catalog.types import NpuFamily
from models.deployment import Deployment
from models.quantities import amount
from models.role import ROLES, RoleName

KV_ROLE = {"prefill": "kv_producer", "decode": "kv_consumer"}
POOL_CONNECTOR = "AscendStoreConnector"
ENGINE_ID = "${GROUP_NAME}_${ROLE_ID}_${WORKER_INDEX}"
"""Expanded by the start script: unique for every pod. vLLM makes it unique for the ranks of one pod (``_dp0`` and so on), and
counts them anew in each pod of an instance (``data_parallel_rank_local`` in v1/engine/core.py)"""
DEFAULT_BLOCK_SIZE = 128
"""tokens: what vLLM-Ascend takes where no size is given (``refresh_block_size``)"""


class Shell(str):
    """A value that the start script's shell expands, quoted already."""

    __slots__ = ()


Value = Shell | str | int | float | bool | dict[str, Any] | list[dict[str, Any]] | None
"""True is a flag alone; False and None leave it out; a dict is JSON, a list is several"""


def vllm_arguments(deployment: Deployment, role_name: RoleName, *, worker: bool = False) -> list[str]:
    """Words of shell after ``vllm serve <weights>``, one for each flag with its value."""
    flags = _flags(deployment, role_name) | (_worker_flags(deployment, role_name) if worker else {})
    return [_word(flag, value) for flag, value in flags.items() if value is not None and value is not False]


def derived_flags(deployment: Deployment, role_name: RoleName) -> frozenset[str]:
    """Flags that the declaration decides, given or left out: what ``extraArgs`` may not say."""
    return frozenset(_flags(deployment, role_name))


def _flags(deployment: Deployment, role_name: RoleName) -> dict[str, Value]:
    role, model = deployment.role(role_name), deployment.model
    parallelism = role.parallelism
    dp = parallelism.dp if parallelism.dp > 1 else None
    hybrid = model.hybrid_kv_cache_manager
    lora = model.lora
    block_size = model.block_size or (DEFAULT_BLOCK_SIZE if parallelism.dcp > 1 else None)
    return {
        "--model": None,
        "--config": None,  # a file that could say all of this once more
        "--served-model-name": model.served,
        "--host": Shell('"$POD_IP"'),
        "--port": deployment.port,
        "--uds": None,
        # Internal data parallelism: one API server an instance, because Kthena's router knows one port a pod.
        "--data-parallel-size": dp,
        "--data-parallel-size-local": dp and role.data_parallel_ranks_per_pod,
        "--data-parallel-address": dp and Shell('"$POD_IP"'),
        "--data-parallel-rpc-port": dp and deployment.data_parallel_rpc_port,
        "--data-parallel-start-rank": None,
        "--data-parallel-rank": None,
        "--data-parallel-backend": None,
        "--data-parallel-external-lb": None,
        "--data-parallel-hybrid-lb": None,
        "--headless": None,
        "--api-server-count": None,
        # A rank never crosses pods.
        "--nnodes": None,
        "--node-rank": None,
        "--master-addr": None,
        "--master-port": None,
        "--tensor-parallel-size": parallelism.tp,
        "--pipeline-parallel-size": parallelism.pp if parallelism.pp > 1 else None,
        "--prefill-context-parallel-size": None,
        "--decode-context-parallel-size": parallelism.dcp if parallelism.dcp > 1 else None,
        # KV transfer moves whole blocks, so each of them must lie on one rank.
        "--cp-kv-cache-interleave-size": block_size if parallelism.dcp > 1 else None,
        "--dcp-kv-cache-interleave-size": None,
        "--enable-expert-parallel": parallelism.expert_parallel,
        "--max-model-len": model.max_model_len,
        "--block-size": block_size,
        "--max-num-batched-tokens": role.batching.max_num_batched_tokens,
        "--max-num-seqs": role.batching.max_num_seqs,
        "--gpu-memory-utilization": role.gpu_memory_utilization,
        "--enable-prefix-caching": role.prefix_caching,
        "--no-enable-prefix-caching": not role.prefix_caching,
        "--disable-hybrid-kv-cache-manager": hybrid is False,
        "--no-disable-hybrid-kv-cache-manager": hybrid is True,
        "--enforce-eager": role.graph == "eager",
        "--compilation-config": _compilation(deployment, role_name),
        "--cudagraph-capture-sizes": None,
        "--cuda-graph-sizes": None,
        "--max-cudagraph-capture-size": None,
        "--async-scheduling": role.async_scheduling,
        "--speculative-config": _speculative(deployment, role_name),
        "--quantization": model.quantization,
        "--chat-template": model.chat_template and Shell(f'"$WEIGHTS/{model.chat_template}"'),
        "--trust-remote-code": model.trust_remote_code,
        "--seed": model.seed,
        "--enable-lora": lora is not None,
        # as JSON: vLLM's name=path has no room for a name with a sign of its own
        "--lora-modules": [{"name": name, "path": path} for name, path in adapter_directories(deployment).items()] or None,
        "--max-lora-rank": lora.max_rank if lora else None,
        "--max-loras": lora.max_loaded if lora else None,
        "--additional-config": role.additional_config or None,
        # laid out by the script, where the shell expands the engine id
        "--kv-transfer-config": Shell('"$KV_TRANSFER_CONFIG"'),
    }


def _worker_flags(deployment: Deployment, role_name: RoleName) -> dict[str, Value]:
    """What is different in the workers of an instance: no API, and the share of the ranks that their index gives them."""
    local = deployment.role(role_name).data_parallel_ranks_per_pod
    return {
        "--host": None,
        "--port": None,
        "--chat-template": None,
        "--lora-modules": None,
        "--headless": True,
        "--data-parallel-address": Shell('"$ENTRY_IP"'),
        "--data-parallel-start-rank": Shell(f'"$((WORKER_INDEX * {local}))"'),
    }


def _word(flag: str, value: Value) -> str:
    if value is True:
        return flag
    values = value if isinstance(value, list) else [value]
    return " ".join([flag, *map(_quoted, values)])


def _quoted(value: Value) -> str:
    if isinstance(value, Shell):
        return value
    return shlex.quote(json.dumps(value) if isinstance(value, dict) else str(value))


def adapter_directories(deployment: Deployment) -> dict[str, str]:
    """LoRA adapter -> its directory in the container."""
    lora = deployment.model.lora
    weights = deployment.model.weights.path
    return {name: posixpath.join(weights, directory) for name, directory in lora.adapters.items()} if lora else {}


def kv_transfer_config(deployment: Deployment, role_name: RoleName, family: NpuFamily) -> dict[str, Any]:
    """``--kv-transfer-config`` of one role.

    With a pool, two connectors under vLLM's MultiConnector: KV cache is loaded from the first that has it. The engine id and
    the load failure policy stand above them, where it reads them; an engine id inside a sub-configuration is a TypeError.
    """
    transfer, pool = deployment.kv_transfer, deployment.kv_transfer.pool
    policy = {"kv_load_failure_policy": transfer.load_failure_policy} if transfer.load_failure_policy else {}
    own = {"engine_id": ENGINE_ID, **policy}
    if pool is None:
        return _direct_transfer(deployment, role_name, family, own)
    store = {
        "kv_connector": POOL_CONNECTOR,
        "kv_role": KV_ROLE[role_name],
        "kv_connector_extra_config": {
            "backend": "mooncake",
            # part of a socket's file name, not a TCP port: it tells the instances of one file system apart
            "lookup_rpc_port": str(ROLES.index(role_name)),
            "load_async": pool.load_async,
        },
    }
    return {
        "kv_connector": "MultiConnector",
        "kv_role": KV_ROLE[role_name],
        **own,
        "kv_connector_extra_config": {"connectors": [_direct_transfer(deployment, role_name, family, {}), store]},
    }


def _direct_transfer(deployment: Deployment, role_name: RoleName, family: NpuFamily, own: dict[str, Any]) -> dict[str, Any]:
    """From prefill to decode. Both carry both sizes: an engine checks its own and maps the other's ranks."""
    engine, version = catalog.engine(), deployment.engine.version
    config: dict[str, Any] = {
        "kv_connector": deployment.kv_transfer.connector,
        "kv_role": KV_ROLE[role_name],
        "kv_port": str(deployment.kv_transfer.port),
        **own,
    }
    legacy = engine.legacy_kv_transfer_keys
    if catalog.before(version, legacy.until):
        config |= {**legacy.shared, legacy.rank: ROLES.index(role_name)}
    direct = engine.ascend_direct
    wants_direct = not catalog.before(version, direct.since) and catalog.before(version, direct.until)
    config["kv_connector_extra_config"] = {
        **({"use_ascend_direct": True} if wants_direct else {}),
        **family.kv_connector_extra_config,
        **{name: _layout(deployment, name) for name in ROLES},
    }
    return config


def _layout(deployment: Deployment, role_name: RoleName) -> dict[str, int]:
    parallelism = deployment.role(role_name).parallelism
    pp = {"pp_size": parallelism.pp} if parallelism.pp > 1 else {}
    return {"dp_size": parallelism.dp, "tp_size": parallelism.tp, **pp}


def pool_config(deployment: Deployment) -> dict[str, Any] | None:
    """``mooncake.json``, where every rank finds the pool; None without one. Source: vLLM-Ascend's KV pool guide."""
    pool = deployment.kv_transfer.pool
    if pool is None:
        return None
    return {
        "metadata_server": "P2PHANDSHAKE",
        "protocol": "ascend",
        "device_name": "",
        "master_server_address": pool.master,
        "global_segment_size": int(amount(pool.segment_size)),
    }


def tokens_per_decode_step(deployment: Deployment, role_name: RoleName) -> int | None:
    """Tokens that one engine computes in a step in which every sequence decodes; None where the engine's default holds."""
    role = deployment.role(role_name)
    if role.batching.max_num_seqs is None:
        return None
    drafted = role.speculative.num_speculative_tokens if role.speculative else 0
    return role.batching.max_num_seqs * (drafted + 1)


def draft_model_directory(deployment: Deployment, role_name: RoleName) -> str | None:
    """Directory of a role's draft model in the container, where it has one."""
    speculative = deployment.role(role_name).speculative
    return posixpath.join(deployment.model.weights.path, speculative.model) if speculative and speculative.model else None


def _speculative(deployment: Deployment, role_name: RoleName) -> dict[str, Any] | None:
    speculative, directory = deployment.role(role_name).speculative, draft_model_directory(deployment, role_name)
    if speculative is None:
        return None
    model = {"model": directory} if directory else {}
    return {"method": speculative.method, "num_speculative_tokens": speculative.num_speculative_tokens, **model}


def _compilation(deployment: Deployment, role_name: RoleName) -> dict[str, Any] | None:
    role = deployment.role(role_name)
    if role.graph == "eager":
        return None
    tokens = tokens_per_decode_step(deployment, role_name)
    return {"cudagraph_mode": role.graph} | ({} if tokens is None else {"cudagraph_capture_sizes": [tokens]})
