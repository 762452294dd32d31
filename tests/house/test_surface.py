"""What a session shows: what its contract promises, and what it shows beyond, which may only go."""

from __future__ import annotations

from nosync_nb import Session

PROMISED = {
    *("input", "commit", "epoch", "pending", "discard", "sync", "iterate"),
    *("stage", "stages", "inputs", "drop", "rename"),
    *("epochs", "now", "frontiers", "recovery_frontier", "recovery", "stats", "close", "verify"),
    *("spark", "spark_rows", "spark_off", "spark_conf", "collect_rows", "replay_rows"),
}
"""What README and the arguments of `open` and the magics' settings promise of a session."""

BEYOND = {
    "begin": "the transaction of a cell",
    "cancel_spark": "interrupting a cell",
    "closed": "the notebook looks whether its session goes on",
    "define": "the stages of a cell, all or none",
    "fenced": "the notebook looks whether its session goes on",
    "graph": "the picture of stages",
    "layers": "`%dd layers`",
    "mode": "how it was opened",
    "notices": "the last lines that were said",
    "on_notice": "where lines are shown",
    "path": "its folder",
    "refresh": "following another's session",
    "settle": "waits for the worker",
    "stale": "`%dd status`",
    "subscribe": "views that follow",
    "tell": "the end of a cell",
}
"""What the notebook needs of a session beside that; nothing is added here."""

NOT_BUILT = {"rewind", "branch", "branches"}
"""Promised, and not there yet."""


def test_a_session_shows_what_is_promised_and_no_more_beyond_than_is_listed(
    session: Session,
) -> None:
    shown = {name for name in {*dir(Session), *vars(session)} if not name.startswith("_")}
    assert sorted(shown - PROMISED) == sorted(BEYOND)
    assert PROMISED - shown == set()
    assert shown & NOT_BUILT == set(), "what is built moves to PROMISED"
