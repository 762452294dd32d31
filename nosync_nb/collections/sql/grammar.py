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
from sqlglot.optimizer.simplify import simplify

from nosync_nb.collections.sql.other_dialects import foreign_clause
from nosync_nb.errors import NosyncError, SqlError
from nosync_nb.expressions.aggregates import is_aggregate_name
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
        "AS": SparkExpressionParser.PIPE_SYNTAX_TRANSFORM_PARSERS["AS"],
        "LIMIT": lambda self, query: self.limited(query),
        "DROP": lambda self, query: self.dropped(query),
        "SELECT": lambda self, query: self.selected(self.closed(query)),
        "ORDER BY": lambda self, query: self.closed(query, ("limit", "offset")).order_by(
            self._parse_order(), append=False, copy=False
        ),
        "OFFSET": lambda self, query: self.limited(query),
        "SET": lambda self, query: self.assigned(query),
    }

    VERSION_PHRASES: ClassVar[dict[tuple[str, ...], str]] = {
        **SparkExpressionParser.VERSION_PHRASES,
        ("FOR", "SYSTEM_VERSION"): "VERSION",
        ("SYSTEM_VERSION", "AS", "OF"): "VERSION",
        ("SYSTEM_TIME", "AS", "OF"): "TIMESTAMP",
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

    def _parse_csv(self, parse_method: Any, sep: TokenType = TokenType.COMMA) -> list[Any]:
        """Parses a list; unlike sqlglot, it refuses an item that is missing after a comma."""
        listed: list[Any] = []

        def parse() -> Any:
            item = parse_method()
            if item is None and listed:
                trails = parse_method == self._parse_expression and self._curr is not None
                if trails and self._curr.token_type is TokenType.FROM:
                    self.raise_error("[TRAILING_COMMA_IN_SELECT] a comma before FROM", self._prev)
                self.raise_error("an item of a list is missing", self._prev)
            listed.append(item)
            return item

        items: list[Any] = super()._parse_csv(parse, sep)
        return items

    def limited(self, query: Any) -> Any:
        """Parses `|> LIMIT n` and `|> OFFSET n`, which apply to the rows before the operator."""
        limit, offset = self._parse_limit(), self._parse_offset()
        before = query.args.get("limit"), query.args.get("offset")
        if before != (None, None):
            rows, skipped = (_count(each) for each in before)
            more = _count(offset) or 0
            own = _count(limit)
            rows = None if rows is None else max(rows - more, 0)
            rows = own if rows is None else rows if own is None else min(rows, own)
            limit = None if rows is None else exp.Limit(expression=exp.Literal.number(rows))
            offset = exp.Offset(expression=exp.Literal.number((skipped or 0) + more))
        for name, clause in (("limit", limit), ("offset", offset)):
            if clause is not None:
                query.set(name, clause)
        return query

    def _parse_join(self, *args: Any, **kwargs: Any) -> Any:
        """Parses a join; unlike sqlglot, it refuses ON without a condition."""
        join = super()._parse_join(*args, **kwargs)
        if join is not None and self._prev.token_type is TokenType.ON:
            self.raise_error("a condition is missing after ON", self._prev)
        return join

    def _parse_pipe_syntax_join(self, query: Any) -> Any:
        return super()._parse_pipe_syntax_join(self.closed(query))

    def _parse_pipe_syntax_set_operator(self, query: Any) -> Any:
        """Parses `|> UNION ALL q`; the query is in parentheses, or `TABLE t`."""
        first = self.parse_set_operation(this=query)
        if not first:
            return None
        first.this.pop()
        other = first.expression.pop()
        query = self._build_pipe_cte(query, [exp.Star()])
        clause = query.args.get("with_")
        ctes = clause.pop() if clause else None
        clauses = {k: v for k, v in first.args.items() if k not in ("this", "expression")}
        query = type(first)(this=query, expression=other, **clauses)
        query.set("with_", ctes)
        return self._build_pipe_cte(query, [exp.Star()])

    def _parse_pipe_syntax_aggregate_group_order_by(
        self, query: Any, group_by_exists: bool = True
    ) -> Any:
        """Parses the lists of `|> AGGREGATE ... GROUP BY a + 1 AS k`, whose keys may have names."""
        query = super()._parse_pipe_syntax_aggregate_group_order_by(query, group_by_exists)
        group = query.args.get("group") if group_by_exists else None
        if group is not None:
            keys = query.expressions[: len(group.expressions)]
            group.set("expressions", [each.unalias().copy() for each in keys])
        for each in () if group_by_exists else query.expressions:
            if not any(
                is_aggregate_name(str(c.this).lower()) for c in each.find_all(exp.Anonymous)
            ):
                self.raise_error(
                    "[PIPE_OPERATOR_AGGREGATE_EXPRESSION_CONTAINS_NO_AGGREGATE_FUNCTION] AGGREGATE"
                    " has an item without an aggregate",
                    self._prev,
                )
        return query

    def _is_table_query(self) -> bool:
        """Returns True at `TABLE name`, which is `SELECT * FROM name`."""
        following = self._next
        names = (*self.ID_VAR_TOKENS, TokenType.IDENTIFIER)
        return bool(
            self._curr
            and self._curr.token_type is TokenType.TABLE
            and following
            and following.token_type in names
        )

    def _parse_select(self, *args: Any, consume_pipe: bool = True, **kwargs: Any) -> Any:
        """Parses a query; `VALUES ... |> ...` is one too."""
        query = super()._parse_select(*args, consume_pipe=consume_pipe, **kwargs)
        begins = isinstance(query, exp.Values) and consume_pipe
        if begins and self._match(TokenType.PIPE_GT, advance=False):
            return self._parse_pipe_syntax_query(exp.select("*").from_(query, copy=False))
        return query

    def _parse_table_alias(self, *args: Any, **kwargs: Any) -> Any:
        # `t VERSION AS OF 3 PIVOT (...)`: sqlglot would read PIVOT as the alias
        follows = self._next is not None and self._next.token_type is TokenType.L_PAREN
        if follows and self._match_texts(("PIVOT", "UNPIVOT"), advance=False):
            return None
        return super()._parse_table_alias(*args, **kwargs)

    def _parse_lateral(self) -> Any:
        """Parses LATERAL; AS before the columns of LATERAL VIEW is optional."""
        lateral = super()._parse_lateral()
        alias = lateral.args.get("alias") if lateral is not None else None
        if alias is None or not lateral.args.get("view"):
            return lateral
        if alias.this is not None and not alias.args.get("columns"):
            first = self._parse_id_var(any_token=False, tokens=self.TABLE_ALIAS_TOKENS)
            if first is not None:
                is_list = self._match(TokenType.COMMA)
                more = self._parse_csv(self._parse_id_var) if is_list else []
                alias.set("columns", [first, *more])
        return lateral


def _count(clause: Any) -> int | None:
    """Returns the number of LIMIT or OFFSET; None without one."""
    if clause is None or (isinstance(clause, exp.Limit) and clause.is_limit_all):
        return None
    value = simplify(clause.expression.copy())
    if not isinstance(value, exp.Literal) or not value.this.isdigit():
        raise ValueError("LIMIT after LIMIT takes a number")
    return int(value.this)


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
    for token in sql_tokens(text):
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


def sql_tokens(text: str) -> list[Any]:
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
        if what.startswith("Expected TYPE") and _NAME.fullmatch(part):
            what = f"[UNSUPPORTED_DATATYPE] there is no type {part!r}"
        what = what if what.startswith("[") else f"[PARSE_SYNTAX_ERROR] {what}"
        raise failure(text, TextSpan(start, stop), what, "correct the statement here") from None
    statements = [Statement(text, tree) for tree in trees if tree is not None]
    for each in statements:
        foreign = foreign_clause(each.tree)
        if foreign is not None:
            what = f"[PARSE_SYNTAX_ERROR] {foreign.what}"
            raise failure(text, span_of(foreign.tree), what, foreign.hint)
    return statements


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


def sql_reason(error: NosyncError) -> str:
    """Returns the message of an error; it begins with Spark's error class if it names one."""
    if not error.error_class:
        return str(error)
    head = f"[{error.error_class}] "
    return head + str(error).replace(head, "", 1)


def _position(text: str, line: int, column: int) -> int:
    """Returns the position of a line and a column, both counted from 1."""
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    return min(len(text), start + column)
