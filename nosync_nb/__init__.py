"""NoSync's engine: incremental, durable, time-travelling collections, on Spark."""

from importlib import import_module
from sys import modules
from types import ModuleType

from nosync_nb.collections.collection import Collection
from nosync_nb.collections.position import Position
from nosync_nb.errors import (
    CorruptLogError,
    DivergenceError,
    DurabilityError,
    ExpressionError,
    FencedError,
    MisuseError,
    NegativeMultiplicityError,
    NosyncError,
    OutcomeUnknownError,
    OutOfMemoryError,
    SchemaError,
    SqlError,
    StageError,
    TimeError,
    TrustError,
)
from nosync_nb.former_modules import register_former_modules
from nosync_nb.session.copy_log import copy
from nosync_nb.session.feeds.folder_watch import watch
from nosync_nb.session.opening import open
from nosync_nb.session.session import Session
from nosync_nb.session.state.report import RecoveryReport
from nosync_nb.session.writes.input import Input
from nosync_nb.store.durability import Frontier

__version__ = "0.1.0"

__all__ = [
    "Collection",
    "CorruptLogError",
    "DivergenceError",
    "DurabilityError",
    "ExpressionError",
    "FencedError",
    "Frontier",
    "Input",
    "MisuseError",
    "NegativeMultiplicityError",
    "NosyncError",
    "OutOfMemoryError",
    "OutcomeUnknownError",
    "Position",
    "RecoveryReport",
    "SchemaError",
    "Session",
    "SqlError",
    "StageError",
    "TimeError",
    "TrustError",
    "copy",
    "graphs",
    "open",
    "watch",
    "windows",
]

register_former_modules(__name__, modules)

_LAZY = ("graphs", "windows")
"""Modules that are loaded at their first use, not when the package is imported."""


def __getattr__(name: str) -> ModuleType:
    if name not in _LAZY:
        module = modules[__name__]
        raise AttributeError(f"module 'nosync' has no attribute {name!r}", name=name, obj=module)
    return import_module(f"nosync_nb.collections.library.{name}")
