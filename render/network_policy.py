"""Who may connect to the pods of a deployment."""

from __future__ import annotations

from typing import Any

from models.base import dump
from models.cluster import Cluster
from models.deployment import Deployment
from render.autoscaling import metric_sources
from render.names import COMPONENT_LABEL, CONTROLLER_NAME, NAME_LABEL, ROUTER_NAME, metadata

_NAMESPACE_LABEL = "kubernetes.io/metadata.name"


def network_policy(deployment: Deployment, cluster: Cluster, serving: str) -> dict[str, Any] | None:
    """The policy of one version's pods; ``serving`` is the name of their ModelServing.

    None where none is wanted, and for pods on their host's network, which policies do not reach. Each version has its own: a
    policy lives as long as the pods that it is about, and lets nobody in to another version's.

    Only who comes in is decided. What engines connect to (their weights' source, a pool's master, name servers, each other's
    NPUs) is not known here, and who may not answer them can be decided there. The kubelet's probes always pass. The runtime
    sidecar's port is nobody's but the pods' own: in Kthena v1.0.0 neither router nor controller asks it for anything, as every
    declared metric has the port that it is read from (pkg/autoscaler/autoscaler/metric_collector.go).
    """
    if cluster.network_policy is None or deployment.host_network:
        return None
    own_namespace = _namespace(cluster.control_plane.namespace)
    clients = [own_namespace | _pods(ROUTER_NAME), *map(_namespace, cluster.network_policy.namespaces)]
    scraped = _scraped_ports(deployment)
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": dump(metadata(deployment, serving)),
        "spec": {
            "podSelector": {"matchLabels": {NAME_LABEL: serving}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": clients, "ports": _ports([deployment.port])},
                *([{"from": [own_namespace | _pods(CONTROLLER_NAME)], "ports": _ports(scraped)}] if scraped else []),
                {"from": _peers(deployment, serving)},
            ],
        },
    }


def _peers(deployment: Deployment, serving: str) -> list[dict[str, Any]]:
    """Whom an engine has to answer on whatever port the other side chooses: KV transfer, ranks of one instance, HCCL."""
    own = [{"podSelector": {"matchLabels": {NAME_LABEL: serving}}}]
    if deployment.kv_transfer.pool is None:
        return own
    # The engines around one pool hold its blocks and read them from each other; which deployments these are, the pool decides.
    return [{"namespaceSelector": {}, "podSelector": {"matchExpressions": [{"key": NAME_LABEL, "operator": "Exists"}]}}]


def _scraped_ports(deployment: Deployment) -> list[int]:
    """Ports from which the controller reads the metrics that it scales by."""
    scaling = deployment.autoscaling
    scaled = [one for one in (scaling.groups, scaling.prefill, scaling.decode) if one] if scaling else []
    sources = (source for one in scaled for source in metric_sources(deployment, one).values())
    return sorted({source.pod.port for source in sources if source.pod and source.pod.port})


def _namespace(name: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: name}}}


def _pods(component: str) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": {COMPONENT_LABEL: component}}}


def _ports(numbers: list[int]) -> list[dict[str, Any]]:
    return [{"protocol": "TCP", "port": number} for number in numbers]
