"""KthenaControlPlane: Kthena's kinds, controller and router."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi

from components.kubernetes_object import KubernetesObject
from components.outputs import once
from convergence.control_plane import wait_for_control_plane
from convergence.outlast import outlast
from convergence.symptoms import NotConvergedError
from live.api import Api, ClusterError, Object
from live.kinds import bring, outdated
from models.cluster import Cluster, ControlPlane
from render import ROUTER_NAME, render_control_plane
from render.control_plane import CRD
from render.ownership import field_manager

LOAD_BALANCER_SECONDS = 600


@dataclass(frozen=True)
class KthenaControlPlaneArgs:
    """What a KthenaControlPlane is made from."""

    cluster: Cluster
    chart: Sequence[Mapping[str, Any]] = ()
    """objects of Kthena's chart, as :func:`components.template` gives them; not needed where it is not installed"""


class KthenaControlPlane(pulumi.ComponentResource):
    """Owns all that Kthena's chart has: namespace, accounts, configuration, webhooks, Deployments and Services.

    What depends on it comes when controller and router work and the API server gets answers from their admission webhooks: before
    that it takes no object of Kthena's. The CRDs belong to the cluster: ``up`` brings them up to date, ``destroy`` leaves them,
    and with them the deployments of other stacks. Where ``controlPlane.install`` is false it owns nothing and only says where the
    router is.

    Raises:
        ChartError: the chart is not that of the declared version.
        pulumi.RunError: controller, router or webhooks don't work, for the reasons that the message names.
    """

    router_url: pulumi.Output[str]
    """where clients reach the router, without a path"""

    def __init__(self, name: str, args: KthenaControlPlaneArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        protected = pulumi.ResourceOptions(protect=args.cluster.protect or None)
        super().__init__("kthena-pd:platform:KthenaControlPlane", name, {}, pulumi.ResourceOptions.merge(opts, protected))
        self._name, self._cluster = name, args.cluster
        control_plane = args.cluster.control_plane
        service = self._install(args.chart) if control_plane.install else self._find_service()
        self.router_url = (
            pulumi.Output.from_input(control_plane.router_url)
            if control_plane.router_url
            else pulumi.Output.all(service.spec, service.status).apply(lambda found: _url(control_plane, *found))
        )
        self.register_outputs({"routerUrl": self.router_url})

    def _install(self, chart: Sequence[Mapping[str, Any]]) -> KubernetesObject:
        """Create everything; returns the router's Service."""
        rendered = render_control_plane(self._cluster, chart)
        kinds = [item for item in rendered if item["kind"] == CRD]
        namespace, *objects, service = (item for item in rendered if item["kind"] != CRD)
        created = [self._object(namespace, ())]
        brought: pulumi.Output[bool] = created[0].metadata.apply(
            lambda metadata: self._in_cluster(
                [metadata], lambda api: self._bring(api, kinds), "Kthena's CRDs can't be brought, so nothing else was touched"
            )
        )
        for item in objects:
            # Who runs comes after all that it uses, and what then has to answer as late as can be; the rest after the namespace.
            is_late = item["kind"] == "Deployment" or item["kind"].endswith("WebhookConfiguration")
            created.append(self._object(item, once(brought, list(created) if is_late else created[:1])))
        works: pulumi.Output[bool] = pulumi.Output.all(*(item.metadata for item in created)).apply(
            lambda known: self._in_cluster(known, self._wait, "Kthena does not work, so no deployment was touched")
        )
        return self._object(service, once(works, created))

    def _object(self, rendered: Mapping[str, Any], needed: pulumi.Input[Sequence[pulumi.Resource]]) -> KubernetesObject:
        kind = rendered["kind"]
        options = pulumi.ResourceOptions(
            parent=self,
            depends_on=needed,
            # Another content is another object, and the one before goes, whatever protects the rest.
            protect=False if kind == "ConfigMap" else None,
            # so was the router's called before its name had its content in it
            aliases=[pulumi.Alias(name=f"{self._name}-router-config")] if rendered.get("immutable") else None,
        )
        return KubernetesObject(
            f"{self._name}-{rendered['metadata']['name']}", rendered, options, annotations=_readiness(rendered)
        )

    def _find_service(self) -> KubernetesObject:
        """The router's Service as whoever installed Kthena made it: looked up, not owned."""
        namespace = self._cluster.control_plane.namespace
        return KubernetesObject(
            f"{self._name}-{ROUTER_NAME}",
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": ROUTER_NAME, "namespace": namespace}},
            pulumi.ResourceOptions(parent=self, id=f"{namespace}/{ROUTER_NAME}"),
        )

    async def _in_cluster(self, known: Sequence[Any], work: Callable[[Api], Awaitable[object]], failed: str) -> bool:
        """Do ``work`` once the objects of which the metadata is ``known`` are an API server's."""
        # without an uid it was made by no API server, but by the mocks of a test
        if all((metadata or {}).get("uid") for metadata in known):
            try:
                await work(await outlast(lambda: Api.shared(self._cluster.context)))
            except (ClusterError, NotConvergedError) as error:
                raise pulumi.RunError(f"{failed}: {error}") from None
        return True

    async def _bring(self, api: Api, kinds: Sequence[Object]) -> None:
        """Bring the CRDs up to date, or in a preview say which would be."""
        late = await outdated(api, kinds)
        if late:
            pulumi.log.info(f"brings CRDs up to date: {', '.join(sorted(one['metadata']['name'] for one in late))}", self)
        if not pulumi.runtime.is_dry_run():
            await bring(api, late, field_manager(pulumi.get_project(), pulumi.get_stack()))

    async def _wait(self, api: Api) -> None:
        if not pulumi.runtime.is_dry_run():
            await wait_for_control_plane(api, self._cluster.control_plane, say=lambda line: pulumi.log.info(line, self))


def _readiness(rendered: Mapping[str, Any]) -> dict[str, str]:
    """Annotations that tell Pulumi when an object counts as created."""
    match rendered["kind"], rendered.get("spec", {}).get("type"):
        case "Service", "LoadBalancer":
            address = json.dumps(["jsonpath={.status.loadBalancer.ingress[0]}"])
            return {"pulumi.com/waitFor": address, "pulumi.com/timeoutSeconds": str(LOAD_BALANCER_SECONDS)}
        case (("Deployment" | "Service"), _):
            # Whether they work is asked in every `up`, changed or not, and with reasons. Pulumi's own wait for a Deployment only
            # says that it waits, for ten minutes, and that for a Service takes ten seconds more than needed (measured).
            return {"pulumi.com/skipAwait": "true"}
        case _:
            return {}


def _url(control_plane: ControlPlane, spec: Mapping[str, Any] | None, status: Mapping[str, Any] | None) -> str:
    """Where clients reach the Service: its load balancer's address if it has one, else its name inside the cluster."""
    port = ((spec or {}).get("ports") or [{}])[0].get("port", control_plane.router.port)
    ingress = (((status or {}).get("loadBalancer") or {}).get("ingress") or [{}])[0]
    host = ingress.get("ip") or ingress.get("hostname") or f"{ROUTER_NAME}.{control_plane.namespace}.svc"
    scheme = "https" if control_plane.router.tls else "http"
    return f"{scheme}://{host}:{port:.0f}"
