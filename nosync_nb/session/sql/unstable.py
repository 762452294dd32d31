"""Checks views for functions of the clock and for random values.

A view is maintained: the value that such a function has for a row is computed once, when the row is
inserted or changed, and memoised. In the SELECT list that is a value like any other. A condition
would decide once about each row: `ts > now() - INTERVAL 7 DAYS` would keep a row for ever.
"""

from __future__ import annotations

from collections.abc import Iterator

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.sql.grammar import TextSpan, failure, words_of
from nosync_nb.expressions import CLOCK_FUNCTIONS, unstable_function
from nosync_nb.operators.registry import expressions_of


def unstable_note(text: str, query: TextSpan, name: str, definition: Definition) -> str:
    """Returns the notice for a view whose columns have values of the clock; empty without one.

    Args:
        text: the text of all statements.
        query: the position of the view's query in the text.
        name: the name of the view.

    Raises:
        SqlError: if a condition of the view calls such a function.
    """
    listed = ""
    for part in definition.walk():
        for function in _called(part):
            if part.op == "filter":
                what = (
                    f"{function}() is in a condition of view '{name}', which would decide once"
                    " about each row"
                )
                raise failure(text, _position(text, query, function), what, _remedy(function))
            listed = listed or function
    if not listed:
        return ""
    when = "the time at which NoSync computes a row" if listed in CLOCK_FUNCTIONS else "new"
    if when == "new":
        return f"{name}: {listed}() is computed once for each row, and does not change afterwards"
    return f"{name}: {listed}() is {when}; it does not change afterwards"


def _called(part: Definition) -> Iterator[str]:
    if part.inputs:
        for sql in expressions_of(part):
            function = unstable_function(sql, part.inputs[0].schema)
            if function is not None:
                yield function


def _remedy(function: str) -> str:
    if function in CLOCK_FUNCTIONS:
        return (
            f"write CREATE TEMPORARY VIEW, which is evaluated at each read; or keep the time in an"
            f" input `clock`: ... FROM orders JOIN clock ON ts > clock.now - INTERVAL 7 DAYS, and"
            f" UPDATE clock SET now = {function}()"
        )
    return "insert its value as a column of an input, or write CREATE TEMPORARY VIEW"


def _position(text: str, query: TextSpan, function: str) -> TextSpan:
    """Returns where a query calls a function; the query, if a temporary view in it does."""
    for word in words_of(text[query.start : query.stop]):
        if word.word == function.upper():
            start = query.start + word.span.start
            return TextSpan(start, start + len(word.word))
    return query
