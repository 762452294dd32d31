"""Former paths of classes and functions, so that pickles of earlier releases load.

A pickle refers to classes and functions by module and name. The functions in a log are pickled, and
users pickle values: a report, the origin of a branch, a class that a function names. The former
modules are registered when the package is imported. Each imports the current module when one of its
names is used.

The table lists only public names, and the classes of values that public calls return. Any other
name of a former module raises AttributeError.

Failure: 1. A stage's function names `Frontier`, and the log stores it. 2. A release moves the
class. 3. The log is opened, and its function does not load: the stage is stale, though nothing of
it has changed. Hence a public name keeps its former path.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

FORMER: Mapping[str, Mapping[str, str]] = {
    "collections.explained": {
        "Explained": "collections.explain_output.ExplainOutput",
        "PlanLine": "collections.explain_output.PlanLine",
        "PlanSection": "collections.explain_output.PlanSection",
    },
    "collections.functions.pickles": {"Cached": "collections.functions.closure.Cached"},
    "session.copying": {"copy": "session.copy_log.copy"},
    "session.input": {"Input": "session.writes.input.Input"},
    "session.report": {
        "RecoveryReport": "session.state.report.RecoveryReport",
        "StageReport": "session.state.report.StageReport",
    },
    "session.rewinding": {"RewindReport": "session.timetravel.rewind.RewindReport"},
    "session.watching": {
        "WatchStatus": "session.feeds.folder_watch.WatchStatus",
        "watch": "session.feeds.folder_watch.watch",
    },
    "spark.source": {"NosyncSource": "spark.views.data_source.NosyncSource"},
    "store.frontier": {"Frontier": "store.durability.Frontier"},
    "store.ledger": {
        "Epoch": "store.catalog.epoch_index.EpochInfo",
        "Epochs": "store.catalog.epoch_index.EpochSequence",
    },
    "store.listing": {"Branch": "store.timetravel.branches.BranchInfo"},
    "store.verification.findings": {
        "CopyFound": "store.verification.report.ReplicaFinding",
        "Damaged": "store.verification.report.DamagedRange",
        "Verified": "store.verification.report.VerificationReport",
    },
}
"""The former modules of this package, with the current path of each name."""


class FormerModule(ModuleType):
    """A module that no longer exists; its names are looked up in the current modules.

    Args:
        package: the name of this package.
        name: the former path of the module in the package.
        current: the current path of each name.
    """

    def __init__(self, package: str, name: str, current: Mapping[str, str]) -> None:
        super().__init__(f"{package}.{name}", "A former module: its names have moved.")
        self._package, self._current = package, current

    def __getattr__(self, name: str) -> Any:
        path = self._current.get(name)
        if path is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module, _, attribute = path.rpartition(".")
        return getattr(import_module(f"{self._package}.{module}"), attribute)


def register_former_modules(package: str, modules: dict[str, ModuleType]) -> None:
    """Adds the former modules of a package to `modules`, except those that are there already."""
    for name, current in FORMER.items():
        modules.setdefault(f"{package}.{name}", FormerModule(package, name, current))
