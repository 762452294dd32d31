"""The operators on plain counters, from scratch: what every collection must equal at every epoch.

A collection is a `Bag`: a counter from rows (tuples of Python values) to their counts, which may
be negative but never 0. Nothing is incremental here and nothing is shared with the engine.

Values are Spark's: null equals null as a row and as a group, NaN equals NaN and is the greatest,
-0.0 is 0.0, text is ordered by its UTF-8 bytes. A column has one type, so 1, 1.0 and True are in
no column together; `typed` distinguishes them in comparisons of results.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

Row = tuple[Any, ...]
Bag = Counter[Row]

NAN = math.nan  # one object, so that rows that hold it are equal and hash alike


def value(given: Any) -> Any:
    """The canonical form of a value: equal exactly if Spark holds the values equal."""
    if isinstance(given, float):
        return NAN if math.isnan(given) else given + 0.0
    if isinstance(given, datetime) and given.tzinfo is not None:
        return given.astimezone(UTC)
    if isinstance(given, list):
        return tuple(map(value, given))
    if isinstance(given, dict):
        return tuple(sorted(((k, value(v)) for k, v in given.items()), key=order))
    return given


def order(given: Any) -> Any:
    """A sort key for a value of a column: null is first, NaN last."""
    if given is None:
        return (0,)
    if isinstance(given, float) and math.isnan(given):
        return (2,)
    if isinstance(given, str):
        return (1, given.encode())
    if isinstance(given, tuple):
        return (1, tuple(map(order, given)))
    return (1, given)


def row_order(row: Row) -> Any:
    """The rank of a row: by its columns, from the left."""
    return tuple(map(order, row))


def typed(row: Iterable[Any]) -> Row:
    """A row in which 1, 1.0 and True differ."""
    return tuple((type(v).__name__, v) for v in map(value, row))


def bag(rows: Iterable[Iterable[Any]] = (), times: int = 1) -> Bag:
    """The bag of rows, each `times` for each time it is given."""
    return summed((tuple(map(value, row)), times) for row in rows)


def summed(changes: Iterable[tuple[Row, int]]) -> Bag:
    """The sum of (row, diff) pairs, without rows whose diffs cancel."""
    total: Bag = Counter()
    for row, diff in changes:
        total[row] += diff
    return Counter({row: n for row, n in total.items() if n})


def rows(held: Bag) -> list[Row]:
    """The rows in canonical order, with copies."""
    assert all(n > 0 for n in held.values())
    return sorted(held.elements(), key=row_order)


# -- linear ------------------------------------------------------------------------------------


def filtered(held: Bag, predicate: Callable[[Row], Any]) -> Bag:
    """The rows for which the predicate is true, not null."""
    return Counter({row: n for row, n in held.items() if predicate(row)})


def mapped(held: Bag, function: Callable[[Row], Iterable[Any]]) -> Bag:
    return flat_mapped(held, lambda row: [function(row)])


def flat_mapped(held: Bag, function: Callable[[Row], Iterable[Iterable[Any]]]) -> Bag:
    return summed((tuple(map(value, made)), n) for row, n in held.items() for made in function(row))


def concat(*bags: Bag) -> Bag:
    return summed(item for each in bags for item in each.items())


def negated(held: Bag) -> Bag:
    return Counter({row: -n for row, n in held.items()})


# -- multisets ---------------------------------------------------------------------------------


def threshold(held: Bag, function: Callable[[int], int]) -> Bag:
    return summed((row, function(n)) for row, n in held.items())


def distinct(held: Bag) -> Bag:
    return threshold(held, lambda n: int(n > 0))


def multiplicity(held: Bag) -> Bag:
    return summed(((*row, n), 1) for row, n in held.items())


def except_all(left: Bag, right: Bag) -> Bag:
    return summed((row, max(n - right[row], 0)) for row, n in left.items())


def subtract(left: Bag, right: Bag) -> Bag:
    return summed((row, int(n > 0 and right[row] <= 0)) for row, n in left.items())


# -- keyed -------------------------------------------------------------------------------------

Pairs = Sequence[tuple[int, int]]


def join(left: Bag, right: Bag, on: Pairs, how: str, widths: tuple[int, int]) -> Bag:
    """Joins on equal keys.

    Args:
        on: positions of the key columns, left and right.
        how: inner, left, right, full, semi or anti.
        widths: the numbers of columns, for padding.

    Returns: the left columns, then the right ones without keys; for rows without a left side the
        key columns hold the right keys. semi and anti: the left columns.
    """
    rest = [i for i in range(widths[1]) if i not in {r for _, r in on}]
    result: list[tuple[Row, int]] = []
    if how in ("semi", "anti"):
        there = _keys(right, [r for _, r in on])
        for row, n in left.items():
            if (_key(row, [k for k, _ in on]) in there) == (how == "semi"):
                result.append((row, n))
        return summed(result)
    for one, n in left.items():
        for other, m in right.items():
            key = _key(one, [k for k, _ in on])  # tuples hold NaN, one object, equal to itself
            if key is not None and key == _key(other, [r for _, r in on]):
                result.append(((*one, *(other[i] for i in rest)), n * m))
    if how in ("left", "full"):
        for row, n in join(left, right, on, "anti", widths).items():
            result.append(((*row, *(None for _ in rest)), n))
    if how in ("right", "full"):
        back = [(r, k) for k, r in on]
        for row, n in join(right, left, back, "anti", widths[::-1]).items():
            padded: list[Any] = [None] * widths[0]
            for k, r in on:
                padded[k] = row[r]
            result.append(((*padded, *(row[i] for i in rest)), n))
    return summed(result)


def _key(row: Row, places: Sequence[int]) -> Row | None:
    """The key of a row, None if any part is null: it matches nothing."""
    key = tuple(row[i] for i in places)
    return None if None in key else key


def _keys(held: Bag, places: Sequence[int]) -> set[Row]:
    counts = summed((key, n) for row, n in held.items() if (key := _key(row, places)) is not None)
    return {key for key, n in counts.items() if n > 0}


def groups(held: Bag, keys: Sequence[int]) -> dict[Row, Bag]:
    """The rows by key, without groups whose counts sum to 0 or less."""
    groups: dict[Row, Bag] = {}
    for row, n in held.items():
        groups.setdefault(tuple(row[i] for i in keys), Counter())[row] = n
    return {key: group for key, group in groups.items() if sum(group.values()) > 0}


def aggregated(held: Bag, keys: Sequence[int], calls: Sequence[tuple[str, int]]) -> Bag:
    """SQL aggregates by key; one row without keys, even over no rows.

    Args:
        calls: (count_star | count | sum | min | max | avg, position of the argument).
    """
    by_key: Mapping[Row, Bag] = groups(held, keys) if keys else {(): held}
    return summed(
        ((*key, *(aggregate(group, *call) for call in calls)), 1) for key, group in by_key.items()
    )


def aggregate(group: Bag, function: str, argument: int) -> Any:
    """One aggregate of a group, by Spark's rules for nulls."""
    if function == "count_star":
        return sum(group.values())
    values = [(row[argument], n) for row, n in group.items() if row[argument] is not None]
    count = sum(n for _, n in values)
    if function == "count":
        return count
    if not count:
        return None
    if function in ("min", "max"):
        choose = min if function == "min" else max
        return choose((v for v, n in values if n > 0), key=order)
    total = exact_sum(values)
    if function == "sum":
        return total
    assert function == "avg"
    return value(total / count)


def exact_sum(values: Sequence[tuple[Any, int]]) -> Any:
    """The sum of values with counts, exact and rounded once; as `math.fsum` where that is finite.

    Raises:
        OverflowError: if a sum of integers leaves 64 bits.
    """
    first = values[0][0]
    if isinstance(first, Decimal):
        with localcontext(prec=80):
            return sum((v * n for v, n in values), Decimal(0))
    if isinstance(first, int):
        total = sum(v * n for v, n in values)
        if not -(2**63) <= total < 2**63:
            raise OverflowError(total)
        return total
    special = {v for v, n in values if not math.isfinite(v)}
    if special:
        return special.pop() if len(special) == 1 else NAN
    exact = sum((Fraction(v) * n for v, n in values), Fraction(0))
    try:
        return float(exact) + 0.0
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def reduced(
    held: Bag, keys: Sequence[int], function: Callable[[Row, list[Row]], Iterable[Iterable[Any]]]
) -> Bag:
    """The rows that a function returns for each group, after the key; rows with negative counts
    are skipped.
    """
    return summed(
        ((*key, *map(value, made)), 1)
        for key, group in groups(filtered(held, lambda row: held[row] > 0), keys).items()
        for made in function(key, rows(group))
    )


def top(
    held: Bag, keys: Sequence[int], count: int, by: Sequence[tuple[int, bool]], offset: int = 0
) -> Bag:
    """The first copies of each group after `offset`, ties broken by the whole row.

    Args:
        by: (position, descending), the first decides.
    """
    kept: list[tuple[Row, int]] = []
    for group in groups(held, keys).values():
        ordered = rows(group)
        for place, descending in reversed(by):
            ordered.sort(key=lambda row, i=place: order(row[i]), reverse=descending)  # type: ignore[misc]
        kept += [(row, 1) for row in ordered[offset : offset + count]]
    return summed(kept)


# -- loops -------------------------------------------------------------------------------------


def iterated(source: Bag, body: Callable[[Bag], Bag], rounds: int | None = None) -> Bag:
    """The body applied to the source until nothing changes, or `rounds` times."""
    held, done = source, 0
    while rounds is None or done < rounds:
        after = body(held)
        if after == held:
            break
        held, done = after, done + 1
        assert done < 10_000, "the loop does not settle"
    return held
