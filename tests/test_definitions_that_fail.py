"""A definition that fails, late or early: all is as before, or all is as afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nosync_nb
from nosync_nb import DurabilityError, NosyncError, Session, StageError
from nosync_nb.session import upkeep
from nosync_nb.store import store
from nosync_nb.trace.past.archive import Archive


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session whose past lies in packs that refer to files, none of which is open."""
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setattr(store, "SPILL_ROWS", 4)
    monkeypatch.setattr(upkeep, "SPILL_ROWS", 4)
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("numbers", "k int, v int")
        session.stage("large", numbers.filter("v > 0"))
        session.stage("counts", session["large"].group_by("k").agg(n="count(*)"))
        for epoch in range(3):
            numbers.insert([(k % 7, epoch + 1) for k in range(20)])
            session.commit()
        upkeep.checkpoint(session)
    with nosync_nb.open(tmp_path / "log") as session:
        yield session


def told(session: Session) -> dict[str, Any]:
    epochs = range(session.now + 1)
    return {
        name: [sorted(session[name].rows(at=at)) for at in epochs] + [sorted(session[name].rows())]
        for name in session.graph
    }


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="packs are read after the frame")
def test_a_drop_that_cannot_read_what_it_forgets_is_done_or_not(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = told(session)
    asked: list[int] = []

    def refused(*_: Any) -> Any:
        asked.append(1)
        raise DurabilityError("no more files can be opened")

    with monkeypatch.context() as patch:
        patch.setattr(Archive, "pack", refused)
        try:
            session.drop("large", cascade=True)
        except NosyncError:
            kept = dict(before)
        else:
            kept = {"numbers": before["numbers"]}
    assert asked, "the drop looks into packs"
    assert told(session) == kept
    session.inputs["numbers"].insert([(1, 1)])
    session.commit()
    now = told(session)
    assert now.keys() == kept.keys()
    assert len(now["numbers"][-1]) == 61
    assert all(len(now[name][-1]) == 61 for name in now.keys() & {"large"})
    session.close()
    with nosync_nb.open(session.path) as session:
        assert told(session) == now


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="it takes its numbers from the graph")
def test_a_definition_that_fails_changes_nothing_of_what_readers_hold(session: Session) -> None:
    """Nor are the numbers given again under which it may have written something."""
    session.commit()
    held = session._snapshot.graph
    numbers, taken = held.numbers, []
    bad = session["numbers"].map(lambda row: (1 // (row.v - 1),), "y int").distinct()
    for _ in range(2):
        with pytest.raises(StageError, match="ZeroDivisionError"):
            session.stage("bad", bad)
        assert session._snapshot.graph is held
        taken.append(held.numbers)
    session.stage("good", session["numbers"].distinct())
    assert min(session._graph.named["good"].traces.values()) >= numbers + 2
    assert taken == [numbers, numbers]
