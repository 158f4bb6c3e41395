"""The kubeconfig that Pulumi's Kubernetes provider is going to read."""

from __future__ import annotations

import os
from pathlib import Path

import yaml


def contexts() -> frozenset[str]:
    """Names of all contexts in the files of KUBECONFIG, or else in ``~/.kube/config``; empty if there is no such file."""
    listed = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    files = [Path(name) for name in listed.split(os.pathsep) if name and Path(name).is_file()]
    found = [yaml.safe_load(file.read_text()) or {} for file in files]
    return frozenset(context["name"] for content in found for context in content.get("contexts") or ())
