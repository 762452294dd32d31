"""The worker: tasks are done in turn, once each, and get on whatever else runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from nosync_nb.session.worker import SWITCH_S, Worker


@pytest.fixture
def usual() -> Iterator[float]:
    """Turns that a task shortens, whatever those of this process are."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield sys.getswitchinterval()
    sys.setswitchinterval(before)


def test_other_threads_let_a_task_run_soon_and_are_as_before_after_it(usual: float) -> None:
    found: list[float] = []
    worker = Worker()
    worker.submit("a", lambda: found.append(sys.getswitchinterval()))
    worker.submit("b", lambda: found.append(1 / 0))
    worker.drain()
    assert found == [pytest.approx(SWITCH_S, abs=1e-6)]
    assert sys.getswitchinterval() == usual
    assert isinstance(worker.take_error(), ZeroDivisionError)
    assert worker.take_error() is None
    worker.close()


@pytest.mark.parametrize("interval", [0.005, 0.00003, 0.000007])
def test_workers_that_overlap_leave_the_turns_as_they_were(interval: float, usual: float) -> None:
    sys.setswitchinterval(interval)
    before = sys.getswitchinterval()
    for _ in range(20):  # a microsecond that is lost each time would show
        first, second = Worker(), Worker()
        begun, go = threading.Event(), threading.Event()
        first.submit("a", lambda begun=begun, go=go: (begun.set(), go.wait()))
        begun.wait()
        second.submit("b", lambda go=go: go.wait())
        go.set()
        first.close()
        second.close()
    assert sys.getswitchinterval() == before


def test_who_ends_last_puts_the_turns_back(usual: float) -> None:
    first, second = Worker(), Worker()
    begun = [threading.Event(), threading.Event()]
    ends = [threading.Event(), threading.Event()]
    for i, worker in enumerate((first, second)):
        worker.submit("t", lambda i=i: (begun[i].set(), ends[i].wait()))
        begun[i].wait()
    ends[0].set()
    first.close()
    assert sys.getswitchinterval() < usual, "the second task still runs"
    ends[1].set()
    second.close()
    assert sys.getswitchinterval() == usual


def test_a_task_that_waits_is_not_queued_again() -> None:
    worker = Worker()
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
