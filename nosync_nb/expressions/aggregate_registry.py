"""The aggregates by name: their argument types, their result types and the operator's kernels.

To add a function, add an entry to `AGGREGATORS`. Several names may share one kernel: `every(x)` is
the minimum of booleans. A function whose result depends on the order of rows in Spark, such as
`first(x)`, is refused with a hint at an alternative. `any_value(x)` may be any value of the group;
it is the least one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from nosync_nb.rows.ddl import INTERVALS, YEAR_MONTHS
from nosync_nb.rows.types import FLOATS, INTEGERS, decimal_parts


class Aggregator(NamedTuple):
    """An aggregate function.

    Attributes:
        kernel: the computation of the operator.
        result: returns the result type for the type of the first argument; None if that type is
            unsupported.
        remedy: the hint for an argument of an unsupported type. Its placeholders `{}` receive the
            name of the function and the text of the argument.
        arguments: the number of arguments.
        distinct: the kernel for distinct values. If empty, `kernel` is used with
            `AggregateCall.distinct` set.
        both: True if the type of the second argument is checked like that of the first.
    """

    kernel: str
    result: Callable[[str], str | None]
    remedy: str
    arguments: int = 1
    distinct: str = ""
    both: bool = False

    def hint(self, name: str, argument: str, type_: str) -> str:
        """Returns a hint for a call whose argument has an unsupported type."""
        number = _AS_NUMBER.get(type_)
        if number is not None and self.remedy in (_NUMBER, _WHOLE):
            return f"write {name}({number.format(argument)})"
        return self.remedy.format(name, argument)


PAIRS = (
    "corr",
    "covar_pop",
    "covar_samp",
    "regr_avgx",
    "regr_avgy",
    "regr_intercept",
    "regr_r2",
    "regr_slope",
    "regr_sxx",
    "regr_sxy",
    "regr_syy",
)
"""Aggregates of two numbers, which ignore rows in which one of them is null."""


def _sum_type(type_: str) -> str | None:
    if type_ in INTEGERS:
        return "bigint"
    if type_.startswith("decimal"):
        precision, scale = decimal_parts(type_)
        return f"decimal({min(38, precision + 10)},{scale})"
    if type_ in INTERVALS:
        return type_
    return "double" if type_ in FLOATS else None


def _mean_type(type_: str) -> str | None:
    if type_.startswith("decimal"):
        precision, scale = decimal_parts(type_)
        return f"decimal({min(38, precision + 4)},{min(38, scale + 4)})"
    if type_ in INTERVALS:
        return "interval year to month" if type_ in YEAR_MONTHS else "interval day to second"
    return "double" if type_ in (*INTEGERS, *FLOATS) else None


def _spread_type(type_: str) -> str | None:
    return None if _mean_type(type_) is None or type_ in INTERVALS else "double"


def _ordered(type_: str) -> str | None:
    return None if "map<" in type_ else type_


def _integer(type_: str) -> str | None:
    return type_ if type_ in INTEGERS else None


def _boolean(type_: str) -> str | None:
    return type_ if type_ == "boolean" else None


_NUMBER = "cast it, as in {}(cast({} as double))"
_WHOLE = "cast it, as in {}(cast({} as bigint))"
_AS_NUMBER = {
    "date": "unix_date({})",
    "timestamp": "unix_micros({})",
}
_TRUTH = "compare it, as in {}({} > 0)"
_NO_MAP = "maps have no order; use one of its values, as in {}({}['key'])"
_SETS = "maps cannot be compared; use {}(map_entries({}))"
_NONE = "use another argument"


def _extreme(kernel: str) -> Aggregator:
    return Aggregator(kernel, _ordered, _NO_MAP, distinct=kernel)


def _extreme_by(kernel: str) -> Aggregator:
    return Aggregator(kernel, lambda type_: type_, _NONE, arguments=2, distinct=kernel)


def _truth(kernel: str) -> Aggregator:
    return Aggregator(kernel, _boolean, _TRUTH, distinct=kernel)


def _variance_like(kernel: str) -> Aggregator:
    return Aggregator(kernel, _spread_type, _NUMBER)


def _pair(kernel: str) -> Aggregator:
    return Aggregator(kernel, _spread_type, _NUMBER, arguments=2, both=True)


AGGREGATORS: dict[str, Aggregator] = {
    "count": Aggregator("count", lambda type_: "bigint", _NONE),
    "sum": Aggregator("sum", _sum_type, _NUMBER),
    "min": _extreme("min"),
    "max": _extreme("max"),
    "avg": Aggregator("avg", _mean_type, _NUMBER),
    "mean": Aggregator("avg", _mean_type, _NUMBER),
    "count_if": Aggregator("count_if", _boolean, _TRUTH),
    "min_by": _extreme_by("min_by"),
    "max_by": _extreme_by("max_by"),
    "stddev": _variance_like("stddev_samp"),
    "std": _variance_like("stddev_samp"),
    "stddev_samp": _variance_like("stddev_samp"),
    "stddev_pop": _variance_like("stddev_pop"),
    "variance": _variance_like("var_samp"),
    "var_samp": _variance_like("var_samp"),
    "var_pop": _variance_like("var_pop"),
    "skewness": _variance_like("skewness"),
    "kurtosis": _variance_like("kurtosis"),
    **{name: _pair(name) for name in PAIRS},
    "regr_count": Aggregator("count", lambda type_: "bigint", _NONE, arguments=2),
    "try_sum": Aggregator("try_sum", _sum_type, _NUMBER),
    "try_avg": Aggregator("try_avg", _mean_type, _NUMBER),
    "approx_count_distinct": Aggregator(
        "count_distinct", lambda type_: "bigint", _NONE, distinct="count_distinct"
    ),
    "any_value": _extreme("min"),
    "bool_and": _truth("min"),
    "every": _truth("min"),
    "bool_or": _truth("max"),
    "some": _truth("max"),
    "any": _truth("max"),
    "bit_and": Aggregator("bit_and", _integer, _WHOLE, distinct="bit_and"),
    "bit_or": Aggregator("bit_or", _integer, _WHOLE, distinct="bit_or"),
    "bit_xor": Aggregator("bit_xor", _integer, _WHOLE),
    "collect_list": Aggregator(
        "collect_list", lambda type_: f"array<{type_}>", _NONE, distinct="collect_set"
    ),
    "array_agg": Aggregator(
        "collect_list", lambda type_: f"array<{type_}>", _NONE, distinct="collect_set"
    ),
    "collect_set": Aggregator(
        "collect_set",
        lambda type_: None if "map<" in type_ else f"array<{type_}>",
        _SETS,
        distinct="collect_set",
    ),
}

_FIRST = "name the order, as in min_by({0}, o): the value in the row of the least o"
_LAST = "name the order, as in max_by({0}, o): the value in the row of the greatest o"
REFUSED = {
    "first": _FIRST,
    "first_value": _FIRST,
    "last": _LAST,
    "last_value": _LAST,
}
"""Aggregates whose result depends on the order of rows, and their alternatives.

The placeholder `{0}` receives the text of the argument.
"""
