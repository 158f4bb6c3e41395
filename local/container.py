"""A container without a container runtime: a process with mounts of its own that the machine does not see.

The process gets a private mount and process namespace (inside a user namespace where the caller is not root). Its root is
a tmpfs with bind mounts of the machine's own directories; where a volume is to appear in a place that the machine lacks,
the directories on the way are made anew, with bind mounts of everything else in them. The last process to know about it
is the first one inside: when it ends, the kernel ends the others, and all of them when the kubelet ends.

This file is also the program that sets up the mounts (``python -I -S container.py SPECIFICATION``); it therefore imports
nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

SET_UP_FAILED = 125
NOT_EXECUTABLE = 126
NOT_FOUND = 127

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_MOVE, MS_REC = 1024, 2048, 4096, 8192, 16384
MS_UNBINDABLE, MS_RELATIME = 1 << 17, 1 << 21
MOST_LINKS = 40
"""symbolic links followed in one path before it counts as a loop, as in the kernel"""


class Mount(NamedTuple):
    """A volume and where the container sees it."""

    source: str
    """existing file or directory of the machine; an empty string is an empty directory"""
    path: str
    read_only: bool = False


class Step(NamedTuple):
    """One thing to do below the new root."""

    action: Literal["directory", "file", "link", "bind"]
    path: str
    source: str = ""
    """bind: what appears at ``path``; link: what ``path`` points to"""
    read_only: bool = False
    optional: bool = False
    """a part of the machine that the container can do without if it can't be bound"""


class _Place:
    """A path on the way to a mount point, or the mount point itself."""

    def __init__(self) -> None:
        self.mount: Mount | None = None
        self.places: dict[str, _Place] = {}


def plan(mounts: Iterable[Mount], root: Path = Path("/")) -> list[Step]:
    """Steps that build a root like ``root`` with ``mounts`` in it. Reads the file system, changes nothing."""
    top = _Place()
    for mount in mounts:
        place = top
        for name in _resolve(mount.path, root):
            place = place.places.setdefault(name, _Place())
        place.mount = mount
    return _build(top, "", root)


def _resolve(path: str, root: Path) -> list[str]:
    """Parts of ``path`` with the symbolic links of ``root`` followed, as far as it exists."""
    parts: list[str] = []
    todo = [part for part in path.split("/") if part not in ("", ".")][::-1]
    links = 0
    while todo:
        part = todo.pop()
        if part == "..":
            parts = parts[:-1]
            continue
        here = root.joinpath(*parts, part)
        if here.is_symlink():
            links += 1
            if links > MOST_LINKS:
                raise OSError(f"too many symbolic links on the way to {path}")
            target = str(here.readlink())
            if target.startswith("/"):
                parts = []
            todo += [name for name in target.split("/") if name not in ("", ".")][::-1]
        else:
            parts.append(part)
    return parts


def _build(place: _Place, path: str, root: Path) -> list[Step]:
    """Steps for the directory ``path``, which is made anew, and everything in it."""
    host = root / path[1:]
    there = sorted(child.name for child in host.iterdir()) if host.is_dir() else []
    steps = [step for name in there if name not in place.places for step in _as_on_host(f"{path}/{name}", root)]
    for name, inner in sorted(place.places.items()):
        where = f"{path}/{name}"
        if inner.mount is None and _fits_host(inner, where, root):
            steps += _as_on_host(where, root) + _mount_inside(inner, where)
        elif inner.mount is None:
            steps += [Step("directory", where), *_build(inner, where, root)]
        else:
            steps += _mount(inner.mount, where) + _mount_inside(inner, where)
    return steps


def _fits_host(place: _Place, path: str, root: Path) -> bool:
    """Whether every mount point below ``path`` is there on the machine already, so that nothing has to be made anew."""
    if place.mount is not None:
        host = root / path[1:]
        return host.exists() and host.is_dir() == _wants_directory(place.mount)
    return all(_fits_host(inner, f"{path}/{name}", root) for name, inner in place.places.items())


def _mount_inside(place: _Place, path: str) -> list[Step]:
    """Mounts at places of what is mounted at ``path``; places that are missing there are made in it."""
    steps: list[Step] = []
    for name, inner in sorted(place.places.items()):
        where = f"{path}/{name}"
        steps += [Step("directory", where)] if inner.mount is None else _mount(inner.mount, where)
        steps += _mount_inside(inner, where)
    return steps


def _mount(mount: Mount, path: str) -> list[Step]:
    if not mount.source:
        return [Step("directory", path)]
    kind: Literal["directory", "file"] = "directory" if _wants_directory(mount) else "file"
    return [Step(kind, path), Step("bind", path, mount.source, read_only=mount.read_only)]


def _as_on_host(path: str, root: Path) -> list[Step]:
    host = root / path[1:]
    if host.is_symlink():
        return [Step("link", path, str(host.readlink()))]
    kind: Literal["directory", "file"] = "directory" if host.is_dir() else "file"
    return [Step(kind, path), Step("bind", path, str(host), optional=True)]


def _wants_directory(mount: Mount) -> bool:
    return not mount.source or Path(mount.source).is_dir()


@cache
def isolation() -> tuple[str, ...]:
    """Command that the command of a container follows: it is in namespaces of its own then, and dies with its parent.

    Raises:
        LocalError: this machine does not let the user have such namespaces.
    """
    from local.errors import LocalError  # noqa: PLC0415 - not importable where this file is the program

    plain = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
    as_root_inside = (*plain, "--user", "--map-root-user")
    refused = ""
    for command in (plain, as_root_inside) if os.geteuid() == 0 else (as_root_inside,):
        whole = ("setpriv", "--pdeathsig", "KILL", *command)
        try:
            tried = subprocess.run(
                [*whole, "mount", "-t", "tmpfs", "tmpfs", "/tmp"],  # noqa: S108 - in the namespace only
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError as error:
            raise LocalError(f"{error.filename} is not on PATH", "install util-linux 2.33 or newer") from error
        if tried.returncode == 0:
            return whole
        refused = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
    raise LocalError(
        f"containers of local pods need a private mount namespace, and this machine refuses one: {refused}",
        "run as root with CAP_SYS_ADMIN, or allow user namespaces (sysctl user.max_user_namespaces, on Ubuntu also "
        "kernel.apparmor_restrict_unprivileged_userns=0)",
    )


def write_specification(
    directory: Path,
    command: Sequence[str],
    environment: Mapping[str, str],
    working_directory: str,
    mounts: Iterable[Mount],
) -> tuple[str, ...]:
    """Write down a container in ``directory`` and return the command that runs it.

    The command's exit code is the container's; 125 says that a mount failed, 126 and 127 that the container's program
    can't be run or found, each with a line on standard error.
    """
    root = directory / "root"
    root.mkdir(exist_ok=True)
    file = directory / "container.json"
    # whatever mounts there are, the working directory exists, as it does in an image
    places = [*mounts] if Path(working_directory).exists() else [Mount("", working_directory), *mounts]
    file.touch(mode=0o600)  # the environment may hold secrets
    file.write_text(
        json.dumps(
            {
                "root": str(root),
                "steps": plan(places),
                "command": list(command),
                "environment": dict(environment),
                "working_directory": working_directory,
            }
        )
    )
    return (*isolation(), sys.executable, "-I", "-S", __file__, str(file))


_libc = ctypes.CDLL(None, use_errno=True)


def _mount_call(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def _locked_flags(path: Path) -> int:
    """Flags that a remount must repeat, or the kernel refuses it inside a user namespace."""
    have = os.statvfs(path).f_flag
    pairs = (
        (os.ST_NOSUID, MS_NOSUID),
        (os.ST_NODEV, MS_NODEV),
        (os.ST_NOEXEC, MS_NOEXEC),
        (os.ST_NOATIME, MS_NOATIME),
        (os.ST_NODIRATIME, MS_NODIRATIME),
        (os.ST_RELATIME, MS_RELATIME),
    )
    return sum(flag for shown, flag in pairs if have & shown)


def _do(step: Step, root: str) -> None:
    target = Path(root + step.path)
    if step.action == "directory":
        target.mkdir(parents=True, exist_ok=True)
    elif step.action == "file":
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    elif step.action == "link":
        target.symlink_to(step.source)
    else:
        _mount_call(step.source, str(target), "", MS_BIND | MS_REC)
        if step.read_only:
            _mount_call("", str(target), "", MS_REMOUNT | MS_BIND | MS_RDONLY | _locked_flags(target))


def _enter(root: str, steps: Iterable[Step]) -> None:
    """Make ``root`` the root of this process, built by ``steps``. Needs a mount namespace of its own."""
    _mount_call("container", root, "tmpfs", 0, "mode=755")
    # a bind mount of the directory that holds the new root must not hold the new root once more
    _mount_call("", root, "", MS_UNBINDABLE)
    for step in steps:
        try:
            _do(step, root)
        except OSError as error:
            if not step.optional:
                raise
            print(f"not visible in this container: {step.path}: {error.strerror}", file=sys.stderr)
    os.chdir(root)
    _mount_call(root, "/", "", MS_MOVE)
    os.chroot(".")


def main(file: str) -> int:
    """Become the container that is written down in ``file``; return only if that fails."""
    specification = json.loads(Path(file).read_text())
    command, environment = specification["command"], specification["environment"]
    try:
        _enter(specification["root"], (Step(*step) for step in specification["steps"]))
        os.chdir(specification["working_directory"])
    except OSError as error:
        print(f"container can't be set up: {error}", file=sys.stderr)
        return SET_UP_FAILED
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606
    except FileNotFoundError:
        print(f"{command[0]}: not found in PATH={environment.get('PATH', '')}", file=sys.stderr)
        return NOT_FOUND
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
