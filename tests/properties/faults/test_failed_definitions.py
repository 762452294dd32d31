"""Failed definitions: afterwards all is as before, or all is defined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from internals import checkpoint_now, graph_of, store_of

import nosync_nb
from nosync_nb import DurabilityError, NosyncError, Session, StageError
from nosync_nb.session.state.publisher import DefinitionRedo, Publisher
from nosync_nb.trace.history.archive import Archive


@pytest.fixture
def session(tmp_path: Path, own_key: None, large_from_four_rows: None) -> Iterator[Session]:
    """A session whose history lies in packs that refer to files; no file is open."""
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("numbers", "k int, v int")
        session.stage("large", numbers.filter("v > 0"))
        session.stage("counts", session["large"].group_by("k").agg(n="count(*)"))
        for epoch in range(3):
            numbers.insert([(k % 7, epoch + 1) for k in range(20)])
            session.commit()
        checkpoint_now(session)
    with nosync_nb.open(tmp_path / "log") as session:
        yield session


def rows_by_stage(session: Session) -> dict[str, Any]:
    past = {name: session[name].history() for name in session.info.reads}
    return {
        name: [sorted(session[name].rows(at=at)) for epochs in past[name] for at in epochs]
        + [sorted(session[name].rows())]
        for name in past
    }


def test_drop_with_unreadable_history_is_atomic(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows_by_stage(session)
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
    assert rows_by_stage(session) == kept
    session.inputs["numbers"].insert([(1, 1)])
    session.commit()
    now = rows_by_stage(session)
    assert now.keys() == kept.keys()
    assert len(now["numbers"][-1]) == 61
    assert all(len(now[name][-1]) == 61 for name in now.keys() & {"large"})
    session.close()
    with nosync_nb.open(session.path) as session:
        assert rows_by_stage(session) == now


def test_failed_definition_changes_no_graph_of_readers(session: Session) -> None:
    """The numbers of its traces are not reused, because it may have written under them."""
    session.commit()
    held = graph_of(session)
    numbers, taken = held.numbers, []
    bad = session["numbers"].map(lambda row: (1 // (row.v - 1),), "y int").distinct()
    for _ in range(2):
        with pytest.raises(StageError, match="ZeroDivisionError"):
            session.stage("bad", bad)
        assert graph_of(session) is held
        taken.append(held.numbers)
    session.stage("good", session["numbers"].distinct())
    assert min(graph_of(session).named["good"].traces.values()) >= numbers + 2
    assert taken == [numbers, numbers]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()], ids=repr)
@pytest.mark.parametrize(
    ("act", "note", "names"),
    [
        (
            lambda s: s.stage("more", s["numbers"].filter("v > 1")),
            "stage 'more' is defined; do not define it again",
            {"numbers", "large", "counts", "more"},
        ),
        (
            lambda s: s.define({n: s["numbers"].filter("v > 1") for n in "ab"}),
            "stages 'a', 'b' are defined; do not define them again",
            {"numbers", "large", "counts", "a", "b"},
        ),
        (
            lambda s: s.input("other", "k int"),
            "input 'other' is defined; do not define it again",
            {"numbers", "large", "counts", "other"},
        ),
        (
            lambda s: s.drop("large", "counts"),
            "'large', 'counts': dropped; do not drop again",
            {"numbers"},
        ),
        (
            lambda s: s.rename("counts", "totals"),
            "'counts' has been renamed to 'totals'; do not rename it again",
            {"numbers", "large", "totals"},
        ),
    ],
    ids=["define", "define several", "input", "drop", "rename"],
)
def test_error_after_written_definition_reports_it_as_defined(
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Session], Any],
    note: str,
    names: set[str],
    error: BaseException,
) -> None:
    session.commit()
    assign, raised = Publisher.assign_definition, list[BaseException]()

    def once(publisher: Publisher, record: DefinitionRedo) -> None:
        if not raised:
            raised.append(error)
            raise error
        assign(publisher, record)

    monkeypatch.setattr(Publisher, "assign_definition", once)
    with pytest.raises((KeyboardInterrupt, MemoryError)) as came:
        act(session)
    cause = came.value.__cause__
    notes = [*getattr(came.value, "__notes__", ()), *getattr(cause, "__notes__", ())]
    assert note in notes
    assert "no stage has changed" not in str(came.value)
    assert session.info.reads.keys() == names
    now = rows_by_stage(session)
    session.close()
    with nosync_nb.open(session.path) as session:
        assert rows_by_stage(session) == now


def test_error_before_written_definition_adds_no_note(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.commit()
    monkeypatch.setattr(store_of(session), "write_definition", lambda _: int("x"))
    with pytest.raises(ValueError, match="int") as came:
        session.stage("more", session["numbers"].filter("v > 1"))
    assert not hasattr(came.value, "__notes__")
    assert "more" not in session
