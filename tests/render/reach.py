"""Who reaches what under network policies, as a plugin that enforces them decides it.

Source: Kubernetes, NetworkPolicy (networking.k8s.io/v1). A pod that no policy selects takes all, the rules of those that
select it add up, and an empty selector means everybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Pod:
    """What policies see of a pod that is not on its host's network."""

    namespace: str
    labels: Mapping[str, str]


def reaches(source: Pod, target: Pod, port: int, policies: Iterable[Mapping[str, Any]]) -> bool:
    """Whether ``source`` may connect to a TCP port of ``target``."""
    about = [
        policy["spec"]
        for policy in policies
        if policy["metadata"]["namespace"] == target.namespace and _selects(policy["spec"]["podSelector"], target.labels)
    ]
    assert all(spec["policyTypes"] == ["Ingress"] for spec in about)
    rules = [rule for spec in about for rule in spec["ingress"]]
    return not about or any(_lets_in(rule, source, target, port) for rule in rules)


def _lets_in(rule: Mapping[str, Any], source: Pod, target: Pod, port: int) -> bool:
    ports = [one["port"] for one in rule.get("ports", ()) if one["protocol"] == "TCP"]
    return (not ports or port in ports) and any(_is(peer, source, target) for peer in rule["from"])


def _is(peer: Mapping[str, Any], source: Pod, target: Pod) -> bool:
    assert peer.keys() <= {"namespaceSelector", "podSelector"}
    if "namespaceSelector" in peer:
        of_namespace = _selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": source.namespace})
    else:
        of_namespace = source.namespace == target.namespace
    return of_namespace and _selects(peer.get("podSelector", {}), source.labels)


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    for expression in selector.get("matchExpressions", ()):
        assert expression["operator"] == "Exists"
        if expression["key"] not in labels:
            return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
