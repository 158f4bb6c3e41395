"""KthenaControlPlane under mocks."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest

from components import KthenaControlPlane, KthenaControlPlaneArgs
from rules import read
from tests import stacks
from tests.component.conftest import Deploy


def build(**control_plane: Any) -> KthenaControlPlane:
    stack = read(stacks.config(cluster={"controlPlane": control_plane}))
    return KthenaControlPlane("kthena", KthenaControlPlaneArgs(stack.cluster))


def router_url(deploy: Deploy, status: dict[str, Any] | None = None, **control_plane: Any) -> str:
    urls: list[str] = []

    def build_and_collect() -> pulumi.Output[None]:
        return build(**control_plane).router_url.apply(urls.append)

    deploy(build_and_collect, status=status)
    return urls[0]


def test_controller_and_router_start_after_everything_that_they_use(deploy: Deploy) -> None:
    _, recording = deploy(build)
    used = {
        resource.urn
        for resource in recording.resources
        if resource.kind in ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap")
    }
    assert len(used) == 8
    for deployment in recording.of_kind("Deployment"):
        assert used <= deployment.dependencies


def test_another_router_configuration_is_another_config_map_so_that_the_router_restarts(deploy: Deploy) -> None:
    def mounted(**router: Any) -> str:
        _, recording = deploy(lambda: build(router=router))
        router_deployment = next(item for item in recording.of_kind("Deployment") if item.name == "kthena-kthena-router")
        name = str(router_deployment.inputs["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"])
        assert name == recording.one("ConfigMap").inputs["metadata"]["name"]
        return name

    assert mounted() != mounted(scheduler={"prefixCache": {"topKMatches": 6}})
    assert mounted() == mounted()


def test_the_router_is_reached_by_its_service_name_inside_the_cluster(deploy: Deploy) -> None:
    assert router_url(deploy, router={"port": 8123}) == "http://kthena-router.kthena-system.svc:8123"


def test_a_router_that_is_there_already_is_reached_by_its_own_services_port_and_address(deploy: Deploy) -> None:
    status = {"Service": {"loadBalancer": {"ingress": [{"hostname": "models.example"}]}}}
    assert router_url(deploy, status, install=False) == "http://models.example:8080"


def test_the_router_is_reached_by_the_address_that_its_load_balancer_gave(deploy: Deploy) -> None:
    status = {"Service": {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}}
    assert router_url(deploy, status, router={"serviceType": "LoadBalancer"}) == "http://203.0.113.7:8080"


@pytest.mark.parametrize("install", [True, False])
def test_a_declared_router_url_is_taken_as_it_is(deploy: Deploy, install: bool) -> None:  # noqa: FBT001
    declared = "https://models.example"
    assert router_url(deploy, install=install, routerUrl=declared) == declared
