"""The pod template of each role."""

from __future__ import annotations

import math
from typing import Any

import catalog
from catalog.types import NpuFamily
from models.base import dump
from models.cluster import Cluster
from models.deployment import Deployment, RoleName
from models.model import Weights
from models.quantities import seconds
from render.names import GROUP_LABEL, ROLE_ID_LABEL
from render.scripts import needs_physical_devices, script_name

RUNTIME_PORT = 8100
SCRIPTS = "/scripts"
_STARTUP_PERIOD = 10

DERIVED_ENV = frozenset(
    {
        "ASCEND_REAL_DEVICES",
        "GLOO_SOCKET_IFNAME",
        "GROUP_NAME",
        "HCCL_IF_IP",
        "HCCL_SOCKET_IFNAME",
        "PHYSICAL_DEVICES",
        "POD_IP",
        "ROLE_ID",
        "TP_SOCKET_IFNAME",
        "VLLM_HOST_IP",
    }
)
"""Environment that the pod template or the start script sets"""


def engine_image(deployment: Deployment, family: NpuFamily) -> str:
    """Image of the engine containers."""
    return deployment.engine.image or f"{catalog.engine().image}:{deployment.engine.version}{family.image_suffix}"


def resource_name(cluster: Cluster) -> str:
    """Extended resource that stands for one NPU die on this cluster."""
    plugin = catalog.npu_families()[cluster.npu.family].device_plugins[cluster.npu.device_plugin]
    return plugin.resource.format(chip=cluster.npu.chip)


def pod_spec(deployment: Deployment, cluster: Cluster, role_name: RoleName, scripts: str) -> dict[str, Any]:
    """PodSpec of one role; ``scripts`` is the name of the ConfigMap with the start scripts."""
    family = catalog.npu_families()[cluster.npu.family]
    spec: dict[str, Any] = {}
    if deployment.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    spec["terminationGracePeriodSeconds"] = math.ceil(seconds(deployment.readiness.termination_grace_period))
    if deployment.model.weights.download:
        spec["initContainers"] = [_downloader(deployment, cluster)]
    spec["containers"] = [_engine(deployment, cluster, role_name, family)]
    if deployment.runtime_sidecar:
        spec["containers"].append(_runtime(deployment, cluster))
    spec["volumes"] = [
        {"name": "scripts", "configMap": {"name": scripts, "defaultMode": 0o555}},
        {"name": "weights", **_weights_volume(deployment.model.weights)},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": deployment.shared_memory}},
        *({"name": mount.name, "hostPath": {"path": mount.path, "type": mount.type}} for mount in family.mounts),
    ]
    return spec


def _weights_volume(weights: Weights) -> dict[str, Any]:
    if weights.claim:
        return {"persistentVolumeClaim": {"claimName": weights.claim.name, "readOnly": True}}
    return {"hostPath": {"path": weights.path, "type": "DirectoryOrCreate" if weights.download else "Directory"}}


def _weights_mount(weights: Weights) -> dict[str, Any]:
    sub_path = {"subPath": weights.claim.sub_path} if weights.claim and weights.claim.sub_path else {}
    return {"name": "weights", "mountPath": weights.path, **sub_path, "readOnly": True}


def _engine(deployment: Deployment, cluster: Cluster, role_name: RoleName, family: NpuFamily) -> dict[str, Any]:
    role = deployment.role(role_name)
    npus = {resource_name(cluster): str(role.parallelism.npus)}
    resources = dump(role.resources)
    health = {"httpGet": {"path": "/health", "port": "server"}}
    return {
        "name": "vllm",
        "image": engine_image(deployment, family),
        "command": ["bash", f"{SCRIPTS}/{script_name(role_name)}"],
        "env": [
            _from_field("POD_IP", "status.podIP"),
            _from_field("GROUP_NAME", f"metadata.labels['{GROUP_LABEL}']"),
            _from_field("ROLE_ID", f"metadata.labels['{ROLE_ID_LABEL}']"),
            *_physical_devices(deployment),
            *({"name": name, "value": value} for name, value in sorted((deployment.engine.env | role.env).items())),
        ],
        # All declared, so that with the host's network the scheduler keeps two engines off one node's port.
        "ports": [
            {"name": "server", "containerPort": deployment.port},
            {"name": "kv-transfer", "containerPort": deployment.kv_transfer.port},
            *([{"name": "dp-rpc", "containerPort": deployment.data_parallel_rpc_port}] if role.parallelism.dp > 1 else []),
        ],
        "resources": {key: amounts | npus for key, amounts in resources.items()},
        # Liveness starts only after the startup probe has seen the model loaded.
        "startupProbe": health
        | {
            "periodSeconds": _STARTUP_PERIOD,
            "timeoutSeconds": 5,
            "failureThreshold": math.ceil(seconds(deployment.readiness.load_timeout) / _STARTUP_PERIOD),
        },
        "readinessProbe": health | {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": health | {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6},
        "volumeMounts": [
            {"name": "scripts", "mountPath": SCRIPTS, "readOnly": True},
            _weights_mount(deployment.model.weights),
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - the engine's shared memory
            *({"name": mount.name, "mountPath": mount.path, "readOnly": True} for mount in family.mounts),
        ],
    }


def _physical_devices(deployment: Deployment) -> list[dict[str, Any]]:
    if not needs_physical_devices(deployment):
        return []
    annotation = catalog.engine().physical_devices.annotation
    return [_from_field("ASCEND_REAL_DEVICES", f"metadata.annotations['{annotation}']")]


def _downloader(deployment: Deployment, cluster: Cluster) -> dict[str, Any]:
    download = deployment.model.weights.download
    assert download is not None  # noqa: S101 - the caller asked
    path = deployment.model.weights.path
    return {
        "name": "downloader",
        "image": download.image or f"{catalog.engine().downloader_image}:v{cluster.control_plane.version}",
        "args": ["--source", download.source, "--output-dir", path],
        **({"envFrom": [{"secretRef": {"name": download.credentials}}]} if download.credentials else {}),
        "volumeMounts": [{"name": "weights", "mountPath": path}],
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
