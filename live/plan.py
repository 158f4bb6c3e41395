"""What a stack would make, and what it relies on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from live import paths
from live.api import Object
from live.references import Reference, pull_secrets, references
from models.deployment import Deployment
from models.stack import Stack
from render import RenderedDeployment, render_deployment


@dataclass(frozen=True)
class Version:
    """One version of a deployment's pods: the deployment itself, or the candidate beside it."""

    deployment: Deployment
    model_serving: Object

    @property
    def name(self) -> str:
        """Of its ModelServing."""
        return str(self.model_serving["metadata"]["name"])

    @property
    def pod_specs(self) -> Iterator[tuple[Object, Object]]:
        """Each role with the spec of its entry pods, and with that of its workers if it has any."""
        for role in self.model_serving["spec"]["template"]["roles"]:
            yield role, role["entryTemplate"]["spec"]
            if role["workerReplicas"]:
                yield role, role["workerTemplate"]["spec"]


@dataclass(frozen=True)
class Plan:
    """A stack whose deployments are rendered once."""

    stack: Stack

    @cached_property
    def rendered(self) -> dict[str, RenderedDeployment]:
        """Name of each deployment -> its objects."""
        deployments = self.stack.deployments
        return {
            name: render_deployment(
                deployment,
                self.stack.cluster,
                {other: deployments[other] for other in deployment.route.targets & deployments.keys()},
            )
            for name, deployment in deployments.items()
        }

    @cached_property
    def objects(self) -> tuple[Object, ...]:
        """Of all deployments."""
        return tuple(item for one in self.rendered.values() for item in one.objects)

    @cached_property
    def versions(self) -> tuple[Version, ...]:
        """All that make pods."""
        found = []
        for name, deployment in self.stack.deployments.items():
            rendered = self.rendered[name]
            found.append(Version(deployment, rendered.stable.model_serving))
            if rendered.candidate and deployment.candidate:
                found.append(Version(deployment.candidate, rendered.candidate.model_serving))
        return tuple(found)

    @cached_property
    def made_namespaces(self) -> frozenset[str]:
        """Namespaces that come with the stack."""
        control_plane = self.stack.cluster.control_plane
        return frozenset({*self.stack.cluster.namespaces, *([control_plane.namespace] if control_plane.install else [])})

    @cached_property
    def references(self) -> frozenset[Reference]:
        """Objects that the stack names and does not make, and the namespaces that it uses."""
        cluster = self.stack.cluster
        tls, dashboards = cluster.control_plane.router.tls, cluster.monitoring and cluster.monitoring.dashboard_namespace
        used = {deployment.namespace for deployment in self.stack.deployments.values()}
        used |= self.made_namespaces | ({dashboards} if dashboards else set())
        found = {Reference(paths.namespaces, "", name) for name in used}
        if tls and cluster.control_plane.install:
            found.add(Reference(paths.secrets, cluster.control_plane.namespace, tls.secret))
        for version in self.versions:
            namespace = version.deployment.namespace
            for _, spec in version.pod_specs:
                found |= {*references(spec, namespace), *pull_secrets(spec, namespace)}
        ours = {paths.of(item) for item in self.objects if item["kind"] == "ConfigMap"}
        return frozenset(one for one in found if one.path not in ours)
