"""PDDeployment: one P/D deployment and everything that belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi

from components.kubernetes_object import KubernetesObject, wait_for
from models.cluster import Cluster
from models.deployment import Deployment
from models.quantities import seconds
from models.stack import Stack
from render import render_deployment
from rules import StackError, check, refuse_errors

SCHEDULING_SECONDS = 600
"""what `up` grants beside the model's load time: scheduling, image pull, the KV link's set-up (Pulumi's own default)"""


@dataclass(frozen=True)
class PDDeploymentArgs:
    """What a PDDeployment is made from."""

    deployment: Deployment
    cluster: Cluster
    router_url: pulumi.Input[str]
    """where clients reach the router, without a path"""


class PDDeployment(pulumi.ComponentResource):
    """Owns the scripts ConfigMap, the ModelServing, the ModelServer and the ModelRoute of one deployment.

    Created in that order, each after the one before serves; destroyed in the reverse order, so the route goes first.

    Raises:
        pulumi.RunError: the deployment breaks a rule (the same findings as for a stack file).
    """

    endpoint: pulumi.Output[str]
    """OpenAI base URL"""
    namespace: pulumi.Output[str]
    served_model: pulumi.Output[str]
    ratio: pulumi.Output[str]
    """of one group, for example 2P1D"""
    groups: pulumi.Output[int]
    npus: pulumi.Output[int]
    """dies of the whole deployment"""
    revision: pulumi.Output[str]
    """Kthena's revision of the role templates; empty until the controller has written one"""

    def __init__(self, name: str, args: PDDeploymentArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        deployment, cluster = args.deployment, args.cluster
        try:
            refuse_errors(check(Stack(cluster=cluster, deployments={deployment.name: deployment})))
        except StackError as error:
            raise pulumi.RunError(str(error)) from None
        super().__init__("kthena-pd:serving:PDDeployment", name, {}, opts)
        rendered = render_deployment(deployment, cluster)
        scripts = KubernetesObject(f"{name}-scripts", rendered.scripts, pulumi.ResourceOptions(parent=self))
        model_serving = KubernetesObject(
            name,
            rendered.model_serving,
            pulumi.ResourceOptions(parent=self, depends_on=[scripts]),
            annotations=_readiness(deployment)
            # With Pulumi's foreground default garbage collection and the controller undo each other's work (measured).
            | {"pulumi.com/deletionPropagationPolicy": "background"},
        )
        model_server = KubernetesObject(
            name, rendered.model_server, pulumi.ResourceOptions(parent=self, depends_on=[model_serving])
        )
        KubernetesObject(name, rendered.model_route, pulumi.ResourceOptions(parent=self, depends_on=[model_server]))

        self.endpoint = pulumi.Output.from_input(args.router_url).apply(lambda url: f"{url}/v1")
        self.namespace = pulumi.Output.from_input(deployment.namespace)
        self.served_model = pulumi.Output.from_input(deployment.model.served)
        self.ratio = pulumi.Output.from_input(str(deployment.ratio))
        self.groups = pulumi.Output.from_input(deployment.groups)
        self.npus = pulumi.Output.from_input(deployment.npus)
        self.revision = model_serving.status.apply(_revision)
        self.register_outputs(self.summary())

    def summary(self) -> dict[str, pulumi.Output[Any]]:
        """The outputs by their names in the stack's outputs."""
        return {
            "endpoint": self.endpoint,
            "namespace": self.namespace,
            "servedModel": self.served_model,
            "ratio": self.ratio,
            "groups": self.groups,
            "npus": self.npus,
            "revision": self.revision,
        }


def _readiness(deployment: Deployment) -> dict[str, str]:
    # Available alone is true up to 10 s too early while roles are replaced (measured).
    groups = deployment.groups
    return wait_for(
        [
            "condition=Available",
            f"jsonpath={{.status.updatedReplicas}}={groups}",
            f"jsonpath={{.status.availableReplicas}}={groups}",
        ],
        seconds(deployment.readiness.load_timeout) + SCHEDULING_SECONDS,
    )


def _revision(status: Mapping[str, Any] | None) -> str:
    return str((status or {}).get("updateRevision", ""))
