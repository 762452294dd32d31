"""Subscriptions: each listener gets every epoch since it subscribed."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import pytest
from internals import notices_of, services_of

from nosync_nb import NosyncError, Session
from nosync_nb.session.state.subscriptions import Subscriptions


@pytest.fixture
def session(session: Session) -> Session:
    session.input("numbers", "n bigint")
    return session


def commit(session: Session) -> int:
    session.inputs["numbers"].insert([(session.now,)])
    return session.commit()


def test_threads_that_come_and_go_lose_nobody() -> None:
    listeners, together = Subscriptions(lambda call, *what: call(*what)), Barrier(4)

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
    session.on_notice(heard.append)
    assert services_of(session).listeners.on_notice == heard.append
    numbers = session.inputs["numbers"]
    for _ in range(130):
        numbers.insert([(1,)], once="load")
    assert heard == ["input 'numbers': 'load' is loaded already, nothing to do"] * 129
    assert list(notices_of(session)) == heard[-100:]


def stop(session: Session) -> None:
    """A definition that stops a stage, which is a notice: a column that it uses is gone."""
    numbers = session["numbers"]
    session.stage("base", numbers.select("n", "n + 1 AS m"))
    session.stage("reader", session["base"].filter("m > 1"))
    assert session.define({"base": numbers.select("n")})[0].status == "changed"


def test_a_notice_waits_for_nobody_who_changes_the_session(session: Session) -> None:
    """What it is told of is done, and the gate is free: another thread may commit meanwhile."""
    committed: list[bool] = []

    def hear(text: str) -> None:
        other = Thread(target=commit, args=(session,))
        other.start()
        other.join(60)
        committed.append(not other.is_alive())

    session.on_notice(hear)
    stop(session)
    assert committed == [True]
    assert ["stage 'reader' is stale" in each for each in notices_of(session)] == [True]
    assert session.now == 1


def lost(text: str) -> None:
    raise ValueError(text)


CHANGES: dict[str, Callable[[Session], Any]] = {
    "commit": lambda session: session.commit(),
    "define": lambda session: session.define({"base": session["numbers"].filter("n > 1")}),
    "drop": lambda session: session.drop("base", cascade=True),
    "raise": lambda session: lost("mine"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_gets_notices_changes_nothing_and_fails_nothing(session: Session, what: str) -> None:
    heard: list[str] = []

    def hear(text: str) -> None:
        heard.append(text)
        CHANGES[what](session)

    session.on_notice(hear)
    with pytest.warns(UserWarning, match="the handler of notices raised"):
        stop(session)
    session.define({"base": session["numbers"].select("n", "n + 1 AS m")})
    stop(session)  # and no warning: it was told of this kind
    assert ["stale" in each for each in heard] == [True, False, True]
    assert session.stages.keys() == {"base", "reader"}
    assert session.now == 0
    commit(session)
    assert session["base"].rows() == [(0,)]
    session.drop("base", cascade=True)


def test_a_notice_that_comes_while_a_subscriber_hears_leaves_it_refused(session: Session) -> None:
    refused: list[str] = []

    def hear(epoch: int) -> None:
        services_of(session).listeners.add_notice("meanwhile")
        with pytest.raises(NosyncError) as error:
            session.commit()
        refused.append(str(error.value))

    session.on_notice(lambda text: None)
    session.subscribe(hear)
    commit(session)
    assert refused == ["commit inside a subscriber is not possible"]
