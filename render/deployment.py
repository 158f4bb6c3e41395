"""The objects of a P/D deployment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from models.base import Declaration, dump
from models.cluster import Cluster
from models.deployment import Deployment
from models.kthena import ModelServing
from models.kthena.meta import PodTemplate
from models.kthena.model_serving import ModelServingSpec, ServingGroupTemplate, ServingRole
from models.role import ROLES, RoleName
from render.autoscaling import autoscaling_policy
from render.monitoring import pod_monitor, prometheus_rule
from render.names import QUEUE_ANNOTATION, config_map_name, content_hash, is_hashed, metadata
from render.network_policy import network_policy
from render.pods import pod_template
from render.route import model_route, model_server
from render.scripts import scripts


@dataclass(frozen=True)
class RenderedServing:
    """One version of a deployment's pods, and what leads to them: plain dicts, as the API server takes them."""

    scripts: dict[RoleName, dict[str, Any]]
    """immutable ConfigMap of each role"""
    network_policy: dict[str, Any] | None
    model_serving: dict[str, Any]
    model_server: dict[str, Any]
    autoscaling_policy: dict[str, Any] | None
    pod_monitor: dict[str, Any] | None

    @property
    def name(self) -> str:
        """Of ModelServing and ModelServer."""
        return str(self.model_serving["metadata"]["name"])

    @property
    def objects(self) -> tuple[dict[str, Any], ...]:
        """In the order in which they are created."""
        wanted = (
            *self.scripts.values(),
            self.network_policy,
            self.model_serving,
            self.model_server,
            self.autoscaling_policy,
            self.pod_monitor,
        )
        return tuple(item for item in wanted if item)


@dataclass(frozen=True)
class RenderedDeployment:
    """The objects of one deployment."""

    stable: RenderedServing
    candidate: RenderedServing | None
    """the version that is being tried beside it"""
    model_route: dict[str, Any] | None
    """None where only other deployments' routes lead here"""
    prometheus_rule: dict[str, Any] | None

    @property
    def servings(self) -> tuple[RenderedServing, ...]:
        """The versions that run side by side."""
        return (self.stable, self.candidate) if self.candidate else (self.stable,)

    @property
    def objects(self) -> tuple[dict[str, Any], ...]:
        """In the order in which they are created."""
        last = (item for item in (self.model_route, self.prometheus_rule) if item)
        return (*(item for serving in self.servings for item in serving.objects), *last)


def render_deployment(
    deployment: Deployment, cluster: Cluster, others: Mapping[str, Deployment] = MappingProxyType({})
) -> RenderedDeployment:
    """Render a deployment that the rules have passed; ``others``: by their names, those that its route leads to."""
    targets = {name: _shares(other, cluster) for name, other in {**others, deployment.name: deployment}.items()}
    return RenderedDeployment(
        stable=_serving(deployment, cluster),
        candidate=_serving(deployment.candidate, cluster) if deployment.candidate else None,
        model_route=_dump(model_route(deployment, targets)),
        prometheus_rule=prometheus_rule(deployment, cluster),
    )


def serving_name(deployment: Deployment, cluster: Cluster) -> str:
    """Name of the ModelServing, and of the ModelServer that selects its pods.

    What can't be changed under one name is in it as a hash: another value is another object, so the old one serves until the new
    one does. A ModelServer can't be led to other pods either: the router keeps those that it had bound (kthena#1122).
    """
    if not is_hashed(deployment):
        return deployment.name
    gang = deployment.scheduling.gang_policy
    fixed: list[Any] = [dump(gang)] if gang else []
    if deployment.rollout:
        fixed += [[scripts(deployment, cluster, role), template_of(dump(_role(deployment, cluster, role, "")))] for role in ROLES]
    return f"{deployment.name}-{content_hash(json.dumps(fixed, sort_keys=True))}"


def template_of(role: Mapping[str, Any]) -> dict[str, Any]:
    """A role less what makes no new revision of it.

    Source: Kthena v1.0.0 pkg/model-serving-controller/utils/revision_util.go.
    """
    return {key: value for key, value in role.items() if key not in ("replicas", "maxUnavailable")}


def _shares(deployment: Deployment, cluster: Cluster) -> dict[str, int]:
    """Name of each version's ModelServer -> percent of the deployment's requests."""
    percent = deployment.rollout.percent if deployment.rollout else 0
    shares = {serving_name(deployment, cluster): 100 - percent}
    if deployment.candidate:
        shares[serving_name(deployment.candidate, cluster)] = percent
    return {name: share for name, share in shares.items() if share}


def _serving(deployment: Deployment, cluster: Cluster) -> RenderedServing:
    name = serving_name(deployment, cluster)
    files = {role: _scripts(deployment, cluster, role, name) for role in ROLES}
    return RenderedServing(
        scripts=files,
        network_policy=network_policy(deployment, cluster, name),
        model_serving=dump(
            _model_serving(deployment, cluster, name, {role: found["metadata"]["name"] for role, found in files.items()})
        ),
        model_server=dump(model_server(deployment, name)),
        autoscaling_policy=_dump(autoscaling_policy(deployment, name)),
        pod_monitor=pod_monitor(deployment, cluster, name),
    )


def _dump(declared: Declaration | None) -> dict[str, Any] | None:
    return dump(declared) if declared else None


def _scripts(deployment: Deployment, cluster: Cluster, role: RoleName, serving: str) -> dict[str, Any]:
    data = scripts(deployment, cluster, role)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": dump(metadata(deployment, config_map_name(f"{serving}-{role}", data))),
        "immutable": True,
        "data": data,
    }


def _model_serving(deployment: Deployment, cluster: Cluster, name: str, config_maps: Mapping[RoleName, str]) -> ModelServing:
    scheduling = deployment.scheduling
    queue = {QUEUE_ANNOTATION: scheduling.queue} if scheduling.queue else None
    return ModelServing(
        metadata=metadata(deployment, name, queue),
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
                roles=tuple(_role(deployment, cluster, role, config_maps[role]) for role in ROLES),
            ),
        ),
    )


def _role(deployment: Deployment, cluster: Cluster, name: RoleName, config_map: str) -> ServingRole:
    role = deployment.role(name)
    workers = role.pods - 1
    return ServingRole(
        name=name,
        replicas=deployment.ratio.of(name),
        worker_replicas=workers,
        entry_template=PodTemplate.model_validate(pod_template(deployment, cluster, name, config_map)),
        # With a worker template, even for no worker, Kthena would make a headless Service for each entry pod.
        worker_template=PodTemplate.model_validate(pod_template(deployment, cluster, name, config_map, worker=True))
        if workers
        else None,
        max_unavailable=role.max_unavailable,
    )
