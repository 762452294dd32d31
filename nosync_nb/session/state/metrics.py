"""Works: what runs now, and what running has cost, each stage last and all of them together.

Threads: who commits, defines and maintains changes it, under its own lock; any may look.
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
        counters: epochs, rows touched and merged, background merges, those of them that the keeper
            has made, checkpoints, stalls, and how often a stage was run.
        doing: what goes on now that may take long.
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # a signal's handler in the middle must not wait for itself
        self._last: dict[str, StageWork] = {}
        self.counters: dict[str, Any] = dict.fromkeys(COUNTERS, 0)
        self.doing = ActivityMonitor()

    @property
    def stages(self) -> dict[str, StageWork]:
        """The last work on each stage that has run here, by name; a copy."""
        with self._mutex:
            return dict(self._last)

    def last(self, name: str) -> StageWork | None:
        """The last work on a stage; None if it has not run here."""
        return self._last.get(name)

    def count(self, name: str, by: int = 1) -> None:
        """Adds to one counter."""
        with self._mutex:
            self.counters[name] += by

    # -- what an epoch or a definition adds: computed before, and assigned as often as one likes ---

    def after(self, draft: EpochResult) -> dict[str, int]:
        """The counters that an epoch changes, as they are after it."""
        now, counters = self.counters, self.after_runs(draft.work.values())
        counters["epochs"] = now["epochs"] + 1
        if draft.merged or draft.stalls:
            counters["merged"] = now["merged"] + draft.merged
            counters["stalls"] = now["stalls"] + draft.stalls
        return counters

    def after_runs(self, done: Iterable[StageWork]) -> dict[str, int]:
        """The counters that stages change which run, as they are after it."""
        touched, executed = self.counters["touched"], self.counters["executed"]
        for work in done:
            touched, executed = touched + work.touched, executed + 1
        return {"touched": touched, "executed": executed}

    def assign(self, counters: Mapping[str, int], work: Mapping[str, StageWork]) -> None:
        """Takes counters, and the work on the stages that an epoch has run."""
        with self._mutex:
            self._last.update(work)
            self.counters.update(counters)

    def become(self, counters: Mapping[str, int], work: Mapping[str, StageWork]) -> None:
        """Takes counters, and the work on all stages that there are after a definition."""
        with self._mutex:
            self._last = dict(work)
            self.counters.update(counters)
