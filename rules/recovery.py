"""What becomes of failed engines."""

from __future__ import annotations

from collections.abc import Iterator

from models.stack import Stack
from rules.finding import Problem, in_deployment, rule


@rule("PD801", source="kthena#1661, fixed after v1.0.0", severity="warning")
def failed_engines_are_replaced(stack: Stack) -> Iterator[Problem]:
    """With recovery policy None the controller deletes a failed pod and makes no new one until something else changes."""
    for deployment in stack.deployments.values():
        if deployment.recovery.policy == "None":
            yield Problem(
                in_deployment(deployment, "recovery", "policy"),
                "Kthena v1.0.0 does not replace failed pods with it",
                "ServingGroupRecreate or RoleRecreate",
            )
