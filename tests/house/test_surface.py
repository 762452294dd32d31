"""What a session shows: what its contract promises, and what it shows beyond, with the reason."""

from __future__ import annotations

from nosync_nb import Session

PROMISED = {
    *("input", "commit", "epoch", "pending", "discard", "sync", "stream"),
    *("iterate", "stage", "stages", "inputs", "drop", "rename"),
    *("epochs", "now", "frontiers", "recovery_frontier", "recovery", "stats", "close", "verify"),
    *("compare", "define", "retain", "budget", "pin", "unpin", "pins"),
    *("branch", "branches", "drop_branch", "follow", "rewind"),
    *("spark", "spark_rows", "spark_off", "spark_conf", "collect_rows", "replay_rows"),
    "backlog_bytes",
}
"""What README and the arguments of `open` and the magics' settings promise of a session."""

BEYOND = {
    "closed": "a program that did not open it looks whether it may still be used",
    "mode": "the same program looks whether it can commit",
    "path": "to open it again, or to say which one it is",
    "stale": "which stages have stopped, and why, while a program runs: the report of an opening"
    " and notices tell it once",
}
"""What a user of the library needs beside that, of which the contract is silent; what a view, a
measurement or a test wants is asked of the owner that does it (`owners_of`)."""

NOT_BUILT: set[str] = set()
"""Promised, and not there yet."""


def test_a_session_shows_what_is_promised_and_no_more_beyond_than_is_listed(
    session: Session,
) -> None:
    shown = {name for name in {*dir(Session), *vars(session)} if not name.startswith("_")}
    assert sorted(shown - PROMISED) == sorted(BEYOND)
    assert PROMISED - shown == set()
    assert shown & NOT_BUILT == set(), "what is built moves to PROMISED"
