"""The background thread: started once, even if its start is interrupted anywhere."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from checks.logs import everything
from faults.every_opcode import Struck, count, strike
from faults.faults import FakeMachine, HastyFiles

from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.store.log import Log
from nosync_nb.store.threads import SingleThread

PATIENCE_S = 60

Launch = Callable[..., int]


class TrackedThread:
    """A thread that runs until released, and the number of its starts."""

    def __init__(self) -> None:
        self.times = 0
        self.begun, self.go = threading.Event(), threading.Event()
        self.single = SingleThread("single")

    def run(self) -> None:
        self.times += 1
        self.begun.set()
        self.go.wait(PATIENCE_S)

    def end(self) -> None:
        self.go.set()
        self.single.join()


@pytest.fixture(autouse=True)
def ignore_other_threads() -> None:
    """Excludes threads of earlier tests from the counts."""
    OTHERS[:] = threading.enumerate()


OTHERS: list[threading.Thread] = []


def count_threads(name: str) -> int:
    return sum(each.name == name for each in threading.enumerate() if each not in OTHERS)


@pytest.fixture
def tracked() -> Iterator[TrackedThread]:
    made = TrackedThread()
    yield made
    made.end()
    assert count_threads("single") == 0


def test_thread_starts_once_and_joins(tracked: TrackedThread) -> None:
    for _ in range(3):
        tracked.single.start(tracked.run)
    assert tracked.begun.wait(PATIENCE_S)
    assert (count_threads("single"), tracked.single.alive, tracked.single.has_ended) == (
        1,
        True,
        False,
    )
    tracked.end()
    assert (tracked.times, tracked.single.alive, tracked.single.has_ended) == (1, False, True)
    tracked.single.start(tracked.run)
    assert tracked.times == 1


def test_thread_joined_before_start_is_not_started(tracked: TrackedThread) -> None:
    tracked.single.join()
    tracked.single.start(tracked.run)
    assert (tracked.times, tracked.single.has_ended) == (0, False)


def test_refused_thread_start_raises_and_can_be_retried(
    tracked: TrackedThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refused)
        with pytest.raises(RuntimeError, match="can't start"):
            tracked.single.start(tracked.run)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start"):
            tracked.single.start(tracked.run)
    tracked.single.start(tracked.run)
    assert tracked.begun.wait(PATIENCE_S)
    assert tracked.times == 1


class Interrupts:
    """Interrupts the main thread once, right before or after the system creates a thread.

    The created thread does not run before `release`.
    """

    def __init__(self, moment: str, patch: pytest.MonkeyPatch) -> None:
        self._real: Launch = _thread.start_new_thread
        self._moment, self._released = moment, threading.Event()
        self.came = 0
        patch.setattr(_thread, "start_new_thread", self)

    def __call__(self, run: Callable[..., Any], given: tuple[Any, ...] = ()) -> int:
        if self.came or threading.current_thread() is not threading.main_thread():
            return self._real(run, given)
        self.came += 1
        if self._moment == "after":
            self._real(self._held, (run, given))
        signal.raise_signal(signal.SIGALRM)
        raise AssertionError("the signal's handler did not run")

    def _held(self, run: Callable[..., Any], given: tuple[Any, ...]) -> None:
        self._released.wait(PATIENCE_S)
        run(*given)

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def alarm_raises() -> Iterator[None]:
    """Makes SIGALRM raise in the main thread, like Ctrl-C."""

    def raised(*_: Any) -> None:
        raise Struck("from outside")

    before = signal.signal(signal.SIGALRM, raised)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.fault(48)
@pytest.mark.usefixtures("alarm_raises")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_interrupted_worker_start_leaves_one_worker(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupts, worker = Interrupts(moment, monkeypatch), BackgroundWorker("struck worker")
    ran: list[int] = []
    with pytest.raises(Struck):
        worker.submit("task", lambda: ran.append(1))
    assert worker.tasks_count == 0
    assert worker.submit("task", lambda: ran.append(2))
    worker.drain()
    interrupts.release()
    assert worker.submit("task", lambda: ran.append(3))
    worker.drain()
    assert interrupts.came == 1
    assert ran == [2, 3]
    assert count_threads("struck worker") == 1
    worker.close()
    assert count_threads("struck worker") == 0


@pytest.mark.fault(48)
@pytest.mark.usefixtures("alarm_raises")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_interrupted_start_of_sync_thread_leaves_one(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "log")
    log = Log.open(path, files=HastyFiles(), machine=FakeMachine(), start=False)
    interrupts = Interrupts(moment, monkeypatch)
    with pytest.raises(Struck):
        log.start()
    log.start()
    interrupts.release()
    log.append(1, b"one")
    log.sync()
    assert count_threads("nosync log") == 1
    log.close()
    assert count_threads("nosync log") == 0
    assert everything(path) == [b"one"]


@pytest.mark.fault(48)
@pytest.mark.usefixtures("alarm_raises")
def test_sync_thread_with_interrupted_start_ends_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread starts after the log is closed, and must not use its closed files."""
    path = str(tmp_path / "log")
    log = Log.open(path, files=HastyFiles(), machine=FakeMachine(), start=False)
    interrupts = Interrupts("after", monkeypatch)
    with pytest.raises(Struck):
        log.start()
    log.append(1, b"one")
    log.close()
    threads = threading.active_count()
    interrupts.release()
    with Log.open(path, files=HastyFiles(), machine=FakeMachine()) as again:
        again.append(1, b"two")
        again.sync()
        assert count_threads("nosync log") == 1
    assert threading.active_count() <= threads
    assert everything(path) == [b"one", b"two"]


def _submitted(worker: BackgroundWorker, ran: list[int]) -> bool:
    return worker.submit("task", lambda: ran.append(1))


@pytest.mark.fault(48)
def test_worker_runs_after_first_task_is_interrupted_anywhere() -> None:
    counted = BackgroundWorker("counted worker")
    opcodes, _ = count(lambda: _submitted(counted, []), lambda: None)
    counted.close()
    assert opcodes > 50
    for at in range(1, opcodes + 1):
        worker, ran = BackgroundWorker(f"struck worker {at}"), list[int]()
        strike(lambda worker=worker, ran=ran: _submitted(worker, ran), at, Struck())
        with suppress(RuntimeError):
            _submitted(worker, ran)
        worker.drain()
        assert ran in ([1], [1, 1]), f"opcode {at} of {opcodes}"
        assert count_threads(f"struck worker {at}") == 1
        worker.close()
        assert count_threads(f"struck worker {at}") == 0


def test_thread_that_dies_at_start_is_replaced(
    tracked: TrackedThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, died = _thread.start_new_thread, []

    def dies(run: Callable[..., Any], given: tuple[Any, ...] = ()) -> int:
        if died or threading.current_thread() is not threading.main_thread():
            return real(run, given)
        died.append(1)
        return real(lambda: None, ())

    monkeypatch.setattr("nosync_nb.store.threads.AGAIN_S", 0.01)
    monkeypatch.setattr(_thread, "start_new_thread", dies)
    tracked.single.start(tracked.run)
    assert tracked.begun.wait(PATIENCE_S)
    assert (tracked.times, died) == (1, [1])
