"""What a stack file would change in its cluster: read for the commands that show it."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from catalog import CatalogError
from cli.errors import MistakesError, UnreadableError
from cli.pulumi import Project, PulumiError
from live.api import Api, ClusterError
from live.edits import Edit, read_edits, read_free
from live.kubeconfig import KubeconfigError, read_kubeconfig
from models.stack import Stack
from render.ownership import field_manager
from rules import Source, StackError, read, require_context


class StackEdits(NamedTuple):
    """The edits of a stack, and what they have room for."""

    edits: tuple[Edit, ...]
    free: Mapping[str, int] | None
    """extended resource -> number that no pod holds; None where nobody may read it, or has asked for it"""
    manager: str
    """field manager of the stack"""


def define_arguments(command: argparse.ArgumentParser, formats: Iterable[str], run: Callable[[Path, str], int]) -> None:
    """Arguments of a command that shows the edits of one stack file in one of ``formats``."""
    command.add_argument("file", type=Path, metavar="STACKFILE", help="Pulumi.STACK.yaml")
    command.add_argument("--format", choices=list(formats), default="text")
    command.set_defaults(run=lambda given: run(given.file, given.format))


def read_stack_edits(stack_file: Path, *, room: bool = False) -> StackEdits:
    """Look at the cluster of ``Pulumi.STACK.yaml``; ``room``: also at what its nodes have left, for which all pods are read.

    Raises:
        UnreadableError: it, or the cluster, can't be read, or it has mistakes.
    """
    named = re.fullmatch(r"Pulumi\.(.+)\.ya?ml", stack_file.name)
    if named is None:
        raise UnreadableError(f"{stack_file}: its name does not say which stack it is of; Pulumi.STACK.yaml would")
    with reading(stack_file) as (stack, _):
        manager = field_manager(Project.around(stack_file.absolute().parent).name, named[1])
        return asyncio.run(_read(stack, manager, room=room))


@contextmanager
def reading(stack_file: Path) -> Iterator[tuple[Stack, Source]]:
    """The stack of a file, whose context the kubeconfig has, for what then looks at its cluster.

    Raises:
        MistakesError: it has mistakes.
        UnreadableError: it, or the cluster, can't be read.
    """
    try:
        source = Source.load(stack_file)
        stack = read(source.config, source)
        require_context(stack, read_kubeconfig().contexts, source)
        yield stack, source
    except OSError as error:
        raise UnreadableError(f"{stack_file}: {error.strerror}") from error
    except CatalogError as error:
        raise UnreadableError(f"the catalogue is wrong:\n{error}") from error
    except StackError as error:
        raise MistakesError(error.findings) from error
    except (PulumiError, ClusterError, KubeconfigError) as error:
        raise UnreadableError(str(error)) from error


async def _read(stack: Stack, manager: str, *, room: bool) -> StackEdits:
    api = await Api.connect(stack.cluster.context)
    edits = await read_edits(api, stack, manager)
    return StackEdits(edits, await read_free(api) if room else None, manager)
