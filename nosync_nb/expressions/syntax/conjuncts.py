"""Conjuncts: the operands of the `and`s of a predicate, as text.

A filter keeps the rows for which its predicate is true, which are those for which each conjunct is
true. So each may be evaluated in another place of the plan. The caller must know if one may be
evaluated on other rows.
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
    """Returns the conjuncts of a predicate: the texts between each top-level `and`.

    Returns the whole predicate in doubtful cases, or if it has a comment: the texts between the
    words are compared with the parser's result.
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
