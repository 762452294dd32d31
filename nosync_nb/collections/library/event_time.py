"""Parses lengths of time, and converts columns of event time to microseconds and back.

Windows are computed on bigints of microseconds, so their starts and ends need integer arithmetic
only. For `timestamp` both conversions are SQL expressions, and also for `timestamp_ntz` in UTC. In
another time zone, `timestamp_ntz` is converted by a Python function for each row, because every
such expression of Spark SQL depends on the zone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from nosync_nb.collections.collection import Collection
from nosync_nb.collections.functions.fingerprint import library_identity
from nosync_nb.collections.session_protocol import session_of
from nosync_nb.errors import SchemaError
from nosync_nb.rows import Field, Schema
from nosync_nb.rows.ddl import quoted

Length = str | timedelta
"""A fixed length of time: "1 hour 30 minutes", or a timedelta."""

TIMES = ("timestamp", "timestamp_ntz")
_MICROS = timedelta(microseconds=1)
_UNITS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}


def length(given: Any, what: str) -> int:
    """Returns a fixed length of time in microseconds.

    Args:
        given: a text such as "1 hour 30 minutes", or a timedelta.
        what: the name of the argument, for the error.

    Raises:
        SchemaError: if the value is not a length of time, or is not above 0.
    """
    total = None
    if isinstance(given, timedelta):
        total = given // _MICROS
    elif isinstance(given, str):
        words = given.lower().removeprefix("interval ").split()
        numbers, units = words[::2], [_UNITS.get(w.removesuffix("s")) for w in words[1::2]]
        whole = len(numbers) == len(units) and all(re.fullmatch("[0-9]+", n) for n in numbers)
        if words and whole and None not in units:
            total = sum(int(n) * (u or 0) for n, u in zip(numbers, units, strict=True))
    if total is None or total <= 0:
        raise SchemaError(
            f"{what}={given!r} is not a fixed length of time",
            hint="write '15 minutes', '1 hour 30 minutes', '7 days', or a timedelta",
        )
    return total


def time_type(collection: Collection, on: str) -> str:
    """Returns the type of the event time; raises SchemaError if it is not a timestamp."""
    type_ = collection.schema.select([on]).types[0]
    if type_ not in TIMES:
        raise SchemaError(
            f"the event time '{on}' is {type_}, neither timestamp nor timestamp_ntz",
            hint=f"cast it: with_columns({on}='cast({on} as timestamp)')",
        )
    return type_


def with_micros(collection: Collection, on: str) -> tuple[Collection, str]:
    """Drops rows without an event time, and adds a column with its microseconds.

    Returns: the collection, and the name of the new column.
    """
    schema = collection.schema
    name = schema.unused("micros")
    time = quoted(schema.names[schema.index(on)])
    there = collection.filter(f"{time} is not null")
    if time_type(collection, on) == "timestamp":
        return there.with_columns({name: f"unix_micros({time})"}), name
    if _utc(collection):
        return there.with_columns({name: f"unix_micros(cast({time} as timestamp))"}), name
    wide = Schema([*schema.fields, Field(name, "bigint")])
    return there.map(ToMicros(schema.index(on)), wide), name


def as_times(collection: Collection, names: Sequence[str], type_: str) -> Collection:
    """Converts columns of microseconds to times of a type."""
    if type_ == "timestamp":
        return collection.with_columns({n: f"timestamp_micros(`{n}`)" for n in names})
    if _utc(collection):
        text = "cast(timestamp_micros(`{}`) as timestamp_ntz)"
        return collection.with_columns({n: text.format(n) for n in names})
    places = tuple(collection.schema.index(n) for n in names)
    fields = list(collection.schema.fields)
    for i in places:
        fields[i] = Field(fields[i].name, type_)
    return collection.map(FromMicros(places), Schema(fields))


@library_identity("to_micros/1")
@dataclass(frozen=True)
class ToMicros:
    """Adds the microseconds of the time at a position of a row as its last value."""

    place: int

    def __call__(self, row: Any) -> Any:
        since = row[self.place].replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
        return (*row, since // timedelta(microseconds=1))


@library_identity("from_micros/1")
@dataclass(frozen=True)
class FromMicros:
    """Converts the microseconds at some positions of a row to times without a zone."""

    places: tuple[int, ...]

    def __call__(self, row: Any) -> Any:
        values = list(row)
        for i in self.places:
            values[i] = datetime(1970, 1, 1) + timedelta(microseconds=row[i])
        return tuple(values)


def _utc(collection: Collection) -> bool:
    """Returns True if the session's time zone is UTC."""
    return session_of(collection).types.in_utc()
