"""Kthena's Helm chart: how Pulumi's Kubernetes provider is asked to template it, and its answer as plain objects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from models.cluster import ControlPlane

TEMPLATE = "kubernetes:helm:template"
"""function of the provider, which has Helm in it: takes ``jsonOpts``, as :func:`template_options` has them, gives ``result``"""
RELEASE = "kthena"
KUBE_VERSION = "1.34.0"
"""what the chart is told; always the same, so that the objects do not depend on where they are made"""


class ChartError(Exception):
    """The chart can't be had, or is another's; the text is for the user."""


def is_address(chart: str) -> bool:
    """Whether ``controlPlane.chart`` is somewhere else than on this machine."""
    return "://" in chart


def template_options(control_plane: ControlPlane, values: Mapping[str, Any], directory: Path) -> str:
    """The provider's ``jsonOpts``; ``directory`` is the stack file's, where a chart that is no address is looked for.

    Source: pulumi-kubernetes v4.25.0 provider/pkg/provider/invoke_helm_template.go.
    """
    options: dict[str, Any] = {
        "release_name": RELEASE,
        "namespace": control_plane.namespace,
        "kube_version": KUBE_VERSION,
        "values": values,
    }
    if is_address(control_plane.chart):
        # Kthena's releases are tagged with a v, and an OCI registry is asked for the very tag.
        source = {"chart": control_plane.chart, "version": f"v{control_plane.version}"}
    else:
        place = (directory / control_plane.chart).absolute()
        source = {"path": str(place.parent), "chart": place.name}
    return json.dumps(options | source, sort_keys=True)


def chart_objects(result: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The provider's answer as it stands in the chart: the wire has but one type for numbers, and no order of keys."""
    return tuple(plain(item) for item in result)


def plain(value: Any) -> Any:
    """``value`` with whole numbers for those that are, and keys in the order of the alphabet."""
    if isinstance(value, Mapping):
        return {key: plain(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def refusal(control_plane: ControlPlane, directory: Path, said: str) -> ChartError:
    """Why the provider has not templated the chart, and what would help; ``said`` is its own error."""
    chart = control_plane.chart
    # the provider's and the engine's own words around the one that counts
    reason = said.rpartition("for specified Helm chart: ")[2].strip()
    if is_address(chart):
        remedy = (
            "can this machine reach it? else set cluster.controlPlane.chart to a copy: an address of your own, "
            "or a directory or .tgz file below the stack file's directory"
        )
        if chart.startswith("http") and not re.search(r"/\w+-[^/]+\.tgz$", chart):
            remedy = "of an http address the file has to be named kthena-VERSION.tgz; or download it, and name the local file"
    elif not (directory / chart).exists():
        reason = f"there is no {directory / chart}"
        remedy = "cluster.controlPlane.chart is an oci:// or https:// address, or a path from the stack file's directory"
    else:
        remedy = (
            f"it has to be the chart of Kthena {control_plane.version}: charts/kthena of its repository, or the release's .tgz"
        )
    return ChartError(f"Kthena's chart {chart} can't be templated: {reason}\n  -> {remedy}")
