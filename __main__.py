"""The Pulumi program: reads the stack file, checks it, and hands it to the components."""

import os
import signal
import sys
from pathlib import Path

import pulumi
from pulumi_kubernetes import Provider

from components import (
    KthenaControlPlane,
    KthenaControlPlaneArgs,
    Monitoring,
    MonitoringArgs,
    PDDeployment,
    PDDeploymentArgs,
    RefusedEditError,
    examine,
    foretell_control_plane,
    make_way,
    template,
)
from components.kubernetes_object import KubernetesObject
from live.kubeconfig import KubeconfigError, read_kubeconfig
from render import ChartError, render_namespace
from rules import Source, StackError, read, require_context, require_prefix, settings
from rules.finding import PROJECT
from rules.layers import declared

EXIT_AFTER_A_MESSAGE = 32
"""tells Pulumi that the user has read what is wrong; any other code makes it add that the program ended with an error"""

# The engine says that a run was interrupted; from here there would only be a traceback.
signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_AFTER_A_MESSAGE))

config = pulumi.Config(PROJECT)  # also in a project of another name, which `pulumi new` asks for
prefix = f"{PROJECT}:"
# all keys that are this program's, so that a misspelt one is found; the known ones also where a test has set them
keys = {"base", "cluster", "deployments"} | {
    key.removeprefix(prefix) for key in pulumi.runtime.get_config_env() if key.startswith(prefix)
}
stack_file = Path(f"Pulumi.{pulumi.get_stack()}.yaml")
try:
    require_prefix(pulumi.runtime.get_config_env(), pulumi.get_project())
    given = settings({key: config.get(key) for key in sorted(keys)})
    source = Source.load(stack_file) if stack_file.exists() else None
    stack = read(given, source, warn=lambda finding: pulumi.log.warn(str(finding)))
    require_context(stack, read_kubeconfig().contexts)
    edits = examine(stack, declared(given, source).placed)
    provider = Provider(
        "kubernetes",
        context=stack.cluster.context,
        # The cluster's identity for Pulumi: without it an edit of the kubeconfig would replace every resource.
        cluster_identifier=f"{pulumi.get_project()}-{pulumi.get_stack()}",
        enable_server_side_apply=True,
    )
    chart = template(stack.cluster, provider, Path())
    foretell_control_plane(stack.cluster, chart)
    control_plane = KthenaControlPlane(
        "kthena", KthenaControlPlaneArgs(stack.cluster, chart), pulumi.ResourceOptions(providers={"kubernetes": provider})
    )
    make_way(stack, edits)
except (StackError, KubeconfigError, RefusedEditError, ChartError) as error:
    pulumi.log.error(str(error))
    sys.exit(EXIT_AFTER_A_MESSAGE)

namespaces = [
    KubernetesObject(
        name, render_namespace(name), pulumi.ResourceOptions(provider=provider, protect=stack.cluster.protect or None)
    )
    for name in stack.cluster.namespaces
]
if stack.cluster.monitoring:
    Monitoring(
        "monitoring",
        MonitoringArgs(stack.cluster),
        pulumi.ResourceOptions(providers={"kubernetes": provider}, depends_on=[control_plane, *namespaces]),
    )
deployments: dict[str, PDDeployment] = {}
for name in stack.in_order():  # a route comes after all deployments that it leads to
    deployments[name] = PDDeployment(
        name,
        PDDeploymentArgs(
            stack.deployments[name],
            stack.cluster,
            router_url=control_plane.router_url,
            targets=[deployments[target] for target in stack.targets(name)],
        ),
        pulumi.ResourceOptions(providers={"kubernetes": provider}, depends_on=[control_plane, *namespaces]),
    )
pulumi.export("router", control_plane.router_url)
pulumi.export("deployments", {name: deployment.summary() for name, deployment in deployments.items()})
