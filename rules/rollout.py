"""Rolling updates, as Kthena's webhook allows them and its controller does them."""

from __future__ import annotations

from collections.abc import Iterator

from models.deployment import Deployment
from models.kthena.model_serving import RollingUpdateConfiguration, scaled
from models.stack import Stack
from rules.finding import Path, Problem, in_deployment, roles, rule

_WEBHOOK = "Kthena v1.0.0 pkg/model-serving-controller/webhook/validator.go"
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
