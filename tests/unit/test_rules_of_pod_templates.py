"""Pod template patches beyond the rules' examples: what works has no findings, and nothing malformed makes a rule fail."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rules import Finding, StackError, read
from tests import stacks

CLUSTER = {"npu": {"family": "A3", "devicePlugin": "cce"}}


def findings(spec: Any, **declared: Any) -> list[tuple[str, str]]:
    """(code, path below the spec) of everything that is wrong."""
    config = stacks.config(cluster=CLUSTER, decode={"podTemplate": {"spec": spec}, **declared})
    found: list[Finding] = []
    try:
        read(config, warn=found.append)
    except StackError as error:
        found = list(error.findings)
    above = ("deployments", "deepseekv4-pd", "decode", "podTemplate", "spec")
    assert [finding.path[: len(above)] for finding in found] == [above] * len(found), found
    return [(finding.code, ".".join(map(str, finding.path[len(above) :]))) for finding in found]


def engine(**added: Any) -> dict[str, Any]:
    return {"containers": [{"name": "vllm", **added}]}


def added(*containers: tuple[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Containers with ports beside the engine."""
    return {"containers": [{"name": name, "image": "exporter:1", "ports": ports} for name, ports in containers]}


NODE_TERMS = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"


def node_affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


@pytest.mark.parametrize(
    "spec",
    [
        added(("a", [{"name": "dns", "containerPort": 9}, {"name": "dns-tcp", "containerPort": 9}])),
        added(("a", [{"containerPort": 9, "protocol": "UDP"}]), ("b", [{"containerPort": 9}])),
        engine(ports=[{"name": "server", "containerPort": 7100}]),
        {"tolerations": [{"key": "npu", "operator": "Exists"}], "imagePullSecrets": [{"name": "registry"}]},
        {"tolerations": [{"operator": "Exists"}, {"key": "npu", "value": "a3", "effect": "NoExecute", "tolerationSeconds": 60}]},
        {"volumes": [{"name": "an-empty-directory"}, {"name": "logs", "hostPath": {"path": "/var/log", "type": ""}}]},
        node_affinity({"key": "zone", "operator": "In", "values": ["a"]}, {"key": "dies", "operator": "Gt", "values": ["8"]}),
        {"containers": [{"name": "exporter", "image": "registry.example:5000/tools/exporter:1.2@sha256:" + "0" * 64}]},
        {"serviceAccountName": "engines", "priorityClassName": "serving", "runtimeClassName": "ascend"},
        {"nodeSelector": {"zone": "a"}, "affinity": {"podAntiAffinity": {}}, "dnsConfig": {"nameservers": ["10.0.0.2"]}},
        engine(envFrom=[{"configMapRef": {"name": "tuning"}}], securityContext={"capabilities": {"add": ["SYS_NICE"]}}),
        engine(resources={"limits": {"ephemeral-storage": "10Gi"}, "requests": {"ephemeral-storage": "1Gi"}}),
        engine(startupProbe={"initialDelaySeconds": 60}, ports=[{"name": "debug", "containerPort": 5678}]),
        {
            "initContainers": [{"name": "log", "image": "fluent-bit:3", "restartPolicy": "Always"}],
            "containers": [
                {"name": "vllm", "volumeMounts": [{"name": "logs", "mountPath": "/logs"}]},
                {"name": "exporter", "image": "exporter:1", "livenessProbe": {"tcpSocket": {"port": 9100}}},
            ],
            "volumes": [{"name": "logs", "emptyDir": {"sizeLimit": "1Gi"}}],
        },
    ],
)
def test_what_kubernetes_and_the_engines_take_has_no_findings(spec: dict[str, Any]) -> None:
    assert findings(spec) == []
    assert [code for code, _ in findings(spec, pods=2)] == ["PD328"] * ("startupProbe" in str(spec))  # workers have no API


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"containers": "vllm"}, "containers"),
        ({"containers": [None]}, "containers.0"),
        ({"containers": None}, "containers"),
        ({"containers": {"vllm": {}}}, "containers"),
        ({"containers": [{}]}, "containers.0"),
        ({"containers": [{"name": 1}]}, "containers.0.name"),
        (engine(env={"A": "1"}), "containers.0.env"),
        (engine(env=[{"name": "A", "value": 1}]), "containers.0.env.0.value"),
        (engine(resources={"limits": {"memory": "64Gb"}}), "containers.0.resources.limits.memory"),
        (engine(volumeMounts=[{"name": "a"}]), "containers.0.volumeMounts.0"),
        (engine(ports=[{"name": "a"}]), "containers.0.ports.0"),
        ({"volumes": [{"name": "a", "emptyDir": None}]}, "volumes.0.emptyDir"),
        ({"volumes": [3]}, "volumes.0"),
        ({"tolerations": "all"}, "tolerations"),
        ({"ephemeralContainers": []}, "ephemeralContainers"),
        ({"tolerations": [{"key": "npu", "operator": "Exist"}]}, "tolerations.0.operator"),
        ({"tolerations": [{"key": "npu", "operator": "Exists", "value": "a3"}]}, "tolerations.0.value"),
        ({"tolerations": [{"operator": "Equal"}]}, "tolerations.0.operator"),
        ({"tolerations": [{"effect": "NoSchedule"}]}, "tolerations.0"),
        ({"tolerations": [{"key": "npu", "tolerationSeconds": 60}]}, "tolerations.0"),
        ({"imagePullSecrets": [{}]}, "imagePullSecrets.0"),
        ({"restartPolicy": "Sometimes"}, "restartPolicy"),
        ({"volumes": [{"name": "a", "hostPath": {"path": "/a", "type": "Dir"}}]}, "volumes.0.hostPath.type"),
        (node_affinity({"key": "zone", "operator": "Is"}), f"{NODE_TERMS}.0.matchExpressions.0.operator"),
        (node_affinity({"key": "zone", "operator": "In"}), f"{NODE_TERMS}.0.matchExpressions.0"),
        (node_affinity({"key": "zone", "operator": "Exists", "values": ["a"]}), f"{NODE_TERMS}.0.matchExpressions.0.values"),
        (node_affinity({"key": "cards", "operator": "Gt", "values": []}), f"{NODE_TERMS}.0.matchExpressions.0.values"),
        (node_affinity({"key": "cards", "operator": "Gt", "values": ["x"]}), f"{NODE_TERMS}.0.matchExpressions.0.values.0"),
        (engine(imagePullPolicy="Sometimes"), "containers.0.imagePullPolicy"),
    ],
)
def test_what_is_no_pod_spec_is_found_once_and_by_its_form(spec: dict[str, Any], path: str) -> None:
    assert findings(spec) == [("PD321", path)]


@pytest.mark.parametrize(
    ("spec", "code", "path"),
    [
        (engine(livenessProbe={"exec": {"command": ["true"]}}), "PD328", "containers.0.livenessProbe"),
        (engine(lifecycle={}, image=""), "PD320", "containers.0.image"),
        (engine(resources={"limits": {"cpu": "1"}}), "PD320", "containers.0.resources.limits.cpu"),
        (engine(ports=[{"name": "server", "containerPort": 9}]), "PD320", "containers.0.ports.0"),
        (engine(ports=[{"name": "debug", "containerPort": 7100}]), "PD327", "containers.0.ports.0.containerPort"),
        (added(("a", [{"name": "server", "containerPort": 7100}])), "PD327", "containers.0.ports.0.containerPort"),
        (added(("a", [{"containerPort": 9}]), ("b", [{"containerPort": 9}])), "PD327", "containers.1.ports.0.containerPort"),
        (engine(env=[{"name": "ENTRY_ADDRESS", "value": "a"}]), "PD323", "containers.0.env.0"),
        (engine(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]), "PD326", "containers.0.env.1"),
        ({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]}, "PD326", "volumes.1"),
        ({"nodeSelector": {"zone": "a b"}}, "PD325", "nodeSelector.zone"),
        ({"nodeSelector": {"the zone": "a"}}, "PD325", "nodeSelector.the zone"),
        ({"priorityClassName": "Serving"}, "PD325", "priorityClassName"),
        ({"containers": [{"name": "exporter", "image": "Exporter 1"}]}, "PD325", "containers.0.image"),
        ({"hostNetwork": False}, "PD320", "hostNetwork"),
        ({"dnsPolicy": "Default"}, "PD320", "dnsPolicy"),
    ],
)
def test_what_contradicts_the_declaration_or_breaks_every_pod_is_found_once(spec: dict[str, Any], code: str, path: str) -> None:
    assert findings(spec) == [(code, path)]


def test_a_rendered_value_is_said_with_the_field_that_decides_it() -> None:
    with pytest.raises(StackError, match=r"engine\.image decides it"):
        read(stacks.config(decode={"podTemplate": {"spec": engine(image="other:1")}}))


def test_labels_of_any_pod_are_checked_without_a_spec() -> None:
    labels = {"modelserving.volcano.sh/role": "decode", "a/b/c": "x", "team": "x" * 64}
    with pytest.raises(StackError) as raised:
        read(stacks.config(decode={"podTemplate": {"metadata": {"labels": labels}}}))
    assert sorted((finding.code, finding.path[-1]) for finding in raised.value.findings) == [
        ("PD322", "modelserving.volcano.sh/role"),
        ("PD325", "a/b/c"),
        ("PD325", "team"),
    ]


NAMES = st.sampled_from(["vllm", "runtime", "exporter"])
PROBES = st.sampled_from([{}, {"periodSeconds": 5}, {"tcpSocket": {"port": 9100}}, {"exec": {}, "tcpSocket": {"port": 9100}}])
CONTAINERS = st.fixed_dictionaries(
    {"name": NAMES},
    optional={
        "image": st.sampled_from(["", " ", "exporter:1"]),
        "livenessProbe": PROBES,
        "startupProbe": PROBES,
        "ports": st.sampled_from([[], [{"containerPort": 9100}], [{"containerPort": 7100, "name": "server"}]]),
        "env": st.just([]),
        "resources": st.just({}),
    },
)


@given(containers=st.lists(CONTAINERS, max_size=3), init=st.lists(CONTAINERS, max_size=2), pods=st.sampled_from([1, 2]))
@example(
    containers=[{"name": "exporter", "image": "exporter:1", "livenessProbe": {}}, {"name": "exporter", "image": "exporter:1"}],
    init=[],
    pods=1,
)
@settings(max_examples=60, deadline=None)
def test_no_list_of_containers_makes_a_rule_fail(containers: list[Any], init: list[Any], pods: int) -> None:
    findings({"containers": containers, "initContainers": init}, pods=pods)
