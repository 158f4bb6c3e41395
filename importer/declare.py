"""From the facts of a ModelServing to a deployment of a stack file."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import catalog
from importer.engine import KV_TRANSFER, Pod, families_of, version_of
from importer.findings import Findings, is_secret
from importer.manifests import Manifest, Place
from models.deployment import Deployment, Readiness
from models.quantities import seconds
from models.role import ROLES, RoleName
from render.arguments import POOL_CONNECTOR, derived_flags
from render.names import DEPLOYMENT_LABEL, MANAGED, MANAGED_LABEL, QUEUE_ANNOTATION, ROLE_LABEL
from render.pods import ENGINE_CONTAINER, SCRIPTS, derived_env
from rules.escape_hatch import KTHENA_ENV
from rules.finding import Path
from rules.pod_template import RESERVED_ANNOTATIONS, RESERVED_PREFIX

BOTH: Mapping[str, Path] = {
    "--block-size": ("model", "blockSize"),
    "--data-parallel-rpc-port": ("dataParallelRpcPort",),
    "--max-lora-rank": ("model", "lora", "maxRank"),
    "--max-loras": ("model", "lora", "maxLoaded"),
    "--max-model-len": ("model", "maxModelLen"),
    "--port": ("port",),
    "--quantization": ("model", "quantization"),
    "--seed": ("model", "seed"),
    "--trust-remote-code": ("model", "trustRemoteCode"),
}
"""Flag -> field that both roles share; the inverse of render/arguments.py"""
OF_ROLE: Mapping[str, Path] = {
    "--additional-config": ("additionalConfig",),
    "--async-scheduling": ("asyncScheduling",),
    "--data-parallel-size": ("parallelism", "dp"),
    "--decode-context-parallel-size": ("parallelism", "dcp"),
    "--enable-expert-parallel": ("parallelism", "expertParallel"),
    "--gpu-memory-utilization": ("gpuMemoryUtilization",),
    "--max-num-batched-tokens": ("batching", "maxNumBatchedTokens"),
    "--max-num-seqs": ("batching", "maxNumSeqs"),
    "--pipeline-parallel-size": ("parallelism", "pp"),
    "--tensor-parallel-size": ("parallelism", "tp"),
}
"""Flag -> field of the role"""
RESTATED = re.compile(r"(VLLM_)?(TP|DP|PP|EP)(_SIZE)?|(TENSOR|DATA|PIPELINE)_PARALLEL(_SIZE)?|ROLE(_NAME)?", re.IGNORECASE)
"""Environment that says once more what the command line or the role says"""
_INTERFACES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_DRAIN_PERIOD = Readiness.model_fields["drain_period"].default
"""A pod that has less time than this can't be drained: it gets the default time"""
_DEFAULT_INTERFACE = "eth0"
"""of a pod's own network"""
_LATEST = ("latest", "")
_REASON = "nothing in a stack file takes it"


@dataclass
class Draft:
    """A deployment as it grows."""

    name: str
    namespace: str
    declared: dict[str, Any] = field(default_factory=dict)
    places: dict[Path, Place] = field(default_factory=dict)
    """path in the deployment -> place in the manifest"""

    def set(self, path: Path, value: Any, place: Place) -> None:
        """Declare ``value``; None is nothing."""
        if value is None:
            return
        around: Any = self.declared
        for key in path[:-1]:
            around = around.setdefault(key, {})
        around[path[-1]] = deepcopy(value)  # what is declared gets smaller, what was given stays
        self.places[path] = place

    def get(self, *path: str | int) -> Any:
        """What is declared at a path; None where nothing is."""
        found: Any = self.declared
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    def place(self, path: Path) -> Place | None:
        """Of a path, or of the nearest thing around it."""
        return next((self.places[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.places), None)


@dataclass
class RoleGiven:
    """A role of a ModelServing."""

    name: str
    """in the manifest"""
    index: int
    body: dict[str, Any]
    entry: Pod
    worker: Pod | None


@dataclass
class Given:
    """A ModelServing of prefill and decode."""

    manifest: Manifest
    roles: dict[RoleName, RoleGiven]

    @property
    def name(self) -> str:
        """Of the deployment: the object's, or that which this program has noted on it."""
        labels = self.manifest.metadata.get("labels") or {}
        ours = labels.get(MANAGED_LABEL) == MANAGED[MANAGED_LABEL]
        return str(labels[DEPLOYMENT_LABEL]) if ours and DEPLOYMENT_LABEL in labels else self.manifest.name


@cache
def flags_with_fields() -> frozenset[str]:
    """Flags that the declaration decides, the same for every deployment."""
    some = Deployment.model_validate({**catalog.recipe(catalog.recipe_names()[0]), "name": "some"}, by_name=False)
    return derived_flags(some, "decode")


class Declaring:
    """Builds the declaration of one ModelServing."""

    def __init__(self, given: Given, family: str, findings: Findings) -> None:
        self.given, self.family, self.findings = given, catalog.npu_families()[family], findings
        self.draft = Draft(given.name, given.manifest.namespace)

    def declare(self) -> Draft:
        """Everything that the ModelServing says."""
        self._serving()
        self._engine()
        self._model()
        for role in ROLES:
            self._role(role)
        self._transfer()
        self._pods()
        self._environment()
        self._extra_arguments()
        for role in ROLES:
            self._pod_template(role)
        return self.draft

    def _pod(self, role: RoleName) -> Pod:
        return self.given.roles[role].entry

    def _fact(self, path: Path, *keys: str | int) -> None:
        """Declare at ``path`` what a fact of the prefill pods says, or of the decode pods where those say nothing."""
        for role in ROLES:
            if found := self._pod(role).facts.get(keys):
                self.draft.set(path, found.value, found.place)
                return

    # around the pods

    def _serving(self) -> None:
        draft, manifest, spec = self.draft, self.given.manifest, self.given.manifest.spec
        template = spec.get("template") or {}
        if manifest.namespace != "default":
            draft.set(("namespace",), manifest.namespace, manifest.place("metadata", "namespace"))
        prefill, decode = (self.given.roles[role].body.get("replicas", 1) for role in ROLES)
        draft.set(("ratio",), f"{prefill}P{decode}D", manifest.place("spec", "template", "roles"))
        draft.set(("groups",), spec.get("replicas", 1), manifest.place("spec", "replicas"))
        policy = spec.get("recoveryPolicy", "RoleRecreate")
        draft.set(("recovery", "policy"), policy, manifest.place("spec", "recoveryPolicy"))
        grace = template.get("restartGracePeriodSeconds", 0)
        place = manifest.place("spec", "template", "restartGracePeriodSeconds")
        draft.set(("recovery", "restartGracePeriodSeconds"), grace, place)
        draft.set(("rolloutStrategy",), spec.get("rolloutStrategy"), manifest.place("spec", "rolloutStrategy"))
        draft.set(("plugins",), spec.get("plugins"), manifest.place("spec", "plugins"))
        for key in ("gangPolicy", "networkTopology"):
            draft.set(("scheduling", key), template.get(key), manifest.place("spec", "template", key))
        queue = (manifest.metadata.get("annotations") or {}).get(QUEUE_ANNOTATION)
        draft.set(("scheduling", "queue"), queue, manifest.place("metadata", "annotations", QUEUE_ANNOTATION))
        for role, one in self.given.roles.items():
            base = ("spec", "template", "roles", one.index)
            draft.set((role, "maxUnavailable"), one.body.get("maxUnavailable"), manifest.place(*base, "maxUnavailable"))
            draft.set((role, "pods"), one.body.get("workerReplicas", 0) + 1, manifest.place(*base, "workerReplicas"))

    def _engine(self) -> None:
        image = self._pod("prefill").facts.get(("image",)) or self._pod("decode").facts.get(("image",))
        if image is None:
            return
        release = version_of(image.value)
        self.draft.set(("engine", "image"), image.value, image.place)
        self.draft.set(("engine", "version"), release, image.place)
        if release is None:
            self.findings.add(
                "IM006",
                image.place,
                f"the tag of {image.value} names no release of vLLM-Ascend",
                "declare engine.version: what the engine is given, and what it is checked for, follow from it",
                "error",
            )

    # the model

    def _model(self) -> None:
        for role in reversed(ROLES):  # where the two differ, prefill's holds
            self._model_of(self._pod(role))
        self._weights()

    def _model_of(self, pod: Pod) -> None:
        draft, weights = self.draft, pod.value("weights")
        for flag, path in BOTH.items():
            if (option := pod.options.get(flag)) and option.value is not False:
                draft.set(path, option.value, option.place)
        if option := pod.options.get("--served-model-name"):
            names = option.value if isinstance(option.value, list) else [option.value]
            draft.set(("model", "served"), str(names[0]), option.place)
            for other in names[1:]:
                self._left_out(option.place, f"{other}, a second served name", "a ModelRoute of its own can lead to it")
        if option := pod.options.get("--disable-hybrid-kv-cache-manager"):
            draft.set(("model", "hybridKvCacheManager"), not option.value, option.place)
        if (option := pod.options.get("--chat-template")) and weights:
            inside = posixpath.relpath(str(option.value), weights) if str(option.value).startswith("/") else ".."
            if "/" in inside or inside.startswith(".."):
                self._left_out(option.place, f"--chat-template {option.value}", "put it beside the weights: model.chatTemplate")
            else:
                draft.set(("model", "chatTemplate"), inside, option.place)
        if (option := pod.options.get("--lora-modules")) and weights:
            for name, path in option.value.items():
                inside = posixpath.relpath(path, weights) if path.startswith(f"{weights}/") else path
                draft.set(("model", "lora", "adapters", name), inside, option.place)

    def _weights(self) -> None:
        pod = self._pod("prefill") if ("weights",) in self._pod("prefill").facts else self._pod("decode")
        path, source = pod.value("weights"), pod.facts.get(("weights-from",))
        if path is None:
            return
        place = pod.facts["weights",].place
        if source is None:
            self.findings.add(
                "IM006",
                place,
                f"no volume has {path}: the engine takes it from its image, or downloads it by itself at every start",
                "declare model.weights; download fetches them once",
                "error",
            )
            return
        volume = source.value
        where: dict[str, Any] = {}
        if "hostPath" in volume:
            where = {"hostPath": volume["hostPath"]}
        elif "claim" in volume:
            sub = {"subPath": volume["subPath"]} if volume.get("subPath") else {}
            where = {"claim": {"name": volume["claim"], "path": path, **sub}}
        elif "server" in volume:
            where = {"nfs": {"server": volume["server"], "export": volume["export"], "path": path}}
        else:
            self.findings.add(
                "IM006",
                source.place,
                f"the weights are in {json.dumps(volume)}, which ends with the pod: each new one loads them again",
                "declare model.weights: a hostPath, claim or nfs, or download with a cache on one of them",
                "error",
            )
            return
        if pod.value("download", "source"):
            self._download(pod, where)
        else:
            self.draft.set(("model", "weights"), where, source.place)

    def _download(self, pod: Pod, where: dict[str, Any]) -> None:
        fetched = pod.facts["download", "source"]
        image = str(pod.value("download", "image"))
        declared = {"source": fetched.value, "cache": where}
        if credentials := pod.value("download", "credentials"):
            declared["credentials"] = credentials
        if not self._is_unpinned(image, catalog.engine().downloader_image, fetched.place):
            declared["image"] = image
        self.draft.set(("model", "weights", "download"), declared, fetched.place)
        target, weights = pod.value("download", "to"), pod.value("weights")
        if target != weights:
            self.findings.add(
                "IM006",
                fetched.place,
                f"the downloader writes to {target}, the engine reads {weights}",
                "one directory for both, which model.weights.download.cache says",
                "error",
            )

    def _is_unpinned(self, image: str, official: str, place: Place) -> bool:
        repository, _, tag = image.partition("@")[0].rpartition(":") if ":" in image else (image, "", "")
        if repository != official or tag not in _LATEST:
            return False
        remedy = "the release of the control plane, which controlPlane.version says"
        self.findings.add("IM112", place, f"{image} is another image tomorrow", remedy)
        return True

    # the roles

    def _role(self, role: RoleName) -> None:
        draft, pod = self.draft, self._pod(role)
        for one in pod.repeated:
            self.findings.add("IM007", one.place, f"{one.flag} of {role} stands twice", "once; what stands last counts")
        for flag, path in OF_ROLE.items():
            if (option := pod.options.get(flag)) and option.value is not False:
                draft.set((role, *path), option.value, option.place)
        place = pod.places.get("command", self.given.manifest.place())
        if "--tensor-parallel-size" not in pod.options and pod.options:
            draft.set((role, "parallelism", "tp"), 1, place)
        caching = pod.options.get("--enable-prefix-caching")
        # the engine's own default is on; on decode it is a fault (PD507)
        draft.set((role, "prefixCaching"), caching.value if caching else role == "prefill", caching.place if caching else place)
        self._graph(role, pod, place)
        self._speculative(role, pod)
        self._resources(role, pod)

    def _resources(self, role: RoleName, pod: Pod) -> None:
        for name in ("cpu", "memory"):
            requests, limits = (pod.facts.get(("resources", kind, name)) for kind in ("requests", "limits"))
            if requests and not limits:
                what = f"{role} pods have no limit of {name}"
                self.findings.add("IM006", requests.place, what, f"as much as is requested: {requests.value}")
            # without a request Kubernetes takes the limit
            for kind, found in (("requests", requests or limits), ("limits", limits or requests)):
                if found:
                    self.draft.set((role, "resources", kind, name), found.value, found.place)

    def _graph(self, role: RoleName, pod: Pod, place: Place) -> None:
        eager, compilation = pod.options.get("--enforce-eager"), pod.options.get("--compilation-config")
        if eager and eager.value:
            self.draft.set((role, "graph"), "eager", eager.place)
            return
        settings = compilation.value if compilation and isinstance(compilation.value, dict) else {}
        mode = settings.get("cudagraph_mode", "PIECEWISE")
        at = compilation.place if compilation else place
        self.draft.set((role, "graph"), {"NONE": "eager"}.get(mode, mode), at)
        for key in settings.keys() - {"cudagraph_mode", "cudagraph_capture_sizes"}:
            self._left_out(at, f"{key} of --compilation-config", "graph says which graphs are captured")

    def _speculative(self, role: RoleName, pod: Pod) -> None:
        option = pod.options.get("--speculative-config")
        if not option or not isinstance(option.value, dict):
            return
        names = {"method": "method", "num_speculative_tokens": "numSpeculativeTokens", "model": "model"}
        for key, value in option.value.items():
            if key in names:
                inside = f"{pod.value('weights')}/"
                shown = str(value).removeprefix(inside) if key == "model" else value
                self.draft.set((role, "speculative", names[key]), shown, option.place)
            else:
                self._left_out(option.place, f"{key} of --speculative-config", _REASON)

    def _transfer(self) -> None:
        draft = self.draft
        for role in reversed(ROLES):
            option = self._pod(role).options.get(KV_TRANSFER)
            if not option or not isinstance(option.value, dict):
                continue
            config, store = option.value, None
            connectors = (config.get("kv_connector_extra_config") or {}).get("connectors")
            if config.get("kv_connector") == "MultiConnector" and connectors:
                store = next((one for one in connectors if one.get("kv_connector") == POOL_CONNECTOR), None)
                config = {**config, **next((one for one in connectors if one is not store), {})}
            draft.set(("kvTransfer", "connector"), config.get("kv_connector"), option.place)
            if str(config.get("kv_port", "")).isdigit():
                draft.set(("kvTransfer", "port"), int(config["kv_port"]), option.place)
            draft.set(("kvTransfer", "loadFailurePolicy"), option.value.get("kv_load_failure_policy"), option.place)
            if store:
                self._pool(role, store, option.place)

    def _pool(self, role: RoleName, store: Mapping[str, Any], place: Place) -> None:
        pod = self._pod(role)
        master = pod.value("env", "MOONCAKE_MASTER") or pod.value("pool", "master_server_address")
        self.draft.set(("kvTransfer", "pool", "master"), master, place)
        size = pod.value("pool", "global_segment_size")
        gibibytes, rest = divmod(size, 2**30) if isinstance(size, int) else (0, 1)
        self.draft.set(("kvTransfer", "pool", "segmentSize"), size and (str(size) if rest else f"{gibibytes}Gi"), place)
        load_async = (store.get("kv_connector_extra_config") or {}).get("load_async")
        self.draft.set(("kvTransfer", "pool", "loadAsync"), load_async, place)

    # the pods

    def _pods(self) -> None:
        draft, prefill = self.draft, self._pod("prefill")
        self._fact(("hostNetwork",), "host-network")
        loads = [pod.facts["load-seconds",] for pod in map(self._pod, ROLES) if ("load-seconds",) in pod.facts]
        if loads:
            longest = max(loads, key=lambda fact: int(fact.value))
            draft.set(("readiness", "loadTimeout"), _duration(longest.value), longest.place)
        for role in ROLES:
            if found := self._pod(role).facts.get(("drain",)):
                draft.set(("readiness", "drainPeriod"), f"{found.value:g}s", found.place)
            found = self._pod(role).facts.get(("grace",))
            is_drained = ("drain",) in self._pod(role).facts
            if found and (is_drained or found.value > seconds(_DRAIN_PERIOD)):
                draft.set(("readiness", "terminationGracePeriod"), f"{found.value}s", found.place)
            if (found := self._pod(role).facts.get(("shared-memory",))) and found.value:
                draft.set(("sharedMemory",), found.value, found.place)
            if found := self._pod(role).facts.get(("runtime", "image")):
                draft.set(("runtimeSidecar",), found.value is not None, found.place)
                if not self._is_unpinned(found.value, catalog.engine().runtime_image, found.place):
                    draft.set(("runtimeImage",), found.value, found.place)
        interfaces = {str(prefill.value("env", name)) for name in _INTERFACES} - {"None"}
        name = interfaces.pop() if len(interfaces) == 1 else ""
        declared = prefill.run and prefill.run.variables.get("NETWORK_INTERFACE") == name  # by this program's own script
        if re.fullmatch(r"[\w.-]+", name) and (declared or name != _DEFAULT_INTERFACE or prefill.value("host-network")):
            places = (prefill.facts[keys].place for variable in _INTERFACES if (keys := ("env", variable)) in prefill.facts)
            draft.set(("networkInterface",), name, next(places))

    def _environment(self) -> None:
        kept = {role: self._kept_environment(role) for role in ROLES}
        for role in ROLES:
            other = kept["decode" if role == "prefill" else "prefill"]
            for name, (value, place) in sorted(kept[role].items()):
                shared = name in other and other[name][0] == value
                self.draft.set(("engine", "env", name) if shared else (role, "env", name), value, place)

    def _kept_environment(self, role: RoleName) -> dict[str, tuple[str, Place]]:
        pod = self._pod(role)
        if pod.run is None:
            return {}
        kept: dict[str, tuple[str, Place]] = {}
        derived = self._derived_environment(role)
        for (kind, *names), (known, place) in pod.facts.items():
            name = str(names[0]) if names else ""
            if kind != "env" or name in derived or name in pod.configured:
                continue
            if name in KTHENA_ENV:
                self.findings.add("PD302", place, f"{name} of the {role} pods: Kthena sets it", "left out", "error")
                continue
            if name in self._ingredients() and not _is_setting(name):
                continue  # it is in what was made of it, or was meant to be
            if name == "LD_PRELOAD" and "jemalloc" in known:
                continue  # the start script finds it, on any processor
            value = _as_written(pod, name, known, derived)
            if is_secret(name, value):
                remedy = f"a Secret, and in {role}.podTemplate a valueFrom.secretKeyRef for {name}"
                self.findings.add("IM123", place, f"{name} stands in plain, and is not taken over", remedy, "error")
            elif _restates(name, value, role, self.draft):
                self.findings.add("IM007", place, f"{name}={value} restates what stands elsewhere", "left out; it would go stale")
            elif "<" in value or ("$" in value and value != _as_written(pod, name, "", derived)):
                self._left_out(place, f"{name}={value}", "its value is known only in the pod; an image can set it")
            else:
                kept[name] = (value, place)
        return kept

    def _ingredients(self) -> set[str]:
        """Variables that a command line of either role is made with, or was meant to be."""
        pods = [self._pod(role) for role in ROLES]
        return {name for pod in pods for name in ((pod.run.used if pod.run else set()) | _named_in_quotes(pod))}

    def _derived_environment(self, role: RoleName) -> frozenset[str]:
        try:
            deployment = Deployment.model_validate({**self.draft.declared, "name": self.draft.name}, by_name=False)
        except ValueError:
            return frozenset({"POD_IP", "GROUP_NAME", "ROLE_ID", "HCCL_IF_IP", "VLLM_HOST_IP", *_INTERFACES})
        return derived_env(deployment, role)

    def _extra_arguments(self) -> None:
        extra = {role: self._kept_arguments(role) for role in ROLES}
        prefill, decode = extra["prefill"], extra["decode"]
        count = 0
        while count < min(len(prefill), len(decode)) and prefill[count][0] == decode[count][0]:
            count += 1
        for path, options in (
            (("engine", "extraArgs"), prefill[:count]),
            (("prefill", "extraArgs"), prefill[count:]),
            (("decode", "extraArgs"), decode[count:]),
        ):
            words = [word for own, _ in options for word in own]
            if words:
                self.draft.set(path, words, options[0][1])

    def _kept_arguments(self, role: RoleName) -> list[tuple[tuple[str, ...], Place]]:
        kept = []
        for flag, option in self._pod(role).options.items():
            if flag in flags_with_fields() or flag == KV_TRANSFER:
                continue
            if is_secret(flag, option.value):
                remedy = f"a Secret, and in {role}.podTemplate a variable of it: VLLM_API_KEY is what --api-key says, for example"
                self.findings.add("IM123", option.place, f"{flag} stands in plain, and is not taken over", remedy, "error")
                continue
            if any("$" in word or "<" in word for word in option.words):
                self._left_out(option.place, " ".join(option.words), "its value is known only in the pod")
                continue
            if beside := next((word for word in option.words if self._is_beside_the_weights(role, word)), None):
                what = f"{beside} is in the volume of the weights, but beside them: it"
                self._left_out(option.place, what, "put it beside the weights, or mount it by podTemplate")
            kept.append((option.words, option.place))
        return kept

    def _is_beside_the_weights(self, role: RoleName, word: str) -> bool:
        pod = self._pod(role)
        path = word.partition("=")[2] if word.startswith("-") else word
        mount, weights = pod.weights_mount, str(pod.value("weights"))
        return bool(mount) and path.startswith(f"{mount}/") and not (path == weights or path.startswith(f"{weights}/"))

    # the rest of the pods

    def _pod_template(self, role: RoleName) -> None:
        pod, patch = self._pod(role), {}
        spec = self._patched_spec(role, pod)
        metadata = {kind: found for kind in ("labels", "annotations") if (found := self._metadata(role, pod, kind))}
        if metadata:
            patch["metadata"] = metadata
        if spec:
            patch["spec"] = spec
        if patch:
            one = self.given.roles[role]
            place = self.given.manifest.place("spec", "template", "roles", one.index, "entryTemplate")
            self.draft.set((role, "podTemplate"), patch, place)

    def _metadata(self, role: RoleName, pod: Pod, kind: str) -> dict[str, str]:
        kept = {}
        for keys, (value, place) in pod.facts.items():
            if keys[0] != kind:
                continue
            key = str(keys[1])
            if key.startswith(RESERVED_PREFIX) or key in RESERVED_ANNOTATIONS:
                self.findings.add(
                    "PD322",
                    place,
                    f"{kind[:-1]} {key} of the {role} pods goes over Kthena's own: pods of all groups look alike to the router"
                    if key != ROLE_LABEL
                    else f"{kind[:-1]} {key} of the {role} pods goes over Kthena's own",
                    "left out; Kthena sets its labels, and the ModelServer selects by them",
                    "error",
                )
            else:
                kept[key] = str(value)
        return kept

    def _patched_spec(self, role: RoleName, pod: Pod) -> dict[str, Any]:
        spec = {key: value for key, value in sorted(self._own_fields(pod)) if value}
        engine: dict[str, Any] = {
            str(keys[1]): fact.value for keys, fact in pod.facts.items() if keys[0] == "engine" and keys[1] != "workingDir"
        }
        for keys, fact in pod.facts.items():
            if keys[0] == "secret":
                remedy = f"a Secret, and in {role}.podTemplate a valueFrom.secretKeyRef for {keys[2]} of {keys[1]}"
                what = f"{keys[2]} of {keys[1]} stands in plain, and is not taken over"
                self.findings.add("IM123", fact.place, what, remedy, "error")
        if own := engine.pop("lifecycle", None):  # what it does before it stops, the drain does
            engine |= {"lifecycle": kept} if (kept := {key: value for key, value in own.items() if key != "preStop"}) else {}
        mounts = [
            self._mount(pod, str(keys[1]))
            for keys in pod.facts
            if keys[0] == "mount" and not self._is_derived_mount(pod, str(keys[1]))
        ]
        added: dict[str, Any] = {
            "volumeMounts": mounts,
            "ports": self._ports(pod),
            "env": [
                {"name": name, "valueFrom": source}
                for name, source in pod.configured.items()
                if self._is_own_variable(role, pod, name)
            ],
        }
        for (kind, *names), fact in pod.facts.items():
            if kind == "resources" and names[1] not in ("cpu", "memory"):
                added.setdefault("resources", {}).setdefault(names[0], {})[names[1]] = fact.value
        engine |= {key: value for key, value in added.items() if value}
        for kind in ("initContainers", "containers"):
            beside = [fact.value for keys, fact in pod.facts.items() if keys[0] == kind]
            own = [{"name": ENGINE_CONTAINER, **engine}] if kind == "containers" and engine else []
            spec |= {kind: [*own, *beside]} if own or beside else {}
        return self._with_volumes(pod, spec)

    def _own_fields(self, pod: Pod) -> Iterator[tuple[str, Any]]:
        """Of the PodSpec, what this program has no field for."""
        selectors = [plugin.node_selector.items() for plugin in self.family.device_plugins.values()]
        for keys, (value, place) in pod.facts.items():
            if keys[0] != "spec":
                continue
            if keys[1] == "nodeSelector":
                yield (
                    "nodeSelector",
                    {key: label for key, label in value.items() if not any((key, label) in one for one in selectors)},
                )
            elif keys[1] not in ("schedulerName", "restartPolicy"):
                yield str(keys[1]), value
            elif value not in ("volcano", "default-scheduler", "Always"):
                self._left_out(place, f"{keys[1]} {value}", "cluster.scheduler decides; pods are restarted always")

    def _with_volumes(self, pod: Pod, spec: dict[str, Any]) -> dict[str, Any]:
        """The volumes that are mounted, under names that are not this program's."""
        ours = {"scripts", "weights", "weights-source", "shared-memory", *(mount.name for mount in self.family.mounts)}
        given = [*(pod.spec.get("initContainers") or ()), *(pod.spec.get("containers") or ())]
        mounted = {str(mount.get("name")) for container in given for mount in container.get("volumeMounts") or ()}
        used = {str(volume.get("name")) for volume in pod.spec.get("volumes") or ()} - mounted
        for kind in ("initContainers", "containers"):
            for index, container in enumerate(spec.get(kind, [])):
                mounts = container.get("volumeMounts") or []
                used |= {str(mount.get("name")) for mount in mounts}
                renamed = [{**mount, "name": _renamed(str(mount.get("name")), ours)} for mount in mounts]
                spec[kind][index] = {**container, "volumeMounts": renamed} if mounts else container
        volumes = [
            {**volume, "name": _renamed(str(volume.get("name")), ours)}
            for volume in pod.spec.get("volumes") or ()
            if volume.get("name") in used
        ]
        return {**spec, "volumes": volumes} if volumes else spec

    def _is_derived_mount(self, pod: Pod, path: str) -> bool:
        ours = {SCRIPTS, *(mount.path for mount in self.family.mounts)}
        return path in ours or path in pod.script_mounts

    def _mount(self, pod: Pod, path: str) -> dict[str, Any]:
        return next(mount for mount in pod.container["volumeMounts"] if posixpath.normpath(str(mount.get("mountPath"))) == path)

    def _ports(self, pod: Pod) -> list[dict[str, Any]]:
        """Ports beside those that follow from the declaration."""
        api = self.draft.get("port") or 8000
        known = {api, self.draft.get("kvTransfer", "port") or 36000, self.draft.get("dataParallelRpcPort") or 12321}
        ports = [port for port in pod.container.get("ports") or () if port.get("containerPort") not in known]
        return [{key: value for key, value in port.items() if (key, value) != ("protocol", "TCP")} for port in ports]

    def _is_own_variable(self, role: RoleName, pod: Pod, name: str) -> bool:
        """Whether a variable whose value only the pod has is more than an ingredient of the start script."""
        if name in self._derived_environment(role) or name in KTHENA_ENV or name in self._ingredients():
            return False
        source = pod.configured[name]
        numbers = {plugin.device_numbers.annotation for plugin in self.family.device_plugins.values()} - {None}
        if any(str(annotation) in json.dumps(source) for annotation in numbers):
            return False  # the start script takes it where the release reads it
        if "fieldRef" in source and not _is_setting(name):
            self.findings.add(
                "IM007",
                pod.places[f"env {name}"],
                f"nothing reads {name} of the {role} pods",
                "left out; podTemplate can bring it back",
            )
            return False
        return True

    def _left_out(self, place: Place, what: str, remedy: str) -> None:
        self.findings.add("IM006", place, f"{what} is not taken over", remedy)


def _as_written(pod: Pod, name: str, value: str, derived: Collection[str]) -> str:
    """A value with ``$(NAME)`` of what the pod has anyway, which Kubernetes fills in; any other as it is."""
    written = next((str(one.get("value")) for one in pod.container.get("env") or () if one.get("name") == name), "")
    references = re.findall(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)", written)
    is_kept = references and set(references) <= set(derived) and (pod.run is None or name not in pod.run.set_at)
    return written if is_kept else value


def _named_in_quotes(pod: Pod) -> set[str]:
    """Variables of the command line that single quotes keep from being expanded."""
    quoted = " ".join(word for option in pod.options.values() if option.literal for word in option.words)
    return {found[1] for found in re.finditer(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)", quoted)}


def _is_setting(name: str) -> bool:
    """Whether the engine, or what it stands on, reads a variable."""
    return name in catalog.settings().environment


def _renamed(name: str, ours: Collection[str]) -> str:
    return f"own-{name}" if name in ours else name


def _restates(name: str, value: str, role: RoleName, draft: Draft) -> bool:
    found = RESTATED.fullmatch(name)
    if not found or _is_setting(name):
        return False
    return value == role or value.isdigit() or draft.get("parallelism") is not None


def _duration(whole: float) -> str:
    minutes, rest = divmod(int(whole), 60)
    return f"{int(whole)}s" if rest or not minutes else f"{minutes}m"


def families(given: Given) -> list[str]:
    """NPU families that fit images and resources of a deployment, the likeliest first."""
    pods = [role.entry for role in given.roles.values()]
    resources = {str(pod.value("npu-resource")) for pod in pods} - {"None"}
    most = max((pod.value("npus") or 0 for pod in pods), default=0)
    fitting = [
        family
        for family in catalog.npu_families().values()
        if family.serves_prefill_decode
        and family.dies_per_node >= most
        and (not resources or plugins_of(family.family, resources))
    ]
    by_image = {name for pod in pods for name in families_of(str(pod.value("image")))}
    ranked = sorted(fitting, key=lambda family: (family.family not in by_image, -family.dies_per_node))
    return [family.family for family in ranked]


def plugins_of(family: str, resources: set[str]) -> dict[str, str | None]:
    """Device plugin that has the resources -> the chip that its name tells, where it tells one."""
    found: dict[str, str | None] = {}
    known = catalog.npu_families()[family]
    for name, plugin in known.device_plugins.items():
        for chip in (None, *known.chips):
            if {plugin.resource.format(chip=chip)} == resources:
                found.setdefault(name, chip if "{chip}" in plugin.resource else None)
    return found
