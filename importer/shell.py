"""Start scripts, as far as it takes to know the engine's command line and environment.

What a POSIX shell does with words: quotes, ``$NAME``, ``${NAME:-other}``, ``$(cat <<JSON ...)``, line continuations, ``export``,
``cd``, ``exec``, and other scripts that are called. Nothing is run. What is not known here, such as ``$(hostname)``, stays as
it is written, and statements that are not understood are kept for whoever wants to list them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

Files = Callable[[str], str | None]
"""absolute path in the container -> text of the file there, None where it is not known"""

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = re.compile(rf"({_NAME})=(.*)", re.DOTALL)
_HERE_DOCUMENT = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1")
_REDIRECTION = re.compile(r"\d?(?:>>|>&|>|<&|<)[ \t]*(?:&?\d\b|-|[^\s;&|]+)?")
_BLANKS = re.compile(r"(?:[ \t\r]|\\\n)+|#[^\n]*")
_WORD_ENDS = " \t\r\n;&|<>"
_SEPARATOR = re.compile(r"&&|\|\||;;|[;&|\n]")
_OPENING = {"if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done", "{": "}"}
_MIDDLE = {"then", "else", "do"}
_SILENT = {":", "set", "tee", "true", "wait"}
"""Commands without an effect on the engine"""
_NEVER_THE_ENGINE = {*_SILENT, "cat", "date", "echo", "printenv", "printf", "pwd", "sleep"}
"""Commands that run none of their words"""
_SHELLS = {"bash", "sh", "dash", "ash"}
_SOURCING = {".", "source"}
_PYTHONS = re.compile(r"python[0-9.]*")
_SERVER_MODULE = "vllm.entrypoints.openai.api_server"
_DEEPEST = 8
"""scripts that call scripts"""


class Piece(NamedTuple):
    """A part of a word."""

    kind: Literal["text", "name", "command"]
    text: str
    quoted: bool
    otherwise: str | None = None
    """of ``${NAME-otherwise}``"""
    or_empty: bool = False
    """of ``${NAME:-otherwise}``, which holds for an empty value too"""


@dataclass(frozen=True)
class Word:
    """Pieces without a blank between them."""

    pieces: tuple[Piece, ...]
    offset: int
    """line, from 0"""

    @property
    def bare(self) -> str | None:
        """The text of a word without quotes and ``$``; None of any other."""
        first = self.pieces[0]
        return first.text if len(self.pieces) == 1 and first.kind == "text" and not first.quoted else None


@dataclass(frozen=True)
class Statement:
    """One simple command."""

    words: tuple[Word, ...]
    text: str
    """as it stands there"""
    offset: int
    here: str | None = None
    """its here-document"""
    here_quoted: bool = False


class Missing(NamedTuple):
    """A script that is called or sourced, and not known."""

    path: str
    offset: int
    """line of the call, from 0"""
    file: str
    """script with the call"""
    sourced: bool


class Argument(NamedTuple):
    """A word of the engine's command line."""

    value: str
    offset: int
    """line of the script, from 0"""
    literal: bool = False
    """``$NAME`` stands in it because single quotes keep the shell from it"""
    file: str = ""
    """of the script, if it is not the one that was begun with"""


@dataclass
class Run:
    """What a script has done when it comes to the engine."""

    variables: dict[str, str]
    exported: set[str]
    files: Files
    directory: str = "/"
    file: str = ""
    engine: list[Argument] | None = None
    """words after ``vllm serve``; None: it is not started"""
    used: set[str] = field(default_factory=set)
    """variables that were expanded"""
    unknown: list[tuple[str, int, str]] = field(default_factory=list)
    """statements that are not understood, each with its line and its script"""
    missing: list[Missing] = field(default_factory=list)
    set_at: dict[str, tuple[int, str]] = field(default_factory=dict)
    """variable -> line and script in which it gets its value"""
    scripts: list[str] = field(default_factory=list)
    """paths of the scripts that were read"""

    def environment(self) -> dict[str, str]:
        """What the engine sees."""
        return {name: self.variables[name] for name in sorted(self.exported) if name in self.variables}


def run_script(text: str, variables: Mapping[str, str], files: Files, directory: str = "/") -> Run:
    """Follow a script until it starts the engine; ``variables``: the container's environment."""
    run = Run(dict(variables), set(variables), files, directory)
    _follow(text, run, 0)
    return run


def run_command(words: list[str], variables: Mapping[str, str], files: Files, directory: str = "/") -> Run:
    """The same for the words of a container's command and args."""
    run = Run(dict(variables), set(variables), files, directory)
    _call([Argument(word, 0) for word in words], run, 0)
    return run


def _follow(text: str, run: Run, depth: int) -> None:
    block: list[str] = []
    """what ends the blocks that are open"""
    for statement in statements(text):
        words = [word.bare for word in statement.words]
        first = next((word for word in words if word not in _MIDDLE), None)
        if block or first in _OPENING or (first and first.endswith("()")) or first == "function":
            if block:
                run.unknown[-1] = _continued(run.unknown[-1], statement)
            else:
                run.unknown.append((statement.text, statement.offset, run.file))
            if first in _OPENING:
                block.append(_OPENING[first])
            elif not block:
                block.append("}")
            if block and (first == block[-1] or words[-1] == block[-1]):
                block.pop()
            continue
        if run.engine is not None:  # it was started in the background, or ends at some time
            if first not in _SILENT:
                run.unknown.append((statement.text, statement.offset, run.file))
            continue
        _execute(statement, run, depth)
        if run.engine is not None and first == "exec":
            return


def _continued(block: tuple[str, int, str], statement: Statement) -> tuple[str, int, str]:
    """A block of statements is one that is not understood."""
    text, offset, file = block
    return f"{text}{'' if text.split()[-1] in {*_MIDDLE, '{'} else ';'} {statement.text}", offset, file


def _execute(statement: Statement, run: Run, depth: int) -> None:
    words = list(statement.words)
    assigned: dict[str, str] = {}
    while words and (found := _assignment(words[0])):
        name, pieces = found
        assigned[name] = _joined(pieces, run)
        run.set_at[name] = (statement.offset, run.file)
        words.pop(0)
    if not words:
        run.variables |= assigned
        return
    arguments = [argument for word in words for argument in _expanded(word, run)]
    if not arguments:
        return
    before = run.unknown[:]
    known = _call(arguments, run, depth, assigned)
    if not known:
        run.unknown = [*before, (statement.text, statement.offset, run.file)]


def _call(arguments: list[Argument], run: Run, depth: int, assigned: Mapping[str, str] | None = None) -> bool:
    """Follow one command; whether it is understood."""
    name = arguments[0].value
    program = posixpath.basename(name)
    if built_in := _BUILT_IN.get(program):
        return built_in(arguments, run)
    if program in _WRAPPERS:
        return _call(arguments[1:], run, depth, assigned) if arguments[1:] else True
    if found := _engine(arguments):
        begin, run.engine = found
        given = [word.value.partition("=") for word in arguments[:begin] if _ASSIGNMENT.fullmatch(word.value)]  # of `env`
        set_here = {**(assigned or {}), **{name: value for name, _, value in given}}
        run.variables |= set_here
        run.exported |= set_here.keys()
        return len(given) == begin - (program == "env")
    if program in _SHELLS or program in _SOURCING:
        return _script(arguments[1:], run, depth, sourced=program in _SOURCING)
    if name.endswith(".sh") or ("/" in name and run.files(_absolute(name, run)) is not None):
        return _script(arguments, run, depth)
    return program in _SILENT


def _export(arguments: list[Argument], run: Run) -> bool:
    exports = arguments[0].value == "export" or any(argument.value == "-x" for argument in arguments)
    for argument in arguments[1:]:
        variable, equals, value = argument.value.partition("=")
        if equals:
            run.variables[variable] = value
            run.set_at[variable] = (argument.offset, run.file)
        if exports:
            run.exported.add(variable)
    return True


def _unset(arguments: list[Argument], run: Run) -> bool:
    names = [argument.value for argument in arguments[1:]]
    for name in names:
        run.variables.pop(name, None)
    return all(name in run.set_at or name == "-v" for name in names)


def _cd(arguments: list[Argument], run: Run) -> bool:
    run.directory = _absolute(arguments[1].value if arguments[1:] else "/", run)
    return True


_BUILT_IN: dict[str, Callable[[list[Argument], Run], bool]] = {
    **dict.fromkeys(("export", "readonly", "declare", "typeset", "local"), _export),
    "unset": _unset,
    "cd": _cd,
}
_WRAPPERS = {"exec", "nohup", "command", "tini", "--"}
"""They run the command after them"""


def _engine(arguments: list[Argument]) -> tuple[int, list[Argument]] | None:
    """Where the engine's program stands, after what may run it such as ``numactl``, and the words after it."""
    values = [argument.value for argument in arguments]
    if posixpath.basename(values[0]) in _NEVER_THE_ENGINE:
        return None
    for at, (value, following) in enumerate(pairwise(values)):
        program = posixpath.basename(value)
        if program == "vllm" and following == "serve":
            return at, arguments[at + 2 :]
        if _PYTHONS.fullmatch(program) and _SERVER_MODULE in values[at : at + 4]:
            return at, arguments[values.index(_SERVER_MODULE) + 1 :]
    return None


def _script(arguments: list[Argument], run: Run, depth: int, *, sourced: bool = False) -> bool:
    """Follow ``bash -c TEXT`` or ``bash FILE``; the options before are the shell's own."""
    at = 0
    while at < len(arguments) and arguments[at].value.startswith(("-", "+")):
        if re.fullmatch(r"-[a-z]*c", arguments[at].value) and at + 1 < len(arguments):
            _follow(arguments[at + 1].value, run, depth + 1)
            return True
        at += 2 if arguments[at].value in ("-o", "+o") else 1
    if at == len(arguments):
        return True
    path = _absolute(arguments[at].value, run)
    text = run.files(path)
    if text is None or depth == _DEEPEST:
        run.missing.append(Missing(path, arguments[at].offset, run.file, sourced))
        return True
    run.scripts.append(path)
    before, run.file = run.file, path
    _follow(text, run, depth + 1)
    if run.engine is not None:
        run.engine = [argument if argument.file else argument._replace(file=path) for argument in run.engine]
    run.file = before
    return True


def _absolute(path: str, run: Run) -> str:
    return path if path.startswith(("~", "$")) else posixpath.normpath(posixpath.join(run.directory, path))


def _assignment(word: Word) -> tuple[str, tuple[Piece, ...]] | None:
    first = word.pieces[0]
    found = _ASSIGNMENT.match(first.text) if first.kind == "text" and not first.quoted else None
    return (found[1], (first._replace(text=found[2]), *word.pieces[1:])) if found else None


def _joined(pieces: tuple[Piece, ...], run: Run) -> str:
    return "".join(_value(piece, run) for piece in pieces)


def _expanded(word: Word, run: Run) -> list[Argument]:
    """The words that the shell makes of one: what is expanded without quotes is split at its blanks."""
    whole = _ASSIGNMENT.match(word.pieces[0].text) is not None
    parts, literal = [""], False
    for piece in word.pieces:
        value = _value(piece, run)
        literal = literal or (piece.kind == "text" and bool(re.search(r"\$[A-Za-z_{]", value)))
        known = piece.kind == "name" and piece.text in run.variables
        if known and not piece.quoted and not whole and (found := re.split(r"[ \t\n]+", value)):
            parts[-1] += found[0]
            parts += found[1:]
        else:
            parts[-1] += value
    quoted = any(piece.quoted for piece in word.pieces)
    return [Argument(part, word.offset, literal) for part in parts if part or quoted]


def _value(piece: Piece, run: Run) -> str:
    if piece.kind == "text":
        return piece.text
    if piece.kind == "command":
        return _output(piece.text, run)
    run.used.add(piece.text)
    known = run.variables.get(piece.text)
    if piece.otherwise is not None and (known is None or (piece.or_empty and not known)):
        return piece.otherwise
    return f"${piece.text}" if known is None else known


def _output(command: str, run: Run) -> str:
    """What ``$(...)`` stands for where it is a here-document or one known word; else the command itself."""
    inner = list(statements(command))
    if len(inner) == 1 and inner[0].words and (program := inner[0].words[0].bare) in ("cat", "echo"):
        only = inner[0]
        if program == "cat" and only.here is not None:
            return (only.here if only.here_quoted else expanded_text(only.here, run)).rstrip("\n")
        if program == "echo":
            return " ".join(argument.value for word in only.words[1:] for argument in _expanded(word, run))
    return f"$({command.strip()})"


def expanded_text(text: str, run: Run) -> str:
    """A text inside of double quotes, or of a here-document."""
    return _joined(tuple(_double_quoted(text)[0]), run)


def statements(text: str) -> Iterator[Statement]:
    """The simple commands of a script, in their order."""
    return _Scanner(text).statements()


class _Scanner:
    """Splits a script into commands and words."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = self.line = self.counted = 0
        self.documents: list[tuple[str, bool]] = []
        """here-documents that begin after this line: tag, quoted"""

    def statements(self) -> Iterator[Statement]:
        words: list[Word] = []
        start = 0
        while self.at < len(self.text):
            if self._skip():
                continue
            found = _SEPARATOR.match(self.text, self.at)
            if found is None:
                words.append(self._word())
                continue
            text = self.text[start : self.at].strip()
            self.at = found.end()
            here, quoted = self._document() if found[0] == "\n" else (None, False)
            if words:
                yield Statement(tuple(words), text, words[0].offset, here, quoted)
            words, start = [], self.at
        if words:
            yield Statement(tuple(words), self.text[start:].strip(), words[0].offset)

    def _skip(self) -> bool:
        """Step over blanks, a comment, a redirection or the beginning of a here-document; whether there was one."""
        found = _BLANKS.match(self.text, self.at)
        if found is None and (found := _HERE_DOCUMENT.match(self.text, self.at)):
            self.documents.append((found[2], bool(found[1])))
        found = found or _REDIRECTION.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found is not None

    def _word(self) -> Word:
        begun, pieces = self.at, list[Piece]()
        while self.at < len(self.text) and self.text[self.at] not in _WORD_ENDS:
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            else:
                pieces += self._piece(self.text[self.at :])
        self.line += self.text.count("\n", self.counted, begun)
        self.counted = begun
        return Word(tuple(_merged(pieces)), self.line)

    def _document(self) -> tuple[str | None, bool]:
        """Skip the here-documents that begin here; the last one, and whether its tag was in quotes."""
        here, quoted = None, False
        while self.documents:
            tag, quoted = self.documents.pop(0)
            found = re.compile(rf"^[ \t]*{re.escape(tag)}[ \t]*$", re.MULTILINE).search(self.text, self.at)
            end = found.start() if found else len(self.text)
            here = self.text[self.at : end]
            self.at = found.end() + 1 if found else end
        return here, quoted

    def _piece(self, rest: str) -> list[Piece]:
        first = rest[0]
        if first == "'":
            end = rest.find("'", 1)
            end = len(rest) if end < 0 else end
            self.at += end + 1
            return [Piece("text", rest[1:end], quoted=True)]
        if first == '"':
            pieces, length = _double_quoted(rest[1:], '"')
            self.at += length + 1
            return [*pieces, Piece("text", "", quoted=True)]
        if first == "\\":
            self.at += 2
            return [Piece("text", rest[1:2], quoted=True)]
        if first in "$`" and (found := _expansion(rest, quoted=False)):
            piece, length = found
            self.at += length
            return [piece]
        plain = re.match(r"[^\s'\"\\$`;&|<>]+|.", rest)
        length = plain.end() if plain else 1
        self.at += length
        return [Piece("text", rest[:length], quoted=False)]


def _merged(pieces: list[Piece]) -> Iterator[Piece]:
    """Plain texts beside each other as one."""
    last: Piece | None = None
    for piece in pieces:
        if last and piece.kind == last.kind == "text" and piece.quoted == last.quoted:
            last = last._replace(text=last.text + piece.text)
            continue
        if last:
            yield last
        last = piece
    if last:
        yield last


def _double_quoted(text: str, end: str = "") -> tuple[list[Piece], int]:
    """Pieces of what stands in double quotes, and its length with the closing quote."""
    pieces: list[Piece] = []
    at = 0
    while at < len(text):
        if end and text[at] == end:
            return pieces, at + 1
        if text[at] == "\\" and at + 1 < len(text):
            escaped = text[at + 1]
            kept = {"\n": ""}.get(escaped, escaped if escaped in '$`"\\' else f"\\{escaped}")
            pieces.append(Piece("text", kept, quoted=True))
            at += 2
        elif text[at] in "$`" and (found := _expansion(text[at:], quoted=True)):
            pieces.append(found[0])
            at += found[1]
        else:
            pieces.append(Piece("text", text[at], quoted=True))
            at += 1
    return list(_merged(pieces)), at


def _expansion(text: str, *, quoted: bool) -> tuple[Piece, int] | None:
    """What begins with ``$`` or a backquote, and its length."""
    if text[0] == "`":
        end = text.find("`", 1)
        return (Piece("command", text[1:end], quoted), end + 1) if end > 0 else None
    if found := re.match(rf"\$({_NAME})|\$\{{({_NAME})(?:(:?)-([^}}]*))?\}}", text):
        return Piece("name", found[1] or found[2], quoted, found[4], found[3] == ":"), found.end()
    if text.startswith("$(("):
        end = text.find("))")
        return (Piece("text", text[: end + 2], quoted), end + 2) if end > 0 else None
    if text.startswith("$("):
        length = _inner(text[2:])
        return Piece("command", text[2 : 2 + length], quoted), length + 3
    if found := re.match(r"\$(\{[^}]*\}|[0-9@*#?!$-])", text):
        return Piece("text", found[0], quoted), found.end()
    return None


def _inner(text: str) -> int:
    """Length of what stands inside ``$(`` and ``)``: a parenthesis in quotes or in a here-document doesn't end it."""
    at, depth = 0, 1
    while at < len(text):
        if found := _HERE_DOCUMENT.match(text[at:]):
            line = text.find("\n", at)
            end = re.compile(rf"^[ \t]*{re.escape(found[2])}[ \t]*$", re.MULTILINE).search(text, line)
            at = end.end() if end else len(text)
            continue
        if text[at] == "'":
            at = text.find("'", at + 1)
            at = len(text) if at < 0 else at
        elif text[at] == '"':
            at += _double_quoted(text[at + 1 :], '"')[1]
        elif text[at] in "()":
            depth += 1 if text[at] == "(" else -1
            if depth == 0:
                return at
        at += 1
    return at
