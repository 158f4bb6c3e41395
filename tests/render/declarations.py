"""Hypothesis strategies of stack files: a recipe and what differs from it, over the whole declaration.

Values lie on both sides of what the rules ask for, so that a good part of the stacks is valid and a good part isn't.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import catalog
from rules.shape import overlay

Declared = dict[str, Any]
NAME = "deepseekv4-pd"
OTHER = "canary"
OUTSIDE_THE_CATALOGUE = "NoSuchName"


def near(*values: int) -> st.SearchStrategy[int]:
    """One of ``values``, now and then one beside it."""
    return st.tuples(st.sampled_from(values), st.sampled_from((0,) * 12 + (-1, 1))).map(lambda drawn: max(0, sum(drawn)))


def once_in(times: int) -> st.SearchStrategy[bool]:
    """True one time in so many. A number compared with 0 would be true more often: Hypothesis likes small ones."""
    return st.sampled_from([False] * (times - 1) + [True])


def mostly(usual: st.SearchStrategy[Any], other: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Nine in ten from ``usual``."""
    return once_in(10).flatmap(lambda drawn: other if drawn else usual)


@st.composite
def parallelism(draw: st.DrawFn, dies: int) -> Declared:
    """Both roles, on servers of ``dies``; an instance may take several."""
    sizes = [size for size in (1, 2, 4, 8, 16) if size <= dies]
    prefill = draw(st.sampled_from(sizes))
    decode = draw(mostly(st.sampled_from([tp for tp in sizes if tp <= prefill]), st.sampled_from([3, 2 * prefill])))
    roles: Declared = {}
    for role, tp in (("prefill", prefill), ("decode", decode)):
        pods = draw(st.sampled_from([1, 1, 1, 1, 2, 4]))
        most = max(1, dies // tp)
        dp = max(1, draw(near(pods * most, pods * most, pods * max(1, most // 2), 1)))
        declared: Declared = {"dp": dp, "tp": tp}
        if draw(once_in(8)):
            declared["pp"] = draw(st.sampled_from([1, 2, 3]))
        if draw(once_in(8)):
            declared["dcp"] = draw(st.sampled_from([1, 2, tp, tp + 1]))
        if draw(st.booleans()):
            declared["expertParallel"] = draw(st.booleans())
        roles[role] = {"parallelism": declared, "pods": pods}
    return roles


@st.composite
def steps(draw: st.DrawFn, path: str) -> Declared:
    """Batching, graphs and draft tokens, which must fit one another."""
    roles: Declared = {}
    for role in ("prefill", "decode"):
        sequences, drafted = draw(near(1, 4, 8, 16, 48)), draw(st.integers(0, 4))
        full = max(1, sequences) * (drafted + 1)
        tokens = draw(near(full, full, 8192, max(1, sequences)))
        declared: Declared = {"batching": {"maxNumBatchedTokens": tokens}}
        if not draw(once_in(6)):
            declared["batching"]["maxNumSeqs"] = sequences
        declared["speculative"] = {"numSpeculativeTokens": drafted} if draw(st.booleans()) else None
        if declared["speculative"] is not None:
            declared["speculative"]["method"] = draw(
                mostly(st.just("deepseek_mtp"), st.sampled_from([*catalog.engine().speculative_methods, OUTSIDE_THE_CATALOGUE]))
            )
            if draw(once_in(5)):
                declared["speculative"]["model"] = draw(st.sampled_from(["draft", f"{path}/draft"]))
        if draw(st.booleans()):
            declared["graph"] = draw(st.sampled_from(["eager", "FULL_DECODE_ONLY", "PIECEWISE"]))
        if draw(once_in(4)):
            declared["asyncScheduling"] = draw(st.booleans())
        roles[role] = declared
    return roles


ENGINES = st.builds(
    lambda version, image: {"engine": {"version": version, **({"image": image} if image else {})}},
    mostly(st.sampled_from([f"v{release}" for release in catalog.engine().releases]), st.sampled_from(["v0.9.1", "v0.99.0rc1"])),
    st.sampled_from([None, None, None, "registry.local/vllm-ascend:v0.13.0-a3", "quay.io/ascend/vllm-ascend:v0.13.0"]),
)
CONNECTORS = st.sampled_from([*catalog.engine().connectors, "MooncakeConnectorV1", OUTSIDE_THE_CATALOGUE]).map(
    lambda connector: {"kvTransfer": {"connector": connector}}
)
POLICIES = st.sampled_from(["fail", "recompute"]).map(lambda policy: {"kvTransfer": {"loadFailurePolicy": policy}})
POOLS = st.builds(
    lambda master, size, load_async: {"kvTransfer": {"pool": {"master": master, "segmentSize": size, "loadAsync": load_async}}},
    st.sampled_from(["mooncake-master.kv:50088", "10.0.0.1:50051", "mooncake-master:0", "mooncake-master:70000"]),
    st.sampled_from(["1Gi", "40Gi", "512Mi", "1.5Gi"]),
    st.booleans(),
)
PORTS = st.fixed_dictionaries(
    {},
    optional={
        "port": st.sampled_from([7100, 8000, 8100, 36010, 65535]),
        "dataParallelRpcPort": st.sampled_from([12321, 7100, 36001, 65535]),
        "kvTransfer": st.builds(lambda port: {"port": port}, near(9000, 20000, 36000, 59990, 60032, 65519, 65520, 65535)),
    },
)
NETWORKS = st.fixed_dictionaries(
    {},
    optional={
        "hostNetwork": st.booleans(),
        "networkInterface": st.sampled_from(["lo", "eth0"]),
        "runtimeSidecar": st.booleans(),
        "runtimeImage": st.just("registry.local/kthena/runtime:v1.0.0"),
        "namespace": st.sampled_from(["default", "serving", "s" * 63]),
    },
)
NUMBERS = st.fixed_dictionaries(
    {},
    optional={
        "ratio": st.sampled_from(["1P1D", "2P1D", "1P2D", {"prefill": 3, "decode": 2}]),
        "groups": st.integers(1, 3),
    },
)
RESOURCES = st.builds(
    lambda role, request, limit, shared: {
        role: {"resources": {"requests": {"memory": request}, "limits": {"memory": limit}}},
        "sharedMemory": shared,
    },
    st.sampled_from(["prefill", "decode"]),
    st.sampled_from(["64Gi", "700Gi", "1800Gi"]),
    st.sampled_from(["700Gi", "1800Gi", "512Gi"]),
    st.sampled_from(["1Gi", "16Gi", "512Gi", "2Ti"]),
)


def weights(path: str) -> st.SearchStrategy[Declared]:
    """Weights from anywhere that end up at ``path``."""
    credentials = st.sampled_from([{}, {"credentials": "source"}])
    return st.one_of(
        st.just({"hostPath": path}),
        st.just({"claim": {"name": "weights", "path": path, "subPath": "models/m"}}),
        st.just({"nfs": {"server": "10.0.0.2", "export": "/exports/models", "path": path}}),
        st.builds(
            lambda source, cache, credentials: {"download": {"source": source, "cache": cache, **credentials}},
            st.sampled_from(["org/model", "hf://org/model", "ms://org/model", "s3://bucket/model", "pvc://claim/model"]),
            st.sampled_from([{"hostPath": path}, {"claim": {"name": "cache", "path": path}}]),
            credentials,
        ),
    ).map(lambda declared: {"model": {"weights": declared}})


MODELS = st.fixed_dictionaries(
    {},
    optional={
        "served": st.sampled_from(["deepseek_v4", "org/Model-1", 'it\'s a "model"', "$HOME", "`id`", "m" * 256, "模型"]),
        "architecture": st.sampled_from([*catalog.models(), OUTSIDE_THE_CATALOGUE]),
        "maxModelLen": near(1, 8192, 65536, 1_000_000),
        "blockSize": near(32, 128),
        "quantization": st.just("ascend"),
        "weightSize": st.sampled_from(["30Gi", "280Gi", "2Ti"]),
        "hybridKvCacheManager": st.booleans(),
        "trustRemoteCode": st.booleans(),
        "seed": st.integers(0, 2**32),
    },
).map(lambda model: {"model": model})
LORA = st.builds(
    lambda names, directory, limits: {"model": {"lora": {"adapters": dict.fromkeys(names, directory), **limits}}},
    st.lists(st.sampled_from(["adapter", "org/adapter-2", "a b", "deepseek_v4", "x=y"]), min_size=1, max_size=3, unique=True),
    st.sampled_from(["adapters/one", "adapters/two"]),
    st.fixed_dictionaries({}, optional={"maxRank": st.sampled_from([1, 16, 64, 100]), "maxLoaded": st.integers(1, 3)}),
)

TEXTS = st.fixed_dictionaries(
    {}, optional={"exact": st.just("x"), "prefix": st.just("/v1"), "regex": st.sampled_from([".*", "(", "(?<a>x)", r"\d+"])}
)
MATCHES = st.fixed_dictionaries(
    {},
    optional={
        "headers": st.dictionaries(st.sampled_from(["user", "x-tier"]), TEXTS, min_size=1, max_size=2),
        "uri": TEXTS,
        "body": st.just({"model": "x"}),
    },
)
RULES = st.lists(
    st.fixed_dictionaries(
        {
            "targets": st.dictionaries(
                st.sampled_from([NAME, NAME, OTHER, "nobody"]), st.sampled_from([0, 10, 90, 100, 101]), min_size=1, max_size=2
            )
        },
        optional={"name": st.sampled_from(["default", "paid"]), "match": MATCHES},
    ),
    max_size=2,
)
ROUTES = st.fixed_dictionaries(
    {},
    optional={
        "enabled": mostly(st.sampled_from([True]), st.sampled_from([False])),
        "rules": RULES,
        "rateLimit": st.fixed_dictionaries(
            {"unit": st.sampled_from(["second", "minute", "month"])},
            optional={
                "inputTokensPerUnit": st.integers(0, 1000),
                "outputTokensPerUnit": st.integers(1, 1000),
                "global": st.just({"redis": {"address": "redis:6379"}}),
            },
        ),
        "parentRefs": mostly(st.just([]), st.just([{"name": "gateway"}])),
    },
).map(lambda route: {"route": route})
TRAFFIC = st.fixed_dictionaries(
    {},
    optional={
        "traffic": st.builds(
            lambda timeout, attempts: {"timeout": timeout, "retry": {"attempts": attempts}},
            st.sampled_from(["10s", "300s", "1h30m"]),
            st.integers(0, 3),
        ),
        "readiness": st.fixed_dictionaries(
            {},
            optional={
                "loadTimeout": st.sampled_from(["10s", "30m", "2h", "1m30.5s"]),
                "terminationGracePeriod": st.sampled_from(["0s", "60s", "90.5s"]),
            },
        ),
        "recovery": st.fixed_dictionaries(
            {},
            optional={
                "policy": st.sampled_from(["ServingGroupRecreate", "RoleRecreate", "None"]),
                "restartGracePeriodSeconds": st.sampled_from([0, 60]),
            },
        ),
    },
)

AMOUNTS = st.sampled_from([0, 1, 2, "0%", "10%", "50%", "100%", "many", -1])
ROLLOUTS = st.fixed_dictionaries(
    {},
    optional={
        "rolloutStrategy": st.fixed_dictionaries(
            {"type": st.sampled_from(["ServingGroupRollingUpdate", "RoleRollingUpdate"])},
            optional={
                "rollingUpdateConfiguration": st.fixed_dictionaries(
                    {}, optional={"maxUnavailable": AMOUNTS, "partition": AMOUNTS}
                )
            },
        ),
        "recovery": st.sampled_from(["ServingGroupRecreate", "RoleRecreate"]).map(lambda policy: {"policy": policy}),
        "decode": AMOUNTS.map(lambda amount: {"maxUnavailable": amount}),
    },
)
TOPOLOGIES = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(["hard", "soft"]),
        "highestTierAllowed": st.integers(0, 3),
        "highestTierName": st.just("supernode"),
    },
)
SCHEDULING = st.fixed_dictionaries(
    {},
    optional={
        "scheduling": st.fixed_dictionaries(
            {},
            optional={
                "queue": st.just("inference"),
                "gangPolicy": st.dictionaries(
                    st.sampled_from(["prefill", "decode", "server"]), st.integers(-1, 3), min_size=1, max_size=2
                ).map(lambda least: {"minRoleReplicas": least}),
                "networkTopology": st.fixed_dictionaries({}, optional={"groupPolicy": TOPOLOGIES, "rolePolicy": TOPOLOGIES}),
            },
        ),
        "plugins": st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["lws-standard-labels", "demo-pod-tweaks", "no-such-plugin"])},
                optional={
                    "type": st.just("BuiltIn"),
                    "config": st.just({"key": [1, "two"]}),
                    "scope": st.just({"roles": ["decode"], "target": "Entry"}),
                },
            ),
            max_size=2,
        ),
    },
)

SCALING = st.builds(
    lambda least, most, metrics: {"min": least, "max": most, "metrics": metrics},
    st.integers(0, 3),
    st.integers(1, 4),
    st.dictionaries(
        st.sampled_from(["vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"]),
        st.sampled_from(["10", "800m", "0.8", "0"]),
        min_size=1,
        max_size=2,
    ),
)
PERIODS = st.sampled_from(["0s", "15s", "1m", "30m", "31m"])
STABLE = st.fixed_dictionaries(
    {},
    optional={
        "instances": st.integers(0, 4),
        "percent": st.sampled_from([0, 100, 1000]),
        "period": PERIODS,
        "selectPolicy": st.sampled_from(["Or", "And"]),
        "stabilizationWindow": PERIODS,
    },
)
PANIC = st.fixed_dictionaries(
    {"period": PERIODS}, optional={"percent": st.just(1000), "panicThresholdPercent": near(110, 200), "panicModeHold": PERIODS}
)
AUTOSCALING = st.fixed_dictionaries(
    {},
    optional={
        "groups": SCALING,
        "prefill": SCALING,
        "decode": SCALING,
        "ratio": st.builds(lambda least, most: {"min": least, "max": most}, *[st.sampled_from([0.25, 0.5, 1, 1 / 3, 3])] * 2),
        "tolerancePercent": st.integers(0, 100),
        "behavior": st.fixed_dictionaries(
            {},
            optional={
                "scaleUp": st.fixed_dictionaries({}, optional={"stablePolicy": STABLE, "panicPolicy": PANIC}),
                "scaleDown": STABLE,
            },
        ),
    },
).map(lambda autoscaling: {"autoscaling": autoscaling})

ADDITIONAL_CONFIG = st.fixed_dictionaries(
    {},
    optional={
        "enable_cpu_binding": st.booleans(),
        "recompute_scheduler_enable": st.booleans(),
        "enable_balance_scheduling": mostly(st.sampled_from([False]), st.sampled_from([True])),
        "enable_shared_expert_dp": st.booleans(),
        "enable_kv_nz": st.booleans(),
        "ascend_scheduler_config": st.just({"enabled": True}),
        "it's": st.sampled_from([{"nested": ["$HOME", 1.5, None]}, '"', "\\", "`id`"]),
    },
).flatmap(lambda config: st.sampled_from([{role: {"additionalConfig": config}} for role in ("prefill", "decode")]))
ENV = st.dictionaries(
    st.sampled_from(
        [
            "HCCL_BUFFSIZE",
            "HCCL_CONNECT_TIMEOUT",
            "HCCL_INTRA_ROCE_ENABLE",
            "ASCEND_LAUNCH_BLOCKING",
            "VLLM_LOGGING_LEVEL",
            "GROUP_SIZE",
            "POD_IP",
            "PYTHONHASHSEED",
        ]
    ),
    st.sampled_from(["1", "0", "2560", "a b", "$(POD_IP)", "$HOME"]),
    max_size=2,
).flatmap(lambda env: st.sampled_from([{"prefill": {"env": env}}, {"decode": {"env": env}}, {"engine": {"env": env}}]))
EXTRA_ARGS = st.lists(
    mostly(
        st.sampled_from(["--uvicorn-log-level=warning", "--enable-log-requests", "--tokenizer-mode=auto", "--dtype=bfloat16"]),
        st.sampled_from(
            [
                "--tensor-parallel-size=4",
                "-tp",
                "--no-enforce-eager",
                "--kv-transfer-config.kv_role=kv_both",
                "--data-parallel-rank=1",
                "--block-size=64",
                "--enable-lora",
                "--no-such-flag",
                "positional",
                "$(reboot)",
            ]
        ),
    ),
    max_size=2,
).flatmap(lambda args: st.sampled_from([{"prefill": {"extraArgs": args}}, {"engine": {"extraArgs": args}}]))
PATCHES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "labels": st.dictionaries(
                    st.sampled_from(["team", "modelserving.volcano.sh/role", "modelserving.volcano.sh/entry"]),
                    st.sampled_from(["x", "a b"]),
                    min_size=1,
                    max_size=1,
                ),
                "annotations": st.just({"example.org/note": "x"}),
            },
        ),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "tolerations": st.just([{"key": "npu", "operator": "Exists", "effect": "NoSchedule"}]),
                "nodeSelector": st.just({"zone": "a"}),
                "priorityClassName": st.just("inference"),
                "containers": st.sampled_from(
                    [
                        [{"name": "vllm", "securityContext": {"privileged": True}}],
                        [{"name": "vllm", "image": "other"}],
                        [{"name": "vllm", "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}],
                        [{"name": "log", "image": "registry.local/log:1", "ports": [{"containerPort": 9100}]}],
                        [{"name": "log", "image": "registry.local/log:1", "ports": [{"containerPort": 70000}]}],
                        [{"image": "registry.local/log:1"}],
                    ]
                ),
                "volumes": st.just([{"name": "extra", "emptyDir": {}}]),
                "hostNetwork": st.sampled_from([True]),
            },
        ),
    },
).flatmap(lambda patch: st.sampled_from([{role: {"podTemplate": patch}} for role in ("prefill", "decode")]))

EDITS: dict[str, st.SearchStrategy[Declared]] = {
    "engine": ENGINES,
    "connector": CONNECTORS,
    "load failure policy": POLICIES,
    "pool": POOLS,
    "ports": PORTS,
    "network": NETWORKS,
    "numbers": NUMBERS,
    "resources": RESOURCES,
    "model": MODELS,
    "lora": LORA,
    "route": ROUTES,
    "traffic": TRAFFIC,
    "rollout": ROLLOUTS,
    "scheduling": SCHEDULING,
    "autoscaling": AUTOSCALING,
    "additional config": ADDITIONAL_CONFIG,
    "env": ENV,
    "extra args": EXTRA_ARGS,
    "pod template": PATCHES,
}

FAMILY_OF_SUFFIX = {family.lower(): family for family in catalog.npu_families()}
CLUSTERS = st.fixed_dictionaries(
    {"scheduler": st.sampled_from(["volcano", "volcano", "default-scheduler"])},
    optional={
        "controlPlane": st.builds(lambda install: {"install": install}, st.booleans()),
    },
)


@st.composite
def stack_files(draw: st.DrawFn, path: str) -> Declared:
    """``config`` of a stack file, as :func:`rules.read` takes it; weights lie at ``path``."""
    recipe = draw(st.sampled_from(catalog.recipe_names()))
    suffix = recipe.rpartition("-")[2]
    family = catalog.npu_families()[FAMILY_OF_SUFFIX.get(suffix, "A3")]
    if draw(once_in(20)):
        family = draw(st.sampled_from(list(catalog.npu_families().values())))
    npu: Declared = {"family": family.family, "devicePlugin": draw(st.sampled_from(sorted(family.device_plugins)))}
    if draw(st.booleans()) and family.chips:
        npu["chip"] = draw(st.sampled_from(sorted(family.chips)))
    if draw(once_in(4)):
        npu["nodes"] = draw(st.sampled_from([4, 16, 64]))
    if draw(once_in(4)):
        npu["nodeSelector"] = {"pool": "npu"}
    deployment: Declared = {"recipe": recipe, **draw(weights(path))}
    edits = EDITS | {"parallelism": parallelism(family.dies_per_node), "steps": steps(path)}
    for edit in draw(st.lists(st.sampled_from(sorted(edits)), min_size=1, max_size=5, unique=True)):
        deployment = overlay(deployment, draw(edits[edit]))
    deployments = {NAME: deployment}
    if draw(once_in(5)):
        deployments[OTHER] = {"recipe": recipe, "model": {"served": "other", "weights": {"hostPath": path}}}
    return {"cluster": overlay({"npu": npu}, draw(CLUSTERS)), "deployments": deployments}


ALIKE: dict[type, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.sampled_from([0, 1, 7, 10**9, 10**30]),
    float: st.sampled_from([0.0, 1.0, 1e300]),
    str: st.text(max_size=8) | st.sampled_from(["0", "9" * 30, "9" * 30 + "Gi", "10000h", "999P999D", "a" * 64]),
}
"""What may be well-formed and is no sense all the same"""


@st.composite
def broken_stack_files(draw: st.DrawFn, path: str) -> Any:
    """A stack file in which up to three things, anywhere, are something else."""
    config: Any = draw(stack_files(path))
    for _ in range(draw(st.integers(1, 3))):
        config = _broken(draw, config)
    return config


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(max_size=8)
    | st.sampled_from(["1P1D", "0s", "-1"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers() | st.none(), inner, max_size=3)
    ),
    max_leaves=4,
)


def _broken(draw: st.DrawFn, value: Any) -> Any:
    children = list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    if not children or draw(once_in(6)):
        return draw(mostly(ALIKE.get(type(value), ANYTHING), ANYTHING))
    key, child = draw(st.sampled_from(children))
    changed = _broken(draw, child)
    if isinstance(value, list):
        return [changed if index == key else item for index, item in enumerate(value)]
    return {other: changed if other == key else item for other, item in value.items()}
