"""Windows over event time: compositions of the operators of collections.

The result of every function depends only on the current rows of its inputs. A late row is added to
its windows, a retracted row is removed from them, and no window waits for a clock. `retain` drops
windows that are old in comparison with the newest event time. This frees space, and late rows of
such windows are dropped as well.

Examples:
    >>> start = "timestamp '2026-01-01 09:50' + day * interval 5 minutes AS ts"
    >>> found = nosync.windows.tumbling(flights.select(start), on="ts", every="1 hour")
    >>> found.schema.names
    ('ts', 'window_start', 'window_end')
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from nosync_nb.collections.collection import Collection
from nosync_nb.collections.functions.fingerprint import library_identity
from nosync_nb.collections.library.asof import asof_join
from nosync_nb.collections.library.event_time import (
    Length,
    as_times,
    length,
    time_type,
    with_micros,
)
from nosync_nb.collections.session_protocol import definition_of, session_of
from nosync_nb.errors import SchemaError
from nosync_nb.rows import Field, Schema
from nosync_nb.rows.ddl import quoted

__all__ = ["asof_join", "retained", "sessions", "sliding", "tumbling"]

_WINDOWS_MAX = 200
_GRAINS_MAX = 10_000


def tumbling(
    collection: Collection, *, on: str, every: Length, retain: Length | None = None
) -> Collection:
    """Puts each row into one window of fixed length: `tumbling(flights, on="ts", every="1 hour")`.

    Args:
        on: the event time, a `timestamp` or `timestamp_ntz`; rows where it is null are left out.
        every: the length, such as "15 minutes" or a timedelta; windows begin at multiples of it
            since 1970-01-01 00:00, as in Spark.
        retain: drops windows that begin more than this length before the newest window. The length
            is rounded up to whole windows. Late rows of dropped windows are dropped; see
            `retained`.

    Returns:
        the columns, then `window_start` and `window_end` (exclusive); group by them.

    Cost: at most a few microseconds for each changed row.

    Examples:
        >>> start = "timestamp '2026-01-01 09:50' + day * interval 5 minutes AS ts"
        >>> hours = nosync.windows.tumbling(flights.select(start), on="ts", every="1 hour")
        >>> hours.select("hour(window_start) AS hour").group_by("hour").count().rows()
        [Row(hour=9, count=2), Row(hour=10, count=1)]
    """
    definition_of("tumbling", collection)
    step = length(every, "every")
    return _windows(collection, on, step, step, _retained_steps(retain, every))


def sliding(
    collection: Collection,
    *,
    on: str,
    size: Length,
    every: Length,
    retain: Length | None = None,
) -> Collection:
    """Puts each row into all windows of length `size` that hold it; one begins every `every`.

    Args:
        on: the event time, as for `tumbling`.
        size: the length of a window.
        every: the step from the start of a window to the next start.
        retain: as for `tumbling`; it is rounded up to whole steps of `every`.

    Returns:
        one row for each window of an input row: its columns, `window_start` and `window_end`.

    Raises:
        SchemaError: if `every` is longer than `size`, or a row would be in more than 200 windows.

    Cost: in proportion to the changed rows and the number of windows of each.

    Examples:
        >>> start = "timestamp '2026-01-01 09:50' + day * interval 5 minutes AS ts"
        >>> times = flights.select(start)
        >>> hours = nosync.windows.sliding(times, on="ts", size="2 hours", every="1 hour")
        >>> hours.select("hour(window_start) AS hour").group_by("hour").count().rows()
        [Row(hour=8, count=2), Row(hour=9, count=3), Row(hour=10, count=1)]
    """
    definition_of("sliding", collection)
    long, step = length(size, "size"), length(every, "every")
    count = -(-long // step)
    if step > long:
        raise SchemaError(
            f"sliding: every={every!r} is longer than size={size!r}", hint="swap the two"
        )
    if count > _WINDOWS_MAX:
        raise SchemaError(
            f"sliding: each row would be in {count} windows, more than {_WINDOWS_MAX}",
            hint="use a longer step: every=...",
        )
    return _windows(collection, on, long, step, _retained_steps(retain, every))


def _retained_steps(retain: Length | None, every: Length) -> int | None:
    """Returns how many steps before the newest one are retained; None if all are."""
    return None if retain is None else _grains(retain, every)


def _windows(
    collection: Collection, on: str, long: int, step: int, steps: int | None
) -> Collection:
    """Builds the rows with all of their windows.

    Args:
        long: the length of a window in microseconds.
        step: the microseconds from the start of a window to the next start.
        steps: the number of steps before the newest one that are retained; `None` means all.
    """
    type_ = time_type(collection, on)
    time, name = with_micros(collection, on)
    names = _window_names(collection)
    parts = []
    for back in range(-(-long // step)):
        start = f"`{name}` - pmod(`{name}`, {step}L) - {back * step}L"
        part = time
        if (back + 1) * step > long:  # because this window ends within the step
            part = part.filter(f"`{name}` < {start} + {long}L")
        parts.append(part.with_columns({names[0]: start, names[1]: f"{start} + {long}L"}))
    windows = parts[0].concat(*parts[1:]) if len(parts) > 1 else parts[0]
    if steps is not None:
        windows = _newest(windows, names[0], step, steps)
    return as_times(windows.drop(name), names, type_)


def retained(collection: Collection, *, on: str, retain: Length, grain: Length) -> Collection:
    """The rows that are not too old by the newest event time.

    Time is divided into grains of equal length. The newest grain is that of the greatest event time
    in the collection. A row is retained if its grain begins at most `retain` before the newest
    grain, where `retain` is rounded up to whole grains. So the result contains every row that is at
    most `retain` older than the newest one. All rows of a grain enter and leave the result
    together, so no later aggregate sees a part of a grain. Late rows of older grains are dropped.
    If the newest row is retracted, the rows that it had excluded return.

    Args:
        on: the event time, as for `tumbling`.

    Raises:
        SchemaError: if `retain` is more than 10 000 grains.

    Cost: a join for each changed row. When another grain becomes the newest, also `retain / grain`
    numbers, and the rows of the grains that leave the result.

    Examples:
        >>> days = flights.select("timestamp '2026-01-01' + day * interval 1 day AS ts")
        >>> nosync.windows.retained(days, on="ts", retain="1 hour", grain="1 hour").count()
        1
    """
    definition_of("retained", collection)
    grains = _grains(retain, grain)
    time_type(collection, on)
    time, name = with_micros(collection, on)
    return _newest(time, name, length(grain, "grain"), grains).drop(name)


def _grains(retain: Length, grain: Length) -> int:
    """Returns the number of grains before the newest one that are retained."""
    grains = -(-length(retain, "retain") // length(grain, "grain"))
    if grains > _GRAINS_MAX:
        raise SchemaError(
            f"retain={retain!r} is {grains} times {grain!r}, more than {_GRAINS_MAX}",
            hint="retain less, or make the windows (or the grain) longer",
        )
    return grains


def _newest(collection: Collection, micros: str, width: int, grains: int) -> Collection:
    """Builds the rows of the newest grains, by a semi-join with the numbers of these grains.

    The numbers change only when another grain becomes the newest. Then most of them stay the same.

    Args:
        micros: the column of the event time in microseconds.
        width: the length of a grain in microseconds.
        grains: the number of grains before the newest one that are retained.
    """
    number = collection.schema.unused("grain")
    cut = f"(`{micros}` - pmod(`{micros}`, {width}L)) div {width}L"
    numbered = collection.with_columns({number: cut})
    newest = numbered.agg(newest=f"max(`{number}`)").filter("newest is not null")
    kept = newest.flat_map(BackFrom(grains), "number bigint")
    return numbered.join(kept, on={number: "number"}, how="semi").drop(number)


def sessions(
    collection: Collection, *, on: str, gap: Length, keys: str | Sequence[str] = ()
) -> Collection:
    """Puts each row into the session of its key: rows with no more than `gap` from one to the next.

    Args:
        on: the event time, as for `tumbling`.
        gap: the longest time between two successive rows of a session.
        keys: key columns; each combination of their values has separate sessions.

    Returns:
        the columns, then `window_start`, the first event of the session, and `window_end`, its last
            event plus `gap`.

    Cost: in proportion to the rows of the sessions that contain a changed row or are next to one;
    other sessions of its key are not read.

    Examples:
        >>> start = "timestamp '2026-01-01' + day * interval 1 hour AS ts"
        >>> times = flights.select("carrier", start)
        >>> found = nosync.windows.sessions(times, on="ts", gap="90 minutes", keys="carrier")
        >>> found.group_by("carrier", "window_start").count().select("carrier", "count").rows()
        [Row(carrier='AA', count=2), Row(carrier='UA', count=1)]
    """
    definition_of("sessions", collection)
    type_ = time_type(collection, on)
    names = _window_names(collection)
    schema = collection.schema
    places = [schema.index(k) for k in ([keys] if isinstance(keys, str) else keys)]
    at = schema.index(on)
    if at in places:
        raise SchemaError(
            f"sessions: the event time '{on}' cannot be a key as well", hint="leave it out of keys="
        )
    collection.group_by(*(schema.names[i] for i in places))  # refuses columns that cannot be keys
    output = Schema([*schema.fields, *(Field(name, type_) for name in names)])
    there = collection.filter(f"{quoted(schema.names[at])} is not null")
    params = {"keys": places, "at": at, "gap": length(gap, "gap")}
    definition = definition_of("sessions", there).then("sessions", output, params)
    return Collection(session_of(collection), definition)


# -- functions of rows -------------------------------------------------------------------------


@library_identity("back_from/1")
@dataclass(frozen=True)
class BackFrom:
    """Returns the number of a grain, and the numbers of the `grains` grains before it."""

    grains: int

    def __call__(self, row: Any) -> list[tuple[int]]:
        return [(row[0] - i,) for i in range(self.grains + 1)]


def _window_names(collection: Collection) -> tuple[str, str]:
    """Returns the names of the new columns; raises SchemaError if a name is used already."""
    for name in ("window_start", "window_end"):
        if any(n.lower() == name for n in collection.schema.names):
            raise SchemaError(
                f"the column '{name}' exists already", hint="rename it first: rename({...})"
            )
    return "window_start", "window_end"


def __getattr__(name: str) -> NoReturn:
    module = sys.modules[__name__]
    raise AttributeError(
        f"module 'nosync.windows' has no attribute {name!r}", name=name, obj=module
    )
