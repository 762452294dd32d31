"""Finds the conditions of a statement that fix the key of an input's rows.

A statement such as `DELETE FROM planes WHERE tail = 'N1'` reads one row of a keyed input by its
key, instead of all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nosync_nb.collections.sql.grammar import SqlWord, TextSpan, words_of
from nosync_nb.rows.types import INTEGERS

_UNSPLIT = frozenset(("OR", "BETWEEN", "CASE", "XOR", "||"))


def key_values(
    text: str, condition: TextSpan, keys: Sequence[str], table: str, source: str | None
) -> list[TextSpan] | None:
    """Returns the values that a condition demands of the key columns, as parts of the text.

    Args:
        keys: the names of the key columns.
        table: the name of the input's rows in the condition.
        source: the name of the other table, whose columns may be values; None: only literals.

    Returns:
        a value for each key column; None if the condition does not fix all of them.
    """
    found: dict[str, TextSpan] = {}
    for words in _conjuncts(text, condition):
        at = next((i for i, each in enumerate(words) if each.word == "="), None)
        if at is None:
            continue
        for column, value in ((words[:at], words[at + 1 :]), (words[at + 1 :], words[:at])):
            name = _column(column, table, alone=source is None)
            if name in keys and _is_value(value, source):
                span = TextSpan(value[0].span.start, value[-1].span.stop)
                found.setdefault(name, span)
                break
    return [found[key] for key in keys] if len(found) == len(keys) else None


def is_named_once(text: str, statement: TextSpan, name: str) -> bool:
    """Returns True if a statement names a table only once; prefixes such as `t.x` do not count."""
    words = words_of(text[statement.start : statement.stop])
    named = [
        each
        for at, each in enumerate(words)
        if (each.name or "").lower() == name.lower()
        and not (at + 1 < len(words) and words[at + 1].word == ".")
    ]
    return len(named) == 1


def finds_equal(value: str, key: str) -> bool:
    """Returns True if a lookup finds the rows whose key equals a value of another type."""
    return value == key or (value in INTEGERS and key in INTEGERS)


def _conjuncts(text: str, condition: TextSpan) -> Iterator[list[SqlWord]]:
    """Yields the words of each part of `a AND b AND c`; nothing for other conditions."""
    words = [
        each._replace(
            span=TextSpan(condition.start + each.span.start, condition.start + each.span.stop)
        )
        for each in words_of(text[condition.start : condition.stop])
    ]
    parts: list[list[SqlWord]] = [[]]
    depth = 0
    for each in words:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(each.word, 0)
        if depth == 0 and each.word in _UNSPLIT:
            return
        if depth == 0 and each.word == "AND":
            parts.append([])
        else:
            parts[-1].append(each)
    yield from parts


def _column(words: Sequence[SqlWord], table: str, *, alone: bool) -> str:
    """Returns the column in lower case if the words name one of a table; else an empty text.

    Args:
        alone: True if the name of the table may be missing.
    """
    names = [(each.name or "").lower() for each in words]
    if len(words) == 1 and alone:
        return names[0]
    if len(words) == 3 and words[1].word == "." and names[0] == table.lower():
        return names[2]
    return ""


def _is_value(words: Sequence[SqlWord], source: str | None) -> bool:
    """Returns True if the words are a literal, or a column of the other table."""
    if source is not None and len(words) == 3 and words[1].word == ".":
        return (words[0].name or "").lower() == source.lower() and words[2].name is not None
    signed = words[1:] if words and words[0].word in ("-", "+") else words
    return len(signed) == 1 and signed[0].name is None
