"""The worker: tasks are done in turn, once each, and get on whatever else runs."""

from __future__ import annotations

import sys
import threading

import pytest

from nosync_nb.session.worker import SWITCH_S, Worker


def test_other_threads_let_a_task_run_soon_and_are_as_before_after_it() -> None:
    before = sys.getswitchinterval()
    found: list[float] = []
    worker = Worker()
    worker.submit("a", lambda: found.append(sys.getswitchinterval()))
    worker.submit("b", lambda: found.append(1 / 0))
    worker.drain()
    assert found == [pytest.approx(SWITCH_S)]
    assert sys.getswitchinterval() == before
    assert isinstance(worker.take_error(), ZeroDivisionError)
    assert worker.take_error() is None
    worker.close()


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
