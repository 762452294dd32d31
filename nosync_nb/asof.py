"""As-of joins: each row with the latest one of another collection at its time.

Both sides go into one collection, tagged, and a `reduce` walks the rows of each key in time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from nosync_nb.collection import Collection
from nosync_nb.errors import SchemaError, StageError
from nosync_nb.eventtime import TIMES, Length, check_collection, length, quoted, unused
from nosync_nb.rows import Field, Schema


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
        tolerance: how old the right row may be at most, the bound included: "5 minutes", or a
            number where time is one.

    Returns:
        the left columns, then the right ones without keys (and without its time, if that has the
        name of the left one), null where there is no such row. Of several right rows at the same
        time the last in canonical order counts; copies on the right do not multiply.

    Raises:
        SchemaError: if keys or times differ in type, or columns clash.

    Cost: all rows of a key, of both sides, are read again whenever one changes (a `reduce`).
    """
    _check_sides(left, right)
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
    both, marked = _union(left, right, [*zip(l_keys, r_keys, strict=True), (at, r_at)], rest)
    own = [i for i in range(len(left.schema)) if i not in l_keys]
    further = range(marked + 1, len(both.schema))
    made = Schema([both.schema.fields[i] for i in (*own, *further)])
    function = _latest(len(l_keys), at, marked, own, list(further), width)
    found = both.group_by(*(left.schema.names[i] for i in l_keys)).reduce(function, made)
    names = (*left.schema.names, *(both.schema.names[i] for i in further))
    return found.select(*(quoted(found.schema, n) for n in names))


def _check_sides(left: Any, right: Any) -> None:
    """Refuses what are no two collections of one session."""
    check_collection("asof_join", left)
    check_collection("asof_join", right)
    if right._session is not left._session:
        raise StageError(
            "asof_join: the other collection belongs to another session",
            hint="insert its rows into an input of this session",
        )


def _latest(
    keys: int,
    at: int,
    marked: int,
    own: list[int],
    further: list[int],
    tolerance: int | timedelta | None,
) -> Callable[[Any, list[Any]], Iterator[Any]]:
    def latest(key: Any, rows: list[Any]) -> Iterator[Any]:
        parts = (key,) if keys == 1 else key
        nothing = (None,) * len(further)
        right = [row for row in rows if row[marked] and row[at] is not None]
        if None in parts:
            right = []
        right.sort(key=lambda row: row[at])
        times = [row[at] for row in right]
        for row in rows:
            if row[marked]:
                continue
            found = nothing
            place = bisect_right(times, row[at]) - 1 if row[at] is not None else -1
            if place >= 0 and (tolerance is None or row[at] - times[place] <= tolerance):
                found = tuple(right[place][i] for i in further)
            yield (*(row[i] for i in own), *found)

    return latest


def _tolerance(given: Any, type_: str, name: str) -> int | timedelta | None:
    """How far a time may be from another of its type."""
    whole = type_.endswith("int")
    if type_ not in (*TIMES, "date") and not whole:
        raise SchemaError(
            f"asof_join: the time '{name}' is {type_}",
            hint="it must be a timestamp, a date or an integer",
        )
    if given is None:
        return None
    if not whole:
        return timedelta(microseconds=length(given, "tolerance"))
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise SchemaError(
            f"tolerance={given!r}: the time '{name}' is {type_}", hint="give an integer"
        )
    return given


def _pairs(what: str, on: Any) -> list[tuple[str, str]]:
    """Columns of both sides, pairwise."""
    if isinstance(on, str):
        return [(on, on)]
    given: Any = on if isinstance(on, Iterable) else [on]
    found = [*given.items()] if isinstance(given, Mapping) else [(c, c) for c in given]
    if not all(isinstance(name, str) for pair in found for name in pair):
        raise SchemaError(
            f"asof_join: {what}={on!r} does not name columns",
            hint=f"write {what}='name', or a dict left -> right: {what}={{'a': 'b'}}",
        )
    return found


def _union(
    left: Collection, right: Collection, same: Sequence[tuple[int, int]], rest: Sequence[int]
) -> tuple[Collection, int]:
    """Both sides in one: the left columns, whether it is a right row, the other right columns.

    Args:
        same: positions of columns that both sides have.
        rest: positions of the right columns that only the right side has.
    """
    name = "is_right"
    while name.lower() in {n.lower() for n in (*left.schema.names, *right.schema.names)}:
        name += "_"
    mark = Field(name, "boolean")
    fields = [*left.schema.fields, mark, *(right.schema.fields[i] for i in rest)]
    taken = {n.lower() for n in left.schema.names}
    for i in rest:
        name = right.schema.names[i]
        if name.lower() in taken:
            raise SchemaError(
                f"asof_join: both sides have a column '{name}'",
                hint=f"rename one of them first: other.rename({{'{name}': 'other_{name}'}})",
            )
    schema = Schema(fields)
    lefts = left._then("pad", schema)
    known = dict(same)
    missing = [i for i in range(len(left.schema)) if i not in known]
    width = len(right.schema)
    marked = right.with_columns({unused(right, "is_right"): "true"})
    types = [*marked.schema.types, *(left.schema.types[i] for i in missing)]
    padded = marked._then("pad", Schema([Field(f"c{i}", t) for i, t in enumerate(types)]))
    nulls = {i: width + 1 + at for at, i in enumerate(missing)}
    places = [known.get(i, nulls.get(i)) for i in range(len(left.schema))]
    outputs = [*places, width, *rest]
    return lefts.concat(padded._then("select", schema, {"outputs": outputs})), len(left.schema)
