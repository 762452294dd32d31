"""Strings as Spark's lexer reads them: escapes, raw strings, doubled quotes, adjacent strings.

sqlglot reads escapes in its own way. So strings with escapes are replaced in the text by marks
before it is parsed, and the marks get their values in the tree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot import exp

_MARK = "\ue000{}\ue001"
_MARKED = re.compile("\ue000([0-9]+)\ue001")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([01][0-7][0-7])|(.))", re.DOTALL)
_LETTERS = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_LETTERS |= {"%": "\\%", "_": "\\_"}


def _unescaped(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    if code:
        return chr(int(code, 16))
    if match[3]:
        return chr(int(match[3], 8))
    return _LETTERS.get(match[4], match[4])


def value_of(source: str) -> str:
    """Returns the value of a string in quotes, perhaps with an `r` before them.

    Raises:
        ValueError: if an escape names no character.
    """
    raw = source[0] in "rR"
    quote = source[1] if raw else source[0]
    body = source[2:-1] if raw else source[1:-1]
    if raw:
        return body
    parts = re.split(f"(\\\\.)|({quote}{quote})", body, flags=re.DOTALL)
    joined = "".join(quote if part == quote * 2 else part for part in parts if part)
    return _ESCAPE.sub(_unescaped, joined)


def is_special(source: str) -> bool:
    """Returns True if the value of a string in quotes differs from the text between them.

    Bytes, as in `X'1F'`, are no string.
    """
    if source[0] in "xX":
        return False
    return source[0] in "rR" or "\\" in source or source[1:-1].count(source[-1]) > 0


def marked(sql: str, strings: Sequence[tuple[int, int]]) -> tuple[str, list[str]]:
    """Returns the text with a mark for each special string, and the values of these.

    Args:
        strings: the positions of the strings in the text.
    """
    pieces: list[str] = []
    values: list[str] = []
    at = 0
    for start, stop in _join_adjacent(sql, strings):
        source = sql[start:stop]
        if not is_special(source):
            continue
        pieces += [sql[at:start], "'", _MARK.format(len(values)), "'"]
        values.append(value_of(source))
        at = stop
    return "".join([*pieces, sql[at:]]), values


def _join_adjacent(sql: str, strings: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Strings of one quote without space between them are one, with the quote inside."""
    joined: list[tuple[int, int]] = []
    for start, stop in strings:
        touches = joined and joined[-1][1] == start and sql[start] == sql[start - 1]
        if touches and sql[start] in "'\"":
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def restore(tree: exp.Select, values: Sequence[str]) -> None:
    """Replaces the marks by the values of their strings."""
    for node in tree.find_all(exp.Literal):
        match = _MARKED.fullmatch(node.this) if node.is_string else None
        if match is not None and int(match[1]) < len(values):
            node.set("this", values[int(match[1])])
