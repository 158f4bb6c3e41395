"""Kthena's real autoscaler beside `pulumi up`."""

from __future__ import annotations

import time
from typing import Any

import yaml

from tests.cluster.conftest import DEPLOYMENT, Cluster, uids, until

METRIC = "vllm:num_requests_waiting"
TICK_SECONDS = 16
"""a little more than Kthena's autoscaler takes for one"""


def replicas(cluster: Cluster) -> int:
    (serving,) = cluster.objects("modelservings", "--namespace=default")
    (prefill,) = [role for role in serving["spec"]["template"]["roles"] if role["name"] == "prefill"]
    return int(prefill["replicas"])


def declare(cluster: Cluster, **edit: Any) -> None:
    content = yaml.safe_load(cluster.config_file.read_text())
    content["config"]["kthena-pd:deployments"][DEPLOYMENT] |= edit
    cluster.config_file.write_text(yaml.safe_dump(content))


def test_the_autoscaler_keeps_its_number_through_edits_and_gives_it_back_when_it_is_turned_off(converged: Cluster) -> None:
    idle = {"min": 1, "max": 2, "metrics": {METRIC: "10"}}
    at_once = {"scaleDown": {"period": "1s", "stabilizationWindow": "0s"}}
    declare(converged, ratio="2P1D", autoscaling={"prefill": idle, "behavior": at_once})
    converged.up()
    until(lambda: replicas(converged) == 1 or None, 90)
    kept = uids(converged.settled_pods())

    converged.up()
    declare(converged, recovery={"policy": "ServingGroupRecreate", "restartGracePeriodSeconds": 61})
    converged.up()
    (serving,) = converged.objects("modelservings", "--namespace=default")
    assert serving["spec"]["template"]["restartGracePeriodSeconds"] == 61
    assert replicas(converged) == 1
    assert uids(converged.settled_pods()) == kept

    declare(converged, engine={"env": {"AN_EDIT": "1"}})
    converged.up()
    assert replicas(converged) == 1
    for pod in converged.settled_pods().values():
        assert {"name": "AN_EDIT", "value": "1"} in pod["spec"]["containers"][0]["env"]

    content = yaml.safe_load(converged.config_file.read_text())
    del content["config"]["kthena-pd:deployments"][DEPLOYMENT]["autoscaling"]
    converged.config_file.write_text(yaml.safe_dump(content))
    converged.up()
    assert converged.objects("autoscalingpolicies", "--all-namespaces") == []
    time.sleep(TICK_SECONDS)  # one that had begun with the policy would have set its number by now
    assert replicas(converged) == 2
    converged.up("--expect-no-changes")
