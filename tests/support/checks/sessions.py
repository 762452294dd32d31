"""Rows, replicas and threads of a session, as several tests compare and await them."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

from internals import services_of

from nosync_nb import Session

WAIT_S = 120.0


def values(collection: Any, at: Any = None) -> list[Any]:
    """Returns the rows of a collection as tuples, those of one column as values."""
    return [tuple(row) if len(row) > 1 else row[0] for row in collection.rows(at)]


def past_rows(session: Session, name: str) -> dict[int, list[tuple[Any, ...]]]:
    """Returns the sorted rows of a collection at every readable epoch."""
    epochs = [epoch for each in session[name].history() for epoch in each]
    return {epoch: sorted(tuple(row) for row in session[name].rows(epoch)) for epoch in epochs}


def wait_until_level(session: Session) -> None:
    """Waits until all replicas have everything."""
    replication = services_of(session).replication
    with replication.heard:
        assert replication.heard.wait_for(
            lambda: all(each.state == "level" for each in replication.status()), WAIT_S
        ), replication.status()


def run_threads(*calls: Callable[[], object]) -> None:
    """Runs each call in a thread of its own, and waits for all of them."""
    threads = [Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def in_thread(call: Callable[[], Any]) -> Any:
    """Returns the result of a call in another thread, or the error that it raises."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    run_threads(run)
    return found[0]
