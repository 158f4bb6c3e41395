"""A stand-in for what Helm makes of Kthena's chart: its objects and the places that are mended, and nothing of its text."""

from __future__ import annotations

from typing import Any

CONTROLLER, ROUTER = "kthena-controller-manager", "kthena-router"
NAMESPACE = "kthena-system"
KINDS = {
    "workload": ("modelservings", "modelboosters", "autoscalingpolicies"),
    "networking": ("modelroutes", "modelservers"),
}
Object = dict[str, Any]


def objects(version: str = "1.0.0") -> list[Object]:
    """What the provider answers when it is asked to template the chart."""
    crds = [_crd(group, plural) for group, plurals in KINDS.items() for plural in plurals]
    return [*crds, *_part("networking", ROUTER, version), *_part("workload", CONTROLLER, version), *_extras(version)]


def _crd(group: str, plural: str) -> Object:
    schema = {
        "type": "object",
        "description": "what a user reads",
        "properties": {"description": {"type": "string", "description": "a field of that name"}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}.serving.volcano.sh", "annotations": {"made/by": "a generator"}},
        "spec": {"versions": [{"name": "v1alpha1", "schema": {"openAPIV3Schema": schema}}]},
    }


def _labels(chart: str, component: str, version: str) -> dict[str, str]:
    app = "app.kubernetes.io"
    return {
        f"{app}/component": component,
        f"{app}/name": chart,
        f"{app}/instance": "kthena",
        f"{app}/version": version,
        f"{app}/managed-by": "Helm",
    }


def _part(chart: str, name: str, version: str) -> list[Object]:
    labels = _labels(chart, name, version)
    inside = {"namespace": NAMESPACE, "labels": labels}
    rbac = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
    everything = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "create"]}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, **inside}},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [everything]},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name, "labels": labels},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
            "subjects": [subject],
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": f"{name}-webhook", **inside},
            "spec": {"ports": [{"port": 443, "targetPort": 8443, "name": "https"}], "selector": labels},
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": f"{name}-validating-webhook", "labels": labels},
            "webhooks": [
                {
                    "name": f"validate-{plural}.volcano.sh",
                    "clientConfig": {"service": {"name": f"{name}-webhook", "namespace": NAMESPACE, "port": 443}},
                }
                for plural in KINDS[chart]
            ],
        },
        _deployment(name, labels),
    ]


def _deployment(name: str, labels: dict[str, str]) -> Object:
    secret = {"secretName": f"{name}-webhook-certs", "optional": True}
    volumes: list[Object] = [{"name": "webhook-certs", "secret": secret}]
    if name == ROUTER:
        volumes.append({"name": "scheduler-config", "configMap": {"name": f"{ROUTER}-config"}})
    container = {
        "name": name,
        "image": f"registry.example/{name}:latest",
        "args": ["--from-the-chart"],
        "ports": [{"containerPort": 8080, "name": "http"}, {"containerPort": 8443, "name": "webhook"}],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8443}},
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8443}},
        "volumeMounts": [{"name": "webhook-certs", "mountPath": "/etc/tls"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": dict(labels)},
                "spec": {"serviceAccountName": name, "containers": [container], "volumes": volumes},
            },
        },
    }


def _extras(version: str) -> list[Object]:
    """What only one of the two has."""
    router, controller = _labels("networking", ROUTER, version), _labels("workload", CONTROLLER, version)

    def inside(name: str, labels: dict[str, str]) -> Object:
        return {"name": name, "namespace": NAMESPACE, "labels": labels}

    images = {"model_serving_runtime_image": "registry.example/runtime:latest"}
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": inside("downloader-secrets", controller), "data": {"ACCESS_KEY": ""}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": inside(f"{ROUTER}-config", router), "data": {}},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": inside("model-booster-controller-config", controller),
            "data": images,
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": inside(ROUTER, router),
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "targetPort": 8080, "name": "http"}], "selector": router},
        },
    ]
