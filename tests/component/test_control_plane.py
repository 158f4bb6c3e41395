"""KthenaControlPlane under mocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulumi
import pytest
from pulumi_kubernetes import Provider

from components import KthenaControlPlane, KthenaControlPlaneArgs, control_plane, template
from convergence.symptoms import Cause, NotConvergedError
from live import paths
from live.api import Api, ApiRefusedError
from models.cluster import Cluster, ControlPlane
from render import ChartError
from rules import read
from tests import chart, stacks
from tests.component.conftest import Deploy, Recording


def declared(**control_plane: Any) -> Cluster:
    return read(stacks.config(cluster={"controlPlane": control_plane})).cluster


def build(**control_plane: Any) -> KthenaControlPlane:
    return KthenaControlPlane("kthena", KthenaControlPlaneArgs(declared(**control_plane), chart.objects()))


def router_url(deploy: Deploy, status: dict[str, Any] | None = None, **control_plane: Any) -> str:
    urls: list[str] = []

    def build_and_collect() -> pulumi.Output[None]:
        return build(**control_plane).router_url.apply(urls.append)

    deploy(build_and_collect, status=status)
    return urls[0]


def urns(recording: Recording, *kinds: str) -> set[str]:
    return {resource.urn for kind in kinds for resource in recording.of_kind(kind)}


def test_controller_and_router_start_after_everything_that_they_use(deploy: Deploy) -> None:
    _, recording = deploy(build)
    used = urns(recording, "Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding")
    used |= urns(recording, "Role", "RoleBinding", "ConfigMap", "ValidatingWebhookConfiguration")
    assert len(used) == 1 + 4 * 2 + 2 + 2 + 2
    for deployment in recording.of_kind("Deployment"):
        assert used <= deployment.dependencies


class Kthena:
    """A cluster on which the webhooks answer, or don't, and that takes CRDs, or doesn't."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cause: Cause | None = None, refusal: str = "") -> None:
        self.cause, self.refusal = cause, refusal
        self.waited = 0
        self.kinds: dict[str, dict[str, Any]] = {}
        """path -> CRD as it was applied last"""
        monkeypatch.setattr(control_plane, "wait_for_control_plane", self.wait)
        monkeypatch.setattr(Api, "shared", self.shared)

    async def shared(self, _: str | None) -> Any:
        return self

    async def metadata(self, path: str) -> dict[str, Any] | None:
        return self.kinds.get(path)

    async def apply(self, declared: dict[str, Any], _manager: str) -> dict[str, Any]:
        if self.refusal:
            raise ApiRefusedError(403, self.refusal)
        established = {"conditions": [{"type": "Established", "status": "True"}]}
        self.kinds[paths.of(declared)] = {**declared, "status": established}
        return self.kinds[paths.of(declared)]

    async def wait(self, _api: Api, _control_plane: ControlPlane, **_: Any) -> bool:
        self.waited += 1
        if self.cause:
            raise NotConvergedError([self.cause])
        return True


def test_what_depends_on_the_control_plane_comes_once_its_webhooks_answer(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    kthena = Kthena(monkeypatch)
    _, recording = deploy(build, made=True)
    assert kthena.waited == 1
    # the last child, for which everybody waits who depends on the component
    last = next(resource for resource in recording.of_kind("Service") if resource.name == "kthena-kthena-router")
    assert urns(recording, "Deployment", "ValidatingWebhookConfiguration") <= last.dependencies


def test_nothing_that_depends_on_a_control_plane_whose_webhooks_do_not_answer_is_registered(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    Kthena(monkeypatch, Cause("webhooks", "the API server", "gets no answer", "mend it"))
    registered: list[str] = []

    def build_both() -> None:
        installed = build()
        later = pulumi.ComponentResource("test:index:Later", "later", {}, pulumi.ResourceOptions(depends_on=[installed]))
        later.urn.apply(registered.append)

    with pytest.raises(pulumi.RunError, match=r"(?s)no deployment was touched.*gets no answer\n      -> mend it"):
        deploy(build_both, made=True)
    assert registered == []


def test_a_preview_waits_for_no_webhook_and_changes_no_kind(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    kthena = Kthena(monkeypatch)
    deploy(build, made=True, preview=True)
    assert (kthena.waited, kthena.kinds) == (0, {})


def test_kinds_that_the_cluster_has_not_or_has_otherwise_are_brought_and_are_no_resources(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    kthena = Kthena(monkeypatch)
    _, recording = deploy(build, made=True)
    assert recording.of_kind("CustomResourceDefinition") == []
    brought = dict(kthena.kinds)
    assert {crd["metadata"]["name"] for crd in brought.values()} == {
        item["metadata"]["name"] for item in chart.objects() if item["kind"] == "CustomResourceDefinition"
    }
    first, second, *_ = brought
    del kthena.kinds[first]
    kthena.kinds[second] = {"metadata": {"annotations": {"kthena-pd/declared": "of another version"}}}
    as_it_was = {path: crd for path, crd in kthena.kinds.items() if path != second}
    deploy(build, made=True)
    assert kthena.kinds == brought
    assert all(kthena.kinds[path] is crd for path, crd in as_it_was.items())


def test_nothing_but_the_namespace_comes_before_the_kinds_are_there(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    Kthena(monkeypatch, refusal="customresourcedefinitions is forbidden")
    with pytest.raises(pulumi.RunError, match=r"nothing else was touched.*customresourcedefinitions is forbidden"):
        deploy(build, made=True)


def test_the_chart_is_asked_of_the_programs_own_provider(deploy: Deploy) -> None:
    found: list[Any] = []
    deploy(lambda: found.extend(template(declared(), Provider("kubernetes"), Path())))
    assert found == chart.objects()


def test_no_chart_is_asked_for_where_kthena_is_somebody_elses(deploy: Deploy) -> None:
    def ask() -> None:
        pulumi.ComponentResource("test:index:Any", "any")
        assert template(declared(install=False), Provider("kubernetes"), Path()) == ()

    deploy(ask)


def test_a_chart_that_can_not_be_had_is_a_short_message_with_a_remedy(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError(
            "invoke of kubernetes:helm:template failed: failed to generate YAML for specified Helm chart: no route"
        )

    monkeypatch.setattr(pulumi.runtime, "invoke", refuse)
    with pytest.raises(ChartError) as refused:
        deploy(lambda: template(declared(chart="oci://registry.example/kthena"), Provider("kubernetes"), Path()))
    said, remedy = str(refused.value).split("\n")
    assert said == "Kthena's chart oci://registry.example/kthena can't be templated: no route"
    assert "set cluster.controlPlane.chart to a copy" in remedy


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


def test_a_router_with_tls_is_reached_by_https(deploy: Deploy) -> None:
    assert router_url(deploy, router={"tls": {"secret": "router-tls"}}) == "https://kthena-router.kthena-system.svc:8080"
