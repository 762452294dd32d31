"""Operators: one kernel each, run in process or on executors.

Promises: from changes of the inputs, and traces of what was before, the change of the output; the
same rows wherever it runs. Beside its kernel stands what an operator is to the rooms above, its
`Spec`. Owns: nothing, a kernel is data with one method. Imports: expressions, trace, rows, errors.
"""

from nosync_nb.operators.aggregates.aggregate import Aggregate
from nosync_nb.operators.aggregates.slot_cache import Memo
from nosync_nb.operators.base import Evaluate, Leg, Operator, Place, Row, Step
from nosync_nb.operators.distinct import (
    Multiplicity,
    Threshold,
    ThresholdFunction,
    distinct,
    except_all,
    subtract,
)
from nosync_nb.operators.joins.asof_join import AsOf
from nosync_nb.operators.joins.join import CROSS_ROWS_MAX, Join
from nosync_nb.operators.linear import (
    Concat,
    Consolidate,
    Filter,
    FilterFunction,
    FlatMap,
    Linear,
    Map,
    Negate,
    Pad,
    Select,
    Widen,
)
from nosync_nb.operators.memoized_map import Kept
from nosync_nb.operators.ordering import By, Order
from nosync_nb.operators.reduce import Reduce
from nosync_nb.operators.session_windows import Sessions
from nosync_nb.operators.top_k import Top

__all__ = [
    "CROSS_ROWS_MAX",
    "Aggregate",
    "AsOf",
    "By",
    "Concat",
    "Consolidate",
    "Evaluate",
    "Filter",
    "FilterFunction",
    "FlatMap",
    "Join",
    "Kept",
    "Leg",
    "Linear",
    "Map",
    "Memo",
    "Multiplicity",
    "Negate",
    "Operator",
    "Order",
    "Pad",
    "Place",
    "Reduce",
    "Row",
    "Select",
    "Sessions",
    "Step",
    "Threshold",
    "ThresholdFunction",
    "Top",
    "Widen",
    "distinct",
    "except_all",
    "subtract",
]
