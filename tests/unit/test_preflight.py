"""What is found in a cluster before anything is made, from surveys written by hand."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from live import paths
from live.permissions import Permission
from live.plan import Plan
from live.references import Reference
from live.servers import Footprint, Node, Pod, footprint, node_of, pod_of, thousandths
from live.survey import CERT_MANAGER, NETWORKING, PROMETHEUS_OPERATOR, VOLCANO, WORKLOAD, Survey
from preflight import PROBES, preflight
from render.names import CONTROLLER_NAME, MANAGED, MANAGED_LABEL, ROUTER_NAME
from render.ownership import MANAGER
from rules import Finding, read
from tests import stacks

Object = dict[str, Any]
RESOURCE = "huawei.com/ascend-1980"
CAPACITY = {"cpu": "192", "memory": "2Ti", "pods": "110", RESOURCE: "16"}
A2, A3 = "module-910b-8", "module-a3-16"
OWN_KTHENA: Object = {"controlPlane": {"install": False}}
GANG: Object = {"scheduler": "volcano"}
CLAIM: Object = {"model": {"weights": {"hostPath": None, "claim": {"name": "weights", "path": "/models/w"}}}}
CACHE: Object = {
    "model": {
        "weights": {
            "hostPath": None,
            "download": {
                "source": "hf://a/b",
                "cache": {"claim": {"name": "cache", "path": "/models/w"}},
                "credentials": "token",
            },
        }
    }
}
SCALED: Object = {"autoscaling": {"prefill": {"min": 1, "max": 3, "metrics": {"vllm:num_requests_waiting": "10"}}}}
TOLERANT: Object = {"podTemplate": {"spec": {"tolerations": [{"key": "npu", "operator": "Exists"}]}}}
DEFAULT_QUEUE = Reference(paths.queues, "", "default")


def node(name: str = "a", /, *, cordoned: bool = False, taints: tuple[Object, ...] = (), **changes: Any) -> Node:
    labels = {"kubernetes.io/arch": "arm64", "accelerator-type": A3, **changes.get("labels", {})}
    capacity = {**CAPACITY, **changes.get("capacity", {})}
    return Node(name, labels, thousandths({key: value for key, value in capacity.items() if value}), taints, cordoned)


NODES = tuple(node(name) for name in "abcd")


def deployment(name: str, namespace: str = "kthena-system", image: str = "kthena:v1.0.0", **metadata: Any) -> Object:
    containers = [{"name": name, "image": image}]
    metadata |= {"name": name, "namespace": namespace}
    return {"metadata": metadata, "spec": {"template": {"spec": {"containers": containers}}}}


KTHENA = (deployment(CONTROLLER_NAME), deployment(ROUTER_NAME))
SERVED = {
    WORKLOAD: frozenset({"modelservings", "autoscalingpolicies"}),
    NETWORKING: frozenset({"modelservers", "modelroutes"}),
    VOLCANO: frozenset({"podgroups", "queues"}),
    PROMETHEUS_OPERATOR: frozenset({"podmonitors", "prometheusrules"}),
    CERT_MANAGER: frozenset({"issuers", "certificates"}),
}
WITH_OLD_KIND = {**SERVED, WORKLOAD: SERVED[WORKLOAD] | {"autoscalingpolicybindings"}}
UNTOLD = {"spec": deployment("", image=f"kthena@sha256:{'0' * 64}")["spec"]}
VOLCANO_POD = Pod("volcano-system", "a", Footprint({"pods": 1000}), programs=frozenset({"vc-scheduler"}))
FITS = Survey(
    "v1.34.4",
    served=SERVED,
    nodes=NODES,
    pods=(VOLCANO_POD,),
    found={DEFAULT_QUEUE: {"spec": {}, "status": {"state": "Open"}}},
)


def claim(*modes: str, phase: str = "Bound", storage_class: str = "") -> Object:
    spec = {"accessModes": list(modes), "storageClassName": storage_class}
    return {"metadata": {"namespace": "default", "name": "weights"}, "spec": spec, "status": {"phase": phase}}


def of(name: str, kind: paths.Kind = paths.secrets, namespace: str = "default") -> Reference:
    return Reference(kind, namespace, name)


def quota(hard: Object, used: Object | None = None, **spec: Any) -> dict[str, tuple[Object, ...]]:
    return {"default": ({"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, "status": {"used": used or {}}},)}


def limit_range(**limit: Any) -> dict[str, tuple[Object, ...]]:
    return {"default": ({"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", **limit}]}},)}


def plan(cluster: Object | None = None, name: str = "chat", **declared: Any) -> Plan:
    return Plan(read(stacks.config(name, cluster=cluster, **declared)))


def own_pods(made: Plan, *placed: str, pending: int = 0) -> tuple[Pod, ...]:
    """Pods of the plan's only ModelServing, one after the other in the order of its roles, on nodes ``placed``."""
    (version,) = made.versions
    specs = [(role["name"], spec) for role, spec in version.pod_specs]
    wanted = [*placed, *[""] * pending]
    return tuple(
        Pod("default", where, footprint(specs[index % len(specs)][1]), version.name, specs[index % len(specs)][0], is_entry=True)
        for index, where in enumerate(wanted)
    )


def found(made: Plan, survey: Survey) -> dict[str, Finding]:
    return {finding.code: finding for finding in preflight(made, survey)}


@dataclass
class Case:
    code: str
    says: str
    """a part of what is wrong"""
    wrong: dict[str, Any]
    """of the survey"""
    right: dict[str, Any] = field(default_factory=dict)
    """of the survey, that would be well"""
    cluster: Object = field(default_factory=dict)
    declared: Object = field(default_factory=dict)
    remedy: str = ""


TAINT = {"key": "npu", "value": "x", "effect": "NoSchedule"}
IS_X86: Object = {"engine": {"image": "registry.example/vllm-ascend:v0.22.1rc1-a3-x86_64"}}
LOADS_X86: Object = {"engine": {"env": {"LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"}}}
X86 = node("x", labels={"kubernetes.io/arch": "amd64"})
CASES = [
    Case("PF001", "Kubernetes v1.27.3", {"version": "v1.27.3"}, {"version": "v1.28.0-r2"}),
    Case(
        "PF002",
        "may not create, patch modelservings.workload.serving.volcano.sh in namespace default",
        {
            "denied": tuple(
                Permission(verb, "workload.serving.volcano.sh", "modelservings", "default") for verb in ("create", "patch")
            )
        },
    ),
    Case("PF003", "may not delete configmaps", {"denied": (Permission("delete", "", "configmaps", "default"),)}),
    Case("PF004", "list nodes in the cluster", {"unseen": ("list nodes in the cluster",), "nodes": None}, {"nodes": None}),
    Case(
        "PF101", "does not know modelroutes", {"served": {**SERVED, NETWORKING: frozenset({"modelservers"})}}, cluster=OWN_KTHENA
    ),
    Case(
        "PF102",
        "release v0.4.0",
        {"control_planes": (KTHENA[0], deployment(ROUTER_NAME, image="r.example:5000/kthena-router:v0.4.0"))},
        cluster=OWN_KTHENA,
    ),
    Case(
        "PF103",
        "seems to be older than 1.0",
        {"served": WITH_OLD_KIND, "control_planes": (KTHENA[0] | UNTOLD, KTHENA[1] | UNTOLD)},
        {"served": WITH_OLD_KIND},
        cluster=OWN_KTHENA,
    ),
    Case(
        "PF103",
        "names no release",
        {"control_planes": (KTHENA[0], deployment(ROUTER_NAME, image=f"kthena-router@sha256:{'0' * 64}"))},
        cluster=OWN_KTHENA,
    ),
    Case(
        "PF103",
        "newer than what is rendered for",
        {"control_planes": (KTHENA[0], deployment(ROUTER_NAME, image="kthena-router:v1.1.0"))},
        {"control_planes": (KTHENA[0], deployment(ROUTER_NAME, image="kthena-router:v1.0.3"))},
        cluster=OWN_KTHENA,
    ),
    Case(
        "PF104",
        f"no Deployment {ROUTER_NAME} in namespace kthena-system",
        {"control_planes": (KTHENA[0], deployment(ROUTER_NAME, "ai"))},
        cluster=OWN_KTHENA,
        remedy="ai, where it is",
    ),
    Case(
        "PF105",
        "in namespace ai already",
        {"control_planes": (deployment(CONTROLLER_NAME, "ai"),)},
        {"control_planes": (deployment(ROUTER_NAME, "ai"), deployment(CONTROLLER_NAME, annotations={MANAGER: "dev"}))},
        remedy="install: false with namespace: ai",
    ),
    Case(
        "PF105",
        "in namespace kthena-system already",
        {"control_planes": (deployment(CONTROLLER_NAME, labels={MANAGED_LABEL: "Helm"}),)},
        {"control_planes": (deployment(CONTROLLER_NAME, labels=MANAGED),)},
    ),
    Case(
        "PF106",
        "has no disaggregatedTarget",
        {"policy_schema": {"properties": {"metrics": {}, "behavior": {}, "tolerancePercent": {}}}},
        {"policy_schema": {"properties": dict.fromkeys(("metrics", "behavior", "tolerancePercent", "disaggregatedTarget"))}},
        cluster=OWN_KTHENA,
        declared=SCALED,
    ),
    Case("PF110", "podgroups and queues", {"served": {**SERVED, VOLCANO: frozenset()}}, cluster=GANG),
    Case(
        "PF111",
        "no pod tells that its scheduler runs",
        {"pods": ()},
        {"pods": (replace(VOLCANO_POD, programs=frozenset(), scheduler="volcano"),)},
        cluster=GANG,
    ),
    Case(
        "PF112",
        "no Volcano queue fast",
        {"found": {of("fast", paths.queues, ""): None}},
        {"found": {of("fast", paths.queues, ""): {}}},
        cluster=GANG,
        declared={"scheduling": {"queue": "fast"}},
    ),
    Case("PF112", "is Closed", {"found": {DEFAULT_QUEUE: {"spec": {}, "status": {"state": "Closed"}}}}, cluster=GANG),
    Case(
        "PF112",
        f"32 {RESOURCE}",
        {"found": {DEFAULT_QUEUE: {"spec": {"capability": {RESOURCE: 31}}}}},
        {"found": {DEFAULT_QUEUE: {"spec": {"capability": {RESOURCE: 32}}}}},
        cluster=GANG,
    ),
    Case(
        "PF120",
        "does not know prometheusrules",
        {"served": {**SERVED, PROMETHEUS_OPERATOR: frozenset({"podmonitors", "servicemonitors"})}},
        cluster={"monitoring": {}},
    ),
    Case(
        "PF121",
        "does not know issuers, certificates",
        {"served": {**SERVED, CERT_MANAGER: frozenset()}},
        cluster={"controlPlane": {"certificates": "cert-manager"}},
    ),
    Case(
        "PF201", "no namespace default", {"found": {of("default", paths.namespaces, ""): None}}, remedy="kubectl create namespace"
    ),
    Case(
        "PF201",
        "namespace ai is being deleted",
        {"found": {of("ai", paths.namespaces, ""): {"status": {"phase": "Terminating"}}}},
        {"found": {of("ai", paths.namespaces, ""): None}},
        cluster={"namespaces": ["ai"]},
        declared={"namespace": "ai"},
    ),
    Case("PF202", "no Secret default/token", {"found": {of("token"): None}}, {"found": {of("token"): {}}}, declared=CACHE),
    Case(
        "PF202",
        "no PersistentVolumeClaim default/weights",
        {"found": {of("weights", paths.claims): None}},
        {"found": {of("weights", paths.claims): claim("ReadOnlyMany")}},
        declared=CLAIM,
    ),
    Case(
        "PF203",
        "no Secret default/pull",
        {"found": {of("pull"): None}},
        {"found": {of("pull"): {}}},
        declared={"prefill": {"podTemplate": {"spec": {"imagePullSecrets": [{"name": "pull"}]}}}},
    ),
    Case(
        "PF204",
        "2 pods mount PersistentVolumeClaim default/weights",
        {"found": {of("weights", paths.claims): claim("ReadWriteOncePod")}},
        {"found": {of("weights", paths.claims): claim("ReadWriteMany")}},
        declared=CLAIM,
    ),
    Case(
        "PF204",
        "the downloader writes to",
        {"found": {of("cache", paths.claims): claim("ReadOnlyMany")}},
        {"found": {of("cache", paths.claims): claim("ReadWriteMany")}},
        declared=CACHE,
    ),
    Case(
        "PF205",
        "is Pending",
        {
            "found": {
                of("weights", paths.claims): claim("ReadWriteMany", phase="Pending"),
                of("", paths.storage_classes, ""): {"a": 1},
            }
        },
        {
            "found": {
                of("weights", paths.claims): claim("ReadWriteMany", phase="Pending", storage_class="late"),
                of("late", paths.storage_classes, ""): {"volumeBindingMode": "WaitForFirstConsumer"},
            }
        },
        declared=CLAIM,
    ),
    Case("PF205", "on one node only", {"found": {of("weights", paths.claims): claim("ReadWriteOnce")}}, declared=CLAIM),
    Case(
        "PF210",
        f"need 32 of requests.{RESOURCE}; ResourceQuota q of namespace default leaves 24 of 40",
        {"quotas": quota({f"requests.{RESOURCE}": 40}, {f"requests.{RESOURCE}": 16})},
        {"quotas": quota({f"requests.{RESOURCE}": 48}, {f"requests.{RESOURCE}": 16})},
    ),
    Case("PF210", "need 2 of pods", {"quotas": quota({"pods": 1})}, {"quotas": quota({"pods": 1}, scopes=["BestEffort"])}),
    Case(
        "PF211",
        "container runtime has no limits of cpu",
        {"quotas": quota({"limits.cpu": "10k"})},
        {"quotas": quota({"limits.cpu": "10k"}), "limits": limit_range(default={"cpu": "1"})},
        declared={"runtimeSidecar": True},
    ),
    Case(
        "PF212",
        "container vllm of",
        {"limits": limit_range(max={"memory": "1Gi"})},
        {"limits": limit_range(max={"memory": "1Pi"})},
    ),
    Case("PF212", "wants 500", {"limits": limit_range(min={"cpu": 500})}, {"limits": limit_range(min={"cpu": 1})}),
    Case(
        "PF301",
        f"whose resource {RESOURCE} no node of the cluster offers; there is huawei.com/Ascend910 on 1 node",
        {"nodes": (node(capacity={RESOURCE: "", "huawei.com/Ascend910": "16"}),)},
        remedy="npu: {family: A3, devicePlugin: mindcluster}",
    ),
    Case("PF302", "4 nodes of A2", {"nodes": tuple(node(name, labels={"accelerator-type": A2}) for name in "abcd")}),
    Case(
        "PF302",
        "4 nodes of A2",
        {
            "nodes": tuple(
                node(name, labels={"accelerator-type": "", "node.kubernetes.io/npu.chip.name": "910B3"}) for name in "abcd"
            )
        },
        {"nodes": tuple(node(name, labels={"accelerator-type": ""}) for name in "abcd")},
    ),
    Case(
        "PF303",
        "1 node of A2 too",
        {"nodes": (*NODES, node("e", labels={"accelerator-type": A2}))},
        {"nodes": (*NODES, node("e", labels={"accelerator-type": A2}, cordoned=True))},
        remedy=f"accelerator-type: {A3}",
    ),
    Case("PF304", "is of amd64, and these pods may be put on 4 nodes of arm64", {}, {"nodes": (*NODES, X86)}, declared=IS_X86),
    Case("PF305", "4 nodes of arm64", {"nodes": (*NODES, X86)}, {"nodes": (X86, X86)}, declared=IS_X86),
    Case("PF305", "is of amd64, and these pods may be put on 4 nodes of arm64", {}, {"nodes": (X86, X86)}, declared=LOADS_X86),
    Case("PF401", "16 are free on 1 of 1 nodes", {"nodes": NODES[:1]}, {"nodes": NODES[:2]}),
    Case("PF401", "2 cordoned", {"nodes": tuple(node(name, cordoned=True) for name in "ab")}),
    Case("PF401", "2 tainted npu=x:NoSchedule", {"nodes": tuple(node(name, taints=(TAINT,)) for name in "ab")}),
    Case("PF401", "2 without memory enough", {"nodes": tuple(node(name, capacity={"memory": "1Gi"}) for name in "ab")}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code} {case.says[:40]}")
def test_what_the_cluster_lacks_is_said_with_a_remedy_and_only_then(case: Case) -> None:
    made = plan({**case.cluster}, **case.declared)
    base = replace(FITS, control_planes=KTHENA if case.cluster is OWN_KTHENA else ())
    wrong = [one for one in preflight(made, replace(base, **case.wrong)) if one.code == case.code]
    assert any(case.says in one.problem for one in wrong), wrong
    assert any(case.remedy in one.remedy for one in wrong)
    assert case.code not in found(made, replace(base, **case.right))


def test_each_code_has_a_case() -> None:
    assert {case.code for case in CASES} | {"PF402"} == {one.code for one in PROBES}


def test_the_page_has_each_code_with_its_severity() -> None:
    page = (stacks.ROOT / "docs" / "preflight.md").read_text()
    rows = {
        cells[1].strip(): cells[3].strip() for line in page.splitlines() if (cells := line.split("|"))[1:] and "PF" in cells[1]
    }
    assert {code: says.partition(":")[0] for code, says in rows.items()} == {one.code: one.severity for one in PROBES}


def test_a_cluster_that_has_everything_is_not_complained_of() -> None:
    assert preflight(plan(), FITS) == []
    assert preflight(plan(GANG), FITS) == []
    assert preflight(plan(OWN_KTHENA, **SCALED), replace(FITS, control_planes=KTHENA)) == []


def test_what_may_not_be_seen_is_one_warning_and_nothing_is_made_up_of_it() -> None:
    blind = Survey("v1.34.4", unseen=("list nodes in the cluster", "list pods in the cluster"), nodes=None, pods=None)
    (only,) = preflight(plan(), replace(blind, control_planes=None))
    assert (only.code, only.severity) == ("PF004", "warning")
    assert "list nodes in the cluster, list pods in the cluster" in only.problem


def test_pods_that_are_there_keep_their_places() -> None:
    made = plan()
    assert preflight(made, replace(FITS, nodes=NODES[:2], pods=own_pods(made, "a", "b"))) == []
    other = replace(own_pods(made, "a")[0], serving="another")
    assert "PF401" in found(made, replace(FITS, nodes=NODES[:2], pods=(other,)))
    assert "PF401" in found(made, replace(FITS, nodes=NODES[:2], pods=(other, *own_pods(made, "b"))))


def test_what_the_edit_takes_away_or_is_terminating_makes_room() -> None:
    made, lower = plan(ratio="2P1D"), plan(ratio="1P2D")
    three = own_pods(made, "a", "b", "c")  # prefill, decode, prefill
    assert preflight(lower, replace(FITS, nodes=NODES[:3], pods=three)) == []
    leaving = replace(three[0], serving="another", is_terminating=True)
    assert preflight(plan(), replace(FITS, nodes=NODES[:2], pods=(leaving,))) == []


def test_a_pod_that_grows_needs_room_for_all_of_it() -> None:
    made = plan()
    prefill, decode = own_pods(made, "a", "b")
    smaller = replace(prefill, footprint=Footprint({**prefill.footprint.amounts, RESOURCE: 8000}))
    beside = Pod("other", "a", Footprint({"pods": 1000, RESOURCE: 8000}))
    assert preflight(made, replace(FITS, nodes=NODES[:2], pods=(smaller, decode))) == []
    assert "PF401" in found(made, replace(FITS, nodes=NODES[:2], pods=(smaller, decode, beside)))


def test_what_is_terminating_is_counted_by_a_quota_until_it_is_gone() -> None:
    made = plan()
    leaving = tuple(replace(pod, is_terminating=True) for pod in own_pods(made, "a", "b"))
    full = replace(FITS, quotas=quota({f"requests.{RESOURCE}": 32}, {f"requests.{RESOURCE}": 32}))
    assert preflight(made, replace(full, pods=leaving)) == []
    assert found(made, full).keys() == {"PF210"}


def test_the_second_version_of_a_blue_green_rollout_needs_room_of_its_own() -> None:
    old = plan(rollout={"strategy": "BlueGreen"})
    new = plan(rollout={"strategy": "BlueGreen"}, engine={"env": {"A": "1"}})
    running = own_pods(old, "a", "b")
    assert preflight(old, replace(FITS, nodes=NODES[:3], pods=running)) == []
    assert "16 are free on 1 of 3 nodes" in found(new, replace(FITS, nodes=NODES[:3], pods=running))["PF401"].problem
    assert preflight(new, replace(FITS, pods=running)) == []


def test_pods_of_an_autoscaler_are_as_many_as_there_are() -> None:
    def two(**scaling: Any) -> Plan:
        content = stacks.config("chat", **scaling)
        content["deployments"]["other"] = {"recipe": stacks.RECIPE, "model": {"served": "other"}}
        return Plan(read(content))

    running = own_pods(plan(ratio="2P1D"), "a", "b", "c")  # prefill, decode, prefill
    assert preflight(two(), replace(FITS, pods=running)) == []  # the third goes
    assert "PF401" in found(two(**SCALED), replace(FITS, pods=running))


@pytest.mark.parametrize(
    "pushing",
    [
        {role: {"podTemplate": {"spec": {"priorityClassName": "first"}}} for role in ("prefill", "decode")},
        {"cluster": GANG, "scheduling": {"queue": "fast"}},
    ],
    ids=["priority", "queue"],
)
def test_what_may_push_others_out_is_said_to_be_without_a_place_only_where_empty_nodes_would_not_do(pushing: Object) -> None:
    holders = tuple(Pod("other", name, Footprint({"pods": 1000, RESOURCE: 8000}), scheduler="volcano") for name in "ab")
    assert found(plan(**pushing), replace(FITS, nodes=NODES[:2], pods=holders)).keys() == {"PF402"}
    assert found(plan(**pushing), replace(FITS, nodes=NODES[:1], pods=holders)).keys() == {"PF401"}


def test_a_pod_moves_if_its_node_is_not_declared_any_more_but_not_for_a_taint() -> None:
    moved = plan({"npu": {**stacks.CLUSTER["npu"], "nodeSelector": {"zone": "b"}}})
    running = own_pods(plan(), "a", "b")
    assert "4 without label zone=b" in found(moved, replace(FITS, pods=running))["PF401"].problem
    tainted = tuple(node(name, taints=(TAINT,)) for name in "ab")
    assert preflight(plan(), replace(FITS, nodes=tainted, pods=running)) == []


def test_a_toleration_and_a_node_affinity_decide_like_a_scheduler() -> None:
    tainted = tuple(node(name, taints=(TAINT,)) for name in "ab")
    assert preflight(plan(prefill=TOLERANT, decode=TOLERANT), replace(FITS, nodes=tainted)) == []
    terms = [{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["c"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    affine = {"podTemplate": {"spec": {"affinity": {"nodeAffinity": required}}}}
    in_c = tuple(node(name, labels={"zone": "c"}) for name in "ab")
    made = plan(prefill=affine, decode=affine)
    assert "2 outside of the node affinity" in found(made, replace(FITS, nodes=in_c))["PF401"].problem
    assert preflight(made, FITS) == []


def test_with_the_hosts_network_two_pods_of_one_port_need_two_nodes() -> None:
    halved = {"parallelism": {"dp": 1, "tp": 8}}
    decode = {"parallelism": {"dp": 4, "tp": 2}}
    on_host, inside = (plan(prefill=halved, decode=decode, hostNetwork=on_host) for on_host in (True, False))
    assert "PF401" in found(on_host, replace(FITS, nodes=NODES[:1]))
    assert preflight(inside, replace(FITS, nodes=NODES[:1])) == []
    of_one_kind = plan(prefill=halved, decode=decode, hostNetwork=True, ratio="2P1D")
    assert "PF401" in found(of_one_kind, replace(FITS, nodes=NODES[:2]))
    taken = Pod("other", "a", Footprint({"pods": 1000}, frozenset({("TCP", on_host.stack.deployments["chat"].port)})))
    assert "1 with a host port taken" in found(on_host, replace(FITS, nodes=NODES[:2], pods=(taken,)))["PF401"].problem


def test_fragments_are_counted_as_such() -> None:
    holders = tuple(Pod("other", name, Footprint({"pods": 1000, RESOURCE: 8000})) for name in "abcd")
    said = found(plan(), replace(FITS, pods=holders))["PF401"].problem
    assert "32 are free on 4 of 4 nodes, at most 8 on one" in said
    assert "1 prefill pod of 16, 1 decode pod of 16" in said


def test_what_only_an_unlucky_order_leaves_out_is_a_warning() -> None:
    """Of two nodes with 1000Gi each, 400 + 300 + 300 would fill both; 400 + 400 on the first leaves out one of 300."""

    def role(memory: str) -> Object:
        resources = {"requests": {"cpu": "1", "memory": memory}, "limits": {"cpu": "2", "memory": "1800Gi"}}
        return {"parallelism": {"dp": 1, "tp": 8}, "resources": resources}

    made = plan(ratio="1P2D", groups=2, prefill=role("400Gi"), decode=role("300Gi"), hostNetwork=False)
    capacity = {"memory": "1000Gi", RESOURCE: "24"}
    (only,) = preflight(made, replace(FITS, nodes=(node("a", capacity=capacity), node("b", capacity=capacity))))
    assert (only.code, only.severity) == ("PF402", "warning")
    assert preflight(made, replace(FITS, nodes=(node("a", capacity=capacity), node("b", capacity=capacity), node("c")))) == []


def test_a_thousand_nodes_and_four_thousand_pods_are_looked_through_in_a_second_or_two() -> None:
    chosen = random.Random(6)  # noqa: S311 - the same cluster at every run
    nodes = [_real_node(number) for number in range(1000)]
    pods = [_real_pod(number, chosen.randrange(1000), chosen.choice((1, 2, 4))) for number in range(4000)]
    made = plan({"npu": {"family": "A3", "devicePlugin": "cce"}}, groups=60)
    begin = time.process_time()
    survey = replace(FITS, nodes=tuple(map(node_of, nodes)), pods=tuple(map(pod_of, pods)))
    findings = preflight(made, survey)
    assert time.process_time() - begin < 3
    assert {finding.code for finding in findings} == {"PF401"}
    free = survey.free
    assert free is not None
    assert free[RESOURCE] == sum(amount for amount in _left(survey) if amount > 0)


def _left(survey: Survey) -> list[int]:
    held: dict[str, int] = {}
    for pod in survey.pods or ():
        held[pod.node] = held.get(pod.node, 0) + pod.footprint.amounts[RESOURCE] // 1000
    return [16 - held.get(one.name, 0) for one in survey.nodes or ()]


def _real_node(number: int) -> Object:
    return {
        "metadata": {"name": f"node-{number}", "labels": {"kubernetes.io/arch": "arm64", "accelerator-type": A3, **MANAGED}},
        "spec": {},
        "status": {"allocatable": CAPACITY},
    }


def _real_pod(number: int, where: int, dies: int) -> Object:
    resources = {"requests": {"cpu": "500m", "memory": "16Gi"}, "limits": {RESOURCE: str(dies)}}
    container = {"name": "c", "image": "registry.example/c:v1", "resources": resources}
    spec = {"nodeName": f"node-{where}", "containers": [container, {"name": "d", "resources": {"requests": {"cpu": "10m"}}}]}
    return {"metadata": {"name": f"pod-{number}", "namespace": "other"}, "spec": spec, "status": {"phase": "Running"}}


def test_the_largest_init_container_counts_and_a_sidecar_counts_with_the_others() -> None:
    def container(cpu: str, **more: Any) -> Object:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec = {"containers": [container("1"), container("500m")], "initContainers": [container("4")]}
    assert footprint(spec).amounts["cpu"] == 4000
    spec["initContainers"] = [container("1", restartPolicy="Always"), container("4")]
    assert footprint(spec).amounts["cpu"] == 5000
    spec["initContainers"] = [container("1", restartPolicy="Always")]
    assert footprint(spec).amounts["cpu"] == 2500
