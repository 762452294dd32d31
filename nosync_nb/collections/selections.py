"""Selections: what row expressions make of a definition, and what makes two fit together.

See `Collection` for what users are promised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.host import Types
from nosync_nb.errors import ExpressionError, SchemaError
from nosync_nb.expressions import Expression, compile_expression, expand_select, noted
from nosync_nb.rows import Field, Schema, widens


def compiled(source: Definition, sql: Any, types: Types) -> Expression:
    """An expression over the columns of a definition."""
    if not isinstance(sql, str):
        raise ExpressionError(
            f"{sql!r} is not a Spark SQL string",
            hint="write the expression as text, as in 'dep_delay > 60'",
        )
    return compile_expression(sql, source.schema, types=types, settings=types.settings)


def stable(source: Definition, sql: str, what: str, types: Types) -> Expression:
    """An expression to match or to order by, which must give the same for the same row again.

    Raises:
        ExpressionError: if it may not.
    """
    expression = compiled(source, sql, types)
    if not expression.deterministic:
        raise ExpressionError(
            f"{what}: {sql!r} changes by itself", hint="store its value in a column of an input"
        )
    return expression


def filtered(source: Definition, predicate: Any, types: Types) -> Definition:
    """The rows for which a predicate is true; see `Collection.filter`."""
    condition = compiled(source, predicate, types)
    if condition.type != "boolean":
        raise ExpressionError(
            f"filter {predicate!r} is of type {condition.type}, not boolean",
            hint="compare with something, as in filter('delay > 60')",
        )
    params = {"predicate": predicate, **noted([condition.settings])}
    return source.then("filter", params=params)


def selected(source: Definition, expressions: Sequence[Any], types: Types) -> Definition:
    """Computed columns; see `Collection.select`."""
    outputs: list[Any] = []
    fields: list[Field] = []
    settings = []
    listed = expand_select(texts(expressions, "select"), source.schema)
    if not listed:
        raise SchemaError("select: no column is named", hint="name one, as in select('*')")
    for sql in listed:
        column = compiled(source, sql, types)
        if column.name is None:
            raise ExpressionError(
                f"select: {sql!r} has no name", hint=f"write {sql + ' AS name'!r}"
            )
        outputs.append(column.columns[0] if column.is_column else sql)
        settings.append(column.settings)
        fields.append(Field(column.name, column.type))
    params = {"outputs": outputs, **noted(settings)}
    return source.then("select", unambiguous(fields, "select"), params)


def extended(source: Definition, named: Mapping[str, str], types: Types) -> Definition:
    """The columns with others added or replaced; see `Collection.with_columns`."""
    outputs: list[Any] = list(range(len(source.schema)))
    fields = list(source.schema.fields)
    settings = []
    for name, sql in named.items():
        column = compiled(source, texts([sql], "with_columns")[0], types)
        settings.append(column.settings)
        field = Field(name, column.type)
        place = _place(source.schema, name)
        if place is None:
            outputs.append(sql)
            fields.append(field)
        else:
            outputs[place] = sql
            fields[place] = field
    return source.then("select", Schema(fields), {"outputs": outputs, **noted(settings)})


def dropped(source: Definition, columns: Sequence[str]) -> Definition:
    """The other columns; see `Collection.drop`."""
    gone = {source.schema.index(c) for c in columns}
    rest = [i for i in range(len(source.schema)) if i not in gone]
    if not rest:
        raise SchemaError("drop: no column would be left", hint="keep at least one column")
    return source.columns(rest)


def renamed(source: Definition, names: Mapping[str, str]) -> Definition:
    """The columns under other names; see `Collection.rename`."""
    fields = list(source.schema.fields)
    for old, new in names.items():
        place = source.schema.index(old)
        fields[place] = Field(new, fields[place].type)
    schema = unambiguous(fields, "rename")
    return source.then("select", schema, {"outputs": list(range(len(fields)))})


def aligned(source: Definition, other: Definition, op: str) -> Definition:
    """The other definition with this one's types, or an error that quotes both schemas."""
    mine, theirs = source.schema, other.schema
    if mine.types == theirs.types:
        return other
    if len(mine) != len(theirs) or not all(
        widens(a, b) for a, b in zip(theirs.types, mine.types, strict=True)
    ):
        raise SchemaError(
            f"{op}: the schemas differ: ({mine.ddl}) and ({theirs.ddl})",
            hint="bring both to the same columns with select('...', 'cast(x as ...) AS x')",
        )
    return other.then("widen", mine)


def texts(expressions: Sequence[Any], op: str) -> list[str]:
    """Expressions one by one, of which some may come as lists."""
    flat = [e for x in expressions for e in (x if isinstance(x, list | tuple) else [x])]
    for e in flat:
        if not isinstance(e, str):
            raise ExpressionError(
                f"{op}: {e!r} is not a Spark SQL string",
                hint="write the expression as text, as in 'dep_delay > 60'",
            )
    return flat


def _place(schema: Schema, name: str) -> int | None:
    """The place of a column by Spark's rules, or None."""
    try:
        return schema.index(name)
    except SchemaError:
        return None


def unambiguous(fields: Sequence[Field], op: str) -> Schema:
    """A schema, if no column name occurs twice."""
    seen: set[str] = set()
    for field in fields:
        if field.name.lower() in seen:
            raise SchemaError(
                f"{op}: two columns would be named '{field.name}'",
                hint="rename one of them: rename({'old': 'new'})",
            )
        seen.add(field.name.lower())
    return Schema(fields)
