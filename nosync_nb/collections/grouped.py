"""Grouped collections, and the schemas of what Python functions return."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nosync_nb.errors import ExpressionError, SchemaError, StageError
from nosync_nb.expressions import compile_aggregates, noted, parse_order
from nosync_nb.rows import Field, Schema, infer_schema

if TYPE_CHECKING:
    from nosync_nb.collections.collection import Collection

_PYTHON = {bool: "boolean", int: "bigint", float: "double", str: "string", bytes: "binary"}
_SAMPLE_ROWS = 100


class Grouped:
    """A collection grouped by columns; ends in `.agg`, `.count`, `.reduce`, `.top` or `.rank`."""

    def __init__(self, collection: Collection, keys: list[int]) -> None:
        for name, type_ in (collection.schema.fields[i] for i in keys):
            if "map<" in type_:
                raise SchemaError(f"group_by: a map ('{name}') cannot be a key")
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
            types=source._host.types,
            settings=source._host.types.settings,
        )
        fields = [schema.fields[i] for i in self._keys]
        fields += [Field(n, e.type) for n, e in zip(named, found.outputs, strict=True)]
        if len({f.name.lower() for f in fields}) < len(fields):
            raise SchemaError("agg: a result has the name of a key", hint="name it differently")
        params = {"keys": self._keys, "named": dict(named), **noted(found.settings)}
        return source._then("aggregate", Schema(fields), params)

    def count(self) -> Collection:
        """The number of rows of each group, as column `count`."""
        return self.agg(count="count(*)")

    def reduce(self, function: Callable[[Any, list[Any]], Any], schema: str | Schema) -> Collection:
        """Calls `function(key, rows)` for each group; it yields tuples of `schema`.

        Args:
            function: gets the key (a value, or a named tuple of several) and the group's rows as
                named tuples in canonical order, copies repeated. Deterministic. A row whose count
                is negative (removed before it was inserted) is not among them until it is above 0;
                a group without rows is not asked for.
            schema: Spark DDL of what it yields; the output has the keys before it.
        """
        source = self._collection
        check_callable("reduce", function, "reduce(lambda key, rows: [(len(rows),)], 'n int')")
        if not isinstance(schema, str | Schema):
            raise SchemaError(
                f"reduce: schema={schema!r} does not say the columns of the function's rows",
                hint="write them as Spark DDL: reduce(f, 'first string, n bigint')",
            )
        output = Schema.parse(schema) if isinstance(schema, str) else schema
        fields = [*(source.schema.fields[i] for i in self._keys), *output.fields]
        if len({f.name.lower() for f in fields}) < len(fields):
            raise SchemaError("reduce: a result has the name of a key", hint="name it differently")
        return source._then("reduce", Schema(fields), {"keys": self._keys}, (function,))

    def top(self, k: int, by: str | None = None, offset: int = 0) -> Collection:
        """The first `k` rows of each group, copies counted, after the first `offset`.

        Args:
            by: `"x desc, y nulls last"`, columns or Spark SQL expressions; nulls come first, and
                last if descending, unless said otherwise. Ties are broken by the whole row in
                canonical order, which is also what `by=None` orders by.

        Returns:
            the columns as they are; without keys of the group, the first rows of all.

        Cost: O(k + offset) rows for each group that changes, however large it is, and the rows
        that share the first 64 bits of the order with the last of them (a bigint, a timestamp, the
        first 8 bytes of a text).
        """
        return self._top("top", k, by, offset, None)

    def rank(self, by: str, k: int, name: str = "rank", offset: int = 0) -> Collection:
        """The rows of `top(k, by, offset)` with their rank, as Spark's `rank()`: ties share it.

        Returns:
            the columns, and the rank from 1 as column `name`.
        """
        return self._top("rank", k, by, offset, name)

    def _top(self, what: str, k: int, by: str | None, offset: int, name: str | None) -> Collection:
        source = self._collection
        _check_limits(what, k, offset)
        width = len(source.schema)
        outputs: list[Any] = list(range(width))
        fields = list(source.schema.fields)
        order: list[list[Any]] = []
        settings = []
        for term in parse_order(by) if by is not None else ():
            compiled = stable(source, term.sql, what)
            if "map<" in compiled.type:
                raise SchemaError(f"{what}: a map ({term.sql!r}) cannot be ordered by")
            place = compiled.columns[0] if compiled.is_column else len(outputs)
            if not compiled.is_column:
                outputs.append(term.sql)
                settings.append(compiled.settings)
                fields.append(Field(unused_name(fields, "by"), compiled.type))
            order.append([place, term.descending, term.nulls_first])
        given = source
        if len(outputs) > width:
            given = source._then("select", Schema(fields), {"outputs": outputs, **noted(settings)})
        coded = Schema([*fields, Field(unused_name(fields, "order"), "bigint")])
        given = given._then("order", coded, {"by": order})
        result = list(source.schema.fields)
        if name is not None:
            if any(f.name.lower() == name.lower() for f in result):
                raise SchemaError(
                    f"rank: there is a column '{name}' already", hint="say name='another'"
                )
            result.append(Field(name, "int"))
        params = {"keys": self._keys, "by": order, "width": width, "k": k, "offset": offset}
        return given._then("top", Schema(result), {**params, "rank": name is not None})


def _check_limits(what: str, k: int, offset: int) -> None:
    """Refuses numbers of rows that are none."""
    for name, given, least in (("k", k, 1), ("offset", offset, 0)):
        if isinstance(given, bool) or not isinstance(given, int) or given < least:
            raise SchemaError(
                f"{what}: {name}={given!r} is not an integer of {least} or more",
                hint=f"write .{what}(3, by='x desc')",
            )
    if k + offset >= 2**31:
        raise SchemaError(f"{what}: k + offset is {k + offset}; the most is {2**31 - 1}")


def stable(source: Collection, sql: str, what: str) -> Any:
    """An expression to match or to order by, which must give the same for the same row again.

    Raises:
        ExpressionError: if it may not.
    """
    compiled = source._compiled(sql)
    if not compiled.deterministic:
        raise ExpressionError(
            f"{what}: {sql!r} changes by itself", hint="store its value in a column of an input"
        )
    return compiled


def check_callable(what: str, function: Any, example: str) -> None:
    """Refuses what is no function.

    Raises:
        StageError: names the operator and the value.
    """
    if not callable(function):
        raise StageError(f"{what}: {function!r} is no function", hint=f"write {example}")


def unused_name(fields: list[Field], name: str) -> str:
    """A name that no column has."""
    while any(f.name.lower() == name for f in fields):
        name += "_"
    return name


def result_schema(
    source: Collection, function: Callable[[Any], Any], schema: str | Schema | None, *, many: bool
) -> Schema:
    """The schema of a function's rows: given, annotated, or seen on existing rows.

    Raises:
        SchemaError: if none of these tells it.
    """
    what = "flat_map" if many else "map"
    check_callable(what, function, f"{what}(lambda row: ..., 'name string, n bigint')")
    if schema is not None:
        given = schema if isinstance(schema, Schema) else Schema.parse(schema)
        return given.usable(what)
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
    return infer_schema(made).usable(what)


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
