"""Recollection: what a notebook knows of the kernels before, and leaves for the one after.

When a cell begins it is noted, and forgotten at its end: so the next kernel can say which cell ran
when this one died. Both are one small write beside the log, never on the way of a commit.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nosync.log.notebook_memo import NotebookMemo, RunningCell
from nosync.variables import Variables, label
from nosync_widgets import formats

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from nosync.cells.source import CellSource
    from nosync_nb import Session


class EarlierKernels:
    """Keeps the memo of the log in use; `memo` is what is remembered."""

    def __init__(self, variables: Variables) -> None:
        self.memo = NotebookMemo()
        self._variables = variables
        self._folder: Path | None = None
        self._began: RunningCell | None = None
        self._interrupted: RunningCell | None = None

    def take(
        self, memo: NotebookMemo, folder: Path | None, *, own: bool, there: Collection[str]
    ) -> None:
        """Goes on with what is remembered of another log.

        Args:
            folder: of that log, None if nothing is to be written there.
            own: it was this notebook's before.
            there: the names of the kernel; what cells have bound among them is remembered.
        """
        if not own:
            memo.forget()
        interrupted = memo.ends()
        mine = folder is None or interrupted == self._began
        self._interrupted = None if mine else interrupted
        memo.join(self.memo, there)
        self.memo, self._folder = memo, folder

    def begin(self, session: Session, cell: CellSource, number: int) -> None:
        """A cell begins."""
        if self._folder is not None and cell.text:
            self._began = RunningCell(label(cell, number), session.now, cell.repeatable)
            self.memo.begins(self._began)
            self.memo.write(self._folder)

    def bring_back(self, cell: CellSource, say: Callable[[str], None]) -> None:
        """Repeats the imports that a cell needs."""
        self._variables.bring_back(self.memo, cell, say)

    def end(self, source: str, number: int) -> None:
        """A cell has ended: what it bound is remembered, and that it does not run any more."""
        changed = self._variables.remember(self.memo, source, number)
        changed |= self.memo.ends() is not None
        if changed and self._folder is not None:
            self.memo.write(self._folder)

    def release(self) -> None:
        """The log is closed."""
        folder, self._folder = self._folder, None
        if self.memo.ends() is not None and folder is not None:
            self.memo.write(folder)

    def tell(self, session: Session, cell: CellSource) -> None:
        """Adds to the report of a recovery what the engine cannot know.

        Args:
            cell: the running one.
        """
        report = session.recovery
        missed = self._variables.not_restored(self.memo, cell)
        ran = self._interrupted
        running = "" if ran is None else ran.told(report.resumed_at)
        spark = ""
        if self.memo.spark and session.spark is None:
            views = formats.count(len(session.stages), "view")
            spark = f"starts again when a cell needs it, as it was set up, with {views} of stages"
            if not self.memo.conf and "spark" in self.memo.names:
                spark = (
                    f"runs elsewhere: with the cell that makes `spark` {views} of stages are back"
                )
        report.lacks(missed, running=running, spark=spark)
        self.memo.missed(missed)
