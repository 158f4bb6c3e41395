"""What the importer says of a manifest, one fault at a time: a deployment without that fault is changed at one place."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from importer import Imported, import_manifests, read_manifests
from importer.comparison import differences
from importer.engine import Fact, Facts
from importer.explanations import Context, explain
from importer.findings import CODES, Findings
from importer.manifests import Place
from rules.finding import Finding
from tests import stacks

OWN = stacks.ROOT / "tests" / "importer"
CANARY = (OWN / "canary.yaml").read_text()
BINDING = (OWN / "v0.yaml").read_text()
SERVING = "restartGracePeriodSeconds: 30\n"


def imported(*changes: tuple[str, str], more: str = "") -> Imported:
    text = CANARY
    for old, new in changes:
        assert old in text, f"{old} is not there to be changed"
        text = text.replace(old, new, 1)
    return import_manifests([*read_manifests("given.yaml", text), *(read_manifests("more.yaml", more) if more else [])])


@cache
def usual() -> Imported:
    return imported()


def new_findings(found: Imported) -> list[Finding]:
    """Those that the manifest without a change does not have."""
    known = {(finding.code, finding.problem) for finding in usual().findings}
    return [finding for finding in found.findings if (finding.code, finding.problem) not in known]


FAULTS = {
    "an engine id of its own for nobody": (
        '"engine_id\\": \\"$POD_NAME',
        '"engine_id\\": \\"seven',
        "IM101",
        "seven is the same",
    ),
    "a kv_role of the other role": ("kv_producer", "kv_consumer", "IM103", "prefill has kv_role kv_consumer"),
    "another port of the side channel": (
        'kv_port\\": \\"36000\\", \\"engine_id',
        'kv_port\\": \\"36500\\", \\"engine_id',
        "IM104",
        "36000",
    ),
    "a key that nobody reads": ('{\\"kv_connector\\"', '{\\"kv_rank\\": 0, \\"kv_connector\\"', "IM105", "kv_rank"),
    "more NPUs than ranks": (
        'cpu: "64", memory: 256Gi, huawei.com/Ascend910: "4"',
        'cpu: "64", memory: 256Gi, huawei.com/Ascend910: "8"',
        "IM106",
        "8 NPUs",
    ),
    "a name that clients don't use": ("model: chat\n", "model: other\n", "IM107", "404"),
    "a connector that hands nothing over": ("type: mooncake", "type: lmcache", "IM108", "computes every prompt itself"),
    "a router that knows no pairs": ("groupKey: modelserving.volcano.sh/group-name", "groupKey: app", "IM109", "app"),
    "labels that no pod has": (
        "modelserving.volcano.sh/role: prefill}",
        "modelserving.volcano.sh/role: first}",
        "IM109",
        "no prefill pod has",
    ),
    "no readiness probe": (
        "                    readinessProbe: {httpGet: {path: /health, port: 8000}}\n",
        "",
        "IM110",
        "while the model loads",
    ),
    "no shared memory": ("                      - {name: shm, mountPath: /dev/shm}\n", "", "IM111", "64 MiB"),
    "labels of Kthena's": ("{team: search}", "{modelserving.volcano.sh/group-name: one}", "PD322", "look alike to the router"),
    "no hccn.conf": ("                      - {name: hccn, mountPath: /etc/hccn.conf}\n", "", "IM114", "answer garbage"),
    "a shape of the topology from v0.x": (
        "{groupPolicy: {mode: soft, highestTierAllowed: 2}}",
        "{mode: soft, highestTierAllowed: 2}",
        "IM002",
        "groups",
    ),
    "a field that is gone": ("{type: RoleRollingUpdate}", "{rollingUpdateConfiguration: {maxSurge: 1}}", "IM002", "maxSurge"),
    "spreading that is gone": (
        "schedulerName: volcano\n",
        "schedulerName: volcano\n      topologySpreadConstraints: []\n",
        "IM002",
        "topologySpreadConstraints",
    ),
    "no number of workers": ("            workerReplicas: 0\n            maxUnavailable: 1\n", "", "IM002", "workerReplicas"),
    "a field that never was": ("serviceAccountName: engine", "serviceAcountName: engine", "IM002", "serviceAcountName"),
    "a second scheduler": ("schedulerName: volcano", "schedulerName: mine", "IM006", "scheduler mine"),
    "a role of another name": (
        "          - name: decode\n",
        "          - name: extra\n",
        "IM201",
        "prefill, extra are prefill, decode",
    ),
    "a value that only the pod has": ("--enforce-eager", "--enforce-eager --download-dir $(mktemp)", "IM006", "--download-dir"),
    "a script that is nowhere": ('exec vllm serve "$MODEL"', "exec bash /opt/start.sh", "IM004", "/opt/start.sh"),
    "a variable of Kthena's": ("- {name: SITE, value: north}", "- {name: GROUP_SIZE, value: '2'}", "PD302", "GROUP_SIZE"),
    "a secret in plain": ("- {name: SITE, value: north}", "- {name: HUB_TOKEN, value: abc}", "IM123", "HUB_TOKEN"),
    "no limit of memory": ('{cpu: "64", memory: 256Gi, huawei', '{cpu: "64", huawei', "IM006", "no limit of memory"),
    "a secret on the command line": ("--enforce-eager", "--enforce-eager --api-key abc", "IM123", "--api-key"),
    "a password in a URL": ("{name: SITE, value: north}", "{name: PROXY, value: 'http://a:b@proxy'}", "IM123", "PROXY"),
    "a secret beside the engine": (
        'image: "registry.local/shipper:2.1"',
        'image: "registry.local/shipper:2.1", env: [{name: LOG_TOKEN, value: abc}]',
        "IM123",
        "LOG_TOKEN of shipper",
    ),
    "a preStop of its own": (
        "                    securityContext",
        "                    lifecycle: {preStop: {exec: {command: [sleep, '9']}}}\n                    securityContext",
        "IM115",
        "preStop",
    ),
    "a program around the engine": ('exec vllm serve "$MODEL"', 'exec numactl -N 0 vllm serve "$MODEL"', "IM005", "numactl"),
    "an engine in a branch": ("ulimit -n 65535", 'if [ "$A" ]; then', "IM003", "inside of an if"),
    "a field of groups that never was": (
        "schedulerName: volcano\n",
        "schedulerName: volcano\n      foo: 1\n",
        "IM002",
        "spec.foo",
    ),
    "a field of a route that never was": (
        "      modelName: chat\n",
        "      modelName: chat\n      foo: 1\n",
        "IM002",
        "spec.foo",
    ),
    "an owner": (
        "metadata: {name: chat, namespace: serving, annotations:",
        "metadata: {name: chat, namespace: serving, ownerReferences: [{kind: ModelBooster, name: b}], annotations:",
        "IM202",
        "ModelBooster b",
    ),
    "a release of Helm": ("annotations: {", "annotations: {meta.helm.sh/release-name: chat, ", "IM202", "Helm writes"),
    "a label of a router": (
        "    metadata: {name: chat, namespace: serving}\n    spec: &server",
        "    metadata: {name: chat, namespace: serving, labels: {app.kubernetes.io/part-of: llm}}\n    spec: &server",
        "IM006",
        "app.kubernetes.io/part-of=llm of ModelServer",
    ),
    "metadata that is none": (
        "    metadata: {name: chat, namespace: serving}\n    spec: &server",
        "    metadata: {name: chat, namespace: serving, annotations: text}\n    spec: &server",
        "IM000",
        "metadata.annotations is no object",
    ),
    "a port of the other role": ("--host $POD_IP", "--host $POD_IP --port 8001", "IM109", "8001"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_its_code_and_its_place(fault: str) -> None:
    old, new, code, words = FAULTS[fault]
    found = imported((old, new))
    told = [finding for finding in new_findings(found) if finding.code == code and words in finding.problem]
    assert told, [str(finding) for finding in new_findings(found)]
    assert all(finding.file == "given.yaml" and finding.line > 1 and finding.remedy for finding in told)
    unspoken = re.compile(r"\{'|\['|\bNone\b|\b(from|at|is|has|runs|says) nothing\b")
    assert not [finding for finding in found.findings if unspoken.search(f"{finding.problem} {finding.remedy}")]
    assert found.unexplained == ()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("source /usr/local/Ascend/ascend-toolkit/set_env.sh", "set_env.sh, sourced before the engine"),
        (". /usr/local/Ascend/nnal/atb/set_env.sh", "set_env.sh, sourced before the engine"),
        ("source ~/.bashrc || true", "~/.bashrc, sourced before the engine"),
        ("bash /opt/prepare.sh", "/opt/prepare.sh, run before the engine"),
        ("sleep 5", "`sleep 5` of"),
        ('if [ "$A" ]; then export B=1; export C=2; fi', '`if [ "$A" ]; then export B=1; export C=2; fi` of'),
    ],
)
def test_what_stands_before_an_engine_that_is_found_is_one_warning_and_no_start_script(line: str, words: str) -> None:
    found = imported(("ulimit -n 65535", line))
    told = new_findings(found)
    assert {(one.code, one.severity) for one in told} == {("IM005", "warning")}
    assert all(words in one.problem for one in told)
    assert len({one.problem for one in told}) == 1
    assert found.config == usual().config


def test_scripts_of_the_image_alone_start_no_engine() -> None:
    start = "source /usr/local/Ascend/ascend-toolkit/set_env.sh; python3 serve.py"
    found = imported(('exec vllm serve "$MODEL"', start))
    assert [one.code for one in new_findings(found) if one.severity == "error"][:1] == ["IM003"]
    assert not [one for one in new_findings(found) if one.code == "IM004"]


HAND = (OWN / "hand-written.yaml").read_text()
RESOURCES = """\
                resources:
                  requests: {cpu: "4", memory: 32Gi, huawei.com/ascend-1980: "2"}
                  limits: {cpu: "8", memory: 64Gi, huawei.com/ascend-1980: "2"}
"""
ONLY_NPUS = '                resources: {limits: {huawei.com/ascend-1980: "2"}}\n'


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ((RESOURCES, ONLY_NPUS), "resources"),
        (("--max-num-batched-tokens $BATCH", ""), "maxNumBatchedTokens"),
        (("--max-model-len 65536", ""), "maxModelLen"),
        (("- {name: models, hostPath: {path: /models}}", "- {name: models, emptyDir: {}}"), "weights"),
    ],
)
def test_a_deployment_that_lacks_something_is_compared_in_all_else(change: tuple[str, str], missing: str) -> None:
    whole = import_manifests(read_manifests("given.yaml", HAND))
    found = import_manifests(read_manifests("given.yaml", HAND.replace(*change)))
    lacking = [one for one in found.of_stack if one.code == "PD001"]
    assert lacking
    assert all(one.path[-1] == missing and one.line and "recipe" not in one.remedy for one in lacking)
    assert found.compared > 0
    assert found.unexplained == ()
    assert found.objects == (), "it can't be adopted yet"

    def codes(of: Imported) -> set[str]:
        return {one.code for one in of.findings}

    assert codes(whole) <= codes(found)
    assert codes(found) - codes(whole) <= {"IM006"}


def test_prefix_caching_of_decode_by_default_is_a_finding_and_not_declared() -> None:
    found = import_manifests(read_manifests("given.yaml", HAND.replace("--no-enable-prefix-caching", "")))
    deployment = found.config["deployments"]["hand"]
    assert (deployment["prefill"]["prefixCaching"], "prefixCaching" in deployment["decode"]) == (True, False)
    assert [one.problem.split()[3] for one in found.findings if one.code == "PD507"] == ["decode"]
    assert not [one for one in found.of_stack if one.code == "PD507"]
    assert found.unexplained == ()


def test_what_one_role_does_not_have_is_said_so() -> None:
    own = "volumeMounts: [{name: scripts, mountPath: /opt}]\n                env: [*address"
    decode = HAND.replace("env: [*address", own)
    assert decode != HAND
    found = import_manifests(read_manifests("given.yaml", decode))
    assert "decode mounts no volume with the weights" in {one.problem for one in found.findings}


def test_a_flag_is_shown_with_its_line_in_the_script() -> None:
    found = imported(('engine_id\\": \\"$POD_NAME', 'engine_id\\": \\"seven'))
    (told,) = (finding for finding in found.findings if finding.code == "IM101")
    assert "--kv-transfer-config" in CANARY.splitlines()[told.line - 1]


def test_a_wrong_type_is_a_finding_and_the_rest_is_taken_over() -> None:
    found = imported(("workloadPort: {port: 8000}", "workloadPort: 8000"))
    assert [finding for finding in found.findings if finding.code == "IM000" and "workloadPort is no object" in finding.problem]
    assert found.config["deployments"].keys() == {"chat", "chat-next"}


def test_a_binding_of_v0_becomes_the_scaling_of_its_role() -> None:
    policy = CANARY.index("  - apiVersion: workload.serving.volcano.sh/v1alpha1\n    kind: AutoscalingPolicy")
    found = import_manifests([*read_manifests("given.yaml", CANARY[:policy]), *read_manifests("v0.yaml", BINDING)])
    assert found.config["deployments"]["chat"]["autoscaling"] == {
        "prefill": {
            "min": 1,
            "max": 5,
            "metrics": {"vllm:num_requests_waiting": "10"},
            "metricSources": {"vllm:num_requests_waiting": {"pod": {"uri": "/metrics", "port": 9100}}},
        }
    }
    assert [finding.code for finding in found.findings if "AutoscalingPolicyBinding" in finding.problem] == ["IM002"]


def test_what_two_deployments_share_out_is_one_route() -> None:
    deployments = usual().config["deployments"]
    assert deployments["chat"]["route"]["rules"][1] == {"targets": {"chat": 90, "chat-next": 10}}
    assert deployments["chat-next"]["route"] == {"enabled": False}


def test_what_is_a_pods_own_is_in_its_template() -> None:
    role = usual().config["deployments"]["chat"]["prefill"]
    assert role["podTemplate"]["metadata"] == {"labels": {"team": "search"}, "annotations": {"example.com/owner": "search"}}
    spec = role["podTemplate"]["spec"]
    assert spec["serviceAccountName"] == "engine"
    assert [container["name"] for container in spec["containers"]] == ["vllm", "shipper"]
    assert spec["containers"][0]["env"] == [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}]
    assert spec["volumes"] == [{"name": "logs", "emptyDir": {}}]


def test_a_bound_that_is_lost_would_be_a_difference_that_nothing_explains() -> None:
    found = imported(("maxReplicas: 4", "maxReplicas: 6"))
    assert found.config["deployments"]["chat"]["autoscaling"]["groups"]["max"] == 6
    given, rendered = (Facts({("policy", "groups", "max"): Fact(bound, Place("given.yaml", 1))}) for bound in (6, 4))
    (left,) = explain(differences(given, rendered, {}), Context(given, rendered), told := Findings())
    assert (left.given, left.rendered) == (6, 4)
    assert [finding.code for finding in told.found] == ["IM900"]


def test_other_resources_than_cpu_memory_and_npus_are_kept() -> None:
    found = imported(('limits: {cpu: "64",', 'limits: {ephemeral-storage: 20Gi, cpu: "64",'))
    (engine, _) = found.config["deployments"]["chat"]["prefill"]["podTemplate"]["spec"]["containers"]
    assert engine["resources"] == {"limits": {"ephemeral-storage": "20Gi"}}
    assert found.unexplained == ()


@pytest.mark.parametrize(
    "change",
    [
        ("- {name: SITE, value: north}", "- {name: HUB_TOKEN, value: abc-xyz}"),
        ("- {name: SITE, value: north}", "- {name: PROXY, value: 'http://user:abc-xyz@proxy'}"),
        ("--enforce-eager", "--enforce-eager --api-key abc-xyz"),
        ('shipper:2.1"', 'shipper:2.1", env: [{name: LOG_TOKEN, value: abc-xyz}]'),
    ],
)
def test_a_secret_is_in_no_stack_file_and_in_no_finding(change: tuple[str, str]) -> None:
    found = imported(change)
    assert "abc-xyz" not in str(found.config)
    assert "abc-xyz" not in str(found.findings)


def test_a_container_without_a_command_is_started_by_its_args() -> None:
    text = CANARY.replace(
        "command: [bash, -c]\n                    args:", "args:\n                      - bash\n                      - -c"
    )
    assert "command:" not in text
    assert import_manifests(read_manifests("given.yaml", text)).config == usual().config


def test_the_same_object_in_two_files_is_one_and_a_differing_one_is_told() -> None:
    assert imported(more=CANARY).config == usual().config
    assert new_findings(imported(more=CANARY)) == []
    told = new_findings(imported(more=CANARY.replace("maxReplicas: 4", "maxReplicas: 5")))
    assert [(finding.code, "AutoscalingPolicy serving/chat-load" in finding.problem) for finding in told] == [("IM000", True)]


@pytest.mark.parametrize(("namespace", "said"), [("serving", "is the second one of chat"), ("other", "scales none of the given")])
def test_a_policy_is_of_one_modelserving_in_its_namespace(namespace: str, said: str) -> None:
    policy = CANARY[CANARY.index("  - apiVersion: workload.serving.volcano.sh/v1alpha1\n    kind: AutoscalingPolicy") :]
    more = policy.replace("{name: chat-load, namespace: serving}", f"{{name: chat-load-2, namespace: {namespace}}}")
    found = imported(more=f"apiVersion: v1\nkind: List\nitems:\n{more}")
    assert found.config == usual().config
    assert [said in finding.problem for finding in new_findings(found)] == [True]


def test_what_follows_an_engine_in_the_background_is_told() -> None:
    more = "                        python3 /opt/proxy.py &\n                    env: &env"
    found = imported(("                    env: &env", more))
    assert new_findings(found) == [], "nothing follows an `exec`"
    found = imported(("                    env: &env", more), ('exec vllm serve "$MODEL"', 'vllm serve "$MODEL"'))
    assert [finding.code for finding in new_findings(found) if "proxy.py" in finding.problem] == ["IM005"]


def test_a_volume_with_a_name_of_this_programs_gets_another() -> None:
    text = CANARY.replace("name: logs", "name: scripts")
    spec = import_manifests(read_manifests("given.yaml", text)).config["deployments"]["chat"]["prefill"]["podTemplate"]["spec"]
    assert spec["volumes"] == [{"name": "own-scripts", "emptyDir": {}}]
    assert spec["containers"][1]["volumeMounts"] == [{"name": "own-scripts", "mountPath": "/logs"}]


def test_what_all_pods_ask_of_their_nodes_is_the_clusters() -> None:
    assert usual().config["cluster"]["npu"]["nodeSelector"] == {"zone": "a"}


@pytest.mark.parametrize(
    ("declared", "where"),
    [
        ("hostPath: {path: /weights-of-node}", {"hostPath": "/weights-of-node/qwen"}),
        ("nfs: {server: nas, path: /export}", {"nfs": {"server": "nas", "export": "/export/qwen", "path": "/weights/qwen"}}),
    ],
)
def test_weights_are_found_wherever_they_lie(declared: str, where: object) -> None:
    found = imported(("persistentVolumeClaim: {claimName: models}", declared), (", subPath: models", ""))
    assert found.config["deployments"]["chat"]["model"]["weights"] == where


def test_what_a_live_object_has_from_the_server_is_not_looked_at() -> None:
    live = CANARY.replace(
        "metadata: {name: chat, namespace: serving, annotations:",
        "metadata: {uid: 1-2, managedFields: [{manager: kubectl}], creationTimestamp: 2026-01-01T00:00:00Z, "
        "name: chat, namespace: serving, annotations:",
    )
    assert live != CANARY
    assert import_manifests(read_manifests("given.yaml", live)).config == usual().config


def test_every_code_of_a_finding_is_documented() -> None:
    page = Path(stacks.ROOT / "docs" / "import.md").read_text()
    assert [code for code, holds in CODES.items() if f"| {code} | {holds} |" not in page] == []
