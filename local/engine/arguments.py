"""What ``vllm serve`` of a vLLM-Ascend image refuses, as a pure function of its command line and surroundings.

A start script that the real engine would end with an error twenty minutes into a roll-out must end with that error here
as well, at once. Standard library only: every engine of the local cluster pays for what is imported.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Version = tuple[int, int, int, float]
"""major, minor, patch, release candidate (infinite for the release itself, so that it sorts after its candidates)"""

NEWEST: Version = (10**6, 0, 0, math.inf)
"""for tags that name no version, such as ``main``"""

LARGEST_PORT = 65535

CONNECTORS: dict[str, tuple[Version, Version | None]] = {
    # connector -> first vLLM-Ascend version that registers it, first that no longer does (None: still does); (..., 0) is
    # before all release candidates. From the registrations below vllm_ascend/distributed at the tags v0.9.1 to v0.25.1rc1 and
    # on main; MultiConnector and OffloadingConnector were upstream vLLM's before vLLM-Ascend had its own.
    "AscendHcclConnector": ((0, 9, 1, 0), (0, 10, 1, 0)),
    "AscendSimpleConnector": ((0, 9, 1, 0), (0, 10, 1, 0)),
    "LLMDataDistCMgrConnector": ((0, 9, 1, 0), (0, 12, 0, 0)),
    "MultiConnector": ((0, 9, 1, 0), None),
    "MooncakeConnectorV1": ((0, 10, 1, 0), None),
    "MooncakeConnectorStoreV1": ((0, 11, 0, 0), None),
    "MooncakeLayerwiseConnector": ((0, 11, 0, 0), None),
    "OffloadingConnector": ((0, 11, 0, 0), None),
    "AscendStoreConnector": ((0, 12, 0, 0), None),
    "UCMConnector": ((0, 13, 0, 0), None),
    "LMCacheAscendConnector": ((0, 17, 0, 0), None),
    "MooncakeHybridConnector": ((0, 20, 2, 0), None),
    "SimpleCPUOffloadConnector": ((0, 21, 0, 0), None),
    "RecomputeCPUOffloadConnector": ((0, 23, 0, 0), None),
    "SfaRemoteD2HConnector": ((0, 25, 2, 0), None),
}
PAIRING_CONNECTORS = frozenset(
    {"MooncakeConnector", "MooncakeConnectorV1", "MooncakeHybridConnector", "LLMDataDistCMgrConnector"}
)
"""prefill answers with ``kv_transfer_params``, decode pulls the blocks that these name"""
LAYOUT_CONNECTORS = frozenset({*PAIRING_CONNECTORS, "MooncakeLayerwiseConnector"})
"""assert that ``kv_connector_extra_config`` describes prefill and decode"""
STORE_CONNECTORS = frozenset({"AscendStoreConnector", "MooncakeConnectorStoreV1"})
DEAD_MODULES = frozenset({"vllm_ascend.distributed.mooncake_connector", "vllm_ascend.distributed.llmdatadist_c_mgr_connector"})

KV_ROLES = {"kv_producer": ("prefill",), "kv_consumer": ("decode",), "kv_both": ("prefill", "decode")}
"""KV role -> the layouts that describe the engine itself"""
KV_TRANSFER_KEYS = frozenset(
    {
        "kv_connector",
        "engine_id",
        "kv_buffer_device",
        "kv_buffer_size",
        "kv_role",
        "kv_rank",
        "kv_parallel_size",
        "kv_ip",
        "kv_port",
        "kv_connector_extra_config",
        "kv_connector_module_path",
        "enable_permute_local_kv",
        "kv_load_failure_policy",
    }
)
DEFAULT_KV_PORT = 14579
DEFAULT_RPC_PORT = 29550
DEFAULT_BLOCK_SIZE = 128
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)

RANGES: dict[str, tuple[int, float]] = {
    # smallest and largest value
    "port": (1, LARGEST_PORT),
    "data-parallel-rpc-port": (1, LARGEST_PORT),
    "master-port": (1, LARGEST_PORT),
    "tensor-parallel-size": (1, math.inf),
    "data-parallel-size": (1, math.inf),
    "data-parallel-size-local": (0, math.inf),
    "data-parallel-start-rank": (0, math.inf),
    "pipeline-parallel-size": (1, math.inf),
    "prefill-context-parallel-size": (1, math.inf),
    "decode-context-parallel-size": (1, math.inf),
    "max-num-seqs": (1, math.inf),
    "max-num-batched-tokens": (1, math.inf),
    "max-model-len": (-1, math.inf),
    "block-size": (1, math.inf),
    "cp-kv-cache-interleave-size": (1, math.inf),
    "max-loras": (1, math.inf),
}


@dataclass(frozen=True)
class KVTransfer:
    """How this engine takes part in handing over KV cache."""

    connector: str
    role: str
    """``kv_producer``, ``kv_consumer`` or ``kv_both``"""
    engine_id: str
    port: int

    @property
    def hands_over(self) -> bool:
        """Whether a prefill on this engine ends with ``kv_transfer_params`` for another engine."""
        return self.connector in PAIRING_CONNECTORS and self.role != "kv_consumer"


@dataclass(frozen=True)
class Engine:
    """An accepted ``vllm serve``: what of it shows on the outside."""

    model: str
    """directory of the weights"""
    served_model_names: tuple[str, ...]
    port: int
    adapters: tuple[str, ...]
    """names of LoRA adapters"""
    headless: bool
    """a worker of a multi-pod instance: no API"""
    tensor_parallel_size: int
    data_parallel_size: int
    data_parallel_size_local: int
    """ranks in this pod"""
    start_rank: int
    """the first of them"""
    data_parallel_address: str
    """of the entry pod"""
    data_parallel_rpc_port: int
    max_num_seqs: int
    max_model_len: int | None
    """tokens; None: as long as the model allows"""
    block_size: int
    """tokens per KV block"""
    kv_transfer: KVTransfer | None

    @property
    def local_ranks(self) -> range:
        """Data-parallel ranks in this pod."""
        return range(self.start_rank, self.start_rank + self.data_parallel_size_local)


@dataclass(frozen=True)
class Launch:
    """A command line that could be read, with the surroundings that decide whether the engine starts."""

    model: str
    options: Mapping[str, Any]
    """flag without dashes -> value; the last one of repeated flags"""
    environment: Mapping[str, str]
    image: str
    exists: Callable[[str], bool]

    @property
    def version(self) -> Version:
        """vLLM-Ascend version of the image."""
        return version(self.image)

    @property
    def speculative_tokens(self) -> int:
        """k: tokens that are guessed ahead in each decode step."""
        tokens = (self.options.get("speculative-config") or {}).get("num_speculative_tokens")
        return tokens if isinstance(tokens, int) else 0

    @property
    def block_size(self) -> int:
        """Tokens of a KV block."""
        return int(self.options.get("block-size") or DEFAULT_BLOCK_SIZE)

    @property
    def interleave_size(self) -> int:
        """Tokens in a row that one context-parallel rank keeps."""
        return int(self.options.get("cp-kv-cache-interleave-size") or self.options.get("dcp-kv-cache-interleave-size") or 1)

    @property
    def captures_graphs(self) -> bool:
        """Whether the engine captures graphs, which is what it does unless it is told not to."""
        return not self.options.get("enforce-eager", False)

    @property
    def local_ranks(self) -> int:
        """Data-parallel ranks in this pod."""
        if "data-parallel-rank" in self.options:
            return 1
        return int(self.options.get("data-parallel-size-local", self.size("data")))

    def size(self, dimension: str) -> int:
        """Ranks along one dimension: ``size("tensor")``."""
        return int(self.options.get(f"{dimension}-parallel-size") or 1)


def check(argv: Sequence[str], environment: Mapping[str, str], image: str, exists: Callable[[str], bool]) -> Engine | list[str]:
    """Decide whether ``vllm`` called with ``argv`` would start in a container of ``image``.

    Args:
        argv: Arguments after the program's name.
        environment: The container's environment; ``LOCAL_NPUS`` is how many NPUs it has, ``LOCAL_POD_IP`` its address.
        image: Full image reference; the tag says the vLLM-Ascend version.
        exists: Whether a path exists in the container.

    Returns:
        The engine, or what it refuses: one line each, in vLLM's words where vLLM has words for it.
    """
    if list(argv[:1]) != ["serve"]:
        given = repr(argv[0]) if argv else "nothing"
        return [f"vllm: error: argument subparser: invalid choice: {given} (choose from 'serve')"]
    models, options, problems = parse(argv[1:])
    problems += [f"vllm serve: error: unrecognized arguments: {word}" for word in models[1:]]
    if problems:
        return problems
    model = models[0] if models else options.get("model", "")
    launch = Launch(model, options, environment, image, exists)
    problems = [problem for rule in RULES for problem in rule(launch)]
    transfers = list(kv_transfers(launch))
    problems += [problem for config in transfers for rule in KV_RULES for problem in rule(launch, config)]
    return problems or _engine(launch, transfers)


def version(image: str) -> Version:
    """vLLM-Ascend version in the tag of ``image``, :data:`NEWEST` if it has none."""
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    found = re.search(r"v(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?", tag)
    if not found:
        return NEWEST
    major, minor, patch, candidate = found.groups()
    return int(major), int(minor), int(patch), float(candidate or math.inf)


def kv_transfers(launch: Launch) -> Iterator[dict[str, Any]]:
    """The KV transfer configuration, followed by those that a MultiConnector combines, which share its engine id."""
    config = launch.options.get("kv-transfer-config")
    if config is None:
        return
    yield config
    if config.get("kv_connector") == "MultiConnector":
        extra = config.get("kv_connector_extra_config")
        connectors = extra.get("connectors") if isinstance(extra, dict) else None
        own = {"engine_id": config["engine_id"]} if "engine_id" in config else {}
        yield from (own | part for part in (connectors if isinstance(connectors, list) else []) if isinstance(part, dict))


def _engine(launch: Launch, transfers: Sequence[Mapping[str, Any]]) -> Engine:
    pairing = [config for config in transfers if config.get("kv_connector") in PAIRING_CONNECTORS] or transfers
    return Engine(
        model=launch.model,
        served_model_names=tuple(launch.options.get("served-model-name") or (launch.model,)),
        port=launch.options.get("port", 8000),
        adapters=tuple(_lora_modules(launch)),
        headless=launch.options.get("headless", False),
        tensor_parallel_size=launch.size("tensor"),
        data_parallel_size=launch.size("data"),
        data_parallel_size_local=launch.local_ranks,
        start_rank=launch.options.get("data-parallel-start-rank", launch.options.get("data-parallel-rank", 0)),
        data_parallel_address=launch.options.get("data-parallel-address", "127.0.0.1"),
        data_parallel_rpc_port=launch.options.get("data-parallel-rpc-port", DEFAULT_RPC_PORT),
        max_num_seqs=launch.options.get("max-num-seqs", 256),
        max_model_len=length if (length := launch.options.get("max-model-len", 0)) > 0 else None,
        block_size=launch.block_size,
        kv_transfer=KVTransfer(
            connector=pairing[0]["kv_connector"],
            role=pairing[0]["kv_role"],
            engine_id=str(pairing[0].get("engine_id", "")),
            port=int(pairing[0].get("kv_port", DEFAULT_KV_PORT)),
        )
        if pairing
        else None,
    )


# The command line


def _count(text: str) -> int:
    """A number of tokens or bytes: 65536, 64k (thousands) or 64K (times 1024)."""
    factors = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
    binary = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    found = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kmgtKMGT]?)", text)
    if not found:
        raise ValueError(text)
    return int(float(found[1]) * (factors | binary)[found[2]])


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


_CONVERSIONS: dict[str, tuple[Callable[[str], Any], str]] = {
    # kind of value -> conversion, the name that the error gives to the kind
    "int": (int, "int"),
    "integers": (int, "int"),
    "count": (_count, "human_readable_int"),
    "float": (float, "float"),
    "string": (str, "str"),
    "strings": (str, "str"),
    "optional": (str, "str"),
    "json": (json.loads, "json"),
    "object": (_object, "json object"),
}
_data = json.loads((Path(__file__).resolve().parents[2] / "catalog" / "flags.json").read_text())
_KINDS: dict[str, str] = {flag: kind for kind, flags in _data["kinds"].items() for flag in flags}
_ALIASES: dict[str, str] = _data["aliases"]


def parse(words: Sequence[str]) -> tuple[list[str], dict[str, Any], list[str]]:
    """Read a command line the way vLLM's parser does.

    Returns:
        Positional arguments, flag without dashes -> converted value, and what could not be read.
    """
    positional: list[str] = []
    options: dict[str, Any] = {}
    problems: list[str] = []
    rest = deque(words)
    while rest:
        word = re.sub(r"^-O(\d)$", r"-O=\1", rest.popleft())
        if not _is_flag(word):
            positional.append(word)
            continue
        written, attached, value = word.partition("=")
        flag, key, negated = _resolve(written)
        if flag is None:
            problems.append(f"vllm serve: error: unrecognized arguments: {word}")
            continue
        kind = "string" if key else _KINDS[flag]
        values = [value] if attached else _take(rest, kind)
        try:
            converted = _convert(kind, values, attached=bool(attached), negated=negated)
        except ValueError as error:
            problems.append(f"vllm serve: error: argument --{flag}: {error}")
            continue
        options[flag] = _with_key(options.get(flag), key, converted) if key else converted
    return positional, options, problems


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word) and " " not in word.partition("=")[0]


def _resolve(written: str) -> tuple[str | None, str, bool]:
    """Flag (None: unknown), key below a JSON flag as in ``--kv-transfer-config.kv_role``, whether it is negated."""
    name, _, key = written.partition(".")
    if name in _ALIASES:
        flag, negated = _ALIASES[name], False
    else:
        flag = name.removeprefix("--").replace("_", "-") if name.startswith("--") else ""
        negated = flag.startswith("no-") and _KINDS.get(flag[3:]) == "boolean"
        flag = flag[3:] if negated else flag
    known = flag in _KINDS and (not key or _KINDS[flag] in ("json", "object"))
    return (flag if known else None), key, negated


def _take(rest: deque[str], kind: str) -> list[str]:
    most = {"flag": 0, "boolean": 0, "strings": len(rest), "integers": len(rest)}.get(kind, 1)
    values: list[str] = []
    while rest and len(values) < most and not _is_flag(rest[0]):
        values.append(rest.popleft())
    return values


def _convert(kind: str, values: list[str], *, attached: bool, negated: bool) -> Any:
    if kind in ("flag", "boolean"):
        if attached:
            raise ValueError(f"ignored explicit argument {values[0]!r}")
        return not negated
    if not values:
        if kind == "optional":
            return None
        raise ValueError("expected at least one argument" if kind in ("strings", "integers") else "expected one argument")
    convert, name = _CONVERSIONS[kind]
    try:
        converted = [convert(value) for value in values]
    except json.JSONDecodeError as error:
        raise ValueError(f"Value {values[0]} cannot be converted to {name}: {error}") from error
    except ValueError as error:
        raise ValueError(f"invalid {name} value: {values[0]!r}") from error
    return converted if kind in ("strings", "integers") else converted[0]


def _with_key(config: Any, key: str, text: str) -> dict[str, Any]:
    """``config`` with ``text``, as JSON where it is JSON, at the dotted ``key``."""
    config = dict(config) if isinstance(config, dict) else {}
    first, _, deeper = key.partition(".")
    if deeper:
        return {**config, first: _with_key(config.get(first), deeper, text)}
    try:
        return {**config, first: json.loads(text)}
    except json.JSONDecodeError:
        return {**config, first: text}


# What the engine refuses once its command line is read


def _model(launch: Launch) -> Iterator[str]:
    if not launch.model:
        yield "vllm serve: error: the following arguments are required: model_tag"
    elif not launch.exists(posixpath.join(launch.model, "config.json")):
        yield (
            f"Invalid repository ID or local directory specified: '{launch.model}'. A local directory must contain config.json"
        )


def _configuration_file(launch: Launch) -> Iterator[str]:
    if "config" in launch.options:
        yield "--config: this stand-in reads no configuration file, pass its settings as flags"


def _ranges(launch: Launch) -> Iterator[str]:
    for flag, (smallest, largest) in RANGES.items():
        value = launch.options.get(flag)
        if value is not None and value < smallest:
            yield f"{flag.replace('-', '_')}: Input should be greater than or equal to {smallest}, but got {value}"
        if value is not None and value > largest:
            yield f"{flag.replace('-', '_')}: Input should be less than or equal to {largest}, but got {value}"
    utilization = launch.options.get("gpu-memory-utilization", 0.9)
    if not 0 < utilization <= 1:
        yield f"GPU memory utilization must be greater than 0 and at most 1.0. Got {utilization}."


def _batching(launch: Launch) -> Iterator[str]:
    tokens, sequences, length = (launch.options.get(flag) for flag in ("max-num-batched-tokens", "max-num-seqs", "max-model-len"))
    if tokens and sequences and tokens < sequences:
        yield f"max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({sequences})."
    if tokens and length and tokens < length and launch.options.get("enable-chunked-prefill") is False:
        yield (
            f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}). "
            "Please increase max_num_batched_tokens or decrease max_model_len."
        )


def _chat_template(launch: Launch) -> Iterator[str]:
    template = launch.options.get("chat-template", "")
    inline = any(character in template for character in "{}\n")
    if template and not inline and not launch.exists(template):
        yield f"The supplied chat template string ({template}) appears path-like, but doesn't exist!"


def _graphs(launch: Launch) -> Iterator[str]:
    config = launch.options.get("compilation-config")
    config = config if isinstance(config, dict) else {}
    step = launch.speculative_tokens + 1
    if launch.captures_graphs and launch.environment.get("ASCEND_LAUNCH_BLOCKING") == "1":
        yield "ASCEND_LAUNCH_BLOCKING=1 can't be used with graph mode: unset it or pass --enforce-eager"
    if config.get("cudagraph_mode") != "FULL_DECODE_ONLY" or not launch.captures_graphs:
        return
    sizes = config.get("cudagraph_capture_sizes") or launch.options.get("cudagraph-capture-sizes") or []
    sizes = sizes if isinstance(sizes, list) else [sizes]
    wrong = [size for size in sizes if not isinstance(size, int) or size % step]
    if wrong:
        yield (
            f"cudagraph_capture_sizes {wrong} are not multiples of num_speculative_tokens + 1 ({step}), "
            "which FULL_DECODE_ONLY needs"
        )


def _devices(launch: Launch) -> Iterator[str]:
    available = launch.environment.get("LOCAL_NPUS", "")
    world = launch.size("tensor") * launch.size("pipeline") * launch.size("prefill-context") * launch.local_ranks
    if available and world > int(available):
        yield f"World size ({world}) is larger than the number of available NPUs ({available}) in this pod."


def _parallelism(launch: Launch) -> Iterator[str]:
    tp, dcp, pcp = (launch.size(dimension) for dimension in ("tensor", "decode-context", "prefill-context"))
    interleave = launch.interleave_size
    if tp % dcp:
        yield f"tp_size={tp} must be divisible by dcp_size={dcp}."
    if dcp * pcp > 1 and launch.block_size % interleave:
        yield (
            f"Block_size({launch.block_size}) should be greater than or equal to and divisible by "
            f"cp_kv_cache_interleave_size ({interleave})."
        )
    if pcp > 1 and launch.size("pipeline") > 1:
        yield "prefill context parallelism and pipeline parallelism can't be used together"
    if pcp > 1 and launch.version >= (0, 25, 2, 0):
        yield "prefill_context_parallel_size > 1 is only supported by model runner v2"


def _data_parallelism(launch: Launch) -> Iterator[str]:
    options, size = launch.options, launch.size("data")
    first = options.get("data-parallel-start-rank", 0)
    if "data-parallel-rank" in options and not options["data-parallel-rank"] < size:
        yield f"data_parallel_rank ({options['data-parallel-rank']}) must be in the range [0, {size})"
    elif first + launch.local_ranks > size:
        yield f"data parallel ranks {first}-{first + launch.local_ranks - 1} in this pod, but data_parallel_size is {size}"
    if not options.get("headless"):
        return
    if (options.get("api-server-count") or 0) > 1:
        yield "api_server_count can't be set in headless mode"
    if options.get("data-parallel-hybrid-lb"):
        yield "data_parallel_hybrid_lb is not applicable in headless mode"
    if launch.local_ranks <= 0:
        yield "data_parallel_size_local must be > 0 in headless mode"


def _lora_modules(launch: Launch) -> dict[str, str]:
    """Adapter -> directory, of those modules that can be read."""
    return {found[0]: found[1] for module in launch.options.get("lora-modules", ()) if (found := _lora_module(module))}


def _lora_module(module: str) -> tuple[str, str] | None:
    if "=" in module and "," not in module:
        name, _, path = module.partition("=")
        return name, path
    try:
        described = json.loads(module)
        return str(described["name"]), str(described["path"])
    except (ValueError, TypeError, KeyError):
        return None


def _lora(launch: Launch) -> Iterator[str]:
    modules = launch.options.get("lora-modules", ())
    rank = launch.options.get("max-lora-rank")
    if rank is not None and rank not in LORA_RANKS:
        yield f"max_lora_rank: Input should be {', '.join(map(str, LORA_RANKS))}, but got {rank}"
    if modules and not launch.options.get("enable-lora"):
        yield "Got lora_request but LoRA is not enabled!"
    yield from (f"Invalid JSON format for --lora-modules: {module}" for module in modules if not _lora_module(module))
    for name, path in _lora_modules(launch).items():
        if not launch.exists(posixpath.join(path, "adapter_config.json")):
            yield f"Loading lora {name} failed: No adapter found for {path}"


def _additional_config(launch: Launch) -> Iterator[str]:
    """Settings of vLLM-Ascend's own that contradict the role or the parallelism."""
    config = launch.options.get("additional-config") or {}
    role = (launch.options.get("kv-transfer-config") or {}).get("kv_role")
    producer, consumer = role == "kv_producer", role == "kv_consumer"
    refused = {
        "enable_balance_scheduling": (producer or consumer, "not with kv_producer or kv_consumer"),
        "profiling_chunk_config": (launch.size("pipeline") == 1, "only with pipeline parallelism"),
        "short_request_first": (consumer, "not on kv_consumer"),
        "enable_reduce_sample": (producer, "not on kv_producer"),
        "enable_kv_nz": (producer, "only on kv_consumer"),
    }
    yield from (f"additional_config: {key}: {why}" for key, (wrong, why) in refused.items() if wrong and config.get(key))
    sizes = config.get("finegrained_tp_config")
    oproj = launch.size("tensor") == 1 and consumer and launch.captures_graphs
    for name, size in (sizes if isinstance(sizes, dict) else {}).items():
        if isinstance(size, int) and size > 0 and launch.size("data") % size:
            yield f"additional_config: finegrained_tp_config: {name} {size} must divide data_parallel_size {launch.size('data')}"
        if name == "oproj_tensor_parallel_size" and size and not oproj:
            yield f"additional_config: finegrained_tp_config: {name} needs tensor_parallel_size 1, graph mode and kv_consumer"


def _prefix_cache_retention(launch: Launch) -> Iterator[str]:
    interval = launch.environment.get("VLLM_PREFIX_CACHE_RETENTION_INTERVAL")
    if interval is not None and (not interval.isdigit() or int(interval) % launch.block_size):
        yield f"VLLM_PREFIX_CACHE_RETENTION_INTERVAL {interval} must be a non-negative multiple of block_size {launch.block_size}"


def _physical_devices(launch: Launch) -> Iterator[str]:
    """The entrypoint of these images makes PHYSICAL_DEVICES from what the device plugin tells, or gives up."""
    named = launch.environment.get("PHYSICAL_DEVICES") or launch.environment.get("AscendRealDevices")
    if "/kthena-engine:" in launch.image and launch.version < (0, 12, 0, 0) and not named:
        yield "PHYSICAL_DEVICES is empty. WARNING: AscendRealDevices NOT SET"


def _address(launch: Launch) -> Iterator[str]:
    host, own = launch.options.get("host"), launch.environment.get("LOCAL_POD_IP", "")
    if own and host not in (None, "", "0.0.0.0", "::", own):
        yield f"[Errno 99] error while attempting to bind on address ({host!r}): the address of this pod is {own}"


# What its KV connector refuses


def _layouts(config: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """Layouts of prefill and decode, or None unless both are described in whole numbers."""
    extra = config.get("kv_connector_extra_config")
    layouts = {name: extra.get(name) for name in ("prefill", "decode")} if isinstance(extra, dict) else {}
    sizes = ("dp_size", "tp_size", "pp_size")
    whole = [
        isinstance(layout, dict) and all(isinstance(layout.get(size, 1), int) and layout.get(size, 1) >= 1 for size in sizes)
        for layout in layouts.values()
    ]
    return {name: dict(layout or {}) for name, layout in layouts.items()} if whole and all(whole) else None


def _kv_keys(_: Launch, config: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted(config.keys() - KV_TRANSFER_KEYS):
        yield f"KVTransferConfig: {key}: Unexpected keyword argument"


def _kv_role(_: Launch, config: Mapping[str, Any]) -> Iterator[str]:
    role = config.get("kv_role")
    if role is None:
        yield f"Please specify kv_role when kv_connector is set, supported roles are {tuple(KV_ROLES)}"
    elif str(role) not in KV_ROLES:
        yield f"Unsupported kv_role: {role}. Supported roles are {tuple(KV_ROLES)}"


def registers(release: Version, connector: str) -> bool:
    """Whether vLLM-Ascend ``release`` registers a connector of that name."""
    if connector not in CONNECTORS:
        return False
    since, until = CONNECTORS[connector]
    return since <= release and (until is None or release < until)


def _kv_connector(launch: Launch, config: Mapping[str, Any]) -> Iterator[str]:
    connector, module = config.get("kv_connector"), config.get("kv_connector_module_path")
    if str(module) in DEAD_MODULES and launch.version >= (0, 14, 0, 0):
        yield f"No module named '{module}': vLLM-Ascend has no such module after v0.13"
    elif not module and not registers(launch.version, str(connector)):
        yield f"Unsupported connector type: {connector} (not registered in {launch.image})"


def _kv_layouts(launch: Launch, config: Mapping[str, Any]) -> Iterator[str]:
    if config.get("kv_connector") not in LAYOUT_CONNECTORS:
        return
    layouts = _layouts(config)
    if layouts is None:
        yield "kv_connector_extra_config must have 'prefill' and 'decode', each with whole numbers dp_size and tp_size"
        return
    prefill, decode = layouts["prefill"].get("tp_size", 1), layouts["decode"].get("tp_size", 1)
    if prefill < decode:
        yield f"prefill_tp_size: {prefill} must be greater than or equal to the decode_tp_size: {decode}"
    elif prefill % decode:
        yield f"prefill_tp_size: {prefill} must be divisible by decode_tp_size: {decode}"
    if layouts["decode"].get("pp_size", 1) != 1 or ("decode" in _own(config) and launch.size("pipeline") != 1):
        yield "decode pp_size must be 1: decode does not support pipeline parallelism"
    elif "prefill" in _own(config) and layouts["prefill"].get("pp_size", 1) != launch.size("pipeline"):
        described, own = layouts["prefill"].get("pp_size", 1), launch.size("pipeline")
        yield f"KV transfer 'prefill' config has a conflicting pipeline parallel size. Expected {own}, but got {described}."


def _kv_context_parallelism(launch: Launch, config: Mapping[str, Any]) -> Iterator[str]:
    connector, interleave = config.get("kv_connector"), launch.interleave_size
    if connector not in LAYOUT_CONNECTORS or launch.size("decode-context") * launch.size("prefill-context") == 1:
        return
    if connector == "MooncakeHybridConnector":
        yield "MooncakeHybridConnector does not support context parallelism"
    if interleave != launch.block_size:
        yield f"cp_kv_cache_interleave_size ({interleave}) must be equal to block_size ({launch.block_size}) with KV transfer"


def _multi_connector(_: Launch, config: Mapping[str, Any]) -> Iterator[str]:
    if config.get("kv_connector") != "MultiConnector":
        return
    extra = config.get("kv_connector_extra_config")
    connectors = extra.get("connectors") if isinstance(extra, dict) else None
    if not isinstance(connectors, list) or not connectors:
        yield "MultiConnector: kv_connector_extra_config must have 'connectors', a list of KV transfer configurations"
        return
    if any(isinstance(part, dict) and "engine_id" in part for part in connectors):
        yield "KVTransferConfig() got multiple values for keyword argument 'engine_id': it belongs above the connectors"


def _kv_pool(launch: Launch, config: Mapping[str, Any]) -> Iterator[str]:
    extra = config.get("kv_connector_extra_config")
    backend = extra.get("backend", "mooncake") if isinstance(extra, dict) else "mooncake"
    if config.get("kv_connector") not in STORE_CONNECTORS or backend != "mooncake":
        return
    path = launch.environment.get("MOONCAKE_CONFIG_PATH")
    if not path:
        yield "The environment variable 'MOONCAKE_CONFIG_PATH' is not set."
    elif not launch.exists(path):
        yield f"[Errno 2] No such file or directory: '{path}'"


def _kv_sizes(launch: Launch, config: Mapping[str, Any]) -> Iterator[str]:
    """The check that vLLM-Ascend has had since v0.12.0rc1."""
    layouts = _layouts(config)
    if layouts is None or launch.version < (0, 12, 0, 1):
        return
    for name in _own(config):
        for dimension, key in (("tensor", "tp_size"), ("data", "dp_size")):
            described = layouts[name].get(key, launch.size(dimension))
            if described != launch.size(dimension):
                yield (
                    f"KV transfer '{name}' config has a conflicting {dimension} parallel size. "
                    f"Expected {launch.size(dimension)}, but got {described}."
                )


def _kv_port(launch: Launch, config: Mapping[str, Any]) -> Iterator[str]:
    """Each rank of the instance listens on a port of its own from ``kv_port`` on."""
    if not re.fullmatch(r"\d+", str(config.get("kv_port", DEFAULT_KV_PORT))):
        yield f"KVTransferConfig: kv_port: Input should be a valid integer, but got {config['kv_port']!r}"
        return
    first = int(config.get("kv_port", DEFAULT_KV_PORT))
    ranks = launch.size("data") * launch.size("tensor") * launch.size("pipeline") * launch.size("prefill-context")
    if first < 1 or first + ranks - 1 > LARGEST_PORT:
        yield f"kv_port {first}: {ranks} ranks need ports {first}-{first + ranks - 1}, port must be 1-{LARGEST_PORT}"


def _kv_engine_id(_: Launch, config: Mapping[str, Any]) -> Iterator[str]:
    """Single quotes in the start script keep the shell from expanding it: all engines would share one id."""
    engine_id = str(config.get("engine_id", ""))
    if "$" in engine_id:
        yield f"engine_id '{engine_id}' is not expanded: it must be unique to each engine"


def _own(config: Mapping[str, Any]) -> tuple[str, ...]:
    return KV_ROLES.get(str(config.get("kv_role")), ())


RULES: tuple[Callable[[Launch], Iterator[str]], ...] = (
    _model,
    _configuration_file,
    _ranges,
    _batching,
    _chat_template,
    _graphs,
    _parallelism,
    _data_parallelism,
    _lora,
    _additional_config,
    _prefix_cache_retention,
    _devices,
    _physical_devices,
    _address,
)
KV_RULES: tuple[Callable[[Launch, Mapping[str, Any]], Iterator[str]], ...] = (
    _kv_keys,
    _kv_role,
    _kv_connector,
    _kv_layouts,
    _kv_sizes,
    _kv_context_parallelism,
    _multi_connector,
    _kv_pool,
    _kv_port,
    _kv_engine_id,
)
