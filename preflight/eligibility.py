"""On which nodes a scheduler may put a pod, whatever is left of them.

Source: Kubernetes, "Assigning Pods to Nodes", "Taints and Tolerations". Affinity between pods and spread over topologies are
left out: they only forbid more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from live.servers import Node

_EXPRESSIONS: Mapping[str, Callable[[str | None, list[str]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, values: value is not None and value.isdecimal() and int(value) > int(values[0]),
    "Lt": lambda value, values: value is not None and value.isdecimal() and int(value) < int(values[0]),
}


def obstacle(node: Node, pod_spec: Mapping[str, Any]) -> str:
    """Why no new pod of ``pod_spec`` is put on ``node``; empty where nothing forbids it."""
    if node.is_cordoned:
        return "cordoned"
    for taint in node.taints:
        if not any(_tolerates(toleration, taint) for toleration in pod_spec.get("tolerations") or ()):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"tainted {taint['key']}{value}:{taint['effect']}"
    return elsewhere(node, pod_spec)


def elsewhere(node: Node, pod_spec: Mapping[str, Any]) -> str:
    """Why pods of ``pod_spec`` are declared to be on other nodes than ``node``; empty where they may be there."""
    if pod_spec.get("nodeName") not in (None, node.name):
        return f"other than nodeName {pod_spec['nodeName']}"
    for key, value in (pod_spec.get("nodeSelector") or {}).items():
        if node.labels.get(key) != value:
            return f"without label {key}={value}"
    return "" if _is_attracted(node, pod_spec) else "outside of the node affinity"


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return toleration.get("key") == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or "")


def _is_attracted(node: Node, pod_spec: Mapping[str, Any]) -> bool:
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or any(_matches(node, term) for term in required.get("nodeSelectorTerms") or ())


def _matches(node: Node, term: Mapping[str, Any]) -> bool:
    by_labels = ((node.labels.get(one["key"]), one) for one in term.get("matchExpressions") or ())
    by_name = ((node.name, one) for one in term.get("matchFields") or ())
    return all(_EXPRESSIONS[one["operator"]](value, one.get("values") or []) for value, one in (*by_labels, *by_name))
