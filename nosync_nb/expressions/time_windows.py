"""`window(time, length)` in an expression of a row, which drops the rows with a null time.

Spark adds a filter to the query of such a call, so a batch with a null time comes back with fewer
rows. This module determines the times that must not be null; the select or the filter with the call
gets that filter before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from nosync_nb.errors import ExpressionError
from nosync_nb.expressions.syntax.parser import Word, parse

_CALLED = {"window": "tumbling(c, on='ts', every='1 hour')", "session_window": "sessions(c, ...)"}
_SLIDING = "use nosync.windows.sliding(c, on='ts', size='1 hour', every='10 minutes')"


def windowed_times(sql: str) -> list[str]:
    """Returns the times of the windows in an expression, as text, each once.

    Raises:
        ExpressionError: if a call makes several rows of one, or another number of rows for some
            lengths, or cannot be parsed.
    """
    if "window" not in sql.lower():
        return []
    parsed = parse(sql)
    calls = [node for node in parsed.tree.find_all(exp.Anonymous) if _name(node) in _CALLED]
    for node in calls:
        _refuse(sql, node)
    starts = [
        i
        for i, (word, after) in enumerate(zip(parsed.words, parsed.words[1:], strict=False))
        if word.text.lower() in _CALLED and (after.kind, after.text) == ("sign", "(")
    ]
    return list(dict.fromkeys(_first_argument(sql, parsed.words, i + 2) for i in starts))


def refuse_windows(sql: str, what: str) -> None:
    """Refuses windows where a row cannot be dropped.

    Raises:
        ExpressionError: if there are some.
    """
    if windowed_times(sql):
        raise ExpressionError(
            f"{what}: {sql!r} drops rows whose time is null, which is not possible here",
            hint="compute it as a column first: select('*', \"window(ts, '1 hour') AS w\")",
        )


def _name(node: Any) -> str:
    return str(node.name).lower()


def _refuse(sql: str, node: Any) -> None:
    """Refuses a call that gives several windows for a row, or none."""
    name, lengths = _name(node), node.expressions[1:]
    texts = [part.name.lower().split() if _is_text(part) else None for part in lengths]
    if name == "window" and len(texts) > 1 and (texts[0] is None or texts[0] != texts[1]):
        raise ExpressionError(
            f"expression {sql!r}: overlapping windows generate several rows for one", hint=_SLIDING
        )
    if not texts or (name == "session_window" and texts[0] is None):
        raise ExpressionError(
            f"expression {sql!r}: {name} needs a time, and a length that is a string",
            hint=f"write {name}(ts, '1 hour'), or use nosync.windows.{_CALLED[name]}",
        )


def _is_text(node: Any) -> bool:
    return isinstance(node, exp.Literal) and bool(node.is_string)


def _first_argument(sql: str, words: Sequence[Word], at: int) -> str:
    """The text of a call's first argument; `at`: the index of its first word."""
    depth = 0
    for word in words[at:]:
        sign = word.text if word.kind == "sign" else ""
        if not depth and sign in (",", ")"):
            return sql[words[at].start : word.start].strip()
        depth += (sign in ("(", "[")) - (sign in (")", "]"))
    raise AssertionError("a call has a parenthesis at its end")
