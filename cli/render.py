"""``pd render``: a stack's objects as plain YAML, for GitOps."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from catalog import CatalogError
from cli.chart import template
from models.cluster import Cluster
from render.chart import ChartError
from render.control_plane import chart_values, render_control_plane
from render.files import KUSTOMIZATION, Folders, Object, files, folders, stream, with_waves
from rules import StackError, read_file

WRITTEN, MISTAKES, UNWRITABLE = 0, 1, 2
"""exit codes"""
STREAM = "-"

HELP = """\
Write the objects that `pulumi up` makes of a stack as plain YAML, without a cluster, Pulumi's engine or its state: one file for
each object, and a kustomization.yaml in each directory that lists them in the order of creation. For the same stack the text is
the same. What an earlier run for the stack has left in DIR and is declared no more is removed; other files are left alone."""

HELP_MORE = """\
examples:
  pd render Pulumi.prod.yaml --to deploy/prod
  pd render Pulumi.prod.yaml --to - --without-control-plane | kubectl diff --server-side -f -

exit code:
  0  written
  1  the stack has errors; nothing was written
  2  a file can't be read or written, DIR holds something else, the chart can't be had, or the command line is wrong

docs/gitops.md says how Argo CD, Flux or kubectl apply it, and what `pulumi up` does beyond that."""


class _UnwritableError(Exception):
    """The files can't be written; the text is for the user."""


def define(command: argparse.ArgumentParser) -> None:
    """Arguments and help."""
    command.description, command.epilog = HELP, HELP_MORE
    command.add_argument("file", type=Path, metavar="STACKFILE", help="Pulumi.STACK.yaml")
    command.add_argument("--to", required=True, metavar="DIR", help="where to; -: one stream on standard output")
    command.add_argument("--without-control-plane", action="store_true", help="leave Kthena's CRDs, controller and router out")
    command.add_argument("--sync-waves", action="store_true", help="order the objects for Argo CD by annotations")
    command.set_defaults(
        run=lambda given: run(given.file, given.to, control_plane=not given.without_control_plane, waves=given.sync_waves)
    )


def run(stack_file: Path, to: str, *, control_plane: bool, waves: bool) -> int:
    """Render one stack file; what is wrong goes to standard error.

    Returns:
        The exit code.
    """
    try:
        stack, warnings = read_file(stack_file)
        for warning in warnings:
            print(warning, file=sys.stderr)
        found = folders(stack, _control_plane(stack.cluster, stack_file.parent) if control_plane else ())
        found = with_waves(found) if waves else found
        said = stream(found) if to == STREAM else _write(Path(to), found, stack_file.name)
    except StackError as error:
        print(f"error: {error}", file=sys.stderr)
        return MISTAKES
    except CatalogError as error:
        print(f"error: the catalogue is wrong:\n{error}", file=sys.stderr)
        return UNWRITABLE
    except OSError as error:
        print(f"error: {error.filename or stack_file}: {error.strerror}", file=sys.stderr)
        return UNWRITABLE
    except (ChartError, _UnwritableError) as error:
        print(f"error: {error}", file=sys.stderr)
        return UNWRITABLE
    if to == STREAM:  # kubectl takes no other encoding
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    print(said, end="")
    return WRITTEN


def _control_plane(cluster: Cluster, directory: Path) -> Sequence[Object]:
    if not cluster.control_plane.install:
        return ()
    return render_control_plane(cluster, template(cluster.control_plane, chart_values(cluster), directory))


def _write(directory: Path, found: Folders, stack_file: str) -> str:
    """Bring ``directory`` to what is ``found``; what has been done.

    Raises:
        OSError: a file can't be written.
        _UnwritableError: it, or the place of a file in it, is somebody else's.
    """
    name = stack_file.encode("unicode_escape")  # whatever it is, a comment of one line
    mark = b"# Written by pd render from %b; the next one overwrites what is changed here.\n" % name
    wanted = {directory / path: mark + content.encode() for path, content in files(found).items()}
    if directory.exists() and any(directory.iterdir()) and not _has(directory / KUSTOMIZATION, mark):
        raise _UnwritableError(
            f"{directory} is not empty, and was not written by `pd render` from {stack_file}; nothing was written\n"
            "  -> name a directory of its own, which need not exist yet"
        )
    foreign = [str(file) for file in wanted if file.exists() and not _has(file, mark)]
    if foreign:
        raise _UnwritableError(
            f"not written by `pd render` from {stack_file}, and in the way: {', '.join(foreign)}; nothing was written\n"
            "  -> move what is there elsewhere"
        )
    changed = [file for file, content in wanted.items() if not file.exists() or file.read_bytes() != content]
    stale = [file for file in directory.rglob("*.yaml") if file not in wanted and _has(file, mark)]
    for file in changed:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(wanted[file])
    for file in stale:
        file.unlink()
        for around in file.relative_to(directory).parents:
            if around.name and not any((directory / around).iterdir()):
                (directory / around).rmdir()
    return f"{directory}: {len(wanted)} files, {len(changed)} of them written, {len(stale)} others removed\n"


def _has(file: Path, mark: bytes) -> bool:
    """Whether ``file`` begins with ``mark``."""
    if not file.is_file():
        return False
    with file.open("rb") as content:
        return content.read(len(mark)) == mark
