"""What Prometheus scrapes: monitors for the Prometheus operator, and the dashboard that shows what they bring.

Ports and paths: vLLM serves its metrics beside its API (https://docs.vllm.ai/en/stable/usage/metrics/), and so does the router
of Kthena v1.0.0 (cmd/kthena-router/app/router.go), without authentication.
"""

from __future__ import annotations

import json
from typing import Any

from models.base import dump
from models.cluster import Cluster, Monitoring
from models.deployment import Deployment
from models.quantities import seconds
from render.alerts import deployment_alerts, router_alerts
from render.dashboard import dashboard
from render.names import (
    COMPONENT_LABEL,
    ENTRY_LABEL,
    GROUP_LABEL,
    NAME_LABEL,
    ROLE_LABEL,
    ROUTER_NAME,
    labels,
    metadata,
)

MONITORING = "monitoring.coreos.com/v1"
DASHBOARD_NAME = "kthena-pd-dashboard"
_POD_NAME = "__meta_kubernetes_pod_name"


def render_monitoring(cluster: Cluster) -> tuple[dict[str, Any], ...]:
    """What belongs to no deployment: the router's monitor and alerts, and the dashboard; also where the router is not ours."""
    monitoring = cluster.monitoring
    if monitoring is None or not monitoring.router:
        return ()
    found = [_router_monitor(cluster, monitoring)]
    if monitoring.alerts:
        found.append(_rule(_router_metadata(cluster, monitoring), router_alerts(cluster)))
    if monitoring.dashboard is not None:
        found.append(_dashboard(cluster, monitoring, monitoring.dashboard))
    return tuple(found)


def pod_monitor(deployment: Deployment, cluster: Cluster, serving: str) -> dict[str, Any] | None:
    """The engines of one version of a deployment; ``serving`` is the name of its ModelServing.

    One for each version, so that the one that goes is seen until it is gone. Workers have no API, and so no metrics.
    """
    monitoring = cluster.monitoring
    if monitoring is None:
        return None
    found = dump(metadata(deployment, serving))
    return {
        "apiVersion": MONITORING,
        "kind": "PodMonitor",
        "metadata": found | {"labels": monitoring.labels | found["labels"]},
        "spec": {
            "selector": {"matchLabels": {NAME_LABEL: serving, ENTRY_LABEL: "true"}},
            "podMetricsEndpoints": [
                {
                    "port": "server",
                    "path": "/metrics",
                    "interval": _interval(monitoring),
                    "relabelings": [
                        _set("deployment", deployment.name),
                        _set("model", deployment.model.served),
                        _copy("role", f"__meta_kubernetes_pod_label_{_as_meta_label(ROLE_LABEL)}"),
                        _copy("group", f"__meta_kubernetes_pod_label_{_as_meta_label(GROUP_LABEL)}"),
                        # Not the address: a pod that is made anew under its name goes on with its series.
                        _copy("instance", _POD_NAME),
                    ],
                }
            ],
        },
    }


def prometheus_rule(deployment: Deployment, cluster: Cluster) -> dict[str, Any] | None:
    """The alerts of one deployment, over all of its versions."""
    monitoring = cluster.monitoring
    if monitoring is None or not monitoring.alerts:
        return None
    found = dump(metadata(deployment, deployment.name))
    return _rule(found | {"labels": monitoring.labels | found["labels"]}, deployment_alerts(deployment, monitoring.thresholds))


def _rule(found: dict[str, Any], alerts: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": MONITORING,
        "kind": "PrometheusRule",
        "metadata": found,
        "spec": {"groups": [{"name": f"kthena-pd.{found['namespace']}.{found['name']}", "rules": alerts}]},
    }


def _router_metadata(cluster: Cluster, monitoring: Monitoring) -> dict[str, Any]:
    namespace = cluster.control_plane.namespace
    return {"name": ROUTER_NAME, "namespace": namespace, "labels": monitoring.labels | labels(ROUTER_NAME)}


def _router_monitor(cluster: Cluster, monitoring: Monitoring) -> dict[str, Any]:
    endpoint: dict[str, Any] = {
        "port": "http",
        "path": "/metrics",
        "interval": _interval(monitoring),
        "relabelings": [_copy("instance", _POD_NAME)],
    }
    if cluster.control_plane.router.tls:
        # Pods are scraped by their addresses, which no certificate names.
        endpoint |= {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}}
    return {
        "apiVersion": MONITORING,
        "kind": "PodMonitor",
        "metadata": _router_metadata(cluster, monitoring),
        "spec": {
            "selector": {"matchLabels": {COMPONENT_LABEL: ROUTER_NAME}},
            "podMetricsEndpoints": [endpoint],
        },
    }


def _dashboard(cluster: Cluster, monitoring: Monitoring, sidecar: dict[str, str]) -> dict[str, Any]:
    # Not named by its content: Grafana's sidecar takes the file away with the old ConfigMap, after the new one has brought it.
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": DASHBOARD_NAME,
            "namespace": monitoring.dashboard_namespace or cluster.control_plane.namespace,
            "labels": sidecar | labels(DASHBOARD_NAME),
        },
        "data": {"kthena-pd.json": json.dumps(dashboard(), indent=2)},
    }


def _set(label: str, value: str) -> dict[str, Any]:
    return {"action": "replace", "targetLabel": label, "replacement": value.replace("$", "$$")}


def _copy(label: str, source: str) -> dict[str, Any]:
    return {"action": "replace", "sourceLabels": [source], "targetLabel": label}


def _as_meta_label(label: str) -> str:
    """A pod's label as Prometheus' discovery names it."""
    return "".join(character if character.isalnum() else "_" for character in label)


def _interval(monitoring: Monitoring) -> str:
    """Prometheus knows no fractions as Kubernetes does."""
    return f"{seconds(monitoring.interval) * 1000:.0f}ms"
