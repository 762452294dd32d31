"""Compares the rows of a query with those of DuckDB."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any

Row = tuple[Any, ...]
RELATIVE = 1e-9
ABSOLUTE = 6e-7
"""Averages of decimals have at least six places in Spark, and are doubles in DuckDB."""


def difference(
    ours: Iterable[Any],
    theirs: Iterable[Any],
    *,
    relative: float = RELATIVE,
    absolute: float = ABSOLUTE,
) -> str:
    """Returns the first difference of two sets of rows, or the empty string."""
    one, other = ordered(ours), ordered(theirs)
    if len(one) != len(other):
        return f"{len(one)} rows, DuckDB {len(other)}"
    for a, b in zip(one, other, strict=True):
        if not all(_is_close(x, y, relative, absolute) for x, y in zip(a, b, strict=True)):
            return f"{a}, DuckDB {b}"
    return ""


def ordered(rows: Iterable[Any]) -> list[Row]:
    """Returns rows by their values that are no numbers, then by their rounded numbers."""

    def key(row: Row) -> tuple[list[str], list[str]]:
        numbers = [isinstance(value, int | float | Decimal) for value in row]
        words = [str(v) for v, number in zip(row, numbers, strict=True) if not number]
        return words, [f"{float(v):.3e}" for v, n in zip(row, numbers, strict=True) if n]

    return sorted((tuple(map(_plain, row)) for row in rows), key=key)


def _plain(value: Any) -> Any:
    """A timestamp without its zone, which is UTC here and none in DuckDB."""
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def _is_close(ours: Any, theirs: Any, relative: float, absolute: float) -> bool:
    if isinstance(ours, float | Decimal) and isinstance(theirs, int | float | Decimal):
        return math.isclose(float(ours), float(theirs), rel_tol=relative, abs_tol=absolute)
    return bool(ours == theirs)
