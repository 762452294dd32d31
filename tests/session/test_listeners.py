"""Listeners: who is told is whoever was there when the telling began, and nobody is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

import nosync_nb
from nosync_nb import Session
from nosync_nb.session.listeners import Listeners


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with nosync_nb.open(tmp_path / "log") as made:
        made.input("numbers", "n bigint")
        yield made


def commit(session: Session) -> int:
    session.inputs["numbers"].insert([(session.now,)])
    return session.commit()


def test_threads_that_come_and_go_lose_nobody() -> None:
    listeners, together = Listeners(), Barrier(4)

    def come_and_go() -> None:
        together.wait(60)
        for n in range(300):
            stop = listeners.subscribe(print)
            if n % 3:
                stop()

    threads = [Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert listeners.subscribers == 4 * 100


def test_who_stops_twice_stops_nobody_else(session: Session) -> None:
    heard: list[int] = []
    stop = session.subscribe(heard.append)
    session.subscribe(heard.append)
    stop()
    stop()
    commit(session)
    assert heard == [1]


def test_who_comes_while_an_epoch_is_told_hears_from_the_next_on(session: Session) -> None:
    heard: list[int] = []
    stops: list[Any] = []

    def first(epoch: int) -> None:
        if not stops:
            stops.append(session.subscribe(heard.append))

    session.subscribe(first)
    commit(session)
    commit(session)
    assert heard == [2]


def test_an_inspector_that_replaces_itself_is_replaced(session: Session) -> None:
    heard: list[tuple[str, int]] = []
    numbers = session.inputs["numbers"]

    def once(epoch: int, changes: Any) -> None:
        heard.append(("once", epoch))
        numbers.inspect(lambda later, changes: heard.append(("then", later)))

    numbers.inspect(once)
    for _ in range(3):
        commit(session)
    assert heard == [("once", 1), ("then", 2), ("then", 3)]


def test_what_is_dropped_and_made_again_under_its_name_is_not_inspected(session: Session) -> None:
    heard: list[int] = []
    session.stage("few", session["numbers"].filter("n < 9"))
    session["few"].inspect(lambda epoch, changes: heard.append(epoch))
    commit(session)
    session.drop("few")
    commit(session)
    session.stage("few", session["numbers"].filter("n < 9"))
    commit(session)
    assert heard == [1]


def test_notices_reach_who_wants_them_and_the_last_are_kept(session: Session) -> None:
    heard: list[str] = []
    session.on_notice = heard.append
    assert session.on_notice == heard.append
    numbers = session.inputs["numbers"]
    for _ in range(130):
        numbers.insert([(1,)], once="load")
    assert heard == ["input 'numbers': 'load' is there already, nothing to do"] * 129
    assert list(session.notices) == heard[-100:]
