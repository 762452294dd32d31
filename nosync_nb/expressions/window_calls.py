"""Splits expressions over window functions, such as `x - lag(x)`, into calls and the text around.

A call is that of a window function or of an aggregate, with the words that may follow it: `within
group (order by ...)`, `filter (where ...)`, `ignore nulls` and `respect nulls`. The window itself
is not part of the text, so `over` is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nosync_nb.errors import ExpressionError
from nosync_nb.expressions.syntax import analyzer
from nosync_nb.expressions.syntax.parser import Word, parse, tokens


class WrittenCall(NamedTuple):
    """A call of a window function, as text.

    Attributes:
        function: the name of the function, in lower case.
        arguments: the texts of the arguments.
        skips_nulls: True for IGNORE NULLS.
        filtered: True for a call with FILTER.
        aggregate: the call without IGNORE NULLS.
        written: the whole call.
    """

    function: str
    arguments: tuple[str, ...]
    skips_nulls: bool
    filtered: bool
    aggregate: str
    written: str


class SplitExpression(NamedTuple):
    """An expression over window functions: `pieces[0] calls[0] pieces[1] ... pieces[n]`."""

    pieces: tuple[str, ...]
    calls: tuple[WrittenCall, ...]

    @property
    def is_call(self) -> bool:
        """True if the expression is one call and nothing else."""
        return len(self.calls) == 1 and not "".join(self.pieces).strip()

    def text(self, names: Sequence[str]) -> str:
        """Returns the expression with columns in place of the calls."""
        found = [self.pieces[0]]
        for name, piece in zip(names, self.pieces[1:], strict=True):
            found += [name, piece]
        return "".join(found)


def split_window_calls(sql: str) -> SplitExpression:
    """Splits an expression at its calls of window functions and aggregates.

    Raises:
        ExpressionError: if the text is not an expression, has a call inside another one, or names a
            window with OVER.
    """
    parsed = parse(sql)
    if parsed.name is not None:
        raise _failure(sql, "the name of a column is the keyword", "write total='sum(x)'")
    words = tokens(sql)
    pieces: list[str] = []
    calls: list[WrittenCall] = []
    at = i = 0
    while i < len(words):
        if not _is_call(words, i):
            i += 1
            continue
        call, after = _call(sql, words, i)
        pieces.append(sql[at : words[i].start])
        calls.append(call)
        at, i = words[after - 1].end, after
    return SplitExpression((*pieces, sql[at:]), tuple(calls))


def _call(sql: str, words: Sequence[Word], i: int) -> tuple[WrittenCall, int]:
    """Returns the call at word `i`, and the index of the word after it."""
    function = words[i].text.lower()
    close = _closing(sql, words, i + 1)
    inside = words[i + 2 : close]
    for k in range(len(inside)):
        if _is_call(inside, k):
            raise _failure(
                sql,
                f"{inside[k].text} is inside {function}",
                "compute it first: with_columns of one window, then of another",
            )
    arguments = _split(sql, inside, words[i + 1].end, words[close].start)
    after, skips_nulls, filtered, end = close + 1, False, False, words[close].end
    if after + 1 < len(words) and _reads(words, after, "within", "group"):
        after = _closing(sql, words, after + 2) + 1
        end = words[after - 1].end
    if after < len(words) and _reads(words, after, "filter"):
        after = _closing(sql, words, after + 1) + 1
        filtered, end = True, words[after - 1].end
    if _reads(words, after, "ignore", "nulls") or _reads(words, after, "respect", "nulls"):
        skips_nulls = words[after].text.lower() == "ignore"
        after += 2
    if after < len(words) and _reads(words, after, "over"):
        raise _failure(
            sql,
            "the window is not part of the expression",
            "write c.window(partition_by='k', order_by='t').with_columns(n='row_number()')",
        )
    aggregate = sql[words[i].start : end]
    written = sql[words[i].start : words[after - 1].end]
    return WrittenCall(function, arguments, skips_nulls, filtered, aggregate, written), after


def _reads(words: Sequence[Word], i: int, *texts: str) -> bool:
    found = [word.text.lower() for word in words[i : i + len(texts)] if word.kind == "word"]
    return found == list(texts)


def _is_call(words: Sequence[Word], i: int) -> bool:
    if words[i].kind != "word" or i + 1 >= len(words) or words[i + 1].text != "(":
        return False
    name = words[i].text.lower()
    return name in analyzer.WINDOWS or name in analyzer.AGGREGATES


def _closing(sql: str, words: Sequence[Word], i: int) -> int:
    """Returns the index of the parenthesis that closes the one at word `i`."""
    depth = 0
    for k in range(i, len(words)):
        if words[k].kind == "sign":
            depth += (words[k].text == "(") - (words[k].text == ")")
            if depth == 0:
                return k
    raise _failure(sql, "a parenthesis is not closed", "close it")


def _split(sql: str, inside: Sequence[Word], start: int, stop: int) -> tuple[str, ...]:
    """Returns the arguments between two positions."""
    if not inside:
        return ()
    depth, found = 0, []
    for word in inside:
        if word.kind == "sign":
            depth += (word.text in "([") - (word.text in ")]")
            if word.text == "," and not depth:
                found.append(sql[start : word.start].strip())
                start = word.end
    return (*found, sql[start:stop].strip())


def _failure(sql: str, what: str, hint: str) -> ExpressionError:
    return ExpressionError(f"window {sql!r}: {what}", hint=hint)
