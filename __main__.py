"""The Pulumi program: reads the stack file, checks it, and hands it to the components."""

from pathlib import Path

import pulumi
from pulumi_kubernetes import Provider

from components import KthenaControlPlane, KthenaControlPlaneArgs, PDDeployment, PDDeploymentArgs
from components.kubernetes_object import KubernetesObject
from render import render_namespace
from rules import Source, StackError, read

config = pulumi.Config()
stack_file = Path(f"Pulumi.{pulumi.get_stack()}.yaml")
try:
    stack = read(
        {key: value for key in ("cluster", "deployments") if (value := config.get_object(key)) is not None},
        Source(stack_file.name, stack_file.read_text()) if stack_file.exists() else None,
        warn=lambda finding: pulumi.log.warn(str(finding)),
    )
except StackError as error:
    raise pulumi.RunError(str(error)) from None

provider = Provider(
    "kubernetes",
    context=stack.cluster.context,
    # The cluster's identity for Pulumi: without it an edit of the kubeconfig would replace every resource.
    cluster_identifier=f"{pulumi.get_project()}-{pulumi.get_stack()}",
    enable_server_side_apply=True,
)
control_plane = KthenaControlPlane(
    "kthena", KthenaControlPlaneArgs(stack.cluster), pulumi.ResourceOptions(providers={"kubernetes": provider})
)
namespaces = [
    KubernetesObject(name, render_namespace(name), pulumi.ResourceOptions(provider=provider)) for name in stack.cluster.namespaces
]
deployments = {
    name: PDDeployment(
        name,
        PDDeploymentArgs(deployment, stack.cluster, router_url=control_plane.router_url),
        pulumi.ResourceOptions(providers={"kubernetes": provider}, depends_on=[control_plane, *namespaces]),
    )
    for name, deployment in stack.deployments.items()
}
pulumi.export("router", {"url": control_plane.router_url, "debugPort": stack.cluster.control_plane.router.debug_port})
pulumi.export("deployments", {name: deployment.summary() for name, deployment in deployments.items()})
