"""A rollout as it is declared: what a candidate may have, where its mistakes are told, and its spelling in Python."""

from __future__ import annotations

from typing import Any

import pytest

from rules import Finding, StackError, deployment, read
from rules.finding import dotted
from tests import stacks

CANDIDATE = "rollout.candidate."
ENGINE = {"engine": {"env": {"A": "a"}}}


def canary(candidate: Any, **more: Any) -> dict[str, Any]:
    return {"strategy": "Canary", "candidate": candidate, **more}


def found(**declared: Any) -> list[tuple[str, str]]:
    """(code, path below the deployment) of everything that is wrong, warnings included."""
    findings: list[Finding] = []
    cluster = declared.pop("cluster", {"npu": {"family": "A3", "devicePlugin": "cce"}})
    try:
        read(stacks.config(cluster=cluster, **declared), warn=findings.append)
    except StackError as error:
        findings = list(error.findings)
    return [(finding.code, dotted(finding.path).removeprefix("kthena-pd:deployments.deepseekv4-pd.")) for finding in findings]


def test_a_candidate_that_fits_is_no_finding() -> None:
    assert found(rollout=canary(ENGINE)) == []
    assert found(rollout=canary(ENGINE, steps=[1, 100], step=2)) == []


@pytest.mark.parametrize(
    ("candidate", "at"),
    [
        ({"sharedMemory": "1Gi"}, [("PD703", "sharedMemory")]),
        ({"decode": {"batching": {"maxNumSeqs": "many"}}}, [("PD001", "decode.batching.maxNumSeqs")]),
        ({"decode": {"paralelism": {}}}, [("PD001", "decode.paralelism")]),
        ({"engine": {"version": True}}, [("PD001", "engine.version")]),
        ({"ratio": "0P1D", "groups": "x"}, [("PD001", "groups"), ("PD001", "ratio")]),
        ({**ENGINE, "model": {"served": "other"}}, [("PD851", "model.served")]),
        ({**ENGINE, "accept": {"PD703": "roomy"}}, [("PD003", "accept.PD703")]),
        ({**ENGINE, "accept": {"PD001": "why not"}}, [("PD003", "accept.PD001")]),
        ({"sharedMemory": "1Gi", "accept": {"PD703": "measured"}}, []),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_candidate_is_told_where_it_stands(candidate: dict[str, Any], at: list[tuple[str, str]]) -> None:
    assert sorted(found(rollout=canary(candidate))) == [(code, CANDIDATE + path) for code, path in at]


@pytest.mark.parametrize(
    ("declared", "at"),
    [
        ({"sharedMemory": "1Gi"}, "sharedMemory"),
        ({"decode": {"batching": {"maxNumSeqs": "many"}}}, "decode.batching.maxNumSeqs"),
        ({"decode": {"graph": "FULL"}}, "decode.graph"),
    ],
)
def test_what_a_candidate_has_from_its_deployment_is_told_once(declared: dict[str, Any], at: str) -> None:
    assert [path for _, path in found(**declared, rollout=canary(ENGINE))] == [at]


def test_a_warning_that_the_deployment_accepts_is_accepted_for_its_candidate() -> None:
    assert found(accept={"PD703": "measured"}, rollout=canary({"sharedMemory": "1Gi"})) == []
    assert found(accept={"PD703": "measured"}, sharedMemory="1Gi", rollout=canary(ENGINE)) == []


@pytest.mark.parametrize("key", ["name", "namespace", "recipe", "rollout", "route"])
def test_what_both_versions_share_is_not_the_candidates(key: str) -> None:
    value: Any = {"recipe": stacks.RECIPE, "rollout": {"strategy": "Canary"}, "route": {"enabled": False}}.get(key, "other")
    assert found(rollout=canary({**ENGINE, key: value})) == [("PD001", CANDIDATE + key)]
    with pytest.raises(ValueError, match=f"both versions have the same {key}; leave it out"):
        deployment("mine", recipe=stacks.RECIPE, rollout=canary({key: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rollout", "at"),
    [
        ("Canary", "rollout"),
        (canary(5), "rollout.candidate"),
        (canary({}), "rollout.candidate"),
        ({"candidate": ENGINE}, "rollout.strategy"),
        ({"strategy": "Canaries", "candidate": ENGINE}, "rollout.strategy"),
        ({"strategy": "BlueGreen", "candidate": ENGINE}, "rollout"),
        ({"strategy": "Canary", "step": 1}, "rollout"),
        (canary(ENGINE, step=4), "rollout"),
        (canary(ENGINE, steps=[50, 10]), "rollout"),
        (canary(ENGINE, steps=[]), "rollout.steps"),
        (canary(ENGINE, steps=[0, 100]), "rollout.steps[0]"),
        (canary(ENGINE, steps=[True]), "rollout.steps[0]"),
        (canary(ENGINE, stepps=[1]), "rollout.stepps"),
    ],
    ids=str,
)
def test_a_rollout_that_is_none_is_told_once_and_in_its_place(rollout: Any, at: str) -> None:
    assert [path for _, path in found(rollout=rollout)] == [at]


def test_two_candidates_at_once_need_room_for_both() -> None:
    small = {"hostNetwork": False, "prefill": {"parallelism": {"dp": 1}}, "decode": {"parallelism": {"dp": 4}}}
    config = stacks.config(cluster={"npu": {"family": "A3", "devicePlugin": "cce", "nodes": 5}}, **small, rollout=canary(ENGINE))
    config["deployments"]["second"] = {**config["deployments"]["deepseekv4-pd"], "model": {"served": "second"}}

    def crowded() -> list[str]:
        warnings: list[Finding] = []
        read(config, warn=warnings.append)
        return [str(warning.path[1]) for warning in warnings if warning.code == "PD853"]

    assert crowded() == []  # of 80 dies two deployments and two candidates take 16 each
    config["cluster"]["npu"]["nodes"] = 3
    assert crowded() == ["deepseekv4-pd", "second"]
    del config["deployments"]["second"]["rollout"]
    assert crowded() == []


def test_pythons_spelling_says_what_the_stack_files_says() -> None:
    in_python = deployment(
        "deepseekv4-pd",
        recipe=stacks.RECIPE,
        decode={"env": {"B": "b"}},
        rollout={
            "strategy": "Canary",
            "candidate": {
                "decode": {"batching": {"max_num_seqs": 32, "max_num_batched_tokens": 96}, "env": {"a_B": "c"}},
                "model": {"weights": {"claim": {"name": "weights", "path": "/weights"}}},
            },
            "steps": [5, 100],
            "step": 1,
        },
    )
    in_the_file = stacks.config(
        cluster={"npu": {"family": "A3", "devicePlugin": "cce"}},
        decode={"env": {"B": "b"}},
        rollout=canary(
            {
                "decode": {"batching": {"maxNumSeqs": 32, "maxNumBatchedTokens": 96}, "env": {"a_B": "c"}},
                "model": {"weights": {"claim": {"name": "weights", "path": "/weights"}}},
            },
            steps=[5, 100],
            step=1,
        ),
    )
    assert in_python == read(in_the_file).deployments["deepseekv4-pd"]
    assert in_python.candidate is not None
    assert in_python.candidate.decode.env.items() >= {"B": "b", "a_B": "c"}.items()
    assert in_python.rollout is not None
    assert in_python.rollout.percent == 5
