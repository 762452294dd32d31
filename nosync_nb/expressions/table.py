"""The table of functions whose results are proved equal to Spark's.

`FUNCTIONS` holds calls by name, `OPERATORS` what is written with signs and keywords. An entry is a
`Function` (types in, type out, kernel) or a rule: a Python function from argument nodes to a node.
A rule raises `NotProvedError` for what it does not cover. Anything that is not here is Spark's.
tests/test_expressions_proof.py holds every entry against Spark; one without a case there fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    numbers,
    rules,
    texts,
)
from nosync_nb.expressions.coerce import NotProvedError, implicit, literal_value
from nosync_nb.expressions.kernel import Kernel, TextKernel
from nosync_nb.expressions.nodes import StrictNode, ValueNode
from nosync_nb.expressions.rules import Rule


@dataclass(frozen=True)
class Function:
    """A strict function of fixed types.

    Attributes:
        parameters: the types of its arguments, the last `optional` of which may be missing.
        literals: positions of arguments that must be literals.
    """

    parameters: tuple[str, ...]
    result: str
    kernel: Kernel | TextKernel
    optional: int = 0
    literals: tuple[int, ...] = ()

    def bind(self, name: str, arguments: Sequence[ValueNode], utc: bool) -> ValueNode:
        """Returns the call.

        Raises:
            NotProvedError: if the arguments do not fit.
        """
        least = len(self.parameters) - self.optional
        if not least <= len(arguments) <= len(self.parameters):
            raise NotProvedError(f"{name} of {len(arguments)} arguments")
        cast = [implicit(a, p, utc=utc) for a, p in zip(arguments, self.parameters, strict=False)]
        for i in self.literals:
            if i < len(cast):
                literal_value(cast[i], f"an argument of {name}")
        return StrictNode(name, self.result, self.kernel, cast)


def _text(kernel: TextKernel, *parameters: str, result: str = "string", **more: Any) -> Function:
    """A function of text whose further arguments are literals."""
    literals = tuple(range(1, len(parameters) + 1))
    return Function(("string", *parameters), result, kernel, literals=literals, **more)


def _calendar(function: Callable[[Any], Any], result: str = "int") -> Function:
    return Function(("date",), result, Kernel(function))


_ADD_DAYS = Function(("date", "int"), "date", dates.shift(np.add))
_SUB_DAYS = Function(("date", "int"), "date", dates.shift(np.subtract))
_DIFFERENCE = Function(("date", "date"), "int", Kernel(dates.difference))
_LENGTH = Function(("string",), "int", texts.length)
_UPPER = Function(("string",), "string", texts.upper)
_LOWER = Function(("string",), "string", texts.lower)
_SUBSTRING = _text(texts.substring, "int", "int", optional=1)
_SQRT = Function(("double",), "double", numbers.square_root("double"))
_SIGN = Function(("double",), "double", numbers.sign("double"))
_DAY = _calendar(dates.day)
_ABSOLUTE = decimals.same_type(signed=False, other=rules.same_type(numbers.absolute))
_NEGATIVE = decimals.same_type(signed=True, other=rules.same_type(numbers.negate))
_REMAINDER = decimals.arithmetic("%", rules.arithmetic(numbers.remainder))
_CEILING = decimals.whole(1, rules.whole(np.ceil))

FUNCTIONS: dict[str, Function | Rule] = {
    "abs": _ABSOLUTE,
    "negative": _NEGATIVE,
    "positive": decimals.itself(rules.positive),
    "mod": _REMAINDER,
    "pmod": rules.integers(numbers.positive_remainder),
    "sqrt": _SQRT,
    "sign": _SIGN,
    "signum": _SIGN,
    "floor": decimals.whole(-1, rules.whole(np.floor)),
    "ceil": _CEILING,
    "ceiling": _CEILING,
    "bround": decimals.rounded(rules.not_here, even=True),
    "round": decimals.rounded(rules.rounded, even=False),
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
    "concat": rules.concat,
    "upper": _UPPER,
    "ucase": _UPPER,
    "lower": _LOWER,
    "lcase": _LOWER,
    "length": _LENGTH,
    "len": _LENGTH,
    "char_length": _LENGTH,
    "character_length": _LENGTH,
    "reverse": Function(("string",), "string", texts.reverse),
    "trim": Function(("string",), "string", texts.trim),
    "ltrim": Function(("string",), "string", texts.ltrim),
    "rtrim": Function(("string",), "string", texts.rtrim),
    "substring": _SUBSTRING,
    "substr": _SUBSTRING,
    "left": _text(texts.left, "int"),
    "right": _text(texts.right, "int"),
    "startswith": _text(texts.starts_with, "string", result="boolean"),
    "endswith": _text(texts.ends_with, "string", result="boolean"),
    "contains": _text(texts.contains, "string", result="boolean"),
    "instr": _text(texts.instr, "string", result="int"),
    "locate": Function(("string", "string"), "int", texts.locate, literals=(0,)),
    "replace": _text(texts.replace, "string", "string", optional=1),
    "lpad": _text(texts.lpad, "int", "string", optional=1),
    "rpad": _text(texts.rpad, "int", "string", optional=1),
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
    **collected.FUNCTIONS,
    **determinants.FUNCTIONS,
}

OPERATORS: dict[str, Rule] = {
    "+": decimals.arithmetic("+", rules.plus),
    "-": decimals.arithmetic("-", rules.minus),
    "*": decimals.arithmetic("*", rules.arithmetic(numbers.multiply)),
    "/": decimals.arithmetic("/", rules.divided),
    "%": _REMAINDER,
    "div": decimals.arithmetic("div", rules.integral_divided),
    "neg": _NEGATIVE,
    **comparisons.COMPARISONS,
    "<=>": comparisons.same,
    "and": conditions.logic(conjunction=True),
    "or": conditions.logic(conjunction=False),
    "not": conditions.not_,
    "in": comparisons.in_,
    "like": comparisons.like,
    "is true": conditions.is_truth(wanted=True),
    "is false": conditions.is_truth(wanted=False),
    "||": rules.concat,
}
