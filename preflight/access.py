"""What we may do in the cluster, and how old it is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from preflight.probe import Situation, probe
from rules.finding import Path, Problem

_OLDEST = (1, 28)
_CONTEXT: Path = ("cluster", "context")


@probe("PF001", source="Kthena v1.0.0 developer guide", severity="warning")
def kubernetes_is_as_new_as_kthena_wants_it(situation: Situation) -> Iterator[Problem]:
    """Kthena's CRDs have rules in CEL that older API servers do not know, and its authors test on 1.28 and newer."""
    version = situation.survey.version
    number = re.match(r"v?(\d+)\.(\d+)", version)
    if number and (int(number[1]), int(number[2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        yield Problem(_CONTEXT, f"the cluster has Kubernetes {version}", f"Kubernetes {oldest} or newer")


@probe("PF002", source="Kubernetes RBAC; Pulumi's server-side apply")
def up_is_allowed_what_it_does(situation: Situation) -> Iterator[Problem]:
    """An `up` that is refused in its middle leaves one half of the stack at the old state and one at the new."""
    yield from _denied(situation, deletes=False)


@probe("PF003", source="Kubernetes RBAC", severity="warning")
def up_may_delete_what_it_has_made(situation: Situation) -> Iterator[Problem]:
    """The scripts of each version of the pods are objects of their own. Without the permission to delete, an `up` that changes
    them ends with an error, after all else has been done."""
    yield from _denied(situation, deletes=True)


def _denied(situation: Situation, *, deletes: bool) -> Iterator[Problem]:
    places = defaultdict(lambda: defaultdict(list))  # type: ignore[var-annotated]
    for one in situation.survey.denied:
        if (one.verb == "delete") is deletes:
            qualified = f"{one.resource}.{one.group}" if one.group else one.resource
            places[one.namespace][qualified].append(one.verb)
    for namespace, resources in places.items():
        by_verbs = defaultdict(list)
        for resource, verbs in resources.items():
            by_verbs[", ".join(verbs)].append(resource)
        what = "; ".join(f"{verbs} {', '.join(kinds)}" for verbs, kinds in by_verbs.items())
        kind = f"a Role in namespace {namespace}" if namespace else "a ClusterRole"
        yield Problem(
            _CONTEXT,
            f"the kubeconfig's user may not {what} {f'in namespace {namespace}' if namespace else 'in the cluster'}",
            f"{kind} with these verbs, bound to the user; or another user in the kubeconfig (kubectl auth whoami)",
        )


@probe("PF004", source="Kubernetes RBAC", severity="warning")
def all_can_be_looked_at(situation: Situation) -> Iterator[Problem]:
    """What can't be seen is not checked, and may stop the deployment later."""
    unseen = situation.survey.unseen
    if unseen:
        yield Problem(
            _CONTEXT,
            f"the kubeconfig's user may not {', '.join(unseen)}: what depends on it was not checked",
            "let the user read it, or take it that it fits",
        )
