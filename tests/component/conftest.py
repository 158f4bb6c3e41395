"""The recording mock engine: every test that touches resources goes through ``deploy``."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pulumi
import pytest
from pulumi.runtime import rpc
from pulumi.runtime.mocks import MockMonitor

from render.chart import TEMPLATE
from tests import chart

T = TypeVar("T")


@dataclass(frozen=True)
class Registered:
    """One resource as the engine was asked for it."""

    type: str
    name: str
    inputs: dict[str, Any]
    provider: str
    parent: str
    """URN"""
    dependencies: frozenset[str]
    """URNs"""
    custom: bool
    urn: str
    ignore_changes: tuple[str, ...]
    protect: bool

    @property
    def kind(self) -> str:
        return self.type.rpartition(":")[2]

    @property
    def annotations(self) -> dict[str, str]:
        return dict(self.inputs.get("metadata", {}).get("annotations", {}))


class Monitor(MockMonitor):
    """Keeps what the SDK asks for, before any mock answers."""

    def __init__(self, mocks: pulumi.runtime.Mocks) -> None:
        super().__init__(mocks)
        self.registered: list[Registered] = []

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802 - the name of the SDK
        if request.type != "pulumi:pulumi:Stack":
            self.registered.append(
                Registered(
                    type=request.type,
                    name=request.name,
                    inputs=rpc.deserialize_properties(request.object, keep_unknowns=True),
                    provider=request.provider,
                    parent=request.parent,
                    dependencies=frozenset(request.dependencies),
                    custom=request.custom,
                    urn=self.make_urn(request.parent, request.type, request.name),
                    ignore_changes=tuple(request.ignoreChanges),
                    protect=request.protect,
                )
            )
        return super().RegisterResource(request)  # type: ignore[no-untyped-call]


@dataclass
class Answers(pulumi.runtime.Mocks):
    """Answers every registration with the inputs themselves, and with the name and status that a cluster would add.

    In a preview neither is known.
    """

    status: dict[str, Any] = field(default_factory=dict)
    made: bool = False
    """whether objects get an uid, as an API server gives them one: then what waits for the cluster does"""

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        kind = args.typ.rpartition(":")[2]
        status = {"status": self.status[kind]} if kind in self.status else {}
        metadata = args.inputs.get("metadata") or {}
        named = args.typ.startswith("kubernetes:") and "name" not in metadata
        name = rpc.UNKNOWN if pulumi.runtime.is_dry_run() else f"{args.name}-0000000"
        given = {"metadata": {**metadata, "name": name}} if named else {}
        if self.made and metadata:
            given = {"metadata": {**metadata, "uid": "uid"}}
        return f"{args.name}-id", {**args.inputs, **given, **status}

    def call(self, args: pulumi.runtime.MockCallArgs) -> Any:
        assert args.token == TEMPLATE, f"a component called {args.token}; components do no look-ups"
        return {"result": chart.objects()}


@dataclass(frozen=True)
class Recording:
    """Everything that one program registered."""

    resources: tuple[Registered, ...]

    @property
    def kubernetes_objects(self) -> list[Registered]:
        return [resource for resource in self.resources if resource.type.startswith("kubernetes:")]

    def of_kind(self, kind: str) -> list[Registered]:
        return [resource for resource in self.resources if resource.kind == kind]

    def one(self, kind: str) -> Registered:
        found = self.of_kind(kind)
        assert len(found) == 1, f"expected one {kind}, registered: {[(item.type, item.name) for item in self.resources]}"
        return found[0]


Deploy = Callable[..., tuple[Any, Recording]]


@pytest.fixture
def deploy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deploy]:
    """``deploy(build)`` runs ``build`` under mocks; all is registered and every output resolved when it returns."""
    monkeypatch.setenv("PULUMI_ERROR_OUTPUT_STRING", "true")
    loop = asyncio.new_event_loop()  # Pulumi takes the thread's loop, and a test that used asyncio.run has left none
    asyncio.set_event_loop(loop)

    def run_under_mocks(
        build: Callable[[], T],
        *,
        config: dict[str, str] | None = None,
        status: dict[str, Any] | None = None,
        preview: bool = False,
        made: bool = False,
    ) -> tuple[T, Recording]:
        answers = Answers(status or {}, made)
        monitor = Monitor(answers)
        pulumi.runtime.set_mocks(answers, project="kthena-pd", stack="test", preview=preview, monitor=monitor)
        pulumi.runtime.set_all_config(config or {})
        built: list[T] = []

        @pulumi.runtime.test  # type: ignore[untyped-decorator]
        def run() -> None:
            built.append(build())

        run()
        assert monitor.registered, "nothing was registered: the test would pass whatever the program does"
        return built[0], Recording(tuple(monitor.registered))

    yield run_under_mocks
    gc.collect()  # failed futures of a failing test are reported here, not in the middle of another
    asyncio.set_event_loop(None)
    loop.close()
