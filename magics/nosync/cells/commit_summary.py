"""Summarises pending rows and commits in one line, and notices work that a cell has repeated.

The functions only return texts: the module `transaction` commits and prints.

A cell that is run again submits loads whose keys are recorded already. These are counted, because
one line for each would hide the line that matters. Inserts without a key are taken twice, as the
cell says; a notice points that out if it was the same cell and gave the same rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nosync_widgets import formats

if TYPE_CHECKING:
    from nosync_nb import Session
    from nosync_nb.frontend import PendingInputChanges, Transaction

_CELLS_MAX = 256
_EPOCHS_MAX = 64
"""The most epochs of a cell that are compared."""


def pending_rows(holder: Session | Transaction) -> str:
    """Describes the pending rows of a session or transaction: `3 pending rows (flights)`."""
    pending = commit_sizes(holder.pending)
    if not pending:
        return ""
    rows = sum(rows for rows, *_ in pending.values())
    return f"{formats.count(rows, 'pending row')} ({formats.listing(pending)})"


def commit_sizes(pending: Mapping[str, PendingInputChanges]) -> dict[str, tuple[int, int, int]]:
    """Returns the pending rows, calls and removed rows, by input."""
    return {name: (item.rows, item.calls, item.removed) for name, item in pending.items()}


def _change_text(rows: int, removed: int) -> str:
    """Describes the change of an input: `3 rows`, `+3 / −1 rows`, `−1 row`."""
    if not removed:
        return formats.count(rows, "row")
    came = rows - removed
    gone = f"−{removed:,} row{'' if removed == 1 and came < 2 else 's'}"
    return f"+{came:,} / {gone}" if came else gone


def commit_text(epoch: int, pending: dict[str, tuple[int, int, int]]) -> str:
    """Returns one line per commit, with advice when many inserts became one epoch."""
    parts = [
        f"{name} {_change_text(rows, removed)}" for name, (rows, _, removed) in pending.items()
    ]
    line = f"epoch {epoch}: {', '.join(parts) or 'nothing new'}"
    calls = max((calls for _, calls, _ in pending.values()), default=0)
    if calls > 1:
        what = "change" if any(removed for *_, removed in pending.values()) else "insert"
        line += (
            f"\n{formats.count(calls, what)} became one epoch; for one epoch each, wrap them in"
            " `with nosync.epoch():`"
        )
    return line


class UnchangedNotice:
    """Detects repeated work of the cells of one notebook.

    Threads: any may call while a cell runs.
    """

    def __init__(self) -> None:
        self._skipped: list[str] = []
        self._commits: dict[bytes, tuple[str, range]] = {}

    def hear(self, notice: str) -> bool:
        """Keeps the notice of a load that is recorded already until the cell ends."""
        from nosync_nb.frontend import is_skipped_load

        if is_skipped_load(notice):
            self._skipped.append(notice)
            return True
        return False

    def skipped(self, done: str = "") -> str:
        """Returns a message on the skipped loads, before the epochs that were `done`."""
        notices, self._skipped = self._skipped, []
        if not notices:
            return ""
        if len(notices) == 1:
            return f"NoSync: {notices[0]}" + (f"\n{done}" if done else "")
        count = f"{formats.count(len(notices), 'load')} were already committed"
        return f"NoSync: {count}; {done}" if done else f"NoSync: {count}, nothing to do"

    def committed(self, session: Session, source: str, start: int) -> str:
        """Records the commits of a cell after epoch `start`; returns a message about repeated rows.

        Cost: nothing, except for a repeated cell: the rows of the epochs that it made.
        """
        epochs = range(start + 1, session.now + 1)
        if not 0 < len(epochs) <= _EPOCHS_MAX or not source.strip():
            return ""
        text = hashlib.blake2b(source.strip().encode(errors="replace"), digest_size=16).digest()
        path, before = self._commits.pop(text, ("", range(0)))
        self._commits[text] = session.path, epochs
        while len(self._commits) > _CELLS_MAX:
            del self._commits[next(iter(self._commits))]
        if path != session.path or len(before) != len(epochs) or before.stop > epochs.start:
            return ""
        info = session.info
        same = {frozenset(info.repeated_inputs(*pair)) for pair in zip(before, epochs, strict=True)}
        names = sorted(frozenset.intersection(*same))
        if not names:
            return ""
        which = f"epoch {before[0]}" if len(before) == 1 else f"epochs {before[0]} to {before[-1]}"
        return (
            f"NoSync: the same rows as in {which}: {formats.listing(names)} has them twice now;"
            f" `%dd rewind {start}` removes them, insert(rows, once=KEY) inserts a load only once"
        )
