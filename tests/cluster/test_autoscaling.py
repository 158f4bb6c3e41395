"""Kthena's real autoscaler beside `pulumi up`."""

from __future__ import annotations

from typing import Any

import yaml

from tests.cluster.conftest import DEPLOYMENT, Cluster, uids, until

METRIC = "vllm:num_requests_waiting"


def replicas(cluster: Cluster) -> int:
    (serving,) = cluster.objects("modelservings", "--namespace=default")
    (prefill,) = [role for role in serving["spec"]["template"]["roles"] if role["name"] == "prefill"]
    return int(prefill["replicas"])


def declare(cluster: Cluster, **edit: Any) -> None:
    content = yaml.safe_load(cluster.config_file.read_text())
    content["config"]["kthena-pd:deployments"][DEPLOYMENT] |= edit
    cluster.config_file.write_text(yaml.safe_dump(content))


def test_an_edit_leaves_what_the_autoscaler_has_chosen_and_reaches_the_pods(converged: Cluster) -> None:
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
