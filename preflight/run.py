"""All checks of one cluster."""

from __future__ import annotations

from live.plan import Plan
from live.survey import Survey
from preflight import access, capacity, claims, control_plane, namespaces, nodes, scheduler  # noqa: F401 - each registers its checks
from preflight.probe import PROBES, Situation
from rules.finding import Finding


def preflight(plan: Plan, survey: Survey) -> list[Finding]:
    """Everything that the cluster lacks for a stack, in the order of the codes."""
    situation = Situation(plan, survey)
    return [finding for probe in sorted(PROBES, key=lambda probe: probe.code) for finding in probe(situation)]
