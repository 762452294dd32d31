"""Functions of arrays and maps over Python values, for the rules in functions/collections.py.

Values have the form of rows/arrow.py. Two values are equal if their keys are equal
(`nested_nodes.key_of`): inside arrays, null equals null and NaN equals NaN. In an order, null is
first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from nosync_nb.expressions.kernels import reasons
from nosync_nb.expressions.kernels.datetime_patterns import DAY, timestamp_of_fields
from nosync_nb.expressions.kernels.kernel import InvalidError

Key = Callable[[Any], Any]

_SLICE_ZERO = reasons.bad_parameter(
    "START", "a slice that starts at 0; the first element has index 1", "start at 1, or at -1"
)
_SLICE_LENGTH = reasons.bad_parameter(
    "LENGTH", "a slice with a negative length", "use a length of 0 or more"
)
_LONG_SEQUENCE = reasons.TOO_MANY_ELEMENTS._replace(fault="a sequence with too many elements")
_STEP = "use a step that leads from the first number to the last"
_DAYS = "use a step of whole days or months"
_KEYS = "make the keys distinct, or filter these rows out"
_NULL_KEY = reasons.Reason("NULL_MAP_KEY", "null cannot be a key of a map", _KEYS)
SEQUENCE_MAX = 10_000_000
"""The maximum number of elements of a computed array; Spark's limit is about 200 times as high."""


def at(items: Sequence[Any], index: int) -> Any:
    """`a[i]`, counted from 0; an index beyond 32 bits wraps around, as in Spark."""
    index = (index + 2**31) % 2**32 - 2**31
    if not 0 <= index < len(items):
        raise InvalidError(reasons.BEYOND_ARRAY)
    return items[index]


def get(items: Sequence[Any], index: int) -> Any:
    """`get(a, i)`, counted from 0; null if there is no such element."""
    return items[index] if 0 <= index < len(items) else None


def element_at(items: Sequence[Any], index: int) -> Any:
    """`element_at(a, i)`, counted from 1, or from the end if negative."""
    value = try_element_at(items, index)
    if abs(index) > len(items):
        raise InvalidError(reasons.BEYOND_ELEMENTS)
    return value


def try_element_at(items: Sequence[Any], index: int) -> Any:
    """`try_element_at(a, i)`; null if there is no such element."""
    if index == 0:
        raise InvalidError(reasons.INDEX_ZERO)
    if abs(index) > len(items):
        return None
    return items[index - 1 if index > 0 else index]


def value_of(key: Key) -> Callable[[Any, Any], Any]:
    """`m[k]`, whose keys are compared by `key`; null if the key is missing."""

    def find_value(pairs: Sequence[tuple[Any, Any]], wanted: Any) -> Any:
        wanted = key(wanted)
        return next((value for k, value in pairs if key(k) == wanted), None)

    return find_value


def has_key(key: Key) -> Callable[[Any, Any], bool]:
    """`map_contains_key(m, k)`, whose keys are compared by `key`."""
    return lambda pairs, wanted: key(wanted) in [key(k) for k, _ in pairs]


def contains(key: Key) -> Callable[[Any, Any], bool | None]:
    """`array_contains(a, x)`; null if `x` is missing and the array contains a null."""

    def is_contained(items: Sequence[Any], wanted: Any) -> bool | None:
        if key(wanted) in [key(item) for item in items]:
            return True
        return None if None in items else False

    return is_contained


def position(key: Key) -> Callable[[Any, Any], int]:
    """`array_position(a, x)`, counted from 1; 0 if `x` is missing."""

    def find_position(items: Sequence[Any], wanted: Any) -> int:
        keys = [key(item) for item in items]
        return keys.index(key(wanted)) + 1 if key(wanted) in keys else 0

    return find_position


def extreme(key: Key, *, greatest: bool) -> Callable[[Any], Any]:
    """`array_max` and `array_min`, which ignore nulls."""
    choose = max if greatest else min

    def pick_extreme(items: Sequence[Any]) -> Any:
        return choose((v for v in items if v is not None), key=key, default=None)

    return pick_extreme


def sort(key: Key) -> Callable[..., list[Any]]:
    """`sort_array(a [, ascending])`; nulls are first, or last in descending order."""
    return lambda items, ascending=True: sorted(items, key=key, reverse=not ascending)


def sort_nulls_last(key: Key) -> Callable[[Any], list[Any]]:
    """`array_sort(a)`, ascending with nulls last."""
    return lambda items: sorted(items, key=lambda value: (value is None, key(value)))


def _firsts(key: Key, items: Sequence[Any]) -> list[Any]:
    held: dict[Any, Any] = {}
    for item in items:
        held.setdefault(key(item), item)
    return list(held.values())


def without_repeats(key: Key) -> Callable[[Any], list[Any]]:
    """`array_distinct(a)`, in the order of the first occurrences."""
    return lambda items: _firsts(key, items)


def union(key: Key) -> Callable[[Any, Any], list[Any]]:
    """`array_union(a, b)`, without duplicates."""
    return lambda a, b: _firsts(key, [*a, *b])


def intersect(key: Key) -> Callable[[Any, Any], list[Any]]:
    """`array_intersect(a, b)`, without duplicates and in the order of `a`."""

    def common_items(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        there = {key(item) for item in b}
        return [item for item in _firsts(key, a) if key(item) in there]

    return common_items


def array_except(key: Key) -> Callable[[Any, Any], list[Any]]:
    """`array_except(a, b)`, without duplicates and in the order of `a`."""

    def other_items(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        there = {key(item) for item in b}
        return [item for item in _firsts(key, a) if key(item) not in there]

    return other_items


def overlap(key: Key) -> Callable[[Any, Any], bool | None]:
    """`arrays_overlap(a, b)`; null if only a null might be in both, and neither array is empty."""

    def has_common_item(a: Sequence[Any], b: Sequence[Any]) -> bool | None:
        there = {key(item) for item in b if item is not None}
        if any(item is not None and key(item) in there for item in a):
            return True
        return None if a and b and (None in a or None in b) else False

    return has_common_item


def remove(key: Key) -> Callable[[Any, Any], list[Any]]:
    """`array_remove(a, x)`; nulls remain."""
    return lambda items, gone: [item for item in items if key(item) != key(gone)]


def compact(items: Sequence[Any]) -> list[Any]:
    """`array_compact(a)`, which removes nulls."""
    return [item for item in items if item is not None]


def repeat(value: Any, times: int | None) -> list[Any] | None:
    """`array_repeat(x, n)`; null if the number of copies is null, empty if it is negative."""
    if times is not None and times > SEQUENCE_MAX:
        raise InvalidError(reasons.TOO_MANY_ELEMENTS)
    return None if times is None else [value] * max(times, 0)


def append(items: Sequence[Any] | None, value: Any) -> list[Any] | None:
    """`array_append(a, x)`; null if the array is null, but not if the value is null."""
    return None if items is None else [*items, value]


def prepend(items: Sequence[Any] | None, value: Any) -> list[Any] | None:
    """`array_prepend(a, x)`; null if the array is null, but not if the value is null."""
    return None if items is None else [value, *items]


def insert(items: Sequence[Any] | None, place: int | None, value: Any) -> list[Any] | None:
    """`array_insert(a, place, x)`, counted from 1, or from the end; gaps are filled with nulls."""
    if items is None or place is None:
        return None
    if place == 0:
        raise InvalidError(reasons.INDEX_ZERO)
    if abs(place) > SEQUENCE_MAX:
        raise InvalidError(reasons.TOO_MANY_ELEMENTS)
    if place > 0:
        filled = [*items, *[None] * (place - 1 - len(items))]
        return [*filled[: place - 1], value, *filled[place - 1 :]]
    start = len(items) + place + 1
    if start < 0:
        return [value, *[None] * -start, *items]
    return [*items[:start], value, *items[start:]]


def part(items: Sequence[Any], start: int, length: int) -> list[Any]:
    """`slice(a, start, length)`, counted from 1, or from the end if negative."""
    if start == 0:
        raise InvalidError(_SLICE_ZERO)
    if length < 0:
        raise InvalidError(_SLICE_LENGTH)
    first = start - 1 if start > 0 else len(items) + start
    return list(items[first : first + length]) if first >= 0 else []


def flatten(items: Sequence[Any]) -> list[Any] | None:
    """`flatten(a)`; null if an inner array is null."""
    return None if None in items else [inner for each in items for inner in each]


def sequence(start: int, stop: int, step: int | None = None) -> list[int]:
    """`sequence(start, stop [, step])` of integers, including `stop`."""
    if step is None:
        step = 1 if start <= stop else -1
    if (step == 0 and start != stop) or (stop - start) * step < 0:
        raise InvalidError(
            reasons.Reason("", f"a sequence from {start} to {stop} by {step}", _STEP)
        )
    if step and (stop - start) // step >= SEQUENCE_MAX:
        raise InvalidError(_LONG_SEQUENCE)
    return list(range(start, stop + (1 if step > 0 else -1), step)) if step else [start]


def sequence_of_times(type_: str, *, by_months: bool) -> Callable[..., list[int]]:
    """`sequence(start, stop [, step])` of dates or timestamps in UTC, as days or microseconds.

    Each element is the start plus a multiple of the step, so that the day of a month is limited to
    its last day only where the month is too short. Without a step, the elements are days.

    Args:
        type_: the type of the elements.
        by_months: True if the step is a number of months; otherwise it is in microseconds.
    """
    is_date = type_ == "date"

    def run(start: int, stop: int, step: int | None = None) -> list[int]:
        first, last = (start * DAY, stop * DAY) if is_date else (start, stop)
        if step is None:
            step = DAY if first <= last else -DAY
        if is_date and (not step if by_months else abs(step) < DAY):
            raise InvalidError(reasons.Reason("", "a sequence of dates by less than a day", _DAYS))
        if (step == 0 and first != last) or (last - first) * step < 0:
            raise InvalidError(reasons.Reason("", "a sequence whose step leads away", _STEP))
        if step and (last - first) // (step * 28 * DAY if by_months else step) >= SEQUENCE_MAX:
            raise InvalidError(_LONG_SEQUENCE)
        found = [first]
        while step and (len(found) == 1 or first != last):
            count = len(found) * step
            after = _months_later(first, count) if by_months else first + count
            if after > last if step > 0 else after < last:
                break
            found.append(after)
        return [micros // DAY for micros in found] if is_date else found

    return run


def _months_later(micros: int, months: int) -> int:
    fields = timestamp_of_fields(micros)
    place = (fields.year - 1970) * 12 + fields.month - 1 + months
    first, following = (
        int(np.datetime64(each, "M").astype("datetime64[D]").astype(np.int64))
        for each in (place, place + 1)
    )
    return min(first + fields.day, following) * DAY - DAY + fields.micros


def zipped(*arrays: Sequence[Any]) -> list[tuple[Any, ...]]:
    """`arrays_zip(a, b, ...)`, as long as the longest array."""
    return list(zip_longest(*arrays))


def map_of(key: Key) -> Callable[[Sequence[Any], Sequence[Any]], list[tuple[Any, Any]]]:
    """`map_from_arrays(keys, values)`."""
    make = pairs(key)

    def run(keys: Sequence[Any], values: Sequence[Any]) -> list[tuple[Any, Any]]:
        if len(keys) != len(values):
            fault = f"{len(keys)} keys for {len(values)} values"
            raise InvalidError(reasons.Reason("", fault, "make both arrays equally long"))
        return make(list(zip(keys, values, strict=True)))

    return run


def text_to_map(between: str, after: str) -> Callable[[str], list[tuple[Any, Any]]]:
    """`str_to_map(text, between, after)`, with separators that are plain text."""
    make = pairs(lambda name: name)

    def run(text: str) -> list[tuple[Any, Any]]:
        entries = (part.split(after, 1) for part in text.split(between))
        return make([(each[0], each[1] if len(each) > 1 else None) for each in entries])

    return run


def joined(write: Callable[[Any], str]) -> Callable[..., str]:
    """`array_join(a, separator [, for nulls])`; `write` converts an element to text."""

    def join(items: Sequence[Any], separator: str, missing: str | None = None) -> str:
        if missing is None:
            return separator.join([write(item) for item in items if item is not None])
        return separator.join([missing if item is None else write(item) for item in items])

    return join


def pairs(key: Key) -> Callable[[Sequence[Any]], list[tuple[Any, Any]]]:
    """Returns a function that builds a map from pairs; keys must be distinct and not null."""

    def make(entries: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        seen = set()
        for name, _ in entries:
            if name is None:
                raise InvalidError(_NULL_KEY)
            if key(name) in seen:
                raise InvalidError(
                    reasons.Reason(
                        "DUPLICATED_MAP_KEY", f"a map with the key {name!r} twice", _KEYS
                    )
                )
            seen.add(key(name))
        return list(entries)

    return make
