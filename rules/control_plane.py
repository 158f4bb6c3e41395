"""Kthena's controller and router: what they would end with at their start, or do without saying so."""

from __future__ import annotations

import re
from collections.abc import Iterator

from models.cluster import ControlPlane
from models.stack import Stack
from rules.finding import Path, Problem, rule

_ROUTER = "Kthena v1.0.0 pkg/kthena-router/router/router.go"
_PROVIDER = "pulumi-kubernetes v4.25.0 provider/pkg/provider/invoke_helm_template.go"
_AT: Path = ("cluster", "controlPlane")
_CHART_FILE = re.compile(r"/\w+-[^/]+\.tgz$")
_TAG_OR_DIGEST = re.compile(r"[:@][^/]+$")


def _installed(stack: Stack) -> Iterator[ControlPlane]:
    """Nothing of what is declared holds for a control plane that is somebody else's."""
    if stack.cluster.control_plane.install:
        yield stack.cluster.control_plane


@rule("PD860", source=f"{_ROUTER}, NewRouter")
def the_router_has_one_queue(stack: Stack) -> Iterator[Problem]:
    """With both the router ends at its start."""
    for control_plane in _installed(stack):
        router = control_plane.router
        if router.fairness and router.session_boost:
            yield Problem((*_AT, "router", "sessionBoost"), "stands beside fairness", "leave one of them out")


@rule("PD861", source="kthena-router --port, --debug-port and --webhook-port")
def the_webhook_has_a_port_of_its_own(stack: Stack) -> Iterator[Problem]:
    """One process listens on all of them, and ends where one is taken."""
    for control_plane in _installed(stack):
        router = control_plane.router
        others = {router.port: "the serving port", router.debug_port: "the debug port"}
        if router.webhook_port in others:
            free = next(port for port in range(8443, 8446) if port not in others)
            problem = f"{router.webhook_port} is {others[router.webhook_port]} too"
            yield Problem((*_AT, "router", "webhookPort"), problem, f"another port, for example {free}")


@rule("PD862", source=f"{_PROVIDER}, fetch and template")
def the_chart_is_somewhere_where_the_provider_finds_it(stack: Stack) -> Iterator[Problem]:
    """Helm takes the chart's name from the address, and looks for a directory of that name in what it has unpacked."""
    for control_plane in _installed(stack):
        scheme, has_scheme, _ = control_plane.chart.partition("://")
        if has_scheme and scheme not in {"oci", "http", "https"}:
            yield Problem(
                (*_AT, "chart"), f"{scheme}:// is no address of a chart", "oci:// or https://, or a path without a scheme"
            )
        elif scheme in {"http", "https"} and has_scheme and not _CHART_FILE.search(control_plane.chart):
            yield Problem(
                (*_AT, "chart"),
                "the file's name lacks the version",
                f"an address that ends in kthena-{control_plane.version}.tgz; or download the file, and name its path here",
            )


@rule("PD863", source="Kubernetes: an image without a tag is the one that is called latest", severity="warning")
def images_of_the_control_plane_are_pinned(stack: Stack) -> Iterator[Problem]:
    """What runs may be another version after each restart, while chart, CRDs and flags are those of one."""
    for control_plane in _installed(stack):
        for name, part in (("controller", control_plane.controller), ("router", control_plane.router)):
            if part.image and (not _TAG_OR_DIGEST.search(part.image) or part.image.endswith(":latest")):
                yield Problem(
                    (*_AT, name, "image"),
                    "is another image whenever somebody pushes one",
                    f"its tag (v{control_plane.version}) or digest (@sha256:...)",
                )


@rule("PD864", source=f"{_ROUTER}, handleFairnessScheduling; pkg/kthena-router/filters/auth", severity="warning")
def fairness_knows_its_users(stack: Stack) -> Iterator[Problem]:
    """Users are the subjects of tokens: without authentication all requests are one user's."""
    for control_plane in _installed(stack):
        if control_plane.router.fairness and not control_plane.router.authentication:
            yield Problem((*_AT, "router", "fairness"), "knows no users", "declare authentication, or leave fairness out")
