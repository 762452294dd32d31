"""Replay of an edited stage: its many frames count with the definition, or not at all.

Between them, a reader or an owner after a crash sees the previous version; once the new version is
defined, it is visible with its whole history.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from internals import log_of

import nosync_nb
from nosync_nb import CorruptLogError, DurabilityError, Session
from nosync_nb.store import store
from nosync_nb.store.records import payloads

EPOCHS = 6


@pytest.fixture(params=[1 << 16, 2], ids=["in frames", "in files"])
def session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Session:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setattr(store, "SPILL_ROWS", request.param)
    made = nosync_nb.open(tmp_path / "log")
    numbers = made.input("numbers", "k int")
    made.stage("sums", numbers.group_by("k").agg(n="count(*)"))
    for n in range(EPOCHS):
        numbers.insert([(n % 3,), (5,), (7,)])
        made.commit()
    return made


def edit(session: Session) -> None:
    """Edits the stage, with all past epochs replayed."""
    session.stage("sums", session["numbers"].filter("k > 0").group_by("k").agg(n="count(*)"))


def contents(session: Session) -> list[Any]:
    assert session["sums"].history() == [range(session.now + 1)]
    return [session["sums"].rows(at=at) for at in range(session.now + 1)]


def when_appending(session: Session, act: Callable[[int, int], None]) -> Callable[[], None]:
    """Calls `act` with number and kind before each frame; returns a function that stops it."""
    log = log_of(session)
    append, count = log.append, [0]

    def watched(kind: int, payload: bytes) -> Any:
        count[0] += 1
        act(count[0], kind)
        return append(kind, payload)

    log.append = watched  # type: ignore[method-assign]

    def stop() -> None:
        log.append = append  # type: ignore[method-assign]

    return stop


def test_reader_sees_old_past_until_edit_is_logged(session: Session) -> None:
    old = contents(session)
    readers = [nosync_nb.open(session.path, mode="r")]

    def look(_: int, __: int) -> None:
        for reader in readers:
            reader.refresh()
            assert contents(reader) == old
        readers.append(nosync_nb.open(session.path, mode="r"))

    stop = when_appending(session, look)
    edit(session)
    stop()
    assert len(readers) > EPOCHS
    new = contents(session)
    assert new != old
    for reader in readers:
        reader.refresh()
        assert contents(reader) == new
    session["numbers"].insert([(1,)])  # type: ignore[attr-defined]
    session.commit()
    for reader in readers:
        reader.refresh()
        assert contents(reader) == contents(session)
        reader.close()
    session.close()


@pytest.mark.parametrize("error", [DurabilityError("the disk is full"), KeyboardInterrupt()])
def test_edit_that_fails_at_any_frame_changes_nothing(
    session: Session, error: BaseException
) -> None:
    """Its replayed epochs are in the log; only those of the next attempt count."""
    old = contents(session)
    follower = nosync_nb.open(session.path, mode="r")
    for at in range(1, EPOCHS + 2):

        def fail(number: int, _: int, at: int = at) -> None:
            if number == at:
                raise error

        stop = when_appending(session, fail)
        with pytest.raises(type(error)):
            edit(session)
        stop()
        assert contents(session) == old
        follower.refresh()
        assert contents(follower) == old
    edit(session)
    new = contents(session)
    assert new != old
    follower.refresh()
    assert contents(follower) == new
    with nosync_nb.open(session.path, mode="r") as reader:
        assert contents(reader) == new
    follower.close()
    session.close()
    with nosync_nb.open(session.path) as session:
        assert contents(session) == new
        session.inputs["numbers"].insert([(1,)])
        session.commit()
        assert session["sums"].rows()[0].n == new[-1][0].n + 1


@pytest.mark.parametrize("count", [-1, 1, 2**70, "all", None, True])
def test_definition_with_missing_replayed_epochs_is_corrupt(session: Session, count: Any) -> None:
    log = log_of(session)
    log.append(
        payloads.DEFINITION, payloads.encode_payload(session.now, 0.0, {"replays": count}, [])
    )
    with pytest.raises(CorruptLogError, match="replayed epochs"):
        nosync_nb.open(session.path, mode="r")
    session.close()
