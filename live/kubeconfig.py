"""Which kubeconfig counts, as kubectl has it: the files of KUBECONFIG that are there, or else ``~/.kube/config``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import yaml


class KubeconfigError(ValueError):
    """A file of the kubeconfig is none, or can't be read."""


@dataclass(frozen=True)
class Kubeconfig:
    """What the files together say."""

    files: tuple[Path, ...]
    contexts: tuple[str, ...]
    current: str
    """empty where none of them names one"""


def read_kubeconfig() -> Kubeconfig:
    """Read all files; the first that names a current context decides.

    Raises:
        KubeconfigError: a file can't be read, or is no kubeconfig.
    """
    listed = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    files = tuple(file for name in listed.split(os.pathsep) if name and (file := Path(name).expanduser()).is_file())
    contexts: list[str] = []
    current = ""
    for file in files:
        try:
            content = yaml.safe_load(file.read_text()) or {}
            contexts += [context["name"] for context in content.get("contexts") or ()]
            current = current or content.get("current-context") or ""
        except OSError as error:
            raise KubeconfigError(f"{file}: {error.strerror}") from error
        except (yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
            raise KubeconfigError(f"{file} is no kubeconfig") from error
    return Kubeconfig(files, tuple(contexts), current)
