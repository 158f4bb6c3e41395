"""Starts the pods of a rendered deployment one after the other: the start script in bash, then the stand-in's verdict.

The environment comes from the local cluster's kubelet; Kthena's own variables are added as its controller adds them.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from local.engine.arguments import check
from local.kubelet.environment import environment
from models.deployment import Deployment
from models.quantities import LAST_PORT, amount
from models.role import ROLES
from render import RenderedDeployment
from render.names import GROUP_LABEL, ROLE_ID_LABEL
from render.pods import SCRIPTS

POD_IP = "127.0.0.1"
DEVICES = "huawei.com/AscendReal"
RECORDING_VLLM = """#!/bin/bash
printf '%s\\0' "$@" >"$RECORD/argv"
exec env -0 >"$RECORD/env"
"""
REMEMBERING_PYTHON = f"""#!/bin/bash
# Nothing that it is asked for changes between two starts, and it costs more than all the rest: the same program with the
# same arguments is answered from what it said before. Without a fork, so that this costs nothing.
IFS= read -r -d '' program
for known in "$RECORD"/*.asked; do
  [ -e "$known" ] && IFS= read -r -d '' asked <"$known"
  if [[ ${{asked:-}} == "$program$*" ]]; then
    answer=${{known%.asked}}
    break
  fi
done
if [ -z "${{answer:-}}" ]; then
  answer=$(mktemp "$RECORD/XXXXXX")
  {sys.executable} -I -S "$@" <<<"$program" >"$answer" 2>"$answer.err"
  echo $? >"$answer.code"
  printf '%s' "$program$*" >"$answer.asked"
fi
printf '%s' "$(<"$answer")"
printf '%s' "$(<"$answer.err")" >&2
exit "$(<"$answer.code")"
"""


class Starter:
    """A directory with weights, and the programs that a start script calls."""

    def __init__(self, directory: Path) -> None:
        self.scripts, self.record, self.weights, self.path = (
            directory / name for name in ("scripts", "record", "weights", "bin")
        )
        for created in (self.scripts, self.record, self.weights, self.path):
            created.mkdir()
        self._known: dict[str, list[str]] = {}
        for name in ("config.json", "quant_model_description.json", "model.safetensors"):
            (self.weights / name).write_text("{}")
        for name, program in (("vllm", RECORDING_VLLM), ("python3", REMEMBERING_PYTHON)):
            (self.path / name).write_text(program)
            (self.path / name).chmod(0o755)

    def provide(self, deployment: Deployment) -> None:
        """Put what the deployment has in its weights' directory there: chat template, adapters, draft models."""
        (self.weights / (deployment.model.chat_template or "config.json")).write_text("{}")
        lora, roles = deployment.model.lora, [deployment.role(name) for name in ROLES]
        drafts = [role.speculative.model for role in roles if role.speculative and role.speculative.model]
        for directory in [*(lora.adapters.values() if lora else ()), *drafts]:
            if not (self.weights / directory).is_relative_to(self.weights):
                continue  # of an image of its own: nothing is written outside of the test's directory
            (self.weights / directory).mkdir(parents=True, exist_ok=True)
            for name in ("config.json", "adapter_config.json"):
                (self.weights / directory / name).write_text("{}")

    def refusals(self, rendered: RenderedDeployment) -> list[str]:
        """What the API server would refuse of the pods, and what stops their engines: one line each, none if all start."""
        found: list[str] = []
        serving = rendered.stable
        for role in serving.model_serving["spec"]["template"]["roles"]:
            templates = [role["entryTemplate"], *([role["workerTemplate"]] if role["workerReplicas"] else [])]
            for index, template in enumerate(templates):
                config_map = serving.scripts[role["name"]]
                pod, scripts = _pod(role, index, template), _scripts(template, config_map)
                # a script more or less for another pod is another ConfigMap, and nothing else to this pod
                start = json.dumps([pod, scripts]).replace(config_map["metadata"]["name"], "")
                if start not in self._known:
                    self._known[start] = [*_invalid(template["spec"])] or self._started(pod, scripts)
                found += [f"{role['name']} pod {index}: {problem}" for problem in self._known[start]]
        return found

    def _started(self, pod: dict[str, Any], scripts: dict[str, str]) -> list[str]:
        for name, content in scripts.items():
            (self.scripts / name).write_text(content)
        container = _engine(pod["spec"])
        npus = next(int(amount) for name, amount in container["resources"]["limits"].items() if "/" in name)
        left_by_device_plugin = {"ASCEND_VISIBLE_DEVICES": ",".join(map(str, range(npus)))}
        given = {"PATH": f"{self.path}:{os.environ['PATH']}", "RECORD": str(self.record), **left_by_device_plugin}
        variables = environment(container, pod, _Everything(), given)
        command = [word.replace(SCRIPTS, str(self.scripts)) for word in [*container["command"], *container.get("args", [])]]
        (self.record / "argv").unlink(missing_ok=True)
        run = subprocess.run(
            command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
        )
        if run.returncode or not (self.record / "argv").exists():
            return [f"exit code {run.returncode}: {run.stderr.strip()}"]
        argv = (self.record / "argv").read_text().split("\0")[:-1]
        started = dict(pair.split("=", 1) for pair in (self.record / "env").read_text().split("\0")[:-1])
        local = {"LOCAL_NPUS": str(npus), "LOCAL_POD_IP": POD_IP, "LOCAL_IMAGE": container["image"]}
        engine = check(argv, started | local, container["image"], self._exists)
        return engine if isinstance(engine, list) else []

    def _exists(self, path: str) -> bool:
        return Path(path.replace(SCRIPTS, str(self.scripts), 1)).exists()


class _Everything(dict[tuple[str, str], Any]):
    """ConfigMaps and Secrets of any name, each with key ``k``."""

    def get(self, _key: tuple[str, str], _default: object = None) -> Any:
        return {"data": {"k": "dg=="}}


def _engine(spec: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(container for container in spec["containers"] if container["name"] == "vllm")
    return found


def _pod(role: dict[str, Any], index: int, template: dict[str, Any]) -> dict[str, Any]:
    """A pod of the first instance as Kthena makes it: number ``index``, 0 is the entry pod."""
    pod: dict[str, Any] = copy.deepcopy(template)
    metadata = pod.setdefault("metadata", {}) | {"name": "pod", "namespace": "default", "uid": "uid"}
    metadata["labels"] = {GROUP_LABEL: "group-0", ROLE_ID_LABEL: f"{role['name']}-0"} | metadata.get("labels", {})
    metadata["annotations"] = {DEVICES: "Ascend910-0,Ascend910-1"} | metadata.get("annotations", {})
    kthena = {"GROUP_SIZE": str(role["workerReplicas"] + 1), "WORKER_INDEX": str(index), "ENTRY_ADDRESS": "localhost"}
    _engine(pod["spec"])["env"] += [{"name": name, "value": value} for name, value in kthena.items()]
    status = {"podIP": POD_IP, "podIPs": [{"ip": POD_IP}], "hostIP": POD_IP, "hostIPs": [{"ip": POD_IP}]}
    return pod | {"metadata": metadata, "status": status}


def _scripts(template: dict[str, Any], scripts: dict[str, Any]) -> dict[str, str]:
    """What the pod runs, and what is no script."""
    command = " ".join(_engine(template["spec"])["command"])
    return {name: content for name, content in scripts["data"].items() if f"/{name}" in command or not name.endswith(".sh")}


def _invalid(spec: dict[str, Any]) -> Iterator[str]:
    """What the API server refuses of a pod although a ModelServing with it was taken, or what can't run side by side in it."""
    containers = [*spec.get("initContainers", []), *spec["containers"]]
    yield from _repeated("container", [container["name"] for container in containers])
    volumes = [volume["name"] for volume in spec.get("volumes", [])]
    yield from _repeated("volume", volumes)
    ports = [port["containerPort"] for container in spec["containers"] for port in container.get("ports", [])]
    yield from _repeated("port", ports)
    yield from (f"port {port} is none" for port in ports if not 1 <= port <= LAST_PORT)
    for container in containers:
        mounts = container.get("volumeMounts", [])
        yield from _repeated("mount path", [mount["mountPath"] for mount in mounts])
        yield from _repeated("port name", [port["name"] for port in container.get("ports", []) if "name" in port])
        yield from (f"no volume {mount['name']}" for mount in mounts if mount["name"] not in volumes)
        if not re.fullmatch(r"\S+", container.get("image", "")):
            yield f"container {container['name']} has no image"
        limits, requests = (container.get("resources", {}).get(key, {}) for key in ("limits", "requests"))
        for name in limits.keys() & requests:
            if amount(requests[name]) > amount(limits[name]):
                yield f"container {container['name']} requests more {name} than its limit"
        yield from _repeated("variable", [variable["name"] for variable in container.get("env", [])])


def _repeated(what: str, names: list[Any]) -> Iterator[str]:
    yield from (f"{what} {name} stands there twice" for name, count in Counter(names).items() if count > 1)
