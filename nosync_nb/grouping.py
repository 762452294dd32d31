"""Grouped collections, and the schemas of what Python functions return."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nosync_nb.errors import ExpressionError, SchemaError
from nosync_nb.expressions import compile_aggregates
from nosync_nb.rows import Field, Schema, infer_schema

if TYPE_CHECKING:
    from nosync_nb.collection import Collection

_PYTHON = {bool: "boolean", int: "bigint", float: "double", str: "string", bytes: "binary"}
_SAMPLE_ROWS = 100


class Grouped:
    """A collection grouped by columns; ends in `.agg`, `.count` or `.reduce`."""

    def __init__(self, collection: Collection, keys: list[int]) -> None:
        self._collection = collection
        self._keys = keys

    def agg(self, **named: str) -> Collection:
        """SQL aggregates: `agg(n="count(*)", late="avg(dep_delay)")`.

        Known are count, count_if, sum, avg, min, max, stddev, variance (`_samp`, `_pop`), min_by,
        max_by, bool_and, bool_or, bit_and, bit_or, bit_xor, collect_list and collect_set, with
        their synonyms in Spark; also of `distinct` values and with `filter (where ...)`. What
        Spark leaves open is fixed: lists are sorted, and of equal orders min_by takes the least
        value and max_by the greatest.

        Returns:
            the keys, then one column for each name. Values may be expressions over aggregates.

        Raises:
            ExpressionError: for an aggregate that is not known, or one over a type it does not
                take; at a commit if a sum or average leaves the range of its type.

        Cost: O(log rows) for each change, also in a group of a million. Lists cost their group,
            and min, max, min_by and max_by of values that begin alike (text of the same 8 bytes,
            equal orders) a look at their group when the extreme value itself is removed.
        """
        source = self._collection
        if not named:
            raise ExpressionError("agg: nothing to compute", hint="write agg(n='count(*)')")
        for name, sql in named.items():
            if not isinstance(sql, str):
                raise ExpressionError(
                    f"agg: {name}={sql!r} is not a Spark SQL string", hint="write n='count(*)'"
                )
        schema = source.schema
        keys = [schema.names[i] for i in self._keys]
        found = compile_aggregates(
            named,
            schema,
            keys,
            types=source._session._types,
            time_zone=source._session._types.time_zone,
        )
        fields = [schema.fields[i] for i in self._keys]
        fields += [Field(n, e.type) for n, e in zip(named, found.outputs, strict=True)]
        if len({f.name.lower() for f in fields}) < len(fields):
            raise SchemaError("agg: a result has the name of a key", hint="name it differently")
        params = {"keys": self._keys, "named": dict(named)}
        return source._then("aggregate", Schema(fields), params)

    def count(self) -> Collection:
        """The number of rows of each group, as column `count`."""
        return self.agg(count="count(*)")

    def reduce(self, function: Callable[[Any, list[Any]], Any], schema: str | Schema) -> Collection:
        """Calls `function(key, rows)` for each group; it yields tuples of `schema`.

        Args:
            function: gets the key (a value, or a named tuple of several) and the group's rows as
                named tuples in canonical order, copies repeated. Deterministic.
            schema: Spark DDL of what it yields; the output has the keys before it.
        """
        source = self._collection
        output = Schema.parse(schema) if isinstance(schema, str) else schema
        fields = [*(source.schema.fields[i] for i in self._keys), *output.fields]
        if len({f.name.lower() for f in fields}) < len(fields):
            raise SchemaError("reduce: a result has the name of a key", hint="name it differently")
        return source._then("reduce", Schema(fields), {"keys": self._keys}, (function,))


def result_schema(
    source: Collection, function: Callable[[Any], Any], schema: str | Schema | None, *, many: bool
) -> Schema:
    """The schema of a function's rows: given, annotated, or seen on existing rows.

    Raises:
        SchemaError: if none of these tells it.
    """
    if isinstance(schema, Schema):
        return schema
    if schema is not None:
        return Schema.parse(schema)
    annotated = _annotated(function)
    if annotated is not None:
        return annotated
    name = getattr(function, "__name__", "function")
    sample = source._sample(_SAMPLE_ROWS)
    made: list[Any] = []
    for row in sample:
        value = function(row)
        made += list(value) if many else [value]
    if not made:
        raise SchemaError(
            f"the columns that {name}() returns are not known: there are no rows to try it on",
            hint="say them: map(f, 'name string, n bigint')",
        )
    if any(isinstance(m, tuple) and not hasattr(m, "_fields") for m in made):
        raise SchemaError(
            f"the columns that {name}() returns have no names",
            hint="say them: map(f, 'name string, n bigint'), or return named tuples or dicts",
        )
    return infer_schema(made)


def _annotated(function: Callable[..., Any]) -> Schema | None:
    """The schema of a return annotation that is a NamedTuple class (or an iterable of it)."""
    try:
        hint = typing.get_type_hints(function).get("return")
    except Exception:
        return None
    arguments = typing.get_args(hint)
    made = arguments[0] if arguments else hint
    fields = getattr(made, "__annotations__", None)
    if not (isinstance(made, type) and issubclass(made, tuple) and fields):
        return None
    types = typing.get_type_hints(made)
    if not all(t in _PYTHON for t in types.values()):
        return None
    return Schema([Field(n, _PYTHON[t]) for n, t in types.items()])
