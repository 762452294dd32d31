"""NoSync's engine: incremental, durable, time-travelling collections, on Spark."""

from nosync_nb.collection import Collection
from nosync_nb.errors import (
    CorruptLogError,
    DivergenceError,
    DurabilityError,
    ExpressionError,
    FencedError,
    NegativeMultiplicityError,
    NosyncError,
    OutcomeUnknownError,
    OutOfMemoryError,
    SchemaError,
    StageError,
    TimeError,
    TrustError,
)
from nosync_nb.frontier import Frontier
from nosync_nb.inputs import Input
from nosync_nb.lazy import __getattr__ as __getattr__
from nosync_nb.opening import open
from nosync_nb.recovery import RecoveryReport
from nosync_nb.session import Session

__all__ = [
    "Collection",
    "CorruptLogError",
    "DivergenceError",
    "DurabilityError",
    "ExpressionError",
    "FencedError",
    "Frontier",
    "Input",
    "NegativeMultiplicityError",
    "NosyncError",
    "OutOfMemoryError",
    "OutcomeUnknownError",
    "RecoveryReport",
    "SchemaError",
    "Session",
    "StageError",
    "TimeError",
    "TrustError",
    "graphs",
    "open",
    "windows",
]
