"""Where the API server keeps each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """A kind; called, the path of its collection or of one object."""

    api_version: str
    kind: str
    plural: str

    def __call__(self, namespace: str = "", name: str = "") -> str:
        """Path of one object, or of all in ``namespace``; without a namespace, of what has none, or of all in the cluster."""
        root = "/apis" if "/" in self.api_version else "/api"
        inside = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}/{self.api_version}{inside}/{self.plural}" + (f"/{name}" if name else "")


_WORKLOAD = "workload.serving.volcano.sh/v1alpha1"
_NETWORKING = "networking.serving.volcano.sh/v1alpha1"

model_servings = Kind(_WORKLOAD, "ModelServing", "modelservings")
autoscaling_policies = Kind(_WORKLOAD, "AutoscalingPolicy", "autoscalingpolicies")
model_servers = Kind(_NETWORKING, "ModelServer", "modelservers")
model_routes = Kind(_NETWORKING, "ModelRoute", "modelroutes")
pods = Kind("v1", "Pod", "pods")
config_maps = Kind("v1", "ConfigMap", "configmaps")
services = Kind("v1", "Service", "services")
events = Kind("v1", "Event", "events")
nodes = Kind("v1", "Node", "nodes")
namespaces = Kind("v1", "Namespace", "namespaces")
service_accounts = Kind("v1", "ServiceAccount", "serviceaccounts")
deployments = Kind("apps/v1", "Deployment", "deployments")
replica_sets = Kind("apps/v1", "ReplicaSet", "replicasets")
controller_revisions = Kind("apps/v1", "ControllerRevision", "controllerrevisions")
resource_quotas = Kind("v1", "ResourceQuota", "resourcequotas")
limit_ranges = Kind("v1", "LimitRange", "limitranges")
secrets = Kind("v1", "Secret", "secrets")
claims = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
storage_classes = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses")
priority_classes = Kind("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses")
runtime_classes = Kind("node.k8s.io/v1", "RuntimeClass", "runtimeclasses")
queues = Kind("scheduling.volcano.sh/v1beta1", "Queue", "queues")
custom_resource_definitions = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
access_reviews = Kind("authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews")
network_policies = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
pod_monitors = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")
prometheus_rules = Kind("monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules")
cluster_roles = Kind("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles")
cluster_role_bindings = Kind("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings")

_KINDS = {
    (kind.api_version, kind.kind): kind
    for kind in (
        model_servings,
        autoscaling_policies,
        model_servers,
        model_routes,
        pods,
        config_maps,
        services,
        events,
        nodes,
        namespaces,
        service_accounts,
        deployments,
        controller_revisions,
        network_policies,
        pod_monitors,
        prometheus_rules,
        cluster_roles,
        cluster_role_bindings,
        custom_resource_definitions,
    )
}


def of(declared: Mapping[str, Any]) -> str:
    """Path of one object.

    Raises:
        KeyError: of a kind that is not listed here.
    """
    return f"{collection(declared)}/{declared['metadata']['name']}"


def collection(declared: Mapping[str, Any]) -> str:
    """Path of the collection that an object is created in.

    Raises:
        KeyError: of a kind that is not listed here.
    """
    return _KINDS[declared["apiVersion"], declared["kind"]](declared["metadata"].get("namespace", ""))
