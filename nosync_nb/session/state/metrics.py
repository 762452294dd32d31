"""Counters of a session: the running activity, the last work of each stage, and totals.

Threads: commits, definitions and maintenance change them, under a lock of their own. Any thread may
read them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from nosync_nb.dataflow.runtime.activity import ActivityMonitor
from nosync_nb.dataflow.runtime.epoch_result import EpochResult, StageWork

COUNTERS = (
    "epochs",
    "touched",
    "merged",
    "merges",
    "proposals",
    "checkpoints",
    "stalls",
    "executed",
)


class WorkMetrics:
    """The counters of a session, and the last work on each of its stages.

    Attributes:
        counters: epochs, rows touched, rows merged, background merges, proposals (background merges
            that the keeper made), checkpoints, stalls, and executed (how often a stage ran).
        activities: the activities that are running now and may take long.
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # reentrant: a signal handler may interrupt a holder
        self._last: dict[str, StageWork] = {}
        self.counters: dict[str, Any] = dict.fromkeys(COUNTERS, 0)
        self.activities = ActivityMonitor()

    @property
    def stages(self) -> dict[str, StageWork]:
        """The last work on each stage that has run here, by name; a copy."""
        with self._mutex:
            return dict(self._last)

    def last(self, name: str) -> StageWork | None:
        """Returns the last work on a stage; None if it has not run here."""
        return self._last.get(name)

    def count(self, name: str, by: int = 1) -> None:
        """Adds to one counter."""
        with self._mutex:
            self.counters[name] += by

    # -- changes of an epoch or a definition: computed first, because assigning may be repeated --

    def after(self, draft: EpochResult) -> dict[str, int]:
        """Returns the counters that an epoch changes, with their values after it."""
        now, counters = self.counters, self.after_runs(draft.work.values())
        counters["epochs"] = now["epochs"] + 1
        if draft.merged or draft.stalls:
            counters["merged"] = now["merged"] + draft.merged
            counters["stalls"] = now["stalls"] + draft.stalls
        return counters

    def after_runs(self, done: Iterable[StageWork]) -> dict[str, int]:
        """Returns the counters that the work of some stages changes, with their new values."""
        touched, executed = self.counters["touched"], self.counters["executed"]
        for work in done:
            touched, executed = touched + work.touched, executed + 1
        return {"touched": touched, "executed": executed}

    def assign(self, counters: Mapping[str, int], work: Mapping[str, StageWork]) -> None:
        """Sets counters, and the work on the stages that an epoch has run."""
        with self._mutex:
            self._last.update(work)
            self.counters.update(counters)

    def become(self, counters: Mapping[str, int], work: Mapping[str, StageWork]) -> None:
        """Sets counters, and the work on all stages that exist after a definition."""
        with self._mutex:
            self._last = dict(work)
            self.counters.update(counters)
