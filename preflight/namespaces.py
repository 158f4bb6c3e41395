"""What stands in the namespaces of the deployments: what pods name, and the limits of what may be made there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from live import paths
from live.api import Object
from live.plan import Plan, Version
from live.pods import status_of
from live.references import Reference, pull_secrets, references
from live.servers import PODS, asked, sums, thousandths
from live.survey import Survey
from preflight.demand import Demand, by_key, demands
from preflight.probe import Situation, probe
from rules.finding import Path, Problem, in_deployment

_COMPUTE = ("cpu", "memory")


def missing_namespaces(plan: Plan, survey: Survey) -> frozenset[str]:
    """Namespaces that the stack uses, and that neither it nor anybody else has made."""
    absent = {one.name for one, found in survey.found.items() if one.kind == paths.namespaces and found is None}
    return frozenset(absent) - plan.made_namespaces


@probe("PF201", source="Kubernetes")
def namespaces_are_there(situation: Situation) -> Iterator[Problem]:
    """Nothing can be created in a namespace that is missing or is being deleted."""
    cluster = situation.plan.stack.cluster
    users: dict[str, Path] = dict.fromkeys(cluster.namespaces, ("cluster", "namespaces"))
    if cluster.control_plane.install:
        users[cluster.control_plane.namespace] = ("cluster", "controlPlane", "namespace")
    if cluster.monitoring and cluster.monitoring.dashboard_namespace:
        users.setdefault(cluster.monitoring.dashboard_namespace, ("cluster", "monitoring", "dashboardNamespace"))
    for deployment in situation.plan.stack.deployments.values():
        users.setdefault(deployment.namespace, in_deployment(deployment, "namespace"))
    missing = missing_namespaces(situation.plan, situation.survey)
    for name, path in users.items():
        now = situation.survey.found.get(Reference(paths.namespaces, "", name), {})
        if name in missing:
            remedy = f"add it to kthena-pd:cluster.namespaces, or: kubectl create namespace {name}"
            yield Problem(path, f"there is no namespace {name}", remedy)
        elif now and status_of(now).get("phase") == "Terminating":
            yield Problem(path, f"namespace {name} is being deleted", "wait until it is gone, or another namespace")


@probe("PF202", source="Kubernetes pods")
def what_the_pods_name_is_there(situation: Situation) -> Iterator[Problem]:
    """A pod waits for a Secret, a ConfigMap or a claim for ever, and is not even made without its service account or class."""
    tls, control_plane = situation.plan.stack.cluster.control_plane.router.tls, situation.plan.stack.cluster.control_plane
    if tls:
        secret = Reference(paths.secrets, control_plane.namespace, tls.secret)
        if situation.survey.found.get(secret, {}) is None:
            path: Path = ("cluster", "controlPlane", "router", "tls", "secret")
            yield Problem(path, f"there is no {secret}", _creation(situation, secret))
    for version in situation.plan.versions:
        for _, spec in version.pod_specs:
            for reference in references(spec, version.deployment.namespace):
                if situation.survey.found.get(reference, {}) is None:
                    at = declared_at(version, reference)
                    yield Problem(at, f"there is no {reference}", _creation(situation, reference))


@probe("PF203", source="Kubernetes: imagePullSecrets", severity="warning")
def pull_secrets_are_there(situation: Situation) -> Iterator[Problem]:
    """The kubelet pulls without those that are missing, which a private registry refuses."""
    for version in situation.plan.versions:
        for _, spec in version.pod_specs:
            for reference in pull_secrets(spec, version.deployment.namespace):
                if situation.survey.found.get(reference, {}) is None:
                    yield Problem(in_deployment(version.deployment), f"there is no {reference}", _creation(situation, reference))


@probe("PF210", source="Kubernetes: ResourceQuota")
def quotas_leave_room(situation: Situation) -> Iterator[Problem]:
    """The API server refuses a pod beyond its namespace's quota, and Kthena's controller tries again and again."""
    needs = _still_to_be_made(situation)
    for namespace, needed in needs.items():
        path = _first_in(situation, namespace)
        for quota in situation.survey.quotas.get(namespace, ()):
            for key, hard, used in _limits_of(quota):
                more = needed[_resource_of(key)]
                if more and used + more > hard:
                    yield Problem(
                        path,
                        f"the pods that are not there yet need {_amount(more, key)} of {key}; ResourceQuota {_name(quota)} of "
                        f"namespace {namespace} leaves {_amount(max(hard - used, 0), key)} of {_amount(hard, key)}",
                        "a larger quota, less parallelism, or fewer instances",
                    )


@probe("PF211", source="Kubernetes: ResourceQuota, LimitRange")
def containers_declare_what_a_quota_counts(situation: Situation) -> Iterator[Problem]:
    """In a namespace with a quota of CPU or memory each container must say what it takes, unless a LimitRange does."""
    for demand in demands(situation):
        given = _defaults(situation.survey.limits.get(demand.namespace, ()))
        for quota in situation.survey.quotas.get(demand.namespace, ()):
            for key, _, _ in _limits_of(quota):
                kind, resource = _resource_of(key)
                if resource not in _COMPUTE:
                    continue
                for container in (*demand.spec.get("initContainers", ()), *demand.spec["containers"]):
                    if resource not in asked(container, kind) and resource not in given[kind]:
                        yield Problem(
                            in_deployment(demand.version.deployment, demand.role, "podTemplate"),
                            f"container {container['name']} has no {kind} of {resource}, which ResourceQuota {_name(quota)} of "
                            f"namespace {demand.namespace} wants of each",
                            f"declare its resources in podTemplate.spec, or a LimitRange with a default of {resource}",
                        )


@probe("PF212", source="Kubernetes: LimitRange")
def pods_keep_within_limit_ranges(situation: Situation) -> Iterator[Problem]:
    """The API server refuses a pod or a container that is larger, or smaller, than its namespace's LimitRange has it."""
    for demand in demands(situation):
        for item in situation.survey.limits.get(demand.namespace, ()):
            for limit in item["spec"].get("limits") or ():
                yield from _beyond(demand, limit, f"LimitRange {_name(item)} of namespace {demand.namespace}")


def _beyond(demand: Demand, limit: Mapping[str, Any], whose: str) -> Iterator[Problem]:
    most, least = thousandths(limit.get("max") or {}), thousandths(limit.get("min") or {})
    sized = {
        "Pod": [("a pod", sums(demand.spec, "requests"), sums(demand.spec, "limits"))],
        "Container": [
            (f"container {one['name']}", asked(one, "requests"), asked(one, "limits")) for one in demand.spec["containers"]
        ],
    }.get(limit.get("type", ""), [])
    path = in_deployment(demand.version.deployment, demand.role, "resources")
    for what, requests, limits in sized:
        for resource, amount in most.items():
            if max(requests[resource], limits[resource]) > amount:
                given = _amount(max(requests[resource], limits[resource]), resource)
                allowed = _amount(amount, resource)
                yield Problem(path, f"{what} of {given} {resource}; {whose} allows {allowed}", f"at most {allowed} {resource}")
        for resource, amount in least.items():
            if resource in requests and requests[resource] < amount:
                given, wanted = _amount(requests[resource], resource), _amount(amount, resource)
                yield Problem(path, f"{what} of {given} {resource}; {whose} wants {wanted}", f"at least {wanted} {resource}")


Counted = tuple[Literal["requests", "limits"], str]
"""which of the two, and the resource"""


def _still_to_be_made(situation: Situation) -> Mapping[str, Counter[Counted]]:
    """Namespace -> what pods take that are declared and not there, waiting or terminating: a quota counts those too."""
    if situation.survey.pods is None:
        return {}
    own = by_key(situation.survey.pods)
    needed: defaultdict[str, Counter[Counted]] = defaultdict(Counter)
    for demand in demands(situation):
        there = len(own.get(demand.key, ()))
        missing = max(demand.wanted(there) - there, 0)
        of_pod: dict[Counted, int] = {("requests", name): amount for name, amount in demand.footprint.amounts.items()}
        of_pod |= {("limits", name): amount for name, amount in sums(demand.spec, "limits").items()}
        needed[demand.namespace].update({key: amount * missing for key, amount in of_pod.items()})
    return needed


def _limits_of(quota: Object) -> Iterator[tuple[str, int, int]]:
    """What a quota of all pods counts: its key, the limit and what is used, in thousandths."""
    if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
        return  # of some pods only
    hard, used = thousandths(quota["spec"].get("hard") or {}), thousandths(status_of(quota).get("used") or {})
    for key, most in hard.items():
        yield key, most, used.get(key, 0)


def _resource_of(key: str) -> Counted:
    """``limits.cpu``, ``requests.huawei.com/Ascend910``, ``memory``, ``count/pods``: what is counted."""
    kind, _, resource = key.partition(".")
    if kind == "limits" and resource:
        return "limits", resource
    if kind == "requests" and resource:
        return "requests", resource
    return "requests", PODS if key == f"count/{PODS}" else key


def _defaults(limits: tuple[Object, ...]) -> Mapping[str, frozenset[str]]:
    """Resources that a LimitRange gives to containers without them; a maximum is a default too."""
    of_containers = [one for item in limits for one in item["spec"].get("limits") or () if one.get("type") == "Container"]
    given = frozenset(name for one in of_containers for key in ("default", "max") for name in one.get(key) or ())
    requested = frozenset(name for one in of_containers for name in one.get("defaultRequest") or ())
    return {"limits": given, "requests": given | requested}


def declared_at(version: Version, reference: Reference) -> Path:
    """Where the stack names an object: the weights' claim and credentials, or somewhere in a pod template."""
    deployment, weights = version.deployment, version.deployment.model.weights
    download = weights.download
    if reference.kind == paths.claims and weights.claim and weights.claim.name == reference.name:
        return in_deployment(deployment, "model", "weights", "claim", "name")
    if reference.kind == paths.secrets and download and download.credentials == reference.name:
        return in_deployment(deployment, "model", "weights", "download", "credentials")
    if reference.kind == paths.claims and download:
        claim = download.cache.claim
        key = ("cache", "claim", "name") if claim and claim.name == reference.name else ("source",)
        return in_deployment(deployment, "model", "weights", "download", *key)
    return in_deployment(deployment)


def _creation(situation: Situation, reference: Reference) -> str:
    remedy = "create it before, or name one that there is"
    if reference.namespace in situation.plan.made_namespaces:
        return f"{remedy}; the stack takes over a namespace {reference.namespace} that is there already"
    return remedy


def _first_in(situation: Situation, namespace: str) -> Path:
    found = next(one for one in situation.plan.stack.deployments.values() if one.namespace == namespace)
    return in_deployment(found, "namespace")


def _amount(thousandths: int, key: str) -> str:
    number = thousandths / 1000
    return f"{number / 2**30:g}Gi" if key.endswith("memory") else f"{number:g}"


def _name(item: Object) -> str:
    return str(item["metadata"]["name"])
