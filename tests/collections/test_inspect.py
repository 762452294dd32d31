"""`inspect`: a function gets the changes of every live epoch, and changes nothing."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest

from nosync_nb import Session, StageError
from nosync_nb.session.writes import determinism_check

Heard = list[tuple[int, list[tuple[Any, ...]]]]


@pytest.fixture
def session(session: Session) -> Session:
    session.input("flights", "carrier string, delay int")
    return session


def listener(heard: Heard) -> Any:
    def hear(epoch: int, changes: Any) -> None:
        heard.append((epoch, sorted(zip(*changes.to_pydict().values(), strict=True))))

    return hear


def test_inspector_receives_changes_of_each_epoch_that_has_some(session: Session) -> None:
    heard: Heard = []
    flights: Any = session["flights"]
    counts = session.stage("counts", flights.group_by("carrier").agg(n="count(*)"))
    assert counts.inspect(listener(heard)) is counts
    flights.insert([("AA", 1), ("AA", 1)])
    session.commit()
    session.commit()
    flights.insert([("AA", 5)])
    flights.remove([("AA", 1)])
    session.commit()
    flights.remove([("AA", 5)])
    session.commit()
    assert heard == [(1, [("AA", 2, 1)]), (4, [("AA", 1, 1), ("AA", 2, -1)])]


def test_input_may_be_inspected(session: Session) -> None:
    heard: Heard = []
    session["flights"].inspect(listener(heard))
    flights: Any = session["flights"]
    flights.insert([("AA", 1)])
    session.commit()
    assert heard == [(1, [("AA", 1, 1)])]


def test_inspector_of_unnamed_collection_starts_when_it_is_named(session: Session) -> None:
    heard: Heard = []
    flights: Any = session["flights"]
    late = flights.filter("delay > 15").inspect(listener(heard))
    flights.insert([("AA", 20)])
    session.commit()
    session.stage("late", late)
    assert heard == [], "the first run is no live epoch"
    flights.insert([("AA", 30), ("AA", 3)])
    session.commit()
    assert heard == [(2, [("AA", 30, 1)])]


def test_second_inspector_replaces_first_and_none_removes_it(session: Session) -> None:
    first, second = [], []  # type: Heard, Heard
    flights: Any = session["flights"]
    flights.inspect(listener(first)).inspect(listener(second))
    flights.insert([("AA", 1)])
    session.commit()
    flights.inspect(None)
    flights.insert([("AA", 1)])
    session.commit()
    assert (len(first), len(second)) == (0, 1)


def test_exception_in_inspector_is_warning_and_epoch_is_committed(session: Session) -> None:
    def fail(epoch: int, changes: Any) -> None:
        raise ValueError("no")

    flights: Any = session["flights"]
    flights.inspect(fail)
    flights.insert([("AA", 1)])
    with pytest.warns(UserWarning, match=r"the inspector of 'flights' raised ValueError\('no'\)"):
        assert session.commit() == 1
    assert flights.count() == 1


def test_stage_over_inspected_unnamed_collection_is_refused(session: Session) -> None:
    flights: Any = session["flights"]
    late = flights.filter("delay > 15").inspect(print)
    with pytest.raises(StageError, match=r"stage 'n': inspect\(\) needs a name"):
        session.stage("n", late.group_by().agg(n="count(*)"))
    assert "n" not in session.stages
    session.define({"late": late, "n": late.group_by().agg(n="count(*)")})
    assert list(session.stages) == ["late", "n"]


def test_inspector_receives_epoch_in_which_stage_is_demoted(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(determinism_check, "AUDIT_EVERY", 2)

    def guess(row: Any) -> tuple[str, float]:
        return (row.carrier, random.random())

    heard: Heard = []
    flights: Any = session["flights"]
    session.stage("guesses", flights.map(guess, "carrier string, z double")).inspect(
        listener(heard)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the audit says what it found
        for number in range(6):
            flights.insert([("AA", number)])
            session.commit()
    assert [epoch for epoch, _ in heard] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("call", ["insert", "commit", "stage"])
def test_inspector_cannot_change_session(session: Session, call: str) -> None:
    flights: Any = session["flights"]
    calls = {
        "insert": lambda: flights.insert([("UA", 2)]),
        "commit": session.commit,
        "stage": lambda: session.stage("late", flights.filter("delay > 15")),
    }
    flights.inspect(lambda epoch, changes: calls[call]())
    with pytest.warns(UserWarning, match="inside a subscriber"):  # noqa: SIM117
        with session.epoch():
            flights.insert([("AA", 1)])
    assert session.now == 1
    assert not session.stages
    assert [row.carrier for row in flights.rows()] == ["AA"]


def test_invalid_inspectors_are_refused(session: Session) -> None:
    flights: Any = session["flights"]
    with pytest.raises(StageError, match="inspect: 5 is not a function"):
        flights.inspect(5)
    with pytest.raises(StageError, match="inside the body of a loop"):
        flights.iterate(lambda v: v.inspect(print))
