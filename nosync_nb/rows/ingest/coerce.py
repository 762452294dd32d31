"""Coerces Python values to the values that columns store: exactly, or not at all.

No value is narrowed silently: a number is accepted if the type holds it exactly (517.0 is an int,
517.5 is not). Only doubles are rounded to `float`, because Python and pandas have no other floats.
A boolean is not a number, and text is never parsed. A datetime without a zone is UTC if the type is
`timestamp`. NaN stays NaN; convert.py makes it null if it comes from pandas.

A float is accepted as an integer or a decimal only if no other value of that type rounds to it,
because pandas converts integers with nulls to floats, and DuckDB decimals.

A list whose values all have the plain Python type of the column is accepted after one pass over
their types. Otherwise each value is coerced separately.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from nosync_nb.rows import buffers
from nosync_nb.rows.arrow import Column, canonical_float, canonical_floats, most_objects, objects
from nosync_nb.rows.ddl import DAY_TIMES, YEAR_MONTHS
from nosync_nb.rows.encoding import encode, raw, unscaled
from nosync_nb.rows.types import (
    FIXED,
    INTEGERS,
    UNIT,
    arrow_type,
    decimal_parts,
    is_nested,
    nested_parts,
)

Convert: TypeAlias = Callable[[Any], Any]

EXACT_WHOLE = 1 << 53
"""The least absolute value at which a float may be the rounding of another integer."""

_MISSING = ("NaTType", "NAType", "MaskedConstant")
_TIMEDELTA = "write datetime.timedelta(...)"
_FLOATS = (float, np.floating)
_NUMBERS = (int, *_FLOATS, Decimal, np.integer)
_FAR = 1000
_pack_float = struct.Struct("<f")


class MisfitError(ValueError):
    """A value that a type does not hold.

    The message is the reason, and `hint` the remedy. `row` and `value` are set by `stands_at`.
    """

    def __init__(self, reason: str, *, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint
        self.row = 0
        self.value: Any = None

    def stands_at(self, row: int, value: Any) -> None:
        """Records the value that does not fit, and its row."""
        self.row, self.value = row, value


@lru_cache(maxsize=1024)
def converter(type_: str) -> Convert:
    """Returns the function that converts a Python value, not None, to the value that columns store.

    The function raises `MisfitError` for a value that does not fit. It returns None for pandas' NaT
    and NA, and for a masked value.
    """
    convert_value = _make(type_)

    def convert(value: Any) -> Any:
        if type(value).__name__ in _MISSING or _is_nat(value):
            return None
        return convert_value(value)

    return convert


def _is_nat(value: Any) -> bool:
    return isinstance(value, np.datetime64 | np.timedelta64) and bool(np.isnat(value))


def _make(type_: str) -> Convert:
    """Returns the converter of a type, for values that are not missing."""
    if type_ in INTEGERS:
        return _integers(type_)
    if type_ in YEAR_MONTHS:
        return _whole_units(type_, _integers(type_))
    if type_ in _SCALARS:
        return _SCALARS[type_]
    if type_.startswith("decimal"):
        return _decimals(type_)
    parts = nested_parts(type_)
    if type_.startswith("array<"):
        return _arrays(type_, parts[0][1])
    if type_.startswith("map<"):
        return _maps(type_, parts[0][1], parts[1][1])
    return _structs(type_, parts)


def _wrong(type_: str, *, hint: str) -> MisfitError:
    return MisfitError(f"is not a valid {type_}", hint=hint)


def _number(value: Any, type_: str) -> Any:
    """Raises MisfitError unless a value is a number, and not a boolean."""
    if isinstance(value, (bool, np.bool_)):
        raise _wrong(type_, hint="a boolean is not a number: write 1 or 0")
    if not isinstance(value, _NUMBERS) or (isinstance(value, Decimal) and value.is_snan()):
        text = isinstance(value, str)
        raise _wrong(
            type_, hint="strings are not parsed: convert it first" if text else "write a number"
        )
    return value


def _integers(type_: str) -> Convert:
    """Returns the converter of an integer type."""
    bits = FIXED[type_].itemsize * 8
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(value: Any) -> int:
        _number(value, type_)
        if not isinstance(value, Integral):
            if value != value:
                raise _wrong(type_, hint="NaN is not null: write None for null")
            if value in (float("inf"), float("-inf")) or value != int(value):
                raise MisfitError(f"is not exactly {type_}", hint="round it, or declare double")
        number = int(value)
        if isinstance(value, _FLOATS) and abs(number) >= EXACT_WHOLE:
            raise MisfitError(
                "is a float of 2^53 or more, so it may be rounded",
                hint="pass integers: int(value), .astype('Int64'), or from NoSync"
                " to_pandas(types='arrow')",
            )
        if not low <= number <= high:
            raise MisfitError(
                f"does not fit {type_}", hint=f"{type_} holds {low} to {high}: declare a wider type"
            )
        return number

    return convert


def _double(value: Any) -> float:
    """Converts a number that a double holds exactly."""
    _number(value, "double")
    try:
        number = float(value)
    except OverflowError:
        raise MisfitError("does not fit double", hint="declare decimal(p,s) or string") from None
    if number != value and value == value:
        raise MisfitError("is not exactly double", hint="declare bigint or decimal(p,s)")
    return canonical_float(number)


def _float(value: Any) -> float:
    """Converts a number that a float holds exactly; a double is rounded to 32 bits."""
    number = _double(_number(value, "float"))
    try:
        (rounded,) = _pack_float.unpack(_pack_float.pack(number))
    except OverflowError:
        raise MisfitError("does not fit float", hint="declare double") from None
    if not isinstance(value, float) and rounded != number and number == number:
        raise MisfitError("is not exactly float", hint="declare double")
    return canonical_float(rounded)


def _boolean(value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise _wrong("boolean", hint="write True, False or None")
    return bool(value)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong("string", hint="write str(value), or declare the type of the values")
    try:
        return value.encode().decode()
    except UnicodeEncodeError:
        raise MisfitError(
            "has half a surrogate pair, which UTF-8 cannot encode",
            hint="write value.encode(errors='replace').decode()",
        ) from None


def _binary(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise _wrong("binary", hint="write bytes, such as text.encode()")
    return bytes(value)


def _date(value: Any) -> int:
    """Converts a date, or a datetime at midnight without a time zone."""
    if isinstance(value, np.datetime64):
        value = _from_numpy(value, "date")
    if isinstance(value, datetime):
        midnight = (value.hour, value.minute, value.second, value.microsecond) == (0, 0, 0, 0)
        if value.tzinfo is not None or not midnight or _nanoseconds(value):
            raise MisfitError(
                "has a time of day, so it is not exactly a date", hint="write value.date()"
            )
        value = value.date()
    if not isinstance(value, date):
        raise _wrong("date", hint="write datetime.date(year, month, day)")
    days: int = raw(value, "date")
    return days


def _nanoseconds(value: datetime) -> int:
    """Returns the nanoseconds of a pandas timestamp that exceed its whole microseconds."""
    return int(getattr(value, "nanosecond", 0))


def _from_numpy(value: Any, type_: str) -> datetime:
    """Converts a numpy datetime that is a whole number of microseconds."""
    micros = value.astype("datetime64[us]")
    if micros != value:
        raise MisfitError(f"is not exactly {type_}", hint="round it to microseconds")
    time = micros.item()
    if not isinstance(time, datetime):
        raise MisfitError(f"does not fit {type_}", hint="years are 1 to 9999")
    return time


def _times(type_: str) -> Convert:
    """Returns the converter of a timestamp type."""

    def convert(value: Any) -> int:
        if isinstance(value, np.datetime64):
            value = _from_numpy(value, type_)
        if not isinstance(value, datetime):
            raise _wrong(type_, hint="write datetime.datetime(...)")
        if _nanoseconds(value):
            raise MisfitError(f"is not exactly {type_}", hint="round it to microseconds")
        if type_ == "timestamp_ntz" and value.tzinfo is not None:
            raise MisfitError(
                "has a time zone, but timestamp_ntz has none",
                hint="declare timestamp, or write value.replace(tzinfo=None)",
            )
        micros: int = raw(value, type_)
        return micros

    return convert


def _whole_units(type_: str, convert: Convert) -> Convert:
    """Returns the converter of an interval type, whose values are multiples of its last unit."""
    unit = UNIT.get(type_, 1)

    def exact_integer(value: Any) -> int:
        number: int = convert(value)
        if number % unit:
            raise MisfitError(
                f"is not exactly {type_}", hint="declare an interval with smaller units"
            )
        return number

    return exact_integer


def _duration(value: Any) -> int:
    """Converts a duration that is a whole number of microseconds."""
    if isinstance(value, np.timedelta64):
        micros = value.astype("timedelta64[us]")
        if micros != value:
            raise MisfitError("is not exactly an interval", hint="round it to microseconds")
        return int(micros.astype(np.int64))
    if not isinstance(value, timedelta):
        months = type(value).__name__ == "MonthDayNano"  # the type of DuckDB's intervals
        hint = "pass rows of timedelta: relation.fetchall()" if months else _TIMEDELTA
        raise _wrong("interval of time", hint=hint)
    if getattr(value, "nanoseconds", 0) % 1000:
        raise MisfitError("is not exactly an interval", hint="round it to microseconds")
    number: int = raw(value, DAY_TIMES[0])
    if not -(2**63) <= number < 2**63:
        raise MisfitError("does not fit an interval", hint="intervals have 64 bits of microseconds")
    return number


def _decimals(type_: str) -> Convert:
    """Returns the converter of a decimal type; results have exactly its scale."""
    precision, scale = decimal_parts(type_)
    limit = 10**precision

    def convert(value: Any) -> Decimal:
        _number(value, type_)
        if isinstance(value, Integral):
            exact = Decimal(int(value))
        else:
            exact = value if isinstance(value, Decimal) else Decimal(float(value))
        if not exact.is_finite():
            raise _wrong(type_, hint="write None for missing values")
        if not exact:
            exact = Decimal(0)
        elif abs(exact.adjusted()) > _FAR or int(exact.as_tuple().exponent) < -_FAR:
            raise MisfitError(f"does not fit {type_}", hint="declare double")
        number = unscaled(exact, scale)
        decimal = Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))
        if decimal != exact:
            raise MisfitError(
                f"is not exactly {type_}",
                hint="write Decimal('...'), or round it to the digits of the type",
            )
        if abs(number) >= limit:
            raise MisfitError(f"does not fit {type_}", hint="declare more digits")
        if isinstance(value, _FLOATS) and abs(number) >= EXACT_WHOLE:
            raise MisfitError(
                f"is a float, which cannot hold all digits of {type_}, so it may be rounded",
                hint="write Decimal('...'), or declare fewer digits after the point",
            )
        return decimal

    return convert


def _arrays(type_: str, inner: str) -> Convert:
    """Returns the converter of an array type."""
    convert_item = converter(inner)

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple, np.ndarray)):
            raise _wrong(type_, hint="write a list")
        return [None if item is None else convert_item(item) for item in value]

    return convert


def _maps(type_: str, key_type: str, value_type: str) -> Convert:
    """Returns the converter of a map type; entries are sorted by key."""
    convert_key, convert_value = converter(key_type), converter(value_type)

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, (Mapping, list, tuple)):
            raise _wrong(type_, hint="write a dict")
        entries: dict[bytes, tuple[Any, Any]] = {}
        items = list(value.items() if isinstance(value, Mapping) else value)
        if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in items):
            raise _wrong(type_, hint="write a dict")
        for key, item in items:
            kept = None if key is None else convert_key(key)
            if kept is None:
                raise MisfitError("has a null as key", hint="leave out entries without a key")
            entries[encode(kept, key_type)] = kept, None if item is None else convert_value(item)
        if len(entries) < len(items):
            raise MisfitError("has a key twice", hint="keep one of its entries: dict(value)")
        return [entry for _, entry in sorted(entries.items(), key=lambda pair: pair[0])]

    return convert


def _structs(type_: str, parts: tuple[tuple[str, str], ...]) -> Convert:
    """Returns the converter of a struct type.

    Fields of a dict or named tuple are matched by name, and those of other values by position.
    """
    names = [name for name, _ in parts]
    converters = [converter(inner) for _, inner in parts]

    def convert(value: Any) -> dict[str, Any]:
        own = getattr(value, "_fields", None) or getattr(value, "__fields__", None)
        if isinstance(value, tuple) and own:
            value = dict(zip(own, value, strict=True))
        if isinstance(value, Mapping):
            if set(value) != set(names):
                raise MisfitError(
                    f"does not have the fields of {type_}", hint=_other_fields(value, names)
                )
            value = [value[name] for name in names]
        if not isinstance(value, (list, tuple)) or len(value) != len(names):
            raise _wrong(type_, hint=f"write a dict of {', '.join(names)}")
        return {
            name: None if item is None else convert_item(item)
            for name, convert_item, item in zip(names, converters, value, strict=True)
        }

    return convert


def _other_fields(value: Mapping[Any, Any], names: Sequence[str]) -> str:
    """Returns a hint for a struct with unknown or missing fields."""
    unknown = [str(name) for name in value if name not in names]
    missing = [name for name in names if name not in value]
    parts = [f"leave out {', '.join(unknown)} or declare it"] if unknown else []
    parts += [f"add {', '.join(missing)}, None if it is unknown"] if missing else []
    return "; ".join(parts)


_SCALARS: dict[str, Convert] = {
    "boolean": _boolean,
    "float": _float,
    "double": _double,
    "string": _string,
    "binary": _binary,
    "date": _date,
    "timestamp": _times("timestamp"),
    "timestamp_ntz": _times("timestamp_ntz"),
    **{type_: _whole_units(type_, _duration) for type_ in DAY_TIMES},
}


_NONE = type(None)


def build_column(values: Sequence[Any], type_: str) -> Column:
    """Returns the column of Python values; None is null.

    Raises:
        MisfitError: at the first value that the type does not hold; with its `row` and `value`.

    Cost: O(n); only one pass over the types of the values if all have the plain type.
    """
    plain = _PLAIN.get(type_)
    if plain is not None:
        column = _plain_column(values, type_, plain)
        if column is not None:
            return column
    return physical_form(_convert_all(values, converter(type_)), type_)


_PLAIN: dict[str, type] = {
    "boolean": bool,
    "double": float,
    "string": str,
    "binary": bytes,
    **dict.fromkeys(INTEGERS, int),
}


def _plain_column(values: Sequence[Any], type_: str, plain: type) -> Column | None:
    """Returns the column if every value has exactly the plain type; otherwise None."""
    kinds = set(map(type, values))
    nulls = _NONE in kinds
    kinds.discard(_NONE)
    if kinds and kinds != {plain}:
        return None
    if type_ == "string":
        try:
            "".join([v for v in values if v is not None] if nulls else values).encode()
        except UnicodeEncodeError:
            return None
    elif plain is int or plain is float:
        if nulls:
            return None
        try:
            column = np.array(values, FIXED[type_])
        except OverflowError:
            return None
        return canonical_floats(column) if plain is float else column
    return physical_form(values, type_)


def physical_form(values: Sequence[Any], type_: str) -> Column:
    """Returns the column of checked values in its physical form."""
    if is_nested(type_):
        return pa.array(values, arrow_type(type_))
    dtype = FIXED.get(type_)
    if dtype is not None and None not in values:
        return np.array(values, dtype)
    few = len(values) <= most_objects(type_)
    return objects(values) if few else buffers.arrow_from_list(values, arrow_type(type_))


def _convert_all(values: Sequence[Any], convert: Convert) -> list[Any]:
    """Returns the converted values; raises MisfitError for the first one that does not fit."""
    converted: list[Any] = []
    value: Any = None
    try:
        for value in values:
            converted.append(None if value is None else convert(value))
    except MisfitError as misfit:
        misfit.stands_at(len(converted), value)
        raise
    return converted
