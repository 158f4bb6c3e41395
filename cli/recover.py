"""``pd recover``: a stack whole again after a killed `pulumi up` or `pulumi destroy`."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli import pulumi
from cli.pulumi import Project, PulumiError
from render.names import MANAGED, selector

WHOLE, STOPPED, NO_ANSWER = 0, 1, 2
"""exit codes: all is as declared; somebody holds the stack, or Pulumi failed; Pulumi can't be asked"""

HELP = """\
Bring a stack back after a `pulumi up` or `pulumi destroy` was killed: end the plugins that it left running, release its lock
if it is dead, `pulumi up`, and forget what it was creating. Each step is said before it is done. It uses the pulumi on PATH
with your Pulumi home, backend and kubeconfig, and may be repeated at any time."""

HELP_MORE = """\
examples:
  pd recover                     the selected stack; shows the preview, and asks
  pd recover --stack prod --yes  without questions; a lock that may be somebody's is still not released

A lock of a run on this machine is dead if no such process is here. A container does not see whether that process is in another
one of the same host name: there you are asked, and with --yes the lock stays.

exit code:
  0  the stack is as declared
  1  somebody works on the stack, or Pulumi failed: what it said is above
  2  Pulumi can't be asked: no pulumi, no project, no such stack, no access to its state, or the command line is wrong"""

NAMESPACE_SECONDS = 120.0
_NAMESPACE = "kubernetes:core/v1:Namespace"
_LOCKED = ("the stack is currently locked by", "Another update is currently in progress")
"""what Pulumi says: its DIY backends, and Pulumi Cloud"""


class _StoppedError(Exception):
    """Begun, and not finished; the text is for the user."""


def define(command: argparse.ArgumentParser) -> None:
    """Arguments and help."""
    command.description, command.epilog = HELP, HELP_MORE
    command.add_argument("--stack", help="default: the selected one")
    command.add_argument("--yes", action="store_true", help="ask nothing")
    command.set_defaults(run=lambda given: run(given.stack, yes=given.yes))


def run(stack: str | None, *, yes: bool) -> int:
    """Recover ``stack``, or the one that is selected; ``yes``: ask nothing.

    Returns:
        The exit code.
    """
    try:
        project, stack, backend = _begin(stack, yes=yes)
        _free(project, stack, backend, yes=yes)
        _bring_back(project, stack, yes=yes)
    except PulumiError as error:
        print(f"error: {error}", file=sys.stderr)
        return NO_ANSWER
    except _StoppedError as error:
        print(f"error: {error}", file=sys.stderr)
        return STOPPED
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return STOPPED
    return WHOLE


def _begin(stack: str | None, *, yes: bool) -> tuple[Project, str, Path | None]:
    """The project, the stack, and the directory of its backend if that is one."""
    if not shutil.which("pulumi"):
        raise PulumiError("there is no pulumi on PATH")
    if not yes and not _has_terminal():
        raise PulumiError("there is no terminal to ask on; say --yes if nothing is to be asked")
    project = Project.around(Path.cwd())
    url = str(json.loads(_asked("whoami", "--json"))["url"])
    backend = pulumi.file_backend(url)
    for file in pulumi.mend(backend) if backend else ():
        _say(f"removed {file}, which was cut off when it was written")
    stack = stack or _asked(
        "stack", "--show-name", otherwise="no stack is selected that the backend has; say which: --stack NAME"
    )
    _say(f"stack {stack} of project {project.name} in {url}")
    return project, stack, backend


def _free(project: Project, stack: str, backend: Path | None, *, yes: bool) -> None:
    """End what a killed run has left running, and release its lock. Nothing is touched while somebody may be at work."""
    held = pulumi.locks(backend, project.name, _short(stack)) if backend else []
    alive = [lock for lock in held if not lock.is_dead]
    if alive:
        raise _StoppedError("\n".join(_held(lock, stack) for lock in alive))
    if held and not pulumi.sees_all_processes():
        locked = "\n".join(f"the stack is locked by {lock}" for lock in held)
        _say(f"{locked}\nThat process is not in this container; another one of this host name may have it.")
        if yes or not _agrees("Is that run dead?"):
            raise _StoppedError(f"the stack is locked, see above; if that run is dead: pulumi cancel --yes {stack}")
    for orphan in pulumi.end_orphans(pulumi.home(), project.directory):
        _say(f"ended {orphan}: the run that it worked for is gone")
    for lock in held:
        _say(f"releasing the lock of {lock}: that run is gone")
    if held:
        _asked("cancel", "--yes", stack)


def _bring_back(project: Project, stack: str, *, yes: bool) -> None:
    state = _state(stack)
    if state is None:
        _make_anew(project, stack, yes=yes)
    pending = _pending(state)
    for operation in pending:
        _say(f"the killed run was {operation['type']} {_resource(operation)}")
    if _has(pending, "deleting"):
        _say("`up` brings back what it has deleted; to go on deleting instead: pulumi destroy")
    for operation in pending:
        if operation["type"] == "deleting" and operation["resource"].get("type") == _NAMESPACE:
            asyncio.run(_until_gone(operation["resource"]["id"], _context(state)))
    # What is gone meanwhile, as after a killed destroy, would be unchanged for `up` as long as Pulumi's state has it.
    _do("up", "--refresh", *(("--yes", "--skip-preview") if yes else ()), "--stack", stack)
    if _has(_pending(_state(stack)), "creating"):
        # `up` has created it again, or taken over what was there; that the killed run was at it, only this forgets. It changes
        # Pulumi's state only, so nothing is asked.
        _do("refresh", "--clear-pending-creates", "--yes", "--skip-preview", "--non-interactive", "--stack", stack)
    _say(f"stack {stack} is as declared")


async def _until_gone(namespace: str, context: str | None) -> None:
    """Wait while a namespace ends: nothing can be created in it meanwhile.

    Raises:
        _StoppedError: it does not end, or the cluster does not say.
    """
    from live import paths  # noqa: PLC0415  # half a second, which few recoveries need
    from live.api import Api, ClusterError  # noqa: PLC0415

    deadline = time.monotonic() + NAMESPACE_SECONDS
    try:
        api = await Api.connect(context)
        _say(f"waiting until namespace {namespace} is gone: nothing can be created in it before")
        while (found := await api.get(paths.namespaces(name=namespace))) and "deletionTimestamp" in found["metadata"]:
            if time.monotonic() > deadline:
                raise _StoppedError(f"namespace {namespace} does not go; kubectl get namespace {namespace} -o yaml says why")
            await asyncio.sleep(0.5)
    except ClusterError as error:
        raise _StoppedError(str(error)) from error


def _asked(*arguments: str, otherwise: str = "") -> str:
    """What `pulumi ARGUMENTS` prints.

    Raises:
        PulumiError: it failed.
    """
    done = pulumi.ask(*arguments)
    if done.returncode:
        raise PulumiError(otherwise or f"pulumi {' '.join(arguments)} failed:\n{done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def _do(*arguments: str) -> None:
    """`pulumi ARGUMENTS`, again once its stack's lock was released where the user says so.

    Raises:
        _StoppedError: it failed.
    """
    while True:
        _say(f"pulumi {' '.join(arguments)}")
        code, said = pulumi.show(*arguments)
        if code == 0:
            return
        if not any(message in said for message in _LOCKED):
            raise _StoppedError("not finished, see above; once that is put right, the same command goes on from here")
        stack = arguments[-1]
        if not _agrees("Only you can know whether the run that holds the stack is dead. Release its lock (pulumi cancel)?"):
            raise _StoppedError(f"the stack is locked, see above; if the run that holds it is dead: pulumi cancel --yes {stack}")
        _asked("cancel", "--yes", stack)


def _state(stack: str) -> dict[str, Any] | None:
    """Pulumi's state of ``stack``; None if the backend has no such stack.

    Raises:
        PulumiError: Pulumi doesn't say.
    """
    done = pulumi.ask("stack", "export", "--stack", stack)
    if done.returncode and "no stack named" in done.stderr:
        return None
    if done.returncode:
        raise PulumiError(f"Pulumi can't read its state of {stack}:\n{done.stderr.strip()}")
    return json.loads(done.stdout).get("deployment") or {}


def _pending(state: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """What Pulumi was at when it was killed."""
    return (state or {}).get("pending_operations") or []


def _context(state: Mapping[str, Any] | None) -> str | None:
    """Context of the kubeconfig that the stack's provider uses; None: the current one."""
    providers = [one for one in (state or {}).get("resources") or () if one["type"] == "pulumi:providers:kubernetes"]
    return next((one["inputs"]["context"] for one in providers if one.get("inputs", {}).get("context")), None)


def _make_anew(project: Project, stack: str, *, yes: bool) -> None:
    """Make a stack of which the backend knows nothing.

    Raises:
        PulumiError: there is no stack file of that name.
        _StoppedError: it is not wanted, or can't be done.
    """
    file = project.directory / f"Pulumi.{_short(stack)}.yaml"
    if not file.is_file():
        raise PulumiError(f"the backend has no stack {stack}, and there is no {file.name}; `pulumi stack ls` has all names")
    _say(
        f"the backend has no stack {stack}: its state is lost, or was never there. `pulumi stack init` and `pulumi up` take\n"
        f"over what the cluster has of all that {file.name} declares; pods go on. What it no longer declares stays; to see it:\n"
        f"kubectl get {_KINDS} -A -l {selector(MANAGED)}"
    )
    if not yes and not _agrees("Do that?"):
        raise _StoppedError("nothing was changed")
    _do("stack", "init", stack)


_KINDS = "modelservings,modelservers,modelroutes,autoscalingpolicies,configmaps,networkpolicies"


def _held(lock: pulumi.Lock, stack: str) -> str:
    remedy = (
        "it runs on this machine; let it end, or interrupt it there (Ctrl-C)"
        if lock.is_here
        else f"whether it still runs can be seen on {lock.host} only; if it is dead: pulumi cancel --yes {stack}"
    )
    return f"the stack is locked by {lock}\n  -> {remedy}"


def _has(pending: list[dict[str, Any]], kind: str) -> bool:
    return any(operation["type"] == kind for operation in pending)


def _resource(operation: dict[str, Any]) -> str:
    """Kind and name, from a URN such as ``urn:pulumi:dev::kthena-pd::PDDeployment$kubernetes:v1:ConfigMap::x-prefill``."""
    *_, types, name = operation["resource"]["urn"].split("::")
    return f"{types.rpartition(':')[2]} {name}"


def _short(stack: str) -> str:
    """``dev`` of ``organization/kthena-pd/dev``."""
    return stack.rpartition("/")[2]


def _say(text: str) -> None:
    print(text, flush=True)


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _agrees(question: str) -> bool:
    """Whether the user says yes; without a terminal nobody does."""
    if not _has_terminal():
        return False
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
