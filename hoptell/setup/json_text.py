"""Changing JSON as a text: only the places concerned, so that all else stays as it is written.

Comments and final commas may be in it, as agents allow them in their files. Pure.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

LONGEST_LINE = 88
"""Characters of a list that may stay in one line if it was."""

_COMMENTS_AND_COMMAS = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/|,(?=\s*[}\]])', re.DOTALL)
_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|//[^\r\n]*|/\*.*?\*/|[{}\[\]:,]|[^\s{}\[\]:,"/]+', re.DOTALL
)


def parse(text: str) -> dict[str, Any]:
    """Read a JSON object, also one with comments and final commas; empty if it is none."""

    def plain(text: str) -> str:
        return _COMMENTS_AND_COMMAS.sub(lambda found: found[0] if found[0][0] == '"' else " ", text)

    try:
        # Twice: only without its comment does a final comma stand before the bracket.
        value = json.loads(plain(plain(text.removeprefix("\ufeff"))))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def changed(text: str, wanted: dict[str, Any]) -> str:
    """The text of a JSON object after it was made to say `wanted`, which removes nothing.

    Raises:
        ValueError: that cannot be done without losing something.
    """
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    text = text.removeprefix(mark)
    try:
        places = _Places(text)
        edits = sorted(_edits(places, (), parse(text), wanted), reverse=True)
    except (IndexError, KeyError, RecursionError):
        raise ValueError("this is not a JSON object") from None
    result = text
    for start, end, new in edits:
        result = result[:start] + new + result[end:]
    result.encode()  # which half of a letter, written as an escape before, cannot be
    if parse(result) != wanted or _comments(result) != _comments(text):
        raise ValueError("something would be lost")
    return mark + result


class _Token(NamedTuple):
    text: str
    start: int
    end: int

    @property
    def is_comment(self) -> bool:
        return self.text.startswith("/")


class _Object(NamedTuple):
    """Where members can be added to an object."""

    start: int
    first: int | None
    """Where its first member begins; None if it has none."""
    last: int
    """Where its last member ends."""
    has_final_comma: bool
    end: int
    """Where its closing bracket stands."""


class _Places:
    """Where each value stands that can be reached through objects alone, by its keys."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.values: dict[tuple[str, ...], tuple[int, int]] = {}
        self.objects: dict[tuple[str, ...], _Object] = {}
        self._tokens = [one for one in _tokens(text) if not one.is_comment]
        self._value(0, ())

    def _value(self, at: int, path: tuple[str, ...] | None) -> int:
        """Note the value that begins with a token, if it has a path; the token after it."""
        first = self._tokens[at]
        if first.text == "{":
            at = self._object(at, path)
        elif first.text == "[":
            at += 1
            while self._tokens[at].text != "]":
                at = self._value(at, None)
                at += self._tokens[at].text == ","
        if path is not None:
            self.values[path] = first.start, self._tokens[at].end
        return at + 1

    def _object(self, opening: int, path: tuple[str, ...] | None) -> int:
        at = opening + 1
        last = self._tokens[opening].end
        while self._tokens[at].text != "}":
            key = json.loads(self._tokens[at].text)
            at = self._value(at + 2, None if path is None else (*path, key))
            last = self._tokens[at - 1].end
            at += self._tokens[at].text == ","
        if path is not None:
            begin, end = self._tokens[opening].start, self._tokens[at].start
            first = None if at == opening + 1 else self._tokens[opening + 1].start
            final = self._tokens[at - 1].text == ","
            self.objects[path] = _Object(begin, first, last, final, end)
        return at


def _tokens(text: str) -> Iterator[_Token]:
    for found in _TOKEN.finditer(text):
        yield _Token(found[0], found.start(), found.end())


def _comments(text: str) -> list[str]:
    return [token.text for token in _tokens(text) if token.is_comment]


def _edits(
    places: _Places, path: tuple[str, ...], before: dict[str, Any], wanted: dict[str, Any]
) -> Iterator[tuple[int, int, str]]:
    """What to put in the place of which part of the text."""
    added = {key: value for key, value in wanted.items() if key not in before}
    for key, value in wanted.items():
        old = before.get(key)
        if key in added or old == value:
            continue
        if isinstance(old, dict) and isinstance(value, dict):
            yield from _edits(places, (*path, key), old, value)
        else:
            start, end = places.values[*path, key]
            new = _dumped(value)
            if "\n" in places.text[start:end] or len(new) > LONGEST_LINE:
                new = _written(places.text, value, _indent_at(places.text, start))
            yield start, end, new
    if added:
        yield from _additions(places.text, places.objects[path], added)


def _additions(text: str, found: _Object, added: dict[str, Any]) -> Iterator[tuple[int, int, str]]:
    outer = _indent_at(text, found.start)
    if found.first is not None and "\n" not in text[found.start : found.first]:  # in one line
        members = ", ".join(f"{_dumped(key)}: {_dumped(value)}" for key, value in added.items())
        # Before a final comma and a comment: the latter may reach to the end of the line.
        yield found.last, found.last, f", {members}"
        return
    newline = "\r\n" if "\r\n" in text else "\n"
    inner = outer + _unit(text) if found.first is None else _indent_at(text, found.first)
    members = ",".join(
        f"{newline}{inner}{_dumped(key)}: {_written(text, value, inner)}"
        for key, value in added.items()
    )
    # Behind the comments of the last member, which stay where they are.
    place = len(text[: found.end].rstrip())
    if "\n" not in text[place : found.end]:
        members += newline + outer
    if found.first is not None and not found.has_final_comma:
        if place == found.last:
            members = "," + members
        else:
            yield found.last, found.last, ","
    yield place, place, members


def _written(text: str, value: object, indent: str) -> str:
    """A value over several lines, all but the first of which are indented."""
    lines = json.dumps(value, indent=_unit(text), ensure_ascii=False).split("\n")
    return ("\r\n" if "\r\n" in text else "\n").join([lines[0], *(indent + x for x in lines[1:])])


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _unit(text: str) -> str:
    found = re.search(r'\{\s*?\n([ \t]+)["/]', text)
    return found[1] if found else "  "


def _indent_at(text: str, place: int) -> str:
    """What the line begins with in which something stands."""
    line = text[text.rfind("\n", 0, place) + 1 :]
    return line[: len(line) - len(line.lstrip(" \t"))]
