"""The aggregates on plain counters, from scratch, like model.py for all operators.

A call is (function, position of the argument, ...). `distinct` before the function counts each
value once. Sums and variances are rational numbers that are rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import reduce
from operator import and_, or_, xor
from typing import Any

from models import model
from models.model import Bag

Call = tuple[Any, ...]
SPREADS = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")
WEIGHED = ("count", "sum", "avg", "bit_xor", "collect_list", *SPREADS)
"""Aggregates that depend on the counts of values; the others depend only on their presence."""


def aggregated(held: Bag, keys: Sequence[int], calls: Sequence[Call]) -> Bag:
    by_key = model.groups(held, keys) if keys else {(): held}
    return model.summed(
        ((*key, *(aggregate(group, *call) for call in calls)), 1) for key, group in by_key.items()
    )


def aggregate(group: Bag, function: str, *places: int) -> Any:
    if function == "count_star":
        return sum(group.values())
    function, distinct = function.removeprefix("distinct "), function.startswith("distinct ")
    required = places[1:] if function.endswith("_by") else places
    values = model.summed(
        (tuple(row[i] for i in places), n)
        for row, n in group.items()
        if None not in [row[i] for i in required]
    )
    if distinct or function not in WEIGHED:
        values = model.distinct(values)
    if function == "count":
        return sum(values.values())
    if function.startswith("collect"):
        return tuple(v for (v,) in model.rows(values_there(values)))
    if function.endswith("_by"):
        choose = min if function == "min_by" else max
        best = choose(values, key=lambda v: model.row_order(v[::-1]), default=(None,))
        return best[0]
    return _of_numbers(function, [(v, n) for (v,), n in values.items()])


def values_there(values: Bag) -> Bag:
    return model.threshold(values, lambda n: max(n, 0))


def _of_numbers(function: str, values: list[tuple[Any, int]]) -> Any:
    if function in ("min", "max", "bool_and", "bool_or"):
        choose = min if function in ("min", "bool_and") else max
        return choose((v for v, _ in values), key=model.order, default=None)
    count = sum(n for _, n in values)
    if function in SPREADS:
        return spread(function, values, count)
    if not count:
        return None
    if function in ("bit_and", "bit_or"):
        return reduce(and_ if function == "bit_and" else or_, (v for v, _ in values))
    if function == "bit_xor":
        return reduce(xor, (v for v, n in values if n % 2), 0)
    if function == "avg" and isinstance(values[0][0], Decimal):
        return mean_of_decimals(values, count)
    total = model.exact_sum(values)
    return total if function == "sum" else model.value(total / count)


def spread(function: str, values: Iterable[tuple[Any, int]], count: int) -> float | None:
    """A variance of the values as doubles, or its root."""
    below = count - function.endswith("_samp")
    if below <= 0:
        return None
    numbers = [(float(v), n) for v, n in values]
    if any(not math.isfinite(v) for v, _ in numbers):
        return model.NAN
    mean = sum((Fraction(v) * n for v, n in numbers), Fraction(0)) / count
    exact = sum(((Fraction(v) - mean) ** 2 * n for v, n in numbers), Fraction(0)) / below
    try:
        variance = float(exact)
    except OverflowError:
        variance = math.inf if exact > 0 else -math.inf
    if function.startswith("var"):
        return variance
    return model.NAN if variance < 0 else math.sqrt(variance)


def mean_of_decimals(values: Sequence[tuple[Decimal, int]], count: int) -> Decimal:
    """The mean with 4 more places than the values have, rounded half up."""
    places = -int(values[0][0].as_tuple().exponent) + 4
    exact = sum((Fraction(v) * n for v, n in values), Fraction(0)) / count * 10**places
    whole = math.floor(abs(exact) + Fraction(1, 2))
    with localcontext(prec=80):
        return Decimal(-whole if exact < 0 else whole).scaleb(-places)
