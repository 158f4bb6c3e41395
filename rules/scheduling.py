"""Volcano, HAMi's scheduler, and the plugins of Kthena's controller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from models.role import ROLES
from models.stack import Stack
from render.pod_template import CONTAINERS
from rules.finding import Problem, in_deployment, one_of, rule
from rules.npu import device_plugin_of
from rules.pod_template import entry_pods

_PLUGINS = ("demo-pod-tweaks", "lws-standard-labels")
"""Kthena v1.0.0 pkg/model-serving-controller/plugins"""


@rule(
    "PD820",
    source="Kthena v1.0.0 pkg/model-serving-controller/podgroupmanager/manager.go, shouldCreatePodGroup",
    severity="warning",
)
def queue_gang_and_topology_have_volcano(stack: Stack) -> Iterator[Problem]:
    """They are settings of a PodGroup, which Kthena makes for scheduler volcano only; otherwise it ignores them."""
    if stack.cluster.scheduler == "volcano":
        return
    for deployment in stack.deployments.values():
        scheduling = deployment.scheduling
        given = {
            "queue": scheduling.queue,
            "gangPolicy": scheduling.gang_policy,
            "networkTopology": scheduling.network_topology,
        }
        for key, value in given.items():
            if value is not None:
                yield Problem(
                    in_deployment(deployment, "scheduling", key),
                    f"nothing reads it with scheduler {stack.cluster.scheduler}",
                    "cluster.scheduler: volcano, or leave it out",
                )


@rule("PD821", source="Kthena v1.0.0 pkg/model-serving-controller/webhook/validator.go, validateGangPolicy")
def gangs_are_of_instances_that_there_are(stack: Stack) -> Iterator[Problem]:
    """Kthena refuses more of a role than there are, when the ratio is changed or scaled too; the gang can't be changed later."""
    for deployment in stack.deployments.values():
        gang = deployment.scheduling.gang_policy
        fewest = {str(role): deployment.instance_bounds(role)[0] for role in ROLES}
        for name, replicas in gang.min_role_replicas.items() if gang else ():
            path = in_deployment(deployment, "scheduling", "gangPolicy", "minRoleReplicas", name)
            if name not in fewest:
                yield Problem(path, f"there is no role {name}", one_of(ROLES, name))
            elif replicas > fewest[name]:
                yield Problem(path, f"{replicas} of {fewest[name]} {name} instances in a group", f"at most {fewest[name]}")


@rule("PD823", source="Kthena v1.0.0 pkg/model-serving-controller/plugins, DefaultRegistry")
def plugins_are_known(stack: Stack) -> Iterator[Problem]:
    """With a plugin that it does not have the controller makes no pod at all, and says so in its log only. A controller of the
    cluster's own may have others."""
    if not stack.cluster.control_plane.install:
        return
    for deployment in stack.deployments.values():
        for index, plugin in enumerate(deployment.plugins):
            if plugin.name not in _PLUGINS:
                path = in_deployment(deployment, "plugins", index, "name")
                yield Problem(path, f"Kthena has no plugin {plugin.name!r}", f"one of {one_of(_PLUGINS, plugin.name)}")


@rule(
    "PD824",
    source="Kthena v1.0.0 pkg/model-serving-controller/plugins, shouldRun and lws_labels_plugin.go",
    severity="warning",
)
def plugins_have_pods_to_touch(stack: Stack) -> Iterator[Problem]:
    """A plugin whose scope holds no pod of the deployment never runs, without a word."""
    for deployment in stack.deployments.values():
        for index, plugin in enumerate(deployment.plugins):
            scope = plugin.scope
            path = in_deployment(deployment, "plugins", index)
            named = scope.roles if scope and scope.roles else ROLES
            touched = [role for role in ROLES if role in named]
            for place, name in enumerate(named):
                if name not in ROLES:
                    yield Problem((*path, "scope", "roles", place), f"there is no role {name}", one_of(ROLES, name))
            if scope and scope.target == "Worker" and touched and all(deployment.role(role).pods == 1 for role in touched):
                yield Problem((*path, "scope", "target"), f"{' and '.join(touched)} have no workers", "Entry, or leave it out")
            if plugin.name == "lws-standard-labels":
                yield Problem((*path, "name"), "acts only where a LeaderWorkerSet owns the ModelServing", "leave it out")


@rule("PD883", source="HAMi pkg/scheduler/webhook.go, Handle")
def no_container_is_privileged_where_that_is_refused(stack: Stack) -> Iterator[Problem]:
    """HAMi's webhook refuses a pod that asks for dies and has a privileged container: it would see all dies of the server."""
    plugin = device_plugin_of(stack)
    if plugin is None or plugin.refuses_privileged != stack.cluster.scheduler:
        return
    for deployment, role, _ in entry_pods(stack):
        patch: Mapping[str, Any] = deployment.role(role).pod_template.spec
        for kind in CONTAINERS:
            for index, container in enumerate(patch.get(kind, [])):
                if (container.get("securityContext") or {}).get("privileged"):
                    yield Problem(
                        in_deployment(deployment, role, "podTemplate", "spec", kind, index, "securityContext", "privileged"),
                        f"{stack.cluster.npu.device_plugin} refuses pods with a privileged container",
                        "leave it out",
                    )
