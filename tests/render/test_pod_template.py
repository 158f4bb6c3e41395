"""The patch of a pod template: what it adds, what it would override, and the fields that it may have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import catalog
from models.role import PodTemplatePatch
from render.pod_template import overridden, patched
from tests.render.crds import Crds

POD_SPEC = Path(catalog.__file__).parent / "pod_spec.json"

TEMPLATE: dict[str, Any] = {
    "spec": {
        "containers": [
            {
                "name": "vllm",
                "image": "engine:1",
                "command": ["bash", "prefill.sh"],
                "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "ports": [{"name": "server", "containerPort": 8000}],
                "startupProbe": {"periodSeconds": 10},
                "volumeMounts": [{"name": "weights", "mountPath": "/models"}],
            }
        ],
        "tolerations": [{"key": "npu", "operator": "Exists"}],
        "volumes": [{"name": "weights", "hostPath": {"path": "/models"}}],
    }
}


def patch(*, labels: dict[str, str] | None = None, **spec: Any) -> PodTemplatePatch:
    metadata = {"metadata": {"labels": labels}} if labels else {}
    return PodTemplatePatch.model_validate({**metadata, "spec": spec})


def engine(**added: Any) -> PodTemplatePatch:
    return patch(containers=[{"name": "vllm", **added}])


def paths(of: PodTemplatePatch) -> list[str]:
    return [".".join(map(str, path)) for path, _, _ in overridden(TEMPLATE, of)]


def test_an_empty_patch_changes_nothing() -> None:
    assert patched(TEMPLATE, PodTemplatePatch()) == TEMPLATE


def test_what_is_added_to_a_rendered_container_stands_beside_what_is_rendered() -> None:
    added = engine(
        env=[{"name": "MORE", "value": "1"}],
        ports=[{"name": "debug", "containerPort": 5678}],
        volumeMounts=[{"name": "cache", "mountPath": "/cache"}],
        startupProbe={"initialDelaySeconds": 30},
        lifecycle={"preStop": {"sleep": {"seconds": 5}}},
    )
    assert paths(added) == []
    rendered = TEMPLATE["spec"]["containers"][0]
    assert patched(TEMPLATE, added)["spec"]["containers"] == [
        rendered
        | {
            "env": [*rendered["env"], {"name": "MORE", "value": "1"}],
            "ports": [*rendered["ports"], {"name": "debug", "containerPort": 5678}],
            "volumeMounts": [*rendered["volumeMounts"], {"name": "cache", "mountPath": "/cache"}],
            "startupProbe": {"periodSeconds": 10, "initialDelaySeconds": 30},
            "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
        }
    ]


def test_containers_volumes_tolerations_and_labels_are_added() -> None:
    added = patch(
        labels={"team": "serving"},
        containers=[{"name": "exporter", "image": "exporter:1"}],
        initContainers=[{"name": "warm-up", "image": "busybox"}],
        volumes=[{"name": "cache", "emptyDir": {}}],
        tolerations=[{"key": "other", "operator": "Exists"}],
        imagePullSecrets=[{"name": "registry"}],
    )
    merged = patched(TEMPLATE, added)
    assert paths(added) == []
    assert merged["metadata"] == {"labels": {"team": "serving"}}
    assert [container["name"] for container in merged["spec"]["containers"]] == ["vllm", "exporter"]
    assert [container["name"] for container in merged["spec"]["initContainers"]] == ["warm-up"]
    assert [volume["name"] for volume in merged["spec"]["volumes"]] == ["weights", "cache"]
    assert [toleration["key"] for toleration in merged["spec"]["tolerations"]] == ["npu", "other"]
    assert merged["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_what_is_rendered_already_may_be_said_again() -> None:
    assert patched(TEMPLATE, PodTemplatePatch.model_validate(TEMPLATE)) == TEMPLATE


@pytest.mark.parametrize(
    ("contradicting", "path"),
    [
        (engine(image="engine:2"), "spec.containers.0.image"),
        (engine(command=["bash"]), "spec.containers.0.command"),
        (engine(startupProbe={"periodSeconds": 5}), "spec.containers.0.startupProbe.periodSeconds"),
        # beside valueFrom a value would not add to it
        (engine(env=[{"name": "A", "value": ""}, {"name": "POD_IP", "value": "::1"}]), "spec.containers.0.env.1"),
        (engine(ports=[{"name": "server", "containerPort": 1}]), "spec.containers.0.ports.0"),
        (engine(volumeMounts=[{"name": "mine", "mountPath": "/models"}]), "spec.containers.0.volumeMounts.0"),
        (patch(volumes=[{"name": "weights", "emptyDir": {}}]), "spec.volumes.0"),
        (patch(containers={"vllm": {}}), "spec.containers"),
    ],
)
def test_what_would_change_something_rendered_is_named_by_its_place_in_the_patch(
    contradicting: PodTemplatePatch, path: str
) -> None:
    assert paths(contradicting) == [path]


def test_the_template_that_is_patched_stays_as_it_was() -> None:
    before = json.dumps(TEMPLATE)
    patched(TEMPLATE, engine(env=[{"name": "MORE", "value": "1"}]))
    assert json.dumps(TEMPLATE) == before


def test_the_catalogues_pod_spec_is_that_of_kthenas_crd(crds: Crds, request: pytest.FixtureRequest) -> None:
    """One line a field of PodSpec. Ephemeral containers are left out: no pod may be created with them."""
    serving = crds.strict_schema("ModelServing")["properties"]["spec"]["properties"]["template"]["properties"]
    spec = _bare(serving["roles"]["items"]["properties"]["entryTemplate"]["properties"]["spec"])
    del spec["properties"]["ephemeralContainers"]
    if request.config.getoption("--update-golden"):
        fields = ",\n".join(f"{json.dumps(name)}:{_compact(field)}" for name, field in spec["properties"].items())
        rest = {key: value for key, value in spec.items() if key != "properties"}
        POD_SPEC.write_text(f'{{"properties":{{\n{fields}\n}},{_compact(rest)[1:]}\n')
    assert catalog.pod_spec_schema() == spec


def _bare(schema: Any) -> Any:
    """``schema`` without texts, and what only an API server uses."""
    if isinstance(schema, list):
        return [_bare(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _bare(field) for name, field in value.items()} if key == "properties" else _bare(value)
        for key, value in schema.items()
        if key not in ("description", "default", "format") and not key.startswith("x-kubernetes-")
    }


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
