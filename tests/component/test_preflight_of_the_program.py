"""What preflight does to a run of the program."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from components import RefusedEditError, examination, examine
from live import paths
from live.api import ClusterError, MissingKindError
from live.plan import Plan
from live.references import Reference
from live.survey import Survey
from rules import Finding
from tests.component.test_examination import Cluster, Said, _event_loop, cluster, in_a_run, said, stack

__all__ = ["_event_loop", "cluster", "said"]
Finds = Callable[[Survey], None]
EMPTY = Survey("v1.27.0", nodes=None, pods=None)
LACKING = replace(EMPTY, found={Reference(paths.namespaces, "", "default"): None})


@pytest.fixture
def finds(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Finds:
    """Sets what is read of the cluster."""
    assert cluster.deleted == []

    def found(survey: Survey) -> None:
        async def read_survey(api: Any, plan: Plan) -> Survey:
            assert (api, set(plan.stack.deployments)) == (cluster, {"deepseekv4-pd"})
            return survey

        monkeypatch.setattr(examination, "read_survey", read_survey)

    return found


@pytest.mark.parametrize("preview", [False, True])
def test_what_the_cluster_lacks_stops_a_run_before_anything_is_registered(finds: Finds, said: Said, *, preview: bool) -> None:
    in_a_run(preview=preview)
    finds(LACKING)
    with pytest.raises(RefusedEditError) as refused:
        examine(stack())
    assert str(refused.value).startswith("nothing was changed:\n  PF201 ")
    assert said.info == []


def test_a_warning_is_logged_and_stops_nothing(finds: Finds, said: Said) -> None:
    in_a_run(preview=False)
    finds(EMPTY)
    examine(stack())
    (line,) = said.warn
    assert line.startswith("PF001 kthena-pd:cluster.context: warning: the cluster has Kubernetes v1.27.0")


def test_findings_have_their_places_in_the_stack_file(finds: Finds, said: Said) -> None:
    def placed(finding: Finding) -> Finding:
        return replace(finding, file="Pulumi.test.yaml", line=4, column=5)

    in_a_run(preview=False)
    finds(EMPTY)
    examine(stack(), placed)
    assert [line for line in said.warn if not line.startswith("PF001 Pulumi.test.yaml:4:5 ")] == []
    finds(LACKING)
    with pytest.raises(RefusedEditError, match=r"\n  PF201 Pulumi\.test\.yaml:4:5 "):
        examine(stack(), placed)


@pytest.mark.parametrize(("preflight", "times"), [(True, 1), (False, 2)])
def test_kinds_that_the_cluster_does_not_know_are_said_once_and_not_for_each_object_of_them(
    finds: Finds, cluster: Cluster, said: Said, *, preflight: bool, times: int
) -> None:
    in_a_run(preview=False)
    finds(replace(EMPTY, served={}))
    cluster.unknown = "/monitoring.coreos.com/"
    with pytest.raises(RefusedEditError) as refused:
        examine(stack(cluster={"monitoring": {}, "preflight": preflight}))
    assert [line[2:7] for line in str(refused.value).splitlines()[1:] if line[2:].strip() == line[2:]] == (
        ["PF120"] if preflight else ["deeps"] * times
    )
    assert said.warn == []


def test_a_missing_namespace_is_not_said_again_for_each_object_in_it(finds: Finds, cluster: Cluster, said: Said) -> None:
    in_a_run(preview=False)
    finds(LACKING)
    cluster.refuses = lambda _, declared: 404 if declared else 0
    with pytest.raises(RefusedEditError) as refused:
        examine(stack())
    assert str(refused.value).count("\n  ") - str(refused.value).count("\n      ") == 1
    assert said.warn == []


def test_where_kthena_is_missing_all_else_that_is_missing_is_said(
    finds: Finds, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    async def read_edits(*_: object) -> Awaitable[None]:
        raise MissingKindError("the cluster has no Kthena CRDs")

    in_a_run(preview=False)
    finds(replace(LACKING, served={}, control_planes=()))
    monkeypatch.setattr(examination, "read_edits", read_edits)
    with pytest.raises(RefusedEditError) as refused:
        examine(stack(cluster={"controlPlane": {"install": False}}))
    assert [code for code in ("PF101", "PF104", "PF201") if code in str(refused.value)] == ["PF101", "PF104", "PF201"]
    assert said.info == []


def test_of_a_cluster_that_ceases_to_answer_is_told_once_and_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, finds: Finds, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> Awaitable[None]:
        raise ClusterError("no answer")

    in_a_run(preview=True)
    finds(EMPTY)
    for name in ("read_edits", "read_survey"):
        monkeypatch.setattr(examination, name, fail)
    with pytest.raises(RefusedEditError, match="no answer"):
        examine(stack())
    gc.collect()
    assert "Traceback" not in caplog.text


def test_preflight_can_be_switched_off(finds: Finds, said: Said) -> None:
    in_a_run(preview=False)
    finds(LACKING)
    examine(stack(cluster={"preflight": False}))
    assert said.warn == []
