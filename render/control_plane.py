"""Kthena's controller and router. RBAC is what v1.0.0 needs with its webhooks off; flags and files are those of its binaries."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from models.base import dump
from models.cluster import Cluster, ControlPlane, Router
from models.quantities import seconds
from render.names import CONTROLLER_NAME, ROUTER_NAME, config_map_name, labels

_READ = ("get", "list", "watch")
_CREATE_DELETE = (*_READ, "create", "delete")
_WORKLOAD = "workload.serving.volcano.sh"
_NETWORKING = "networking.serving.volcano.sh"

# (API group, resources, verbs), as the chart of v1.0.0 grants them less what only its webhooks use.
_CONTROLLER_RULES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("", ("pods",), (*_CREATE_DELETE, "deletecollection")),
    ("", ("services",), _CREATE_DELETE),
    ("", ("configmaps", "secrets"), _READ),
    ("", ("events",), ("create", "patch", "update")),
    ("apps", ("controllerrevisions",), (*_CREATE_DELETE, "update")),
    ("apiextensions.k8s.io", ("customresourcedefinitions",), _READ),
    ("scheduling.volcano.sh", ("podgroups",), (*_CREATE_DELETE, "update")),
    ("leaderworkerset.x-k8s.io", ("leaderworkersets", "leaderworkersets/status"), (*_READ, "update")),
    (_WORKLOAD, ("modelservings", "autoscalingpolicies", "modelboosters"), (*_READ, "create", "patch", "update")),
    (
        _WORKLOAD,
        ("modelservings/status", "autoscalingpolicies/status", "modelboosters/status"),
        ("get", "patch", "update"),
    ),
    (_NETWORKING, ("modelservers", "modelroutes"), (*_READ, "create", "patch", "update")),
)
_ROUTER_RULES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("", ("pods",), _READ),
    (_NETWORKING, ("modelservers", "modelroutes"), _READ),
)


def render_control_plane(cluster: Cluster) -> tuple[dict[str, Any], ...]:
    """Objects of the control plane in the order in which they are created; none where it is not installed."""
    control_plane = cluster.control_plane
    if not control_plane.install:
        return ()
    router_config = _router_config(control_plane)
    return (
        render_namespace(control_plane.namespace),
        *_account(control_plane, CONTROLLER_NAME, _CONTROLLER_RULES),
        *_account(control_plane, ROUTER_NAME, _ROUTER_RULES),
        router_config,
        _controller(control_plane),
        _router(control_plane, router_config["metadata"]["name"]),
        _router_service(control_plane),
    )


def render_namespace(name: str) -> dict[str, Any]:
    """A namespace that the stack owns."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels(name)}}


def router_configuration(router: Router) -> dict[str, Any]:
    """The router's configuration file."""
    scheduler = router.scheduler
    return {
        "scheduler": {
            "pluginConfig": [
                {"name": "least-request", "args": dump(scheduler.least_request)},
                {"name": "least-latency", "args": {"TTFTTPOTWeightFactor": scheduler.ttft_tpot_weight_factor}},
                {"name": "prefix-cache", "args": dump(scheduler.prefix_cache)},
            ],
            "plugins": {
                "Filter": {"enabled": list(scheduler.filters)},
                "Score": {"enabled": [{"name": name, "weight": weight} for name, weight in scheduler.score.items()]},
            },
        }
    }


def _metadata(control_plane: ControlPlane, name: str) -> dict[str, Any]:
    return {"name": name, "namespace": control_plane.namespace, "labels": labels(name)}


def _account(
    control_plane: ControlPlane, name: str, rules: Sequence[tuple[str, tuple[str, ...], tuple[str, ...]]]
) -> tuple[dict[str, Any], ...]:
    rbac = "rbac.authorization.k8s.io"
    cluster_wide = {"name": name, "labels": labels(name)}
    return (
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(control_plane, name)},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": cluster_wide,
            "rules": [
                {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)} for group, resources, verbs in rules
            ],
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": cluster_wide,
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": control_plane.namespace}],
        },
    )


def _router_config(control_plane: ControlPlane) -> dict[str, Any]:
    # JSON is YAML. The router reads it once, so another content must be another pod: the name carries its hash.
    data = {"routerConfiguration": json.dumps(router_configuration(control_plane.router), indent=2)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(control_plane, config_map_name(f"{ROUTER_NAME}-config", data)),
        "immutable": True,
        "data": data,
    }


def _workload(
    control_plane: ControlPlane, name: str, replicas: int, strategy: dict[str, Any], pod: dict[str, Any]
) -> dict[str, Any]:
    selector = {"app.kubernetes.io/name": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(control_plane, name),
        "spec": {
            "replicas": replicas,
            "strategy": strategy,
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": selector}, "spec": {"serviceAccountName": name} | pod},
        },
    }


def _controller(control_plane: ControlPlane) -> dict[str, Any]:
    controller = control_plane.controller
    container = {
        "name": CONTROLLER_NAME,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "image": controller.image or f"ghcr.io/volcano-sh/{CONTROLLER_NAME}:v{control_plane.version}",
        "args": [
            "--enable-webhook=false",
            f"--workers={controller.workers}",
            f"--kube-api-qps={controller.api_client.qps}",
            f"--kube-api-burst={controller.api_client.burst}",
            f"--v={controller.log_level}",
        ],
        "env": [{"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}],
        "resources": dump(controller.resources),
    }
    # The old controller ends before the new one starts: two at a time leave ModelServings stuck.
    return _workload(control_plane, CONTROLLER_NAME, 1, {"type": "Recreate"}, {"containers": [container]})


def _rolling(surge: int) -> dict[str, Any]:
    # Written out and never another type: the API server refuses a change of type while its defaults for this one stay.
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": 1 - surge}}


def _router(control_plane: ControlPlane, config: str) -> dict[str, Any]:
    router = control_plane.router

    def probe(path: str) -> dict[str, Any]:
        return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": 5, "timeoutSeconds": 5}

    container = {
        "name": ROUTER_NAME,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "image": router.image or f"ghcr.io/volcano-sh/{ROUTER_NAME}:v{control_plane.version}",
        "args": [
            f"--port={router.port}",
            f"--debug-port={router.debug_port}",
            "--enable-webhook=false",
            f"--kube-api-qps={router.api_client.qps}",
            f"--kube-api-burst={router.api_client.burst}",
        ],
        "env": [
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "ACCESS_LOG_ENABLED", "value": str(router.access_log.enabled).lower()},
            {"name": "ACCESS_LOG_FORMAT", "value": router.access_log.format},
            {"name": "DRAIN_TIMEOUT", "value": router.drain_timeout},
        ],
        "ports": [{"name": "http", "containerPort": router.port}],
        "readinessProbe": probe("/readyz"),
        "livenessProbe": probe("/healthz"),
        "resources": dump(router.resources),
        "volumeMounts": [
            {
                "name": "configuration",
                "mountPath": "/etc/config/routerConfiguration.yaml",
                "subPath": "routerConfiguration",
                "readOnly": True,
            }
        ],
    }
    pod = {
        "containers": [container],
        "volumes": [{"name": "configuration", "configMap": {"name": config}}],
        # longer than the drain, so that running requests end before the kubelet kills
        "terminationGracePeriodSeconds": math.ceil(seconds(router.drain_timeout)) + 30,
    }
    return _workload(control_plane, ROUTER_NAME, router.replicas, _rolling(router.max_surge), pod)


def _router_service(control_plane: ControlPlane) -> dict[str, Any]:
    router = control_plane.router
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(control_plane, ROUTER_NAME),
        "spec": {
            "type": router.service_type,
            "selector": {"app.kubernetes.io/name": ROUTER_NAME},
            "ports": [{"name": "http", "port": router.port, "targetPort": "http"}],
        },
    }
