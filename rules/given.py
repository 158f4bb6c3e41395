"""What the engines of one role are given beside what is derived, each with the place where it is declared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import catalog
from models.deployment import Deployment
from models.role import RoleName
from rules.finding import Path, in_deployment

MOST_VALUES = {"flag": 0, "boolean": 0, "optional": 1} | dict.fromkeys(("int", "count", "float", "string", "json", "object"), 1)
"""Kind of flag in catalog/flags.json -> words that it takes; the others take as many as there are"""


class Given(NamedTuple):
    """A value and where it stands."""

    value: str
    path: Path

    @property
    def place(self) -> str:
        """Where it is declared: engine, or the role."""
        return str(self.path[2])

    @property
    def number(self) -> int | None:
        """The value where it is a whole number, as C++ and Python both read it."""
        return int(self.value) if re.fullmatch(r"[0-9]{1,18}", self.value) else None


class Option(NamedTuple):
    """A flag and the words after it, up to the next flag."""

    flag: str
    """in its long form, without a ``no-`` before it"""
    written: str
    values: tuple[Given, ...]
    path: Path

    @property
    def place(self) -> str:
        """Where it is declared: engine, or the role."""
        return str(self.path[2])

    @property
    def kind(self) -> str | None:
        """Kind of value that the flag takes; None if the catalogue does not have it."""
        return kinds().get(self.flag)


@cache
def kinds() -> dict[str, str]:
    """Flag of vLLM -> kind of value that it takes."""
    return {f"--{flag}": kind for kind, flags in catalog.flags().kinds.items() for flag in flags}


def environment(deployment: Deployment, role: RoleName) -> dict[str, Given]:
    """Environment of the engines of ``role``: its own over that of both roles."""
    return {
        name: Given(value, in_deployment(deployment, place, "env", name))
        for place, declared in (("engine", deployment.engine), (role, deployment.role(role)))
        for name, value in declared.env.items()
    }


def arguments(deployment: Deployment, role: RoleName) -> list[Given]:
    """Words of vLLM's command line in their order: those of both roles, then the role's own."""
    return [
        Given(word, in_deployment(deployment, place, "extraArgs", index))
        for place, declared in (("engine", deployment.engine), (role, deployment.role(role)))
        for index, word in enumerate(declared.extra_args)
    ]


def options(deployment: Deployment, role: RoleName) -> Iterator[Option]:
    """The flags among the arguments."""
    words = arguments(deployment, role)
    flags = [index for index, word in enumerate(words) if is_flag(word.value)]
    for index, end in zip(flags, [*flags, len(words)][1:], strict=True):
        written, attached, value = re.sub(r"^-O(\d)$", r"-O=\1", words[index].value).partition("=")
        own = [Given(value, words[index].path)] if attached else []
        yield Option(long_flag(written), written, (*own, *words[index + 1 : end]), words[index].path)


def is_flag(word: str) -> bool:
    """Whether vLLM takes ``word`` for a flag; a negative number is a value."""
    return bool(re.match(r"--?[a-zA-Z]", word)) and " " not in word.partition("=")[0]


def long_flag(written: str) -> str:
    """The flag that vLLM understands by a word: ``_`` is ``-``, ``--X.key`` a part of ``--X``, ``--no-X`` its opposite."""
    word = written.partition("=")[0].partition(".")[0].replace("_", "-")
    word = "-O" if re.fullmatch(r"-O\d*", word) else word
    flag = f"--{long}" if (long := catalog.flags().aliases.get(word)) else word
    return f"--{flag.removeprefix('--no-')}" if flag.startswith("--no-") else flag
