"""``pd rollout``: how far a candidate is, and the edits of the stack file that take it further or back."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from catalog import CatalogError
from cli.rollout_text import CannotEditError, StackText
from models.base import dump
from models.deployment import Deployment, Rollout
from models.stack import Stack
from render.deployment import serving_name
from rules import Source, StackError, read
from rules.finding import PROJECT, did_you_mean, one_of, shown
from rules.shape import overlay

DONE, REFUSED, NOT_BEGUN = 0, 1, 2
"""exit codes: done; the stack file stays as it is; no such file or deployment, or the command line is wrong"""

HELP = """\
See and edit the rollout of one deployment in its stack file. Only the lines that it is about change, the result is checked before
it takes the place of the file, and nothing happens on the cluster before the next `pulumi up`."""

HELP_MORE = """\
actions:
  status   the versions, their share of the requests, and what the candidate differs in
  next     the next of rollout.steps: more requests for the candidate
  promote  the candidate becomes the deployment itself; after the last step, or with --now
  abort    the candidate goes, the deployment stays as it is

examples:
  pd rollout status chat
  pd rollout next chat --stack-file Pulumi.prod.yaml

exit code:
  0  done
  1  the stack file stays as it is: it has mistakes, or there is no such step
  2  no such file or deployment, or the command line is wrong

docs/rollouts.md says what each step costs."""


class _RefusedError(Exception):
    """The stack file stays as it is; the text is for the user."""


class _UnknownError(Exception):
    """The command line names what is not there; the text is for the user."""


class _StackFile(NamedTuple):
    """A stack file that has no mistakes."""

    path: Path
    source: Source
    stack: Stack

    @property
    def up(self) -> str:
        """The command that brings it to the cluster."""
        directory = [] if self.path.resolve().parent == Path.cwd() else ["--cwd", str(self.path.parent)]
        parts = self.path.name.split(".")
        is_named_so = parts[0] == "Pulumi" and len(parts) > 2  # noqa: PLR2004 - Pulumi.STACK.yaml
        return shlex.join(["pulumi", "up", *directory, *(["--stack", ".".join(parts[1:-1])] if is_named_so else [])])


def define(command: argparse.ArgumentParser) -> None:
    """Arguments and help."""
    command.description, command.epilog = HELP, HELP_MORE
    command.add_argument("action", choices=ACTIONS)
    command.add_argument("name", metavar="NAME", help="of the deployment")
    command.add_argument("--stack-file", type=Path, metavar="STACKFILE", help="default: the only Pulumi.*.yaml of this directory")
    command.add_argument("--now", action="store_true", help="promote before the last step")
    command.set_defaults(run=lambda given: run(given.action, given.name, given.stack_file, now=given.now))


def run(action: str, name: str, file: Path | None, *, now: bool) -> int:
    """Do ``action``, one of :data:`ACTIONS`, for deployment ``name``; ``now``: promote it before the last step.

    Returns:
        The exit code.
    """
    try:
        found = _read(file or _only_file(name))
        if name not in found.stack.deployments:
            known = found.stack.deployments
            raise _UnknownError(f"{found.path}: no deployment {name}; {did_you_mean(name, known, f'one of {one_of(known)}')}")
        if now and action != "promote":
            raise _UnknownError(f"--now is for promote, not for {action}")
        said = list(ACTIONS[action](found, name, now))
    except OSError as error:
        print(f"error: {error.filename or file}: {error.strerror}", file=sys.stderr)
        return NOT_BEGUN
    except CatalogError as error:
        print(f"error: the catalogue is wrong:\n{error}", file=sys.stderr)
        return NOT_BEGUN
    except _UnknownError as error:
        print(f"error: {error}", file=sys.stderr)
        return NOT_BEGUN
    except (StackError, CannotEditError, _RefusedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    print("\n".join(said))
    return DONE


def _only_file(name: str) -> Path:
    """The stack file of this directory, or of several the one that may declare the deployment."""
    there = sorted(Path().glob("Pulumi.*.yaml"))
    found = there if len(there) == 1 else [file for file in there if f"{name}:" in file.read_text(errors="replace")]
    if len(found) != 1:
        several = (
            f"several stack files; say which: --stack-file {found[0]}" if found else f"no Pulumi.*.yaml here declares {name}"
        )
        raise _UnknownError(several if there else "no Pulumi.*.yaml in this directory")
    return found[0]


def _read(file: Path) -> _StackFile:
    """A stack file as it is now.

    Raises:
        OSError: there is no such file, or it may not be read.
        StackError: it has mistakes.
    """
    source = Source.load(file)
    return _StackFile(file, source, read(source.config, source))


def _status(found: _StackFile, name: str, _now: bool) -> Iterator[str]:  # noqa: FBT001 - an action
    deployment, cluster = found.stack.deployments[name], found.stack.cluster
    rollout, candidate = deployment.rollout, deployment.candidate
    serving = serving_name(deployment, cluster)
    if rollout is None:
        yield f"{name}: ModelServing {serving}; Kthena replaces its pods in place"
        return
    if candidate is None:
        edit = "an edit of the pods makes a new one beside it" if rollout.strategy == "BlueGreen" else "no candidate"
        yield f"{name}: {rollout.strategy}; ModelServing {serving} gets all requests; {edit}"
        return
    yield f"{name}: Canary, {_reached(rollout)}"
    yield f"  {100 - rollout.percent:3} %  ModelServing {serving}, {_size(deployment)}"
    yield f"  {rollout.percent:3} %  ModelServing {serving_name(candidate, cluster)}, {_size(candidate)}, the candidate:"
    for path, was, becomes in _differences(deployment, candidate):
        yield f"         {path}: {was} -> {becomes}"


def _next(found: _StackFile, name: str, _now: bool) -> Iterator[str]:  # noqa: FBT001 - an action
    rollout = _tried(found, name)
    if rollout.step == len(rollout.steps):
        raise _RefusedError(f"{name} has taken all {len(rollout.steps)} steps; promote or abort it")
    step = rollout.step + 1
    text = StackText(found.source.text, name).with_step(step)
    edited = _replace(found, text, name, lambda declared: {**declared, "rollout": {**declared["rollout"], "step": step}})
    reached = edited.deployments[name].rollout
    yield f"{name}: {_reached(reached) if reached else ''}"
    yield f"now: {found.up}"


def _promote(found: _StackFile, name: str, now: bool) -> Iterator[str]:  # noqa: FBT001 - an action
    rollout, candidate = _tried(found, name), found.stack.deployments[name].candidate
    if rollout.step < len(rollout.steps) and not now:
        raise _RefusedError(f"{name} is at {_reached(rollout)}; pd rollout next, or --now to promote it all the same")
    declared = found.source.config["deployments"][name]
    text = StackText(found.source.text, name).promoted(declared)

    def is_the_candidate(stack: Stack) -> None:
        own = stack.deployments[name]
        _require_settled(own, found)
        others = [path for path, _, _ in _differences(candidate, own)] if candidate else []
        if others:
            raise _RefusedError(
                f"the recipe of {name}, or its base, would show through in {', '.join(others)}; declare that in the candidate "
                "in full, with null for what is not to be there"
            )

    _replace(found, text, name, lambda own: _settled({**overlay(own, own["rollout"]["candidate"])}), is_the_candidate)
    yield f"{name}: the candidate is the deployment itself"
    yield f"now: {found.up}"


def _abort(found: _StackFile, name: str, _now: bool) -> Iterator[str]:  # noqa: FBT001 - an action
    _tried(found, name)
    text = StackText(found.source.text, name).without_candidate()
    _replace(found, text, name, _settled, lambda stack: _require_settled(stack.deployments[name], found))
    yield f"{name}: without the candidate"
    yield f"now: {found.up}"


Action = Callable[[_StackFile, str, bool], Iterator[str]]
ACTIONS: Mapping[str, Action] = {"status": _status, "next": _next, "promote": _promote, "abort": _abort}


def _tried(found: _StackFile, name: str) -> Rollout:
    """The rollout of a deployment with a candidate that the stack file itself declares."""
    rollout = found.stack.deployments[name].rollout
    if rollout is None or rollout.candidate is None:
        strategy = "{strategy: Canary, candidate: {engine: {version: ...}}}"
        raise _RefusedError(f"{name} has no candidate; declare one: rollout: {strategy}")
    here: Any = found.source.config
    for key in ("deployments", name, "rollout", "candidate"):
        here = here.get(key) if isinstance(here, Mapping) else None
    if here is None:
        place = f"{found.stack.base}, which other stacks share" if found.stack.base else "keys with dots"
        raise _RefusedError(
            f"the candidate of {name} stands in {place}; declare it in {found.path}, below deployments.{name}.rollout"
        )
    return rollout


def _require_settled(deployment: Deployment, found: _StackFile) -> None:
    if deployment.candidate:
        raise _RefusedError(f"{found.stack.base} has a part of the candidate of {deployment.name} too; take it out there first")


def _settled(declared: Mapping[str, Any]) -> dict[str, Any]:
    """A deployment without a candidate."""
    rollout = {key: value for key, value in declared["rollout"].items() if key not in ("candidate", "step")}
    return {**declared, "rollout": rollout}


def _replace(
    found: _StackFile,
    text: str,
    name: str,
    change: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    require: Callable[[Stack], None] = lambda _: None,
) -> Stack:
    """Put ``text`` in the place of the file, after it was seen to be right.

    Args:
        found: the file as it is
        text: what it is to be
        name: of the deployment that changes
        change: the declaration of that deployment -> what it should be afterwards
        require: raises where the edited stack is not what it should be

    Raises:
        CannotEditError: more would change than ``change`` says, or less.
        StackError: it would have mistakes.
        OSError: it can't be written.
    """
    before, source = found.source.config, Source(found.source.name, text)
    wanted = {**before, "deployments": {**before["deployments"], name: change(before["deployments"][name])}}
    try:
        is_wanted = source.config == wanted and _others(text) == _others(found.source.text)
    except StackError:
        is_wanted = False
    if not is_wanted:
        raise CannotEditError(f"{name} shares a part of this by an alias or <<; write it out first, or edit the file by hand")
    try:
        stack = read(source.config, source)
    except StackError as error:
        raise _RefusedError(f"{found.path} would be wrong afterwards. {error}") from error
    require(stack)
    _write(found.path, text)
    return stack


def _others(text: str) -> Any:
    """What a stack file says beside the deployments."""
    content = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - it makes texts, lists and maps only
    content["config"].pop(f"{PROJECT}:deployments")
    return content


def _write(file: Path, text: str) -> None:
    """All of it or nothing, also where the machine stops in the middle."""
    file = file.resolve()  # a link stays one
    with file.open("rb") as old:
        mark = b"\xef\xbb\xbf" if old.read(3) == b"\xef\xbb\xbf" else b""
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as new:
            new.write(mark + text.encode())
            new.flush()
            os.fsync(new.fileno())
        shutil.copymode(file, temporary)
        Path(temporary).replace(file)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


def _reached(rollout: Rollout) -> str:
    return f"step {rollout.step} of {len(rollout.steps)}, {rollout.percent} % of the requests for the candidate"


def _size(deployment: Deployment) -> str:
    return f"{deployment.groups} x {deployment.ratio}, {deployment.npus} NPUs"


def _differences(one: Deployment, other: Deployment) -> Iterator[tuple[str, str, str]]:
    """Path below the deployment, what stands there in the one, and in the other; as in the stack file."""
    left, right = (dict(_leaves(dump(each.model_copy(update={"rollout": None})))) for each in (one, other))
    for path in dict.fromkeys([*left, *right]):
        if left.get(path) != right.get(path):
            was, becomes = (shown(side[path]) if path in side else "absent" for side in (left, right))
            yield path, was, becomes


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value
