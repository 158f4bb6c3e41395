"""The pod template of each role."""

from __future__ import annotations

import math
from typing import Any

import catalog
from catalog.types import NpuFamily
from models.base import dump
from models.cluster import Cluster
from models.deployment import Deployment
from models.model import Weights
from models.quantities import seconds
from models.role import Role, RoleName
from render.names import GROUP_LABEL, ROLE_ID_LABEL
from render.pod_template import patched
from render.scripts import (
    DRAIN,
    POOL_CONFIG,
    REAL_DEVICES,
    device_numbers,
    needs_physical_devices,
    script_environment,
    script_name,
)

ENGINE_CONTAINER = "vllm"
RUNTIME_PORT = 8100
SCRIPTS = "/scripts"
_STARTUP_PERIOD = 10


def derived_env(deployment: Deployment, role_name: RoleName) -> frozenset[str]:
    """Environment that the pod template or the start script of a role sets, or that would contradict what they set."""
    names = {variable["name"] for variable in _derived_variables(deployment)} | script_environment(deployment, role_name)
    if needs_physical_devices(deployment):
        names.add(REAL_DEVICES)
    if deployment.kv_transfer.pool:
        names |= {"MOONCAKE_MASTER", "MOONCAKE_GLOBAL_SEGMENT_SIZE"}  # go over the pool's configuration file
    return frozenset(names)


def engine_image(deployment: Deployment, family: NpuFamily) -> str:
    """Image of the engine containers."""
    return deployment.engine.image or f"{catalog.engine().image}:{deployment.engine.version}{family.image_suffix}"


def resource_name(cluster: Cluster) -> str:
    """Extended resource that stands for one NPU die on this cluster."""
    plugin = catalog.npu_families()[cluster.npu.family].device_plugins[cluster.npu.device_plugin]
    return plugin.resource.format(chip=cluster.npu.chip)


def pod_template(
    deployment: Deployment, cluster: Cluster, role_name: RoleName, scripts: str, *, worker: bool = False
) -> dict[str, Any]:
    """Pod template of a role's entry pods, or of its workers; ``scripts`` is the name of the role's ConfigMap."""
    template = {"spec": _pod_spec(deployment, cluster, role_name, scripts, worker=worker)}
    return patched(template, deployment.role(role_name).pod_template)


def _pod_spec(deployment: Deployment, cluster: Cluster, role_name: RoleName, scripts: str, *, worker: bool) -> dict[str, Any]:
    family = catalog.npu_families()[cluster.npu.family]
    node_selector = family.device_plugins[cluster.npu.device_plugin].node_selector | cluster.npu.node_selector
    weights = deployment.model.weights
    spec: dict[str, Any] = {}
    if node_selector:
        spec["nodeSelector"] = node_selector
    if deployment.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    spec["terminationGracePeriodSeconds"] = math.ceil(seconds(deployment.readiness.termination_grace_period))
    if weights.download:
        spec["initContainers"] = [_downloader(deployment, cluster)]
    spec["containers"] = [_engine(deployment, cluster, role_name, family, worker=worker)]
    if deployment.runtime_sidecar and not worker:
        spec["containers"].append(_runtime(deployment, cluster))
    spec["volumes"] = [
        {"name": "scripts", "configMap": {"name": scripts, "defaultMode": 0o555}},
        {"name": "weights", **_weights_volume(weights)},
        *_source_volume(weights),
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": deployment.shared_memory}},
        *({"name": mount.name, "hostPath": {"path": mount.path, "type": mount.type}} for mount in family.mounts),
    ]
    return spec


def _weights_volume(weights: Weights) -> dict[str, Any]:
    if weights.claim:
        return {"persistentVolumeClaim": {"claimName": weights.claim.name, "readOnly": True}}
    if weights.nfs:
        return {"nfs": {"server": weights.nfs.server, "path": weights.nfs.export, "readOnly": True}}
    if weights.download and weights.download.cache.claim:
        return {"persistentVolumeClaim": {"claimName": weights.download.cache.claim.name}}
    return {"hostPath": {"path": weights.path, "type": "DirectoryOrCreate" if weights.download else "Directory"}}


def _weights_mount(weights: Weights) -> dict[str, Any]:
    """Where the weights are mounted; read-only in the engine, not in the downloader."""
    claim = weights.claim or (weights.download and weights.download.cache.claim)
    return {
        "name": "weights",
        "mountPath": weights.path,
        **({"subPath": claim.sub_path} if claim and claim.sub_path else {}),
    }


def source_claim(weights: Weights) -> str | None:
    """Claim from which the downloader copies: ``pvc://CLAIM/directory`` is the path ``/CLAIM/directory`` in its container."""
    source = weights.download.source if weights.download else ""
    return source.removeprefix("pvc://").strip("/").partition("/")[0] if source.startswith("pvc://") else None


def _source_volume(weights: Weights) -> list[dict[str, Any]]:
    claim = source_claim(weights)
    return [{"name": "weights-source", "persistentVolumeClaim": {"claimName": claim}}] if claim else []


def _engine(deployment: Deployment, cluster: Cluster, role_name: RoleName, family: NpuFamily, *, worker: bool) -> dict[str, Any]:
    role = deployment.role(role_name)
    npus = {resource_name(cluster): str(role.npus_per_pod)}
    return {
        "name": ENGINE_CONTAINER,
        "image": engine_image(deployment, family),
        "command": ["bash", f"{SCRIPTS}/{script_name(role_name, worker=worker)}"],
        "env": [
            *_derived_variables(deployment),
            *_real_devices(deployment, cluster),
            *({"name": name, "value": value} for name, value in sorted((deployment.engine.env | role.env).items())),
        ],
        # All declared, so that with the host's network the scheduler keeps two engines off one node's port.
        "ports": _ports(deployment, role, worker=worker),
        "resources": {key: amounts | npus for key, amounts in dump(role.resources).items()},
        # A worker has no API to ask: the entry pod's is well only while all ranks are, and a worker that fails ends.
        **({} if worker else _probes(deployment)),
        "lifecycle": {"preStop": {"exec": {"command": _drain(deployment, worker=worker)}}},
        # The last lines of its log are in the pod's status: whoever waits for it can say why it ended.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "scripts", "mountPath": SCRIPTS, "readOnly": True},
            _weights_mount(deployment.model.weights) | {"readOnly": True},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - the engine's shared memory
            *({"name": mount.name, "mountPath": mount.path, "readOnly": True} for mount in family.mounts),
        ],
    }


def _derived_variables(deployment: Deployment) -> list[dict[str, Any]]:
    variables = [
        _from_field("POD_IP", "status.podIP"),
        _from_field("GROUP_NAME", f"metadata.labels['{GROUP_LABEL}']"),
        _from_field("ROLE_ID", f"metadata.labels['{ROLE_ID_LABEL}']"),
        # vLLM gives up on its own engine after ten minutes otherwise, whatever the startup probe allows (vllm-ascend#7098).
        {"name": "VLLM_ENGINE_READY_TIMEOUT_S", "value": str(math.ceil(seconds(deployment.readiness.load_timeout)))},
    ]
    if deployment.kv_transfer.pool:
        variables += [
            {"name": "MOONCAKE_CONFIG_PATH", "value": f"{SCRIPTS}/{POOL_CONFIG}"},
            {"name": "PYTHONHASHSEED", "value": "0"},  # the same blocks have the same keys in every engine
        ]
    return variables


def _real_devices(deployment: Deployment, cluster: Cluster) -> list[dict[str, Any]]:
    """What an old release reads PHYSICAL_DEVICES from, unless the device plugin leaves it in the environment itself."""
    annotation = device_numbers(cluster).annotation
    return (
        [_from_field(REAL_DEVICES, f"metadata.annotations['{annotation}']")]
        if annotation and needs_physical_devices(deployment)
        else []
    )


def _ports(deployment: Deployment, role: Role, *, worker: bool) -> list[dict[str, Any]]:
    first = deployment.kv_transfer.port
    if worker:  # its own ranks' ports go by its index; the first keeps all pods of the deployment on servers of their own
        return [{"name": "kv-transfer", "containerPort": first}]
    return [
        {"name": "server", "containerPort": deployment.port},
        {"name": "kv-transfer", "containerPort": first},
        *([{"name": "dp-rpc", "containerPort": deployment.data_parallel_rpc_port}] if role.parallelism.dp > 1 else []),
    ]


def _probes(deployment: Deployment) -> dict[str, Any]:
    health = {"httpGet": {"path": "/health", "port": "server"}}
    return {
        # Liveness starts only after the startup probe has seen the model loaded.
        "startupProbe": health
        | {
            "periodSeconds": _STARTUP_PERIOD,
            "timeoutSeconds": 5,
            "failureThreshold": math.ceil(seconds(deployment.readiness.load_timeout) / _STARTUP_PERIOD),
        },
        "readinessProbe": health | {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": health | {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6},
    }


def _drain(deployment: Deployment, *, worker: bool) -> list[str]:
    """Lets running requests end; a worker ends after its entry pod, however long that takes."""
    address = f"$ENTRY_ADDRESS:{deployment.port}" if worker else f"$POD_IP:{deployment.port}"
    period = "inf" if worker else f"{seconds(deployment.readiness.drain_period):g}"
    return ["bash", "-c", f"exec python3 {SCRIPTS}/{DRAIN} {address} {period}"]


def _downloader(deployment: Deployment, cluster: Cluster) -> dict[str, Any]:
    download = deployment.model.weights.download
    assert download is not None  # noqa: S101 - the caller asked
    path = deployment.model.weights.path
    claim, source = source_claim(deployment.model.weights), _source_volume(deployment.model.weights)
    return {
        "name": "downloader",
        "image": download.image or f"{catalog.engine().downloader_image}:v{cluster.control_plane.version}",
        "args": ["--source", download.source, "--output-dir", path],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **({"envFrom": [{"secretRef": {"name": download.credentials}}]} if download.credentials else {}),
        "volumeMounts": [
            _weights_mount(deployment.model.weights),
            *({"name": volume["name"], "mountPath": f"/{claim}", "readOnly": True} for volume in source),
        ],
    }


def _runtime(deployment: Deployment, cluster: Cluster) -> dict[str, Any]:
    return {
        "name": "runtime",
        "image": deployment.runtime_image or f"{catalog.engine().runtime_image}:v{cluster.control_plane.version}",
        "args": [
            "--port",
            str(RUNTIME_PORT),
            "--engine",
            "vllm",
            "--pod",
            "$(POD_NAME).$(NAMESPACE)",
            "--model",
            deployment.model.served,
            "--engine-base-url",
            # not localhost: the engine listens on the pod's address only
            f"http://$(POD_IP):{deployment.port}",
        ],
        "env": [
            _from_field("POD_IP", "status.podIP"),
            _from_field("POD_NAME", "metadata.name"),
            _from_field("NAMESPACE", "metadata.namespace"),
        ],
        "ports": [{"name": "runtime", "containerPort": RUNTIME_PORT}],
    }


def _from_field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
