"""The four objects of a P/D deployment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import catalog
from models.base import dump
from models.cluster import Cluster
from models.deployment import ROLES, Deployment, RoleName
from models.kthena import ModelRoute, ModelServer, ModelServing
from models.kthena.meta import Metadata, PodTemplate
from models.kthena.model_route import ModelRouteSpec, RouteRule, TargetModel
from models.kthena.model_server import (
    KVConnector,
    ModelServerSpec,
    PDGroup,
    ServerRetry,
    TrafficPolicy,
    WorkloadPort,
    WorkloadSelector,
)
from models.kthena.model_serving import ModelServingSpec, ServingGroupTemplate, ServingRole
from render.names import GROUP_LABEL, NAME_LABEL, ROLE_LABEL, config_map_name, labels, model_route_name
from render.pods import pod_spec
from render.scripts import start_scripts


@dataclass(frozen=True)
class RenderedDeployment:
    """The objects of one deployment as plain dicts, as the API server takes them."""

    scripts: dict[str, Any]
    """immutable ConfigMap"""
    model_serving: dict[str, Any]
    model_server: dict[str, Any]
    model_route: dict[str, Any]

    @property
    def objects(self) -> tuple[dict[str, Any], ...]:
        """In the order in which they are created."""
        return (self.scripts, self.model_serving, self.model_server, self.model_route)


def render_deployment(deployment: Deployment, cluster: Cluster) -> RenderedDeployment:
    """Render a deployment that the rules have passed."""
    scripts = _scripts(deployment)
    return RenderedDeployment(
        scripts=scripts,
        model_serving=dump(_model_serving(deployment, cluster, scripts["metadata"]["name"])),
        model_server=dump(_model_server(deployment)),
        model_route=dump(_model_route(deployment)),
    )


def _metadata(deployment: Deployment, name: str) -> Metadata:
    return Metadata(name=name, namespace=deployment.namespace, labels=labels(deployment.name))


def _scripts(deployment: Deployment) -> dict[str, Any]:
    data = start_scripts(deployment)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": dump(_metadata(deployment, config_map_name(f"{deployment.name}-scripts", data))),
        "immutable": True,
        "data": data,
    }


def _model_serving(deployment: Deployment, cluster: Cluster, scripts: str) -> ModelServing:
    return ModelServing(
        metadata=_metadata(deployment, deployment.name),
        spec=ModelServingSpec(
            scheduler_name=cluster.scheduler,
            replicas=deployment.groups,
            recovery_policy=deployment.recovery.policy,
            template=ServingGroupTemplate(
                restart_grace_period_seconds=deployment.recovery.restart_grace_period_seconds,
                roles=tuple(
                    ServingRole(
                        name=role,
                        replicas=deployment.ratio.of(role),
                        worker_replicas=0,
                        entry_template=PodTemplate(spec=pod_spec(deployment, cluster, role, scripts)),
                    )
                    for role in ROLES
                ),
            ),
        ),
    )


def _model_server(deployment: Deployment) -> ModelServer:
    retry = deployment.traffic.retry
    return ModelServer(
        metadata=_metadata(deployment, deployment.name),
        spec=ModelServerSpec(
            inference_engine="vLLM",
            model=deployment.model.served,
            workload_selector=WorkloadSelector(
                match_labels={NAME_LABEL: deployment.name},
                pd_group=PDGroup(
                    group_key=GROUP_LABEL, prefill_labels=_role_labels("prefill"), decode_labels=_role_labels("decode")
                ),
            ),
            workload_port=WorkloadPort(port=deployment.port, protocol="http"),
            kv_connector=KVConnector(type=catalog.engine().connectors[deployment.kv_transfer.connector].router_connector),
            traffic_policy=TrafficPolicy(
                timeout=deployment.traffic.timeout,
                retry=ServerRetry(attempts=retry.attempts, retry_interval=retry.retry_interval) if retry else None,
            ),
        ),
    )


def _role_labels(role: RoleName) -> dict[str, str]:
    return {ROLE_LABEL: role}


def _model_route(deployment: Deployment) -> ModelRoute:
    return ModelRoute(
        metadata=_metadata(deployment, model_route_name(deployment.model.served)),
        spec=ModelRouteSpec(
            model_name=deployment.model.served,
            rules=(RouteRule(name="default", target_models=(TargetModel(model_server_name=deployment.name),)),),
        ),
    )
