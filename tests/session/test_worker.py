"""The background worker: each task runs once, in turn."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from internals import services_of, settle_background

from nosync_nb import Session
from nosync_nb.session.maintenance import maintenance
from nosync_nb.session.state import writer_lock
from nosync_nb.session.state.worker import SWITCH_S, BackgroundWorker
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.trace.history import pack_plans
from nosync_nb.trace.history.pack_plans import YieldingPause


@pytest.fixture
def default_switch_interval() -> Iterator[float]:
    """Sets a switch interval that a task shortens, and restores that of the process."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield sys.getswitchinterval()
    sys.setswitchinterval(before)


def test_task_shortens_the_switch_interval_and_restores_it(default_switch_interval: float) -> None:
    found: list[float] = []
    worker = BackgroundWorker()
    worker.submit("a", lambda: found.append(sys.getswitchinterval()))
    worker.submit("b", lambda: found.append(1 / 0))
    worker.drain()
    assert found == [pytest.approx(SWITCH_S, abs=1e-6)]
    assert sys.getswitchinterval() == default_switch_interval
    (failure,) = worker.failures.take_unreported()
    assert (failure.task, type(failure.error)) == ("b", ZeroDivisionError)
    assert worker.failures.take_unreported() == []
    worker.close()


@pytest.mark.parametrize("interval", [0.005, 0.00003, 0.000007])
def test_overlapping_workers_restore_the_switch_interval(
    interval: float, default_switch_interval: float
) -> None:
    sys.setswitchinterval(interval)
    before = sys.getswitchinterval()
    for _ in range(20):  # a microsecond lost each time would show
        first, second = BackgroundWorker(), BackgroundWorker()
        begun, go = threading.Event(), threading.Event()
        first.submit("a", lambda begun=begun, go=go: (begun.set(), go.wait()))
        begun.wait()
        second.submit("b", lambda go=go: go.wait())
        go.set()
        first.close()
        second.close()
    assert sys.getswitchinterval() == before


def test_last_worker_restores_the_switch_interval(default_switch_interval: float) -> None:
    first, second = BackgroundWorker(), BackgroundWorker()
    begun = [threading.Event(), threading.Event()]
    ends = [threading.Event(), threading.Event()]
    for i, worker in enumerate((first, second)):
        worker.submit("t", lambda i=i: (begun[i].set(), ends[i].wait()))
        begun[i].wait()
    ends[0].set()
    first.close()
    assert sys.getswitchinterval() < default_switch_interval, "the second task still runs"
    ends[1].set()
    second.close()
    assert sys.getswitchinterval() == default_switch_interval


def test_queued_task_is_not_queued_again() -> None:
    worker = BackgroundWorker()
    go = threading.Event()
    done: list[int] = []
    worker.submit("held", go.wait)
    assert worker.submit("task", lambda: done.append(1))
    assert not worker.submit("task", lambda: done.append(2))
    go.set()
    worker.drain()
    assert done == [1]
    assert worker.submit("task", lambda: done.append(3))
    worker.close()
    assert done == [1, 3]
    assert not worker.submit("task", lambda: done.append(4))


@pytest.fixture
def busy_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[BackgroundWorker, list[str]]]:
    """A worker that waits for a pause without limit, and the list of its finished tasks."""
    monkeypatch.setattr(f"{BackgroundWorker.__module__}.PAUSE_S", 3600.0)
    monkeypatch.setattr(f"{BackgroundWorker.__module__}.DELAY_S", 3600.0)
    worker = BackgroundWorker()
    worker.stir()
    yield worker, []
    worker.close()


def test_later_task_waits_for_a_pause_and_delays_no_other(
    busy_worker: tuple[BackgroundWorker, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, done = busy_worker
    assert worker.submit("later", lambda: done.append("later"), later=True)
    assert not worker.submit("later", lambda: done.append("again"), later=True)
    worker.submit("now", lambda: done.append("now"))
    worker.catch_up(30)
    assert done == ["now"]
    assert worker.tasks_count == 1
    monkeypatch.setattr(f"{BackgroundWorker.__module__}.PAUSE_S", 0.0)
    worker.submit("other", lambda: done.append("other"))  # wakes the worker
    worker.settle()
    assert done[0] == "now"
    assert sorted(done[1:]) == ["later", "other"]


def test_later_task_runs_after_a_delay_without_a_pause(
    busy_worker: tuple[BackgroundWorker, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, ended = busy_worker[0], threading.Event()
    monkeypatch.setattr(f"{BackgroundWorker.__module__}.DELAY_S", 0.05)
    worker.submit("later", ended.set, later=True)

    def again() -> None:
        """Submits a further task that waits for nothing."""
        if not ended.is_set():
            worker.submit(object(), again)

    worker.submit("always", again)
    assert ended.wait(30)


@pytest.mark.parametrize("hurry", [BackgroundWorker.settle, BackgroundWorker.close])
def test_settle_and_close_wait_for_no_pause(
    busy_worker: tuple[BackgroundWorker, list[str]], hurry: Callable[[BackgroundWorker], None]
) -> None:
    worker, done = busy_worker
    worker.submit("later", lambda: done.append("later"), later=True)
    hurry(worker)
    assert done == ["later"]


def test_epoch_is_no_pause(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    stirs: list[int] = []
    monkeypatch.setattr(BackgroundWorker, "stir", lambda _self: stirs.append(1))
    session.input("numbers", "n bigint").insert([(1,)])
    before = len(stirs)
    session.commit()
    assert len(stirs) == before + 2


def test_background_work_gives_way_to_an_epoch_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, worker = WriterLock("w", lambda: None), BackgroundWorker()
    passed: list[bool] = []
    monkeypatch.setattr(writer_lock, "WAY_S", 60.0)

    def beside() -> None:
        passed.append(gate.give_way())

    with gate.lock:  # as an epoch holds it
        worker.submit("beside", beside)
        worker.drain(0.2)
        assert not passed
    worker.settle()
    assert passed == [True]
    monkeypatch.setattr(writer_lock, "WAY_S", 0.001)
    with gate.lock:
        worker.submit("beside", beside)
        worker.settle()
    assert passed == [True, True]
    worker.submit("beside", beside)  # the lock is free
    worker.settle()
    assert passed == [True, True, False]
    worker.close()


def test_main_thread_never_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, worker = WriterLock("w", lambda: None), BackgroundWorker()
    locked, ended, results = threading.Event(), threading.Event(), list[bool]()
    monkeypatch.setattr(writer_lock, "WAY_S", 60.0)

    def hold() -> None:
        with gate.lock:
            locked.set()
            results.append(ended.wait(30))

    worker.submit("hold", hold)
    try:
        assert locked.wait(60)
        gate.give_way()  # the main thread could be interrupted while it holds the lock
    finally:
        ended.set()
        worker.close()
    assert results == [True]


class CountingPause:
    """A pause that gives way at every call, and counts its calls."""

    def __init__(self, give_way: Callable[[], None]) -> None:
        self._give_way = give_way
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        self._give_way()


def test_checkpoint_gives_way_to_epochs(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[threading.Thread] = []
    pauses: list[CountingPause] = []
    give_way = WriterLock.give_way

    def record_give_way(gate: WriterLock) -> None:
        passed.append(threading.current_thread())
        give_way(gate)

    def restless(way: Callable[[], None]) -> CountingPause:
        pauses.append(CountingPause(way))
        return pauses[-1]

    monkeypatch.setattr(WriterLock, "give_way", record_give_way)
    monkeypatch.setattr(maintenance, "YieldingPause", restless)
    numbers = session.input("numbers", "x int")
    for number in range(3):
        numbers.insert([(number,)])
        session.commit()
    services_of(session).maintenance.plan_checkpoint()
    settle_background(session)
    assert len(pauses) >= 2  # packs are written, and layers are moved to files
    assert all(pause.calls for pause in pauses)
    assert len(passed) == sum(pause.calls for pause in pauses)
    assert threading.main_thread() not in passed


def test_pause_gives_way_repeatedly() -> None:
    passed: list[int] = []
    rest, ends = YieldingPause(lambda: passed.append(1)), time.monotonic() + 60
    while len(passed) < 2 and time.monotonic() < ends:
        rest()
    assert len(passed) == 2


def test_pause_that_gave_way_rests_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(pack_plans, "_WORK_S", 0.0)
    monkeypatch.setattr(time, "sleep", rests.append)
    gave_way = iter([True, False, True])
    rest = YieldingPause(lambda: next(gave_way))
    for _ in range(3):
        rest()
    assert rests[0] == rests[2] < rests[1]
