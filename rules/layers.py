"""What a stack declares in several places as one: keys with dots in them, and the base that it shares with other stacks."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path as File
from typing import Any, NamedTuple

from catalog.lines import nearest
from rules.finding import Check, Finding, Path, StackError, dotted, shown
from rules.shape import SHAPE, overlay
from rules.source import Base, Place, Source

BASE = Check(
    "PD005",
    "error",
    "rules/layers.py",
    "base can be read",
    "What stacks share stands there, and without it little is known of this one.",
)
WANTED = "a file with cluster and deployments, by its path from the directory of the stack file"


class Declared(NamedTuple):
    """A stack as it is declared, its base below it."""

    config: dict[str, Any]
    findings: tuple[Finding, ...]
    """what stands twice"""
    own: dict[Path, Place]
    """places in the stack file; nothing where it is not known"""
    base: dict[Path, Place]
    """places in the base, without what the stack has replaced"""

    def placed(self, finding: Finding) -> Finding:
        """``finding`` with the place of its path, or of the nearest thing around it that is declared."""
        # without the stack file, what is nearest in the base may not be what is meant
        place = nearest(finding.path, ChainMap(self.own, self.base)) if self.own else self.base.get(finding.path)
        return replace(finding, file=place.file, line=place.line, column=place.column) if place else finding


def declared(config: Mapping[str, Any], source: Source | None) -> Declared:
    """Read ``config`` of a stack file, ``source``, and the base that it names.

    Raises:
        StackError: there is no such base, or it can't be read.
    """
    places = dict(source.places(config)) if source else {}
    own = {parts[:length]: place for parts, place in _of_dots(places) for length in range(1, len(parts) + 1)} | places
    found = Declared(*_spread(config), own, {})
    name = found.config.get("base")
    if not isinstance(name, str) or not name:  # absent, or of the wrong shape
        return found
    try:
        base = Base.load((File(source.name).parent if source else File()) / name)
    except (OSError, ValueError) as error:  # the second of a path that can be none
        problem = f"{shown(name)} can't be read: {error.strerror if isinstance(error, OSError) else error}"
        raise StackError([found.placed(Finding(BASE.code, ("base",), problem, WANTED))]) from error
    findings = found.findings
    if "base" in base.config:
        line, column, file = base.places(base.config)["base",]
        problem = "a base has no base of its own"
        findings += (Finding(BASE.code, ("base",), problem, "leave it out", file=file, line=line, column=column),)
    replaced: set[Path] = {("base",)}
    whole = overlay(base.config, found.config, replaced=replaced.add)
    places_below = {
        path: place
        for path, place in base.places(base.config).items()
        if path and not any(path[:length] in replaced for length in range(1, len(path) + 1))
    }
    return Declared(_without_removed(whole, base.config), findings, own, places_below)


def _without_removed(config: dict[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Without deployments of the base for which the stack says ``NAME: null``."""
    deployments, shared = config.get("deployments"), base.get("deployments")
    if not isinstance(deployments, Mapping) or not isinstance(shared, Mapping):
        return config
    left = {name: value for name, value in deployments.items() if value is not None or shared.get(name) is None}
    return {**config, "deployments": left}


def _spread(config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """``cluster.scheduler: volcano`` as what ``cluster: {scheduler: volcano}`` says.

    Without ``--path``, `pulumi config set` and the answers to `pulumi new` become keys with dots in them.
    """
    whole: dict[str, Any] = {key: value for key, value in config.items() if "." not in str(key)}
    findings = []
    for key in sorted(config.keys() - whole.keys()):
        path = tuple(key.split("."))
        if _is_taken(whole, path):
            remedy = f"leave one of the two out; `pulumi config rm '{dotted(path)}'` removes this one"
            findings.append(Finding(SHAPE.code, (key,), f"{dotted(path)} stands twice, here and by its parts", remedy))
            continue
        around = whole
        for part in path[:-1]:
            inner = dict(around.get(part) or {})
            around[part] = inner
            around = inner
        around[path[-1]] = config[key]
    return whole, tuple(findings)


def _of_dots(places: Mapping[Path, Place]) -> Iterator[tuple[Path, Place]]:
    """What keys with dots in them stand for, and where."""
    for path, place in places.items():
        if path and "." in str(path[0]):
            yield (*str(path[0]).split("."), *path[1:]), place


def _is_taken(config: Mapping[str, Any], path: Path) -> bool:
    """Whether something stands at ``path``, or something else than a map above it."""
    here: Any = config
    for key in path:
        if here is None:
            return False
        if not isinstance(here, Mapping):
            return True
        here = here.get(key)
    return here is not None
