"""Builds definitions of aggregates, functions of groups, and first rows of groups.

Keys are places of columns. `Grouped` documents the behaviour for users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.expression_compiler import ordered_by
from nosync_nb.collections.functions.result_schema import check_callable
from nosync_nb.collections.row_expressions import as_entries
from nosync_nb.collections.session_protocol import SparkTypeResolver
from nosync_nb.errors import ExpressionError, SchemaError
from nosync_nb.expressions import compile_aggregates, recorded_settings, refuse_windows
from nosync_nb.rows import Field, Schema


def check_keys(schema: Schema, keys: list[int]) -> list[int]:
    """Refuses columns that cannot be keys."""
    for name, type_ in (schema.fields[i] for i in keys):
        if "map<" in type_:
            raise SchemaError(
                f"group_by: '{name}' is a map, and maps cannot be keys",
                hint=f"group by its entries: group_by({as_entries(name, type_) + ' AS entries'!r})",
            )
    return keys


def aggregate_definition(
    source: Definition, keys: list[int], named: Mapping[str, str], types: SparkTypeResolver
) -> Definition:
    """The keys, then a column for each aggregate; see `Grouped.agg`."""
    if not named:
        raise ExpressionError("agg: nothing to compute", hint="write agg(n='count(*)')")
    for name, sql in named.items():
        if not isinstance(sql, str):
            raise ExpressionError(
                f"agg: {name}={sql!r} is not a Spark SQL string", hint="write n='count(*)'"
            )
        refuse_windows(sql, "agg")
    schema = source.schema
    names = [schema.names[i] for i in keys]
    aggregation = compile_aggregates(
        named,
        schema,
        names,
        types=types,
        settings=types.settings,
        functions=types.registered,
    )
    fields = [schema.fields[i] for i in keys]
    fields += [Field(n, e.type) for n, e in zip(named, aggregation.outputs, strict=True)]
    if len({f.name.lower() for f in fields}) < len(fields):
        raise SchemaError("agg: a result and a key have the same name", hint="rename the result")
    params = {"keys": keys, "named": dict(named), **recorded_settings(aggregation.settings)}
    return source.then("aggregate", Schema(fields), params)


def reduce_definition(
    source: Definition,
    keys: list[int],
    function: Callable[[Any, list[Any]], Any],
    schema: str | Schema,
) -> Definition:
    """The rows that a function yields for each group; see `Grouped.reduce`."""
    check_callable("reduce", function, "reduce(lambda key, rows: [(len(rows),)], 'n int')")
    if not isinstance(schema, str | Schema):
        raise SchemaError(
            f"reduce: schema={schema!r} does not declare the columns of the function's rows",
            hint="write them as Spark DDL: reduce(f, 'first string, n bigint')",
        )
    output = Schema.parse(schema) if isinstance(schema, str) else schema
    fields = [*(source.schema.fields[i] for i in keys), *output.fields]
    if len({f.name.lower() for f in fields}) < len(fields):
        raise SchemaError("reduce: a result and a key have the same name", hint="rename the result")
    return source.then("reduce", Schema(fields), {"keys": keys}, (function,))


def first_rows_definition(
    source: Definition,
    keys: list[int],
    k: int,
    by: str | None,
    offset: int,
    types: SparkTypeResolver,
    *,
    rank: str | None = None,
) -> Definition:
    """The first rows of each group, with their rank in a column; see `Grouped.top` and `rank`."""
    what = "top" if rank is None else "rank"
    _check_limits(what, k, offset)
    width = len(source.schema)
    source, order = ordered_by(source, by, what, types)
    fields = list(source.schema.fields)
    coded = Schema([*fields, Field(source.schema.unused("order"), "bigint")])
    result = fields[:width]
    if rank is not None:
        if any(f.name.lower() == rank.lower() for f in result):
            raise SchemaError(
                f"rank: the column '{rank}' exists already", hint="say name='another'"
            )
        result.append(Field(rank, "int"))
    params = {"keys": keys, "by": order, "width": width, "k": k, "offset": offset}
    params["rank"] = rank is not None
    return source.then("order", coded, {"by": order}).then("top", Schema(result), params)


def _check_limits(what: str, k: int, offset: int) -> None:
    """Refuses values of `k` and `offset` that are not valid numbers of rows."""
    for name, number, least in (("k", k, 1), ("offset", offset, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise SchemaError(
                f"{what}: {name}={number!r} is not an integer of {least} or more",
                hint=f"write .{what}(3, by='x desc')",
            )
    if k + offset >= 2**31:
        raise SchemaError(f"{what}: k + offset is {k + offset}, more than {2**31 - 1}")
