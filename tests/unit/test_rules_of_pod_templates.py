"""Pod template patches beyond the rules' examples: what works has no findings, and nothing malformed makes a rule fail."""

from __future__ import annotations

from typing import Any

import pytest

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


@pytest.mark.parametrize(
    "spec",
    [
        {"tolerations": [{"key": "npu", "operator": "Exists"}], "imagePullSecrets": [{"name": "registry"}]},
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
        (engine(env=[{"name": "ENTRY_ADDRESS", "value": "a"}]), "PD323", "containers.0.env.0"),
        (engine(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]), "PD326", "containers.0.env.1"),
        ({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]}, "PD326", "volumes.1"),
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
