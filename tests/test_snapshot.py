"""Readers in threads of their own, while others define, commit, merge and drop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import pytest

import nosync_nb
from nosync_nb import Session, StageError, TimeError

ROUNDS = 60


@pytest.fixture(autouse=True)
def eager_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@contextmanager
def reading(read: Callable[[], Any]) -> Iterator[list[Any]]:
    """Reads over and over in a thread while the block runs; gives what was not as promised."""
    wrong: list[Any] = []
    begun, ended = Event(), Event()

    def loop() -> None:
        while not ended.is_set() and not wrong:
            try:
                found = read()
            except Exception as error:
                found = error
            if found is not None:
                wrong.append(found)
            begun.set()

    thread = Thread(target=loop)
    thread.start()
    try:
        assert begun.wait(60)
        yield wrong
    finally:
        ended.set()
        thread.join(60)
    assert not thread.is_alive()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with nosync_nb.open(tmp_path / "log") as made:
        made.input("flights", "carrier string, origin string, delay double")
        yield made


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

    with reading(read) as wrong:
        for i in range(ROUNDS):
            flown.stage("slow", flights.filter("delay > 90" if i % 2 else "delay > 60"))
    assert wrong == []


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

    with reading(read) as wrong:
        for _ in range(ROUNDS):
            flown.drop("slow", cascade=True)
            flown.define({"slow": tree}, replay=0)
    assert wrong == []


def test_changes_reach_a_reader_with_their_epoch(flown: Session) -> None:
    flights = flown["flights"]

    def read() -> Any:
        now = flown.now
        rows, changes = len(flights.rows(at=now)), len(flights.changes(upto=now))
        return None if rows == changes == now else (now, rows, changes)

    with reading(read) as wrong:
        for i in range(ROUNDS):
            with flown.epoch(label=f"flight {i}"):
                flights.insert([("AA", "JFK", float(i))])
            if i % 16 == 0:
                flown.settle()
    assert wrong == []


def test_a_label_never_names_an_epoch_that_the_reader_does_not_see(flown: Session) -> None:
    def read() -> Any:
        label = f"flight {flown.now + 1}"
        try:
            return None if len(flown["flights"].rows(at=label)) == int(label[7:]) else label
        except TimeError:
            return None

    with reading(read) as wrong:
        for i in range(flown.now + 1, ROUNDS):
            with flown.epoch(label=f"flight {i}"):
                flown["flights"].insert([("AA", "JFK", 1.0)])
    assert wrong == []


def test_a_stage_with_other_columns_is_not_read_as_the_one_it_was(flown: Session) -> None:
    slow, unnamed = flown["slow"], flown["slow"].filter("delay > 90")
    flown.stage("slow", flown["flights"].select("delay", "carrier"))
    for old in (slow, unnamed):
        with pytest.raises(StageError, match=r"'slow' was edited: it has columns \(delay double"):
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
    head = session._store.log.head.seq
    threads = [
        Thread(target=lambda: made.append(session.input("airports", Rows([{"code": "EWR"}]))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 4
    assert session._store.log.head.seq == head + 1
