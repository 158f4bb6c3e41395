"""Every P/D manifest among Kthena's examples, and the figures of the guides: what is found, and that nothing else differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from importer import Imported, ManifestError, import_manifests, read_manifests
from importer.text import stack_text
from local import toolchain
from rules import Source, StackError, read
from tests import stacks

OWN = stacks.ROOT / "tests" / "importer"
V4_FLASH = ("examples/models/deepseek-v4-flash/modelserving.yaml", "examples/models/deepseek-v4-flash/router.yaml")
V2_LITE = (
    "examples/model-serving/prefill-decode-disaggregation.yaml",
    "examples/kthena-router/ModelServer-prefill-decode-disaggregation.yaml",
    "examples/kthena-router/ModelRoute-prefill-decode-disaggregation.yaml",
)
OF_V2_LITE = {
    "IM008": 1,  # A2 and A3 servers have the resource, and the image's tag tells neither
    "IM101": 2,  # engine ids 0 and 1
    "IM102": 4,  # dp_size 2 of both roles in both configurations, and no --data-parallel-size
    "IM104": 1,  # ports 20001 and 20002
    "IM106": 2,  # four NPUs for two ranks
    "IM108": 1,  # nixl
    "IM110": 2,  # no startup probes
    "IM115": 4,  # neither drained nor given time
    "IM120": 1,  # prefix caching of prefill by the engine's default
    "IM201": 2,  # ModelServer and ModelRoute
}
TAKEN_OVER: dict[str, tuple[tuple[str, ...], Mapping[str, int], set[str]]] = {
    "deepseek-v4-flash": (
        V4_FLASH,
        {
            "IM007": 10,  # ROLE, TP_SIZE, DP_SIZE, NODE_IP of both, ENGINE_ID of decode; --enable-expert-parallel twice
            "IM101": 2,  # the engine id in single quotes
            "IM105": 2,  # kv_connector_module_path
            "IM110": 4,  # neither startup nor liveness probes
            "IM111": 2,  # shared memory without a size
            "IM115": 4,
            "IM116": 2,  # jemalloc of one architecture
            "IM118": 4,  # side channel and RPC port of the nodes
            "IM121": 2,  # scripts by subPath
            "IM122": 1,  # decode without --data-parallel-size-local
            "IM201": 1,  # ModelRoute
            "PD202": 1,  # VLLM_USE_V1
        },
        {"PD307", "PD422"},
    ),
    "deepseek-v2-lite": (
        V2_LITE,
        OF_V2_LITE | {"IM105": 2, "IM107": 2, "IM112": 3, "IM119": 4},
        {"PD422", "PD506", "PD603", "PD703"},
    ),
    "guide": (
        ("guide.yaml",),
        OF_V2_LITE | {"IM002": 2, "IM107": 1, "IM112": 2, "IM119": 2},
        {"PD422", "PD506", "PD603", "PD703"},
    ),
    "canary": (
        ("canary.yaml",),
        {
            "IM005": 1,  # ulimit, which stands once for both versions
            "IM102": 1,  # decode believes prefill to have tp 8
            "IM115": 2,
            "IM117": 1,
            "IM120": 2,
            "IM201": 2,
        },
        {"PD807", "PD880"},
    ),
}
"""Name -> files; code -> how many; codes of the rules about the new stack. The article about DeepSeek-V4-Flash has the figures of
Kthena's example"""
REFUSED: dict[str, tuple[str, str]] = {
    "examples/kthena-router/ModelServing-ds1.5b-pd-disaggregation.yaml": ("IM003", "started without `vllm serve`"),
    "examples/model-serving/gangPolicy.yaml": ("IM003", "started without `vllm serve`"),
    "examples/model-serving/gpu-pd-disaggregation.yaml": ("IM003", "nvidia.com/gpu"),
    "examples/model-serving/network-topology.yaml": ("IM003", "started without `vllm serve`"),
    "examples/model-serving/role-rollingupdate.yaml": ("IM003", "started without `vllm serve`"),
    "examples/model-serving/rollingupdate.yaml": ("IM003", "started without `vllm serve`"),
    "examples/model-serving/sample.yaml": ("IM003", "started without `vllm serve`"),
    "examples/model-serving/sglang-pd-disaggregation.yaml": ("IM003", "started without `vllm serve`"),
    "examples/prometheus-autoscaler/disaggregated-autoscaler/podinfo-disaggregated-modelserving.yaml": (
        "IM003",
        "started without `vllm serve`",
    ),
    "examples/prometheus-autoscaler/disaggregated-autoscaler/autoscalerPolicy.yaml": ("IM006", "none of the given deployments"),
    "examples/kthena-router/ModelServer-ds1.5b-pd-disaggregation.yaml": ("IM109", "none of the given deployments"),
    "examples/model-booster/prefill-decode-disaggregation.yaml": ("IM001", "ModelBooster"),
}
"""Example -> the finding that says why nothing comes of it"""
TEMPLATES = "cli/kthena/helm/templates/Qwen"


@pytest.fixture(scope="session")
def kthena() -> Path:
    return toolchain.upstream_directory(toolchain.KTHENA)


def imported(directory: Path, *names: str) -> Imported:
    return import_manifests([one for name in names for one in read_manifests(name, (directory / name).read_text())])


@pytest.mark.parametrize("name", TAKEN_OVER)
def test_what_is_found_is_what_is_wrong(name: str, kthena: Path) -> None:
    files, expected, of_stack = TAKEN_OVER[name]
    found = imported(OWN if (OWN / files[0]).is_file() else kthena, *files)
    assert Counter(finding.code for finding in found.findings) == Counter(expected)
    assert {finding.code for finding in found.of_stack} == of_stack
    assert all(finding.file in files and finding.line > 0 for finding in found.findings)


@pytest.mark.parametrize("name", TAKEN_OVER)
def test_each_difference_to_what_is_rendered_has_a_finding_or_is_of_form(name: str, kthena: Path) -> None:
    files, _, _ = TAKEN_OVER[name]
    found = imported(OWN if (OWN / files[0]).is_file() else kthena, *files)
    assert found.unexplained == ()
    assert found.compared > 100, "there was something to compare"


@pytest.mark.parametrize("name", TAKEN_OVER)
def test_the_stack_file_is_read_as_it_was_meant_and_passes_the_rules(name: str, kthena: Path) -> None:
    files, _, _ = TAKEN_OVER[name]
    found = imported(OWN if (OWN / files[0]).is_file() else kthena, *files)
    source = Source("Pulumi.new.yaml", stack_text(found.config))
    assert source.config == found.config
    assert read(source.config, source).deployments.keys() == found.config["deployments"].keys()


@pytest.mark.parametrize("example", REFUSED)
def test_what_can_not_be_taken_over_is_said(example: str, kthena: Path) -> None:
    found = imported(kthena, example)
    code, words = REFUSED[example]
    assert found.config["deployments"] == {}
    assert [finding for finding in found.findings if finding.code == code and words in finding.problem]


def test_every_example_with_a_prefill_role_is_in_one_of_the_tables(kthena: Path) -> None:
    examples = {
        str(path.relative_to(kthena))
        for path in kthena.glob("examples/**/*.yaml")
        if "prefill" in (text := path.read_text()) and "volcano.sh" in text
    }
    of_services = "examples/prometheus-autoscaler/disaggregated-autoscaler/podinfo-disaggregated-services.yaml"
    assert examples - {of_services} <= {*REFUSED, *V4_FLASH, *V2_LITE}


def test_helm_templates_are_refused_with_the_command_that_renders_them(kthena: Path) -> None:
    templates = sorted((kthena / TEMPLATES).glob("*PD-Disaggregated*.yaml"))
    assert len(templates) == 3
    for template in templates:
        with pytest.raises(ManifestError, match="helm template"):
            read_manifests(template.name, template.read_text())


def test_what_a_model_booster_makes_is_taken_over_and_what_it_does_not_say_is_asked_for(kthena: Path) -> None:
    found = imported(kthena, "pkg/model-booster-controller/convert/testdata/expected/disaggregated-model-serving.yaml")
    assert {(finding.code, finding.path[-1]) for finding in found.of_stack} == {("PD001", "batching"), ("PD001", "version")}
    config: dict[str, Any] = found.config
    with pytest.raises(StackError, match=r"engine\.version: is missing"):
        read(config)
