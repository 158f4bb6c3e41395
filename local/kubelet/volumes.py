"""Volumes of a pod: what they hold, and where a container has them."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from local.api import Object
from local.container import Mount
from local.kubelet import StartError
from local.kubelet.environment import Objects, expand, field, values

DEFAULT_MODE = 0o644
DATA = "..data"
"""link in a volume to what it holds now"""
Token = tuple[str, int]
"""audience (empty: the API server) and lifetime in seconds of a service account's token"""


@dataclass(frozen=True)
class File:
    """One file that the kubelet writes into a volume."""

    content: bytes
    mode: int = DEFAULT_MODE


def tokens(pod: Object) -> set[Token]:
    """Service account tokens that the pod's volumes need."""
    sources = [
        source for volume in pod["spec"].get("volumes") or [] for source in volume.get("projected", {}).get("sources") or []
    ]
    return {_token(source["serviceAccountToken"]) for source in sources if "serviceAccountToken" in source}


def _token(source: Object) -> Token:
    return source.get("audience", ""), source.get("expirationSeconds", 3600)


@dataclass(frozen=True)
class Given:
    """What volumes are filled from."""

    pod: Object
    objects: Objects
    issued: Mapping[Token, str]


def files(volume: Object, given: Given) -> dict[str, File] | None:
    """Files (path in the volume -> file) of a ConfigMap, Secret, downward API or projected volume; None for others.

    Raises:
        StartError: something that the volume needs does not exist.
    """
    for kind in ("configMap", "secret", "downwardAPI", "projected"):
        if kind in volume:
            mode = volume[kind].get("defaultMode", DEFAULT_MODE)
            sources = volume[kind].get("sources") or [] if kind == "projected" else [volume]
            try:
                return {path: file for source in sources for path, file in _project(source, mode, given).items()}
            except LookupError as error:
                raise _failed(volume["name"], str(error.args[0])) from error
    return None


def _project(source: Object, mode: int, given: Given) -> dict[str, File]:
    if "serviceAccountToken" in source:
        wanted = source["serviceAccountToken"]
        return {wanted["path"]: File(given.issued[_token(wanted)].encode(), mode)}
    if "downwardAPI" in source:
        items = source["downwardAPI"].get("items") or []
        if any("fieldRef" not in item for item in items):
            raise LookupError("resourceFieldRef is not supported locally")
        return {
            item["path"]: File(field(given.pod, item["fieldRef"]["fieldPath"]).encode(), item.get("mode", mode)) for item in items
        }
    for kind, key in (("ConfigMap", "configMap"), ("Secret", "secret")):
        if key in source:
            return _keys(kind, source[key], mode, given.objects)
    raise LookupError(f"a projected {', '.join(source)} is not supported locally")


def _keys(kind: str, selector: Object, mode: int, objects: Objects) -> dict[str, File]:
    name = selector.get("name") or selector["secretName"]
    optional = selector.get("optional", False)
    found = objects.get((kind, name))
    if found is None:
        if optional:
            return {}
        raise LookupError(f'{kind.lower()} "{name}" not found')
    content = values((kind, name), found)
    items = selector.get("items") or [{"key": key, "path": key} for key in content]
    missing = [item["key"] for item in items if item["key"] not in content]
    if missing and not optional:
        raise LookupError(f'{kind.lower()} "{name}" has no key {", ".join(missing)}')
    return {item["path"]: File(content[item["key"]], item.get("mode", mode)) for item in items if item["key"] in content}


def _failed(volume: str, why: str) -> StartError:
    return StartError("ContainerCreating", f'MountVolume.SetUp failed for volume "{volume}" : {why}')


def write(directory: Path, contents: Mapping[str, File]) -> None:
    """Fill a volume, ``directory``, with files, and with no others: all of them at once for who reads them.

    They are in a hidden directory that the link ``..data`` points to, and links in the volume point to them through it: as
    in a real kubelet, what is mounted of a volume (``subPath``) keeps what it was mounted with.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if read(directory) != dict(contents):
        _swap(directory, contents)
    names = {Path(path).parts[0] for path in contents}
    for entry in directory.iterdir():
        if not entry.name.startswith("..") and entry.name not in names:
            entry.unlink()
    for name in names:
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"{DATA}/{name}")


def _swap(directory: Path, contents: Mapping[str, File]) -> None:
    """Let ``..data`` point to a new directory with the files, and remove what it pointed to."""
    old = [entry for entry in directory.glob("..?*") if entry.name != DATA]
    made = Path(tempfile.mkdtemp(prefix="..", dir=directory))
    made.chmod(0o755)
    for path, file in contents.items():
        target = made / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(file.content)
        target.chmod(file.mode)
    (made / DATA).symlink_to(made.name)
    (made / DATA).replace(directory / DATA)
    for entry in old:
        shutil.rmtree(entry)


def read(directory: Path) -> dict[str, File]:
    """Files of a volume that was written, by their paths in it."""
    data = directory / DATA
    return {
        str(file.relative_to(data)): File(file.read_bytes(), stat.S_IMODE(file.stat().st_mode))
        for file in data.glob("**/*")
        if file.is_file()
    }


_CHECKS: dict[str, Callable[[Path], bool]] = {
    "Directory": Path.is_dir,
    "File": Path.is_file,
    # the devices and sockets of a simulated node are ordinary files
    **{kind: lambda path: path.exists() and not path.is_dir() for kind in ("Socket", "CharDevice", "BlockDevice")},
}


def host_path(volume: Object, host: Path) -> Path:
    """Where the hostPath ``volume`` is in ``host``, the simulated node's file system; its ``type`` is heeded.

    Raises:
        StartError: the node has nothing of that type there.
    """
    wanted = volume["hostPath"]
    path: Path = host / wanted["path"].lstrip("/")
    kind = wanted.get("type") or ""
    if kind in _CHECKS:
        if not _CHECKS[kind](path):
            raise _failed(volume["name"], f"hostPath type check failed: {wanted['path']} is not a {kind.lower()}")
    elif kind == "FileOrCreate":
        path.touch()
    elif kind == "DirectoryOrCreate" or not path.exists():  # without a type, container runtimes make a directory
        path.mkdir(parents=True, exist_ok=True)
    return path


def prepare(given: Given, directory: Path, host: Path) -> dict[str, Path]:
    """Make all volumes of a pod in ``directory``; return where each is, by name.

    Args:
        given: the pod, and what its volumes are filled from
        directory: the pod's folder for volumes
        host: file system of the pod's node

    Raises:
        StartError: one of them can't be made, for now.
    """
    result = {}
    for volume in given.pod["spec"].get("volumes") or []:
        name = volume["name"]
        here = directory / name
        contents = files(volume, given)
        if contents is not None:
            write(here, contents)
        elif "hostPath" in volume:
            here = host_path(volume, host)
        elif "emptyDir" in volume:
            here.mkdir(parents=True, exist_ok=True)
            here.chmod(0o777)
        else:
            kind = ", ".join(key for key in volume if key != "name")
            raise _failed(name, f"{kind} volumes are not supported by the local cluster")
        result[name] = here
    return result


def refresh(given: Given, directory: Path) -> None:
    """Write what has changed into the volumes in ``directory`` that the kubelet fills.

    Raises:
        StartError: something that a volume needs no longer exists.
    """
    for volume in given.pod["spec"].get("volumes") or []:
        contents = files(volume, given)
        if contents is not None:
            write(directory / volume["name"], contents)


def mounts(container: Object, pod: Object, placed: Mapping[str, Path], environment: Mapping[str, str]) -> list[Mount]:
    """Mounts of ``container``, given where the volumes of ``pod`` are ``placed``.

    Volumes that the kubelet writes are read-only in the container, as on a real node.

    Raises:
        StartError: a sub-path leads out of its volume, or can't be made in it.
    """
    result = []
    writable = {v["name"] for v in pod["spec"].get("volumes") or [] if "emptyDir" in v or "hostPath" in v}
    for wanted in container.get("volumeMounts") or []:
        below = wanted.get("subPath") or expand(wanted.get("subPathExpr") or "", environment)
        volume = placed[wanted["name"]]
        source = volume / below
        problem = f'failed to prepare subPath for volumeMount "{wanted["name"]}" of container "{container["name"]}"'
        if ".." in Path(below).parts or Path(below).is_absolute():
            raise StartError("CreateContainerConfigError", f"{problem}: {below} leads out of the volume")
        if not source.exists():
            if wanted["name"] not in writable:  # a key that a ConfigMap lacks, not a folder that is yet to be made
                raise StartError("CreateContainerConfigError", f"{problem}: the volume has no {below}")
            source.mkdir(parents=True)
        read_only = wanted.get("readOnly", False) or wanted["name"] not in writable
        result.append(Mount(str(source), wanted["mountPath"], read_only))
    return result
