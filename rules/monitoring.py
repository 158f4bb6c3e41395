"""What watches the deployments, and who is let in to them."""

from __future__ import annotations

from collections.abc import Iterator

from models.quantities import seconds
from models.stack import Stack
from render.alerts import LONGEST_INTERVAL
from rules.finding import Problem, in_deployment, rule


@rule("PD870", source="Kubernetes, NetworkPolicy and hostNetwork pods", severity="warning")
def network_policy_reaches_the_engines(stack: Stack) -> Iterator[Problem]:
    """Pods on their host's network have the server's address, and no network policy is about them: whoever reaches the server
    reaches the engine. Access to it is then for the servers' own firewall."""
    if stack.cluster.network_policy is None:
        return
    for deployment in stack.deployments.values():
        if deployment.host_network:
            yield Problem(
                in_deployment(deployment, "hostNetwork"),
                "cluster.networkPolicy does nothing for pods on their host's network",
                "false, where the connector works on the pod network; or accept PD870 with what guards the servers' ports",
            )


@rule("PD871", source="Prometheus: rate() needs two samples in its window")
def alerts_see_two_scrapes_in_their_windows(stack: Stack) -> Iterator[Problem]:
    """Most alerts look at the last five minutes. With fewer than two scrapes in them there is no rate, and they never fire."""
    monitoring = stack.cluster.monitoring
    if monitoring and monitoring.alerts and seconds(monitoring.interval) > LONGEST_INTERVAL:
        path = ("cluster", "monitoring", "interval")
        yield Problem(path, f"{monitoring.interval} is too long for alerts", f"at most {LONGEST_INTERVAL}s, or alerts: false")


@rule("PD872", source="Kubernetes, NetworkPolicy: what no rule lets in is kept out", severity="warning")
def prometheus_is_let_in(stack: Stack) -> Iterator[Problem]:
    """The policy keeps Prometheus out where its namespace is not named, and alerts then say that no engine answers. Only where
    it runs on the network of each server, which policies do not reach, it needs no name."""
    policy, monitoring = stack.cluster.network_policy, stack.cluster.monitoring
    is_guarded = any(not deployment.host_network for deployment in stack.deployments.values())
    if policy and monitoring and is_guarded and not policy.namespaces:
        path = ("cluster", "networkPolicy", "namespaces")
        yield Problem(path, "nothing lets Prometheus in to the engines", "the namespace that it runs in, such as [monitoring]")
