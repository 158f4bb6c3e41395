"""PDDeployment: one P/D deployment and everything that belongs to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi

from components.kubernetes_object import KubernetesObject, wait_for
from components.outputs import IS_A_KEY, filled, placeholders
from models.cluster import Cluster
from models.deployment import Deployment
from models.quantities import seconds
from models.role import ROLES
from models.stack import Stack
from render import RenderedDeployment, render_deployment
from rules import check
from rules.finding import PROJECT, in_order

SCHEDULING_SECONDS = 600
"""what `up` grants beside the model's load time: scheduling, image pull, the KV link's set-up (Pulumi's own default)"""


@dataclass(frozen=True)
class PDDeploymentArgs:
    """What a PDDeployment is made from.

    Where a value is known only during ``up``, the declaration has a :func:`components.placeholder` of its Output.
    """

    deployment: Deployment
    cluster: Cluster
    router_url: pulumi.Input[str]
    """where clients reach the router, without a path"""
    targets: Sequence[PDDeployment] = ()
    """the other deployments to which this one's route sends requests; one that is missing here is expected to be there already"""


class PDDeployment(pulumi.ComponentResource):
    """Owns the scripts ConfigMap, the ModelServing, the ModelServer, the ModelRoute and the AutoscalingPolicy of one deployment.

    Created in that order, each after the one before serves, and the route after its other targets; destroyed in the reverse
    order, so the route goes first. What the AutoscalingPolicy scales belongs to it from then on.

    Raises:
        pulumi.RunError: the deployment breaks a rule (the same findings as for a stack file), or has an Output where none can be.
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
    declared: dict[str, Deployment]
    """this deployment and all that requests reach through its route, by their names"""
    model_server: KubernetesObject
    """what routes lead to"""

    def __init__(self, name: str, args: PDDeploymentArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        deployment, cluster = args.deployment, args.cluster
        self.declared = {key: one for target in args.targets for key, one in target.declared.items()}
        self.declared[deployment.name] = deployment
        _refuse_mistakes(Stack(cluster=cluster, deployments=self.declared))
        rendered = render_deployment(deployment, cluster)
        _refuse_outputs_where_names_follow(rendered)
        super().__init__("kthena-pd:serving:PDDeployment", name, {}, opts)
        scripts = self._child(f"{name}-scripts", rendered.scripts)
        model_serving = self._child(
            name,
            rendered.model_serving,
            scripts,
            annotations=_readiness(deployment)
            # With Pulumi's foreground default garbage collection and the controller undo each other's work (measured).
            | {"pulumi.com/deletionPropagationPolicy": "background"}
            | _forced(deployment),
            ignore_changes=_scaled(deployment),
        )
        self.model_server = self._child(name, rendered.model_server, model_serving)
        if rendered.model_route:
            self._child(name, rendered.model_route, self.model_server, *(target.model_server for target in args.targets))
        if rendered.autoscaling_policy:
            self._child(name, rendered.autoscaling_policy, model_serving)

        self.endpoint = pulumi.Output.from_input(args.router_url).apply(lambda url: f"{url}/v1")
        self.namespace = pulumi.Output.from_input(filled(deployment.namespace))
        self.served_model = pulumi.Output.from_input(deployment.model.served)
        self.ratio = pulumi.Output.from_input(str(deployment.ratio))
        self.groups = pulumi.Output.from_input(deployment.groups)
        self.npus = pulumi.Output.from_input(deployment.npus)
        self.revision = model_serving.status.apply(_revision)
        self.register_outputs(self.summary())

    def _child(
        self,
        name: str,
        rendered: Mapping[str, Any],
        *needed: KubernetesObject,
        annotations: Mapping[str, str] | None = None,
        ignore_changes: list[str] | None = None,
    ) -> KubernetesObject:
        opts = pulumi.ResourceOptions(parent=self, depends_on=needed, ignore_changes=ignore_changes)
        return KubernetesObject(name, rendered, opts, annotations=annotations)

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
    groups = deployment.groups
    rollout = deployment.rollout_strategy and deployment.rollout_strategy.rolling_update_configuration
    # Groups that keep their revision are never counted as updated.
    held_back = bool(rollout and rollout.partition not in (None, 0, "0%"))
    scaled = deployment.autoscaling and deployment.autoscaling.groups
    conditions = [
        # Alone it is true up to 10 s too early while roles are replaced (measured).
        "condition=Available",
        *([] if scaled or held_back else [f"jsonpath={{.status.updatedReplicas}}={groups}"]),
        *([] if scaled else [f"jsonpath={{.status.availableReplicas}}={groups}"]),
    ]
    # Of no groups at all Kthena v1.0.0 writes no status that could be waited for.
    may_be_none = bool(scaled and scaled.min == 0)
    return wait_for([] if may_be_none else conditions, seconds(deployment.readiness.load_timeout) + SCHEDULING_SECONDS)


def _scaled(deployment: Deployment) -> list[str]:
    """Fields of the ModelServing that the autoscaler decides, as ``ignore_changes`` names them."""
    scaling = deployment.autoscaling
    if scaling is None:
        return []
    return (["spec.replicas"] if scaling.groups else []) + [
        f"spec.template.roles[{index}].replicas" for index, role in enumerate(ROLES) if scaling.role(role)
    ]


def _forced(deployment: Deployment) -> dict[str, str]:
    # The list of roles has one owner: with one number in it the autoscaler takes all, and later updates conflict (measured).
    roles_are_scaled = deployment.autoscaling is not None and deployment.autoscaling.groups is None
    return {"pulumi.com/patchForce": "true"} if roles_are_scaled else {}


def _refuse_mistakes(stack: Stack) -> None:
    errors = [finding for finding in in_order(check(stack)) if finding.severity == "error"]
    if errors:
        found = "\n".join(f"  {finding}" for finding in errors).replace(f"{PROJECT}:", "")
        raise pulumi.RunError(f"nothing is created of a deployment with mistakes:\n{found}")


def _refuse_outputs_where_names_follow(rendered: RenderedDeployment) -> None:
    """Names follow from the content of scripts and routes."""
    for item in rendered.objects:
        in_pods = (".metadata.annotations", ".spec.template") if item["kind"] == "ModelServing" else ()
        for place in placeholders(item):
            if place.endswith(IS_A_KEY) or not place.startswith((".metadata.namespace", *in_pods)):
                raise pulumi.RunError(
                    f"an Output can't be in {item['kind']} {item['metadata']['name']}{place}: "
                    "it can be the namespace, or in the pods outside their start scripts"
                )


def _revision(status: Mapping[str, Any] | None) -> str:
    return str((status or {}).get("updateRevision", ""))
