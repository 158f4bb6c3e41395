"""A stack file's text with one deployment's rollout changed, and every character that this is not about as it was.

A YAML library's round trip would set quotes, blanks and line ends anew. So values are moved as the text that they are, and only
what has to be put together, such as what stands behind an alias or ``<<``, is written as JSON, which is YAML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

import yaml

from rules.finding import PROJECT
from rules.shape import overlay, replaces

_COLON = re.compile(r"\s*:")
_ALIAS = re.compile(r"\s*\*[\w-]+")
_COMMENT = re.compile(r"[ \t]+#[^\r\n]*")
_BLANK = re.compile(r"\s*")
_BLANK_OR_COMMENT = re.compile(r"\s*(#.*)?\s*")
_REST_OF_LINE = re.compile(r"[ \t]*(\r\n|\n|\r|\Z)")
_INDICATORS = re.compile(r"[,\[\]{}\r\n]")
"""end a text without quotes inside of braces"""


class CannotEditError(Exception):
    """What is to be changed can't be cut out of the text; the message is for the user."""


class _Edit(NamedTuple):
    start: int
    end: int
    text: str


class _Entry(NamedTuple):
    """A key of a map with its value; behind an alias the value lies before its key."""

    key: yaml.ScalarNode
    value: yaml.Node


class StackText:
    """The text of a stack file, and the map of one deployment in it."""

    def __init__(self, text: str, name: str) -> None:
        """Find deployment ``name`` in ``text``.

        Raises:
            CannotEditError: it stands there by an alias or ``<<``.
        """
        self._text = text
        self._line_end = "\r\n" if "\r\n" in text else "\n"
        try:
            root = yaml.compose(text, Loader=yaml.BaseLoader)
        except yaml.YAMLError as error:  # libyaml, which has read it before, takes a little more
            raise CannotEditError(f"it can't be changed line by line ({error}); edit it by hand") from error
        self._deployment = _map_at(_map_at(_map_at(root, "config"), f"{PROJECT}:deployments"), name)

    def with_step(self, step: int) -> str:
        """The text with rollout.step at another value."""
        rollout = _map_at(self._deployment, "rollout")
        there = _entries(rollout).get("step")
        edits = [self._replaced(there, f" {step}")] if there else self._added(rollout, [_written("step", step)])
        return self._after(edits)

    def without_candidate(self) -> str:
        """The text without rollout's candidate and step."""
        return self._after(self._removed(_map_at(self._deployment, "rollout"), {"candidate", "step"}))

    def promoted(self, deployment: Mapping[str, Any]) -> str:
        """The text with the candidate's values as the deployment's own; ``deployment``: what the text says of it."""
        rollout = _map_at(self._deployment, "rollout")
        candidate = _entries(rollout).get("candidate")
        if candidate is None or not _is_map(candidate.value):
            raise CannotEditError("rollout.candidate stands behind <<; write it out first")
        merged = self._merged(self._deployment, candidate.value, deployment, deployment["rollout"]["candidate"])
        return self._after([*merged, *self._removed(rollout, {"candidate", "step"})])

    def _after(self, edits: Iterable[_Edit]) -> str:
        parts, position = [], 0
        for edit in sorted(edits, key=lambda edit: edit.start):  # those of one place in the order in which they were made
            if edit.start < position:
                raise CannotEditError("it can't be changed line by line; edit it by hand")
            parts += [self._text[position : edit.start], edit.text]
            position = edit.end
        return "".join([*parts, self._text[position:]])

    def _merged(
        self, own: yaml.MappingNode, over: yaml.MappingNode, own_values: Mapping[str, Any], over_values: Mapping[str, Any]
    ) -> Iterator[_Edit]:
        """``over`` laid on ``own`` as :func:`rules.shape.overlay` does it."""
        merged, here, there = overlay(own_values, over_values), _entries(own), _entries(over)
        added = []
        for key, value in over_values.items():
            mine, theirs = here.get(key), there.get(key)
            if key in own_values and merged[key] == own_values[key]:
                continue
            if mine and theirs and _is_map(mine.value) and _is_map(theirs.value) and _is_laid_over(mine, own_values[key], value):
                yield from self._merged(mine.value, theirs.value, own_values[key], value)
            elif theirs is None or merged[key] != value:  # a part of it is behind an alias
                entry = _written(key, merged[key])
                if mine:
                    yield self._replaced(mine, entry.partition(":")[2])
                else:
                    added.append(entry)
            elif mine:
                yield from self._taken(mine, theirs, value, within_braces=own.flow_style, commented=not over.flow_style)
            else:
                added.append(self._moved(theirs, value, own, commented=not over.flow_style))
        yield from self._added(own, added)

    def _taken(self, mine: _Entry, theirs: _Entry, value: Any, *, within_braces: bool, commented: bool) -> Iterator[_Edit]:
        """The value and the comments of ``theirs`` in the place of those of ``mine``."""
        if within_braces:
            yield self._replaced(mine, f" {self._in_braces(theirs, value)}")
            return
        column = mine.key.start_mark.column
        if commented and (above := self._comments_above(theirs, column)):
            start = mine.key.start_mark.index - column
            yield _Edit(start, start, above)
        text = self._value_text(theirs, column, commented=commented)
        yield self._replaced(mine, text, with_comment=commented and self._end(theirs) != self._end_of_comment(theirs))

    def _moved(self, theirs: _Entry, value: Any, into: yaml.MappingNode, *, commented: bool) -> str:
        """The entry as it would stand in another map, without the indentation of its first line."""
        key = self._text[theirs.key.start_mark.index : theirs.key.end_mark.index]
        if into.flow_style:
            return f"{key}: {self._in_braces(theirs, value)}"
        column = _column(into)
        above = self._comments_above(theirs, column).lstrip(" ") if commented else ""
        return f"{above}{' ' * column if above else ''}{key}:{self._value_text(theirs, column, commented=commented)}"

    def _in_braces(self, entry: _Entry, value: Any) -> str:
        """The text of a value as it may stand within braces."""
        text = self._text[self._after_colon(entry) : self._end(entry)].strip()
        node = entry.value
        if isinstance(node, yaml.ScalarNode):
            fits = node.style in ("'", '"') or (node.style is None and text and not _INDICATORS.search(text))
        else:
            fits = isinstance(node, yaml.CollectionNode) and node.flow_style
        return text if fits or _is_alias(entry) else json.dumps(value, ensure_ascii=False)

    def _value_text(self, entry: _Entry, column: int, *, commented: bool) -> str:
        """What stands behind the colon, lines moved so that the key may stand in ``column``."""
        end = self._end_of_comment(entry) if commented else self._end(entry)
        text = self._text[self._after_colon(entry) : end]
        if commented:
            text = _shifted(text, column - entry.key.start_mark.column)
        return text if not text or text[0].isspace() else f" {text}"

    def _comments_above(self, entry: _Entry, column: int) -> str:
        """Whole lines of comment directly above a key that begins its line."""
        start = end = entry.key.start_mark.index - entry.key.start_mark.column
        lines = self._text[:start].splitlines(keepends=True)
        while lines and lines[-1].lstrip(" ").startswith("#"):
            start -= len(lines.pop())
        return _shifted("\n" + self._text[start:end], column - entry.key.start_mark.column)[1:]

    def _replaced(self, entry: _Entry, text: str, *, with_comment: bool = False) -> _Edit:
        """``text`` behind the colon instead of what stands there."""
        return _Edit(self._after_colon(entry), self._end_of_comment(entry) if with_comment else self._end(entry), text)

    def _added(self, into: yaml.MappingNode, entries: list[str]) -> list[_Edit]:
        """New entries behind the last one, but never behind that of rollout, which is changed itself."""
        there = [entry for key, entry in _entries(into).items() if key != "rollout"]
        if not entries:
            return []
        if into.flow_style:
            place = self._end(there[-1]) if there else into.end_mark.index - 1
            return [_Edit(place, place, "".join(f", {entry}" for entry in entries) if there else ", ".join(entries))]
        if not there:
            raise CannotEditError("it has nothing but rollout; edit it by hand")
        place = self._end_of_comment(there[-1])
        indentation = self._line_end + " " * _column(into)
        return [_Edit(place, place, "".join(indentation + entry for entry in entries))]

    def _removed(self, of: yaml.MappingNode, keys: set[str]) -> Iterator[_Edit]:
        entries = list(_entries(of).items())
        for index, (key, entry) in enumerate(entries):
            if key not in keys:
                continue
            start, end = entry.key.start_mark.index, self._end(entry)
            if of.flow_style:
                if any(other not in keys for other, _ in entries[index + 1 :]):
                    end = entries[index + 1][1].key.start_mark.index
                elif index:
                    start = self._end(entries[index - 1][1])
            else:
                start -= entry.key.start_mark.column
                end = self._end_of_comment(entry)
                rest = _REST_OF_LINE.match(self._text, end)
                if rest is None or self._text[start : entry.key.start_mark.index].strip(" "):
                    raise CannotEditError(f"rollout.{key} has not lines of its own; edit it by hand")
                end = rest.end()
            yield _Edit(start, end, "")

    def _after_colon(self, entry: _Entry) -> int:
        colon = _COLON.match(self._text, entry.key.end_mark.index)
        if colon is None:
            raise CannotEditError(f"{entry.key.value} has no value; edit it by hand")
        return colon.end()

    def _end(self, entry: _Entry) -> int:
        """Where the value ends, without a comment behind it."""
        if not _is_alias(entry):
            return self._end_of(entry.value)
        alias = _ALIAS.match(self._text, self._after_colon(entry))
        if alias is None:
            raise CannotEditError(f"the alias behind {entry.key.value} is not on its line; edit it by hand")
        return alias.end()

    def _end_of(self, node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            return self._before(node, _BLANK) if node.style in ("|", ">") else int(node.end_mark.index)
        if not isinstance(node, yaml.CollectionNode) or node.flow_style:
            return int(node.end_mark.index)
        if isinstance(node, yaml.MappingNode):
            return self._end(_Entry(*node.value[-1]))
        last = node.value[-1]
        return self._end_of(last) if last.start_mark.index >= node.start_mark.index else self._before(node, _BLANK_OR_COMMENT)

    def _before(self, node: yaml.Node, what: re.Pattern[str]) -> int:
        """Where a block ends before such lines; its mark is behind them."""
        lines = self._text[: node.end_mark.index].splitlines(keepends=True)
        while lines and what.fullmatch(lines[-1]):
            lines.pop()
        return len("".join(lines).rstrip("\r\n"))

    def _end_of_comment(self, entry: _Entry) -> int:
        """Where the value ends, with a comment behind it on its line."""
        end = self._end(entry)
        comment = _COMMENT.match(self._text, end)
        return comment.end() if comment else end


def _written(key: str, value: Any) -> str:
    return f"{key}: {json.dumps(value, ensure_ascii=False)}"


def _entries(node: yaml.Node | None) -> dict[str, _Entry]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {key.value: _Entry(key, value) for key, value in node.value}


def _map_at(around: yaml.Node | None, key: str) -> yaml.MappingNode:
    entry = _entries(around).get(key)
    if entry is None or _is_alias(entry) or not _is_map(entry.value):
        raise CannotEditError(f"{key} stands behind an alias or <<, where others may have it too; write it out first")
    return entry.value


def _is_map(node: yaml.Node) -> TypeGuard[yaml.MappingNode]:
    return isinstance(node, yaml.MappingNode)


def _is_alias(entry: _Entry) -> bool:
    return bool(entry.value.start_mark.index < entry.key.end_mark.index)


def _is_laid_over(entry: _Entry, below: object, value: object) -> bool:
    return not _is_alias(entry) and not replaces((entry.key.value,), below, value)


def _column(block: yaml.Node) -> int:
    """Of the keys of a map that is no flow."""
    return int(block.value[0][0].start_mark.column)


def _shifted(text: str, by: int) -> str:
    """All lines but the first so many blanks further to the right, or to the left as far as there are blanks."""
    if by >= 0:
        return re.sub(r"(\r\n|\n|\r)(?=[^\r\n])", lambda end: end[0] + " " * by, text)
    return re.sub(rf"(\r\n|\n|\r) {{0,{-by}}}", r"\1", text)
