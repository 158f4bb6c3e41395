"""Why what is rendered differs from what was given: a table, in which the first that fits counts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import catalog
from importer.comparison import Difference
from importer.engine import Facts
from importer.findings import Findings, Weight, is_secret
from importer.manifests import Keys
from rules.pod_template import RESERVED_ANNOTATIONS, RESERVED_PREFIX

FORM = ""
"""code of a difference that is one of form only"""


@dataclass(frozen=True)
class Context:
    """What an explanation may look at besides the difference."""

    given: Facts
    rendered: Facts

    def value(self, role: str, *keys: str | int) -> Any:
        """Of a given fact; None where there is none."""
        found = self.given.get((role, *keys))
        return found.value if found else None


Holds = Callable[[Difference, Context], bool]


@dataclass(frozen=True)
class Explanation:
    """Of differences whose keys fit the pattern; ``*`` is any key, ``**`` at the end any number of them."""

    pattern: Sequence[str]
    code: str
    problem: str = ""
    """{role}, {key}, {given} and {rendered} are filled in"""
    remedy: str = ""
    severity: Weight = "warning"
    holds: Holds = lambda difference, context: True  # noqa: ARG005

    def fits(self, difference: Difference, context: Context) -> bool:
        """Whether it explains a difference."""
        return _matches(self.pattern, difference.keys) and self.holds(difference, context)


def _matches(pattern: Sequence[str], keys: Keys) -> bool:
    for index, part in enumerate(pattern):
        if part == "**":
            return True
        if index == len(keys) or part not in ("*", str(keys[index])):
            return False
    return len(pattern) == len(keys)


def _absent(difference: Difference, _: Context) -> bool:
    return difference.given is None


def _absent_on_decode(difference: Difference, _: Context) -> bool:
    return difference.given is None and str(difference.keys[0]).startswith("decode")


def _at_unknown_path(difference: Difference, context: Context) -> bool:
    return difference.given is None and "$" in str(context.value(str(difference.keys[0]), "weights"))


def _dropped(difference: Difference, _: Context) -> bool:
    return difference.rendered is None


def _unexpanded(difference: Difference, _: Context) -> bool:
    return bool(re.search(r"\$[A-Za-z_{]", str(difference.given)))


def _constant(difference: Difference, _: Context) -> bool:
    return difference.given is not None and not re.search(r"[$<]", str(difference.given))


def _of_pod(difference: Difference, _: Context) -> bool:
    return "<" in str(difference.given)


def _no_data_parallelism(difference: Difference, context: Context) -> bool:
    return difference.rendered is None and context.value(str(difference.keys[0]), "flag", "--data-parallel-size") in (None, 1)


def _known_host_file(difference: Difference, _: Context) -> bool:
    return difference.given is None and difference.keys[2] in {
        mount.path for family in catalog.npu_families().values() for mount in family.mounts
    }


def _is_hccn(difference: Difference, context: Context) -> bool:
    return _known_host_file(difference, context) and difference.keys[2] == "/etc/hccn.conf"


def _undeclared_in_its_own_network(difference: Difference, context: Context) -> bool:
    return difference.given is None and not context.value(str(difference.keys[0]), "host-network")


def _is_script_mount(difference: Difference, _: Context) -> bool:
    return "configMap" in (difference.given or {}) or "configMap" in (difference.rendered or {})


def _is_reserved(difference: Difference, _: Context) -> bool:
    """Told where it is left out."""
    key = str(difference.keys[2])
    return difference.rendered is None and (key.startswith(RESERVED_PREFIX) or key in RESERVED_ANNOTATIONS)


def _jemalloc(difference: Difference, _: Context) -> bool:
    return "jemalloc" in str(difference.given)


def _interface(difference: Difference, _: Context) -> bool:
    return str(difference.rendered).startswith("$(python3")


def _latest(difference: Difference, _: Context) -> bool:
    return str(difference.given).endswith(":latest") or ":" not in str(difference.given)


def _fewer(difference: Difference, _: Context) -> bool:
    return difference.given is not None and difference.rendered is not None


def _is_of_both(difference: Difference, context: Context) -> bool:
    """Whether the other role has what is rendered here."""
    role = str(difference.keys[0]).removesuffix("-worker")
    other = "decode" if role == "prefill" else "prefill"
    found = context.given.get((other, *difference.keys[1:]))
    return found is not None and str(found.value) == str(difference.rendered)


_DERIVED_PORTS = "port, kvTransfer.port and dataParallelRpcPort declare it, so that the scheduler keeps engines apart"
_NPUS = "NPUs follow from the parallelism: dp x tp x pp of a pod's ranks"
_SIZES = "both roles' sizes follow from their parallelism, and each engine is told both"
_ID = "each engine's id is made of group, role and pod, outside of the quotes"

TABLE: tuple[Explanation, ...] = (
    # names
    Explanation(
        ("serving", "name"),
        "IM201",
        "ModelServing {given} is {rendered}",
        "its pods have other names: the old ones go once the new serve",
    ),
    Explanation(
        ("serving", "roles"), "IM201", "roles {given} are {rendered}", "prefill and decode, in this order: pods get other names"
    ),
    Explanation(
        ("server", "name"),
        "IM201",
        "ModelServer {given} becomes {rendered}",
        "it has the ModelServing's name; delete the old one when the new one serves",
    ),
    Explanation(
        ("route", "name"),
        "IM201",
        "ModelRoute {given} becomes {rendered}",
        "its name follows from the model's; until the old one is deleted, the router takes the older of the two",
    ),
    Explanation(
        ("policy", "name"),
        "IM201",
        "AutoscalingPolicy {given} becomes {rendered}",
        "delete the old one before `up`: two would scale the same pods",
    ),
    Explanation(("serving", "scheduler"), FORM),  # told where the cluster's is chosen
    # KV transfer
    Explanation(
        ("*", "kv", "engine_id"),
        "IM101",
        "engine id {given}: single quotes keep the shell from it, so every engine has this very text",
        _ID,
        "error",
        _unexpanded,
    ),
    Explanation(
        ("*", "kv", "engine_id"), "IM101", "engine id {given} is the same in every replica and group", _ID, "error", _constant
    ),
    Explanation(("*", "kv", "engine_id"), FORM, holds=_of_pod),
    Explanation(("*", "kv", "engine_id"), FORM, holds=_absent),
    Explanation(("*", "kv", "kv_role"), "IM103", "{role} has kv_role {given}", "{rendered}, as its role is", "error"),
    Explanation(
        ("*", "kv", "kv_port"), "IM104", "{role} has kv_port {given}", "one kvTransfer.port for both: {rendered}", "warning"
    ),
    Explanation(
        ("*", "kv", "kv_connector_extra_config", "*", "*"),
        "IM102",
        "the KV configuration of {role} has no {key}, which engines check",
        _SIZES,
        "error",
        _absent,
    ),
    Explanation(
        ("*", "kv", "kv_connector_extra_config", "*", "*"),
        "IM102",
        "the KV configuration of {role} says {key} {given}, the engines have {rendered}",
        _SIZES,
        "error",
        _fewer,
    ),
    Explanation(
        ("*", "kv", "kv_connector_extra_config", "*", "*"),
        "IM102",
        "the KV configuration of {role} says {key} {given}",
        _SIZES,
        "warning",
        _dropped,
    ),
    Explanation(
        ("*", "kv", "kv_connector_extra_config", "*"),
        "IM105",
        "{key} of the KV configuration of {role} is not read by this release",
        "left out",
        holds=_dropped,
    ),
    Explanation(
        ("*", "kv", "kv_connector_extra_config", "*"),
        "IM105",
        "the KV configuration of {role} lacks {key}, which this release or the NPU family wants",
        "{rendered}",
        "error",
        _absent,
    ),
    Explanation(
        ("*", "kv", "kv_connector_module_path"),
        "IM105",
        "kv_connector_module_path {given}: the engine knows the connector by its name, and later releases have no such module",
        "left out",
        "warning",
        _dropped,
    ),
    Explanation(
        ("*", "kv", "kv_connector"),
        "PD311",
        "{role} has KV connector {given}",
        "one kvTransfer.connector for both: {rendered}",
        "error",
    ),
    Explanation(
        ("*", "kv", "*"),
        "IM105",
        "{key} of the KV configuration of {role} is not read by this release",
        "left out",
        holds=_dropped,
    ),
    Explanation(
        ("*", "kv", "*"),
        "IM105",
        "the KV configuration of {role} lacks {key}, which this release reads",
        "{rendered}",
        "warning",
        _absent,
    ),
    Explanation(("*", "kv", "*"), "PD311", "{key} of the KV configuration is {given} on {role}", "{rendered} on both roles"),
    # command line
    Explanation(("*", "flag", "*"), FORM, holds=lambda one, _: is_secret(str(one.keys[2]), one.given)),  # told likewise
    Explanation(
        ("*", "flag", "--compilation-config"),
        "IM117",
        "graphs of {role}: {given}",
        "{rendered}: the size follows from maxNumSeqs and the draft tokens",
        "warning",
        _fewer,
    ),
    Explanation(
        ("*", "flag", "--compilation-config"),
        "IM120",
        "graph mode of {role} is the engine's own default",
        "written out: {rendered}",
        holds=_absent,
    ),
    Explanation(
        ("*", "flag", "--compilation-config"),
        "IM117",
        "graphs of {role} beside --enforce-eager have no effect",
        "left out",
        holds=_dropped,
    ),
    Explanation(
        ("*", "flag", "--cudagraph-capture-sizes"),
        "IM117",
        "graph sizes of {role} by hand: {given}",
        "they follow from maxNumSeqs and the draft tokens",
        holds=_dropped,
    ),
    Explanation(("*", "flag", "--enforce-eager"), FORM),
    Explanation(
        ("*", "flag", "--enable-prefix-caching"),
        "PD507",
        "prefix caching of {role} is on by the engine's own default, and decode computes no prompts",
        "off",
        holds=_absent_on_decode,
    ),
    Explanation(
        ("*", "flag", "--enable-prefix-caching"),
        "IM120",
        "prefix caching of {role} is on by the engine's own default",
        "written out",
        holds=_absent,
    ),
    Explanation(("*", "flag", "--host"), FORM),
    Explanation(
        ("*", "flag", "--port"),
        "IM109",
        "{role} listens on {given}",
        "one port for both roles, the router's: {rendered}",
        "error",
        _fewer,
    ),
    Explanation(("*", "flag", "--port"), FORM, holds=_absent),
    Explanation(("*", "flag", "--data-parallel-size"), FORM, holds=_no_data_parallelism),
    Explanation(
        ("*", "flag", "--data-parallel-size-local"),
        "IM122",
        "{role} starts {given} ranks in each pod",
        "{rendered}, the share of a pod",
        "error",
        _fewer,
    ),
    Explanation(("*", "flag", "--data-parallel-address"), FORM, holds=_fewer),
    Explanation(("*", "flag", "--data-parallel-start-rank"), FORM, holds=_fewer),
    Explanation(("*", "flag", "--data-parallel-rpc-port"), FORM, holds=_no_data_parallelism),
    *(
        Explanation(("*", "flag", flag), FORM, holds=_no_data_parallelism)
        for flag in ("--data-parallel-size-local", "--data-parallel-address")
    ),
    *(
        Explanation(("*", "flag", flag), "IM122", "{role} has no {key}", "derived: {rendered}", "warning", _absent)
        for flag in (
            "--data-parallel-size-local",
            "--data-parallel-address",
            "--data-parallel-rpc-port",
            "--data-parallel-start-rank",
            "--headless",
        )
    ),
    Explanation(
        ("*", "flag", "--served-model-name"),
        "IM107",
        "engines of {role} serve {given}",
        "{rendered}, which clients ask for",
        "error",
    ),
    Explanation(("*", "flag", "--chat-template"), "IM006", "--chat-template of {role}: {given}", "{rendered}"),
    Explanation(("*", "flag", "--lora-modules"), FORM, holds=lambda one, _: one.given == one.rendered),
    Explanation(
        ("*", "flag", "--tensor-parallel-size"),
        "IM120",
        "tensor parallelism of {role} is the engine's own default",
        "written out: {rendered}",
        holds=_absent,
    ),
    Explanation(
        ("*", "flag", "--gpu-memory-utilization"),
        "IM120",
        "memory of {role} is the engine's own default",
        "written out: {rendered}",
        holds=_absent,
    ),
    Explanation(
        ("*", "flag", "--cp-kv-cache-interleave-size"),
        "IM120",
        "{key} of {role} is {given}",
        "{rendered}: whole blocks lie on one rank",
    ),
    Explanation(
        ("*", "flag", "--block-size"),
        "IM120",
        "block size of {role} is the engine's own default",
        "written out: {rendered}",
        holds=_absent,
    ),
    Explanation(("*", "flag", "--speculative-config"), "IM006", "speculative decoding of {role}: {given}", "{rendered}"),
    Explanation(
        ("*", "flag", "*"),
        "PD311",
        "{key} is {given} on {role}",
        "one value for both roles: {rendered}",
        "error",
        _is_of_both,
    ),
    Explanation(
        ("*", "flag", "*"),
        "IM006",
        "{key} {given} of {role} is not taken over",
        "it is decided by this program, or its value is known only in the pod",
        "warning",
        _dropped,
    ),
    # environment
    Explanation(
        ("*", "env", "LD_PRELOAD"),
        "IM116",
        "LD_PRELOAD {given} holds on one processor architecture only",
        "the start script looks for jemalloc",
        holds=_jemalloc,
    ),
    Explanation(("*", "env", "*"), FORM, holds=_interface),
    Explanation(("*", "env", "*"), FORM, holds=_absent),
    Explanation(("*", "env", "*"), FORM, holds=_dropped),
    Explanation(("*", "env", "VLLM_ENGINE_READY_TIMEOUT_S"), FORM),
    Explanation(("*", "env", "MOONCAKE_CONFIG_PATH"), FORM),
    Explanation(
        ("*", "env", "*"),
        "IM116",
        "{key} of {role} is {given}",
        "{rendered}: both roles and every server get the same",
        holds=lambda one, _: "IFNAME" in str(one.keys[2]) or "_IP" in str(one.keys[2]),
    ),
    Explanation(("*", "env", "*"), "PD302", "{key} of {role} is {given}", "{rendered}, which this program sets"),
    # the pod
    Explanation(("*", "npus"), "IM106", "{role} pods hold {given} NPUs, their ranks use {rendered}", _NPUS, "error"),
    Explanation(
        ("*", "npu-resource"), "IM008", "{role} asks for {given}", "cluster.npu.devicePlugin decides: {rendered}", "error"
    ),
    Explanation(("*", "resources", "*", "*"), FORM, holds=_absent),
    Explanation(("*", "port", "*"), FORM, holds=_undeclared_in_its_own_network),
    Explanation(
        ("*", "port", "*"), "IM118", "{role} listens on {key} of its node and declares it not", _DERIVED_PORTS, holds=_absent
    ),
    Explanation(("*", "port", "*"), "IM118", "{role} declares port {key}, on which nothing listens", "left out", holds=_dropped),
    Explanation(
        ("*", "mount", "*"),
        "IM114",
        "no {key} in the {role} pods: they start, and answer garbage",
        "mounted from the node",
        "error",
        _is_hccn,
    ),
    Explanation(("*", "mount", "*"), FORM, holds=_known_host_file),
    Explanation(("*", "mount", "*"), FORM, holds=_is_script_mount),
    Explanation(
        ("*", "probe", "startupProbe"),
        "IM110",
        "{role} has no startupProbe: nothing limits how long a model loads",
        "readiness.loadTimeout",
        holds=_absent,
    ),
    Explanation(
        ("*", "probe", "readinessProbe"),
        "IM110",
        "{role} has no readinessProbe: the router sends requests while the model loads",
        "derived",
        "error",
        _absent,
    ),
    Explanation(
        ("*", "probe", "livenessProbe"),
        "IM110",
        "{role} has no livenessProbe: an engine that hangs stays",
        "derived, after the model is loaded",
        holds=_absent,
    ),
    Explanation(("*", "probe", "*"), "IM110", "{key} of {role} asks {given}", "/health, which says whether the engine is alive"),
    Explanation(
        ("*", "load-seconds"),
        "IM110",
        "{role} may load for {given} s",
        "one readiness.loadTimeout for both: {rendered} s",
        holds=_fewer,
    ),
    Explanation(("*", "load-seconds"), FORM),
    Explanation(
        ("*", "drain"),
        "IM115",
        "an engine of {role} that is stopped breaks off its requests",
        "readiness.drainPeriod: it ends them first",
        holds=_absent,
    ),
    Explanation(
        ("*", "grace"),
        "IM115",
        "{role} has Kubernetes' 30 s to end its requests",
        "readiness.terminationGracePeriod: {rendered} s",
        holds=_absent,
    ),
    Explanation(
        ("*", "grace"),
        "IM115",
        "{role} has {given} s to end its requests, which is no time to drain it",
        "readiness.terminationGracePeriod: {rendered} s",
        holds=lambda one, _: int(one.given) < int(one.rendered),
    ),
    Explanation(("*", "grace"), "PD311", "{role} has {given} s to end its requests", "{rendered} s on both roles"),
    Explanation(
        ("*", "shared-memory"), "IM111", "{role} mounts no shared memory: 64 MiB", "sharedMemory: {rendered}", "error", _absent
    ),
    Explanation(
        ("*", "shared-memory"),
        "IM111",
        "shared memory of {role} has no size: it may take half of the node's memory",
        "sharedMemory: {rendered}",
        holds=lambda one, _: one.given == "",
    ),
    Explanation(
        ("*", "shared-memory"), "PD311", "shared memory of {role} is {given}", "one sharedMemory for both roles: {rendered}"
    ),
    Explanation(("*", "host-network"), "PD311", "{role} has hostNetwork: {given}", "one hostNetwork for both roles: {rendered}"),
    Explanation(("*", "image"), "PD311", "{role} runs {given}", "one engine for both roles: {rendered}", "error"),
    Explanation(
        ("*", "weights"),
        "IM006",
        "{role} reads the weights at {given}",
        "model.weights says one place for both roles, in the pod as on the node: {rendered}",
    ),
    Explanation(("*", "weights-from"), FORM, holds=_at_unknown_path),  # told of the path
    Explanation(
        ("*", "weights-from"),
        "IM006",
        "{role} mounts no volume with the weights",
        "mounted in both roles: {rendered}",
        holds=_absent,
    ),
    Explanation(("*", "weights-from"), "IM006", "{role} has the weights from {given}", "{rendered}"),
    Explanation(("*", "download", "image"), FORM, holds=_latest),
    Explanation(
        ("*", "download", "**"),
        "PD311",
        "the downloader of {role}: {key} {given}",
        "one model.weights.download for both roles: {rendered}",
    ),
    Explanation(("*", "runtime", "image"), FORM, holds=_latest),
    Explanation(
        ("*", "runtime", "image"),
        "IM119",
        "{role} has no runtime beside its engine",
        "runtimeSidecar is for both roles",
        holds=_absent,
    ),
    Explanation(
        ("*", "runtime", "engine-base-url"),
        "IM119",
        "the runtime of {role} asks {given}",
        "the pod's address, which the engine listens on",
        holds=_fewer,
    ),
    Explanation(
        ("*", "runtime", "model"),
        "IM107",
        "the runtime of {role} calls the model {given}",
        "{rendered}, as the engines do",
        holds=_fewer,
    ),
    Explanation(
        ("*", "runtime", "env"),
        "IM119",
        "the runtime of {role} gets $(POD_NAME) and $(NAMESPACE) as they are written: nobody defines them",
        "both are defined",
        "error",
        _fewer,
    ),
    Explanation(("*", "runtime", "*"), FORM),
    Explanation(("*", "pool", "*"), "IM105", "{key} of the pool's configuration is {given}", "{rendered}"),
    Explanation(("*", "engine", "workingDir"), FORM, holds=_dropped),
    Explanation(
        ("*", "engine", "lifecycle"),
        "IM115",
        "{role} has a preStop of its own: {given}",
        "left out: readiness.drainPeriod ends the requests",
        holds=lambda one, _: "preStop" in one.given,
    ),
    Explanation(("*", "secret", "**"), FORM),  # told where it is left out
    Explanation(("*", "labels", "*"), FORM, holds=_is_reserved),
    Explanation(("*", "annotations", "*"), FORM, holds=_is_reserved),
    Explanation(("*", "maxUnavailable"), FORM, holds=lambda one, _: one.given is None and one.rendered is None),
    # routing
    Explanation(("server", "connector"), FORM),
    Explanation(("server", "model"), "IM107", "the router asks the engines for {given}", "{rendered}"),
    Explanation(("server", "group-key"), FORM),
    Explanation(("server", "port"), FORM),
    Explanation(("server", "*"), FORM, holds=lambda one, _: str(one.keys[1]).startswith(("match ", "prefill ", "decode "))),
    Explanation(("server", "traffic"), FORM, holds=_absent),
    # autoscaling: what Kthena's webhook fills in, and where the engines publish their metrics
    Explanation(("policy", "behavior", "**"), FORM, holds=_absent),
    Explanation(("policy", "tolerance"), FORM, holds=_absent),
    Explanation(("policy", "*", "port", "*"), FORM, holds=_absent),
    Explanation(("policy", "ratio", "*"), FORM, holds=_absent),
)


_ABSENT = "{role} has no {key}"


def explain(found: Iterator[Difference], context: Context, findings: Findings) -> list[Difference]:
    """Tell each difference that is more than form; those that nothing explains are returned, and told as such."""
    unexplained = []
    for difference in found:
        explanation = next((one for one in TABLE if one.fits(difference, context)), None)
        if explanation is None:
            unexplained.append(difference)
            words = _words(difference)
            findings.add(
                "IM900",
                difference.place,
                "{role} {key}: {given} was given".format(**words),
                "{rendered} is rendered".format(**words),
                "error",
            )
        elif explanation.code != FORM:
            words = _words(difference)
            findings.add(
                explanation.code,
                difference.place,
                (explanation.problem if difference.given is not None or "{given}" not in explanation.problem else _ABSENT).format(
                    **words
                ),
                explanation.remedy.format(**words),
                explanation.severity,
            )
    return unexplained


def _words(difference: Difference) -> dict[str, str]:
    role, *keys = map(str, difference.keys)
    key = ".".join(keys[2:] if keys[:2] == ["kv", "kv_connector_extra_config"] else keys[1:]) or "".join(keys)
    return {
        "role": role.replace("-", " "),
        "key": key,
        "given": shown(difference.given),
        "rendered": shown(difference.rendered),
    }


def shown(value: Any) -> str:
    """A value in at most two lines: a list of names by its names, other structures as JSON."""
    if value is None:
        return "nothing"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        value = ", ".join(value)
    text = value.replace("<", "").replace(">", "") if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:157]}..."  # noqa: PLR2004
