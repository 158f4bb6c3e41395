"""The form of what is read: types only, so that a manifest of another form is a finding and no traceback."""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from pydantic import ValidationError

import catalog
from importer.findings import Findings
from importer.manifests import Keys, Manifest
from models.base import Declaration
from models.kthena.autoscaling_policy import AutoscalingPolicySpec
from models.kthena.model_route import ModelRouteSpec
from models.kthena.model_server import ModelServerSpec
from models.kthena.model_serving import ModelServingSpec

Schema = dict[str, Any]


def _map(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_TEXT, _NUMBER, _ANY = {"type": "string"}, {"type": "integer"}, _map()
_TEXTS: Schema = {"type": "object", "additionalProperties": _TEXT}
_REFERENCE = _map(name=_TEXT, kind=_TEXT)
_METRICS = _list(_map(("name", "targetValue"), name=_TEXT))
_BOUNDS = {"minReplicas": _NUMBER, "maxReplicas": _NUMBER, "metrics": _METRICS, "metricSources": _ANY}


@cache
def _schemas() -> dict[str, Schema]:
    """Kind -> JSON Schema of its spec; of a ConfigMap of all of it."""
    template = _map(metadata=_map(labels=_TEXTS, annotations=_TEXTS), spec=catalog.pod_spec_schema())
    role = _map(
        ("name", "entryTemplate"),
        name=_TEXT,
        replicas=_NUMBER,
        workerReplicas=_NUMBER,
        entryTemplate=template,
        workerTemplate=template,
    )
    group = _map(("roles",), roles=_list(role), restartGracePeriodSeconds=_NUMBER, gangPolicy=_ANY, networkTopology=_ANY)
    strategy = _map(type=_TEXT, rollingUpdateConfiguration=_ANY)
    target = _map(target=_map(targetRef=_REFERENCE, metricSources=_ANY, metricEndpoint=_ANY, subTargets=_ANY), **_BOUNDS)
    ratio = _map(("numeratorRole", "minRatio", "maxRatio"))
    scaled: Schema = {"type": "object", "additionalProperties": _map(**_BOUNDS)}
    policy = _map(
        metrics=_METRICS,
        behavior=_ANY,
        homogeneousTarget=target,
        disaggregatedTarget=_map(targetRef=_REFERENCE, roles=scaled, ratioConstraint=ratio),
        heterogeneousTarget=_map(params=_list(target)),
        policyRef=_REFERENCE,
    )
    labels = _map(matchLabels=_TEXTS, pdGroup=_map(groupKey=_TEXT, prefillLabels=_TEXTS, decodeLabels=_TEXTS))
    rule = _map(
        ("targetModels",),
        name=_TEXT,
        modelMatch=_ANY,
        targetModels=_list(_map(("modelServerName",), modelServerName=_TEXT, weight=_NUMBER)),
    )
    return {
        "ModelServing": _map(
            ("template",), replicas=_NUMBER, schedulerName=_TEXT, recoveryPolicy=_TEXT, rolloutStrategy=strategy, template=group
        ),
        "ModelServer": _map(
            model=_TEXT,
            workloadSelector=labels,
            workloadPort=_map(port=_NUMBER),
            kvConnector=_map(type=_TEXT),
            trafficPolicy=_ANY,
        ),
        "ModelRoute": _map(modelName=_TEXT, loraAdapters=_list(_TEXT), parentRefs=_list(_ANY), rules=_list(rule), rateLimit=_ANY),
        "AutoscalingPolicy": policy,
        "AutoscalingPolicyBinding": policy,
    }


_SPECS: dict[str, type[Declaration]] = {
    "ModelServing": ModelServingSpec,
    "ModelServer": ModelServerSpec,
    "ModelRoute": ModelRouteSpec,
    "AutoscalingPolicy": AutoscalingPolicySpec,
}
_METADATA = _map(
    ("name",), name=_TEXT, namespace=_TEXT, labels=_TEXTS, annotations=_TEXTS, ownerReferences=_list(_map(("kind", "name")))
)


def has_form(manifest: Manifest, findings: Findings) -> bool:
    """Whether an object can be read; what is of another type, or what Kthena does not know in its pods, becomes a finding."""
    if not _is_right(manifest, _METADATA, manifest.body.get("metadata") or {}, ("metadata",), findings):
        return False
    if manifest.kind == "ConfigMap":
        return _is_right(manifest, _TEXTS, manifest.body.get("data") or {}, ("data",), findings)
    schema = _schemas().get(manifest.kind)
    return schema is None or _is_right(manifest, schema, manifest.body.get("spec") or {}, ("spec",), findings)


def known_fields(manifest: Manifest, findings: Findings) -> Manifest:
    """The object itself; a field of it that Kthena v1.0.0 does not have becomes a finding."""
    try:
        _SPECS[manifest.kind].model_validate(manifest.spec, by_name=False)
    except ValidationError as wrong:
        for error in wrong.errors(include_url=False, include_context=False, include_input=False):
            if error["type"] == "extra_forbidden":
                keys: Keys = ("spec", *error["loc"])
                what = f"{_dotted(keys)} of {manifest} is no field of Kthena v1.0.0, and not taken over"
                findings.add("IM002", manifest.place(*keys), what, "the API server forgets it")
    return manifest


def _is_right(manifest: Manifest, schema: Schema, value: Any, keys: Keys, findings: Findings) -> bool:
    right = True
    for error in Draft202012Validator(schema).iter_errors(value):
        here = (*keys, *error.absolute_path)
        if error.validator == "additionalProperties" and isinstance(error.schema, dict) and "properties" in error.schema:
            for key in sorted(error.instance.keys() - error.schema["properties"].keys()):
                what = f"{_dotted((*here, key))} is no field of Kthena v1.0.0"
                findings.add(
                    "IM002",
                    manifest.place(*here, key),
                    what,
                    "the API server refuses or forgets it; declared it stops `up`",
                    "error",
                )
        else:
            right = False
            what = f"{manifest}: {_dotted(here)} is {_reason(error)}: not taken over"
            findings.add("IM000", manifest.place(*here), what, "the form that the API server takes", "error")
    return right


def _reason(error: Any) -> str:
    if error.validator == "required":
        return f"without {', '.join(key for key in error.validator_value if key not in error.instance)}"
    return f"no {error.validator_value}" if error.validator == "type" else str(error.message)


def _dotted(keys: Keys) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")
