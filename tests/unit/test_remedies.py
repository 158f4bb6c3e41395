"""Remedies followed to the letter, and mistakes that once had a wrong one."""

from __future__ import annotations

from typing import Any

import pytest

from rules import Finding, StackError, read
from tests import stacks

NAME = "deepseekv4-pd"


def found(config: dict[str, Any]) -> dict[str, Finding]:
    warnings: list[Finding] = []
    try:
        read(config, warn=warnings.append)
    except StackError as error:
        return {finding.code: finding for finding in error.findings}
    return {finding.code: finding for finding in warnings}


def routed(*rules: dict[str, Any], **canary: Any) -> dict[str, Any]:
    config = stacks.config(route={"rules": list(rules)}, cluster={"npu": {"family": "A3", "devicePlugin": "cce"}})
    config["deployments"]["canary"] = {"recipe": stacks.RECIPE, "route": {"enabled": False}, **canary}
    return config


@pytest.mark.parametrize(
    ("prefix", "remedy"), [("v1/chat", "/v1/chat"), ("/v2", "/v1/chat/completions"), ("https://x/v1/", "/v1/chat/")]
)
def test_a_path_outside_of_the_api_gets_one_that_is_inside(prefix: str, remedy: str) -> None:
    rule = {"match": {"uri": {"prefix": prefix}}, "targets": {NAME: 1, "canary": 1}}
    assert remedy in found(routed(rule))["PD415"].remedy
    assert "PD415" not in found(routed({**rule, "match": {"uri": {"prefix": remedy}}}))


def test_of_two_rules_for_every_request_one_takes_the_others_targets() -> None:
    assert "its targets in rule 0" in found(routed({"targets": {NAME: 90}}, {"targets": {"canary": 10}}))["PD414"].remedy


def test_a_deployment_with_mistakes_of_its_own_is_not_called_absent() -> None:
    broken = found(routed({"targets": {NAME: 90, "canary": 10}}, engine={"version": "latest"}))
    assert broken.keys() == {"PD001"}


def test_an_adapter_with_the_name_of_its_own_model_gets_another_name_and_nothing_else() -> None:
    adapters = {"lora": {"adapters": {"deepseek_v4": "adapters/a"}}}
    assert found(stacks.config(model=adapters))["PD403"].remedy == "another name, for example deepseek_v4-deepseekv4-pd"


def test_ports_of_added_containers_keep_out_of_the_whole_side_channel() -> None:
    def sidecar(port: int) -> dict[str, Any]:
        return {"containers": [{"name": "log", "image": "registry.example/log:1", "ports": [{"containerPort": port}]}]}

    taken = {
        port: "PD327" in found(stacks.config(decode={"podTemplate": {"spec": sidecar(port)}})) for port in (9000, 9015, 9016)
    }
    assert taken == {9000: True, 9015: True, 9016: False}


def test_arguments_of_the_engine_container_are_refused_as_its_script_reads_none() -> None:
    patch = {"podTemplate": {"spec": {"containers": [{"name": "vllm", "args": ["--max-model-len=1"]}]}}}
    assert found(stacks.config(prefill=patch))["PD320"].remedy == "prefill.extraArgs"


@pytest.mark.parametrize("master", ["mooncake:0", "mooncake:65536", "mooncake:99999", "mooncake:", "mooncake"])
def test_an_address_has_a_port_that_exists(master: str) -> None:
    pool: dict[str, Any] = {
        "kvTransfer": {"connector": "MooncakeHybridConnector", "pool": {"master": master}},
        "engine": {"version": "v0.23.0"},
    }
    assert found(stacks.config(**pool)).keys() == {"PD001"}


def test_what_can_not_be_left_out_is_not_told_to_be() -> None:
    assert "leave it out" not in found({"cluster": None, "deployments": {}})["PD001"].remedy
    assert "leave it out" in found(stacks.config(decode=None))["PD001"].remedy


def test_a_key_with_dots_beside_its_parts_is_removed_as_the_remedy_says() -> None:
    dots = f"deployments.{NAME}.ratio"
    config = stacks.config(ratio="1P1D") | {dots: "2P1D"}
    assert f"`pulumi config rm 'kthena-pd:{dots}'`" in found(config)["PD001"].remedy
    del config[dots]
    assert found(config) == {}


def test_the_shape_of_the_file_can_not_be_accepted() -> None:
    assert "is an error, which can't be accepted" in found(stacks.config(accept={"PD001": "x"}))["PD003"].problem
