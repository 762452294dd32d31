"""Expressions: Spark SQL compiled to columns, or marked as known to Spark alone.

Promises: an expression means what Spark means by it, also where it is computed here; it is data,
and names no function that reads, loads or runs anything. Owns: nothing. Imports: rows, errors.
"""

from nosync_nb.expressions.aggregates.compiler import AggregateCall, Aggregation, compile_aggregates
from nosync_nb.expressions.aggregates.registry import PAIRS
from nosync_nb.expressions.evaluation.generators import Generator, generator, only_one, placed
from nosync_nb.expressions.expression import (
    Expression,
    Types,
    compile_expression,
    expand_select,
    known_type,
    waits,
)
from nosync_nb.expressions.functions.nondeterministic import differs, one_moment
from nosync_nb.expressions.settings import (
    Asked,
    Depends,
    Registered,
    Settings,
    kept,
    noted,
    of_params,
)
from nosync_nb.expressions.suggestions import waiting
from nosync_nb.expressions.syntax.allowlist import refusal
from nosync_nb.expressions.syntax.conjuncts import conjuncts
from nosync_nb.expressions.syntax.order_by import OrderTerm, parse_list, parse_order
from nosync_nb.expressions.time_windows import refuse_windows, windowed_times

__all__ = [
    "PAIRS",
    "AggregateCall",
    "Aggregation",
    "Asked",
    "Depends",
    "Expression",
    "Generator",
    "OrderTerm",
    "Registered",
    "Settings",
    "Types",
    "compile_aggregates",
    "compile_expression",
    "conjuncts",
    "differs",
    "expand_select",
    "generator",
    "kept",
    "known_type",
    "noted",
    "of_params",
    "one_moment",
    "only_one",
    "parse_list",
    "parse_order",
    "placed",
    "refusal",
    "refuse_windows",
    "waiting",
    "waits",
    "windowed_times",
]
