"""The Pulumi program: reads the stack file, checks it, and hands it to the components."""

import graphlib
import os
import signal
import sys
from pathlib import Path

import pulumi
from pulumi_kubernetes import Provider

from components import KthenaControlPlane, KthenaControlPlaneArgs, PDDeployment, PDDeploymentArgs, RefusedEditError, examine
from components.kubernetes_object import KubernetesObject
from live.kubeconfig import KubeconfigError, read_kubeconfig
from render import render_namespace
from rules import Source, StackError, read, require_context

EXIT_AFTER_A_MESSAGE = 32
"""tells Pulumi that the user has read what is wrong; any other code makes it add that the program ended with an error"""

# The engine says that a run was interrupted; from here there would only be a traceback.
signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_AFTER_A_MESSAGE))

config = pulumi.Config()
prefix = f"{pulumi.get_project()}:"
# all of the project's keys, so that a misspelt one is found; the two known ones also where a test has set them
keys = {"cluster", "deployments"} | {
    key.removeprefix(prefix) for key in pulumi.runtime.get_config_env() if key.startswith(prefix)
}
stack_file = Path(f"Pulumi.{pulumi.get_stack()}.yaml")
try:
    stack = read(
        {key: value for key in sorted(keys) if (value := config.get_object(key)) is not None},
        Source.load(stack_file) if stack_file.exists() else None,
        warn=lambda finding: pulumi.log.warn(str(finding)),
    )
    require_context(stack, read_kubeconfig().contexts)
    examine(stack)
except (StackError, KubeconfigError, RefusedEditError) as error:
    pulumi.log.error(str(error))
    sys.exit(EXIT_AFTER_A_MESSAGE)

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
    KubernetesObject(
        name, render_namespace(name), pulumi.ResourceOptions(provider=provider, protect=stack.cluster.protect or None)
    )
    for name in stack.cluster.namespaces
]
names = stack.deployments.keys()
targets = {name: (deployment.route.targets & names) - {name} for name, deployment in stack.deployments.items()}
deployments: dict[str, PDDeployment] = {}
for name in graphlib.TopologicalSorter(targets).static_order():  # a route comes after all deployments that it leads to
    deployments[name] = PDDeployment(
        name,
        PDDeploymentArgs(
            stack.deployments[name],
            stack.cluster,
            router_url=control_plane.router_url,
            targets=[deployments[target] for target in sorted(targets[name])],
        ),
        pulumi.ResourceOptions(providers={"kubernetes": provider}, depends_on=[control_plane, *namespaces]),
    )
pulumi.export("router", control_plane.router_url)
pulumi.export("deployments", {name: deployment.summary() for name, deployment in deployments.items()})
