"""Conjuncts: the texts that a predicate is the `and` of, as they stand in it.

A filter keeps the rows for which its predicate is true, which is where each of them is true: so
each may be asked at another place. That is all that is said here; whether one may be asked of other
rows is for the caller to know.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlglot import exp

from nosync_nb.errors import ExpressionError
from nosync_nb.expressions.syntax.parser import parse

_OPENING = {"(", "[", "{", "CASE"}
_CLOSING = {")", "]", "}", "END"}


@lru_cache(maxsize=512)
def conjuncts(sql: str) -> tuple[str, ...]:
    """The conjuncts of a predicate: what stands between each `and` that is not inside of something.

    The predicate as a whole where there is any doubt, or a comment: what is cut at the words is
    held against what the parser made of them.
    """
    parsed = parse(sql)
    if parsed.name is not None or "--" in sql or "/*" in sql:
        return (sql,)
    depth, between, start, texts = 0, 0, 0, []
    for word in parsed.words:
        text = word.text.upper() if word.kind in ("word", "sign") else ""
        if text in _OPENING:
            depth += 1
        elif text in _CLOSING:
            depth -= 1
        elif depth == 0 and text == "BETWEEN":
            between += 1
        elif depth == 0 and text == "AND":
            if between:
                between -= 1
            else:
                texts.append(sql[start : word.start].strip())
                start = word.end
    texts.append(sql[start:].strip())
    try:
        trees = [parse(text).tree for text in texts]
    except ExpressionError:
        return (sql,)
    return tuple(texts) if trees == _operands(parsed.tree) else (sql,)


def _operands(tree: exp.Expression) -> list[Any]:
    """The operands of a chain of `and`."""
    waiting: list[Any] = [tree]
    operands: list[Any] = []
    while waiting:
        each = waiting.pop()
        if isinstance(each, exp.And):
            waiting += [each.right, each.left]
        else:
            operands.append(each)
    return operands
