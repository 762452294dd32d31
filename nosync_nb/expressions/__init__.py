"""Spark SQL expressions: compiled for evaluation in process, or marked as known only to Spark.

Promises: an expression has Spark's meaning, also where it is computed here; it is data, and calls
no function that reads files, loads classes or runs code. Owns: nothing. Imports: rows, errors.
"""

from nosync_nb.expressions.aggregate_registry import PAIRS
from nosync_nb.expressions.aggregates import AggregateCall, Aggregation, compile_aggregates
from nosync_nb.expressions.evaluation.generators import (
    Generator,
    generator,
    only_one,
    placed,
    refuse_windows,
    windowed_times,
)
from nosync_nb.expressions.expression import (
    Expression,
    Types,
    UntypedNullError,
    compile_expression,
    expand_select,
    known_type,
    waits,
)
from nosync_nb.expressions.functions.nondeterministic import is_nondeterministic, statement_clock
from nosync_nb.expressions.settings import (
    Asked,
    Registered,
    SettingsDependency,
    SqlSettings,
    of_params,
    recorded_settings,
    retained_settings,
)
from nosync_nb.expressions.suggestions import spark_suggestions
from nosync_nb.expressions.syntax.allowlist import disallowed_reason
from nosync_nb.expressions.syntax.analyzer import (
    CLOCK_FUNCTIONS,
    conjuncts,
    is_unit,
    unstable_function,
)
from nosync_nb.expressions.syntax.parser import (
    OrderTerm,
    listed_patterns,
    parse_list,
    parse_order,
)
from nosync_nb.expressions.syntax.spark_functions import refusal_without_spark
from nosync_nb.expressions.typing_rules import NUMBERS, TIMES, common_type
from nosync_nb.expressions.window_calls import WrittenCall, split_window_calls

__all__ = [
    "CLOCK_FUNCTIONS",
    "NUMBERS",
    "PAIRS",
    "TIMES",
    "AggregateCall",
    "Aggregation",
    "Asked",
    "Expression",
    "Generator",
    "OrderTerm",
    "Registered",
    "SettingsDependency",
    "SqlSettings",
    "Types",
    "UntypedNullError",
    "WrittenCall",
    "common_type",
    "compile_aggregates",
    "compile_expression",
    "conjuncts",
    "disallowed_reason",
    "expand_select",
    "generator",
    "is_nondeterministic",
    "is_unit",
    "known_type",
    "listed_patterns",
    "of_params",
    "only_one",
    "parse_list",
    "parse_order",
    "placed",
    "recorded_settings",
    "refusal_without_spark",
    "refuse_windows",
    "retained_settings",
    "spark_suggestions",
    "split_window_calls",
    "statement_clock",
    "unstable_function",
    "waits",
    "windowed_times",
]
