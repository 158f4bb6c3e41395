"""PDDeployment: one P/D deployment and everything that belongs to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi

from components.converging import Converging
from components.kubernetes_object import KubernetesObject
from components.outputs import IS_A_KEY, filled, once, placeholders
from models.cluster import Cluster
from models.deployment import Deployment
from models.role import ROLES
from models.stack import Stack
from render import RenderedDeployment, render_deployment
from render.deployment import RenderedServing
from render.names import is_hashed
from rules import check
from rules.finding import PROJECT, in_order


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


@dataclass(frozen=True)
class _Serving:
    """One version as resources."""

    model_server: KubernetesObject
    revision: pulumi.Output[str]
    """known once the pods serve"""
    paired: pulumi.Output[bool]
    """known once the router pairs them"""


class PDDeployment(pulumi.ComponentResource):
    """Owns the scripts ConfigMaps, the ModelServing, the ModelServer, the ModelRoute and the AutoscalingPolicy of one deployment.

    Created in that order, each after the one before serves, and the route after its other targets; destroyed in the reverse
    order, so the route goes first. A candidate has a ModelServing with all that belongs to it beside the first. What the
    AutoscalingPolicy scales belongs to it from then on. Where the cluster wants them, a NetworkPolicy comes before the pods, a
    PodMonitor with them and a PrometheusRule last.

    Raises:
        pulumi.RunError: the deployment breaks a rule (the same findings as for a stack file), or has an Output where none can be;
            or the cluster does not get where it should, for the reasons that the message names.
    """

    endpoint: pulumi.Output[str]
    """OpenAI base URL; known once the router pairs the pods"""
    namespace: pulumi.Output[str]
    served_model: pulumi.Output[str]
    ratio: pulumi.Output[str]
    """of one group, for example 2P1D"""
    groups: pulumi.Output[int]
    npus: pulumi.Output[int]
    """dies of the whole deployment, without a candidate"""
    revision: pulumi.Output[str]
    """Kthena's revision of the role templates; empty until the controller has written one"""
    declared: dict[str, Deployment]
    """this deployment and all that requests reach through its route, by their names"""
    model_servers: list[KubernetesObject]
    """what routes lead to"""

    def __init__(self, name: str, args: PDDeploymentArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        deployment, cluster = args.deployment, args.cluster
        self.declared = {key: one for target in args.targets for key, one in target.declared.items()}
        self.declared[deployment.name] = deployment
        _refuse_mistakes(Stack(cluster=cluster, deployments=self.declared))
        rendered = render_deployment(deployment, cluster, self.declared)
        _refuse_outputs_where_names_follow(deployment, rendered)
        # Whatever happens to it, a production deployment is there until this is taken back; its versions come and go.
        protected = pulumi.ResourceOptions(protect=cluster.protect or None)
        super().__init__("kthena-pd:serving:PDDeployment", name, {}, pulumi.ResourceOptions.merge(opts, protected))
        servings = [
            self._serving(version, one, cluster)
            for version, one in zip((deployment, deployment.candidate), rendered.servings, strict=False)
            if version
        ]
        self.model_servers = [serving.model_server for serving in servings]
        paired: pulumi.Output[Any] = pulumi.Output.all(*(serving.paired for serving in servings))
        routed: pulumi.Output[Any] = paired
        if rendered.model_route:
            targets = [server for target in args.targets for server in target.model_servers]
            # its name, not that of the deployment: a renamed deployment keeps its route
            route = self._child(
                _route_resource(rendered.model_route),
                rendered.model_route,
                once(paired, [*self.model_servers, *targets]),
                # the first to go: where it may not, nothing goes
                protect=cluster.protect or None,
                aliases=[pulumi.Alias(name=name)],
            )
            routed = route.id
        if rendered.prometheus_rule:
            # Alerts are about what serves: a model that is loading for the first time would be one.
            self._child(name, rendered.prometheus_rule, once(routed, [*self.model_servers]))

        self.endpoint = pulumi.Output.all(args.router_url, routed).apply(lambda known: f"{known[0]}/v1")
        self.namespace = pulumi.Output.from_input(filled(deployment.namespace))
        self.served_model = pulumi.Output.from_input(deployment.model.served)
        self.ratio = pulumi.Output.from_input(str(deployment.ratio))
        self.groups = pulumi.Output.from_input(deployment.groups)
        self.npus = pulumi.Output.from_input(deployment.npus)
        self.revision = servings[0].revision
        self.register_outputs(self.summary())

    def _serving(self, deployment: Deployment, rendered: RenderedServing, cluster: Cluster) -> _Serving:
        # Resources with their objects' names, which have the content in them: were it one resource that is replaced, an edit that
        # fails and is taken back would have Pulumi create the first object anew and then delete it as the one that was replaced.
        scripts = [self._child(item["metadata"]["name"], item) for item in rendered.scripts.values()]
        guards = [self._child(rendered.name, rendered.network_policy)] if rendered.network_policy else []
        model_serving = self._child(
            rendered.name, rendered.model_serving, [*scripts, *guards], ignore_changes=_scaled(deployment)
        )
        converging = Converging(self, model_serving, deployment, rendered, cluster)
        served = converging.served()
        model_server = self._child(rendered.name, rendered.model_server, once(served, [model_serving]))
        if rendered.autoscaling_policy:
            self._child(rendered.name, rendered.autoscaling_policy, [model_serving])
        if rendered.pod_monitor:
            self._child(rendered.name, rendered.pod_monitor, [model_serving])
        return _Serving(model_server, served, converging.paired(model_server))

    def _child(
        self, name: str, rendered: Mapping[str, Any], needed: pulumi.Input[Sequence[pulumi.Resource]] = (), **options: Any
    ) -> KubernetesObject:
        # What is replaced when its content changes must be free to go, whatever holds for the deployment as a whole.
        opts = pulumi.ResourceOptions(parent=self, depends_on=needed, **{"protect": False, **options})
        return KubernetesObject(name, rendered, opts)

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


def _scaled(deployment: Deployment) -> list[str]:
    """Fields of the ModelServing that the autoscaler decides, as ``ignore_changes`` names them."""
    scaling = deployment.autoscaling
    if scaling is None:
        return []
    return (["spec.replicas"] if scaling.groups else []) + [
        f"spec.template.roles[{ROLES.index(role)}].replicas" for role in scaling.scaled_roles
    ]


def _route_resource(route: Mapping[str, Any]) -> str:
    """Name of a route's resource: one for each route of the stack."""
    metadata = route["metadata"]
    # the number of a placeholder may be another one at the next run
    own = [] if list(placeholders(metadata["namespace"])) else [metadata["namespace"]]
    return "-".join([*own, metadata["name"]])


def _refuse_mistakes(stack: Stack) -> None:
    errors = [finding for finding in in_order(check(stack)) if finding.severity == "error"]
    if errors:
        found = "\n".join(f"  {finding}" for finding in errors).replace(f"{PROJECT}:", "")
        raise pulumi.RunError(f"nothing is created of a deployment with mistakes:\n{found}")


def _refuse_outputs_where_names_follow(deployment: Deployment, rendered: RenderedDeployment) -> None:
    """Names follow from the content of scripts and routes, and that of a version from its pods."""
    for item in rendered.objects:
        in_pods = () if is_hashed(deployment) else (".spec.template",)
        elsewhere = {"ModelServing": (".metadata.annotations", *in_pods), "PrometheusRule": (".spec",)}.get(item["kind"], ())
        for place in placeholders(item):
            if place.endswith(IS_A_KEY) or not place.startswith((".metadata.namespace", *elsewhere)):
                raise pulumi.RunError(
                    f"an Output can't be in {item['kind']} {item['metadata']['name']}{place}: "
                    "it can be the namespace, or in the pods outside their start scripts"
                    + (", but not with rollout or gangPolicy" if is_hashed(deployment) else "")
                )
