"""Interrupts just before a wait: they end it.

The flag of the interrupt is set before the system call begins, so it interrupts no system call.
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


def interrupt_wait(wait: Callable[[], object]) -> None:
    """Interrupts the main thread just before it waits, and checks that the wait ends soon."""
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
def released() -> Iterator[threading.Event]:
    """Releases hanging calls, at the latest when a test ends or after a timeout."""
    released = threading.Event()
    late = threading.Timer(WAIT_S, released.set)
    late.start()
    yield released
    released.set()
    late.cancel()


@pytest.fixture
def worker(released: threading.Event) -> Iterator[BackgroundWorker]:
    """A worker whose task ends when it is released."""
    worker = BackgroundWorker()
    worker.submit(object(), released.wait)
    yield worker
    released.set()
    worker.close()


def test_interrupt_ends_a_wait_for_a_hanging_disk(
    session: Session, released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = session.input("numbers", "n bigint")
    session.sync("disk")
    sync = File.sync

    def hang(file: File) -> None:
        released.wait()
        sync(file)

    monkeypatch.setattr(File, "sync", hang)
    numbers.insert([(1,)])
    session.commit()
    interrupt_wait(lambda: session.sync("disk"))
    released.set()
    session.sync("disk")
    assert numbers.rows() == [(1,)]


def test_interrupt_ends_a_wait_for_unreachable_replicas(tmp_path: Path) -> None:
    replica = tmp_path / "replica"
    with nosync_nb.open(tmp_path / "log", replicas=[replica.as_uri()]) as session:
        numbers = session.input("numbers", "n bigint")
        session.sync("replicas", timeout=WAIT_S)
        replica.rename(tmp_path / "away")
        replica.touch()  # nothing can be made there
        numbers.insert([(1,)])
        session.commit()
        interrupt_wait(lambda: session.sync("replicas", timeout=WAIT_S))
        assert numbers.rows() == [(1,)]


def test_interrupt_ends_a_wait_for_the_background_worker(
    worker: BackgroundWorker, released: threading.Event
) -> None:
    interrupt_wait(worker.settle)
    interrupt_wait(worker.close)
    released.set()
    worker.close()


def test_wait_until_returns_whether_the_condition_holds() -> None:
    condition = threading.Condition()
    arrived: list[int] = []

    def arrive() -> None:
        with condition:
            arrived.append(1)
            condition.notify_all()

    with condition:
        assert not threads.wait_until(condition, lambda: bool(arrived), 0.01)
        thread = threading.Thread(target=arrive)
        thread.start()
        assert threads.wait_until(condition, lambda: bool(arrived), WAIT_S)
        assert threads.wait_until(condition, lambda: bool(arrived), 0.0)
    threads.join_thread(thread)
    assert not thread.is_alive()
