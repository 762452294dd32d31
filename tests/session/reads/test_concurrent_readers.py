"""Concurrent readers: in threads, at every step of definitions, commits, packs and drops."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from threading import Barrier
from typing import Any

import pytest
from checks.sessions import run_threads, values
from faults.interleaving import at_every_line, at_one_line_after_the_other
from internals import checkpoint_now, log_of, snapshot_of

from nosync_nb import Session, StageError, TimeError
from nosync_nb.session.reads import reader

SEEN = ("dataflow/snapshot", "trace/history/history")
WRITER = ("session/writes/commit", "session/definitions/define", "session/state/publisher")
WRITER += ("session/session", "session/maintenance/maintenance")
WRITER += ("store/store", *SEEN)
READER = ("session/reads/reader", *SEEN)


def check_results(wrong: list[Any]) -> None:
    """Asserts that no order gave a wrong result; `wrong` has None for each right one."""
    assert len(wrong) > 10, "the interleaving had lines to stop at"
    assert [each for each in wrong if each is not None] == []


@pytest.fixture
def session(session: Session) -> Session:
    session.input("flights", "carrier string, origin string, delay double")
    return session


def fly(session: Session, *flights: tuple[str, str, float]) -> None:
    session.inputs["flights"].insert(list(flights))
    session.commit()


@pytest.fixture
def session_with_flights(session: Session) -> Session:
    session.stage("slow", session["flights"].filter("delay > 60"))
    session.stage("carriers", session["slow"].select("carrier").distinct())
    for delay in (65.0, 95.0, 120.0):
        fly(session, ("UA", "EWR", delay))
    return session


def test_reader_never_sees_half_a_definition(session_with_flights: Session) -> None:
    slow, carriers, flights = (
        session_with_flights["slow"],
        session_with_flights["carriers"],
        session_with_flights["flights"],
    )

    def read() -> Any:
        now = [r.delay for r in slow.rows()]
        past = [r.delay for r in slow.rows(at=2)]
        either = ((95.0,), (65.0, 95.0))
        expected = {(65.0, 95.0, 120.0): either, (95.0, 120.0): either}
        if tuple(now) not in expected or tuple(past) not in expected[tuple(now)]:
            return now, past
        return None if values(carriers) == ["UA"] else values(carriers)

    bounds = cycle((90, 60))

    def define() -> None:
        session_with_flights.stage("slow", flights.filter(f"delay > {next(bounds)}"))

    check_results(at_every_line(WRITER, define, read))
    check_results(at_every_line(WRITER, define, read))
    check_results(at_one_line_after_the_other(("session/reads/reader",), read, define))


def test_reader_of_a_dropped_stage_sees_all_or_nothing(session_with_flights: Session) -> None:
    tree = session_with_flights["flights"].filter("delay > 60")

    def read() -> Any:
        try:
            found = (
                len(session_with_flights["slow"].rows(at=3)),
                len(session_with_flights["slow"].changes(upto=3)),
            )
        except StageError as error:
            return None if "there is no stage" in str(error) else error
        return None if found == (3, 3) else found

    def drop() -> None:
        session_with_flights.drop("slow", cascade=True)

    def define() -> None:
        session_with_flights.define({"slow": tree}, replay=0)

    for _ in range(2):
        check_results(at_every_line(WRITER, drop, read))
        check_results(at_every_line(WRITER, define, read))
        checkpoint_now(session_with_flights)
    check_results(at_one_line_after_the_other(READER, read, lambda: (drop(), define())))
    check_results(
        at_one_line_after_the_other(
            READER, read, lambda: drop() if "slow" in session_with_flights.stages else define()
        )
    )


def test_changes_become_visible_with_their_epoch(session_with_flights: Session) -> None:
    flights = session_with_flights["flights"]

    def read() -> Any:
        now = session_with_flights.now
        rows, changes = len(flights.rows(at=now)), len(flights.changes(upto=now))
        return None if rows == changes == now else (now, rows, changes)

    def commit() -> None:
        with session_with_flights.epoch():
            flights.insert([("AA", "JFK", float(session_with_flights.now))])

    def settle() -> None:
        checkpoint_now(session_with_flights)

    for act in (commit, settle, commit, settle, commit):
        check_results(at_every_line(WRITER, act, read))
    check_results(at_one_line_after_the_other(READER, read, lambda: (commit(), settle())))


def test_label_never_names_an_epoch_that_is_not_visible(session_with_flights: Session) -> None:
    def read() -> Any:
        label = f"flight {session_with_flights.now + 1}"
        try:
            return (
                None
                if len(session_with_flights["flights"].rows(at=label)) == int(label[7:])
                else label
            )
        except TimeError as error:
            return None if "no epoch is labelled" in str(error) else error

    def commit() -> None:
        with session_with_flights.epoch(label=f"flight {session_with_flights.now + 1}"):
            session_with_flights["flights"].insert([("AA", "JFK", 1.0)])

    check_results(at_every_line(WRITER, commit, read))
    check_results(at_one_line_after_the_other((*READER, "collections/readable"), read, commit))


def test_reference_to_a_stage_with_other_columns_is_refused(session_with_flights: Session) -> None:
    slow, unnamed = session_with_flights["slow"], session_with_flights["slow"].filter("delay > 90")
    session_with_flights.stage("slow", session_with_flights["flights"].select("delay", "carrier"))
    for old in (slow, unnamed):
        with pytest.raises(
            StageError, match=r"'slow' was edited: it now has columns \(delay double"
        ):
            old.rows()
    assert session_with_flights["slow"].rows()[0] == (65.0, "UA")


def test_failed_definition_stops_nothing(session_with_flights: Session) -> None:
    session_with_flights.stage(
        "origins", session_with_flights["slow"].group_by("origin").agg(n="count(*)")
    )
    bad = session_with_flights["flights"].map(lambda row: (1 / (row.delay - 65),), "y double")
    with pytest.raises(StageError, match="ZeroDivisionError"):
        session_with_flights.define(
            {"slow": session_with_flights["flights"].select("delay"), "bad": bad}
        )
    fly(session_with_flights, ("AA", "JFK", 70.0))
    assert values(session_with_flights["origins"]) == [("EWR", 3), ("JFK", 1)]


def test_input_declared_by_several_threads_is_created_once(session: Session) -> None:
    together = Barrier(4)

    class Rows(list[Any]):
        """Rows that are first read after all threads have found no input of that name."""

        met = False

        def __iter__(self) -> Iterator[Any]:
            if not self.met:
                self.met = True
                together.wait(60)
            return super().__iter__()

    inputs: list[Any] = []
    head = log_of(session).head.seq
    run_threads(*[lambda: inputs.append(session.input("airports", Rows([{"code": "EWR"}])))] * 4)
    assert len(inputs) == 4
    assert log_of(session).head.seq == head + 1


@pytest.mark.fault(41)
@pytest.mark.parametrize("packed", [False, True])
def test_snapshot_of_a_reader_does_not_change(session_with_flights: Session, packed: bool) -> None:
    snapshot = snapshot_of(session_with_flights)
    if packed:
        checkpoint_now(session_with_flights)
    session_with_flights.drop("carriers", "slow")
    checkpoint_now(session_with_flights)
    fly(session_with_flights, ("UA", "EWR", 150.0))
    for at in range(4):
        assert len(reader.collection_state(snapshot, "slow", at)) == at
        assert len(reader.collection_state(snapshot, "flights", at)) == at
    log = snapshot.graph.named["slow"].log
    assert log is not None
    assert sum(len(each) for each in snapshot.history.changes(log, 1, 3)) == 2
