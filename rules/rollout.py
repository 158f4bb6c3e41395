"""Rolling updates, as Kthena's webhook allows them and its controller does them."""

from __future__ import annotations

from collections.abc import Iterator

from models.deployment import Deployment
from models.kthena.model_serving import RollingUpdateConfiguration, scaled
from models.stack import Stack
from render.deployment import serving_name
from rules.finding import Path, Problem, in_deployment, roles, rule
from rules.npu import device_plugin_of, family_of

_WEBHOOK = "Kthena v1.0.0 pkg/model-serving-controller/webhook/validator.go"
MOST_TARGETS = 16
"""of one rule of a ModelRoute"""
_CONFIGURATION = ("rolloutStrategy", "rollingUpdateConfiguration")


def _rolls_roles(deployment: Deployment) -> bool:
    return deployment.rollout_strategy is not None and deployment.rollout_strategy.type == "RoleRollingUpdate"


def _configurations(stack: Stack) -> Iterator[tuple[Deployment, RollingUpdateConfiguration]]:
    for deployment in stack.deployments.values():
        if deployment.rollout_strategy and deployment.rollout_strategy.rolling_update_configuration:
            yield deployment, deployment.rollout_strategy.rolling_update_configuration


@rule("PD802", source=f"{_WEBHOOK}, validateRecoveryPolicyAndRolloutStrategy")
def roles_that_roll_alone_recover_alone(stack: Stack) -> Iterator[Problem]:
    """A recovery that recreates the whole group would undo a rollout by role: Kthena refuses the pair."""
    for deployment in stack.deployments.values():
        if _rolls_roles(deployment) and deployment.recovery.policy == "ServingGroupRecreate":
            yield Problem(
                in_deployment(deployment, "recovery", "policy"),
                "ServingGroupRecreate does not go with RoleRollingUpdate",
                "recovery: {policy: RoleRecreate}",
            )


@rule("PD803", source=f"{_WEBHOOK}, validateRollingUpdateConfiguration")
def limits_of_groups_belong_to_a_rollout_by_group(stack: Stack) -> Iterator[Problem]:
    """With RoleRollingUpdate each role has a limit of its own, and Kthena refuses the groups'."""
    for deployment, _ in _configurations(stack):
        if _rolls_roles(deployment):
            yield Problem(
                in_deployment(deployment, *_CONFIGURATION),
                "limits groups, and RoleRollingUpdate replaces roles",
                "maxUnavailable in prefill and decode; or type: ServingGroupRollingUpdate",
            )


@rule("PD804", source=f"{_WEBHOOK}, validateMaxUnavailableForRoles")
def limits_of_roles_belong_to_a_rollout_by_role(stack: Stack) -> Iterator[Problem]:
    """With ServingGroupRollingUpdate, which is the default, whole groups go down, and Kthena refuses a role's limit."""
    for deployment, name, role in roles(stack):
        if role.max_unavailable is not None and not _rolls_roles(deployment):
            yield Problem(
                in_deployment(deployment, name, "maxUnavailable"),
                "limits instances of a role, and ServingGroupRollingUpdate replaces whole groups",
                "rolloutStrategy: {type: RoleRollingUpdate} with recovery: {policy: RoleRecreate}; or "
                "rolloutStrategy.rollingUpdateConfiguration.maxUnavailable",
            )


@rule("PD805", source=f"{_WEBHOOK}; what it leaves to the controller: more than there are")
def max_unavailable_is_between_one_and_all(stack: Stack) -> Iterator[Problem]:
    """With none allowed to go down an update would never begin; a percentage is rounded down."""
    for deployment, configuration in _configurations(stack):
        if not _rolls_roles(deployment) and configuration.max_unavailable is not None:
            path = in_deployment(deployment, *_CONFIGURATION, "maxUnavailable")
            yield from _out_of_bounds(path, configuration.max_unavailable, "groups", *deployment.group_bounds())
    for deployment, name, role in roles(stack):
        if _rolls_roles(deployment) and role.max_unavailable is not None:
            path = in_deployment(deployment, name, "maxUnavailable")
            fewest, _ = deployment.instance_bounds(name)  # of fewer instances the webhook would refuse it
            yield from _out_of_bounds(path, role.max_unavailable, f"{name} instances", fewest, fewest)


def _out_of_bounds(path: Path, limit: int | str, things: str, fewest: int, most: int) -> Iterator[Problem]:
    if not 1 <= scaled(limit, max(fewest, 1)) <= max(most, 1):
        yield Problem(path, f"{limit} of {fewest} {things}", "1" if most <= 1 else f"1 to {most}")


@rule(
    "PD806",
    source="Kthena v1.0.0 model_serving_controller.go: the first groups up to the partition keep their template",
    severity="warning",
)
def partition_is_at_most_the_groups(stack: Stack) -> Iterator[Problem]:
    """As many as there are pause a rollout; more of them protect nothing that exists."""
    for deployment, configuration in _configurations(stack):
        most = deployment.group_bounds()[1]
        if isinstance(configuration.partition, int) and configuration.partition > most:
            yield Problem(
                in_deployment(deployment, *_CONFIGURATION, "partition"),
                f"{configuration.partition} of {most} groups",
                f"{most} to pause the rollout, fewer to go on with it",
            )


@rule(
    "PD807",
    source="Kthena v1.0.0 model_serving_controller.go: deleteOutdatedRoles deletes in every group at once",
    severity="warning",
)
def roles_roll_in_a_single_group(stack: Stack) -> Iterator[Problem]:
    """RoleRollingUpdate takes the role down in all groups at the same time: more groups do not keep the service up."""
    for deployment in stack.deployments.values():
        most = deployment.group_bounds()[1]
        if _rolls_roles(deployment) and most > 1:
            yield Problem(
                in_deployment(deployment, "rolloutStrategy", "type"),
                f"RoleRollingUpdate rolls all {most} groups at once",
                "ServingGroupRollingUpdate, which rolls one group after the other",
            )


@rule(
    "PD808",
    source="Kthena v1.0.0 model_serving_controller.go: without maxUnavailable every outdated instance is deleted",
    severity="warning",
)
def a_role_that_rolls_keeps_some_instances(stack: Stack) -> Iterator[Problem]:
    """Without a limit RoleRollingUpdate takes all instances of a role down at once, and none is left to serve."""
    for deployment, name, role in roles(stack):
        fewest, _ = deployment.instance_bounds(name)
        if _rolls_roles(deployment) and role.max_unavailable is None and fewest > 1:
            yield Problem(
                in_deployment(deployment, name, "maxUnavailable"),
                f"absent: all {fewest} {name} instances are replaced at once",
                "1",
            )


@rule("PD850", source="render.deployment.serving_name")
def a_candidate_differs_from_its_deployment(stack: Stack) -> Iterator[Problem]:
    """Two versions with the same pods would be one ModelServing, declared twice."""
    for deployment, candidate in _candidates(stack):
        if device_plugin_of(stack) and serving_name(candidate, stack.cluster) == serving_name(deployment, stack.cluster):
            path = in_deployment(deployment, "rollout", "candidate")
            yield Problem(
                path, "its pods are those of the deployment itself", "what is to be tried, for example another engine.version"
            )


@rule("PD851", source="Kthena v1.0.0 ModelRoute: one model name, weighted targets")
def both_versions_answer_to_the_same_names(stack: Stack) -> Iterator[Problem]:
    """The route shares out the requests for one name: each must be answered by either version."""
    for deployment, candidate in _candidates(stack):
        path = in_deployment(deployment, "rollout", "candidate", "model")
        if candidate.model.served != deployment.model.served:
            yield Problem((*path, "served"), f"{candidate.model.served!r} instead of {deployment.model.served!r}", "leave it out")
        adapters, others = (set(one.model.lora.adapters) if one.model.lora else set() for one in (deployment, candidate))
        if adapters != others:
            yield Problem(
                (*path, "lora", "adapters"),
                f"{', '.join(sorted(adapters ^ others))} in one version only",
                "the same adapters in both, or the change first as an edit of its own",
            )


@rule("PD852", source="docs/rollouts.md", severity="warning")
def kthenas_strategy_is_for_edits_in_place(stack: Stack) -> Iterator[Problem]:
    """With a rollout each version of the pods is a ModelServing of its own, which Kthena never has to roll."""
    for deployment in stack.deployments.values():
        if deployment.rollout and deployment.rollout_strategy:
            yield Problem(
                in_deployment(deployment, "rolloutStrategy"), "has no effect beside rollout", "leave out one of the two"
            )


@rule("PD853", source="Kubernetes scheduling", severity="warning")
def two_versions_have_room_side_by_side(stack: Stack) -> Iterator[Problem]:
    """The new pods start before the old ones go: without NPUs for both an edit fails, while the old version goes on serving."""
    family, nodes = family_of(stack), stack.cluster.npu.nodes
    if family is None or nodes is None:
        return
    free = nodes * family.dies_per_node - sum(deployment.npus for deployment in stack.deployments.values())
    candidates = {deployment.name: candidate.npus for deployment, candidate in _candidates(stack)}
    for deployment in stack.deployments.values() if free >= 0 else ():
        second = deployment.candidate or deployment
        left = free - sum(npus for name, npus in candidates.items() if name != deployment.name)
        if deployment.rollout and left < second.npus:
            yield Problem(
                in_deployment(deployment, "rollout"),
                f"a second version needs {second.npus} NPUs beside all else, and {max(left, 0)} are left of {nodes} servers",
                f"fewer NPUs elsewhere, or kthena-pd:cluster.npu.nodes of at least "
                f"{nodes - (left - second.npus) // family.dies_per_node} if there are more servers",
            )


@rule("PD854", source="Kthena v1.0.0 ModelRoute: at most 16 targetModels")
def both_versions_fit_into_the_rules_of_routes(stack: Stack) -> Iterator[Problem]:
    """Each version is a target of its own, and Kthena refuses a rule that has too many."""
    tried = {deployment.name for deployment, _ in _candidates(stack)}
    for deployment in stack.deployments.values():
        for index, declared in enumerate(deployment.route.rules):
            versions = len(declared.targets) + len(tried & declared.targets.keys())
            if versions > MOST_TARGETS:
                yield Problem(
                    in_deployment(deployment, "route", "rules", index, "targets"),
                    f"{versions} versions of {len(declared.targets)} deployments",
                    f"at most {MOST_TARGETS}: fewer targets, or fewer candidates at a time",
                )


def _candidates(stack: Stack) -> Iterator[tuple[Deployment, Deployment]]:
    return ((one, one.candidate) for one in stack.deployments.values() if one.candidate)
