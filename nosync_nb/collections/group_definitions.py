"""Builds definitions of aggregates, of functions of groups, and of the first rows of groups.

They take keys as column positions. `Grouped` documents the behaviour for users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.row_expressions import ordered_by
from nosync_nb.collections.session_protocol import SparkTypeResolver
from nosync_nb.errors import ExpressionError, SchemaError
from nosync_nb.expressions import compile_aggregates, recorded_settings, refuse_windows
from nosync_nb.operators.user_functions import check_callable
from nosync_nb.rows import Field, Schema


def aggregate_definition(
    source: Definition, keys: list[int], named: Mapping[str, str], types: SparkTypeResolver
) -> Definition:
    """Builds an aggregation: the keys, then a column for each aggregate; see `Grouped.agg`."""
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
    """Builds a function of groups; see `Grouped.reduce`."""
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
    ties: bool = False,
) -> Definition:
    """Builds the first rows of each group, with their rank if `rank` names a column for it.

    Args:
        ties: True to select all rows with a rank of at most `k`.

    See `Grouped.top` and `Grouped.rank`.
    """
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
                f"rank: the column '{rank}' exists already", hint="pass name='another'"
            )
        result.append(Field(rank, "int"))
    params = {"keys": keys, "by": order, "width": width, "k": k, "offset": offset}
    params["rank"] = rank is not None
    if ties:
        params["ties"] = True
    return source.then("order", coded, {"by": order}).then("top", Schema(result), params)


def _check_limits(what: str, k: int, offset: int) -> None:
    """Raises SchemaError if `k` is not an integer above 0, or `offset` is not one of at least 0.

    Their sum must be below 2**31.
    """
    for name, number, least in (("k", k, 1), ("offset", offset, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise SchemaError(
                f"{what}: {name}={number!r} is not an integer of {least} or more",
                hint=f"write .{what}(3, by='x desc')",
            )
    if k + offset >= 2**31:
        raise SchemaError(
            f"{what}: k + offset is {k + offset}, more than {2**31 - 1}", hint="use smaller numbers"
        )
