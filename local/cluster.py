"""Typed description of a local cluster (``local/cluster.yaml``, ``local/clusters``): nodes, images, how real its pods are."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from local.errors import LocalError
from local.state import CHECKOUT

Pods = Literal["processes", "simulated"]
AbsolutePath = Annotated[str, Field(pattern=r"^(/[^/]+)+$")]
DESCRIPTION = CHECKOUT / "local" / "cluster.yaml"
NPU = re.compile(r"huawei\.com/.*(?<!-memory)(?<!-core)")
"""extended resources of which one unit is one die; with HAMi a container has its dies' memory and cores as resources, too"""


class _Description(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class NodeGroup(_Description):
    """Nodes that are alike."""

    name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", description="prefix of the nodes' names")
    count: int = Field(default=1, ge=0)
    labels: dict[str, str] = Field(default_factory=dict)
    capacity: dict[str, str] = Field(description="resource name -> quantity; all of it is allocatable")
    files: dict[AbsolutePath, str] = Field(default_factory=dict, description="of these nodes alone: path -> content")


class Node(_Description):
    """One simulated node."""

    name: str
    address: str = Field(description="InternalIP, in the loopback range")
    labels: dict[str, str]
    capacity: dict[str, str]
    files: dict[str, str]


class Image(_Description):
    """What stands in for a container image."""

    path: tuple[str, ...] = Field(description="directories of programs, in the order of PATH")
    always_runs: bool = Field(default=False, description="is a process even where pods are simulated")
    entrypoint: tuple[str, ...] = Field(default=(), description="what runs when the container has no command")


class Cluster(_Description):
    """The whole local cluster."""

    pods: Pods = Field(default="processes", description="run all containers as processes, or only those whose image always runs")
    network: int = Field(default=1, ge=1, le=254, description="N of 127.N.0.0/16, where all addresses are from")
    volcano: bool = Field(default=False, description="Volcano's scheduler and controllers run beside the cluster's own")
    files: dict[AbsolutePath, str] = Field(default_factory=dict, description="path on every node -> content")
    node_groups: tuple[NodeGroup, ...] = Field(alias="nodes")
    images: dict[str, Image] = Field(default_factory=dict, description="image repository -> what stands in for it")

    @property
    def pod_cidr(self) -> str:
        """Range of the pods' addresses: the lower half of the network."""
        return f"127.{self.network}.0.0/17"

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes; their addresses are the upper half of the network, 127.<network>.128.1 and so on."""
        first = ipaddress.IPv4Address(f"127.{self.network}.128.0")
        named = [(group, index) for group in self.node_groups for index in range(group.count)]
        return tuple(
            Node(
                name=f"{group.name}-{index}",
                address=str(first + number),
                labels=group.labels,
                capacity=group.capacity,
                files=self.files | group.files,
            )
            for number, (group, index) in enumerate(named, start=1)
        )

    @property
    def npu_resources(self) -> tuple[str, ...]:
        """What the nodes' device plugins call their dies."""
        return tuple(sorted({name for node in self.nodes for name in node.capacity if NPU.fullmatch(name)}))

    def with_programs(self, folders: Mapping[str, Path]) -> Cluster:
        """The same cluster with the images' directories made absolute.

        Args:
            folders: folder of each module of the toolchain

        Raises:
            LocalError: an image names a module that the toolchain does not have.
        """
        known = {module: str(folder) for module, folder in folders.items()}

        def absolute(repository: str, directory: str) -> str:
            try:
                return str(CHECKOUT / directory.format_map(known))
            except (KeyError, ValueError, IndexError) as error:
                raise LocalError(
                    f"local/cluster.yaml: images.{repository}.path: {directory!r} names no program of the toolchain",
                    f"use a directory, or one of {', '.join(f'{{{module}}}' for module in sorted(known))}",
                ) from error

        images = {
            repository: image.model_copy(update={"path": tuple(absolute(repository, entry) for entry in image.path)})
            for repository, image in self.images.items()
        }
        return self.model_copy(update={"images": images})

    def simulates(self, reference: str) -> bool:
        """Whether a container of the image ``reference`` is an object only: ready at once, without a process."""
        found = self.image(reference)
        return self.pods == "simulated" and not (found and found.always_runs)

    def image(self, reference: str) -> Image | None:
        """What stands in for the image ``reference``, whatever its tag or digest; None if nothing does."""
        return self.images.get(repository(reference))


def repository(reference: str) -> str:
    """``quay.io/ascend/vllm-ascend:v0.13.0@sha256:...`` -> ``quay.io/ascend/vllm-ascend``."""
    name = reference.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]


def load(file: Path = DESCRIPTION, pods: str | None = None) -> Cluster:
    """Read a description; ``pods`` overrides how real the pods are.

    What stands in a file goes over what stands in the one that it ``extends``, key by key; lists are whole.

    Raises:
        LocalError: the file is missing, is no YAML, or says something that does not fit; every mistake is named.
    """
    text = _read(file)
    base = text.pop("extends", None)
    if base is not None:
        text = _over(_read(file.parent / str(base)), text)
    try:
        return Cluster.model_validate({**text, "pods": pods} if pods else text)
    except ValidationError as error:
        mistakes = "\n".join(
            f"  {'.'.join(str(part) for part in mistake['loc'])}: {mistake['msg']}" for mistake in error.errors()
        )
        raise LocalError(f"the description of the local cluster does not fit ({file}):\n{mistakes}") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        text = yaml.safe_load(file.read_text()) or {}
    except OSError as error:
        raise LocalError(f"{file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise LocalError(f"{file} is not YAML: {error}") from error
    if not isinstance(text, dict):
        raise LocalError(f"{file} holds no mapping at its top level")
    return text


def _over(base: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    """``text`` over ``base``, key by key where both have a map."""
    both = {
        key: _over(base[key], value) for key, value in text.items() if isinstance(value, dict) and isinstance(base.get(key), dict)
    }
    return {**base, **text, **both}
