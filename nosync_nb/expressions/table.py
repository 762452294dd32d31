"""The table of functions whose results are proved equal to Spark's.

`FUNCTIONS` holds calls by name, `OPERATORS` what is written with signs and keywords. An entry is a
`Function` (types in, type out, kernel) or a rule: a Python function from argument nodes to a node.
A rule raises `NotProvedError` for what it does not cover. Anything that is not here is Spark's.
tests/test_expressions_proof.py holds every entry against Spark; one without a case there fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nosync_nb.expressions import (
    calendar,
    collected,
    comparisons,
    conditions,
    dates,
    decimals,
    determinants,
    durations,
    formats,
    hashing,
    json_values,
    jsons,
    likes,
    mathematics,
    numbers,
    regexes,
    rounding,
    rules,
    texts,
    wordings,
)
from nosync_nb.expressions.functions import OF_BYTES, OF_DAYS, Function
from nosync_nb.expressions.kernel import Kernel, TextKernel
from nosync_nb.expressions.rules import Rule


def _text(kernel: TextKernel, *parameters: str, result: str = "string", **more: Any) -> Function:
    """A function of text and more."""
    return Function(("string", *parameters), result, kernel, **more)


def _calendar(function: Callable[[Any], Any], result: str = "int") -> Function:
    return Function(("date",), result, Kernel(function))


_ADD_DAYS = Function(("date", "int"), "date", dates.shift(np.add), refused=OF_DAYS)
_SUB_DAYS = Function(("date", "int"), "date", dates.shift(np.subtract), refused=OF_DAYS)
_DIFFERENCE = Function(("date", "date"), "int", Kernel(dates.difference))
_UPPER = Function(("string",), "string", texts.upper)
_LOWER = Function(("string",), "string", texts.lower)
_SUBSTRING = _text(texts.substring, "int", "int", optional=1, refused=OF_BYTES)
_SQRT = Function(("double",), "double", numbers.square_root("double"))
_SIGN = durations.signum(Function(("double",), "double", numbers.sign("double")).bind)
_DAY = _calendar(dates.day)
_ABSOLUTE = durations.absolute(
    decimals.same_type(signed=False, other=rules.same_type(numbers.absolute))
)
_NEGATIVE = durations.negative(
    decimals.same_type(signed=True, other=rules.same_type(numbers.negate))
)
_REMAINDER = decimals.arithmetic("%", rules.arithmetic(numbers.remainder))
_PLUS = durations.added(decimals.arithmetic("+", rules.plus))
_MINUS = durations.taken_away(decimals.arithmetic("-", rules.minus))
_TIMES = durations.times(decimals.arithmetic("*", rules.arithmetic(numbers.multiply)))
_OVER = durations.divided(decimals.arithmetic("/", rules.divided))
_CEILING = decimals.whole(1, rules.whole(np.ceil))

FUNCTIONS: dict[str, Function | Rule] = {
    **mathematics.FUNCTIONS,
    **hashing.FUNCTIONS,
    **jsons.FUNCTIONS,
    **json_values.FUNCTIONS,
    **regexes.FUNCTIONS,
    **wordings.FUNCTIONS,
    **formats.FUNCTIONS,
    "abs": _ABSOLUTE,
    "negative": _NEGATIVE,
    "positive": durations.itself(decimals.itself(rules.positive)),
    "mod": _REMAINDER,
    "pmod": mathematics.positive_remainder(rules.integers(numbers.positive_remainder)),
    "try_add": mathematics.tried(_PLUS),
    "try_subtract": mathematics.tried(_MINUS),
    "try_multiply": mathematics.tried(_TIMES),
    "try_divide": mathematics.tried(_OVER),
    "try_mod": mathematics.tried(_REMAINDER),
    "sqrt": _SQRT,
    "sign": _SIGN,
    "signum": _SIGN,
    "floor": decimals.whole(-1, rules.whole(np.floor)),
    "ceil": _CEILING,
    "ceiling": _CEILING,
    "bround": decimals.rounded(rounding.rounded(even=True), even=True),
    "round": decimals.rounded(rounding.rounded(even=False), even=False),
    "isnan": rules.is_nan,
    "greatest": comparisons.extreme(numbers.choose_greater),
    "least": comparisons.extreme(numbers.choose_less),
    "coalesce": conditions.coalesce(),
    "nvl": conditions.coalesce(2),
    "ifnull": conditions.coalesce(2),
    "nvl2": conditions.nvl2,
    "nullif": comparisons.null_if,
    "if": conditions.if_,
    "isnull": conditions.is_null,
    "isnotnull": conditions.is_not_null,
    "equal_null": comparisons.same,
    "boolean": rules.cast_to("boolean"),
    "tinyint": rules.cast_to("tinyint"),
    "smallint": rules.cast_to("smallint"),
    "int": rules.cast_to("int"),
    "bigint": rules.cast_to("bigint"),
    "float": rules.cast_to("float"),
    "double": rules.cast_to("double"),
    "string": rules.cast_to("string"),
    "date": rules.cast_to("date"),
    "timestamp": rules.cast_to("timestamp"),
    "binary": rules.cast_to("binary"),
    "decimal": rules.cast_to("decimal(10,0)"),
    "concat": rules.concat,
    "upper": _UPPER,
    "ucase": _UPPER,
    "lower": _LOWER,
    "lcase": _LOWER,
    "reverse": _text(texts.reverse, refused=OF_BYTES),
    "trim": wordings.TRIMMED["both"],
    "ltrim": wordings.TRIMMED["leading"],
    "rtrim": wordings.TRIMMED["trailing"],
    "substring": _SUBSTRING,
    "substr": _SUBSTRING,
    "left": _text(texts.left, "int", refused=OF_BYTES),
    "right": _text(texts.right, "int"),
    "startswith": _text(texts.starts_with, "string", result="boolean"),
    "endswith": _text(texts.ends_with, "string", result="boolean"),
    "contains": _text(texts.contains, "string", result="boolean"),
    "instr": _text(texts.instr, "string", result="int"),
    "replace": _text(texts.replace, "string", "string", optional=1),
    "lpad": _text(texts.lpad, "int", "string", optional=1, refused=OF_BYTES),
    "rpad": _text(texts.rpad, "int", "string", optional=1, refused=OF_BYTES),
    "repeat": _text(texts.repeat, "int"),
    "year": _calendar(dates.year),
    "quarter": _calendar(dates.quarter),
    "month": _calendar(dates.month),
    "day": _DAY,
    "dayofmonth": _DAY,
    "dayofyear": _calendar(dates.day_of_year),
    "dayofweek": _calendar(dates.day_of_week),
    "weekday": _calendar(dates.weekday),
    "last_day": _calendar(dates.last_day, "date"),
    "hour": rules.clock(dates.hour),
    "minute": rules.clock(dates.minute),
    "second": rules.clock(dates.second),
    "unix_micros": rules.micros("timestamp", "bigint"),
    "timestamp_micros": rules.micros("bigint", "timestamp"),
    "date_add": _ADD_DAYS,
    "dateadd": _ADD_DAYS,
    "date_sub": _SUB_DAYS,
    "datediff": _DIFFERENCE,
    "date_diff": _DIFFERENCE,
    **calendar.FUNCTIONS,
    **durations.FUNCTIONS,
    **collected.FUNCTIONS,
    **determinants.FUNCTIONS,
}

OPERATORS: dict[str, Rule] = {
    **mathematics.OPERATORS,
    "+": _PLUS,
    "-": _MINUS,
    "*": _TIMES,
    "/": _OVER,
    "%": _REMAINDER,
    "div": decimals.arithmetic("div", rules.integral_divided),
    "neg": _NEGATIVE,
    **comparisons.COMPARISONS,
    "<=>": comparisons.same,
    "and": conditions.logic(conjunction=True),
    "or": conditions.logic(conjunction=False),
    "not": conditions.not_,
    "in": comparisons.in_,
    "like": likes.like(),
    "ilike": likes.like(lower=True),
    "is true": conditions.is_truth(wanted=True),
    "is false": conditions.is_truth(wanted=False),
    "||": rules.concat,
}
