"""What belongs to a deployment, told from what belongs to its neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from live import paths
from live.api import Api, ApiRefusedError
from live.snapshot import Snapshot, read_snapshot, read_snapshots

Object = dict[str, Any]
NAME = "modelserving.volcano.sh/name"


class Store(Api):
    """A cluster of some objects, with label selectors as far as they are used."""

    def __init__(self, objects: dict[str, list[Object]], refused: Mapping[str, int] = MappingProxyType({})) -> None:
        self.objects, self.refused = objects, refused
        self.requests = 0

    async def list(self, path: str, labels: str = "", fields: str = "") -> list[Object]:
        self.requests += 1
        if path in self.refused:
            raise ApiRefusedError(self.refused[path], "no")
        found = self.objects.get(path, [])
        if fields:
            return [one for one in found if fields == f"involvedObject.kind={one['involvedObject']['kind']}"]
        return [one for one in found if matches(one["metadata"].get("labels", {}), labels)]


def matches(labels: Object, selector: str) -> bool:
    if " in (" in selector:
        key, _, values = selector.removesuffix(")").partition(" in (")
        return labels.get(key) in values.split(",")
    pairs = [term.partition("=") for term in selector.split(",") if term]
    return all(labels.get(key) == value if equals else key in labels for key, equals, value in pairs)


def serving(deployment: str, name: str, managed_by: str = "kthena-pd") -> Object:
    labels = {"app.kubernetes.io/name": deployment, "app.kubernetes.io/managed-by": managed_by}
    return {"metadata": {"name": name, "labels": labels}}


def of(serving_name: str, name: str) -> Object:
    return {"metadata": {"name": name, "labels": {NAME: serving_name}}}


def event(kind: str, name: str) -> Object:
    return {"involvedObject": {"kind": kind, "name": name}}


CHAT, NEXT, OTHER = serving("chat", "chat"), serving("chat", "chat-0a1b2c3"), serving("chat-2", "chat-2")
EVENTS = [
    event("ModelServing", "chat"),
    event("Pod", "chat-0-prefill-0-0"),
    event("Pod", "chat-0a1b2c3-0-decode-0-0"),
    event("Pod", "chat-2-0-decode-0-0"),
    event("Pod", "chat-window-7d9c"),
    event("Node", "chat"),
]
OBJECTS = {
    paths.model_servings("a"): [CHAT, NEXT, OTHER, serving("chat", "by-hand", managed_by="somebody")],
    paths.pods("a"): [
        of("chat", "chat-0-prefill-0-0"),
        of("chat-0a1b2c3", "chat-0a1b2c3-0-decode-0-0"),
        of("chat-2", "chat-2-0-decode-0-0"),
        of("by-hand", "by-hand-0-decode-0-0"),
        {"metadata": {"name": "without-labels"}},
    ],
    paths.controller_revisions("a"): [of("chat", "chat-r1"), of("chat-2", "chat-2-r1")],
    paths.events("a"): EVENTS,
    paths.model_servings("b"): [serving("chat", "chat")],
}


def names(found: tuple[Object, ...]) -> list[str]:
    return [one["metadata"]["name"] for one in found]


def test_a_snapshot_is_of_both_modelservings_of_a_deployment_and_of_nothing_else() -> None:
    seen = asyncio.run(read_snapshot(Store(OBJECTS), "a", "chat", events=True))
    assert names(seen.model_servings) == ["chat", "chat-0a1b2c3"]
    assert names(seen.pods) == ["chat-0-prefill-0-0", "chat-0a1b2c3-0-decode-0-0"]
    assert names(seen.revisions) == ["chat-r1"]
    told = [(one["involvedObject"]["kind"], one["involvedObject"]["name"]) for one in seen.events]
    assert told == [("Pod", "chat-0-prefill-0-0"), ("Pod", "chat-0a1b2c3-0-decode-0-0"), ("ModelServing", "chat")]


def test_what_is_not_asked_for_is_not_read() -> None:
    store = Store(OBJECTS)
    seen = asyncio.run(read_snapshot(store, "a", "chat", revisions=False))
    assert (seen.revisions, seen.events, store.requests) == ((), (), 2)


def test_of_a_deployment_that_is_not_there_nothing_is_seen() -> None:
    assert asyncio.run(read_snapshot(Store(OBJECTS), "a", "none", events=True)) == Snapshot()


@pytest.mark.parametrize("events", [False, True])
def test_many_deployments_are_read_as_one_by_one_but_with_few_requests(events: bool) -> None:  # noqa: FBT001
    wanted = {"a": {"chat": "chat", "chat-2": "chat-2", "none": "none"}, "b": {"chat": "chat"}}
    store = Store(OBJECTS)
    together = asyncio.run(read_snapshots(store, wanted, events=events))
    assert store.requests == (10 if events else 6)
    for namespace, deployments in wanted.items():
        for deployment in deployments:
            alone = asyncio.run(read_snapshot(store, namespace, deployment, events=events))
            assert together[namespace, deployment] == alone


def test_a_modelserving_that_an_up_will_take_over_is_known_by_its_name() -> None:
    seen = asyncio.run(read_snapshots(Store(OBJECTS), {"a": {"mine": "by-hand"}}))["a", "mine"]
    assert (names(seen.model_servings), names(seen.pods)) == (["by-hand"], ["by-hand-0-decode-0-0"])


def read(store: Store, *, events: bool = True, revisions: bool = True) -> list[Snapshot]:
    """Deployment chat, read both ways."""
    many = asyncio.run(read_snapshots(store, {"a": {"chat": "chat"}}, events=events))
    return [asyncio.run(read_snapshot(store, "a", "chat", events=events, revisions=revisions)), many["a", "chat"]]


def test_events_and_revisions_only_explain_and_may_be_forbidden() -> None:
    store = Store(OBJECTS, {paths.events("a"): 403, paths.controller_revisions("a"): 403})
    for seen in read(store):
        assert names(seen.pods) == ["chat-0-prefill-0-0", "chat-0a1b2c3-0-decode-0-0"]
        assert (seen.events, seen.revisions, seen.revisions_are_hidden) == ((), (), True)


def test_revisions_that_are_not_asked_for_are_not_hidden() -> None:
    assert not read(Store(OBJECTS, {paths.controller_revisions("a"): 403}), revisions=False)[0].revisions_are_hidden
    assert not any(seen.revisions_are_hidden for seen in read(Store(OBJECTS)))


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (paths.model_servings("a"), 403),
        (paths.pods("a"), 403),
        *((kind("a"), code) for kind in (paths.events, paths.controller_revisions) for code in (500, 503)),
    ],
)
def test_what_is_needed_or_is_refused_for_another_reason_is_an_error(path: str, code: int) -> None:
    store = Store(OBJECTS, {path: code})
    with pytest.raises(ApiRefusedError):
        asyncio.run(read_snapshot(store, "a", "chat", events=True))
    with pytest.raises(ApiRefusedError):
        asyncio.run(read_snapshots(store, {"a": {"chat": "chat"}}, events=True))


def test_paths_are_those_of_the_api_server() -> None:
    assert paths.pods("a", "p") == "/api/v1/namespaces/a/pods/p"
    assert paths.nodes() == "/api/v1/nodes"
    assert paths.nodes(name="n") == "/api/v1/nodes/n"
    route = {
        "apiVersion": "networking.serving.volcano.sh/v1alpha1",
        "kind": "ModelRoute",
        "metadata": {"name": "r", "namespace": "a"},
    }
    assert paths.of(route) == "/apis/networking.serving.volcano.sh/v1alpha1/namespaces/a/modelroutes/r"
    assert paths.collection(route) == "/apis/networking.serving.volcano.sh/v1alpha1/namespaces/a/modelroutes"
