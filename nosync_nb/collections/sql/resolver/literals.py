"""Checks typed literals: `DATE '2024-02-30'` is an error of the statement, as in Spark."""

from __future__ import annotations

import re
from typing import Any

from sqlglot import exp

from nosync_nb.collections.sql.resolver.context import Context
from nosync_nb.expressions import compile_expression
from nosync_nb.rows import Schema

_TYPED = re.compile(r"(date|timestamp(?:_ntz|_ltz)?)\s*(?=['\"])", re.IGNORECASE)


def check_literal(context: Context, tree: Any) -> None:
    """Raises SqlError for a typed literal whose text is no value of the type."""
    is_typed = isinstance(tree, exp.Cast) and isinstance(tree.this, exp.Literal)
    found = _TYPED.match(context.cut(tree)) if is_typed else None
    if found is None:
        return
    text = context.cut(tree)[found.end() :]
    type_ = found[1].lower()
    made = compile_expression(f"try_cast({text} as {type_})", Schema([]), types=lambda *_: [type_])
    if made.local and made.evaluate([], 1)[0] is None:
        raise context.failed(
            tree,
            f"[INVALID_TYPED_LITERAL] {text} is no {type_}",
            f"write an existing day, as in {type_.upper()} '2024-12-31'",
        )
