"""Expressions: Spark SQL compiled to columns, or marked as known to Spark alone."""

from nosync_nb.expressions.aggregates import AggregateCall, Aggregation, compile_aggregates
from nosync_nb.expressions.expression import (
    Expression,
    Types,
    compile_expression,
    expand_select,
)
from nosync_nb.expressions.ordering import OrderTerm, parse_order

__all__ = [
    "AggregateCall",
    "Aggregation",
    "Expression",
    "OrderTerm",
    "Types",
    "compile_aggregates",
    "compile_expression",
    "expand_select",
    "parse_order",
]
