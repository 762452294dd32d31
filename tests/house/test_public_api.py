"""The public API: names, signatures, commands and options as recorded."""

from __future__ import annotations

import public_api

from nosync_nb import Session

SURFACE = public_api.surface()

PROMISED = {
    *("input", "commit", "epoch", "pending", "discard", "sync", "stream"),
    *("iterate", "stage", "stages", "inputs", "drop", "rename"),
    *("epochs", "now", "frontiers", "recovery_frontier", "recovery", "stats", "close", "verify"),
    *("sql", "execute"),
    *("compare", "define", "retain", "budget", "pin", "unpin", "pins"),
    *("branch", "branches", "drop_branch", "follow", "rewind"),
    *("spark", "spark_rows", "spark_off", "spark_conf", "collect_rows", "replay_rows"),
    *("backlog_bytes", "explain"),
    *("info", "replicas", "spark_control", "cursor", "begin", "declared_from_data", "subscribe"),
    *("on_notice", "refresh", "resolve", "owns", "fork", "replay"),
}
"""The members of a session that README, the arguments of `open` and the settings promise."""

BEYOND = {
    "closed": "a program that did not open it looks whether it may still be used",
    "mode": "the same program looks whether it can commit",
    "path": "to open it again, or to say which one it is",
    "stale": "which stages have stopped, and why, while a program runs: the report of an opening"
    " and notices tell it once",
}
"""Further members that users of the library need."""

NOT_BUILT: set[str] = set()


def test_session_shows_promised_and_listed_names(session: Session) -> None:
    shown = {name for name in {*dir(Session), *vars(session)} if not name.startswith("_")}
    assert sorted(shown - PROMISED) == sorted(BEYOND)
    assert PROMISED - shown == set()
    assert shown & NOT_BUILT == set(), "what is built moves to PROMISED"


def test_public_api_is_unchanged() -> None:
    """Names and signatures, commands and options, settings, kinds of errors, JSON keys of logs."""
    assert public_api.broken(public_api.recorded(), SURFACE) == []


def test_additions_and_summaries_are_recorded() -> None:
    assert public_api.recorded() == SURFACE, "run tests/support/public_api.py"


def test_changed_signature_and_dropped_option_are_reported() -> None:
    now = {kind: dict(listed) for kind, listed in SURFACE.items()}
    now["names"]["open"] = "(path)"
    del now["commands"]["%dd logs"]
    now["summaries"]["open"] = "Another summary."
    now["settings"]["added"] = "0"
    reported = public_api.broken(SURFACE, now)
    assert [text.partition(" was ")[0] for text in reported] == [
        "names: open",
        "commands: %dd logs",
    ]


def test_parameters_with_defaults_may_be_added_and_nothing_else() -> None:
    before = {"names": {"f": "(a, b=1, *, c=(2, 3), **more)"}}

    def is_kept(signature: str) -> bool:
        return public_api.broken(before, {"names": {"f": signature}}) == []

    assert is_kept("(a, b=1, d=None, *, c=(2, 3), e=4, **more)")
    assert not is_kept("(a, d, b=1, *, c=(2, 3), **more)")
    assert not is_kept("(a, b=1, d, *, c=(2, 3), **more)")
    assert not is_kept("(a, b=1, *, c=(2, 4), **more)")
    assert not is_kept("(a, b=1, *, **more)")
