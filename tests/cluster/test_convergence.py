"""What no check can foresee: `up` says early why it can't serve, and the next one goes on once that is mended.

Each mishap of one deployment has a small stack and a namespace of its own, and they all happen at once: most of it is waiting.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from local.pulumi import Pulumi
from render.names import CONTROLLER_NAME
from tests.cluster.conftest import DEPLOYMENT, Cluster, Pods, is_ready, uids, until

WEIGHTS = "/models/DeepSeek-V4-Flash-w8a8-mtp"
"""the simulated servers have them, and a stand-in engine takes any"""
NPU = "huawei.com/ascend-1980"
AT_ONCE = 6
"""stories: two of them have eight dies, the others four, and stack dev leaves 32 free"""
EARLY_SECONDS = 240
"""for a machine that has much to do; whoever only waits for time to pass does so for 35 minutes"""


@dataclass(frozen=True)
class Outcome:
    """What an `up` came to."""

    code: int
    said: str
    seconds: float

    def names(self, *causes: str) -> None:
        """That it has failed early and says these causes."""
        assert self.code != 0, self.said
        for cause in causes:
            assert cause in self.said
        assert "Traceback" not in self.said
        assert self.seconds < EARLY_SECONDS


def outcome(pulumi: Pulumi, *arguments: str) -> Outcome:
    began = time.monotonic()
    done = pulumi.run(*arguments, check=False)
    return Outcome(done.returncode, done.stdout + done.stderr, time.monotonic() - began)


def up(cluster: Cluster) -> Outcome:
    return outcome(cluster.pulumi, "up", "--yes", "--skip-preview", "--stack", "dev")


@dataclass
class Small:
    """A stack with one deployment of four dies; stack, namespace and deployment have one name."""

    cluster: Cluster
    name: str
    pulumi: Pulumi

    @classmethod
    def create(cls, cluster: Cluster, name: str) -> Small:
        # `stack init` writes the stack file beside the project file: the checkout's is not the place for it
        project = cluster.config_file.parent / "small"
        project.mkdir(exist_ok=True)
        (project / "Pulumi.yaml").write_text("name: kthena-pd\nruntime: python\n")
        command = ["pulumi", "stack", "init", name, "--non-interactive", "--no-select"]
        subprocess.run(command, cwd=project, env=cluster.environment, check=True, capture_output=True)
        return cls(cluster, name, Pulumi(cluster.state, cluster.pulumi.search, project / f"Pulumi.{name}.yaml"))

    def declare(self, edit: dict[str, Any], *, namespaces: bool = True) -> None:
        """Write the stack file: a deployment that works, with ``edit`` over its top level."""
        file = self.pulumi.config_file
        assert file
        content = yaml.safe_load(file.read_text())
        deployment = {
            "recipe": "deepseek-v2-lite-a3",
            "namespace": self.name,
            "model": {"weights": {"download": None, "hostPath": WEIGHTS}},
            "runtimeSidecar": False,
            "readiness": {"drainPeriod": "100ms"},
        }
        content["config"] = {
            "kthena-pd:cluster": {
                "context": "kthena-pd-local",
                "npu": {"family": "A3", "devicePlugin": "cce", "nodes": 4},
                "scheduler": "default-scheduler",
                "preflight": False,  # it would find most of it before
                "namespaces": [self.name] if namespaces else [],
                "controlPlane": {"install": False, "router": {"debugPort": self.cluster.debug_port}},
            },
            "kthena-pd:deployments": {self.name: deployment | edit},
        }
        file.write_text(yaml.safe_dump(content))

    def up(self) -> Outcome:
        return outcome(self.pulumi, "up", "--yes", "--skip-preview", "--stack", self.name)

    def preview(self) -> Outcome:
        return outcome(self.pulumi, "preview", "--stack", self.name)

    def goes_on(self) -> Pods:
        """The pods of an `up` that succeeds."""
        outcome, pods = self.up(), self.pods()
        assert outcome.code == 0, outcome.said
        assert all(is_ready(pod) for pod in pods.values())
        return pods

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl(f"--namespace={self.name}", *arguments)

    def pods(self) -> Pods:
        return self.cluster.pods(self.name, self.name)

    def apply(self, item: Mapping[str, Any]) -> None:
        file = self.cluster.config_file.with_name(f"{self.name}.json")
        file.write_text(json.dumps(item))
        self.cluster.kubectl("apply", f"--filename={file}")


def in_pods(**spec: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": spec}}


TOKEN = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "value"}}}
MISTAKES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "flag": (
        {"decode": {"extraArgs": ["--no-such-flag"]}},
        (
            "flag-0-decode-0-0: container vllm ended with exit code 1",
            "3 times",
            "| vllm serve: error: unrecognized arguments: --no-such-flag",
        ),
    ),
    "image": (
        {"engine": {"image": "registry.example/no/such:1"}},
        ("Pod image/image-0-decode-0-0, Pod image/image-0-prefill-0-0: image registry.example/no/such:1 of vllm: ", "not found"),
    ),
    "nodes": (
        {
            "prefill": in_pods(nodeSelector={"no.such/label": "yes"}),
            "readiness": {"drainPeriod": "100ms", "schedulingTimeout": "3s"},
        },
        ("nodes-0-prefill-0-0: no node can take it: 4 of 4 nodes didn't match", "(no.such/label=yes)"),
    ),
}
"""what is taken back: name -> edit, what `up` says"""


def mistake(name: str) -> Callable[[Small], None]:
    def story(small: Small) -> None:
        edit, said = MISTAKES[name]
        small.declare(edit)
        small.up().names(*said)
        small.declare({})
        small.goes_on()

    return story


def weights(small: Small) -> None:
    small.declare({"model": {"weights": {"download": None, "hostPath": "/models/late"}}})
    small.up().names("FailedMount", "/models/late is not a directory", "does not start")
    for node in small.cluster.state.hosts.iterdir():
        (node / "models/late").symlink_to(f"{node}{WEIGHTS}")
    small.goes_on()


def secret(small: Small) -> None:
    small.declare({"prefill": in_pods(containers=[{"name": "vllm", "env": [TOKEN]}])})
    small.up().names('secret-0-prefill-0-0: container vllm: CreateContainerConfigError: secret "token" not found')
    small.kubectl("create", "secret", "generic", "token", "--from-literal=value=x")
    small.goes_on()


def quota(small: Small) -> None:
    small.cluster.kubectl("create", "namespace", small.name)
    small.kubectl("create", "quota", "few", "--hard=pods=1")
    small.declare({}, namespaces=False)
    small.up().names("is refused: pods", "exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1")
    small.kubectl("delete", "quota", "few")
    small.goes_on()


def admission(small: Small) -> None:
    """First a webhook that nobody answers, then a policy that says no."""
    here = {"matchLabels": {"kubernetes.io/metadata.name": small.name}}
    rule = {
        "apiGroups": ["workload.serving.volcano.sh"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["modelservings"],
    }
    hook = {
        "name": "hook.example.com",
        "clientConfig": {"url": "https://127.0.0.1:9/validate"},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "namespaceSelector": here,
        "rules": [rule],
    }
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"namespaceSelector": here, "resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "no models on Mondays"}],
    }
    v1, metadata = "admissionregistration.k8s.io/v1", {"name": small.name}
    binding = {"policyName": small.name, "validationActions": ["Deny"]}
    small.apply({"apiVersion": v1, "kind": "ValidatingWebhookConfiguration", "metadata": metadata, "webhooks": [hook]})
    small.declare({})
    small.up().names('failed calling webhook "hook.example.com"', "connection refused")
    small.apply({"apiVersion": v1, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": policy})
    small.apply({"apiVersion": v1, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata, "spec": binding})
    small.kubectl("delete", "validatingwebhookconfiguration", small.name)
    refused = small.preview()
    refused.names(f"{small.name}: the API server refuses ModelServing {small.name}: ", "no models on Mondays")
    small.kubectl("delete", "validatingadmissionpolicybinding", small.name)
    small.goes_on()


def somebody_else(small: Small) -> None:
    small.declare({"prefill": in_pods(nodeSelector={"no.such/label": "yes"})})
    with ThreadPoolExecutor(1) as pool:
        up = pool.submit(small.up)
        until(lambda: small.pods() or None, 120)
        edit = [{"op": "replace", "path": "/spec/template/roles/0/replicas", "value": 2}]
        small.kubectl("patch", "modelserving", small.name, "--type=json", f"--patch={json.dumps(edit)}")
    up.result().names("has been changed meanwhile: replicas of role prefill is 2, declared 1, written by kubectl-patch at")
    small.declare({})
    assert len(small.goes_on()) == 2


def partition(small: Small) -> None:
    strategy = {"type": "ServingGroupRollingUpdate", "rollingUpdateConfiguration": {"partition": 1}}
    small.declare({"groups": 2, "rolloutStrategy": strategy})
    before = uids(small.goes_on())
    small.declare({"groups": 2, "rolloutStrategy": strategy, "engine": {"env": {"AN_EDIT": "1"}}})
    after = uids(small.goes_on())
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] == before[name]} == {name for name in after if name.startswith("partition-0-")}


def scaled(small: Small) -> None:
    scaling = {"groups": {"min": 1, "max": 2, "metrics": {"vllm:num_requests_waiting": "10"}}}
    small.declare({"autoscaling": scaling})
    assert len(small.goes_on()) == 2
    small.kubectl("scale", "modelserving", small.name, "--replicas=2")
    small.declare({"autoscaling": scaling, "traffic": {"timeout": "100s"}})
    small.goes_on()


STORIES: dict[str, Callable[[Small], None]] = {
    **{name: mistake(name) for name in MISTAKES},
    **{
        story.__name__.replace("_", "-"): story for story in (weights, secret, quota, admission, somebody_else, partition, scaled)
    },
}


def tell(cluster: Cluster, name: str) -> None:
    try:
        STORIES[name](Small.create(cluster, name))
    finally:
        cluster.kubectl("delete", "namespace", "--ignore-not-found", name)


@pytest.fixture(scope="module")
def told(cluster: Cluster) -> dict[str, Future[None]]:
    """What has become of each story."""
    cluster.reset()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {name: pool.submit(tell, cluster, name) for name in STORIES}


@pytest.mark.parametrize("name", STORIES)
def test_up_says_early_why_it_can_not_serve_and_goes_on_once_that_is_mended(told: dict[str, Future[None]], name: str) -> None:
    told[name].result()


def test_a_controller_that_does_not_run_is_named_before_anything_is_changed(converged: Cluster) -> None:
    small = Small.create(converged, "controller")  # its namespace is not there yet, either

    def scale(replicas: int) -> None:
        converged.kubectl("scale", "deployment", CONTROLLER_NAME, "--namespace=kthena-system", f"--replicas={replicas}")

        def ready() -> list[bool] | None:
            pods = converged.objects("pods", "--namespace=kthena-system")
            found = [is_ready(pod) for pod in pods if pod["metadata"]["name"].startswith(f"{CONTROLLER_NAME}-")]
            return found if len(found) == replicas and all(found) else None

        until(ready, 60)

    small.declare({})
    try:
        scale(0)
        small.up().names("nothing was changed:", "Kthena's webhook does not answer: do its controller and router run?")
        scale(1)
        until(lambda: small.preview().code == 0 or None, 60)  # its webhook answers a moment after it is ready
        small.goes_on()
    finally:
        scale(1)
        converged.kubectl("delete", "namespace", "--ignore-not-found", small.name)


def test_npus_that_others_hold_are_counted_and_up_goes_on_once_they_are_free(converged: Cluster) -> None:
    limits = {"limits": {NPU: "16"}}
    holder = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "holder", "namespace": "kube-public"},
        "spec": {"containers": [{"name": "holder", "image": "no/such", "resources": limits}], "terminationGracePeriodSeconds": 0},
    }
    file = converged.config_file.with_name("holder.json")
    file.write_text(json.dumps(holder))
    converged.kubectl("apply", f"--filename={file}")
    converged.configure(f"deployments.{DEPLOYMENT}.readiness.schedulingTimeout", "3s")
    converged.configure(f"deployments.{DEPLOYMENT}.ratio", "3P1D")
    converged.configure("cluster.preflight", "false")  # it would find it before
    up(converged).names(
        f"prefill-2-0: no node can take it: {NPU}: asks 16, too few are free on 1 of 4 nodes",
        "3 of 4 nodes didn't have free ports",
        f"| {NPU}: free none; held 48 by namespace default, 16 by namespace kube-public",
    )
    converged.kubectl("delete", f"--filename={file}")
    assert up(converged).code == 0
    converged.assert_paired(3, 1)


def test_an_up_with_nothing_to_change_does_not_call_a_broken_deployment_well(converged: Cluster) -> None:
    shards = [node / WEIGHTS[1:] / "model-00001-of-00002.safetensors" for node in converged.state.hosts.iterdir()]
    aside = [shard.rename(shard.with_suffix(".aside")) for shard in shards]
    try:
        before = uids(converged.settled_pods())
        converged.kubectl("delete", "pod", f"{DEPLOYMENT}-0-decode-0-0", "--wait=false")
        up(converged).names("model-00001-of-00002.safetensors")
    finally:
        for shard, moved in zip(shards, aside, strict=True):
            moved.rename(shard)
    assert up(converged).code == 0
    pods = converged.settled_pods()
    assert all(is_ready(pod) for pod in pods.values())
    assert not set(uids(pods).values()) & set(before.values())


def test_an_edit_that_fails_and_is_taken_back_leaves_the_pods_their_scripts(converged: Cluster) -> None:
    converged.configure(f"deployments.{DEPLOYMENT}.decode.extraArgs[0]", "--no-such-flag")
    up(converged).names("unrecognized arguments: --no-such-flag")
    converged.declare()
    assert up(converged).code == 0
    volumes = [volume for pod in converged.settled_pods().values() for volume in pod["spec"]["volumes"]]
    mounted = {volume["configMap"]["name"] for volume in volumes if "configMap" in volume}
    there = {item["metadata"]["name"] for item in converged.objects("configmaps", "--namespace=default")}
    assert len(mounted) == 2
    assert mounted <= there
