"""What a stack file would change in its cluster: read for the commands that show it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from catalog import CatalogError
from cli.pulumi import Project, PulumiError
from live.api import Api, ClusterError
from live.edits import Edit, look
from live.kubeconfig import KubeconfigError, read_kubeconfig
from models.stack import Stack
from render.ownership import field_manager
from rules import Source, StackError, read, require_context


class UnreadableError(Exception):
    """The stack file or the cluster can't be read; the text is for the user."""


class StackEdits(NamedTuple):
    """The edits of a stack, and what they have room for."""

    edits: tuple[Edit, ...]
    free: Mapping[str, int] | None
    """extended resource -> number that no pod holds; None where nobody may read it"""
    manager: str
    """field manager of the stack"""


def read_stack_edits(stack_file: Path) -> StackEdits:
    """Look at the cluster of ``Pulumi.STACK.yaml``.

    Raises:
        UnreadableError: it, or the cluster, can't be read, or it has mistakes.
    """
    named = re.fullmatch(r"Pulumi\.(.+)\.ya?ml", stack_file.name)
    if named is None:
        raise UnreadableError(f"{stack_file}: its name does not say which stack it is of; Pulumi.STACK.yaml would")
    try:
        source = Source.load(stack_file)
        stack = read(source.config, source)
        require_context(stack, read_kubeconfig().contexts, source)
        manager = field_manager(Project.around(stack_file.absolute().parent).name, named[1])
        return asyncio.run(_read(stack, manager))
    except OSError as error:
        raise UnreadableError(f"{stack_file}: {error.strerror}") from error
    except CatalogError as error:
        raise UnreadableError(f"the catalogue is wrong:\n{error}") from error
    except (StackError, PulumiError, ClusterError, KubeconfigError) as error:
        raise UnreadableError(str(error)) from error


async def _read(stack: Stack, manager: str) -> StackEdits:
    api = await Api.connect(stack.cluster.context)
    return StackEdits(*await look(api, stack, manager), manager)
