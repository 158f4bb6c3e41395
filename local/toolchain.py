"""Programs of the local cluster and Pulumi: found where they are, else built from the pinned Go modules in ``tools/``.

What is built lands in a cache outside the work tree, one folder per program version, shared by all checkouts:
``${XDG_CACHE_HOME:-~/.cache}/kthena-pd/toolchain/<module>-<key>``. A folder gets its name only when it is whole, so an
interrupted build leaves nothing that a later run could mistake for a program.
"""

from __future__ import annotations

import concurrent.futures
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from local.errors import LocalError

TOOLS = Path(__file__).resolve().parent.parent / "tools"
MINIMUM_PULUMI = (3, 200, 0)
"""older ones are not tried: engine and SDK (requirements.in) should not be more than a year apart"""
KUBERNETES_PLUGIN = "4.25.0"
FREE_DISK_FOR_A_COLD_BUILD = 20 * 2**30
"""bytes: about 5 GiB of modules, 12 GiB of compiled packages and 1 GiB of programs (measured)"""


@dataclass(frozen=True)
class Tool:
    """One Go module under ``tools/`` and what to take from it."""

    module: str
    """folder below ``tools/``"""
    upstream: str
    """Go module whose version is the version of the programs"""
    packages: tuple[str, ...]
    minutes: float
    """cold build on two cores, for the progress line only"""
    stamps: tuple[str, ...] = ()
    """``-X`` linker settings; ``{version}`` and ``{minor}`` are filled in"""
    embeds: tuple[tuple[str, str], ...] = ()
    """(file that our main package embeds, where the upstream module holds it)"""
    assets: tuple[str, ...] = ()
    """globs below the upstream module, copied with their paths into the folder of the programs"""
    scripts: tuple[str, ...] = ()
    """files of the upstream module that must lie right beside the programs"""
    supplement: tuple[str, str, str] | None = field(default=None, repr=False)
    """(module, directory in it, our file): a Go file that a module lacks. Not in the repr, which names the folders of programs
    that are built already: the file itself and go.mod are in the name"""


_COMPONENT_BASE = "k8s.io/component-base/version"
_CLIENT_GO = "k8s.io/client-go/pkg/version"
_PROVIDER = "github.com/pulumi/pulumi-kubernetes/provider/v4"

KTHENA = Tool(
    "kthena",
    "github.com/volcano-sh/kthena",
    (
        "github.com/volcano-sh/kthena/cmd/kthena-controller-manager",
        "github.com/volcano-sh/kthena/cmd/kthena-router",
    ),
    5,
    assets=("charts/kthena/**/*",),
)
CLUSTER_TOOLS = (
    Tool("etcd", "go.etcd.io/etcd/server/v3", ("kthena-pd/tools/etcd",), 0.5),
    Tool(
        "kubernetes",
        "k8s.io/kubernetes",
        tuple(
            f"k8s.io/kubernetes/cmd/{program}"
            for program in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
        ),
        7,
        stamps=tuple(
            f"{package}.{name}={value}"
            for package in (_COMPONENT_BASE, _CLIENT_GO)
            for name, value in (("gitVersion", "{version}"), ("gitMajor", "1"), ("gitMinor", "{minor}"))
        ),
    ),
    Tool("kwok", "sigs.k8s.io/kwok", ("sigs.k8s.io/kwok/cmd/kwok",), 1, assets=("kustomize/stage/node/**/*.yaml",)),
    KTHENA,
    Tool(
        "llm-d-inference-sim",
        "github.com/llm-d/llm-d-inference-sim",
        ("github.com/llm-d/llm-d-inference-sim/cmd/llm-d-inference-sim",),
        2,
    ),
)
VOLCANO = Tool(
    "volcano",
    "volcano.sh/volcano",
    ("volcano.sh/volcano/cmd/scheduler", "volcano.sh/volcano/cmd/controller-manager"),
    4,
    assets=("config/crd/volcano/bases/*.yaml", "installer/helm/chart/volcano/charts/jobflow/crd/bases/*.yaml"),
    # Volcano builds its APIs from its own tree; of the versions that are published as a module the nearest lacks one name
    supplement=("volcano.sh/apis", "pkg/apis/scheduling/v1beta1", "queue_allocation_gate.go"),
)
"""only where the description of a cluster asks for it"""
PULUMI_TOOLS = (
    Tool(
        "pulumi",
        "github.com/pulumi/pulumi/pkg/v3",
        ("github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",),
        4,
        stamps=("github.com/pulumi/pulumi/sdk/v3/go/common/version.Version={version}",),
    ),
    Tool(
        "pulumi-language-python",
        "github.com/pulumi/pulumi/sdk/v3",
        ("github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python",),
        0.5,
        scripts=("python/cmd/pulumi-language-python-exec",),
        # of later versions no module is to be had; what an engine of today needs besides is in our file
        supplement=("github.com/pulumi/pulumi/sdk/v3", "python/cmd/pulumi-language-python", "project_options.go"),
    ),
)
PLUGIN_TOOLS = (
    Tool(
        "pulumi-resource-kubernetes",
        _PROVIDER,
        ("kthena-pd/tools/pulumi-resource-kubernetes",),
        8,
        stamps=(f"{_PROVIDER}/pkg/version.Version={KUBERNETES_PLUGIN}",),
        embeds=tuple((name, f"cmd/pulumi-resource-kubernetes/{name}") for name in ("schema.json", "terraform-mapping.json")),
    ),
)


def cache_directory() -> Path:
    """Folder shared by all checkouts of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kthena-pd" / "toolchain"


def version(tool: Tool) -> str:
    """Pinned version of ``tool``, as ``tools/<module>/go.mod`` has it."""
    go_mod = (TOOLS / tool.module / "go.mod").read_text()
    found = re.search(rf"^(?:require )?\s*{re.escape(tool.upstream)} (v\S+)", go_mod, re.MULTILINE)
    if not found:
        raise LocalError(f"tools/{tool.module}/go.mod does not require {tool.upstream}")
    return found[1]


def directory(tool: Tool) -> Path:
    """Where the programs of ``tool`` are or will be: the name changes with anything they are built from."""
    digest = hashlib.sha256(repr(tool).encode())
    for source in sorted((TOOLS / tool.module).iterdir()):
        digest.update(source.read_bytes())
    return cache_directory() / f"{tool.module}-{version(tool)}-{digest.hexdigest()[:8]}"


def upstream_directory(tool: Tool) -> Path:
    """Folder of the upstream module, fetched if need be: its files can be read without building anything."""
    source = TOOLS / tool.module
    _run_go(source, "mod", "download", tool.upstream)
    return Path(_run_go(source, "list", "-m", "-f", "{{.Dir}}", tool.upstream).strip())


def ensure(tools: Iterable[Tool], say: Callable[[str], None]) -> dict[str, Path]:
    """Build what is missing of ``tools``, two at a time, and return the folder of each module.

    Raises:
        LocalError: Go is missing, the disk is too full, or a build failed.
    """
    wanted = {tool: directory(tool) for tool in tools}
    missing = sorted((tool for tool, path in wanted.items() if not path.exists()), key=lambda tool: -tool.minutes)
    if missing:
        _check_can_build(sum(tool.minutes for tool in missing))
        say(
            f"building {len(missing)} programs from Go modules, once for this user "
            f"(about {sum(tool.minutes for tool in missing):.0f} minutes on two cores): "
            + ", ".join(tool.module for tool in missing)
        )
        _build_all(missing, say)
    return {tool.module: path for tool, path in wanted.items()}


def _check_can_build(minutes: float) -> None:
    if not shutil.which("go"):
        raise LocalError(
            "go is not on PATH, and the programs of the local cluster are built with it",
            "install Go 1.26 or newer (Debian: apt-get install golang; or the archive of the Go project), then run this again",
        )
    cache_directory().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache_directory()).free
    if minutes > 10 and free < FREE_DISK_FOR_A_COLD_BUILD:  # noqa: PLR2004 - a rebuild of one or two needs far less
        raise LocalError(
            f"{free / 2**30:.0f} GiB free at {cache_directory()}, a first build needs about 20 GiB",
            "free some space, or set XDG_CACHE_HOME and GOCACHE to a larger disk",
        )


def _build_all(missing: list[Tool], say: Callable[[str], None]) -> None:
    started = dict.fromkeys(missing, 0.0)
    begin = time.monotonic()
    done = 0

    def build(tool: Tool) -> None:
        started[tool] = time.monotonic()
        _build(tool)

    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        pending = {pool.submit(build, tool): tool for tool in missing}
        while pending:
            finished, _ = concurrent.futures.wait(pending, timeout=30, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in finished:
                tool = pending.pop(future)
                if future.exception():
                    say(f"building {tool.module} failed; what is being built beside it is finished first")
                    pool.shutdown(wait=True, cancel_futures=True)
                future.result()
                done += 1
                took = _duration(time.monotonic() - started[tool])
                say(f"[{done}/{len(missing)}] built {tool.module} {version(tool)} in {took}")
            if not finished:
                running = ", ".join(
                    f"{tool.module} {_duration(time.monotonic() - started[tool])}" for tool in pending.values() if started[tool]
                )
                say(f"[{done}/{len(missing)}] {_duration(time.monotonic() - begin)} elapsed, still building {running}")


def _build(tool: Tool) -> None:
    target = directory(tool)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target.with_suffix(target.suffix + ".lock")):
        if target.exists():  # another checkout built it while this one waited
            return
        for half_built in target.parent.glob(f"{target.name}.building-*"):
            shutil.rmtree(half_built)
        building = Path(tempfile.mkdtemp(prefix=f"{target.name}.building-", dir=target.parent))
        _go_build(tool, building)
        building.chmod(0o755)
        building.rename(target)


def _go_build(tool: Tool, out: Path) -> None:
    source = TOOLS / tool.module
    tag = version(tool)
    minor = tag.split(".")[1]
    stamps = " ".join(f"-X {stamp.format(version=tag, minor=minor)}" for stamp in tool.stamps)
    # -modcacherw: what Go fetched can be removed with rm, as any other cache
    arguments = ["build", "-trimpath", "-modcacherw", "-ldflags", f"-s -w {stamps}".strip(), "-o", f"{out}/"]
    upstream = upstream_directory(tool)
    if tool.embeds:
        overlay = out / "overlay.json"
        replace = {str(source / embedded): str(upstream / origin) for embedded, origin in tool.embeds}
        overlay.write_text(json.dumps({"Replace": replace}))
        arguments += ["-overlay", str(overlay)]
    with tempfile.TemporaryDirectory() as scratch:
        if tool.supplement:
            arguments += ["-modfile", str(_supplemented(source, tool.supplement, Path(scratch)))]
        _run_go(source, *arguments, *tool.packages)
    for pattern in tool.assets:
        for found in filter(os.path.isfile, glob.glob(str(upstream / pattern), recursive=True)):
            copy = out / Path(found).relative_to(upstream)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found, copy)
    for script in tool.scripts:
        shutil.copyfile(upstream / script, out / Path(script).name)
        (out / Path(script).name).chmod(0o755)  # the module cache keeps no executable bits


def _supplemented(source: Path, supplement: tuple[str, str, str], scratch: Path) -> Path:
    """A go.mod that takes the module from a copy which has our file too: Go lets nobody change its cache, overlays included."""
    module, directory, file = supplement
    copy, mod = scratch / "module", scratch / "go.mod"
    origin = _run_go(source, "list", "-m", "-f", "{{.Dir}}", module).strip()
    shutil.copytree(origin, copy, copy_function=shutil.copyfile)
    for place in (copy, *filter(Path.is_dir, copy.rglob("*"))):
        place.chmod(0o755)  # copies of directories are as read-only as they are in the module cache
    shutil.copyfile(source / file, copy / directory / file)
    shutil.copyfile(source / "go.mod", mod)
    shutil.copyfile(source / "go.sum", mod.with_suffix(".sum"))
    _run_go(source, "mod", "edit", f"-replace={module}={copy}", str(mod))
    return mod


def _run_go(source: Path, *arguments: str) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    run = subprocess.run(["go", *arguments], cwd=source, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        tail = "\n".join(run.stderr.strip().splitlines()[-15:])
        raise LocalError(f"go {arguments[0]} failed in tools/{source.name}:\n{tail}")
    return run.stdout


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
