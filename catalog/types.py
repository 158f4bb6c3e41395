"""Shapes of the catalogue's files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from models.base import Declaration


class HostFile(Declaration):
    """A file of the node that every engine container mounts at the same path, read-only."""

    name: str
    path: str
    type: Literal["File", "Directory"]


class NpuFamily(Declaration):
    """One generation of Ascend servers."""

    family: str
    serves_prefill_decode: Annotated[bool, Field(description="whether vLLM-Ascend supports P/D on it")] = True
    dies_per_node: Annotated[int, Field(ge=1, description="what one server offers of the extended resource")]
    image_suffix: Annotated[str, Field(description="of vLLM-Ascend's image tag")]
    resource_names: Annotated[dict[str, str], Field(description="device plugin -> extended resource; one unit is one die")]
    mounts: tuple[HostFile, ...]


class ModelArchitecture(Declaration):
    """What of a model decides how it can be split."""

    name: str
    attention: Literal["MLA", "GQA"]
    attention_heads: Annotated[int, Field(ge=1)]
    key_value_heads: Annotated[int | None, Field(ge=1, description="of GQA")] = None
    experts: Annotated[int | None, Field(ge=1, description="routed experts; absent: the model is dense")] = None


class Connector(Declaration):
    """One KV connector of vLLM-Ascend."""

    since: Annotated[str, Field(description="first vLLM-Ascend release that registers it")]
    router_connector: Annotated[Literal["mooncake"], Field(description="Kthena ModelServer kvConnector.type that fits")]


class LegacyKvTransferKeys(Declaration):
    """Keys that the engine needs before release ``until``."""

    until: str
    shared: dict[str, Any]
    rank: Annotated[str, Field(description="key whose value is 0 on prefill and 1 on decode")]


class PhysicalDevices(Declaration):
    """PHYSICAL_DEVICES, needed before release ``until``."""

    until: str
    annotation: Annotated[str, Field(description="pod annotation in which the device plugin names the devices")]


class Removed(Declaration):
    """A setting that release ``since`` and later ones do not read."""

    kind: Literal["env", "additionalConfig"]
    name: str
    since: str
    instead: str


class EngineCatalog(Declaration):
    """What depends on the vLLM-Ascend release."""

    image: str
    downloader_image: str
    runtime_image: str
    connectors: dict[str, Connector]
    legacy_kv_transfer_keys: LegacyKvTransferKeys
    physical_devices: PhysicalDevices
    removed: tuple[Removed, ...]
