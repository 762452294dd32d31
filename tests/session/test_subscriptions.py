"""Subscriptions: each listener gets every epoch since it subscribed."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import pytest
from checks.sessions import run_threads
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


def test_concurrent_subscriptions_lose_none() -> None:
    listeners, together = Subscriptions(lambda call, *what: call(*what)), Barrier(4)

    def come_and_go() -> None:
        together.wait(60)
        for n in range(300):
            make_stale = listeners.subscribe(print)
            if n % 3:
                make_stale()

    run_threads(*[come_and_go] * 4)
    assert listeners.subscribers == 4 * 100


def test_stopping_twice_stops_no_other_subscriber(session: Session) -> None:
    received: list[int] = []
    make_stale = session.subscribe(received.append)
    session.subscribe(received.append)
    make_stale()
    make_stale()
    commit(session)
    assert received == [1]


def test_subscriber_added_during_an_epoch_starts_with_the_next(session: Session) -> None:
    received: list[int] = []
    stops: list[Any] = []

    def first(epoch: int) -> None:
        if not stops:
            stops.append(session.subscribe(received.append))

    session.subscribe(first)
    commit(session)
    commit(session)
    assert received == [2]


def test_inspector_can_replace_itself(session: Session) -> None:
    received: list[tuple[str, int]] = []
    numbers = session.inputs["numbers"]

    def once(epoch: int, changes: Any) -> None:
        received.append(("once", epoch))
        numbers.inspect(lambda later, changes: received.append(("then", later)))

    numbers.inspect(once)
    for _ in range(3):
        commit(session)
    assert received == [("once", 1), ("then", 2), ("then", 3)]


def test_dropped_and_redefined_stage_is_not_inspected(session: Session) -> None:
    received: list[int] = []
    session.stage("few", session["numbers"].filter("n < 9"))
    session["few"].inspect(lambda epoch, changes: received.append(epoch))
    commit(session)
    session.drop("few")
    commit(session)
    session.stage("few", session["numbers"].filter("n < 9"))
    commit(session)
    assert received == [1]


def test_notices_reach_their_handler_and_the_last_are_retained(session: Session) -> None:
    received: list[str] = []
    session.on_notice(received.append)
    assert services_of(session).subscriptions.on_notice == received.append
    numbers = session.inputs["numbers"]
    for _ in range(130):
        numbers.insert([(1,)], once="load")
    assert received == ["input 'numbers': 'load' is loaded already, nothing to do"] * 129
    assert list(notices_of(session)) == received[-100:]


def make_stale(session: Session) -> None:
    """Removes a column that a stage uses, so the stage becomes stale, which is a notice."""
    numbers = session["numbers"]
    session.stage("base", numbers.select("n", "n + 1 AS m"))
    session.stage("reader", session["base"].filter("m > 1"))
    assert session.define({"base": numbers.select("n")})[0].status == "changed"


def test_notice_handler_runs_without_the_writer_lock(session: Session) -> None:
    """The change is complete and the lock is free, so another thread can commit."""
    committed: list[bool] = []

    def commit_elsewhere(text: str) -> None:
        other = Thread(target=commit, args=(session,))
        other.start()
        other.join(60)
        committed.append(not other.is_alive())

    session.on_notice(commit_elsewhere)
    make_stale(session)
    assert committed == [True]
    assert ["stage 'reader' is stale" in each for each in notices_of(session)] == [True]
    assert session.now == 1


def fail_with(text: str) -> None:
    raise ValueError(text)


CHANGES: dict[str, Callable[[Session], Any]] = {
    "commit": lambda session: session.commit(),
    "define": lambda session: session.define({"base": session["numbers"].filter("n > 1")}),
    "drop": lambda session: session.drop("base", cascade=True),
    "raise": lambda session: fail_with("mine"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_notice_handler_changes_nothing_and_fails_nothing(session: Session, change: str) -> None:
    received: list[str] = []

    def handle(text: str) -> None:
        received.append(text)
        CHANGES[change](session)

    session.on_notice(handle)
    with pytest.warns(UserWarning, match="the handler of notices raised"):
        make_stale(session)
    session.define({"base": session["numbers"].select("n", "n + 1 AS m")})
    make_stale(session)  # without a warning: it is reported once
    assert ["stale" in each for each in received] == [True, False, True]
    assert session.stages.keys() == {"base", "reader"}
    assert session.now == 0
    commit(session)
    assert session["base"].rows() == [(0,)]
    session.drop("base", cascade=True)


def test_notice_during_a_subscriber_keeps_commits_refused(session: Session) -> None:
    refused: list[str] = []

    def on_epoch(epoch: int) -> None:
        services_of(session).subscriptions.add_notice("meanwhile")
        with pytest.raises(NosyncError) as error:
            session.commit()
        refused.append(str(error.value))

    session.on_notice(lambda text: None)
    session.subscribe(on_epoch)
    commit(session)
    assert refused == ["commit inside a subscriber is not possible"]
