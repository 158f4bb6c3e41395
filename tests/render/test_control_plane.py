"""What becomes of Kthena's chart: each mend, and the settings that are laid over it."""

from __future__ import annotations

from typing import Any

import pytest

from models.cluster import Cluster
from render import ChartError, render_control_plane
from render.control_plane import chart_values
from rules import read
from tests import chart, stacks

Object = dict[str, Any]


def cluster(**control_plane: Any) -> Cluster:
    return read(stacks.config(cluster={"controlPlane": control_plane})).cluster


def rendered(**control_plane: Any) -> dict[tuple[str, str], Object]:
    objects = render_control_plane(cluster(**control_plane), chart.objects())
    found = {(item["kind"], item["metadata"]["name"]): item for item in objects}
    assert len(found) == len(objects)
    return found


def container(name: str, **control_plane: Any) -> Object:
    (found,) = rendered(**control_plane)["Deployment", name]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def allowed(item: Object) -> set[tuple[str, str, str]]:
    """Resource, verb and the only object (or "") of each permission."""
    return {
        (resource, verb, name)
        for rule in item["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def test_kinds_come_first_and_what_waits_for_the_webhooks_comes_last() -> None:
    kinds = [kind for kind, _ in rendered()]
    first = ["CustomResourceDefinition"] * 5 + ["Namespace"]
    assert kinds[: len(first)] == first
    assert kinds[-5:] == ["ValidatingWebhookConfiguration"] * 2 + ["Deployment"] * 2 + ["Service"]
    assert list(rendered())[-1] == ("Service", chart.ROUTER)


def test_nothing_is_rendered_of_a_control_plane_that_somebody_else_installs() -> None:
    assert render_control_plane(cluster(install=False), ()) == ()


def test_the_chart_itself_is_left_as_it_is() -> None:
    given = chart.objects()
    render_control_plane(cluster(), given)
    assert given == chart.objects()


def test_all_but_the_kinds_are_found_by_the_projects_label() -> None:
    found = {key: item for key, item in rendered().items() if key[0] != "CustomResourceDefinition"}
    assert {item["metadata"]["labels"]["app.kubernetes.io/managed-by"] for item in found.values()} == {"kthena-pd"}


def test_what_a_fork_of_the_chart_adds_is_kept() -> None:
    addition = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "registry", "namespace": chart.NAMESPACE}, "data": {}}
    objects = render_control_plane(cluster(), [*chart.objects(), addition])
    assert [item["metadata"]["labels"] for item in objects if item["metadata"]["name"] == "registry"] == [
        {"app.kubernetes.io/managed-by": "kthena-pd"}
    ]


def test_the_secret_of_credentials_that_nobody_reads_never_reaches_pulumis_state() -> None:
    assert [name for kind, name in rendered() if kind == "Secret"] == []


@pytest.mark.parametrize(
    ("objects", "problem"),
    [
        (chart.objects()[:-1], f"it has no Service {chart.ROUTER}"),
        ([], f"it has no Deployment {chart.CONTROLLER}"),
        (chart.objects(version="1.1.0"), r"is that of Kthena 1\.1\.0, not of 1\.0\.0"),
    ],
)
def test_a_chart_that_is_not_kthenas_of_this_version_is_refused(objects: list[Object], problem: str) -> None:
    with pytest.raises(ChartError, match=problem):
        render_control_plane(cluster(), objects)


@pytest.mark.parametrize("name", [chart.CONTROLLER, chart.ROUTER])
def test_a_deployment_selects_as_it_always_did_and_its_pods_can_be_found_by_component(name: str) -> None:
    spec = rendered()["Deployment", name]["spec"]
    assert spec["selector"] == {"matchLabels": {"app.kubernetes.io/name": name}}
    labels = spec["template"]["metadata"]["labels"]
    assert labels.items() >= spec["selector"]["matchLabels"].items()
    assert labels["app.kubernetes.io/component"] == name


@pytest.mark.parametrize("service", [chart.ROUTER, f"{chart.ROUTER}-webhook", f"{chart.CONTROLLER}-webhook"])
def test_a_service_leads_to_pods_and_to_a_port_that_they_have(service: str) -> None:
    objects = rendered(router={"port": 8123, "webhookPort": 8124}, controller={"webhookPort": 8125})
    spec = objects["Service", service]["spec"]
    pod = objects["Deployment", service.removesuffix("-webhook")]["spec"]["template"]
    assert pod["metadata"]["labels"].items() >= spec["selector"].items()
    assert {port["targetPort"] for port in spec["ports"]} <= {port["name"] for port in pod["spec"]["containers"][0]["ports"]}


def test_the_api_server_asks_webhooks_at_a_port_that_their_services_have() -> None:
    objects = rendered()
    asked = {
        (one["clientConfig"]["service"]["name"], one["clientConfig"]["service"]["port"])
        for (kind, _), item in objects.items()
        if kind.endswith("WebhookConfiguration")
        for one in item["webhooks"]
    }
    served = {
        (name, port["port"])
        for (kind, name), item in objects.items()
        if kind == "Service" and name.endswith("-webhook")
        for port in item["spec"]["ports"]
    }
    assert asked == served == {(f"{chart.ROUTER}-webhook", 8443), (f"{chart.CONTROLLER}-webhook", 8443)}


@pytest.mark.parametrize(("declared", "expected"), [({}, "ClusterIP"), ({"serviceType": "NodePort"}, "NodePort")])
def test_the_routers_service_has_a_load_balancer_only_if_that_is_declared(declared: Object, expected: str) -> None:
    assert rendered(router=declared)["Service", chart.ROUTER]["spec"]["type"] == expected


@pytest.mark.parametrize("name", [chart.CONTROLLER, chart.ROUTER])
def test_liveness_does_not_end_a_process_that_waits_for_its_certificate(name: str) -> None:
    probe = container(name)["startupProbe"]
    assert probe["httpGet"] == {"path": "/healthz", "port": "webhook", "scheme": "HTTPS"}
    # the process waits 30 s for its certificate, and the kubelet up to 90 s more until it has mounted it
    assert probe["failureThreshold"] * probe["periodSeconds"] >= 120


def test_the_router_is_ready_when_it_knows_routes_and_pods() -> None:
    assert container(chart.ROUTER)["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_a_router_with_tls_has_its_certificate_at_a_place_of_its_own_and_is_probed_by_https() -> None:
    found = container(chart.ROUTER, router={"tls": {"secret": "router-tls"}})
    mounts = {mount["name"]: mount["mountPath"] for mount in found["volumeMounts"]}
    assert len(set(mounts.values())) == len(mounts)
    assert f"--tls-cert={mounts['tls']}/tls.crt" in found["args"]
    assert f"--tls-key={mounts['tls']}/tls.key" in found["args"]
    assert {found[probe]["httpGet"]["scheme"] for probe in ("livenessProbe", "readinessProbe")} == {"HTTPS"}
    (volume,) = (
        volume
        for volume in rendered(router={"tls": {"secret": "router-tls"}})["Deployment", chart.ROUTER]["spec"]["template"]["spec"][
            "volumes"
        ]
        if volume["name"] == "tls"
    )
    assert volume["secret"] == {"secretName": "router-tls"}


def test_an_image_is_that_of_the_release_or_the_one_that_is_declared_also_by_digest() -> None:
    digest = f"mirror.example/router@sha256:{'0' * 64}"
    assert container(chart.ROUTER)["image"] == f"registry.example/{chart.ROUTER}:v1.0.0"
    assert container(chart.ROUTER, router={"image": digest})["image"] == digest
    data = rendered()["ConfigMap", "model-booster-controller-config"]["data"]
    assert data == {"model_serving_runtime_image": "registry.example/runtime:v1.0.0"}


def test_another_router_configuration_has_another_name_and_the_router_mounts_it() -> None:
    def mounted(**router: Any) -> str:
        objects = rendered(router=router)
        volumes = objects["Deployment", chart.ROUTER]["spec"]["template"]["spec"]["volumes"]
        (name,) = (volume["configMap"]["name"] for volume in volumes if "configMap" in volume)
        assert objects["ConfigMap", name]["immutable"]
        return str(name)

    authentication = {"issuer": "https://login.example", "jwksUri": "https://login.example/keys"}
    names = {mounted(), mounted(scheduler={"prefixCache": {"topKMatches": 6}}), mounted(authentication=authentication)}
    assert len(names) == 3
    assert mounted() in names


def test_neither_controller_nor_router_may_see_or_change_what_others_have_in_the_cluster() -> None:
    objects = rendered()
    for name in (chart.CONTROLLER, chart.ROUTER):
        cluster_wide = allowed(objects["ClusterRole", name])
        assert {resource for resource, _, _ in cluster_wide} & {"secrets", "configmaps", "leases"} == set()
        named = {(resource, name) for resource, _, name in cluster_wide if resource.endswith("webhookconfigurations")}
        assert named <= {(f"{kind}webhookconfigurations", f"{name}-{kind}-webhook") for kind in ("validating", "mutating")}
    writes = {verb for _, verb, _ in allowed(objects["ClusterRole", chart.ROUTER])} - {"get", "list", "watch"}
    assert writes == {"update"}  # of its own webhook configuration


def test_a_process_reads_the_secret_of_its_own_certificate_only() -> None:
    objects = rendered()
    for name in (chart.CONTROLLER, chart.ROUTER):
        secrets = {one for one in allowed(objects["Role", name]) if one[0] == "secrets"}
        assert secrets == {("secrets", "create", ""), ("secrets", "get", f"{name}-webhook-certs")}


def test_with_cert_manager_no_process_makes_a_certificate_and_pods_wait_for_theirs() -> None:
    objects = rendered(certificates="cert-manager")
    assert ("Role", chart.ROUTER) not in objects
    for name in (chart.CONTROLLER, chart.ROUTER):
        volumes = objects["Deployment", name]["spec"]["template"]["spec"]["volumes"]
        assert [volume["secret"] for volume in volumes if "secret" in volume] == [{"secretName": f"{name}-webhook-certs"}]
        asked = {
            resource for kind in ("ClusterRole", "Role") for resource, *_ in allowed(objects.get((kind, name), {"rules": []}))
        }
        assert {one for one in asked if one == "secrets" or one.endswith("webhookconfigurations")} == set()


def test_controllers_that_are_several_elect_one_and_may_do_so() -> None:
    def flags(**controller: Any) -> list[str]:
        values = chart_values(cluster(controller=controller))
        return list(values["workload"]["controllerManager"]["image"]["args"])

    assert "--leader-elect" not in flags()
    assert "--leader-elect" in flags(replicas=2)
    leases = {one for one in allowed(rendered(controller={"replicas": 2})["Role", chart.CONTROLLER]) if one[0] == "leases"}
    assert {verb for _, verb, _ in leases} == {"get", "create", "update"}
    assert not [one for one in allowed(rendered()["Role", chart.CONTROLLER]) if one[0] == "leases"]


def test_the_chart_gets_numbers_as_texts_for_helm_would_write_a_million_as_1e06() -> None:
    declared = {"router": {"sessionBoost": {"maxSessions": 1000000}}, "controller": {"apiClient": {"qps": 1000000}}}
    values = chart_values(cluster(**declared))
    assert values["networking"]["kthenaRouter"]["sessionBoost"]["maxSessions"] == "1000000"
    assert values["workload"]["controllerManager"]["kubeAPIQPS"] == "1000000"

    def numbers(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [one for item in value.values() for one in numbers(item)]
        return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []

    assert numbers(values) == []


def test_a_queue_of_the_router_is_on_only_where_it_is_declared() -> None:
    values = chart_values(cluster(router={"fairness": {"windowSize": "5m"}}))["networking"]["kthenaRouter"]
    assert (values["fairness"]["enabled"], values["fairness"]["windowSize"]) == (True, "5m")
    assert values["sessionBoost"] == {"enabled": False}
