"""Whether a stack can run on its cluster: pure checks of what was read of it, one small function each."""

from preflight.control_plane import missing_kinds
from preflight.namespaces import missing_namespaces
from preflight.probe import PROBES, Probe, Situation
from preflight.run import preflight

__all__ = ["PROBES", "Probe", "Situation", "missing_kinds", "missing_namespaces", "preflight"]
