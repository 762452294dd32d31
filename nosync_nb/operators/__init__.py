"""Operators: one kernel for each, run in this process or on executors.

Promises: the change of the output, computed from the changes of the inputs and the traces of their
previous rows; the same rows wherever it runs. The `Spec` beside a kernel is the operator's
interface to the packages above. Owns: nothing, because a kernel is data with one method. Imports:
expressions, trace, rows, errors.
"""

from nosync_nb.operators.aggregates.aggregate import Aggregate
from nosync_nb.operators.aggregates.slot_cache import SlotCache
from nosync_nb.operators.asof_join import AsOfJoin
from nosync_nb.operators.base import Evaluate, LookupStage, LoopPlacement, Operator, RowPiece, Step
from nosync_nb.operators.distinct import (
    Multiplicity,
    Threshold,
    ThresholdFunction,
    distinct,
    except_all,
    subtract,
)
from nosync_nb.operators.join import CROSS_ROWS_MAX, Join
from nosync_nb.operators.linear import (
    Concat,
    Consolidate,
    Filter,
    FilterFunction,
    FlatMap,
    Linear,
    Map,
    MemoizedMap,
    Negate,
    Pad,
    Select,
    Widen,
)
from nosync_nb.operators.ordering import OrderCodes, OrderColumn
from nosync_nb.operators.range_join import RangeJoin, has_exact_codes
from nosync_nb.operators.reduce import Reduce
from nosync_nb.operators.session_windows import Sessions
from nosync_nb.operators.top_k import TopK

__all__ = [
    "CROSS_ROWS_MAX",
    "Aggregate",
    "AsOfJoin",
    "Concat",
    "Consolidate",
    "Evaluate",
    "Filter",
    "FilterFunction",
    "FlatMap",
    "Join",
    "Linear",
    "LookupStage",
    "LoopPlacement",
    "Map",
    "MemoizedMap",
    "Multiplicity",
    "Negate",
    "Operator",
    "OrderCodes",
    "OrderColumn",
    "Pad",
    "RangeJoin",
    "Reduce",
    "RowPiece",
    "Select",
    "Sessions",
    "SlotCache",
    "Step",
    "Threshold",
    "ThresholdFunction",
    "TopK",
    "Widen",
    "distinct",
    "except_all",
    "has_exact_codes",
    "subtract",
]
