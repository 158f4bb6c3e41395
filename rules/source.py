"""The stack file and its base as text: what of them is the project's own, and where each thing stands."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as File
from typing import Any, NamedTuple, NoReturn

import yaml

from rules.finding import PROJECT, Check, Finding, Path, StackError, shown

FILE = Check(
    "PD000",
    "error",
    "Pulumi's project files, read by gopkg.in/yaml.v3",
    "stack file can be read",
    "Nothing in it can be checked before it is YAML of a reasonable size, every key stands once, and no value is encrypted.",
)
LARGEST_FILE = 2**20
"""bytes; a deployment takes a few hundred"""
MOST_VALUES = 50_000
"""values with all aliases written out: a few lines of nested aliases can stand for billions"""
DEEPEST = 64
"""levels of maps and lists"""
_PREFIX = f"{PROJECT}:"
_TAG = "tag:yaml.org,2002:"
_PLAIN = "plain"


class Place(NamedTuple):
    """Where something begins, line and column from 1."""

    line: int
    column: int
    file: str = ""
    """empty where it is clear of which file it is"""


@dataclass(frozen=True)
class Source:
    """A stack file."""

    name: str
    """as it is shown, for example ``Pulumi.dev.yaml``"""
    text: str

    @classmethod
    def load(cls, file: File) -> Source:
        """Read a file.

        Raises:
            OSError: there is none, or it may not be read.
            StackError: it is no text, or too much.
        """
        with file.open("rb") as stream:  # no more of a device or a wrong file than is needed to refuse it
            content = stream.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            _refuse(str(file), Place(1, 1), f"larger than {LARGEST_FILE} bytes", "a stack file; several smaller ones")
        try:
            return cls(str(file), content.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            place = Place(line, error.start - content.rfind(b"\n", 0, error.start))
            _refuse(str(file), place, f"byte 0x{content[error.start]:02x} is not UTF-8", "text, saved as UTF-8")

    @property
    def config(self) -> dict[str, Any]:
        """The project's own keys; other projects' and providers' settings are theirs.

        Raises:
            StackError: it is not YAML that Pulumi would take, or has values that only Pulumi can decrypt.
        """
        return self._content[0]

    def places(self, config: Mapping[str, Any]) -> Mapping[Path, Place]:
        """Place of each path; nothing if this text is not what ``config`` was read from."""
        try:
            read, places = self._content
        except StackError:
            return {}
        return {path: place._replace(file=self.name) for path, place in places.items()} if read == dict(config) else {}

    @cached_property
    def _content(self) -> tuple[dict[str, Any], dict[Path, Place]]:
        reader = _Reader(self.name, _own)
        return reader.config(_compose(self.name, self.text)), reader.places


class Base(Source):
    """A file that stack files share: ``cluster`` and ``deployments`` stand at its top."""

    @cached_property
    def _content(self) -> tuple[dict[str, Any], dict[Path, Place]]:
        reader = _Reader(self.name, lambda path: path)
        return reader.whole(_compose(self.name, self.text)), reader.places


class _Reader:
    """Values and places of a YAML document.

    Values are those of Go's yaml.v3, by which Pulumi reads the file: unlike PyYAML's, ``on`` and ``12:30`` are texts and ``1e3``
    is a number, a key is always a text, and a key that stands twice is a mistake.
    """

    def __init__(self, name: str, own: Callable[[Path], Path]) -> None:
        self.name = name
        self.own = own
        """path from the top of the file -> path of the project's own config; () where it is none"""
        self.places: dict[Path, Place] = {}
        self._mistakes: list[Finding] = []
        self._count = 0
        self._around: set[int] = set()

    def config(self, root: yaml.Node | None) -> dict[str, Any]:
        """The project's own keys; afterwards ``places`` has those of their paths, and that of config as ()."""
        content = self._document(root, "a stack file: config, and below it the settings")
        top = self.places.get(("config",), Place(1, 1))
        declared = {} if content.get("config") is None else content["config"]
        if not isinstance(declared, dict):
            _refuse(self.name, top, "config is not a map", f"config, and below it {_PREFIX}cluster and {_PREFIX}deployments")
        self._refuse_mistakes()
        self.places = {own: place for path, place in self.places.items() if (own := self.own(path))} | {(): top}
        config = {key.removeprefix(_PREFIX): value for key, value in declared.items() if key.startswith(_PREFIX)}
        return settings({key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()})

    def whole(self, root: yaml.Node | None) -> dict[str, Any]:
        """All of a document, a map; afterwards ``places`` has those of all paths."""
        content = self._document(root, "cluster, and deployments by name")
        self._refuse_mistakes()
        self.places[()] = Place(1, 1)
        return content

    def _document(self, root: yaml.Node | None, wanted: str) -> dict[str, Any]:
        content = self._value(root, ()) if root else None
        if content is None:
            return {}
        if not isinstance(content, dict):
            _refuse(self.name, Place(1, 1), "not a map", wanted)
        return content

    def _refuse_mistakes(self) -> None:
        if self._mistakes:
            raise StackError(self._mistakes)

    def _value(self, node: yaml.Node, path: Path) -> Any:
        self._tally(node)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if node.tag.removeprefix(_TAG) not in ("map", "seq"):
            self._mistake(node, path, *_foreign(node))
        with self._inside(node):
            if isinstance(node, yaml.MappingNode):
                return self._map(node, path)
            items: list[Any] = []
            for index, item in enumerate(node.value):
                self.places[*path, index] = _place(item)
                items.append(self._value(item, (*path, index)))
            return items

    def _map(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._fill(found, node, path)
        if found.keys() == {"secure"} and isinstance(found["secure"], str) and self.own(path):
            remedy = "write it plainly: sizes, names and ports are no secrets, and credentials belong into a Kubernetes Secret"
            self._mistake(node, path, "encrypted, only Pulumi can read it", remedy)
        return found

    def _fill(self, found: dict[str, Any], node: yaml.MappingNode, path: Path) -> None:
        """Add to ``found`` what it does not have: what is merged in yields to what stands there."""
        merged: list[yaml.Node] = []
        keys: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._mistake(key, path, "a key that is no text", "a text, in quotes if it begins with a bracket")
            elif (first := keys.setdefault(key.value, key)) is not key:
                already = f"{shown(key.value)} is on line {_place(first).line} already"
                self._mistake(key, (*path, key.value), already, "leave one of the two out")
            elif key.value == "<<" and key.tag == _PLAIN:
                merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
            elif key.value not in found:
                here = (*path, key.value)
                self.places[here] = _place(key)
                found[key.value] = self._value(value, here)
        for base in merged:
            if isinstance(base, yaml.MappingNode):
                self._tally(base)
                with self._inside(base):
                    self._fill(found, base, path)
            else:
                self._mistake(base, path, "<< without a map", "<<: *NAME, where &NAME stands before a map")

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        tag = node.tag.removeprefix(_TAG)
        if tag == "str":
            return node.value
        if tag not in (_PLAIN, "null", "bool", "int", "float"):
            self._mistake(node, path, *_foreign(node))
        return _plain(node.value)

    def _tally(self, node: yaml.Node) -> None:
        self._count += 1
        if self._count > MOST_VALUES:
            _refuse(self.name, _place(node), f"more than {MOST_VALUES} values, aliases written out", "fewer aliases")

    @contextmanager
    def _inside(self, node: yaml.Node) -> Iterator[None]:
        if id(node) in self._around:
            _refuse(self.name, _place(node), "an alias inside what it stands for", "write it out")
        if len(self._around) == DEEPEST:
            _refuse(self.name, _place(node), f"more than {DEEPEST} levels of maps and lists", "fewer levels")
        self._around.add(id(node))
        yield
        self._around.remove(id(node))

    def _mistake(self, node: yaml.Node, path: Path, what: str, remedy: str) -> None:
        line, column, _ = _place(node)
        self._mistakes.append(Finding(FILE.code, self.own(path), what, remedy, file=self.name, line=line, column=column))


def _own(path: Path) -> Path:
    """``path`` from the top of the file as one of the project's own config; () if it is none."""
    if len(path) < 2 or path[0] != "config" or not str(path[1]).startswith(_PREFIX):  # noqa: PLR2004 - config.KEY
        return ()
    return (str(path[1]).removeprefix(_PREFIX), *path[2:])


def settings(texts: Mapping[str, str | None]) -> dict[str, Any]:
    """What stands in the stack file, of the texts that Pulumi hands to the program; None is a key that is absent.

    Maps and lists come as JSON, all else as its text, and null as an empty one. A number of a key with dots stays a text, as
    `pulumi config set` writes it. Nothing is null at the end of a path, and else as if it were absent.
    """
    values = {key: _setting(key, text or "null") for key, text in texts.items()}
    return {key: value for key, value in values.items() if value is not None or "." in key}


def _setting(key: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:  # also of a number that has thousands of digits
        return text
    return value if value is None or isinstance(value, dict | list) or "." not in key else text


def _place(node: yaml.Node) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


def _foreign(node: yaml.Node) -> tuple[str, str]:
    return f"tag {shown(node.tag.replace(_TAG, '!!'))}", "leave it out"


def _refuse(name: str, place: Place, what: str, remedy: str) -> NoReturn:
    raise StackError([Finding(FILE.code, (), what, remedy, file=name, line=place.line, column=place.column)])


_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_OCTAL = re.compile(r"[-+]?0[0-7]{1,22}", re.ASCII)
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,18}|0[bB][01]{1,64}|0[oO][0-7]{1,22}|0[xX][0-9a-fA-F]{1,16})")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def _plain(text: str) -> str | float | bool | None:
    """What a text without quotes stands for. Source: gopkg.in/yaml.v3 resolve.go; dates stay texts."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    digits = text.replace("_", "") if text[0] in "+-0123456789" else text
    if _OCTAL.fullmatch(digits):
        return int(digits, 8)
    if _INTEGER.fullmatch(digits):
        return int(digits, 0)
    if _FLOAT.fullmatch(digits) and math.isfinite(number := float(digits)):
        return number
    return text


_Loader: Any = type("_Loader", (getattr(yaml, "CBaseLoader", yaml.BaseLoader),), {})
_Loader.add_implicit_resolver(_PLAIN, re.compile(""), None)

_EXPECTED = {
    "\t": "blanks: YAML takes no tabs for indentation",
    "mapping values are not allowed": "quotes around a text with a colon in it; keys of one map in one column",
    "expected ',' or ']'": "the closing ] or a comma",
    "expected ',' or '}'": "the closing } or a comma",
    "expected '-' indicator": "items of one list in one column, each with a dash",
    "expected key": "keys of one map in one column",
    "unexpected end of stream": "the closing quote",
    "undefined alias": "&NAME before the value that *NAME stands for; or quotes around a text with * before it",
    "cannot start any token": "quotes around the text",
    "unknown escape character": "a backslash written twice, or single quotes around the text",
    "another document": "one document, without --- in the middle",
    "could not find expected ':'": "a colon and a blank after the key; keys of one map in one column",
}
"""part of libyaml's message, or the character that it is about -> what was expected"""


def _compose(name: str, text: str) -> yaml.Node | None:
    unprintable = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if unprintable:
        before = text[: unprintable.start()]
        place = Place(before.count("\n") + 1, len(before) - before.rfind("\n"))
        _refuse(name, place, f"character {unprintable[0]!a}", "text; in quotes a character can be written as \\x00 or \\u0000")
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line, mark.column) if mark else (0, 0)
        lines = text.splitlines()
        character = lines[line][column : column + 1] if line < len(lines) else ""
        what = ", ".join(part for part in (error.context, error.problem) if part)
        if error.context_mark and error.context_mark.line != line:
            what = f"{what} (it begins on line {error.context_mark.line + 1})"
        remedy = next((remedy for part, remedy in _EXPECTED.items() if part in what or part == character), None)
        _refuse(
            name, Place(line + 1, column + 1), f"not YAML: {what}", remedy or "quotes, brackets, colons and indentation in order"
        )
    return root
