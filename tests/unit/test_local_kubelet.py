"""The kubelet's pure parts: environment, volumes, probes, addresses, services and phases."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from local.errors import LocalError
from local.kubelet import StartError, devices, services
from local.kubelet.addresses import Addresses
from local.kubelet.containers import Container
from local.kubelet.environment import environment, expand, field, references
from local.kubelet.pods import phase
from local.kubelet.probes import Prober, port_number, schedule, verdicts
from local.kubelet.services import Address
from local.kubelet.volumes import File, Given, files, host_path, mounts, prepare, refresh, tokens, write
from local.logs import find

Json = dict[str, Any]


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


POD: Json = {
    "metadata": {
        "name": "ms-0-prefill-0-0",
        "namespace": "default",
        "uid": "u-1",
        "labels": {"modelserving.volcano.sh/group-name": "ms-0"},
        "annotations": {"note": "a b"},
    },
    "spec": {"nodeName": "ascend-a3-0", "serviceAccountName": "default", "containers": []},
    "status": {"podIP": "127.1.0.5", "podIPs": [{"ip": "127.1.0.5"}], "hostIP": "127.1.128.1"},
}
OBJECTS: dict[tuple[str, str], Json | None] = {
    ("ConfigMap", "scripts"): {"data": {"prefill.sh": "echo p", "SIZE": "3"}, "binaryData": {"blob": encoded("\0")}},
    ("Secret", "token"): {"data": {"HF_TOKEN": encoded("hf_x")}},
    ("ConfigMap", "gone"): None,
    ("Secret", "gone"): None,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)-$(B)y", "x1-2y"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $(", "$A ${A} $("),
        ("$(A", "$(A"),
        ("100$", "100$"),
        ("", ""),
    ],
)
def test_variables_are_expanded_as_kubernetes_does(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "ms-0-prefill-0-0"),
        ("metadata.namespace", "default"),
        ("metadata.uid", "u-1"),
        ("metadata.labels['modelserving.volcano.sh/group-name']", "ms-0"),
        ("metadata.annotations['note']", "a b"),
        ("metadata.labels['missing']", ""),
        ("metadata.annotations", 'note="a b"\n'),
        ("spec.nodeName", "ascend-a3-0"),
        ("status.podIP", "127.1.0.5"),
        ("status.podIPs", "127.1.0.5"),
        ("status.hostIP", "127.1.128.1"),
    ],
)
def test_the_downward_api_gives_fields_of_the_pod(path: str, expected: str) -> None:
    assert field(POD, path) == expected


def test_an_unknown_field_can_not_be_given() -> None:
    with pytest.raises(StartError, match=r"spec\.nowhere"):
        field(POD, "spec.nowhere")


def variables(*env: Json, env_from: tuple[Json, ...] = ()) -> dict[str, str]:
    return environment({"name": "c", "env": list(env), "envFrom": list(env_from)}, POD, OBJECTS, {"PATH": "/bin"})


def test_later_variables_see_earlier_ones_and_what_the_kubelet_gives() -> None:
    got = variables({"name": "A", "value": "$(PATH):$(B)"}, {"name": "B", "value": "b"}, {"name": "C", "value": "$(B)$(A)"})
    assert got == {"PATH": "/bin", "A": "/bin:$(B)", "B": "b", "C": "b/bin:$(B)"}


def test_a_variable_without_value_is_empty() -> None:
    assert variables({"name": "A"})["A"] == ""


def test_the_last_variable_of_a_name_wins_and_the_pod_beats_the_kubelet() -> None:
    got = variables({"name": "PATH", "value": "/x"}, {"name": "A", "value": "1"}, {"name": "A", "value": "2"})
    assert got == {"PATH": "/x", "A": "2"}


def test_values_come_from_fields_config_maps_and_secrets_and_are_not_expanded() -> None:
    got = variables(
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "SIZE", "valueFrom": {"configMapKeyRef": {"name": "scripts", "key": "SIZE"}}},
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "HF_TOKEN"}}},
    )
    assert (got["IP"], got["SIZE"], got["HF_TOKEN"]) == ("127.1.0.5", "3", "hf_x")


def test_whole_config_maps_and_secrets_come_in_with_a_prefix_and_env_beats_them() -> None:
    got = variables(
        {"name": "X_SIZE", "value": "own"},
        env_from=({"prefix": "X_", "configMapRef": {"name": "scripts"}}, {"secretRef": {"name": "token"}}),
    )
    assert got["X_SIZE"] == "own"
    assert got["X_prefill.sh"] == "echo p"
    assert got["HF_TOKEN"] == "hf_x"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ({"configMapKeyRef": {"name": "gone", "key": "k"}}, 'configmap "gone" not found'),
        ({"secretKeyRef": {"name": "gone", "key": "k"}}, 'secret "gone" not found'),
        ({"configMapKeyRef": {"name": "scripts", "key": "k"}}, "couldn't find key k in ConfigMap scripts"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "resourceFieldRef is not supported"),
    ],
)
def test_a_missing_value_keeps_the_container_waiting(source: Json, complaint: str) -> None:
    with pytest.raises(StartError, match=complaint) as caught:
        variables({"name": "A", "valueFrom": source})
    assert caught.value.reason == "CreateContainerConfigError"


def test_a_missing_optional_value_is_left_out() -> None:
    got = variables(
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "gone", "key": "k", "optional": True}}},
        env_from=({"secretRef": {"name": "gone", "optional": True}},),
    )
    assert got == {"PATH": "/bin"}


def test_everything_that_a_pod_refers_to_is_found() -> None:
    spec = {
        "initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "s1"}}]}],
        "containers": [{"name": "c", "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c1", "key": "k"}}}]}],
        "volumes": [
            {"name": "a", "configMap": {"name": "c2"}},
            {"name": "b", "secret": {"secretName": "s2"}},
            {"name": "c", "projected": {"sources": [{"configMap": {"name": "c3"}}, {"secret": {"name": "s3"}}]}},
            {"name": "d", "emptyDir": {}},
        ],
    }
    wanted = {("Secret", f"s{n}") for n in (1, 2, 3)} | {("ConfigMap", f"c{n}") for n in (1, 2, 3)}
    assert references({"spec": spec}) == wanted


def given(*volumes: Json) -> Given:
    return Given({**POD, "spec": {**POD["spec"], "volumes": list(volumes)}}, OBJECTS, {("", 3607): "jwt"})


def test_a_config_map_volume_has_all_keys_with_its_mode() -> None:
    volume = {"name": "v", "configMap": {"name": "scripts", "defaultMode": 0o777}}
    assert files(volume, given()) == {
        "prefill.sh": File(b"echo p", 0o777),
        "SIZE": File(b"3", 0o777),
        "blob": File(b"\0", 0o777),
    }


def test_items_choose_keys_paths_and_modes() -> None:
    items = [{"key": "prefill.sh", "path": "bin/start.sh", "mode": 0o500}]
    volume = {"name": "v", "configMap": {"name": "scripts", "items": items}}
    assert files(volume, given()) == {"bin/start.sh": File(b"echo p", 0o500)}


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ({"configMap": {"name": "gone"}}, 'volume "v" : configmap "gone" not found'),
        ({"secret": {"secretName": "gone"}}, 'volume "v" : secret "gone" not found'),
        ({"configMap": {"name": "scripts", "items": [{"key": "k", "path": "k"}]}}, 'configmap "scripts" has no key k'),
    ],
)
def test_a_volume_of_something_missing_keeps_the_pod_waiting(source: Json, complaint: str) -> None:
    with pytest.raises(StartError, match=complaint) as caught:
        files({"name": "v", **source}, given())
    assert caught.value.reason == "ContainerCreating"


def test_an_optional_volume_of_something_missing_is_empty() -> None:
    assert files({"name": "v", "secret": {"secretName": "gone", "optional": True}}, given()) == {}


def test_the_volume_of_a_service_account_has_token_authority_and_namespace() -> None:
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "scripts", "items": [{"key": "SIZE", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    volume = {"name": "kube-api-access-x", "projected": {"sources": sources, "defaultMode": 0o600}}
    made = files(volume, given())
    assert made is not None
    assert {path: file.content for path, file in made.items()} == {"token": b"jwt", "ca.crt": b"3", "namespace": b"default"}
    assert tokens(given(volume).pod) == {("", 3607)}


def test_files_are_written_with_their_modes_and_over_earlier_ones(tmp_path: Path) -> None:
    write(tmp_path / "v", {"a/b": File(b"1", 0o400)})
    write(tmp_path / "v", {"a/b": File(b"2", 0o755)})
    assert (tmp_path / "v/a/b").read_bytes() == b"2"
    assert (tmp_path / "v/a/b").stat().st_mode & 0o777 == 0o755


def contents(directory: Path) -> dict[str, str]:
    """What a container finds in a volume: the files that are not hidden."""
    return {file.name: file.read_text() for file in directory.iterdir() if not file.name.startswith("..")}


def test_a_volume_that_is_written_anew_holds_what_is_in_it_now_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, {"stays": File(b"1"), "goes": File(b"1")})
    write(tmp_path, {"stays": File(b"2"), "comes": File(b"2")})
    assert contents(tmp_path) == {"stays": "2", "comes": "2"}
    write(tmp_path, {})
    assert contents(tmp_path) == {}
    assert len(list(tmp_path.iterdir())) == 2, "old directories are left behind"


def test_files_of_a_volume_are_replaced_together_and_not_at_all_where_nothing_has_changed(tmp_path: Path) -> None:
    pair = {"tls.crt": File(b"old"), "tls.key": File(b"old")}
    write(tmp_path, pair)
    before = (tmp_path / "..data").readlink()
    write(tmp_path, pair)
    assert (tmp_path / "..data").readlink() == before
    with (tmp_path / "tls.key").open() as opened:
        write(tmp_path, dict.fromkeys(pair, File(b"new")))
        assert opened.read() == "old", "a file that is read is written over"
    assert {(tmp_path / name).resolve().parent for name in pair} == {(tmp_path / "..data").resolve()}
    assert contents(tmp_path) == {"tls.crt": "new", "tls.key": "new"}


def test_a_volume_whose_links_were_not_made_any_more_is_completed(tmp_path: Path) -> None:
    write(tmp_path, {"a": File(b"1")})
    (tmp_path / "a").unlink()
    write(tmp_path, {"a": File(b"1")})
    assert contents(tmp_path) == {"a": "1"}


def test_only_volumes_that_the_kubelet_fills_are_refreshed(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "of-the-container").write_text("")
    refresh(given({"name": "scratch", "emptyDir": {}}, {"name": "v", "configMap": {"name": "scripts"}}), tmp_path)
    assert contents(tmp_path / "scratch").keys() == {"of-the-container"}
    assert contents(tmp_path / "v").keys() == {"prefill.sh", "SIZE", "blob"}


@pytest.mark.parametrize(
    ("path", "kind", "fits"),
    [
        ("/models", "Directory", True),
        ("/etc/hccn.conf", "Directory", False),
        ("/etc/hccn.conf", "File", True),
        ("/models", "File", False),
        ("/absent", "Directory", False),
        ("/absent", "File", False),
        ("/dev/davinci0", "CharDevice", False),
        ("/etc/hccn.conf", "CharDevice", True),
        ("/absent", "DirectoryOrCreate", True),
        ("/models/new", "FileOrCreate", True),
        ("/absent", "", True),
        ("/etc/hccn.conf", "", True),
    ],
)
def test_a_host_path_is_checked_against_its_type(tmp_path: Path, path: str, kind: str, *, fits: bool) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hccn.conf").touch()
    volume = {"name": "v", "hostPath": {"path": path, "type": kind}}
    if fits:
        assert host_path(volume, tmp_path).exists()
    else:
        with pytest.raises(StartError, match="hostPath type check failed"):
            host_path(volume, tmp_path)


def test_a_volume_that_is_not_supported_says_so(tmp_path: Path) -> None:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}
    with pytest.raises(StartError, match="persistentVolumeClaim volumes are not supported by the local cluster"):
        prepare(given(volume), tmp_path, tmp_path)


def mounted(tmp_path: Path, volume: Json, **mount: Any) -> list[tuple[str, str, bool]]:
    what = given({"name": "v", **volume})
    placed = prepare(what, tmp_path / "volumes", tmp_path / "host")
    container = {"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/x", **mount}]}
    made = mounts(container, what.pod, placed, {"ROLE": "p"})
    return [(one.source.removeprefix(str(tmp_path)), one.path, one.read_only) for one in made]


def test_volumes_that_the_kubelet_writes_are_read_only(tmp_path: Path) -> None:
    assert mounted(tmp_path, {"configMap": {"name": "scripts"}}) == [("/volumes/v", "/x", True)]


def test_one_file_of_a_config_map_can_be_mounted_alone(tmp_path: Path) -> None:
    made = mounted(tmp_path, {"configMap": {"name": "scripts"}}, subPath="prefill.sh", mountPath="/workspace/prefill.sh")
    assert made == [("/volumes/v/prefill.sh", "/workspace/prefill.sh", True)]


def test_a_sub_path_that_a_config_map_lacks_keeps_the_container_waiting(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"the volume has no decode\.sh"):
        mounted(tmp_path, {"configMap": {"name": "scripts"}}, subPath="decode.sh")


def test_a_sub_path_of_an_empty_directory_is_made_and_its_variables_expanded(tmp_path: Path) -> None:
    assert mounted(tmp_path, {"emptyDir": {}}, subPathExpr="cache/$(ROLE)") == [("/volumes/v/cache/p", "/x", False)]
    assert (tmp_path / "volumes/v/cache/p").is_dir()


@pytest.mark.parametrize("below", ["../other", "a/../../b", "/etc"])
def test_a_sub_path_may_not_lead_out_of_its_volume(tmp_path: Path, below: str) -> None:
    with pytest.raises(StartError, match="leads out of the volume"):
        mounted(tmp_path, {"emptyDir": {}}, subPath=below)


def test_probes_are_asked_more_often_than_declared_but_not_judged_more_harshly() -> None:
    when = schedule({"initialDelaySeconds": 60, "periodSeconds": 10, "failureThreshold": 3, "timeoutSeconds": 2})
    assert (when.delay, when.period, when.timeout) == (1.0, 1.0, 2)
    assert when.failures * when.period == 30


def test_a_probe_without_numbers_has_the_defaults_of_kubernetes() -> None:
    when = schedule({"httpGet": {"port": 1}})
    assert (when.delay, when.successes, when.timeout, when.failures * when.period) == (0, 1, 1, 30)


def test_verdicts_need_enough_answers_in_a_row() -> None:
    when = schedule({"periodSeconds": 1, "failureThreshold": 2, "successThreshold": 2})
    when = type(when)(delay=0, period=0, timeout=1, successes=when.successes, failures=when.failures)
    answers = iter(["", "no", "", "", "no", "", "no", "bad"])

    async def ask() -> str:
        return next(answers, "over")

    async def first(count: int) -> list[bool]:
        judged = verdicts(when, ask)
        return [await anext(judged) for _ in range(count)]

    assert asyncio.run(first(2)) == [True, False]
    assert next(answers, "over") == "over"


def test_ports_can_be_named() -> None:
    container = {"ports": [{"name": "http", "containerPort": 8080}]}
    assert [port_number(port, container) for port in (7100, "7100", "http")] == [7100, 7100, 8080]
    with pytest.raises(ValueError, match="no port named metrics"):
        port_number("metrics", container)


def test_an_address_is_given_once_and_a_released_one_as_late_as_possible() -> None:
    addresses = Addresses("127.9.0.0/29")
    assert [addresses.take() for _ in range(2)] == ["127.9.0.1", "127.9.0.2"]
    addresses.release("127.9.0.1")
    assert [addresses.take() for _ in range(5)] == [f"127.9.0.{last}" for last in (3, 4, 5, 6, 1)]
    with pytest.raises(LookupError, match="no free address"):
        addresses.take()


def test_addresses_of_pods_that_are_there_already_are_not_given_again() -> None:
    addresses = Addresses("127.9.0.0/24")
    for there in ("127.9.0.1", "127.8.0.2", ""):
        addresses.mark(there)
    assert addresses.take() == "127.9.0.2"
    assert "127.9.0.1" in addresses
    assert "127.8.0.2" not in addresses


def pod(name: str, address: str, *, ready: bool = True, **labels: str) -> Json:
    condition = {"type": "Ready", "status": str(ready)}
    return {
        "metadata": {"name": name, "namespace": "kthena-system", "labels": labels},
        "status": {"podIP": address, "conditions": [condition]},
    }


def service(address: str = "", **selector: str) -> Json:
    ingress = {"loadBalancer": {"ingress": [{"ip": address}]}} if address else {}
    metadata = {"name": "router", "namespace": "kthena-system", "uid": "u"}
    return {"metadata": metadata, "spec": {"type": "LoadBalancer", "selector": selector}, "status": ingress}


def test_a_load_balancer_has_no_address_before_a_pod_of_its_own_is_ready() -> None:
    pods = [pod("a", "1", ready=False, app="r"), pod("c", "3", app="other")]
    assert services.address(service(app="r"), pods) == ""
    assert services.address(service(app="r"), [*pods, pod("b", "2", app="r")]) == "127.0.0.1"


def test_a_load_balancer_keeps_its_address_while_its_pods_are_replaced() -> None:
    assert services.address(service("127.0.0.1", app="r"), [pod("a", "1", ready=False, app="r")]) == "127.0.0.1"


def test_a_pod_that_is_being_deleted_serves_no_longer() -> None:
    leaving = pod("a", "1", app="r")
    leaving["metadata"]["deletionTimestamp"] = "now"
    assert services.address(service(app="r"), [leaving]) == ""


def headless(name: str = "entry", *, unready_too: bool = True, **selector: str) -> Json:
    """As Kthena makes it for an entry pod."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": unready_too, "selector": selector}
    return {"metadata": {"name": name, "namespace": "kthena-system"}, "spec": spec}


def test_a_headless_service_is_known_by_the_names_that_a_clusters_dns_knows() -> None:
    known = services.host_names([headless(app="e")], [pod("a", "127.1.0.3", ready=False, app="e")])
    address, *names = known.split()
    assert address == "127.1.0.3"
    assert names == ["entry.kthena-system", "entry.kthena-system.svc", "entry.kthena-system.svc.cluster.local"]


def test_only_pods_that_a_headless_service_selects_and_publishes_are_known_by_its_name() -> None:
    leaving = pod("d", "127.1.0.4", app="e")
    leaving["metadata"]["deletionTimestamp"] = "now"
    pods = [pod("a", "127.1.0.1", ready=False, app="e"), pod("b", "127.1.0.2", app="e"), pod("c", "127.1.0.3", app="x"), leaving]
    known = [line.split()[0] for line in services.host_names([headless(app="e", unready_too=False)], pods).splitlines()]
    assert known == ["127.1.0.2"]
    assert services.host_names([service(app="e"), headless()], pods) == ""


def webhook(**spec: Any) -> Json:
    """A Service as that of a webhook."""
    ports = [{"port": 8443, "targetPort": "webhook"}]
    metadata = {"name": "webhook", "namespace": "kthena-system", "uid": "w"}
    return {"metadata": metadata, "spec": {"clusterIP": "127.240.0.7", "selector": {"app": "r"}, "ports": ports, **spec}}


def listening(address: str, *ports: Json, ready: bool = True) -> Json:
    return {
        **pod("p", address, ready=ready, app="r"),
        "spec": {"containers": [{"name": "c"}, {"name": "d", "ports": list(ports)}]},
    }


NAMED = {"name": "webhook", "containerPort": 9443}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {("127.240.0.7", 8443): (("127.1.0.1", 9443), ("127.1.0.2", 9444))}),
        ({"ports": [{"port": 80, "targetPort": 9}]}, {("127.240.0.7", 80): (("127.1.0.1", 9), ("127.1.0.2", 9))}),
        ({"ports": [{"port": 80}]}, {("127.240.0.7", 80): (("127.1.0.1", 80), ("127.1.0.2", 80))}),
        ({"ports": [{"port": 80, "targetPort": "no-such-name"}]}, {}),
        ({"ports": [{"port": 53, "protocol": "UDP"}]}, {}),
        ({"selector": {"app": "other"}}, {}),
        ({"selector": None}, {}),
        ({"clusterIP": "None"}, {}),
        ({"type": "ExternalName", "clusterIP": "", "ports": None}, {}),
    ],
)
def test_the_ports_of_a_cluster_ip_lead_to_the_ports_of_the_pods_that_are_ready(
    spec: Json, expected: dict[Address, tuple[Address, ...]]
) -> None:
    pods = [
        listening("127.1.0.1", NAMED),
        listening("127.1.0.2", {**NAMED, "protocol": "UDP"}, {**NAMED, "containerPort": 9444}),
        listening("127.1.0.3", NAMED, ready=False),
    ]
    assert services.forwards([webhook(**spec)], pods) == expected


def test_a_service_with_a_selector_gets_endpoints_that_it_owns() -> None:
    made = services.endpoints(service(app="r"))
    assert made is not None
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert services.endpoints(service()) is None


def container(tmp_path: Path, **state: Any) -> Container:
    async def start() -> tuple[str, ...]:
        raise AssertionError

    made = Container({"name": "c", "image": "i"}, tmp_path, start, lambda: None, lambda *_: None)
    made.done = state.pop("done", False)
    made.last_state = state.pop("last", {})
    made.state = state
    return made


@pytest.mark.parametrize(
    ("policy", "states", "expected"),
    [
        ("Always", [{"waiting": {}}], "Pending"),
        ("Always", [{"running": {}}], "Running"),
        ("Always", [{"running": {}}, {"waiting": {"reason": "ErrImagePull"}}], "Pending"),
        ("Always", [{"waiting": {"reason": "CrashLoopBackOff"}, "last": {"terminated": {}}}], "Running"),
        ("Never", [{"terminated": {"exitCode": 0}, "done": True}], "Succeeded"),
        ("Never", [{"terminated": {"exitCode": 1}, "done": True}, {"terminated": {"exitCode": 0}, "done": True}], "Failed"),
        ("OnFailure", [{"terminated": {"exitCode": 0}, "done": True}, {"running": {}}], "Running"),
    ],
)
def test_the_phase_follows_from_the_containers(tmp_path: Path, policy: str, states: list[Json], expected: str) -> None:
    assert phase(policy, [], [container(tmp_path, **state) for state in states]) == expected


def test_a_pod_whose_init_container_failed_for_good_has_failed(tmp_path: Path) -> None:
    init = container(tmp_path, terminated={"exitCode": 1}, done=True)
    assert phase("Never", [init], [container(tmp_path, waiting={})]) == "Failed"


def test_a_kubelet_that_starts_anew_goes_on_with_the_restarts_of_the_earlier_one(tmp_path: Path) -> None:
    made = container(tmp_path)
    made.resume({"restartCount": 3, "lastState": {"terminated": {"exitCode": 2}}})
    assert made.status()["restartCount"] == 3
    assert made.status()["lastState"] == {"terminated": {"exitCode": 2}}


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    for folder in ("default_ms-0-prefill-0-0_u1/engine", "default_ms-0-decode-0-0_u2/engine", "dev_ms-0-decode-0-0_u3/engine"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "log").touch()
    return tmp_path


def test_a_log_is_found_by_the_name_of_its_pod_or_the_beginning_of_it(pods: Path) -> None:
    assert [log.uid for log in find(pods, "ms-0-prefill-0-0")] == ["u1"]
    assert [log.container for log in find(pods, "ms-0-p")] == ["engine"]
    assert [log.uid for log in find(pods, "ms-0-decode-0-0", namespace="dev")] == ["u3"]


@pytest.mark.parametrize(
    ("name", "container_name", "complaint"),
    [
        ("nothing", None, "no pod nothing has run here"),
        ("ms-0-decode-0-0", None, "could be default/ms-0-decode-0-0, dev/ms-0-decode-0-0"),
        ("ms-0-prefill-0-0", "runtime", "has no container runtime"),
    ],
)
def test_a_log_that_is_not_there_or_not_clear_is_an_error(
    pods: Path, name: str, container_name: str | None, complaint: str
) -> None:
    with pytest.raises(LocalError, match=complaint):
        find(pods, name, container=container_name)


def test_each_die_is_given_to_one_pod_at_a_time_and_again_when_that_pod_is_gone() -> None:
    dies = devices.Devices({"a": 16, "b": 16})
    dies.mark("a", [1])
    first, second = dies.take("a", 2), dies.take("a", 1)
    assert (first, second, dies.take("b", 2)) == ([0, 2], [3], [0, 1])
    dies.release("a", first)
    assert dies.take("a", 3) == [0, 2, 4]


def test_no_node_gives_more_dies_than_it_has() -> None:
    dies = devices.Devices({"a": 4})
    dies.mark("a", [1])
    assert dies.take("a", 1) == [0]
    for node, count, available in (("a", 3, 2), ("unknown", 1, 0)):
        with pytest.raises(LookupError, match=f"Requested: {count}, Available: {available}"):
            dies.take(node, count)
    assert dies.take("a", 2) == [2, 3]


def test_a_pod_says_which_dies_it_has_in_the_device_plugins_annotation() -> None:
    pod: Json = {"metadata": {"annotations": {devices.ANNOTATION: devices.names([3, 11])}}, "spec": {"containers": []}}
    assert pod["metadata"]["annotations"] == {"huawei.com/AscendReal": "Ascend910-3,Ascend910-11"}
    assert devices.given(pod) == [3, 11]
    assert devices.given({"metadata": {}, "spec": {}}) == []
    strange = "Ascend910-, Ascend310-1,Ascend910-x,,Ascend910-2"
    assert devices.given({"metadata": {"annotations": {devices.ANNOTATION: strange}}}) == [2]
    assert devices.given({"metadata": {"annotations": {"huawei.com/Ascend910C": "mine"}}}) == []


def asking(resource: str) -> Json:
    """A pod with one container that asks for two dies, and what HAMi's webhook adds to it."""
    limits = {resource: "2", "huawei.com/Ascend910C-memory": "65536", "huawei.com/Ascend910C-core": "100", "cpu": "1"}
    return {"metadata": {}, "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}}


@pytest.mark.parametrize(
    ("resource", "annotations", "variables"),
    [
        ("huawei.com/ascend-1980", {"huawei.com/AscendReal": "Ascend910-3,Ascend910-11"}, {}),
        ("huawei.com/Ascend910", {"huawei.com/AscendReal": "Ascend910-3,Ascend910-11"}, {"ASCEND_VISIBLE_DEVICES": "3,11"}),
        (
            "huawei.com/Ascend910C",
            {"huawei.com/Ascend910C": '[{"UUID": "simulated-3"}, {"UUID": "simulated-11"}]'},
            {"ASCEND_VISIBLE_DEVICES": "3,11"},
        ),
        (
            "huawei.com/Ascend910B4-1",
            {"huawei.com/Ascend910B4-1": '[{"UUID": "simulated-3"}, {"UUID": "simulated-11"}]'},
            {"ASCEND_VISIBLE_DEVICES": "3,11"},
        ),
    ],
)
def test_each_device_plugin_tells_a_pods_dies_in_its_own_way(
    resource: str, annotations: dict[str, str], variables: dict[str, str]
) -> None:
    pod = asking(resource)
    assert devices.wanted(pod) == 2
    assert devices.left_on(pod, [3, 11]) == annotations
    assert devices.left_on(pod, []) == {}
    assert devices.variables(pod["spec"]["containers"][0], [3, 11]) == variables
    assert devices.given({**pod, "metadata": {"annotations": annotations}}) == [3, 11]


def test_a_container_that_asks_for_no_dies_sees_none() -> None:
    assert devices.variables({"resources": {"limits": {"cpu": "1"}}}, [3, 11]) == {}


def test_dies_are_counted_over_all_containers_and_all_ascend_resources() -> None:
    containers = [
        {"resources": {"limits": {"huawei.com/ascend-1980": "2", "cpu": "8"}}},
        {"resources": {"limits": {"huawei.com/Ascend910": "1"}}},
        {},
    ]
    assert devices.wanted({"spec": {"containers": containers}}) == 3
    assert [devices.of_container(one) for one in containers] == [2, 1, 0]
    assert devices.count({"huawei.com/ascend-1980": "16", "cpu": "192"}) == 16


@pytest.mark.parametrize("steps", range(5))
def test_a_probe_whose_answer_comes_while_it_is_called_off_is_called_off(steps: int) -> None:
    """Else the readiness of a container that has ended would be asked for ever."""

    async def call_off() -> bool:
        answer = asyncio.Event()

        async def execute(_: list[str]) -> str:
            await answer.wait()
            return ""

        asking = asyncio.create_task(Prober().ask({"exec": {"command": ["true"]}}, {}, "127.0.0.1", execute))
        await asyncio.sleep(0.01)
        answer.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        asked_to_end = asking.cancel()
        await asyncio.wait([asking])
        return asking.cancelled() == asked_to_end

    assert asyncio.run(call_off())
