"""Waiting for controller, router and their webhooks: what is waited for, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from convergence.control_plane import SPARE_SECONDS, START_SECONDS, WEBHOOK_SECONDS, wait_for_control_plane
from convergence.symptoms import CONFIGURATION_SECONDS, DEFINITE_IMAGE_SECONDS, NotConvergedError
from live import paths
from live.api import ApiRefusedError, MissingKindError
from models.cluster import ControlPlane
from render.names import CONTROLLER_NAME, ROUTER_NAME

Object = dict[str, Any]
NAMESPACE = "kthena-system"
REVISION = "deployment.kubernetes.io/revision"
REFUSED = 'Internal error occurred: failed calling webhook "w": dial tcp 10.0.0.1:8443: connect: connection refused'
X509 = (
    'Internal error occurred: failed calling webhook "validate-modelroute.volcano.sh": failed to call webhook: Post '
    '"https://kthena-router-webhook.kthena-system.svc:8443/validate/modelroute?timeout=30s": tls: failed to verify certificate: '
    'x509: certificate signed by unknown authority (possibly because of "crypto/rsa: verification error")'
)


def deployment(name: str, *, replicas: int = 1, available: int = 1, generation: int = 1, total: int | None = None) -> Object:
    return {
        "metadata": {"name": name, "generation": generation, "annotations": {REVISION: "2"}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}},
        "status": {
            "observedGeneration": 1,
            "replicas": replicas if total is None else total,
            "updatedReplicas": replicas,
            "availableReplicas": available,
        },
    }


def pod(name: str, template: str = "new", *, ready: bool = False, **container: Any) -> Object:
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"name": name, "uid": name, "labels": {"pod-template-hash": template}},
        "spec": {"containers": []},
        "status": {"phase": "Running", "conditions": conditions, "containerStatuses": [{"name": "main", **container}]},
    }


def waiting(reason: str, message: str = "", **more: Any) -> Object:
    return {"state": {"waiting": {"reason": reason, "message": message}}, **more}


class Cluster:
    """A cluster whose clock only goes while somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.deployments = {name: deployment(name) for name in (CONTROLLER_NAME, ROUTER_NAME)}
        self.pods: list[Object] = []
        self.events: list[Object] = []
        self.webhook: Callable[[str], Exception | None] = lambda _: None
        self.asked: set[str] = set()
        self.at: dict[float, Callable[[], None]] = {}
        """what happens when"""
        self.said: list[str] = []

    async def get(self, path: str) -> Object | None:
        return self.deployments.get(path.rpartition("/")[2])

    async def list(self, path: str, labels: str = "", fields: str = "") -> list[Object]:  # noqa: ARG002 - as the real one
        if path == paths.replica_sets(NAMESPACE):
            old = {"metadata": {"annotations": {REVISION: "1"}, "labels": {"pod-template-hash": "old"}}}
            new = {"metadata": {"annotations": {REVISION: "2"}, "labels": {"pod-template-hash": "new"}}}
            return [old, new]
        if path == paths.events(NAMESPACE):
            return self.events
        return [one for one in self.pods if labels == f"app={one['metadata']['name'].rpartition('-')[0]}"]

    async def create(self, path: str, declared: Object, *, dry_run: bool = False) -> Object:
        assert dry_run, "a probe was created"
        assert path.startswith(f"/apis/{declared['apiVersion']}/namespaces/{NAMESPACE}/")
        self.asked.add(declared["kind"])
        if error := self.webhook(declared["kind"]):
            raise error
        return declared

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        for when in [when for when in self.at if when <= self.now]:
            self.at.pop(when)()

    def wait(self) -> float:
        """Seconds until it works."""
        asyncio.run(
            wait_for_control_plane(
                self,  # type: ignore[arg-type]
                ControlPlane(),
                say=self.said.append,
                clock=lambda: self.now,
                sleep=self.sleep,
            )
        )
        return self.now

    def fail(self) -> str:
        with pytest.raises(NotConvergedError) as failed:
            self.wait()
        return str(failed.value)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def starting(cluster: Cluster, *pods: Object) -> None:
    cluster.deployments[ROUTER_NAME] = deployment(ROUTER_NAME, available=0)
    cluster.pods = list(pods)


def test_what_works_already_is_looked_at_once_and_all_four_kinds_are_asked_for(cluster: Cluster) -> None:
    assert cluster.wait() == 0
    assert cluster.asked == {"ModelServing", "ModelServer", "ModelRoute", "AutoscalingPolicy"}
    assert cluster.said == []


def test_webhooks_are_waited_for_after_their_pods(cluster: Cluster) -> None:
    starting(cluster, pod(f"{ROUTER_NAME}-1", ready=False))
    cluster.webhook = lambda kind: ApiRefusedError(500, REFUSED) if kind == "ModelRoute" else None
    cluster.at = {
        20: lambda: cluster.deployments.update({ROUTER_NAME: deployment(ROUTER_NAME)}),
        40: lambda: setattr(cluster, "webhook", lambda _: None),
    }
    assert cluster.wait() == pytest.approx(40, abs=1)
    assert any("Deployment kthena-system/kthena-router is not available yet" in line for line in cluster.said)
    assert any("takes no ModelRoute" in line for line in cluster.said)


def test_a_kind_that_the_api_server_does_not_serve_yet_is_waited_for(cluster: Cluster) -> None:
    cluster.webhook = lambda _: MissingKindError("not yet")
    cluster.at = {3: lambda: setattr(cluster, "webhook", lambda _: None)}
    assert cluster.wait() == pytest.approx(3, abs=1)


@pytest.mark.parametrize(
    "answer",
    [
        ApiRefusedError(400, 'admission webhook "w" denied the request: no probes here'),
        ApiRefusedError(403, 'modelroutes is forbidden: User "u" cannot create resource "modelroutes"'),
    ],
)
def test_an_answer_is_an_answer_whatever_it_is(cluster: Cluster, answer: ApiRefusedError) -> None:
    cluster.webhook = lambda _: answer
    assert cluster.wait() == 0


@pytest.mark.parametrize(("message", "remedy"), [(REFUSED, "kubectl get pods,endpoints"), (X509, "caBundle")])
def test_webhooks_that_never_answer_are_an_error_with_the_api_servers_own_words(
    cluster: Cluster, message: str, remedy: str
) -> None:
    cluster.webhook = lambda kind: ApiRefusedError(500, message) if kind.startswith("Model") else None
    said = cluster.fail()
    assert cluster.now == pytest.approx(WEBHOOK_SECONDS, abs=1)
    assert "takes no ModelRoute, no ModelServer, no ModelServing" in said
    assert message in said
    assert remedy in said.rpartition("->")[2]


@pytest.mark.parametrize(
    ("state", "seconds", "words"),
    [
        (waiting("ErrImagePull", "manifest unknown"), DEFINITE_IMAGE_SECONDS, "ErrImagePull: manifest unknown"),
        (waiting("InvalidImageName"), 0, "InvalidImageName"),
        (waiting("CreateContainerConfigError", 'secret "x" not found'), CONFIGURATION_SECONDS, 'secret "x" not found'),
        (
            waiting(
                "CrashLoopBackOff", restartCount=3, lastState={"terminated": {"exitCode": 255, "message": "F0 no such flag\n"}}
            ),
            30,
            "F0 no such flag",
        ),
    ],
)
def test_a_pod_that_can_not_start_ends_the_wait_early_and_says_why(
    cluster: Cluster, state: Object, seconds: float, words: str
) -> None:
    starting(cluster, pod(f"{ROUTER_NAME}-1", **state))
    said = cluster.fail()
    assert cluster.now == pytest.approx(seconds, abs=1)
    assert f"Pod {NAMESPACE}/{ROUTER_NAME}-1" in said
    assert words in said


def test_a_secret_that_can_not_be_mounted_is_named(cluster: Cluster) -> None:
    late = pod(f"{ROUTER_NAME}-1", **waiting("ContainerCreating"))
    starting(cluster, late)
    about = {"uid": late["metadata"]["uid"], "name": late["metadata"]["name"]}
    told = 'MountVolume.SetUp failed for volume "tls": secret "router-tls" not found'
    cluster.events = [{"involvedObject": about, "type": "Warning", "reason": "FailedMount", "message": told}]
    assert 'secret "router-tls" not found' in cluster.fail()
    assert cluster.now == pytest.approx(CONFIGURATION_SECONDS, abs=1)


def test_a_restart_for_a_late_certificate_is_no_crash_loop(cluster: Cluster) -> None:
    starting(cluster, pod(f"{ROUTER_NAME}-1", **waiting("CrashLoopBackOff", restartCount=1)))
    cluster.at = {90: lambda: cluster.deployments.update({ROUTER_NAME: deployment(ROUTER_NAME)})}
    assert cluster.wait() == pytest.approx(90, abs=1)


def test_what_keeps_the_version_before_from_starting_is_not_held_against_the_new_one(cluster: Cluster) -> None:
    starting(
        cluster,
        pod(f"{ROUTER_NAME}-1", "old", **waiting("CrashLoopBackOff", restartCount=9)),
        pod(f"{ROUTER_NAME}-2", "new"),
    )
    cluster.at = {60: lambda: cluster.deployments.update({ROUTER_NAME: deployment(ROUTER_NAME)})}
    assert cluster.wait() == pytest.approx(60, abs=1)


def test_pods_that_just_do_not_become_ready_are_given_five_minutes(cluster: Cluster) -> None:
    starting(cluster, pod(f"{ROUTER_NAME}-1"))
    assert "1 of 1 pods are being started" in cluster.fail()
    assert cluster.now == pytest.approx(START_SECONDS, abs=1)


def test_a_deployment_whose_edit_its_controller_has_not_seen_is_not_what_is_declared(cluster: Cluster) -> None:
    cluster.deployments[CONTROLLER_NAME] = deployment(CONTROLLER_NAME, generation=2)
    cluster.at = {5: lambda: cluster.deployments.update({CONTROLLER_NAME: deployment(CONTROLLER_NAME)})}
    assert cluster.wait() == pytest.approx(5, abs=1)


def test_pods_of_the_version_before_are_waited_for_until_they_are_gone(cluster: Cluster) -> None:
    cluster.deployments[ROUTER_NAME] = deployment(ROUTER_NAME, total=2)
    cluster.at = {5: lambda: cluster.deployments.update({ROUTER_NAME: deployment(ROUTER_NAME)})}
    assert cluster.wait() == pytest.approx(5, abs=1)


def test_one_of_two_routers_on_a_dead_node_keeps_nobody_from_changing_a_deployment(cluster: Cluster) -> None:
    cluster.deployments[ROUTER_NAME] = deployment(ROUTER_NAME, replicas=2, available=1)
    cluster.pods = [pod(f"{ROUTER_NAME}-1", ready=True), pod(f"{ROUTER_NAME}-2")]
    assert cluster.wait() == pytest.approx(SPARE_SECONDS, abs=1)
    assert any("1 of 2 pods are being started" in line for line in cluster.said)


def test_the_second_of_two_routers_gets_its_time_from_when_the_first_serves(cluster: Cluster) -> None:
    starting(cluster, pod(f"{ROUTER_NAME}-1"), pod(f"{ROUTER_NAME}-2"))
    cluster.at = {
        SPARE_SECONDS + 10: lambda: cluster.pods[0].update(pod(f"{ROUTER_NAME}-1", ready=True)),
        SPARE_SECONDS + 30: lambda: cluster.deployments.update({ROUTER_NAME: deployment(ROUTER_NAME)}),
    }
    assert cluster.wait() == pytest.approx(SPARE_SECONDS + 30, abs=1)
    assert not [line for line in cluster.said if "goes on with a part" in line]


def test_a_control_plane_that_somebody_has_deleted_is_missed(cluster: Cluster) -> None:
    del cluster.deployments[CONTROLLER_NAME]
    assert f"Deployment {NAMESPACE}/{CONTROLLER_NAME}: is not there any more" in cluster.fail()
