"""As-of joins: each row with the latest one of another collection at its time.

The right side is converted to the columns (keys, time, others), without nulls in keys and time. The
operator does the rest (operators/asof_join.py).
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
        on: key columns, or a dict left -> right; none: one group. Null keys match nothing.
        time: the column of time in both, or a dict left -> right: timestamps, dates or integers.
        tolerance: the greatest age of the right row, the bound included: "5 minutes", or a number
            where time is one.

    Returns:
        the left columns, then the right ones without keys (and without its time, if that has the
            name of the left one), null where there is no such row. Of several right rows at the
            same time the last in canonical order counts; copies on the right do not multiply.

    Raises:
        SchemaError: if keys or times differ in type, or columns clash.

    Cost: O(layers) rows for each changed row, and the left rows whose match may change: those from
    a changed right row up to the next one, or within the tolerance.

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
    """The right side as the operator needs it: columns in order, keys and time not null."""
    names = [quoted(right.schema.names[i]) for i in order[: keys + 1]]
    there = filter_definition(right, " and ".join(f"{name} is not null" for name in names), types)
    schema = Schema([Field(f"c{n}", right.schema.types[i]) for n, i in enumerate(order)])
    return there.then("select", schema, {"outputs": [*order]})


def _tolerance(given: Any, type_: str, name: str) -> int | None:
    """The greatest distance of two times, in the units of their type."""
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
    """Columns of both sides, pairwise."""
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
    """The right columns that follow the left ones.

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
