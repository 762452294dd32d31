"""The names of functions that SQL can call, for editors."""

from __future__ import annotations

from functools import lru_cache

from nosync_nb.collections.sql.resolver.tuples import WRITTEN_ROWS
from nosync_nb.expressions.aggregate_registry import AGGREGATORS
from nosync_nb.expressions.aggregates import ORDERED, WHOLES
from nosync_nb.expressions.functions.registry import FUNCTIONS
from nosync_nb.expressions.syntax.analyzer import EXPLODING
from nosync_nb.operators.windows.calls import OFFSETS, PICKS, RANKS


@lru_cache(maxsize=1)
def sql_functions() -> tuple[str, ...]:
    """Returns the names of functions in lower case, sorted: scalar, aggregate and window."""
    names = {*FUNCTIONS, *AGGREGATORS, *WHOLES, *ORDERED}
    names |= {*RANKS, *OFFSETS, *PICKS, *EXPLODING, *WRITTEN_ROWS}
    return tuple(sorted(name for name in names if name.isidentifier()))
