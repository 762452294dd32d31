"""Reads what earlier kernels of the notebook have recorded, and records it for later ones.

A cell is recorded when it begins, and removed at its end. So the next kernel can report the cell
that ran when this kernel died. Both are one small write beside the log, never in the path of a
commit.
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
    """Maintains the memo of the log in use; `memo` is its content."""

    def __init__(self, variables: Variables) -> None:
        self.memo = NotebookMemo()
        self._variables = variables
        self._folder: Path | None = None
        self._began: RunningCell | None = None
        self._interrupted: RunningCell | None = None

    def switch_log(
        self, memo: NotebookMemo, folder: Path | None, *, own: bool, there: Collection[str]
    ) -> None:
        """Switches to the memo of another log.

        Args:
            folder: of that log, None if nothing is to be written there.
            own: it was this notebook's before.
            there: the names of the kernel; those that cells have bound are recorded.
        """
        if not own:
            memo.forget()
        interrupted = memo.ends()
        mine = folder is None or interrupted == self._began
        self._interrupted = None if mine else interrupted
        memo.join(self.memo, there)
        self.memo, self._folder = memo, folder

    def record_cell(self, session: Session, cell: CellSource, number: int) -> None:
        """Records a cell that begins."""
        if self._folder is not None and cell.text:
            self._began = RunningCell(label(cell, number), session.now, cell.repeatable)
            self.memo.begins(self._began)
            self.memo.write(self._folder)

    def bring_back(self, cell: CellSource, say: Callable[[str], None]) -> None:
        """Repeats the imports that a cell needs."""
        self._variables.bring_back(self.memo, cell, say)

    def end(self, source: str, number: int) -> None:
        """Records the names that a cell has bound, and that it no longer runs."""
        changed = self._variables.remember(self.memo, source, number)
        changed |= self.memo.ends() is not None
        if changed and self._folder is not None:
            self.memo.write(self._folder)

    def release(self) -> None:
        """Removes the running cell from the memo when the log is closed."""
        folder, self._folder = self._folder, None
        if self.memo.ends() is not None and folder is not None:
            self.memo.write(folder)

    def add_facts(self, session: Session, cell: CellSource) -> None:
        """Adds facts to a recovery report that the engine cannot know.

        Args:
            cell: the running one.
        """
        report = session.recovery
        missed = self._variables.not_restored(self.memo, cell)
        ran = self._interrupted
        running = "" if ran is None else ran.outcome_text(report.resumed_at)
        spark = ""
        if self.memo.spark and session.spark is None:
            views = formats.count(len(session.stages), "view")
            spark = f"starts again with its settings when a cell needs it, with {views} of stages"
            if not self.memo.conf and "spark" in self.memo.names:
                spark = f"runs elsewhere: the cell that makes `spark` restores {views} of stages"
        report.lacks(missed, running=running, spark=spark)
        self.memo.missed(missed)
