"""As-of joins: match each row with the latest row of another collection at its time.

This module converts the right side to the columns (keys, time, others), without nulls in keys and
time. The operator that finds the matches is in `operators/asof_join.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nosync_nb.collections.collection import Collection
from nosync_nb.collections.definition import Definition
from nosync_nb.collections.library.event_time import TIMES, Length, length
from nosync_nb.collections.row_expressions import filter_definition
from nosync_nb.collections.session_protocol import SparkTypeResolver, definition_of, session_of
from nosync_nb.errors import SchemaError
from nosync_nb.rows import Field, Schema
from nosync_nb.rows.ddl import quoted

_DAY = 86_400_000_000  # microseconds


def asof_join(
    left: Collection,
    right: Collection,
    *,
    on: str | Sequence[str] | Mapping[str, str] = (),
    time: str | Mapping[str, str],
    tolerance: Length | int | None = None,
) -> Collection:
    """Joins each left row with the latest right row of its keys at or before its time.

    Args:
        on: key columns, or a dict left -> right; by default all rows are one group. Null keys match
            nothing.
        time: the time column of both sides, or a dict left -> right: timestamps, dates or integers.
        tolerance: the maximum age of the matching right row, inclusive: "5 minutes", or an integer
            if times are integers.

    Returns:
        the left columns, then the right columns without keys; nulls if there is no matching row.
            The right time is omitted if it has the same name as the left one. If several right rows
            have the latest time, the last of them in canonical order is taken. Duplicates on the
            right do not multiply rows.

    Raises:
        SchemaError: if keys or times differ in type, or column names clash.

    Cost: O(layers) rows for each changed row, and the left rows whose match may change. These are
    the rows from the time of a changed right row up to that of the next one, or within the
    tolerance.

    Examples:
        >>> fares = flights.select("carrier", "date'2026-01-01' + day AS ts", "delay AS fare")
        >>> sales = airlines.select("carrier", "date'2026-01-03' AS ts")
        >>> found = nosync.windows.asof_join(sales, fares, on="carrier", time="ts")
        >>> found.select("carrier", "fare").rows()
        [Row(carrier='AA', fare=5.0), Row(carrier='UA', fare=20.0)]
    """
    source = definition_of("asof_join", left)
    other = definition_of("asof_join", right, session_of(left))
    pairs = _pairs("on", on)
    times = _pairs("time", time)
    if len(times) != 1:
        raise SchemaError(
            f"asof_join: time={time!r} is not one column", hint="write time='ts' or {'ts': 'at'}"
        )
    mine, theirs = times[0]
    for a, b in (*pairs, *times):
        types = left.schema.select([a]).types[0], right.schema.select([b]).types[0]
        if types[0] != types[1]:
            raise SchemaError(
                f"asof_join: '{a}' is {types[0]} on the left and '{b}' is {types[1]} on the right",
                hint="cast one of them with with_columns",
            )
    width = _tolerance(tolerance, left.schema.select([mine]).types[0], mine)
    l_keys = [left.schema.index(a) for a, _ in pairs]
    r_keys = [right.schema.index(b) for _, b in pairs]
    at, r_at = left.schema.index(mine), right.schema.index(theirs)
    gone = {*r_keys, r_at} if mine.lower() == theirs.lower() else set(r_keys)
    rest = [i for i in range(len(right.schema)) if i not in gone]
    others = [i for i in rest if i != r_at]
    order = [*r_keys, r_at, *others]
    places = [order.index(i, len(r_keys)) for i in rest]
    fields = [*left.schema.fields, *_right_fields(left, right, rest)]
    params = {"left": l_keys, "at": at, "further": places, "tolerance": width}
    arranged = _arranged(other, order, len(pairs), session_of(left).types)
    definition = Definition("asof", Schema(fields), (source, arranged), params)
    return Collection(session_of(left), definition)


def _arranged(
    right: Definition, order: Sequence[int], keys: int, types: SparkTypeResolver
) -> Definition:
    """Converts the right side to the form for the operator.

    Args:
        order: the positions of its columns: keys, time, others.
        keys: the number of keys.
    """
    names = [quoted(right.schema.names[i]) for i in order[: keys + 1]]
    there = filter_definition(right, " and ".join(f"{name} is not null" for name in names), types)
    schema = Schema([Field(f"c{n}", right.schema.types[i]) for n, i in enumerate(order)])
    return there.then("select", schema, {"outputs": [*order]})


def _tolerance(given: Any, type_: str, name: str) -> int | None:
    """Returns the maximum distance of two times in the unit of their type, or None."""
    whole = type_.endswith("int")
    if type_ not in (*TIMES, "date") and not whole:
        raise SchemaError(
            f"asof_join: the time '{name}' is {type_}",
            hint="it must be a timestamp, a date or an integer",
        )
    if given is None:
        return None
    if not whole:
        micros = length(given, "tolerance")
        return micros // _DAY if type_ == "date" else micros
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise SchemaError(
            f"tolerance={given!r}: the time '{name}' is {type_}", hint="pass an integer"
        )
    return given


def _pairs(what: str, on: Any) -> list[tuple[str, str]]:
    """Returns the columns of an argument as pairs of a left and a right column."""
    if isinstance(on, str):
        return [(on, on)]
    columns: Any = on if isinstance(on, Iterable) else [on]
    pairs = [*columns.items()] if isinstance(columns, Mapping) else [(c, c) for c in columns]
    if not all(isinstance(name, str) for pair in pairs for name in pair):
        raise SchemaError(
            f"asof_join: {what}={on!r} does not name columns",
            hint=f"write {what}='name', or a dict left -> right: {what}={{'a': 'b'}}",
        )
    return pairs


def _right_fields(left: Collection, right: Collection, rest: Sequence[int]) -> list[Field]:
    """Returns the fields of the right columns in the result.

    Raises:
        SchemaError: if a left column has the same name.
    """
    taken = {n.lower() for n in left.schema.names}
    for i in rest:
        name = right.schema.names[i]
        if name.lower() in taken:
            raise SchemaError(
                f"asof_join: both sides have a column '{name}'",
                hint=f"rename one of them first: other.rename({{'{name}': 'other_{name}'}})",
            )
    return [right.schema.fields[i] for i in rest]
