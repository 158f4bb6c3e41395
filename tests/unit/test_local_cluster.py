"""Description of the local cluster: nodes, images, and what is wrong with a description that does not fit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from local.cluster import Cluster, load, repository
from local.errors import LocalError
from rules import read_file
from tests import stacks

MINIMAL = {"nodes": [{"name": "a3", "count": 2, "capacity": {"cpu": "8"}}]}


def test_the_shipped_description_has_four_servers_of_sixteen_dies() -> None:
    nodes = load().nodes
    assert [node.name for node in nodes] == [f"ascend-a3-{number}" for number in range(4)]
    assert {node.capacity["huawei.com/ascend-1980"] for node in nodes} == {"16"}
    assert {"/etc/hccn.conf", "/etc/ascend_install.info", "/usr/local/Ascend/driver/tools/hccn_tool"} <= nodes[0].files.keys()


def test_the_stack_file_that_the_docs_give_for_the_cluster_of_mindcluster_fits_it(tmp_path: Path) -> None:
    page = (stacks.ROOT / "docs" / "device-plugins.md").read_text()
    (block,) = re.findall(r"```yaml\n(# Pulumi\.mine\.yaml\n.*?)```", page, re.DOTALL)
    file = tmp_path / "Pulumi.mine.yaml"
    file.write_text(block)
    stack, warnings = read_file(file)
    assert warnings == []
    declared = stack.cluster
    described = load(stacks.ROOT / "local/clusters/mindcluster-a2.yaml")
    assert described.volcano == (declared.scheduler == "volcano")
    assert declared.npu.nodes == len(described.nodes)
    assert all(node.labels.items() >= declared.npu.node_selector.items() for node in described.nodes)
    assert described.npu_resources == ("huawei.com/Ascend910",)


def test_the_shipped_model_directory_has_what_an_engine_opens() -> None:
    model = "/models/DeepSeek-V4-Flash-w8a8-mtp/"
    opened = ("config.json", "chat_template.jinja", "model.safetensors.index.json")
    assert {model + name for name in opened} <= load().nodes[0].files.keys()


def test_every_node_has_an_address_of_its_own_in_the_network_of_the_cluster() -> None:
    cluster = Cluster.model_validate({**MINIMAL, "network": 7, "nodes": [{"name": "n", "count": 600, "capacity": {}}]})
    addresses = [node.address for node in cluster.nodes]
    assert len(set(addresses)) == 600
    assert addresses[0] == "127.7.128.1"
    assert addresses[599] == "127.7.130.88"


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("quay.io/ascend/vllm-ascend:v0.13.0rc3-a3", "quay.io/ascend/vllm-ascend"),
        ("quay.io/ascend/vllm-ascend", "quay.io/ascend/vllm-ascend"),
        ("registry:5000/a/b", "registry:5000/a/b"),
        ("registry:5000/a/b:tag@sha256:abc", "registry:5000/a/b"),
        ("busybox:1", "busybox"),
    ],
)
def test_an_image_is_known_by_its_repository(reference: str, expected: str) -> None:
    assert repository(reference) == expected


def test_an_unknown_image_has_no_stand_in() -> None:
    assert load().image("busybox:1") is None
    assert load().image("ghcr.io/volcano-sh/runtime:latest") is not None


def test_images_get_the_folders_of_the_toolchain() -> None:
    folders = {"kthena": Path("/tools/kthena"), "llm-d-inference-sim": Path("/tools/sim")}
    cluster = load().with_programs(folders)
    router, engine = cluster.image("ghcr.io/volcano-sh/kthena-router:v1"), cluster.image("quay.io/ascend/vllm-ascend:v1")
    assert router is not None
    assert engine is not None
    assert (router.path, router.entrypoint) == (("/tools/kthena",), ("kthena-router",))
    assert engine.path[0].endswith("/local/images/vllm-ascend")
    assert engine.path[1] == "/tools/sim"


def test_an_image_that_names_an_unknown_program_is_an_error() -> None:
    with pytest.raises(LocalError, match=r"images.ghcr.io/volcano-sh/kthena-router.path: '\{kthena\}'"):
        load().with_programs({"llm-d-inference-sim": Path("/x")})


def test_all_containers_run_unless_pods_are_simulated() -> None:
    real, simulated = load(), load(pods="simulated")
    assert not real.simulates("quay.io/ascend/vllm-ascend:v1")
    assert simulated.simulates("quay.io/ascend/vllm-ascend:v1")
    assert simulated.simulates("busybox")


def test_router_and_controller_run_even_where_pods_are_simulated() -> None:
    assert not load(pods="simulated").simulates("ghcr.io/volcano-sh/kthena-router:v1.0.0")
    assert not load(pods="simulated").simulates("ghcr.io/volcano-sh/kthena-controller-manager:v1.0.0")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nodes: []\nimages: {x: {path: a}}", r"images\.x\.path"),
        ("nodes: [{name: A_b, capacity: {}}]", r"nodes\.0\.name"),
        ("nodes: [{name: a, capacity: {}, files: {relative: x}}]", r"nodes\.0\.files"),
        ("nodes: []\npods: some", r"pods: Input should be 'processes' or 'simulated'"),
        ("nodes: []\nnode: 1", "node: Extra inputs"),
        ("{}", "nodes: Field required"),
        ("a: [", "is not YAML"),
        ("[1]", "no mapping"),
    ],
)
def test_a_description_that_does_not_fit_names_the_place(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(LocalError, match=complaint):
        load(file)


def test_a_description_goes_over_the_one_that_it_extends_key_by_key_and_lists_are_whole(tmp_path: Path) -> None:
    base = "pods: simulated\nfiles: {/a: base, /b: base}\nnodes: [{name: x, capacity: {}}, {name: y, capacity: {}}]"
    (tmp_path / "base.yaml").write_text(base)
    (tmp_path / "clusters").mkdir()
    file = tmp_path / "clusters" / "own.yaml"
    file.write_text("extends: ../base.yaml\nfiles: {/b: own}\nnodes: [{name: z, capacity: {}, files: {/c: z}}]")
    (node,) = load(file).nodes
    assert (load(file).pods, node.name, node.files) == ("simulated", "z-0", {"/a": "base", "/b": "own", "/c": "z"})


def test_a_description_that_is_extended_by_mistake_is_named(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("extends: none.yaml")
    with pytest.raises(LocalError, match=r"none\.yaml: No such file"):
        load(file)


@pytest.mark.parametrize("file", sorted((stacks.ROOT / "local" / "clusters").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_other_descriptions_differ_from_the_default_in_their_servers_or_programs_only(file: Path) -> None:
    default, other = load(), load(file)
    assert other.images == default.images
    assert {node.files["/etc/hccn.conf"] for node in other.nodes} == {default.files["/etc/hccn.conf"]}
    assert (other.node_groups, other.volcano) != (default.node_groups, default.volcano)


def test_memory_and_cores_of_dies_are_no_dies() -> None:
    capacity = {
        "cpu": "1",
        "huawei.com/Ascend910B4-1": "8",
        "huawei.com/Ascend910B4-1-memory": "1",
        "huawei.com/Ascend910B3-core": "1",
    }
    cluster = Cluster.model_validate({"nodes": [{"name": "n", "capacity": capacity}]})
    assert cluster.npu_resources == ("huawei.com/Ascend910B4-1",)


def test_a_wrong_switch_names_what_it_could_be() -> None:
    with pytest.raises(LocalError, match="'processes' or 'simulated'"):
        load(pods="fake")


def test_a_description_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    for name, complaint in (("none.yaml", "No such file"), (".", "Is a directory"), ("binary.yaml", "is not YAML")):
        with pytest.raises(LocalError, match=complaint):
            load(tmp_path / name)


def test_the_local_cluster_has_as_many_servers_as_the_example_stacks_count_on() -> None:
    servers = len(load().nodes)
    assert {stacks.stack_file(name)["cluster"]["npu"]["nodes"] for name in ("dev", "deepseek-v2-lite")} == {servers}
