"""Interrupts just before a wait: they end it.

Its flag is set, and no call of the system is interrupted, as none has begun: what is waited for may
never come.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from internals import sleeps

import nosync_nb
from nosync_nb import Session
from nosync_nb.files.filesystem import File
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.store import threads

WAIT_S = 60.0


def interrupted(wait: Callable[[], object]) -> None:
    """Sets the flag of an interrupt while the main thread waits, and has it end that soon."""
    begins, ended = threading.Event(), threading.Event()

    def interrupt() -> None:
        begins.wait()
        while not sleeps(threading.main_thread()):
            if ended.wait(0.001):
                return
        _thread.interrupt_main()

    thread, begun = threading.Thread(target=interrupt), time.monotonic()
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            _begun(begins, wait)
    finally:
        ended.set()
        thread.join()
    assert time.monotonic() - begun < WAIT_S / 2


def _begun(begins: threading.Event, wait: Callable[[], object]) -> None:
    begins.set()
    wait()


@pytest.fixture
def over() -> Iterator[threading.Event]:
    """Set when what hangs may go on, at the latest when a test ends or has waited for long."""
    over = threading.Event()
    late = threading.Timer(WAIT_S, over.set)
    late.start()
    yield over
    over.set()
    late.cancel()


@pytest.fixture
def worker(over: threading.Event) -> Iterator[BackgroundWorker]:
    """A worker whose task ends when it may."""
    worker = BackgroundWorker()
    worker.submit(object(), over.wait)
    yield worker
    over.set()
    worker.close()


def test_who_waits_for_a_disk_that_hangs(
    session: Session, over: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = session.input("numbers", "n bigint")
    session.sync("disk")
    sync = File.sync

    def hang(file: File) -> None:
        over.wait()
        sync(file)

    monkeypatch.setattr(File, "sync", hang)
    numbers.insert([(1,)])
    session.commit()
    interrupted(lambda: session.sync("disk"))
    over.set()
    session.sync("disk")
    assert numbers.rows() == [(1,)]


def test_who_waits_for_replicas_that_are_away(tmp_path: Path) -> None:
    replica = tmp_path / "replica"
    with nosync_nb.open(tmp_path / "log", replicas=[replica.as_uri()]) as session:
        numbers = session.input("numbers", "n bigint")
        session.sync("replicas", timeout=WAIT_S)
        replica.rename(tmp_path / "away")
        replica.touch()  # nothing can be made there
        numbers.insert([(1,)])
        session.commit()
        interrupted(lambda: session.sync("replicas", timeout=WAIT_S))
        assert numbers.rows() == [(1,)]


def test_who_waits_for_the_worker(worker: BackgroundWorker, over: threading.Event) -> None:
    interrupted(worker.settle)
    interrupted(worker.close)
    over.set()
    worker.close()


def test_who_waits_is_told_whether_it_came() -> None:
    news = threading.Condition()
    came: list[int] = []

    def come() -> None:
        with news:
            came.append(1)
            news.notify_all()

    with news:
        assert not threads.wait_until(news, lambda: bool(came), 0.01)
        thread = threading.Thread(target=come)
        thread.start()
        assert threads.wait_until(news, lambda: bool(came), WAIT_S)
        assert threads.wait_until(news, lambda: bool(came), 0.0)
    threads.join_thread(thread)
    assert not thread.is_alive()
