"""Kthena's chart, templated by the provider that the program uses for everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulumi

from models.cluster import Cluster
from render.chart import TEMPLATE, chart_objects, refusal, template_options
from render.control_plane import chart_values


def template(cluster: Cluster, provider: pulumi.ProviderResource, directory: Path) -> tuple[dict[str, Any], ...]:
    """The chart's objects; none where the stack does not install Kthena.

    Args:
        cluster: what is declared
        provider: Pulumi's Kubernetes provider, which has Helm in it
        directory: of the stack file

    Raises:
        ChartError: the chart can't be had, or there is a mistake in it.
    """
    control_plane = cluster.control_plane
    if not control_plane.install:
        return ()
    options = template_options(control_plane, chart_values(cluster), directory)
    try:
        answer = pulumi.runtime.invoke(TEMPLATE, {"jsonOpts": options}, pulumi.InvokeOptions(provider=provider))
    except Exception as error:  # the SDK has no narrower one
        raise refusal(control_plane, directory, str(error)) from error
    return chart_objects(answer.value["result"])
