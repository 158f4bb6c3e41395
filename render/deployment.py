"""The objects of a P/D deployment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from models.base import Declaration, dump
from models.cluster import Cluster
from models.deployment import Deployment
from models.kthena import ModelServing
from models.kthena.meta import PodTemplate
from models.kthena.model_serving import ModelServingSpec, ServingGroupTemplate, ServingRole
from models.role import ROLES, RoleName
from render.autoscaling import autoscaling_policy
from render.names import QUEUE_ANNOTATION, config_map_name, metadata
from render.pods import pod_template
from render.route import model_route, model_server
from render.scripts import start_scripts


@dataclass(frozen=True)
class RenderedDeployment:
    """The objects of one deployment as plain dicts, as the API server takes them."""

    scripts: dict[str, Any]
    """immutable ConfigMap"""
    model_serving: dict[str, Any]
    model_server: dict[str, Any]
    model_route: dict[str, Any] | None
    """None where only other deployments' routes lead here"""
    autoscaling_policy: dict[str, Any] | None

    @property
    def objects(self) -> tuple[dict[str, Any], ...]:
        """In the order in which they are created."""
        always = (self.scripts, self.model_serving, self.model_server)
        return (*always, *(item for item in (self.model_route, self.autoscaling_policy) if item))


def render_deployment(deployment: Deployment, cluster: Cluster) -> RenderedDeployment:
    """Render a deployment that the rules have passed."""
    scripts = _scripts(deployment, cluster)
    return RenderedDeployment(
        scripts=scripts,
        model_serving=dump(_model_serving(deployment, cluster, scripts["metadata"]["name"])),
        model_server=dump(model_server(deployment)),
        model_route=_dump(model_route(deployment)),
        autoscaling_policy=_dump(autoscaling_policy(deployment)),
    )


def _dump(declared: Declaration | None) -> dict[str, Any] | None:
    return dump(declared) if declared else None


def _scripts(deployment: Deployment, cluster: Cluster) -> dict[str, Any]:
    data = start_scripts(deployment, cluster)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": dump(metadata(deployment, config_map_name(f"{deployment.name}-scripts", data))),
        "immutable": True,
        "data": data,
    }


def _model_serving(deployment: Deployment, cluster: Cluster, scripts: str) -> ModelServing:
    scheduling = deployment.scheduling
    queue = {QUEUE_ANNOTATION: scheduling.queue} if scheduling.queue else None
    return ModelServing(
        metadata=metadata(deployment, deployment.name, queue),
        spec=ModelServingSpec(
            scheduler_name=cluster.scheduler,
            replicas=deployment.groups,
            recovery_policy=deployment.recovery.policy,
            rollout_strategy=deployment.rollout_strategy,
            plugins=deployment.plugins or None,
            template=ServingGroupTemplate(
                restart_grace_period_seconds=deployment.recovery.restart_grace_period_seconds,
                gang_policy=scheduling.gang_policy,
                network_topology=scheduling.network_topology,
                roles=tuple(_role(deployment, cluster, role, scripts) for role in ROLES),
            ),
        ),
    )


def _role(deployment: Deployment, cluster: Cluster, name: RoleName, scripts: str) -> ServingRole:
    role = deployment.role(name)
    workers = role.pods - 1
    return ServingRole(
        name=name,
        replicas=deployment.ratio.of(name),
        worker_replicas=workers,
        entry_template=PodTemplate.model_validate(pod_template(deployment, cluster, name, scripts)),
        # With a worker template, even for no worker, Kthena would make a headless Service for each entry pod.
        worker_template=PodTemplate.model_validate(pod_template(deployment, cluster, name, scripts, worker=True))
        if workers
        else None,
        max_unavailable=role.max_unavailable,
    )
