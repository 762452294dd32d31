"""Applies the limits of `%config NoSync` to the log that is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nosync.protocols import Settings

if TYPE_CHECKING:
    from nosync_nb import Session


def apply_config_limits(settings: Settings, session: Session, say: Callable[[str], None]) -> None:
    """Applies the limits to a session; reports a budget that its log exceeds, and skips it."""
    from nosync_nb import NosyncError

    session.replay_rows = settings.replay_rows
    session.backlog_bytes = settings.backlog_bytes
    try:
        config_budget(settings.budget, session)
    except NosyncError as error:
        say(f"NoSync: {error}; {error.hint}")


def config_budget(budget: str, session: Session | None) -> None:
    """Bounds the disk usage of the log of a session; an empty budget does nothing.

    Raises:
        SchemaError: it is no budget, or less than the log needs; then nothing changes.
    """
    if not budget:
        return
    from nosync_nb.frontend import parse_budget

    size = parse_budget(budget)
    if session is not None and session.mode == "w" and session.budget != size:
        session.budget = budget
