"""The conditions of `x IN (SELECT ...)` with nulls, each one that a join evaluates by keys.

`x IN (SELECT y ...)` is true if a row has `x = y`. Otherwise it is null if a row might be equal,
because `x` or `y` is null. For several values, a row might be equal if each of its pairs is equal
or has a null. Each combination of equal pairs and of nulls on either side is a join of its own:
equal pairs are keys, and a null is a filter of one side.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from nosync_nb.collections.sql.algebra import Scalar, equality, is_null

_SPLIT_MAX = 3
"""The most values whose combinations are joins of their own: n values have 3^n."""

Conditions = tuple[Scalar, ...]


def membership(pairs: Sequence[tuple[Scalar, Scalar]]) -> tuple[Conditions, list[Conditions]]:
    """Returns the conditions under which a row is equal, and those under which it might be.

    `x NOT IN (...)` is true if no row satisfies any of them.

    Args:
        pairs: the values, each with the column of the subquery.
    """
    equal = tuple(equality(a, b) for a, b in pairs)
    if len(pairs) > _SPLIT_MAX:
        return equal, [tuple(_might_be_equal(a, b) for a, b in pairs)]
    options = [(equality(a, b), is_null(a), is_null(b)) for a, b in pairs]
    _, *others = product(*options)
    return equal, others


def _might_be_equal(a: Scalar, b: Scalar) -> Scalar:
    pieces = ("coalesce((", *a.pieces, ") = (", *b.pieces, "), true)")
    return Scalar(pieces, a.span)
