"""Expressions: Spark SQL over the columns of one row, evaluated here or by Spark.

The meaning is always Spark's, under the settings that are recorded with the expression
(settings.py). If every part of an expression is in the table of proved functions
(functions/registry.py), `local` is true and `evaluate` computes it on columns. Otherwise Spark
evaluates `sql` on each batch. This choice depends only on the text, the types and the settings, and
never on the values or the number of rows.

Design: nodes (evaluation/nodes.py) evaluate columns of any form with null masks, and locate the row
that raises. A generated function (codegen.py) is tried first, on small columns without nulls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlglot import exp

from nosync_nb import rows
from nosync_nb.errors import ExpressionError, SchemaError
from nosync_nb.expressions.binder import Binder
from nosync_nb.expressions.codegen import Fast, compile_fast, is_loud
from nosync_nb.expressions.evaluation.nodes import ColumnNode, SharedOperandNode, ValueNode
from nosync_nb.expressions.functions.collections import is_held
from nosync_nb.expressions.kernels.kernel import NotProvedError
from nosync_nb.expressions.kernels.vectors import RowError, VectorFrame, quiet, to_column
from nosync_nb.expressions.non_ansi import non_ansi_expression
from nosync_nb.expressions.settings import (
    DEFAULT,
    Asked,
    Registered,
    SettingsDependency,
    SqlSettings,
    needs_zone,
)
from nosync_nb.expressions.syntax.analyzer import ExpressionFacts, analyze
from nosync_nb.expressions.syntax.parser import (
    Parsed,
    Word,
    agrees_with_spark,
    canonical,
    parse,
    with_recursion_room,
)
from nosync_nb.expressions.typing_rules import NUMBERS, VOID, is_decimal
from nosync_nb.rows import Column, Schema, canonical_type
from nosync_nb.rows.ddl import quoted


class UntypedNullError(ExpressionError):
    """The value of an expression is always null and has no type, as in `coalesce(NULL, NULL)`."""


Types = Callable[[Sequence[str], Schema], list[str]]
"""Asks Spark for the types of expressions over a schema."""

Functions = Callable[[str, Schema], tuple[Registered, ...]]
"""Asks Spark for the registered functions that an expression over a schema calls."""

_BEFORE_A_VALUE = frozenset(
    re.findall(
        r"\w+",
        "and or not when then else case between in like ilike rlike is div distinct from",
    )
)
_LENGTHS = re.compile(r"(?:\bas|: ?:) (?:n?var)?char(?:acter)? \(", re.IGNORECASE)


class Expression:
    """One compiled expression; immutable, picklable (compiled again where it is loaded).

    Attributes:
        sql: the text without its alias, for evaluation in Spark.
        name: the alias, or the name of a plain column; None if it has no name.
        type: the type of the result.
        columns: the positions of the columns that it reads; `references` are their names.
        is_column: True if it is a plain column.
        deterministic: True if two evaluations must have the same result.
        local: True if `evaluate` can compute it.
        why: the part that only Spark knows; empty if `local` is true.
        settings: the settings on which it depends, with their values.
        fingerprint: a text that is equal for expressions that differ only in space, comments and
            case.
    """

    __slots__ = (
        "_fast",
        "_loud",
        "_node",
        "_shown",
        "columns",
        "deterministic",
        "fingerprint",
        "is_column",
        "local",
        "name",
        "schema",
        "settings",
        "sql",
        "text",
        "type",
        "why",
    )

    def __init__(
        self,
        compiled: _Compiled,
        schema: Schema,
        type_: str,
        settings: SqlSettings,
        shown: _Shown,
    ) -> None:
        parsed, examined, node = compiled.parsed, compiled.examined, compiled.node
        self.sql = parsed.sql
        self.text = compiled.text
        self.schema = schema
        self.type = type_
        self.columns = examined.columns
        self.deterministic = examined.deterministic and settings.stable
        self.fingerprint = canonical(parsed.words, dict(examined.names))
        self.local = node is not None
        self.why = compiled.why
        self.is_column = isinstance(node, ColumnNode)
        self.name = parsed.name
        if self.name is None and self.is_column:
            self.name = schema.names[self.columns[0]]
        self._node = node
        self._fast = compiled.fast
        self._loud = compiled.loud
        self.settings = settings
        self._shown = shown

    @property
    def raises(self) -> bool:
        """True if a row may make it raise; always True for an expression that only Spark knows."""
        return self._node is None or self._node.raises

    @property
    def references(self) -> tuple[str, ...]:
        """The names of the columns that it reads."""
        return tuple(self.schema.names[i] for i in self.columns)

    def evaluate(self, columns: Sequence[Column], n: int) -> Column:
        """Returns the values of the expression for `n` rows.

        Args:
            columns: one column for each field of the schema. Columns that the expression does not
                read may be any objects.

        Raises:
            ExpressionError: where Spark raises (overflow, division by zero, a cast that fails); the
                message has the values of the row.

        Cost: about 1 us for each operation on 10 rows of numbers without nulls; otherwise
        vectorised.
        """
        fast = self._fast
        if fast is not None and n:
            column = quiet.run(fast, columns, n) if self._loud else fast(columns, n)
            if column is not None:
                return column
        node = self._node
        if node is None:
            raise ExpressionError(f"expression {self.sql!r}: only Spark evaluates {self.why}")
        if self.is_column:
            return columns[self.columns[0]]
        frame = VectorFrame(columns, self.schema.types, n)
        try:
            return to_column(quiet.run(node.evaluate, frame), self.type, n)
        except RowError as error:
            raise self._failed(error, columns) from None

    def _failed(self, error: RowError, columns: Sequence[Column]) -> ExpressionError:
        text, names = self._shown
        values = []
        for i in self.columns:
            one = rows.slice_(columns[i], error.row, error.row + 1)
            name = names.get(self.schema.names[i], self.schema.names[i])
            values.append(f"{name}={_printed(one, self.schema.types[i])}")
        where = f" in the row {', '.join(values)}" if values else ""
        return ExpressionError(
            f"expression {text or self.sql!r}: {error.reason}{where}", hint=error.reason.remedy
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.text, self.schema, self.type, self.settings, self._shown)

    def __repr__(self) -> str:
        return f"Expression({self.sql!r}, {self.type})"


_Shown = tuple[str, dict[str, str]]
"""The texts that errors show for the expression and for its columns, if the user wrote others."""


class _Compiled(NamedTuple):
    text: str
    parsed: Parsed
    examined: ExpressionFacts
    node: ValueNode | None
    why: str
    fast: Fast | None
    loud: bool
    depends: SettingsDependency


def compile_expression(
    sql: str,
    schema: Schema,
    *,
    types: Types | None = None,
    settings: Asked = DEFAULT,
    functions: Functions | None = None,
) -> Expression:
    """Compiles Spark SQL over the columns of a schema.

    Args:
        sql: one expression, perhaps `... AS name`. A column is matched by its exact name, or by its
            name in another case.
        schema: the columns.
        types: asks Spark for the type of an expression that only Spark knows.
        settings: the settings of the evaluation, or a function that returns them. The function is
            called only if the expression depends on settings. Functions of timestamps are evaluated
            here in UTC only. Without ANSI mode, only the calls that non_ansi.py supports are.
        functions: asks Spark for the registered functions that the expression calls; by default,
            they are looked up in `settings`.

    Raises:
        ExpressionError: if the expression cannot be parsed, names a missing column, reads more than
            one row, or needs Spark and `types` is None.
    """
    return compile_shown(sql, schema, types, settings, ("", {}), functions)


def compile_shown(
    sql: str,
    schema: Schema,
    types: Types | None,
    settings: Asked,
    shown: _Shown,
    functions: Functions | None = None,
) -> Expression:
    """Compiles an expression for which errors show another text."""
    compiled = _compiled(sql, schema, utc=True, ansi=True)
    own = SqlSettings()
    if any(compiled.depends):
        current_settings = (
            settings if isinstance(settings, SqlSettings) else settings(compiled.depends, sql)
        )
        own = current_settings.select(compiled.depends)
        compiled = _compiled(sql, schema, utc=own.utc, ansi=own.ansi is not False)
    if compiled.node is not None:
        own = own._replace(registered=())
        return Expression(compiled, schema, compiled.node.type, own, shown)
    type_ = _asked_type(compiled, schema, types)
    if functions is not None:
        own = own._replace(registered=functions(compiled.parsed.sql, schema))
    elif own.registered:
        names = {word.text.lower() for word in compiled.parsed.words}
        own = own._replace(registered=tuple(f for f in own.registered if f.name in names))
    return Expression(compiled, schema, type_, own, shown)


@with_recursion_room
@lru_cache(maxsize=512)
def _compiled(sql: str, schema: Schema, *, utc: bool, ansi: bool) -> _Compiled:
    parsed = parse(sql)
    examined = analyze(parsed.tree, schema, parsed.sql)
    node, depends, why, apart = _node_of(parsed, schema, examined, ansi=ansi)
    if depends.time_zone and not utc and node is not None:
        node, why = None, "timestamps in a time zone other than UTC"
    if not ansi and node is not None:
        node, why = _without_ansi(node, apart=apart)
    if node is not None and node.type == VOID:
        raise UntypedNullError(
            f"expression {parsed.sql!r}: null alone has no type",
            hint="cast it, as in 'cast(null as double) AS x'",
        )
    fast = compile_fast(node) if node is not None else None
    loud = node is not None and is_loud(node)
    return _Compiled(sql, parsed, examined, node, why, fast, loud, depends)


def _without_ansi(node: ValueNode, *, apart: bool) -> tuple[ValueNode | None, str]:
    """Returns the node for evaluation without ANSI mode.

    If only Spark knows the results, returns None and the part of the expression that decides this.
    """
    if apart:
        return None, "how these types are converted without ANSI mode"
    try:
        return non_ansi_expression(node), ""
    except NotProvedError as error:
        return None, str(error)


def _node_of(
    parsed: Parsed, schema: Schema, examined: ExpressionFacts, *, ansi: bool
) -> tuple[ValueNode | None, SettingsDependency, str, bool]:
    """Binds an expression.

    Returns:
        the node, or None; the settings on which the expression depends; the part that only Spark
        knows; and True if types are combined in a way that differs without ANSI mode.
    """
    for utc in (False, True):
        try:
            node, binder = _bind(parsed, schema, utc=utc, ansi=ansi)
        except NotProvedError as error:
            why = str(error)
        else:
            return node, SettingsDependency(utc, binder.mixes or node.raises), "", binder.apart
    return (
        None,
        SettingsDependency(needs_zone(parsed.tree, schema, examined.columns), ansi=True),
        why,
        True,
    )


def known_type(sql: str, schema: Schema) -> str | None:
    """Returns the type of an expression in ANSI mode; None if only Spark knows it.

    The columns must exist. Argument types of functions that only Spark computes are not checked.
    """
    try:
        node, _ = _bind(parse(sql), schema, utc=True, typed=True)
    except NotProvedError:
        return None
    return None if node.type == VOID else node.type


def _bind(
    parsed: Parsed, schema: Schema, *, utc: bool, ansi: bool = True, typed: bool = False
) -> tuple[ValueNode, Binder]:
    """Returns the node of an expression, and its binder.

    Raises:
        NotProvedError: if only Spark knows the meaning of the expression.
    """
    if any("\\" in word.text and word.kind != "string" for word in parsed.words):
        raise NotProvedError("a backslash in a name")
    if _is_of_length(parsed):
        raise NotProvedError("char and varchar")
    if _has_plus_sign(parsed, schema):
        raise NotProvedError("a + before a value")
    if any(isinstance(node, exp.RawString) for node in parsed.tree.walk()):
        raise NotProvedError("raw strings")
    if not agrees_with_spark(parsed.tree):
        raise NotProvedError("this order of operators without parentheses")
    binder = Binder(schema, utc=utc, ansi=ansi, typed=typed)
    node = binder.bind(parsed.tree)
    if binder.first:
        node = SharedOperandNode(node, binder.first)
    if not isinstance(node, ColumnNode) and not is_held(node.type) and node.type != VOID:
        raise NotProvedError(f"a {node.type}")
    return node, binder


def _has_plus_sign(parsed: Parsed, schema: Schema) -> bool:
    """Returns True if a + precedes a value that may not be a number; the parser drops the sign."""
    before: Word | None = None
    for word, after in zip(parsed.words, parsed.words[1:], strict=False):
        if word.text == "+" and word.kind == "sign" and after.kind != "number":
            signs = before is not None and before.kind == "sign" and before.text not in ")]"
            first = before is None or signs or before.text.lower() in _BEFORE_A_VALUE
            is_column = after.kind in ("word", "name") and after.text in schema
            type_ = schema.types[schema.index(after.text)] if is_column else ""
            if first and type_ not in NUMBERS and not is_decimal(type_):
                return True
        before = word
    return False


def _is_of_length(parsed: Parsed) -> bool:
    """Returns True if the type `char`, `varchar` or `text` occurs, except in strings and names."""
    words = [word.text for word in parsed.words if word.kind not in ("string", "name")]
    if _LENGTHS.search(" ".join(words)):
        return True
    named = [each for each in parsed.tree.find_all(exp.Identifier) if not each.quoted]
    texts = [each.name for each in named if each.name.lower() == "text"]
    return len(texts) < sum(word.lower() == "text" for word in words)


def _asked_type(compiled: _Compiled, schema: Schema, types: Types | None) -> str:
    sql = compiled.parsed.sql
    if types is None:
        raise ExpressionError(
            f"expression {sql!r}: only Spark evaluates {compiled.why}, and there is no Spark"
            " session",
            hint="open with spark=..., or write it with other functions",
        )
    type_ = types([sql], schema)[0]
    try:
        return canonical_type(type_)
    except SchemaError:
        raise ExpressionError(
            f"expression {sql!r}: a column cannot hold its type {type_}",
            hint="cast it, as in 'cast(... as string)'",
        ) from None


def waits(sql: str, schema: Schema, settings: Asked = DEFAULT) -> str | None:
    """Returns the part of an expression that only Spark knows, None if it is computed here.

    Raises:
        ExpressionError: if the text cannot be parsed, or is not an expression over one row.
    """
    e = compile_expression(sql, schema, types=lambda *_: ["string"], settings=settings)
    return None if e.local else e.why


def _restore(
    text: str, schema: Schema, type_: str, settings: SqlSettings, shown: _Shown
) -> Expression:
    return compile_shown(text, schema, lambda sql, _: [type_], settings, shown)


def _printed(column: Column, type_: str) -> str:
    try:
        return repr(rows.to_pylist(column, type_)[0])
    except (SchemaError, OverflowError):
        return "a value outside the years 1 to 9999"


def expand_select(expressions: Sequence[str], schema: Schema) -> list[str]:
    """Returns the expressions with `*` (also `* except (a, b)`) replaced by columns in backticks.

    Raises:
        ExpressionError: if an expression cannot be parsed or an excepted column is missing.
    """
    texts: list[str] = []
    for sql in expressions:
        tree = parse(sql).tree
        if not isinstance(tree, exp.Star):
            texts.append(sql)
            continue
        gone = {_excepted(c.name, schema, sql) for c in tree.args.get("except_") or ()}
        if tree.args.get("replace") or tree.args.get("rename"):
            raise ExpressionError(
                f"select {sql!r}: only except is supported after *",
                hint="use with_columns(x='...') or rename({'old': 'new'})",
            )
        kept = (name for i, name in enumerate(schema.names) if i not in gone)
        texts += [quoted(name) for name in kept]
    return texts


def _excepted(name: str, schema: Schema, sql: str) -> int:
    try:
        return schema.index(name)
    except SchemaError as error:
        raise ExpressionError(f"select {sql!r}: {error}", hint=error.hint) from None
