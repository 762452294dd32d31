"""What waits to be committed, and what a cell has committed, in a line.

Words alone: a commit is told by who makes it (see `cells`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nosync_widgets import formats

if TYPE_CHECKING:
    from nosync_nb import Session
    from nosync_nb.session.state.pending_changes import PendingInputChanges
    from nosync_nb.session.state.transactions import Transaction


def pending_rows(holder: Session | Transaction) -> str:
    """What waits in a session or transaction: `3 pending rows (flights)`; empty if nothing does."""
    pending = commit_sizes(holder.pending)
    if not pending:
        return ""
    rows = sum(rows for rows, *_ in pending.values())
    return f"{formats.count(rows, 'pending row')} ({formats.listing(pending)})"


def commit_sizes(pending: Mapping[str, PendingInputChanges]) -> dict[str, tuple[int, int, int]]:
    """Rows that wait, calls, and how many of the rows are taken away, by input."""
    return {name: (item.rows, item.calls, item.removed) for name, item in pending.items()}


def _changed(rows: int, removed: int) -> str:
    """What a commit changed in an input: `3 rows`, `+3 / −1 rows`, `−1 row`."""
    if not removed:
        return formats.count(rows, "row")
    came = rows - removed
    gone = f"−{removed:,} row{'' if removed == 1 and came < 2 else 's'}"
    return f"+{came:,} / {gone}" if came else gone


def commit_text(epoch: int, pending: dict[str, tuple[int, int, int]]) -> str:
    """One line per commit, with advice when many inserts became one epoch."""
    parts = [f"{name} {_changed(rows, removed)}" for name, (rows, _, removed) in pending.items()]
    line = f"epoch {epoch}: {', '.join(parts) or 'nothing new'}"
    calls = max((calls for _, calls, _ in pending.values()), default=0)
    if calls > 1:
        what = "change" if any(removed for *_, removed in pending.values()) else "insert"
        line += (
            f"\n{formats.count(calls, what)} -> 1 epoch; use `with nosync.epoch():` "
            "around each that is a step in time of its own"
        )
    return line
