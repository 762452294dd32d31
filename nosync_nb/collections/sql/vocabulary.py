"""The names of functions that SQL can call, for editors."""

from __future__ import annotations

from functools import lru_cache

from nosync_nb.expressions.aggregate_registry import AGGREGATORS
from nosync_nb.expressions.aggregates import ORDERED, WHOLES
from nosync_nb.expressions.functions.registry import FUNCTIONS

_WINDOWS = (
    *("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead"),
    *("first_value", "last_value", "nth_value"),
)
_GENERATORS = ("explode", "explode_outer", "posexplode", "posexplode_outer", "inline")


@lru_cache(maxsize=1)
def sql_functions() -> tuple[str, ...]:
    """Returns the names of functions in lower case, sorted: scalar, aggregate and window."""
    names = {*FUNCTIONS, *AGGREGATORS, *WHOLES, *ORDERED, *_WINDOWS, *_GENERATORS}
    return tuple(sorted(name for name in names if name.isidentifier()))
