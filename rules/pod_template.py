"""What the pod template patch may not say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import catalog
from models.deployment import Deployment
from models.quantities import IMAGE_REFERENCE, LAST_PORT, OBJECT_NAME, amount
from models.role import PodTemplatePatch, RoleName
from models.stack import Stack
from render.pod_template import CONTAINERS, NAMED_BY, overridden, patched
from render.pods import ENGINE_CONTAINER, derived_env, pod_template, resource_name
from rules.escape_hatch import KTHENA_ENV
from rules.finding import Path, Problem, did_you_mean, in_deployment, one_of, roles, rule, shown
from rules.npu import device_plugin_of
from rules.ports import blocks_of

if TYPE_CHECKING:
    from jsonschema import ValidationError

RESERVED_PREFIX = "modelserving.volcano.sh/"
RESERVED_ANNOTATIONS = ("scheduling.k8s.io/group-name", "volcano.sh/task-spec")
PROBES = {"startupProbe", "readinessProbe", "livenessProbe"}
PROBED_BY = {"exec", "grpc", "httpGet", "tcpSocket"}
OWN_FIELDS = {"schedulerName": "kthena-pd:cluster.scheduler", "hostNetwork": "hostNetwork"}
"""Of a PodSpec -> where it is declared"""
DECIDED_BY = {
    "containers.vllm.command": "{role}.extraArgs adds arguments",
    "containers.vllm.env": "{role}.env sets what is not derived",
    "containers.vllm.image": "engine.image decides it",
    "containers.vllm.livenessProbe": "readiness decides it",
    "containers.vllm.ports": "port, kvTransfer.port and dataParallelRpcPort decide it",
    "containers.vllm.readinessProbe": "readiness decides it",
    "containers.vllm.resources": "{role}.resources and {role}.parallelism decide it",
    "containers.vllm.startupProbe": "readiness.loadTimeout decides it",
    "containers.vllm.volumeMounts": "model.weights decides where the weights are; mount what is added elsewhere",
    "containers.runtime.image": "runtimeImage decides it",
    "dnsPolicy": "hostNetwork decides it",
    "hostNetwork": "hostNetwork decides it",
    "initContainers.downloader": "model.weights.download decides it",
    "nodeSelector": "kthena-pd:cluster.npu decides it",
    "terminationGracePeriodSeconds": "readiness.terminationGracePeriod decides it",
    "volumes.shared-memory": "sharedMemory decides its size",
    "volumes.weights": "model.weights decides it",
}
"""Place of what is rendered -> what the stack file has for it"""


class Patched(NamedTuple):
    """A role with a patch that has the form of a PodSpec, and what would be rendered without it."""

    deployment: Deployment
    role: RoleName
    patch: PodTemplatePatch
    rendered: tuple[dict[str, Any], ...]
    """the entry pods' template, and that of the workers where there are any"""

    @property
    def spec(self) -> dict[str, Any]:
        """What the patch says of the PodSpec."""
        return self.patch.spec

    @property
    def entry(self) -> dict[str, Any]:
        """The entry pods' rendered PodSpec."""
        spec: dict[str, Any] = self.rendered[0]["spec"]
        return spec

    def at(self, *keys: str | int) -> Path:
        """Path of something in the patch."""
        return in_deployment(self.deployment, self.role, "podTemplate", *keys)

    def containers(self) -> Iterator[tuple[Path, dict[str, Any], dict[str, Any]]]:
        """The patch's containers: where each is declared, what it says, and the entry pods' container that it is added to."""
        for kind in CONTAINERS:
            below = {container["name"]: container for container in self.entry.get(kind, [])}
            for index, container in enumerate(self.spec.get(kind, [])):
                yield self.at("spec", kind, index), container, below.get(container["name"], {})


def _patched(stack: Stack) -> Iterator[Patched]:
    if device_plugin_of(stack) is None:
        return
    for deployment, name, role in roles(stack):
        patch = role.pod_template
        if patch == PodTemplatePatch() or any(_misfits(patch)):
            continue
        bare = deployment.model_copy(update={name: role.model_copy(update={"pod_template": PodTemplatePatch()})})
        rendered = (pod_template(bare, stack.cluster, name, "scripts", worker=worker) for worker in (False, True)[: role.pods])
        yield Patched(deployment, name, patch, tuple(rendered))


def entry_pods(stack: Stack) -> Iterator[tuple[Deployment, RoleName, dict[str, Any]]]:
    """PodSpec of each role's entry pods, where the NPUs are known and the patch has the form of a PodSpec."""
    if device_plugin_of(stack) is None:
        return
    for deployment, name, role in roles(stack):
        if not any(_misfits(role.pod_template)):
            yield deployment, name, pod_template(deployment, stack.cluster, name, "scripts")["spec"]


@rule("PD320", source="render/pods.py")
def pod_template_adds_and_overrides_nothing(stack: Stack) -> Iterator[Problem]:
    """One value would stand in two places, and what follows from the declaration elsewhere would not follow from it here."""
    for one in _patched(stack):
        for path, container, rendered in one.containers():
            if rendered.get("name") == ENGINE_CONTAINER and "args" in container:
                yield Problem((*path, "args"), "the start script reads no arguments", f"{one.role}.extraArgs")
        found = {path: rendered for template in one.rendered for path, rendered, _ in overridden(template, one.patch)}
        for path, rendered in found.items():
            place = _named(one.patch, path)
            decides = next((words for key, words in DECIDED_BY.items() if f"{place}.".startswith(f"{key}.")), None)
            yield Problem(
                one.at(*path),
                f"{shown(rendered)} is rendered here already",
                f"leave it out; {decides.format(role=one.role)}" if decides else "leave it out",
            )


def _named(patch: PodTemplatePatch, path: Path) -> str:
    """``path`` below the spec with names instead of list indexes."""
    value: Any = patch.model_dump(by_alias=True)
    names: list[str] = []
    for key in path:
        value = value[key]
        identity = NAMED_BY.get(str(names[-1])) if isinstance(key, int) else None
        names.append(str(value[identity]) if identity else str(key))
    return ".".join(names).removeprefix("spec.")


@rule("PD321", source="PodSpec of the ModelServing CRD, Kthena v1.0.0; catalog/pod_spec_values.yaml")
def pod_template_has_the_fields_of_a_pod_spec(stack: Stack) -> Iterator[Problem]:
    """With server-side apply an unknown field, or a value of another type, is refused. A value that only the API server's
    validation of pods knows is worse: the ModelServing is accepted, the old pods end, and every new one is refused."""
    for deployment, name, role in roles(stack):
        for error in _misfits(role.pod_template):
            path = in_deployment(deployment, name, "podTemplate", "spec", *error.absolute_path)
            yield from _explained(error, path)


@cache
def _validator() -> Any:
    # takes longer to import than all rules take, and few stacks have a patch
    from jsonschema import Draft202012Validator  # noqa: PLC0415

    return Draft202012Validator({**catalog.valid_pod_spec_schema(), "required": []})


def _misfits(patch: PodTemplatePatch) -> Iterator[ValidationError]:
    if patch.spec:
        yield from _validator().iter_errors(patch.spec)


_TYPES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "object": "a map, {} for an empty one",
    "string": "a text (in YAML a number needs quotes to be one)",
}


def _explained(error: ValidationError, path: Path) -> Iterator[Problem]:
    schema: Any = error.schema
    given: Any = error.instance
    if error.validator == "additionalProperties":
        for key in sorted(given.keys() - schema["properties"].keys()):
            yield Problem((*path, key), "unknown key", did_you_mean(key, schema["properties"], "leave it out"))
    elif error.validator == "required":
        missing = [key for key in schema["required"] if key not in given]
        fixed = {key: field["const"] for key, field in schema.get("properties", {}).items() if "const" in field}
        declare = one_of(f"{key}: {fixed[key]}" if key in fixed else key for key in missing)
        yield Problem(path, f"{one_of(missing)} missing", f"declare {declare}")
    elif error.validator == "type":
        wanted = _TYPES[str(error.validator_value)]
        yield Problem(path, f"{shown(given)} is not {wanted.partition(' (')[0].partition(',')[0]}", wanted)
    elif error.validator in ("const", "enum"):
        allowed = [value for value in schema.get("enum", [schema.get("const")]) if value]
        yield Problem(path, f"{shown(given)} is not allowed", f"one of {one_of(allowed, given)}" if allowed else "leave it out")
    else:
        yield Problem(path, f"{shown(given)} is not allowed", schema.get("description", "a quantity, for example 500m or 2Gi"))


@rule("PD322", source="Kthena v1.0.0 pkg/model-serving-controller/utils: labels of a template are set over its own (kthena#1593)")
def labels_and_annotations_of_kthena_are_left_to_it(stack: Stack) -> Iterator[Problem]:
    """The router pairs prefill with decode by these labels, and the controller finds its pods by them."""
    for deployment, name, role in roles(stack):
        metadata = role.pod_template.metadata
        for kind in ("labels", "annotations"):
            for key in getattr(metadata, kind, None) or ():
                if key.startswith(RESERVED_PREFIX) or key in RESERVED_ANNOTATIONS:
                    path = in_deployment(deployment, name, "podTemplate", "metadata", kind, key)
                    yield Problem(path, "Kthena sets it", "leave it out, or take a key of your own")


@rule("PD323", source="Kthena v1.0.0 pkg/model-serving-controller/utils; render/scripts.py")
def env_of_kthena_and_the_start_scripts_is_left_to_them(stack: Stack) -> Iterator[Problem]:
    """Kthena replaces its variables in every container, and the start script sets the derived ones after these."""
    for one in _patched(stack):
        for path, container, rendered in one.containers():
            derived = derived_env(one.deployment, one.role) if container["name"] == ENGINE_CONTAINER else frozenset[str]()
            known = {variable["name"] for variable in rendered.get("env", [])}
            for index, variable in enumerate(container.get("env", [])):
                name = variable["name"]
                if name in (KTHENA_ENV | derived) - known:
                    owner = "Kthena sets" if name in KTHENA_ENV else "the start script sets"
                    yield Problem((*path, "env", index), f"{owner} {name}", "leave it out")


@rule("PD324", source="Kthena v1.0.0 copies spec.schedulerName onto every pod; render/pods.py")
def what_has_a_field_of_its_own_is_declared_there(stack: Stack) -> Iterator[Problem]:
    """The scheduler of the template is overwritten; host network and NPUs decide ports, addresses and ranks as well."""
    for one in _patched(stack):
        npu = resource_name(stack.cluster)
        for key, field in OWN_FIELDS.items():
            if key in one.spec and key not in one.entry:
                yield Problem(one.at("spec", key), "it has a field of its own", f"declare {field}")
        for path, container, rendered in one.containers():
            for kind in ("requests", "limits"):
                added = container.get("resources", {}).get(kind, {}).keys() - rendered.get("resources", {}).get(kind, {}).keys()
                if npu in added:
                    remedy = f"leave it out; {one.role}.parallelism says how many the engine gets"
                    yield Problem((*path, "resources", kind, npu), "NPUs follow from the parallelism", remedy)


_DNS_LABEL = (re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"), "lower-case letters, digits and dashes, at most 63")
_QUALIFIED_NAME = (
    re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?", re.ASCII),
    "letters, digits, dashes, underscores and dots, at most 63, after an optional domain/",
)
_LABEL_VALUE = (
    re.compile(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?", re.ASCII),
    "letters, digits, dashes, underscores and dots, at most 63",
)
_PORT_NAME = (
    re.compile(r"(?=.{1,15}$)(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]*[a-z0-9])?"),
    "lower-case letters, digits and single dashes, at most 15, one of them a letter",
)
_OBJECT_NAME = (re.compile(OBJECT_NAME), "lower-case letters, digits, dashes and dots, at most 253")
_IMAGE = (re.compile(IMAGE_REFERENCE, re.ASCII), "repository with a tag or a digest, for example registry.example/exporter:1.2")
_NAME_FORMS = dict.fromkeys((*CONTAINERS, "volumes"), _DNS_LABEL) | {"ports": _PORT_NAME}
_NAMED_OBJECTS = ("priorityClassName", "runtimeClassName", "serviceAccountName")


@rule("PD325", source="Kubernetes API validation of pods; the ModelServing's CRD does not check it")
def names_in_the_pod_template_have_kubernetes_form(stack: Stack) -> Iterator[Problem]:
    """The ModelServing is accepted, and every one of its pods is refused, or its image can't be pulled."""
    for deployment, name, role in roles(stack):
        metadata = role.pod_template.metadata
        path = in_deployment(deployment, name, "podTemplate", "metadata")
        yield from _mislabelled((*path, "labels"), getattr(metadata, "labels", None) or {})
        for key in getattr(metadata, "annotations", None) or ():
            yield from _misnamed((*path, "annotations", key), key, *_QUALIFIED_NAME)
    for one in _patched(stack):
        yield from _mislabelled(one.at("spec", "nodeSelector"), one.spec.get("nodeSelector", {}))
        for key in one.spec.keys() & _NAMED_OBJECTS:
            yield from _misnamed(one.at("spec", key), one.spec[key], *_OBJECT_NAME)
        for path, container, rendered in one.containers():
            if not rendered and container.get("image", "").strip():
                yield from _misnamed((*path, "image"), container["image"], *_IMAGE)
        for path, kind, items in _named_lists(one):
            for index, item in enumerate(items) if kind in _NAME_FORMS else ():
                if "name" in item:
                    yield from _misnamed((*path, index, "name"), item["name"], *_NAME_FORMS[kind])


def _mislabelled(path: Path, labels: Mapping[str, str]) -> Iterator[Problem]:
    for key, value in labels.items():
        yield from _misnamed((*path, key), key, *_QUALIFIED_NAME)
        yield from _misnamed((*path, key), value, *_LABEL_VALUE)


def _misnamed(path: Path, text: str, form: re.Pattern[str], words: str) -> Iterator[Problem]:
    if not form.fullmatch(text):
        yield Problem(path, f"{text!r} is no name that Kubernetes takes", words)


def _named_lists(one: Patched) -> Iterator[tuple[Path, str, Sequence[dict[str, Any]]]]:
    """The patch's lists whose items have an identity: those of the pod, and those of each container."""
    holders = [(one.at("spec"), one.spec), *((path, container) for path, container, _ in one.containers())]
    for path, holder in holders:
        yield from (((*path, kind), kind, holder[kind]) for kind in NAMED_BY if kind in holder)


@rule("PD326", source="Kubernetes API validation of pods; the ModelServing's CRD does not check all of it")
def names_in_the_pod_template_are_there_once(stack: Stack) -> Iterator[Problem]:
    """Kubernetes refuses a pod with two containers, volumes, ports or mounts of one name."""
    for one in _patched(stack):
        rendered_names = {container["name"] for kind in CONTAINERS for container in one.entry.get(kind, [])}
        own: set[str] = set()
        for path, container, rendered in one.containers():
            name = container["name"]
            if name in own or (name in rendered_names and not rendered):
                yield Problem(path, f"{name} is there already", "another name")
            else:
                own.add(name)
        for path, kind, items in _named_lists(one):
            names = [item.get(NAMED_BY[kind]) for item in items] if kind not in CONTAINERS else []
            for index, name in enumerate(names):
                if name is not None and name in names[:index]:
                    yield Problem((*path, index), f"{name} stands here twice", "leave one out")


@rule("PD327", source="Kubernetes API validation of pods; the containers of a pod share its ports")
def ports_of_the_pod_template_are_free(stack: Stack) -> Iterator[Problem]:
    """A pod with a port that doesn't exist is refused; of two containers that listen on one port one can't start."""
    for one in _patched(stack):
        blocks = list(blocks_of(one.deployment, one.role))
        taken = {
            _socket(port): (holder["name"], port.get("name")) for holder in one.entry["containers"] for port in _ports(holder)
        }
        for path, container, rendered in one.containers():
            for index, port in enumerate(_ports(container)):
                for key in ("containerPort", "hostPort"):
                    number = port.get(key, 1)
                    if not 1 <= number <= LAST_PORT:
                        yield Problem((*path, "ports", index, key), f"{number} is no port", f"1 to {LAST_PORT}")
                here = (container["name"], port.get("name"))
                first = taken.setdefault(_socket(port), here)
                # the first port of the side channel is declared, those of the other ranks follow it
                block = next((block for block in blocks if port["containerPort"] in block.ports), None)
                place = (*path, "ports", index, "containerPort")
                if first == here and block and not rendered:
                    yield Problem(place, f"{port['containerPort']} is in {block}", "another port")
                # a container may give a port of its own several names
                elif first != here and (rendered or first[0] != here[0]):
                    problem = f"the pod's port {port['containerPort']} is that of {first[0]} already"
                    yield Problem(place, problem, "another port")


def _ports(container: dict[str, Any]) -> list[dict[str, Any]]:
    ports: list[dict[str, Any]] = container.get("ports", [])
    return ports


def _socket(port: dict[str, Any]) -> tuple[int, str]:
    return port["containerPort"], port.get("protocol", "TCP")


@rule("PD328", source="Kubernetes API validation of pods; the ModelServing's CRD does not check it")
def containers_of_the_pod_template_are_whole(stack: Stack) -> Iterator[Problem]:
    """A pod is refused where a container has no image, mounts a volume that isn't there, asks for more than its limit, or has a
    probe that doesn't ask in exactly one way."""
    for one in _patched(stack):
        volumes = {volume["name"] for volume in patched(one.rendered[0], one.patch)["spec"].get("volumes", [])}
        for path, container, rendered in one.containers():
            if not rendered and not container.get("image", "").strip():
                name = container["name"]
                known = [item["name"] for kind in CONTAINERS for item in one.entry.get(kind, [])]
                yield Problem(path, f"{name} has no image", f"declare image; what is rendered here is {one_of(known)}")
            for index, mount in enumerate(container.get("volumeMounts", [])):
                if mount["name"] not in volumes:
                    remedy = f"declare it under volumes; there are {one_of(volumes)}"
                    yield Problem((*path, "volumeMounts", index, "name"), f"no volume {mount['name']!r}", remedy)
            resources = container.get("resources", {})
            for name, limit in resources.get("limits", {}).items():
                request = resources.get("requests", {}).get(name, 0)
                if _exceeds(request, limit):
                    problem = f"{request} is more than the limit {limit}"
                    yield Problem((*path, "resources", "requests", name), problem, f"at most {limit}")
        yield from _probes_of_another_kind(one)


def _probes_of_another_kind(one: Patched) -> Iterator[Problem]:
    for template in one.rendered:
        rendered = {container["name"]: container for container in template["spec"]["containers"]}
        for path, container, _ in one.containers():
            for probe in container.keys() & PROBES:
                own = rendered.get(container["name"], {}).get(probe, {})
                ways = (own.keys() | container[probe].keys()) & PROBED_BY
                if len(ways) != 1:
                    where = "of a worker, which has no API," if template is not one.rendered[0] else "here"
                    found = " and ".join(sorted(ways)) or "nothing"
                    yield Problem(
                        (*path, probe), f"a probe {where} asks by {found}", f"exactly one of {one_of(PROBED_BY)}, or none"
                    )


def _exceeds(request: str | int, limit: str | int) -> bool:
    try:
        return amount(str(request)) > amount(str(limit))
    except ValueError:  # nano and micro units and signs are legal, and nobody's memory or CPU
        return False


@rule("PD329", source="Kthena v1.0.0 model_serving_controller.go: it looks for failed and for restarted pods", severity="warning")
def pods_are_restarted_always(stack: Stack) -> Iterator[Problem]:
    """An engine that ends without an error would never be started again: Kthena does nothing about a pod that succeeded."""
    for one in _patched(stack):
        policy = one.spec.get("restartPolicy", "Always")
        if policy != "Always":
            yield Problem(one.at("spec", "restartPolicy"), f"{policy} leaves out engines that end by themselves", "leave it out")
