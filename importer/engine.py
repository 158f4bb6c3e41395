"""What a pod of a role is, as facts: whatever way it is written in, by hand or rendered by this program.

A fact has keys and a value, such as ``("prefill", "flag", "--tensor-parallel-size"): 8``. Two pods that mean the same have the
same facts: names of volumes and containers, the packaging of scripts and the order of arguments are in none of them.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import catalog
from importer.findings import is_secret
from importer.manifests import Keys, Manifest, Place
from importer.shell import Argument, Run, run_command
from models.quantities import amount
from rules.given import MOST_VALUES, is_flag, kinds, long_flag

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the engine's shared memory
KV_TRANSFER = "--kv-transfer-config"
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_OFFICIAL = ("runtime", "downloader")
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_READ_OF_ENGINE = {
    *("name", "image", "command", "args", "env", "ports", "resources", "volumeMounts", "lifecycle", "terminationMessagePolicy"),
    *_PROBES,
}
_READ_OF_POD = {"containers", "initContainers", "volumes", "hostNetwork", "dnsPolicy", "terminationGracePeriodSeconds"}
_DRAIN = re.compile(r"drain\.py \S+ ([0-9.]+)")


class Fact(NamedTuple):
    """A value and where it is from."""

    value: Any
    place: Place


Facts = dict[Keys, Fact]


class Option(NamedTuple):
    """A flag as it is given."""

    flag: str
    """in its long form, without ``no-``"""
    value: Any
    """true or false of a switch, else a number, a text, what JSON says, or a list of texts"""
    words: tuple[str, ...]
    """as they stand on the command line"""
    place: Place
    literal: bool
    """a variable in it that the shell does not expand"""


@dataclass
class Pod:
    """One pod template."""

    facts: Facts
    spec: dict[str, Any]
    container: dict[str, Any]
    """the engine's"""
    options: dict[str, Option] = field(default_factory=dict)
    repeated: list[Option] = field(default_factory=list)
    """flags that are given once more later, which is what counts"""
    run: Run | None = None
    """how the engine is started; None: it could not be found"""
    places: dict[str, Place] = field(default_factory=dict)
    """keys of the container and of the pod -> where they stand"""
    configured: dict[str, dict[str, Any]] = field(default_factory=dict)
    """environment that comes from elsewhere, as Kubernetes has it"""
    weights_mount: str = ""
    """where the volume with the weights is mounted"""
    script_mounts: set[str] = field(default_factory=set)
    """mounts that only bring scripts or configuration"""
    scripts: dict[str, Place] = field(default_factory=dict)
    """path -> where the first line of a script stands"""
    texts: dict[str, str] = field(default_factory=dict)
    """path -> the script"""

    def value(self, *keys: str | int) -> Any:
        """Of a fact; None where there is none."""
        found = self.facts.get(keys)
        return found.value if found else None


@dataclass(frozen=True)
class ConfigMaps:
    """Those of the given manifests."""

    by_name: Mapping[tuple[str, str], Manifest]

    def find(self, namespace: str, name: str) -> Manifest | None:
        """One without a namespace goes with any."""
        return self.by_name.get((namespace, name))


def read_pod(manifest: Manifest, keys: Keys, config_maps: ConfigMaps) -> Pod:
    """The facts of the pod template at ``keys`` of a ModelServing."""
    template: Any = manifest.body
    for key in keys:
        template = template[key]
    spec = template.get("spec") or {}
    reader = _Reader(manifest, (*keys, "spec"), spec, config_maps)
    return reader.read(template.get("metadata") or {})


class _Reader:
    def __init__(self, manifest: Manifest, keys: Keys, spec: dict[str, Any], config_maps: ConfigMaps) -> None:
        self.manifest, self.keys, self.spec, self.config_maps = manifest, keys, spec, config_maps
        self.facts: Facts = {}
        self.volumes = {volume.get("name"): volume for volume in spec.get("volumes") or ()}

    def read(self, metadata: Mapping[str, Any]) -> Pod:
        """All facts."""
        candidates = [self._started(index, one) for index, one in enumerate(self.spec.get("containers") or ())]
        started = [one for one in candidates if one.run and one.run.engine is not None]
        pod = (started or [one for one in candidates if _npus(one.container)] or candidates)[0]
        index = candidates.index(pod)
        self.facts = pod.facts
        self._pod(metadata)
        self._container(pod, index)
        self._others(index)
        self._options(pod)
        return pod

    def _note(self, keys: Keys, value: Any, place: Place) -> None:
        self.facts[keys] = Fact(value, place)

    def _at(self, *keys: str | int, offset: int = 0) -> Place:
        return self.manifest.place(*self.keys, *keys, offset=offset)

    def _pod(self, metadata: Mapping[str, Any]) -> None:
        above = self.keys[:-1]
        for kind in ("labels", "annotations"):
            for key, value in (metadata.get(kind) or {}).items():
                self._note((kind, key), value, self.manifest.place(*above, "metadata", kind, key))
        self._note(("host-network",), bool(self.spec.get("hostNetwork")), self._at("hostNetwork"))
        if (grace := self.spec.get("terminationGracePeriodSeconds")) is not None:
            self._note(("grace",), grace, self._at("terminationGracePeriodSeconds"))
        for key in self.spec.keys() - _READ_OF_POD:
            if (value := self.spec[key]) not in (None, {}, []) and (key, value) != ("restartPolicy", "Always"):
                self._note(("spec", key), value, self._at(key))

    # the engine

    def _started(self, index: int, container: dict[str, Any]) -> Pod:
        """A container, and how it starts an engine."""
        pod = Pod({}, self.spec, container)
        here = ("containers", index)
        variables: dict[str, str] = {}
        for number, variable in enumerate(container.get("env") or ()):
            name = str(variable.get("name"))
            if source := variable.get("valueFrom"):
                variables[name] = _source(source)
                pod.configured[name] = source
            else:
                variables[name] = _referred(str(variable.get("value") or ""), variables)
            pod.places[f"env {name}"] = self._at(*here, "env", number)
        command = [_referred(str(word), variables) for word in container.get("command") or ()]
        args = [_referred(str(word), variables) for word in container.get("args") or ()]

        def text_of(path: str) -> str | None:
            found = self._file(container, path)
            if found is None:
                return None
            config_map, key, mount = found
            pod.script_mounts.add(mount)
            pod.scripts[path] = config_map.place("data", key)
            pod.texts[path] = str(config_map.body["data"][key]).replace("\r\n", "\n")
            return pod.texts[path]

        directory = str(container.get("workingDir") or "/")
        if command or args:
            pod.run = run_command([*command, *args], variables, text_of, directory)
            # the image's entrypoint may be the engine, as that of vLLM's images is; vLLM-Ascend's have none
            is_all = not command and any(is_flag(word) for word in args) and _npus(container)
            if is_all and pod.run.engine is None and not (pod.run.scripts or pod.run.missing):
                pod.run.engine, pod.run.unknown = [Argument(word, 0) for word in args], []
        pod.places["command"] = self._at(*here, "args" if args else "command")
        return pod

    def _file(self, container: Mapping[str, Any], path: str) -> tuple[Manifest, str, str] | None:
        """ConfigMap, key and mount of a file."""
        for mount in container.get("volumeMounts") or ():
            where = posixpath.normpath(str(mount.get("mountPath")))
            source = (self.volumes.get(mount.get("name")) or {}).get("configMap")
            if not source or not (path == where or path.startswith(f"{where.rstrip('/')}/")):
                continue
            relative = str(mount.get("subPath") or "") if path == where else posixpath.relpath(path, where)
            renamed = {str(item.get("path")): str(item.get("key")) for item in source.get("items") or ()}
            config_map = self.config_maps.find(self.manifest.namespace, str(source.get("name")))
            key = renamed.get(relative, relative)
            if config_map and key in (config_map.body.get("data") or {}):
                return config_map, key, where
        return None

    def _line(self, pod: Pod, argument_file: str, offset: int) -> Place:
        script = pod.scripts.get(argument_file)
        if script:
            return Place(script.file, script.line + offset)
        place = pod.places["command"]
        if not pod.run or not (words := pod.container.get("args") or pod.container.get("command")):
            return place
        # the text after `-c`, where the engine is started by it
        text = next((number for number, word in enumerate(words) if "vllm" in str(word)), None)
        key = "args" if pod.container.get("args") else "command"
        index = (self.spec.get("containers") or []).index(pod.container)
        return self._at("containers", index, key, text, offset=offset) if text is not None else place

    def _container(self, pod: Pod, index: int) -> None:
        container, here = pod.container, ("containers", index)
        if container.get("image"):
            self._note(("image",), container["image"], self._at(*here, "image"))
        self._resources(container.get("resources") or {}, (*here, "resources"))
        for number, port in enumerate(container.get("ports") or ()):
            self._note(("port", port.get("containerPort")), "declared", self._at(*here, "ports", number))
        self._life(pod, here)
        for key in container.keys() - _READ_OF_ENGINE:
            if container[key] not in (None, {}, [], ""):
                self._note(("engine", key), container[key], self._at(*here, key))
        for number, mount in enumerate(container.get("volumeMounts") or ()):
            self._mount(mount, self._at(*here, "volumeMounts", number))

    def _resources(self, resources: Mapping[str, Any], here: Keys) -> None:
        for kind in ("requests", "limits"):
            for name, value in (resources.get(kind) or {}).items():
                place = self._at(*here, kind, name)
                if str(name).startswith("huawei.com/") and not str(name).endswith(("-memory", "-core")):
                    self._note(("npus",), int(amount(str(value))), place)
                    self._note(("npu-resource",), name, place)
                else:
                    self._note(("resources", kind, name), str(value), place)

    def _life(self, pod: Pod, here: Keys) -> None:
        """How the engine is watched and stopped."""
        container = pod.container
        for probe in _PROBES:
            if container.get(probe):
                asked = (container[probe].get("httpGet") or {}).get("path", "another way")
                self._note(("probe", probe), asked, self._at(*here, probe))
        if (seconds := _load_seconds(container, pod.run)) is not None:
            at = "startupProbe" if container.get("startupProbe") else "livenessProbe"
            self._note(("load-seconds",), seconds, self._at(*here, at))
        drain = json.dumps(container.get("lifecycle") or {})
        if found := _DRAIN.search(drain):
            self._note(("drain",), float(found[1]), self._at(*here, "lifecycle"))
        elif container.get("lifecycle") and "drain.py" not in drain:
            self._note(("engine", "lifecycle"), container["lifecycle"], self._at(*here, "lifecycle"))

    def _mount(self, mount: Mapping[str, Any], place: Place) -> None:
        path = posixpath.normpath(str(mount.get("mountPath")))
        volume = {key: value for key, value in (self.volumes.get(mount.get("name")) or {}).items() if key != "name"}
        if path == SHARED_MEMORY:
            memory = volume.get("emptyDir") or {}
            self._note(("shared-memory",), str(memory.get("sizeLimit") or ""), place)
            return
        if host := volume.get("hostPath"):
            volume = {"hostPath": posixpath.normpath(str(host.get("path")))}
        if sub := mount.get("subPath"):
            volume = {**volume, "subPath": sub}
        self._note(("mount", path), volume, place)

    # what is beside the engine

    def _others(self, index: int) -> None:
        for number, container in enumerate(self.spec.get("containers") or ()):
            if number != index:
                self._beside(container, ("containers", number))
        for number, container in enumerate(self.spec.get("initContainers") or ()):
            self._beside(container, ("initContainers", number))

    def _beside(self, container: dict[str, Any], here: Keys) -> None:
        place = self._at(*here)
        repository = _repository(str(container.get("image") or ""))
        kind = posixpath.basename(repository) if posixpath.basename(repository) in _OFFICIAL else ""
        arguments = _arguments([*(container.get("command") or ()), *(container.get("args") or ())])
        if kind == "runtime" and here[0] == "containers":
            self._note(("runtime", "image"), container.get("image"), place)
            for flag in ("port", "engine", "model", "engine-base-url", "pod"):
                self._note(("runtime", flag), arguments.get(f"--{flag}"), place)
            defined = sorted(str(variable.get("name")) for variable in container.get("env") or ())
            self._note(("runtime", "env"), defined, place)
        elif kind == "downloader" and here[0] == "initContainers":
            self._note(("download", "image"), container.get("image"), place)
            self._note(("download", "source"), arguments.get("--source"), place)
            self._note(("download", "to"), (arguments.get("--output-dir") or "").rstrip("/"), place)
            credentials = [(one.get("secretRef") or {}).get("name") for one in container.get("envFrom") or ()]
            if credentials:
                self._note(("download", "credentials"), credentials[0], place)
        else:
            name, variables = str(container.get("name")), container.get("env") or ()
            secret = [str(one.get("name")) for one in variables if is_secret(str(one.get("name")), one.get("value"))]
            for one in secret:
                self._note(("secret", name, one), "in plain", place)
            if secret:
                container = {**container, "env": [one for one in variables if one.get("name") not in secret]}
            self._note((here[0], name), container, place)

    # the command line

    def _options(self, pod: Pod) -> None:
        run = pod.run
        if run is None or run.engine is None:
            return
        words = [(argument, self._line(pod, argument.file, argument.offset)) for argument in run.engine]
        positional: list[tuple[Argument, Place]] = []
        for option in _parsed(words, positional):
            if before := pod.options.pop(option.flag, None):
                pod.repeated.append(before)
            pod.options[option.flag] = option
        if model := pod.options.pop("--model", None):
            self._note(("weights",), str(model.value).rstrip("/"), model.place)
        elif positional:
            self._note(("weights",), positional[0][0].value.rstrip("/"), positional[0][1])
        for argument, place in positional[1:]:
            self._note(("flag", argument.value), "a word without a flag", place)
        for flag, option in pod.options.items():
            if flag != KV_TRANSFER:
                self._note(("flag", flag), option.value, option.place)
        self._transfer(pod)
        self._environment(pod, run)
        self._weights(pod)
        self._pool(pod)

    def _transfer(self, pod: Pod) -> None:
        transfer = pod.options.get(KV_TRANSFER)
        if transfer and isinstance(transfer.value, dict):
            for path, value in _leaves(transfer.value):
                self._note(("kv", *path), value, transfer.place)

    def _environment(self, pod: Pod, run: Run) -> None:
        for name, value in run.environment().items():
            offset, file = run.set_at.get(name, (0, ""))
            place = self._line(pod, file, offset) if name in run.set_at else pod.places.get(f"env {name}", pod.places["command"])
            self._note(("env", name), value, place)

    def _weights(self, pod: Pod) -> None:
        """Where the volume has the weights, whatever part of it is mounted."""
        path = pod.value("weights")
        if not path or not path.startswith("/"):
            return
        around = [str(keys[1]) for keys in self.facts if keys[0] == "mount" and _inside(path, str(keys[1]))]
        if not around:
            return
        pod.weights_mount = mount = max(around, key=len)
        volume, place = self.facts.pop(("mount", mount))
        relative = posixpath.relpath(path, mount)
        inside = "" if relative == "." else relative
        self._note(("weights-from",), _located(volume, inside), place)

    def _pool(self, pod: Pod) -> None:
        path = pod.value("env", "MOONCAKE_CONFIG_PATH")
        found = self._file(pod.container, posixpath.normpath(path)) if path else None
        if not found:
            return
        config_map, key, mount = found
        pod.script_mounts.add(mount)
        place = config_map.place("data", key)
        try:
            pool = json.loads(config_map.body["data"][key])
        except ValueError:
            self._note(("pool", "file"), "no JSON", place)
            return
        for name, value in pool.items():
            self._note(("pool", name), value, place)


def _parsed(words: Sequence[tuple[Argument, Place]], positional: list[tuple[Argument, Place]]) -> Iterator[Option]:
    at = 0
    while at < len(words):
        argument, place = words[at]
        at += 1
        if not is_flag(argument.value):
            positional.append((argument, place))
            continue
        written, attached, value = re.sub(r"^-O(\d)$", r"-O=\1", argument.value).partition("=")
        flag = long_flag(written)
        most = MOST_VALUES.get(kinds().get(flag, ""), len(words))
        values = [Argument(value, argument.offset, argument.literal)] if attached else []
        while at < len(words) and len(values) < most and not is_flag(words[at][0].value):
            values.append(words[at][0])
            at += 1
        negative = written.replace("_", "-").startswith("--no-")
        texts = [one.value for one in values]
        typed: Any = not negative if not values else _typed(kinds().get(flag), flag, texts)
        own = (argument.value, *(texts[1:] if attached else texts))
        yield Option(flag, typed, own, place, any(one.literal for one in values))


def _typed(kind: str | None, flag: str, texts: list[str]) -> Any:
    if flag == "--lora-modules":
        return dict(_adapter(text) for text in texts)
    if len(texts) > 1:
        return texts
    text = texts[0]
    if kind in ("int", "count", "float") or re.fullmatch(r"-?[0-9]+", text):
        return _number(text)
    if text.lstrip().startswith(("{", "[")):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _adapter(text: str) -> tuple[str, str]:
    try:
        module = json.loads(text)
        return str(module["name"]), str(module["path"])
    except (ValueError, TypeError, KeyError):
        name, _, path = text.partition("=")
        return name, path


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _leaves(value: Mapping[str, Any], path: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _leaves(inner, (*path, key))
        else:
            yield (*path, key), inner


def _inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def _located(volume: Mapping[str, Any], inside: str) -> dict[str, Any]:
    """``volume`` with the directory inside of it that is meant."""
    joined = posixpath.join(str(volume.get("subPath") or ""), inside).strip("/")
    if "hostPath" in volume:
        return {"hostPath": posixpath.normpath(posixpath.join(volume["hostPath"], joined))}
    if nfs := volume.get("nfs"):
        return {"server": nfs.get("server"), "export": posixpath.normpath(posixpath.join(str(nfs.get("path")), joined))}
    if claim := volume.get("persistentVolumeClaim"):
        return {"claim": claim.get("claimName"), **({"subPath": joined} if joined else {})}
    return {**volume, **({"subPath": joined} if joined else {})}


def _npus(container: Mapping[str, Any]) -> bool:
    limits = (container.get("resources") or {}).get("limits") or {}
    return any(str(name).startswith("huawei.com/") for name in limits)


def _source(source: Mapping[str, Any]) -> str:
    """A value that only the pod has, as ``<metadata.name>``."""
    if path := (source.get("fieldRef") or {}).get("fieldPath"):
        return f"<{path}>"
    return f"<{json.dumps(source, sort_keys=True)}>"


def _referred(text: str, variables: Mapping[str, str]) -> str:
    """``$(NAME)`` filled in, as Kubernetes does."""
    return _REFERENCE.sub(lambda found: variables.get(found[1], found[0]), text)


def _repository(image: str) -> str:
    bare = image.partition("@")[0]
    repository, colon, tag = bare.rpartition(":")
    return repository if colon and "/" not in tag else bare


def _arguments(words: Sequence[Any]) -> dict[str, str]:
    """``--name value`` and ``--name=value``."""
    found: dict[str, str] = {}
    texts = [str(word) for word in words]
    for index, text in enumerate(texts):
        if text.startswith("--"):
            name, attached, value = text.partition("=")
            found[name] = value if attached else (texts[index + 1] if index + 1 < len(texts) else "")
    return found


def _load_seconds(container: Mapping[str, Any], run: Run | None) -> int | None:
    """How long the engine may take to load, by its probes; None where none of them ends it."""
    stated = run.variables.get("VLLM_ENGINE_READY_TIMEOUT_S", "") if run else ""
    if stated.isdigit():
        return int(stated)
    for kind in ("startupProbe", "livenessProbe"):
        if probe := container.get(kind):
            return int(probe.get("initialDelaySeconds", 0)) + int(probe.get("periodSeconds", 10)) * int(
                probe.get("failureThreshold", 3)
            )
    return None


def version_of(image: str) -> str | None:
    """vLLM-Ascend release that an image's tag names."""
    tag = image.partition("@")[0].rpartition(":")[2]
    found = re.search(r"v?([0-9]+\.[0-9]+\.[0-9]+(?:rc[0-9]+|\.post[0-9]+)?)", tag) if ":" in image else None
    return f"v{found[1]}" if found else None


def families_of(image: str) -> list[str]:
    """NPU families for which an image with this tag is built; a copy's tag without a suffix tells nothing."""
    tag = image.partition("@")[0].rpartition(":")[2]
    release = version_of(image)
    official = _repository(image) == catalog.engine().image
    return [
        family.family
        for family in catalog.npu_families().values()
        if release and any(tag == f"{release}{suffix}" for suffix in family.image_suffixes if suffix or official)
    ]
