"""Parses SQL statements to sqlglot's trees, with the position of every expression.

The grammar is that of the expressions (`expressions.syntax.parser`): calls stay as written. A tree
gives the structure of a query. The text of an expression is always cut from the user's statement,
never generated from the tree, so that its meaning cannot change on the way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial, wraps
from types import new_class
from typing import Any, ClassVar, NamedTuple

from sqlglot import TokenType, exp
from sqlglot.errors import ParseError, TokenError

from nosync_nb.errors import SqlError
from nosync_nb.expressions.syntax.parser import SparkExpressionParser, SparkExpressions

_SPAN = "span"
_SHOWN_MAX, _SHOWN_BEFORE = 160, 100
"""The most characters of a line that a message shows, and those before the part."""
_LEVELS = (
    "_parse_range",
    "_parse_unary",
    "_parse_column",
    "_parse_primary",
    "_parse_function",
    "_parse_lambda",
    "_parse_ordered",
    "_parse_select",
    "_parse_table",
)
"""The parsing functions whose results get a span; that of `a + b` follows from its operands."""


class TextSpan(NamedTuple):
    """A part of a text: positions of its first character and behind its last one."""

    start: int
    stop: int


NOWHERE = TextSpan(0, 0)
"""The span of what has no text of its own."""


def _recording(name: str) -> Callable[..., Any]:
    """Returns a parsing function that records the span of its result."""

    def parse(self: Any, *args: Any, **kwargs: Any) -> Any:
        first = self._curr
        tree = getattr(SparkExpressionParser, name)(self, *args, **kwargs)
        if isinstance(tree, exp.Expr) and first is not None and self._prev is not None:
            operand = args[0] if args and isinstance(args[0], exp.Expr) else None
            start = first.start if operand is None else min(first.start, span_of(operand).start)
            tree.meta.setdefault(_SPAN, TextSpan(start, self._prev.end + 1))
        return tree

    return wraps(getattr(SparkExpressionParser, name))(parse)


_SpanParser: Any = new_class(
    "_SpanParser",
    (SparkExpressionParser,),
    exec_body=lambda body: body.update({name: _recording(name) for name in _LEVELS}),
)
"""The grammar of expressions, whose trees have spans."""


class _StatementParser(_SpanParser):  # type: ignore[misc]
    """The grammar of expressions and statements, with spans.

    sqlglot parses pipe syntax, `FROM t |> WHERE a > 1 |> SELECT b`, to nested SELECTs. It adds the
    clause of an operator to the SELECT before it. After LIMIT or DISTINCT that would change the
    result, so the operator gets a SELECT of its own here. DROP and SET are added.
    """

    PIPE_SYNTAX_TRANSFORM_PARSERS: ClassVar[dict[str, Any]] = {
        **{
            name: partial(lambda parse, self, query: parse(self, self.closed(query)), parse)
            for name, parse in SparkExpressionParser.PIPE_SYNTAX_TRANSFORM_PARSERS.items()
            if name not in ("AS", "LIMIT", "ORDER BY")
        },
        **{
            name: SparkExpressionParser.PIPE_SYNTAX_TRANSFORM_PARSERS[name]
            for name in ("AS", "LIMIT")
        },
        "DROP": lambda self, query: self.dropped(query),
        "SELECT": lambda self, query: self.selected(self.closed(query)),
        "ORDER BY": lambda self, query: self.closed(query, ("limit", "offset")).order_by(
            self._parse_order(), append=False, copy=False
        ),
        "OFFSET": lambda self, query: self._parse_pipe_syntax_limit(query),
        "SET": lambda self, query: self.assigned(query),
    }

    def closed(
        self, query: Any, clauses: Sequence[str] = ("limit", "offset", "distinct", "order")
    ) -> Any:
        """Returns a SELECT over a query that has a SELECT list or one of some clauses."""
        is_listed = [type(each) for each in query.expressions] != [exp.Star]
        if is_listed or any(query.args.get(each) for each in clauses):
            return self._build_pipe_cte(query, [exp.Star()])
        return query

    def selected(self, query: Any) -> Any:
        """Parses `|> SELECT [DISTINCT] ...`."""
        select: Any = self._parse_select(consume_pipe=False)
        query = query.select(*select.expressions, append=False, copy=False)
        query.set("distinct", select.args.get("distinct"))
        return self._build_pipe_cte(query, [exp.Star()])

    def dropped(self, query: Any) -> Any:
        """Parses `|> DROP a, b`: all columns but these."""
        self._match_text_seq("DROP")
        columns = [exp.column(each) for each in self._parse_csv(self._parse_id_var)]
        query = self._build_pipe_cte(query, [exp.Star(except_=columns)])
        return self._build_pipe_cte(query, [exp.Star()])

    def assigned(self, query: Any) -> Any:
        """Parses `|> SET a = a + 1`: other values for some columns."""
        self._match_text_seq("SET")
        values = [
            exp.alias_(each.expression, each.this.this, copy=False)
            for each in self._parse_csv(self._parse_assignment)
            if isinstance(each, exp.EQ) and isinstance(each.this, exp.Column)
        ]
        if not values:
            self.raise_error("Expected column = value after SET")
        query = self._build_pipe_cte(query, [exp.Star(replace=values)])
        return self._build_pipe_cte(query, [exp.Star()])

    def _parse_pipe_syntax_join(self, query: Any) -> Any:
        return super()._parse_pipe_syntax_join(self.closed(query))


class _Statements(SparkExpressions):
    """Spark's tokens with that grammar."""

    Parser = _StatementParser


class SqlWord(NamedTuple):
    """A word, a sign, a name or a literal of a text.

    Attributes:
        word: its letters in upper case; empty for a quoted name or a string.
        name: the name, if it is one; quotes are removed.
    """

    word: str
    name: str | None
    span: TextSpan


_QUOTED = (TokenType.IDENTIFIER, TokenType.STRING, TokenType.RAW_STRING)
_REST = (TokenType.COMMAND, TokenType.SHOW)


def words_of(text: str) -> list[SqlWord]:
    """Returns the words of a text, without spaces and comments.

    Raises:
        SqlError: if a quote or a comment is not closed.
    """
    words: list[SqlWord] = []
    skipped = False
    for token in _tokens(text):
        if skipped and token.token_type is TokenType.STRING:  # the text behind SHOW or EXPLAIN
            begin = words[-1].span.stop
            inner = words_of(" " * begin + text[begin : token.end + 1])
            words += inner
        elif not words or token.start >= words[-1].span.stop:
            words += _split_token(token, text)
        skipped = token.token_type in _REST and words[-1].span.stop == token.end + 1
    return words


def _split_token(token: Any, text: str) -> list[SqlWord]:
    """Returns the words of a token, which may have several: `ORDER BY`."""
    start, stop = token.start, token.end + 1
    source = text[start:stop]
    if token.token_type in _QUOTED:
        name = token.text if token.token_type is TokenType.IDENTIFIER else None
        return [SqlWord("", name, TextSpan(start, stop))]
    found = [(m.group(), start + m.start()) for m in re.finditer(r"\S+", source)]
    return [
        SqlWord(part.upper(), part if _NAME.fullmatch(part) else None, TextSpan(at, at + len(part)))
        for part, at in found
    ]


_NAME = re.compile(r"[^\W\d]\w*|\d+[^\W\d]\w*")


def _tokens(text: str) -> list[Any]:
    """Returns sqlglot's tokens."""
    try:
        return list(_Statements().tokenize(text))
    except TokenError as error:
        raise _unreadable(text, error) from None


def _unreadable(text: str, error: TokenError) -> SqlError:
    """Returns the error for a quote or a comment that is not closed."""
    found = re.search(r"Missing (\S+) from (\d+):(\d+)", f"{error} {error.__cause__}")
    if found is None:
        return failure(
            text,
            TextSpan(max(0, len(text.rstrip()) - 1), len(text)),
            "[PARSE_SYNTAX_ERROR] the text ends in a string, a name or a comment",
            "close quotes and comments",
        )
    near = _position(text, int(found[2]), int(found[3]))
    start = max(0, text.rfind(found[1], 0, near + 2))  # the columns of lines begin at 0 or 1
    what = f"[PARSE_SYNTAX_ERROR] {found[1]} is not closed"
    return failure(text, TextSpan(start, start + 1), what, f"write the closing {found[1]}")


class Statement(NamedTuple):
    """One statement.

    Attributes:
        text: the text of all statements, to which spans refer.
    """

    text: str
    tree: exp.Expr


def parse_statements(text: str) -> list[Statement]:
    """Parses statements that are separated by semicolons.

    Raises:
        SqlError: if the text is no SQL; names line, column and the part.
    """
    try:
        trees = _Statements().parse(text)
    except TokenError as error:
        raise _unreadable(text, error) from None
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        raise SqlError(
            f"[PARSE_SYNTAX_ERROR] the statement cannot be read: {error}",
            hint="write it in the syntax of Spark SQL",
        ) from None
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        stop = _position(text, int(first.get("line") or 1), int(first.get("col") or 1))
        part = str(first.get("highlight") or "")
        start = max(0, stop - len(part))
        what = str(first.get("description") or "this is no statement").rstrip(".")
        if "<class" in what:  # sqlglot names its own class
            what = "a part is missing"
        what = f"[PARSE_SYNTAX_ERROR] {what}"
        raise failure(text, TextSpan(start, stop), what, "correct the statement here") from None
    return [Statement(text, _with_table(tree)) for tree in trees if tree is not None]


def _with_table(tree: exp.Expr) -> exp.Expr:
    """Returns `SELECT * FROM t` for the statement `TABLE t`, which sqlglot reads as an alias."""
    named = isinstance(tree, exp.Alias) and isinstance(tree.this, exp.Column)
    if not named or tree.this.name.lower() != "table" or tree.this.table:
        return tree
    name = tree.args["alias"]
    select = exp.select("*").from_(exp.Table(this=name), copy=False)
    select.meta[_SPAN] = span_of(tree)
    return select


def span_of(tree: exp.Expr) -> TextSpan:
    """Returns the part of the text that a tree was parsed from."""
    known: TextSpan | None = tree.meta.get(_SPAN)
    if known is not None:
        return known
    starts: list[int] = []
    stops: list[int] = []
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        span = each.meta.get(_SPAN)
        if span is None and isinstance(each, exp.Identifier) and "start" in each.meta:
            span = TextSpan(each.meta["start"], each.meta["end"] + 1)
        if span is None:
            waiting += list(each.iter_expressions())
        else:
            starts.append(span.start)
            stops.append(span.stop)
    if not starts:
        return NOWHERE
    found = tree.meta[_SPAN] = TextSpan(min(starts), max(stops))
    return found


def failure(text: str, span: TextSpan, what: str, hint: str) -> SqlError:
    """Returns an error that shows the line of a part with a caret under it."""
    line = text.count("\n", 0, span.start) + 1
    begin = text.rfind("\n", 0, span.start) + 1
    end = text.find("\n", span.start)
    shown = text[begin : end if end >= 0 else len(text)]
    column = span.start - begin + 1
    first = max(0, column - 1 - _SHOWN_BEFORE)  # a line may be a megabyte
    marks = max(1, min(span.stop, begin + len(shown)) - span.start)
    shown = shown[first : first + _SHOWN_MAX]
    caret = " " * (column - 1 - first) + "^" * min(marks, _SHOWN_MAX - (column - 1 - first))
    where = f"{what} (line {line}, column {column})\n  {shown}\n  {caret}"
    return SqlError(where, hint=hint, reason=what, span=(span.start, span.stop))


def _position(text: str, line: int, column: int) -> int:
    """Returns the position of a line and a column, both counted from 1."""
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    return min(len(text), start + column)
