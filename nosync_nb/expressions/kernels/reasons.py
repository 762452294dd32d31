"""Reasons why a row raises an error: Spark's error class, the fault, and the remedy.

A kernel that refuses a row gives one of them. The text of a reason begins with the error class in
brackets, so that every message that includes it names the class.
"""

from __future__ import annotations

from typing import NamedTuple

_TRY_CAST = "return null instead with try_cast(x as type), or clean the values first"
_WIDEN = "widen an operand, as in cast(a as bigint) or cast(a as double)"
_FEWER = "use fewer digits or doubles, as in cast(a as double), or return null with try_cast"
_DIVIDE = "return null instead, as in a / nullif(b, 0) or try_divide(a, b)"
_REMAINDER = "return null instead, as in a % nullif(b, 0) or try_mod(a, b)"
_ELEMENT = "return null instead with get(a, i), counted from 0, or try_element_at(a, i), from 1"
_RANGE = "filter out the rows that are out of range, or use a smaller number"


class Reason(NamedTuple):
    """Why a row raises an error.

    Attributes:
        error_class: Spark's error class; empty where Spark has none.
        fault: what is wrong with the value.
        remedy: what to write instead.
    """

    error_class: str
    fault: str
    remedy: str = _TRY_CAST

    def __str__(self) -> str:
        return f"[{self.error_class}] {self.fault}" if self.error_class else self.fault


OVERFLOW = Reason("ARITHMETIC_OVERFLOW", "overflow", _WIDEN)
SHORT_OVERFLOW = Reason("BINARY_ARITHMETIC_OVERFLOW", "overflow", _WIDEN)
"""For `+`, `-` and `*` of integers below 32 bits."""
DECIMAL_OVERFLOW = Reason("NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION", "overflow", _FEWER)
TIME_OVERFLOW = Reason("DATETIME_OVERFLOW", "overflow", _RANGE)
DATE_OVERFLOW = Reason("ARITHMETIC_OVERFLOW", "overflow", _RANGE)
INTERVAL_OVERFLOW = Reason("INTERVAL_ARITHMETIC_OVERFLOW", "overflow", _RANGE)
BY_ZERO = Reason("DIVIDE_BY_ZERO", "division by zero", _DIVIDE)
REMAINDER_BY_ZERO = Reason("REMAINDER_BY_ZERO", "remainder by zero", _REMAINDER)
INTERVAL_BY_ZERO = Reason("INTERVAL_DIVIDED_BY_ZERO", "division by zero", _DIVIDE)
BEYOND_ARRAY = Reason("INVALID_ARRAY_INDEX", "the index is outside the array", _ELEMENT)
BEYOND_ELEMENTS = BEYOND_ARRAY._replace(error_class="INVALID_ARRAY_INDEX_IN_ELEMENT_AT")
INDEX_ZERO = Reason(
    "INVALID_INDEX_OF_ZERO",
    "the index is 0; the first element has index 1",
    "use 1 for the first element, or -1 for the last",
)
TOO_MANY_ELEMENTS = Reason(
    "COLLECTION_SIZE_LIMIT_EXCEEDED", "an array with too many elements", _RANGE
)
NO_DATE = Reason("DATETIME_FIELD_OUT_OF_BOUNDS", "the date does not exist", _RANGE)
NO_TIME = Reason("DATETIME_FIELD_OUT_OF_BOUNDS", "the time does not exist", _RANGE)


def invalid_text(text: object, type_: str) -> Reason:
    """Returns the reason for a text that is no value of a type."""
    return Reason("CAST_INVALID_INPUT", f"{text!r} is not of type {type_}")


def out_of_range(type_: str) -> Reason:
    """Returns the reason for a number that a cast cannot represent."""
    return Reason("CAST_OVERFLOW", f"the value is out of range for {type_}")


def too_many_digits(value: object, type_: str) -> Reason:
    """Returns the reason for a text whose number exceeds a decimal."""
    return DECIMAL_OVERFLOW._replace(fault=f"{value!r} is out of range for {type_}")


def bad_parameter(parameter: str, fault: str, remedy: str) -> Reason:
    """Returns the reason for an argument outside its range; `parameter` is Spark's name for it."""
    return Reason(f"INVALID_PARAMETER_VALUE.{parameter}", fault, remedy)
