"""Suggests an expression that is computed in process instead of one that needs Spark, for hints.

A call that only Spark knows is renamed to a similar function, or a column is cast. If neither
helps, the suggestion is the largest part of the expression that is computed in process.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import NamedTuple

from sqlglot import exp

from nosync_nb.errors import ExpressionError
from nosync_nb.expressions.expression import waits
from nosync_nb.expressions.functions.registry import FUNCTIONS
from nosync_nb.expressions.syntax.parser import parse
from nosync_nb.expressions.typing_rules import TIMES
from nosync_nb.rows import Schema
from nosync_nb.rows.types import FLOATS, INTEGERS

_NEAR = 0.6


class SparkSuggestion(NamedTuple):
    """A suggestion for an expression.

    Attributes:
        why: the reason why the expression needs Spark; empty if it does not.
        nearest: the most similar expression that does not need Spark; empty if none is found.
    """

    why: str
    nearest: str


def spark_suggestions(sql: str, schema: Schema) -> SparkSuggestion:
    """Returns the reason why an expression needs Spark, and the most similar one that does not.

    The reason is empty if the expression does not need Spark, or cannot be parsed.
    """

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
        return SparkSuggestion("", "")
    nearest = _renamed(sql, is_local) or _cast(sql, schema, is_local) or _part(sql, is_local)
    return SparkSuggestion(why, nearest or "")


def _renamed(sql: str, is_local: Callable[[str], bool]) -> str | None:
    """Returns the expression with its only unknown call renamed to a similar function."""
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


_CASTS = {
    **dict.fromkeys(INTEGERS, ("int", "bigint", "string")),
    **dict.fromkeys((*FLOATS, "decimal"), ("double", "string", "bigint", "int")),
    **dict.fromkeys((*TIMES, "boolean", "binary"), ("timestamp", "date", "string")),
    "string": ("date", "timestamp", "double", "bigint", "int", "boolean"),
}
"""The types to which a column of each type is cast, lossless casts first."""


def _cast(sql: str, schema: Schema, is_local: Callable[[str], bool]) -> str | None:
    """Returns the expression with a cast of one column, or of all columns of one call."""
    tree = parse(sql).tree
    calls = [node for node in tree.find_all(exp.Condition) if not isinstance(node, _LEAVES)]
    for call in reversed(calls):
        columns = [node for node in call.iter_expressions() if isinstance(node, exp.Column)]
        for some in [*([each] for each in columns), columns]:
            own = schema.types[schema.index(some[0].name)] if some else ""
            for type_ in _CASTS.get(own.partition("(")[0], ()):
                text = _with_casts(tree, some, type_)
                if is_local(text):
                    return text
    return None


def _with_casts(tree: exp.Expression, columns: list[exp.Column], type_: str) -> str:
    chosen = {id(each) for each in columns}

    def replaced(node: exp.Expression) -> exp.Expression:
        return exp.Anonymous(this=type_, expressions=[node.copy()])

    places = [i for i, node in enumerate(tree.walk()) if id(node) in chosen]
    wrapped = exp.Paren(this=tree.copy())
    for node in [node for i, node in enumerate(wrapped.this.walk()) if i in places]:
        node.replace(replaced(node))
    return str(wrapped.this.sql("spark", normalize_functions=False))


def _is_call(tree: exp.Expression, name: str) -> bool:
    """Returns True if the expression calls a function of that name, which is not in the table."""
    called = {node.name.lower() for node in tree.find_all(exp.Anonymous)}
    return name.lower() in called and name.lower() not in FUNCTIONS


def _part(sql: str, is_local: Callable[[str], bool]) -> str | None:
    """Returns the largest subexpression that needs no Spark and is no mere column or constant."""
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
