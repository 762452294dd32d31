"""Parses an order as text, `"x desc, y nulls last"`, as after ORDER BY in Spark SQL."""

from __future__ import annotations

from typing import NamedTuple

from nosync_nb.errors import ExpressionError
from nosync_nb.expressions.syntax.parser import Word, parse, tokens


class OrderTerm(NamedTuple):
    """One expression of an order, and its direction.

    Without other words nulls come first, and last if descending, as in Spark.
    """

    sql: str
    descending: bool
    nulls_first: bool


def parse_order(text: str) -> list[OrderTerm]:
    """Cuts an order at its commas and reads the words after each expression.

    Raises:
        ExpressionError: if a term is empty or no expression, or a string does not end.
    """
    if not isinstance(text, str):
        raise ExpressionError(f"by={text!r} is not a string", hint="write by='delay desc, name'")
    return [_term(text, words) for words in _terms(text)]


def parse_list(text: str) -> list[str]:
    """Cuts a list of expressions at its commas: `"a, cast(b as int) AS c"`.

    Raises:
        ExpressionError: if a string does not end.
    """
    return [text[words[0].start : words[-1].end] if words else "" for words in _terms(text)]


def _terms(text: str) -> list[list[Word]]:
    """The words between the commas outside of parentheses."""
    terms: list[list[Word]] = [[]]
    depth = 0
    for word in tokens(text):
        depth += (word.text in "([") - (word.text in ")]") if word.kind == "sign" else 0
        if word.kind == "sign" and word.text == "," and not depth:
            terms.append([])
        else:
            terms[-1].append(word)
    return terms


def _term(text: str, words: list[Word]) -> OrderTerm:
    """Reads `expression [asc | desc] [nulls first | nulls last]`."""
    keywords = [word.text.lower() if word.kind == "word" else "" for word in words]
    nulls_first = None
    if keywords[-2:] in (["nulls", "first"], ["nulls", "last"]):
        nulls_first = keywords[-1] == "first"
        words, keywords = words[:-2], keywords[:-2]
    descending = False
    if keywords and keywords[-1] in ("asc", "desc"):
        descending = keywords[-1] == "desc"
        words = words[:-1]
    sql = text[words[0].start : words[-1].end] if words else ""
    if not words or parse(sql).name is not None:
        what = f"{sql!r} is not a column" if words else "there is no column to order by"
        raise ExpressionError(f"by={text!r}: {what}", hint="write by='delay desc, name'")
    return OrderTerm(sql, descending, not descending if nulls_first is None else nulls_first)
