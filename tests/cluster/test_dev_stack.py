"""Stack dev on a real control plane: what a user does, and what the cluster then is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from local.chat import ChatRefusedError
from tests import stacks
from tests.cluster.conftest import DEPLOYMENT, Cluster, is_ready, uids, until

RATIO = f"deployments.{DEPLOYMENT}.ratio"
GROUPS = f"deployments.{DEPLOYMENT}.groups"


def test_make_up_ends_with_an_answer_and_the_proof_that_kv_went_from_prefill_to_decode(cluster: Cluster) -> None:
    assert "proven    KV cache went from prefill to decode" in cluster.first_up
    assert "deepseekv4-pd-0-prefill-0-0 computed" in cluster.first_up
    assert "deepseekv4-pd-0-decode-0-0 was handed these blocks" in cluster.first_up


def test_the_pods_are_those_of_the_seed_each_with_16_dies_on_a_server_of_its_own(converged: Cluster) -> None:
    pods = converged.settled_pods()
    assert pods.keys() == {"deepseekv4-pd-0-prefill-0-0", "deepseekv4-pd-0-decode-0-0"}
    assert all(is_ready(pod) for pod in pods.values())
    requests = [pod["spec"]["containers"][0]["resources"]["requests"]["huawei.com/ascend-1980"] for pod in pods.values()]
    assert requests == ["16", "16"]
    assert len({pod["spec"]["nodeName"] for pod in pods.values()}) == 2


def test_a_second_up_changes_nothing(converged: Cluster) -> None:
    before = uids(converged.pods())
    converged.up("--expect-no-changes")
    assert uids(converged.pods()) == before


def test_refresh_finds_no_drift_and_a_preview_after_it_no_change(converged: Cluster) -> None:
    refresh = ("refresh", "--yes", "--stack", "dev")
    converged.pulumi.run(*refresh)  # takes over what changed in the status meanwhile
    converged.pulumi.run(*refresh, "--expect-no-changes")
    converged.pulumi.run("preview", "--diff", "--expect-no-changes", "--stack", "dev")


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_request_travels_router_prefill_decode_with_its_kv_cache(converged: Cluster, *, stream: bool) -> None:
    answer, evidence = converged.ask(stream=stream)
    assert evidence.failures == ()
    assert answer.text
    assert answer.complete
    assert (answer.chunks > 1) is stream


def test_a_model_that_no_route_serves_is_not_found(converged: Cluster) -> None:
    with pytest.raises(ChatRefusedError) as refused:
        converged.ask(model="no-such-model")
    assert refused.value.status == 404


@pytest.mark.parametrize(
    ("path", "value", "prefill", "decode"),
    [(RATIO, "2P1D", 2, 1), (RATIO, "1P2D", 1, 2), (GROUPS, 2, 2, 2)],
    ids=["2P1D", "1P2D", "2x(1P1D)"],
)
def test_a_ratio_is_changed_by_config_alone_and_back_and_no_other_pod_is_touched(
    converged: Cluster, path: str, value: object, prefill: int, decode: int
) -> None:
    first = uids(converged.settled_pods())
    converged.configure(path, value)
    converged.up()
    grown = converged.settled_pods()
    assert uids(grown).items() >= first.items()
    assert all(is_ready(pod) for pod in grown.values()), "up returned before every pod was ready"
    roles = [pod["metadata"]["labels"]["modelserving.volcano.sh/role"] for pod in grown.values()]
    assert (roles.count("prefill"), roles.count("decode")) == (prefill, decode)
    converged.assert_paired(prefill, decode)
    for _ in range(6):  # several, because the router spreads them; each must stay inside its group
        assert converged.ask()[1].failures == ()
    converged.up("--expect-no-changes")

    converged.configure(path, 1 if path == GROUPS else "1P1D")
    converged.up()
    converged.assert_paired(1, 1)
    left = uids(converged.settled_pods())
    assert len(left) == 2
    assert left.items() <= uids(grown).items()
    untouched = {name: uid for name, uid in first.items() if ("decode" if prefill > decode else "prefill") in name}
    if path == RATIO:
        assert untouched.items() <= left.items()
    assert converged.ask()[1].failures == ()


def test_engines_of_two_groups_never_exchange_kv_and_never_share_an_engine_id(converged: Cluster) -> None:
    converged.configure(GROUPS, 2)
    converged.up()
    converged.assert_paired(2, 2)
    # different questions at the same time: the router sends a known prefix, and whatever comes alone, to one place
    with ThreadPoolExecutor(8) as clients:
        pairs = [evidence for _, evidence in clients.map(converged.ask, (f"{n} " * 200 for n in range(40)))]
    assert [pair.failures for pair in pairs if pair.failures] == []
    hops = [hop for pair in pairs for hop in (pair.prefill, pair.decode) if hop]
    assert len({hop.group for hop in hops}) == 2, "forty requests reached one group only"
    ids = {hop.record["engine_id"]: hop.pod for hop in hops}
    assert len(ids) == len(set(ids.values())) == len({hop.pod for hop in hops})


def test_an_edit_of_a_script_rolls_the_pods_onto_a_new_config_map_and_removes_the_old_one(converged: Cluster) -> None:
    def scripts() -> list[str]:
        found = converged.objects("configmaps", f"--selector=app.kubernetes.io/name={DEPLOYMENT}")
        return [item["metadata"]["name"] for item in found]

    before = scripts()
    pods = uids(converged.settled_pods())
    converged.configure(f"deployments.{DEPLOYMENT}.decode.batching.maxNumSeqs", 24)
    converged.up()
    rolled = converged.settled_pods()
    assert not set(uids(rolled).values()) & set(pods.values())
    after = scripts()
    kept = "-prefill-"  # the scripts of the other role are the same
    assert [name for name in after if kept in name] == [name for name in before if kept in name]
    assert len(after) == len(before)
    assert after != before
    mounted = {pod["spec"]["volumes"][0]["configMap"]["name"] for pod in rolled.values()}
    assert mounted == set(after)
    converged.assert_paired(1, 1)
    assert converged.ask()[1].failures == ()


def test_an_instance_over_two_pods_serves_by_its_entry_pod_once_the_worker_has_joined(converged: Cluster) -> None:
    converged.configure(f"deployments.{DEPLOYMENT}.decode.pods", 2)
    converged.up()
    pods = converged.settled_pods()
    prefill, entry, worker = (f"{DEPLOYMENT}-0-{pod}" for pod in ("prefill-0-0", "decode-0-0", "decode-0-1"))
    assert pods.keys() == {prefill, entry, worker}
    assert all(is_ready(pod) for pod in pods.values())
    dies = {name: pod["spec"]["containers"][0]["resources"]["requests"]["huawei.com/ascend-1980"] for name, pod in pods.items()}
    assert dies == {prefill: "16", entry: "8", worker: "8"}
    logs = {name: converged.local("logs", name).stdout for name in (entry, worker)}
    assert "ranks 4, 5, 6, 7 joined from" in logs[entry]
    assert "a headless worker with ranks 4, 5, 6, 7" in logs[worker]
    converged.assert_paired(1, 1)  # exactly: a worker that the router took for decode would be one too many
    answer, evidence = converged.ask()
    assert answer.text
    assert evidence.failures == ()
    assert evidence.decode is not None
    assert evidence.decode.pod == entry
    converged.up("--expect-no-changes")


def test_an_adapter_is_asked_for_by_its_name_and_its_kv_cache_travels_too(converged: Cluster) -> None:
    for node in converged.state.hosts.iterdir():
        adapter = node / "models/DeepSeek-V4-Flash-w8a8-mtp/adapters/sql"
        adapter.mkdir(parents=True, exist_ok=True)
        (adapter / "adapter_config.json").write_text("{}")
    converged.configure(f"deployments.{DEPLOYMENT}.model.lora.adapters.sql", "adapters/sql")
    converged.up()
    converged.settled_pods()
    converged.assert_paired(1, 1)
    answer, evidence = converged.ask(model="sql")
    assert answer.model == "sql"
    assert evidence.failures == ()
    assert converged.ask()[0].model == "deepseek_v4"


def test_a_setting_of_the_router_reaches_the_running_router(converged: Cluster) -> None:
    converged.configure("cluster.controlPlane.router.scheduler.prefixCache.topKMatches", 6)
    converged.up()
    pods = converged.objects("pods", "--namespace=kthena-system", "--selector=app.kubernetes.io/name=kthena-router")
    (running,) = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    name = running["spec"]["volumes"][0]["configMap"]["name"]
    (mounted,) = [
        item for item in converged.objects("configmaps", "--namespace=kthena-system") if item["metadata"]["name"] == name
    ]
    assert '"topKMatches": 6' in mounted["data"]["routerConfiguration"]
    converged.assert_paired(1, 1)
    assert converged.ask()[1].failures == ()


def test_an_up_that_was_killed_is_taken_up_again_by_the_next_make_up(converged: Cluster) -> None:
    converged.configure(RATIO, "2P2D")
    command = ["pulumi", "up", "--yes", "--skip-preview", "--stack", "dev", "--config-file", str(converged.config_file)]
    with subprocess.Popen(
        [*command, "--non-interactive"], env=converged.environment, cwd=stacks.ROOT, stdout=subprocess.DEVNULL
    ) as up:
        until(lambda: True if len(converged.pods()) > 2 else None, 60)
        os.kill(up.pid, signal.SIGKILL)
    again = converged.local("up", "--config-file", str(converged.config_file))
    assert again.returncode == 0, again.stdout + again.stderr
    assert "released the stack's lock" in again.stderr
    assert "2P2D" in again.stdout
    assert "proven" in again.stdout
    converged.up("--expect-no-changes")


@pytest.mark.parametrize(
    ("path", "value", "said_path"),
    [
        (RATIO, "0P1D", RATIO),
        (RATIO, "P1D", RATIO),
        (RATIO, "1P-1D", RATIO),
        (f"deployments.{DEPLOYMENT}.ratoi", "1P1D", f"deployments.{DEPLOYMENT}.ratoi"),
        (RATIO, "3P2D", RATIO),
    ],
)
def test_a_mistake_stops_preview_and_up_with_its_path_and_without_a_traceback(
    converged: Cluster, path: str, value: str, said_path: str
) -> None:
    kinds = "modelservings,modelservers,modelroutes,configmaps,pods"
    before = {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in converged.objects(kinds)}
    converged.configure(path, value)
    for done in (converged.pulumi.run("preview", "--stack", "dev", check=False), converged.up(check=False)):
        said = done.stdout + done.stderr
        assert done.returncode != 0
        assert f"kthena-pd:{said_path}: " in said
        assert "Traceback" not in said
    after = {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in converged.objects(kinds)}
    assert after == before


def test_a_second_stack_runs_the_second_seed_beside_it_and_leaves_room_for_the_first_to_grow(converged: Cluster) -> None:
    stack = "deepseek-v2-lite"
    config_file = converged.config_file.with_name(f"Pulumi.{stack}.yaml")
    shutil.copy(stacks.ROOT / config_file.name, config_file)
    second = type(converged.pulumi)(converged.state, converged.pulumi.search, config_file)
    second.select(stack)
    second.run("up", "--yes", "--skip-preview", "--stack", stack)
    try:
        assert second.outputs(stack)["router"] == f"http://127.0.0.1:{converged.router_port}"
        pods = converged.settled_pods("deepseek-v2-lite", "dev")
        assert pods.keys() == {"deepseek-v2-lite-0-prefill-0-0", "deepseek-v2-lite-0-decode-0-0"}
        assert all(is_ready(pod) for pod in pods.values())
        assert len({pod["spec"]["nodeName"] for pod in pods.values()}) == 1
        converged.assert_paired(1, 1, "deepseek-v2-lite", "dev")
        assert converged.ask(model="deepseek-ai/DeepSeekV2")[1].failures == ()
        second.run("up", "--yes", "--skip-preview", "--expect-no-changes", "--stack", stack)
        converged.configure(RATIO, "2P1D")
        converged.up()
        converged.assert_paired(2, 1)
    finally:
        second.run("destroy", "--yes", "--skip-preview", "--stack", stack)
    assert converged.objects("modelservings,modelservers,modelroutes", "--namespace=dev") == []
    assert converged.ask()[1].failures == ()


def test_what_an_interrupted_up_has_added_is_gone_after_the_next_one(converged: Cluster) -> None:
    before = uids(converged.settled_pods())
    at = f"deployments.{DEPLOYMENT}.decode.podTemplate.spec"
    converged.configure(f'{at}.nodeSelector["no.such/node"]', "anywhere")
    converged.configure("cluster.preflight", "false")  # it would find it before
    command = ["pulumi", "up", "--yes", "--skip-preview", "--stack", "dev", "--config-file", str(converged.config_file)]
    with subprocess.Popen(
        [*command, "--non-interactive"], env=converged.environment, cwd=stacks.ROOT, stdout=subprocess.DEVNULL
    ) as up:
        until(lambda: True if uids(converged.pods()).keys() and uids(converged.pods()) != before else None, 60)
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=60)
    shutil.copy(stacks.ROOT / "Pulumi.dev.yaml", converged.config_file)
    converged.configure("cluster.controlPlane.router.port", converged.router_port)
    converged.configure("cluster.controlPlane.router.debugPort", converged.debug_port)
    converged.up()
    pods = converged.settled_pods()
    assert all(is_ready(pod) and "nodeSelector" not in pod["spec"] for pod in pods.values())
    converged.assert_paired(1, 1)
    assert converged.ask()[1].failures == ()
