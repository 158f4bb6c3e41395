"""Edits of a deployment while clients ask it without a pause: which of them a client notices."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests import stacks
from tests.cluster.conftest import DEPLOYMENT, Cluster, uids, until
from tests.cluster.stream import Stream, streaming

OF_VERSIONS = "modelservings,modelservers,configmaps"
"""kinds of which each version of the deployment has its own objects"""


@contextmanager
def _asked(cluster: Cluster) -> Iterator[Stream]:
    """The deployment is asked all the time; what came of it is final afterwards."""
    with streaming(f"http://127.0.0.1:{cluster.router_port}", cluster.state.pods) as stream:
        stream.flows(5)
        yield stream


def _edit(cluster: Cluster, path: str, value: object) -> None:
    cluster.configure(f"deployments.{DEPLOYMENT}.{path}", value)


def _take_back(cluster: Cluster, path: str) -> None:
    cluster.pulumi.run("config", "rm", "--stack", "dev", "--path", "--", f"kthena-pd:deployments.{DEPLOYMENT}.{path}")


def _rollout(cluster: Cluster, action: str) -> None:
    command = [sys.executable, "-m", "cli", "rollout", action, DEPLOYMENT, "--stack-file", str(cluster.config_file)]
    done = subprocess.run(command, cwd=stacks.ROOT, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _versions(cluster: Cluster) -> set[str]:
    """The ModelServings. Nothing is left of any other version, and each has a ModelServer."""
    found = [
        (item["kind"], item["metadata"]["name"])
        for item in cluster.objects(OF_VERSIONS, f"--selector=app.kubernetes.io/name={DEPLOYMENT}")
    ]
    servings = {name for kind, name in found if kind == "ModelServing"}
    assert {name for kind, name in found if kind == "ModelServer"} == servings
    scripts = {name.removesuffix(name[-8:]) for kind, name in found if kind == "ConfigMap"}
    assert scripts == {f"{serving}-{role}" for serving in servings for role in ("prefill", "decode")}
    return servings


def _weights(cluster: Cluster) -> dict[str, int]:
    """ModelServer -> its weight in the deployment's route."""
    (route,) = cluster.objects("modelroutes", f"--selector=app.kubernetes.io/name={DEPLOYMENT}")
    (rule,) = route["spec"]["rules"]
    return {target["modelServerName"]: target["weight"] for target in rule["targetModels"]}


def _await_end_of(cluster: Cluster, version: str) -> None:
    """Until its pods have answered their last requests and ended."""
    until(lambda: None if cluster.pods(version) else True, 60)


def test_no_request_fails_while_ratio_and_groups_change_and_change_back(converged: Cluster) -> None:
    with _asked(converged) as stream:
        for path, value in (("ratio", "2P1D"), ("ratio", "1P1D"), ("groups", 2), ("groups", 1)):
            _edit(converged, path, value)
            converged.up()
            stream.flows(10)
        converged.settled_pods()
    assert stream.failures == []


def test_blue_green_changes_over_without_a_failed_request_and_never_to_pods_that_do_not_serve(converged: Cluster) -> None:
    with _asked(converged) as stream:
        _edit(converged, "rollout.strategy", "BlueGreen")
        converged.up()
        (blue,) = _versions(converged)
        assert set(stream.flows(10)) == {blue} != {DEPLOYMENT}

        _edit(converged, "engine.env.VERSION", "green")
        converged.up()
        (green,) = _versions(converged)
        assert set(stream.flows(10)) == {green} != {blue}
        _await_end_of(converged, blue)

        serving = uids(converged.pods(green))
        _edit(converged, "engine.extraArgs[0]", "--no-such-flag")
        broken = converged.up(check=False)
        assert broken.returncode != 0
        assert "unrecognized arguments: --no-such-flag" in broken.stdout
        assert "Traceback" not in broken.stdout + broken.stderr
        assert _weights(converged) == {green: 100}
        assert set(stream.flows(10)) == {green}

        _take_back(converged, "engine.extraArgs")
        converged.up()
        assert _versions(converged) == {green}
        assert uids(converged.pods(green)) == serving
        assert set(stream.flows(10)) == {green}
    assert stream.failures == []
    assert stream.served().keys() == {DEPLOYMENT, blue, green}


def test_a_canary_gets_its_share_and_its_pods_stay_when_it_is_promoted(converged: Cluster) -> None:
    _edit(converged, "rollout.strategy", "Canary")
    converged.up()
    (stable,) = _versions(converged)
    of_stable = uids(converged.pods(stable))
    with _asked(converged) as stream:
        _edit(converged, "rollout.candidate.engine.env.VERSION", "first")
        converged.up()
        (first,) = _versions(converged) - {stable}
        assert stream.flows(20).keys() == {stable}, "a candidate gets no request before its first step"

        _rollout(converged, "next")
        converged.up()
        assert _weights(converged) == {stable: 90, first: 10}
        assert 0 < stream.flows(100)[first] < 30

        _rollout(converged, "abort")
        converged.up()
        assert _versions(converged) == {stable}
        assert uids(converged.pods(stable)) == of_stable
        assert _weights(converged) == {stable: 100}
        assert stream.flows(10).keys() == {stable}
        _await_end_of(converged, first)

        _edit(converged, "rollout.candidate.engine.env.VERSION", "second")
        _edit(converged, "rollout.step", 3)
        converged.up()
        (second,) = _versions(converged) - {stable}
        assert stream.flows(10).keys() == {second}, "at 100 % nothing is left for the deployment as it was"

        of_second = uids(converged.pods(second))
        _rollout(converged, "promote")
        converged.up()
        assert _versions(converged) == {second}
        assert uids(converged.pods(second)) == of_second
        assert stream.flows(10).keys() == {second}
        _await_end_of(converged, stable)
    assert stream.failures == []


def test_groups_are_replaced_one_after_the_other_so_that_two_of_them_serve_on(converged: Cluster) -> None:
    _edit(converged, "groups", 2)
    converged.up()
    before = uids(converged.settled_pods())
    with _asked(converged) as stream:
        _edit(converged, "engine.env.VERSION", "next")
        converged.up()
        stream.flows(10)
        after = uids(converged.settled_pods())
    assert len(after) == len(before)
    assert not set(after.values()) & set(before.values())
    assert stream.failures == []


def test_a_role_is_replaced_beside_the_other_and_only_the_last_instance_of_a_role_is_missed(converged: Cluster) -> None:
    _edit(converged, "recovery.policy", "RoleRecreate")
    _edit(converged, "rolloutStrategy.type", "RoleRollingUpdate")
    _edit(converged, "decode.maxUnavailable", 1)
    _edit(converged, "ratio", "1P2D")
    converged.up()

    def of_role(role: str) -> dict[str, str]:
        return {name: uid for name, uid in uids(converged.settled_pods()).items() if role in name}

    prefill, decode = of_role("prefill"), of_role("decode")
    with _asked(converged) as stream:
        _edit(converged, "decode.env.VERSION", "next")
        converged.up()
        assert of_role("prefill") == prefill
        assert not set(of_role("decode").values()) & set(decode.values())
    assert stream.failures == []

    decode = of_role("decode")
    with _asked(converged) as stream:
        _edit(converged, "prefill.env.VERSION", "next")
        converged.up()
        assert of_role("decode") == decode
        stream.flows(10)
    assert stream.failures, "Kthena has begun to start a new instance before it stops the old one: say so in docs/rollouts.md"
    assert [failure for failure in stream.failures if "no valid prefill-decode pod pairs" not in failure] == []
