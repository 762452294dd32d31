"""What would not wait for Spark: the expression next to one that does, for hints.

Either the call that only Spark knows is replaced by one of a name that is near, or, if there is
none, the largest part of the expression that is computed here is shown.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import NamedTuple

from sqlglot import exp

from nosync_nb.errors import ExpressionError
from nosync_nb.expressions.expression import waits
from nosync_nb.expressions.parse import parse
from nosync_nb.expressions.table import FUNCTIONS
from nosync_nb.rows import Schema

_NEAR = 0.6


class Waiting(NamedTuple):
    """Why an expression waits for Spark, and the nearest one that would not, or ""."""

    why: str
    nearest: str


def waiting(sql: str, schema: Schema) -> Waiting:
    """Says why an expression waits for Spark; `why` is empty if it does not, or cannot be read."""

    def is_local(text: str) -> bool:
        try:
            return waits(text, schema) is None
        except ExpressionError:
            return False

    try:
        why = waits(sql, schema)
    except ExpressionError:
        why = None
    if why is None:
        return Waiting("", "")
    return Waiting(why, _renamed(sql, is_local) or _part(sql, is_local) or "")


def _renamed(sql: str, is_local: Callable[[str], bool]) -> str | None:
    """The expression with its unknown calls under names that are near."""
    parsed = parse(sql)
    unknown = [
        word
        for word, after in zip(parsed.words, parsed.words[1:], strict=False)
        if after.text == "(" and word.kind == "word" and _is_call(parsed.tree, word.text)
    ]
    if len(unknown) != 1:
        return None
    (word,) = unknown
    for name in difflib.get_close_matches(word.text.lower(), FUNCTIONS, n=3, cutoff=_NEAR):
        text = sql[: word.start] + name + sql[word.end :]
        if is_local(text):
            return text
    return None


def _is_call(tree: exp.Expression, name: str) -> bool:
    """Whether a name is called that is not in the table."""
    called = {node.name.lower() for node in tree.find_all(exp.Anonymous)}
    return name.lower() in called and name.lower() not in FUNCTIONS


def _part(sql: str, is_local: Callable[[str], bool]) -> str | None:
    """The largest part that is computed here, and is more than a column or a constant."""
    texts = {
        node.sql("spark")
        for node in parse(sql).tree.walk()
        if isinstance(node, exp.Condition | exp.Func) and not isinstance(node, _LEAVES)
    }
    for text in sorted(texts, key=len, reverse=True):
        if text != sql and is_local(text):
            return text
    return None


_LEAVES = (exp.Column, exp.Literal, exp.Identifier, exp.Null, exp.Boolean, exp.Lambda)
