"""Compiles expressions over the columns of a definition, alone or as the terms of an order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.session_protocol import SparkTypeResolver
from nosync_nb.errors import ExpressionError, SchemaError
from nosync_nb.expressions import (
    Expression,
    compile_expression,
    generator,
    parse_order,
    recorded_settings,
    refuse_windows,
)
from nosync_nb.rows import Field, Schema


def compiled(source: Definition, sql: Any, types: SparkTypeResolver) -> Expression:
    """Compiles an expression over the columns of a definition."""
    if not isinstance(sql, str):
        raise ExpressionError(
            f"{sql!r} is not a Spark SQL string",
            hint="write the expression as text, as in 'dep_delay > 60'",
        )
    return compile_expression(
        sql,
        source.schema,
        types=types,
        settings=types.settings,
        functions=types.registered,
    )


def refuse_unknown(source: Definition, sqls: Iterable[str]) -> None:
    """Refuses unknown column names before Spark is asked for any type.

    Raises:
        ExpressionError: names the first unknown one.
    """
    for sql in sqls:
        made = generator(sql)
        text = sql if made is None else made.argument
        compile_expression(text, source.schema, types=lambda *_: ["string"])


def stable(source: Definition, sql: str, what: str, types: SparkTypeResolver) -> Expression:
    """Compiles an expression to match or to order by, which must be deterministic.

    Raises:
        ExpressionError: if it may not be.
    """
    if isinstance(sql, str):
        refuse_windows(sql, what)
    expression = compiled(source, sql, types)
    if not expression.deterministic:
        raise ExpressionError(
            f"{what}: {sql!r} is not deterministic", hint="insert its value as a column of an input"
        )
    return expression


def ordered_by(
    source: Definition, by: str | None, what: str, types: SparkTypeResolver
) -> tuple[Definition, list[list[Any]]]:
    """Adds the values that an order needs as further columns, and returns the order by places.

    Returns:
        the definition; for each term its column, True if descending, True if nulls are first.
    """
    outputs: list[Any] = list(range(len(source.schema)))
    fields = list(source.schema.fields)
    order: list[list[Any]] = []
    settings = []
    for term in parse_order(by) if by is not None else ():
        compiled = stable(source, term.sql, what, types)
        if "map<" in compiled.type:
            raise SchemaError(
                f"{what}: cannot order by a map ({term.sql!r})",
                hint=f"order by one of its values, as in {what}(by=\"m['key']\")",
            )
        place = compiled.columns[0] if compiled.is_column else len(outputs)
        if not compiled.is_column:
            outputs.append(term.sql)
            settings.append(compiled.settings)
            fields.append(Field(Schema(fields).unused("by"), compiled.type))
        order.append([place, term.descending, term.nulls_first])
    if len(outputs) > len(source.schema):
        computed = {"outputs": outputs, "passes": len(source.schema), **recorded_settings(settings)}
        source = source.then("select", Schema(fields), computed)
    return source, order
