"""Kthena itself, and the operators whose kinds the stack declares."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from live import paths
from live.api import Object
from live.plan import Plan
from live.survey import CERT_MANAGER, NETWORKING, PROMETHEUS_OPERATOR, WORKLOAD, Survey
from preflight.probe import Situation, probe
from render.names import CONTROLLER_NAME, MANAGED, ROUTER_NAME
from render.ownership import MANAGER, annotation
from rules.finding import Path, Problem, in_deployment

_CONTROL_PLANE: Path = ("cluster", "controlPlane")
_INSTALL: Path = (*_CONTROL_PLANE, "install")
_KINDS: Mapping[str, tuple[str, ...]] = {
    WORKLOAD: ("modelservings", "autoscalingpolicies"),
    NETWORKING: ("modelservers", "modelroutes"),
}
_OF_OTHERS = {
    (WORKLOAD, "autoscalingpolicybindings"): "older than 1.0",
    (NETWORKING, "externalmodelproviders"): "newer than 1.0.0",
}
"""kind -> the releases that brought it; a CRD stays when Helm upgrades what it is of"""
_RELEASE = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(-[\w.]+)?")


@probe("PF101", source="Kthena v1.0.0 CRDs")
def kthena_is_there_where_the_stack_does_not_bring_it(situation: Situation) -> Iterator[Problem]:
    """Without its kinds nothing of a deployment can be created."""
    if situation.plan.stack.cluster.control_plane.install:
        return
    missing = [kind for group, kinds in _KINDS.items() for kind in kinds if kind not in situation.survey.served.get(group, ())]
    if missing:
        yield Problem(
            _INSTALL,
            f"false, and the cluster does not know {', '.join(missing)}",
            "true; or install Kthena v1.0.0 with its CRDs",
        )


@probe("PF102", source="Kthena v1.0.0: names of the chart's Deployments")
def kthena_is_of_the_release_that_is_rendered_for(situation: Situation) -> Iterator[Problem]:
    """Releases before 1.0 have other fields: some objects would be refused, and others understood in another way."""
    control_plane = situation.plan.stack.cluster.control_plane
    for item in _here(situation) if not control_plane.install else ():
        release = _release(item)
        if release and release < _parsed(control_plane.version):
            yield Problem(_INSTALL, f"false, and the cluster has {_named(item)} of release {_written(release)}", _upgrade())


@probe("PF103", source="Kthena v1.0.0: CRDs, names of the chart's Deployments", severity="warning")
def the_release_of_kthena_can_be_told(situation: Situation) -> Iterator[Problem]:
    """A release that was not tested with what is rendered here may behave in another way."""
    control_plane, served = situation.plan.stack.cluster.control_plane, situation.survey.served
    if control_plane.install:
        return
    wanted = _parsed(control_plane.version)
    seen = f"Kthena v{control_plane.version}, or try it in staging first"
    for item in _here(situation):
        release = _release(item)
        if release is None:
            yield Problem(_INSTALL, f"{_named(item)} has image {_image(item)}, which names no release", seen)
        elif release[:2] > wanted[:2]:
            yield Problem(_INSTALL, f"{_named(item)} is of release {_written(release)}, newer than what is rendered for", seen)
    for (group, kind), age in _OF_OTHERS.items():
        if kind in served.get(group, ()) and not any(_release(item) for item in _here(situation)):
            yield Problem(_INSTALL, f"the cluster's Kthena seems to be {age}: it has {kind}", seen)


@probe("PF104", source="convergence/router.py: a deployment serves once the router pairs its pods")
def controller_and_router_are_where_they_are_looked_for(situation: Situation) -> Iterator[Problem]:
    """An `up` asks the router for its view of the pods; without a controller there are none."""
    control_plane, all_of_them = situation.plan.stack.cluster.control_plane, situation.survey.control_planes
    if control_plane.install or all_of_them is None:
        return
    here = {item["metadata"]["name"] for item in _here(situation)}
    missing = [name for name in (CONTROLLER_NAME, ROUTER_NAME) if name not in here]
    elsewhere = sorted({item["metadata"]["namespace"] for item in all_of_them if item["metadata"]["name"] in missing})
    if missing:
        yield Problem(
            (*_CONTROL_PLANE, "namespace"),
            f"there is no Deployment {' and no '.join(missing)} in namespace {control_plane.namespace}",
            f"{elsewhere[0]}, where it is" if elsewhere else "controlPlane.install: true, or install Kthena v1.0.0",
        )


@probe("PF105", source="measured: two controllers leave a ModelServing with pods that both count")
def there_is_one_control_plane(situation: Situation) -> Iterator[Problem]:
    """Two controllers that work at a time leave ModelServings stuck, and what Helm has installed can't be taken over: a
    Deployment's selector is immutable."""
    control_plane = situation.plan.stack.cluster.control_plane
    if not control_plane.install:
        return
    for item in situation.survey.control_planes or ():
        namespace = item["metadata"]["namespace"]
        is_other = namespace != control_plane.namespace and item["metadata"]["name"] == CONTROLLER_NAME
        # other stacks' are ours too, and are refused with another remedy
        if is_other or (namespace == control_plane.namespace and not _is_ours(item)):
            yield Problem(
                _INSTALL,
                f"true, and the cluster has {_named(item)} in namespace {namespace} already",
                f"install: false with namespace: {namespace}; or uninstall that one before, and keep its CRDs",
            )


@probe("PF106", source="Kthena v1.0.0 CRD of AutoscalingPolicy")
def the_autoscaler_knows_what_is_declared(situation: Situation) -> Iterator[Problem]:
    """Releases differ in how they declare what is scaled."""
    schema = situation.survey.policy_schema
    for version in situation.plan.versions if schema is not None else ():
        rendered = situation.plan.rendered[version.deployment.name]
        policies = [one.autoscaling_policy for one in rendered.servings if one.autoscaling_policy]
        for field in sorted({key for policy in policies for key in policy["spec"]} - (schema or {}).get("properties", {}).keys()):
            yield Problem(
                in_deployment(version.deployment, "autoscaling"),
                f"the AutoscalingPolicy of the cluster's Kthena has no {field}",
                _upgrade(),
            )


_MONITORING = (paths.pod_monitors, paths.prometheus_rules)


def missing_kinds(plan: Plan, survey: Survey) -> frozenset[str]:
    """Kinds of what stands beside a deployment that the stack uses, and that the cluster does not know."""
    served = survey.served.get(PROMETHEUS_OPERATOR, ())
    wanted = _MONITORING if plan.stack.cluster.monitoring is not None else ()
    return frozenset(one.kind for one in wanted if one.plural not in served)


@probe("PF120", source="prometheus-operator: PodMonitor, PrometheusRule")
def the_prometheus_operator_is_there_if_it_is_declared(situation: Situation) -> Iterator[Problem]:
    """Monitors and alerts are objects of its kinds."""
    if situation.plan.stack.cluster.monitoring is not None:
        yield from _missing(
            situation,
            PROMETHEUS_OPERATOR,
            tuple(one.plural for one in _MONITORING),
            ("cluster", "monitoring"),
            "leave monitoring out, or install the Prometheus operator's CRDs",
        )


@probe("PF121", source="cert-manager: Issuer, Certificate")
def cert_manager_is_there_if_it_is_declared(situation: Situation) -> Iterator[Problem]:
    """The webhooks' certificates are objects of its kinds; without them the webhooks never serve."""
    control_plane = situation.plan.stack.cluster.control_plane
    if control_plane.install and control_plane.certificates == "cert-manager":
        path = (*_CONTROL_PLANE, "certificates")
        yield from _missing(situation, CERT_MANAGER, ("issuers", "certificates"), path, "auto, or install cert-manager")


def _missing(situation: Situation, group: str, kinds: tuple[str, ...], path: Path, remedy: str) -> Iterator[Problem]:
    missing = [kind for kind in kinds if kind not in situation.survey.served.get(group, ())]
    if missing:
        yield Problem(path, f"the cluster does not know {', '.join(missing)} of {group}", remedy)


def _upgrade() -> str:
    return "upgrade it to v1.0.0 with its CRDs (Helm does not upgrade those), or a cluster that has it"


def _here(situation: Situation) -> list[Object]:
    namespace = situation.plan.stack.cluster.control_plane.namespace
    return [item for item in situation.survey.control_planes or () if item["metadata"]["namespace"] == namespace]


def _is_ours(item: Object) -> bool:
    """Whether it was made by a stack, or is of YAML that `pd render` has written: an `up` takes that over as it is."""
    labels = item["metadata"].get("labels") or {}
    return annotation(item, MANAGER) is not None or labels.items() >= MANAGED.items()


def _named(item: Object) -> str:
    return str(item["metadata"]["name"])


def _image(item: Object) -> str:
    return str(item["spec"]["template"]["spec"]["containers"][0].get("image"))


def _release(item: Object) -> tuple[int, ...] | None:
    """By the tag of its image, or else by the label that charts write; None where neither is a release."""
    tag = _image(item).partition("@")[0].rpartition("/")[2].partition(":")[2]
    label = (item["metadata"].get("labels") or {}).get("app.kubernetes.io/version", "")
    found = _RELEASE.fullmatch(tag) or _RELEASE.fullmatch(label)
    return tuple(map(int, found.groups()[:3])) if found else None


def _parsed(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _written(release: tuple[int, ...]) -> str:
    return f"v{'.'.join(map(str, release))}"
