"""Concurrent readers: in threads, at every step of definitions, commits, packs and drops."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from threading import Barrier, Thread
from typing import Any

import pytest
from faults.interleaving import at_every_line, at_one_line_after_the_other
from internals import checkpoint_now, log_of, snapshot_of

from nosync_nb import Session, StageError, TimeError
from nosync_nb.session.reads import reader

SEEN = ("dataflow/snapshot", "trace/history/history")
WRITER = ("session/writes/commit", "session/definitions/define", "session/state/publisher")
WRITER += ("session/state/redo_records", "session/session", "session/maintenance/maintenance")
WRITER += ("store/store", *SEEN)
READER = ("session/reads/reader", *SEEN)


def never(wrong: list[Any]) -> None:
    """Nothing of what was read in all those orders was not as promised."""
    assert len(wrong) > 10, "there were lines to stand still at"
    assert [each for each in wrong if each is not None] == []


@pytest.fixture
def session(session: Session) -> Session:
    session.input("flights", "carrier string, origin string, delay double")
    return session


def fly(session: Session, *flights: tuple[str, str, float]) -> None:
    session.inputs["flights"].insert(list(flights))
    session.commit()


def values(collection: Any) -> list[Any]:
    return [tuple(row) if len(row) > 1 else row[0] for row in collection.rows()]


@pytest.fixture
def flown(session: Session) -> Session:
    session.stage("slow", session["flights"].filter("delay > 60"))
    session.stage("carriers", session["slow"].select("carrier").distinct())
    for delay in (65.0, 95.0, 120.0):
        fly(session, ("UA", "EWR", delay))
    return session


def test_a_reader_never_sees_half_a_definition(flown: Session) -> None:
    slow, carriers, flights = flown["slow"], flown["carriers"], flown["flights"]

    def read() -> Any:
        now = [r.delay for r in slow.rows()]
        past = [r.delay for r in slow.rows(at=2)]
        either = ((95.0,), (65.0, 95.0))
        known = {(65.0, 95.0, 120.0): either, (95.0, 120.0): either}
        if tuple(now) not in known or tuple(past) not in known[tuple(now)]:
            return now, past
        return None if values(carriers) == ["UA"] else values(carriers)

    bounds = cycle((90, 60))

    def define() -> None:
        flown.stage("slow", flights.filter(f"delay > {next(bounds)}"))

    never(at_every_line(WRITER, define, read))
    never(at_every_line(WRITER, define, read))
    never(at_one_line_after_the_other(("session/reads/reader",), read, define))


def test_a_reader_of_a_stage_that_is_dropped_sees_all_of_it_or_that_it_is_gone(
    flown: Session,
) -> None:
    tree = flown["flights"].filter("delay > 60")

    def read() -> Any:
        try:
            found = len(flown["slow"].rows(at=3)), len(flown["slow"].changes(upto=3))
        except StageError as error:
            return None if "there is no stage" in str(error) else error
        return None if found == (3, 3) else found

    def drop() -> None:
        flown.drop("slow", cascade=True)

    def define() -> None:
        flown.define({"slow": tree}, replay=0)

    for _ in range(2):
        never(at_every_line(WRITER, drop, read))
        never(at_every_line(WRITER, define, read))
        checkpoint_now(flown)
    never(at_one_line_after_the_other(READER, read, lambda: (drop(), define())))
    never(
        at_one_line_after_the_other(
            READER, read, lambda: drop() if "slow" in flown.stages else define()
        )
    )


def test_changes_reach_a_reader_with_their_epoch(flown: Session) -> None:
    flights = flown["flights"]

    def read() -> Any:
        now = flown.now
        rows, changes = len(flights.rows(at=now)), len(flights.changes(upto=now))
        return None if rows == changes == now else (now, rows, changes)

    def commit() -> None:
        with flown.epoch():
            flights.insert([("AA", "JFK", float(flown.now))])

    def settle() -> None:
        checkpoint_now(flown)

    for act in (commit, settle, commit, settle, commit):
        never(at_every_line(WRITER, act, read))
    never(at_one_line_after_the_other(READER, read, lambda: (commit(), settle())))


def test_a_label_never_names_an_epoch_that_the_reader_does_not_see(flown: Session) -> None:
    def read() -> Any:
        label = f"flight {flown.now + 1}"
        try:
            return None if len(flown["flights"].rows(at=label)) == int(label[7:]) else label
        except TimeError as error:
            return None if "no epoch is labelled" in str(error) else error

    def commit() -> None:
        with flown.epoch(label=f"flight {flown.now + 1}"):
            flown["flights"].insert([("AA", "JFK", 1.0)])

    never(at_every_line(WRITER, commit, read))
    never(at_one_line_after_the_other((*READER, "collections/readable"), read, commit))


def test_a_stage_with_other_columns_is_not_read_as_the_one_it_was(flown: Session) -> None:
    slow, unnamed = flown["slow"], flown["slow"].filter("delay > 90")
    flown.stage("slow", flown["flights"].select("delay", "carrier"))
    for old in (slow, unnamed):
        with pytest.raises(
            StageError, match=r"'slow' was edited: it now has columns \(delay double"
        ):
            old.rows()
    assert flown["slow"].rows()[0] == (65.0, "UA")


def test_a_definition_that_fails_stops_nothing(flown: Session) -> None:
    flown.stage("origins", flown["slow"].group_by("origin").agg(n="count(*)"))
    bad = flown["flights"].map(lambda row: (1 / (row.delay - 65),), "y double")
    with pytest.raises(StageError, match="ZeroDivisionError"):
        flown.define({"slow": flown["flights"].select("delay"), "bad": bad})
    fly(flown, ("AA", "JFK", 70.0))
    assert values(flown["origins"]) == [("EWR", 3), ("JFK", 1)]


def test_an_input_that_several_threads_make_at_once_is_made_once(session: Session) -> None:
    together = Barrier(4)

    class Rows(list[Any]):
        """Whoever looks at these rows has found no input of that name, as have the others."""

        met = False

        def __iter__(self) -> Iterator[Any]:
            if not self.met:
                self.met = True
                together.wait(60)
            return super().__iter__()

    made: list[Any] = []
    head = log_of(session).head.seq
    threads = [
        Thread(target=lambda: made.append(session.input("airports", Rows([{"code": "EWR"}]))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 4
    assert log_of(session).head.seq == head + 1


@pytest.mark.fault(41)
@pytest.mark.parametrize("packed", [False, True])
def test_what_a_reader_holds_does_not_change_under_him(flown: Session, packed: bool) -> None:
    seen = snapshot_of(flown)
    if packed:
        checkpoint_now(flown)
    flown.drop("carriers", "slow")
    checkpoint_now(flown)
    fly(flown, ("UA", "EWR", 150.0))
    for at in range(4):
        assert len(reader.collection_state(seen, "slow", at)) == at
        assert len(reader.collection_state(seen, "flights", at)) == at
    log = seen.graph.named["slow"].log
    assert log is not None
    assert sum(len(each) for each in seen.history.changes(log, 1, 3)) == 2
