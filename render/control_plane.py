"""Kthena's controller and router: what their chart makes of the declaration, mended where the chart of v1.0.0 is wrong.

What the chart has values for goes through them (:func:`chart_values`); each mend has its reason where it stands. RBAC, flags,
files and environment are those of Kthena v1.0.0: ``cmd/*/main.go``, ``pkg/controller``, ``pkg/kthena-router``, ``pkg/webhook``.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from models.base import dump
from models.cluster import Cluster, Controller, ControlPlane, Router
from models.quantities import seconds
from render.chart import ChartError
from render.names import CONTROLLER_NAME, DEPLOYMENT_LABEL, MANAGED, ROUTER_NAME, config_map_name, labels

Object = dict[str, Any]

CRD = "CustomResourceDefinition"
WEBHOOK_PORT = 8443
"""of the webhooks' Services: the API server may call it where who serves may not listen below 1024"""
VERSION_LABEL = "app.kubernetes.io/version"

_ORDER = {CRD: 0, "Namespace": 1, "ValidatingWebhookConfiguration": 3, "MutatingWebhookConfiguration": 3, "Deployment": 4}
"""of creation, by kind; 2 is everything that a Deployment uses. From the webhooks' configurations on, until the pods of the
Deployments serve, the API server takes no object of Kthena's: so they come as late as can be."""
_LAST = 5
"""the router's own Service: what waits for it finds a router"""

_READ = ("get", "list", "watch")
_WORKLOAD = "workload.serving.volcano.sh"
_NETWORKING = "networking.serving.volcano.sh"
_WEBHOOKS = "admissionregistration.k8s.io"
_TLS_DIRECTORY = "/etc/router-tls"

Rule = tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""API group, resources, verbs, names of the only objects"""

# The chart's rules less what nothing in the code of v1.0.0 asks for: all secrets, config maps, leases and webhook configurations
# of the cluster (the few that are used have a Role, or their names), events' update (recorders create and patch), that of
# LeaderWorkerSets (only their status is written), "apiresources", which is no resource. One CRD is watched (podgroupmanager).
_CONTROLLER_RULES: tuple[Rule, ...] = (
    ("", ("pods",), (*_READ, "create", "delete", "deletecollection"), ()),
    ("", ("services",), (*_READ, "create", "delete"), ()),
    ("", ("events",), ("create", "patch"), ()),
    ("apps", ("controllerrevisions",), ("get", "list", "create", "update", "delete"), ()),
    ("apiextensions.k8s.io", ("customresourcedefinitions",), _READ, ("podgroups.scheduling.volcano.sh",)),
    ("scheduling.volcano.sh", ("podgroups",), (*_READ, "create", "update", "delete"), ()),
    ("leaderworkerset.x-k8s.io", ("leaderworkersets",), _READ, ()),
    ("leaderworkerset.x-k8s.io", ("leaderworkersets/status",), ("update",), ()),
    (_WORKLOAD, ("modelservings",), (*_READ, "create", "update", "patch"), ()),
    (_WORKLOAD, ("autoscalingpolicies", "modelboosters"), _READ, ()),
    (_WORKLOAD, ("modelservings/status", "autoscalingpolicies/status", "modelboosters/status"), ("update",), ()),
    (_NETWORKING, ("modelservers", "modelroutes"), (*_READ, "create", "update"), ()),
)
# Without the Gateway API the router watches these three and writes nothing (cmd/kthena-router/app/controller.go).
_ROUTER_RULES: tuple[Rule, ...] = (
    ("", ("pods",), _READ, ()),
    (_NETWORKING, ("modelservers", "modelroutes"), _READ, ()),
)


def chart_values(cluster: Cluster) -> dict[str, Any]:
    """The chart's values. Numbers are texts: Helm writes 1000000 as 1e+06, which the programs then don't take."""
    control_plane = cluster.control_plane
    controller, router = control_plane.controller, control_plane.router
    release = {"tag": f"v{control_plane.version}"}
    return {
        "global": {"certManagementMode": control_plane.certificates},
        "workload": {
            "controllerManager": {
                "replicas": str(controller.replicas),
                "image": {"args": _controller_flags(controller)},
                "downloaderImage": release,
                "runtimeImage": release,
                **_common(controller),
            }
        },
        "networking": {
            "kthenaRouter": {
                "replicas": str(router.replicas),
                "port": str(router.port),
                "debugPort": str(router.debug_port),
                "webhook": {"port": str(router.webhook_port), "servicePort": str(WEBHOOK_PORT)},
                "accessLog": {"enabled": router.access_log.enabled, "format": router.access_log.format},
                "fairness": _queue(router.fairness),
                "sessionBoost": _queue(router.session_boost),
                "drainTimeout": router.drain_timeout,
                # longer than the drain, so that running requests end before the kubelet kills
                "terminationGracePeriodSeconds": str(math.ceil(seconds(router.drain_timeout)) + 30),
                **_common(router),
            }
        },
    }


def render_control_plane(cluster: Cluster, chart: Iterable[Mapping[str, Any]]) -> tuple[Object, ...]:
    """Objects of the control plane in the order in which they are created; none where it is not installed.

    Args:
        cluster: what is declared
        chart: the chart's objects, templated with :func:`chart_values`; those that nobody here knows are taken as they are

    Raises:
        ChartError: it is another version's, or lacks an object that is mended here.
    """
    control_plane = cluster.control_plane
    if not control_plane.install:
        return ()
    objects = {(item["kind"], item["metadata"]["name"]): copy.deepcopy(dict(item)) for item in chart}
    # Credentials of S3, empty: nothing in Kthena reads this Secret, and Pulumi would keep it in its state.
    objects.pop(("Secret", "downloader-secrets"), None)
    _require(control_plane, objects)
    configuration = _router_configuration_map(control_plane)
    mends: dict[tuple[str, str], Callable[[Object], None]] = {
        ("ClusterRole", CONTROLLER_NAME): lambda item: item.update(rules=_rules(_cluster_rules(control_plane, CONTROLLER_NAME))),
        ("ClusterRole", ROUTER_NAME): lambda item: item.update(rules=_rules(_cluster_rules(control_plane, ROUTER_NAME))),
        ("ConfigMap", "model-booster-controller-config"): lambda item: item.update(data=_released(control_plane, item["data"])),
        ("Deployment", CONTROLLER_NAME): lambda item: _mend_controller(control_plane, item),
        ("Deployment", ROUTER_NAME): lambda item: _mend_router(control_plane, item, configuration["metadata"]["name"]),
        ("Service", ROUTER_NAME): lambda item: _mend_router_service(control_plane.router, item),
        ("Service", f"{ROUTER_NAME}-webhook"): lambda item: _mend_webhook_service(item, ROUTER_NAME),
        ("Service", f"{CONTROLLER_NAME}-webhook"): lambda item: _mend_webhook_service(item, CONTROLLER_NAME),
    }
    del objects["ConfigMap", f"{ROUTER_NAME}-config"]
    for key, item in objects.items():
        if key[0] == CRD:
            continue
        _label(item)
        if key[0].endswith("WebhookConfiguration"):
            for webhook in item["webhooks"]:
                webhook["clientConfig"]["service"]["port"] = WEBHOOK_PORT  # the chart has 443 for those of the controller
        if key in mends:
            mends[key](item)
    rendered = [render_namespace(control_plane.namespace), *objects.values(), configuration, *_local_roles(control_plane)]
    return tuple(sorted(rendered, key=_place))


def control_plane_identity(cluster: Cluster) -> tuple[Object, ...]:
    """Kind and name of the objects that are there once in a cluster for each control plane; none where it is not installed."""
    control_plane = cluster.control_plane
    if not control_plane.install:
        return ()
    deployments = (
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _metadata(control_plane, name)} for name in _OWNERS
    )
    roles = (_of("ClusterRole", {"name": name}) for name in _OWNERS)
    return (render_namespace(control_plane.namespace), *roles, *deployments)


def render_namespace(name: str) -> Object:
    """A namespace that the stack owns."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels(name)}}


def router_configuration(router: Router) -> dict[str, Any]:
    """The router's configuration file."""
    scheduler = router.scheduler
    configuration = {
        "scheduler": {
            "pluginConfig": [
                {"name": "least-request", "args": dump(scheduler.least_request)},
                {"name": "least-latency", "args": {"TTFTTPOTWeightFactor": scheduler.ttft_tpot_weight_factor}},
                {"name": "prefix-cache", "args": dump(scheduler.prefix_cache)},
            ],
            "plugins": {
                "Filter": {"enabled": list(scheduler.filters)},
                "Score": {"enabled": [{"name": name, "weight": weight} for name, weight in scheduler.score.items()]},
            },
        }
    }
    if router.authentication:
        configuration["auth"] = dump(router.authentication)
    return configuration


_OWNERS = (CONTROLLER_NAME, ROUTER_NAME)


def _common(part: Controller | Router) -> dict[str, Any]:
    """What controller and router have in common."""
    client = {"kubeAPIQPS": str(part.api_client.qps), "kubeAPIBurst": str(part.api_client.burst)}
    return {"resource": dump(part.resources), **client}


def _controller_flags(controller: Controller) -> list[str]:
    flags = [f"--v={controller.log_level}", f"--workers={controller.workers}", f"--port={controller.webhook_port}"]
    # Two that work at a time leave ModelServings stuck (measured), and the chart's replicas elect no leader.
    return [*flags, "--leader-elect"] if controller.replicas > 1 else flags


def _queue(declared: Any) -> dict[str, Any]:
    if declared is None:
        return {"enabled": False}
    return {"enabled": True} | {key: str(value) for key, value in dump(declared).items()}


def _require(control_plane: ControlPlane, objects: Mapping[tuple[str, str], Object]) -> None:
    """What is mended has to be there, and to be what the mends are for."""
    needed = [
        *(("Deployment", name) for name in _OWNERS),
        *(("ClusterRole", name) for name in _OWNERS),
        *(("Service", f"{name}-webhook") for name in _OWNERS),
        ("Service", ROUTER_NAME),
        ("ConfigMap", f"{ROUTER_NAME}-config"),
        (CRD, f"modelservings.{_WORKLOAD}"),
        (CRD, f"modelroutes.{_NETWORKING}"),
    ]
    lacking = [" ".join(key) for key in needed if key not in objects]
    if lacking:
        raise ChartError(f"the chart {control_plane.chart} is not Kthena's: it has no {', no '.join(lacking)}")
    versions = {str(objects["Deployment", name]["metadata"]["labels"].get(VERSION_LABEL)) for name in _OWNERS}
    if versions != {control_plane.version}:
        raise ChartError(
            f"the chart {control_plane.chart} is that of Kthena {', '.join(sorted(versions))}, not of {control_plane.version}"
        )


def _place(item: Object) -> int:
    is_router_service = (item["kind"], item["metadata"]["name"]) == ("Service", ROUTER_NAME)
    return _LAST if is_router_service else _ORDER.get(item["kind"], 2)


def _of(kind: str, metadata: dict[str, Any], **fields: Any) -> Object:
    """An RBAC object."""
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata, **fields}


def _metadata(control_plane: ControlPlane, name: str) -> dict[str, Any]:
    return {"name": name, "namespace": control_plane.namespace, "labels": labels(name)}


def _label(item: Object) -> None:
    """The chart's labels, and over them ours: whose it is, and that it is Pulumi that manages it."""
    metadata = item["metadata"]
    name = metadata["name"]
    owner = next((one for one in _OWNERS if name.startswith(one)), None)
    metadata["labels"] = (metadata.get("labels") or {}) | ({DEPLOYMENT_LABEL: owner} if owner else {}) | MANAGED


def _rules(rules: Sequence[Rule]) -> list[Object]:
    return [
        {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
        | ({"resourceNames": list(names)} if names else {})
        for group, resources, verbs, names in rules
    ]


def _cluster_rules(control_plane: ControlPlane, owner: str) -> tuple[Rule, ...]:
    rules = _CONTROLLER_RULES if owner == CONTROLLER_NAME else _ROUTER_RULES
    if control_plane.certificates != "auto":
        return rules  # who finds its certificate as a file writes no CA bundle (cmd/*/main.go)
    kinds = ("validating", "mutating") if owner == CONTROLLER_NAME else ("validating",)
    own = ((_WEBHOOKS, (f"{kind}webhookconfigurations",), ("get", "update"), (f"{owner}-{kind}-webhook",)) for kind in kinds)
    return (*rules, *own)


def _local_roles(control_plane: ControlPlane) -> list[Object]:
    """Role and RoleBinding of controller and router in their own namespace."""
    controller: list[Rule] = [("", ("configmaps",), ("get",), ("model-booster-controller-config",))]
    if control_plane.controller.replicas > 1:
        leases = "coordination.k8s.io", ("leases",)
        # what is created has no name yet that a rule could ask for
        controller += [(*leases, ("create",), ()), (*leases, ("get", "update"), ("lease.kthena.controller-manager",))]
    by_owner: dict[str, list[Rule]] = {CONTROLLER_NAME: controller, ROUTER_NAME: []}
    found = []
    for owner, rules in by_owner.items():
        if control_plane.certificates == "auto":
            secrets = "", ("secrets",)
            rules += [(*secrets, ("create",), ()), (*secrets, ("get",), (f"{owner}-webhook-certs",))]
        if rules:
            metadata = _metadata(control_plane, owner)
            found.append(_of("Role", metadata, rules=_rules(rules)))
            found.append(_of("RoleBinding", metadata, **_binding("Role", owner, control_plane.namespace)))
    return found


def _binding(kind: str, owner: str, namespace: str) -> dict[str, Any]:
    return {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": owner},
        "subjects": [{"kind": "ServiceAccount", "name": owner, "namespace": namespace}],
    }


def _released(control_plane: ControlPlane, data: Mapping[str, str]) -> dict[str, str]:
    return {key: _released_image(control_plane, image) for key, image in data.items()}


def _released_image(control_plane: ControlPlane, image: str) -> str:
    """The chart's image; for "latest", which the chart in Kthena's repository has, that of the release."""
    return image.removesuffix(":latest") + f":v{control_plane.version}" if image.endswith(":latest") else image


def _router_configuration_map(control_plane: ControlPlane) -> Object:
    # JSON is YAML. The router reads it once, so another content must be another pod: the name carries its hash.
    data = {"routerConfiguration": json.dumps(router_configuration(control_plane.router), indent=2)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(control_plane, config_map_name(f"{ROUTER_NAME}-config", data)),
        "immutable": True,
        "data": data,
    }


def _probe(port: str, path: str, scheme: str, **timing: int) -> Object:
    return {"httpGet": {"path": path, "port": port, "scheme": scheme}, "timeoutSeconds": 5, **timing}


def _started() -> Object:
    """The webhook serves.

    Its certificate may be long in coming: the process makes it, and the kubelet then has to mount it. Without a probe for the
    start the chart's liveness probe ends the controller meanwhile (kthena#1319), and the router is ready before its webhook is.
    """
    return _probe("webhook", "/healthz", "HTTPS", periodSeconds=2, failureThreshold=60)


def _mend_workload(control_plane: ControlPlane, item: Object, strategy: Object, image: str | None) -> Object:
    """What both Deployments need; returns the container."""
    name, spec = item["metadata"]["name"], item["spec"]
    spec["strategy"] = strategy
    # Immutable, and so what it always was. The pods have the chart's labels too, by which policies and monitors select them.
    spec["selector"] = {"matchLabels": {DEPLOYMENT_LABEL: name}}
    template = spec["template"]
    template["metadata"]["labels"] |= labels(name)
    (container,) = template["spec"]["containers"]
    container["image"] = image or _released_image(control_plane, container["image"])
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    if control_plane.certificates == "cert-manager":
        # The pod waits for the Secret: without it the process would make a certificate of its own under the same name.
        for volume in template["spec"]["volumes"]:
            volume.get("secret", {}).pop("optional", None)
    return container  # type: ignore[no-any-return]


def _mend_controller(control_plane: ControlPlane, item: Object) -> None:
    # The old one ends before the new one starts: two at a time leave ModelServings stuck, and the old one may elect no leader.
    container = _mend_workload(control_plane, item, {"type": "Recreate"}, control_plane.controller.image)
    container["ports"] = [{"name": "webhook", "containerPort": control_plane.controller.webhook_port}]
    container["startupProbe"] = _started()
    for probe in ("livenessProbe", "readinessProbe"):
        container[probe] = _probe("webhook", "/healthz", "HTTPS", periodSeconds=10)


def _mend_router(control_plane: ControlPlane, item: Object, configuration: str) -> None:
    router = control_plane.router
    surge = router.max_surge
    # Written out and never another type: the API server refuses a change of type while its defaults for this one stay.
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": 1 - surge}}
    container = _mend_workload(control_plane, item, strategy, router.image)
    container["args"].append(f"--v={router.log_level}")
    pod = item["spec"]["template"]["spec"]
    for volume in pod["volumes"]:
        if volume.get("configMap", {}).get("name") == f"{ROUTER_NAME}-config":
            volume["configMap"]["name"] = configuration
    if router.tls:
        # The chart does so with cert-manager only, mounts it where the webhook's certificate is, and looks for it elsewhere.
        container["args"] += [f"--tls-cert={_TLS_DIRECTORY}/tls.crt", f"--tls-key={_TLS_DIRECTORY}/tls.key"]
        container["volumeMounts"].append({"name": "tls", "mountPath": _TLS_DIRECTORY, "readOnly": True})
        pod["volumes"].append({"name": "tls", "secret": {"secretName": router.tls.secret}})
    scheme = "HTTPS" if router.tls else "HTTP"
    container["startupProbe"] = _started()
    container["livenessProbe"] = _probe("http", "/healthz", scheme, periodSeconds=5)
    # not /healthz, as the chart has it: that is so before the router knows any route or pod
    container["readinessProbe"] = _probe("http", "/readyz", scheme, periodSeconds=5)


def _mend_router_service(router: Router, item: Object) -> None:
    item["spec"] |= {
        # the chart has LoadBalancer, for whose address `up` would wait where there is none to be had
        "type": router.service_type,
        "selector": {DEPLOYMENT_LABEL: ROUTER_NAME},
        "ports": [{"name": "http", "port": router.port, "targetPort": "http"}],
    }


def _mend_webhook_service(item: Object, owner: str) -> None:
    item["spec"] |= {
        "selector": {DEPLOYMENT_LABEL: owner},
        "ports": [{"name": "webhook", "port": WEBHOOK_PORT, "targetPort": "webhook"}],
    }
