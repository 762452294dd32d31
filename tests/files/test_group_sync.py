"""Several files: what waits for the disk waits together; what fails is told when all have ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nosync_nb.errors import DurabilityError
from nosync_nb.files.best_effort import THREADS_MAX, close_all, run_all
from nosync_nb.files.filesystem import Files
from nosync_nb.files.group_sync import GroupSyncFiles

WAIT_S = 60


def test_steps_wait_at_the_same_time() -> None:
    met = threading.Barrier(THREADS_MAX)
    run_all([lambda: met.wait(WAIT_S) and None] * THREADS_MAX)
    assert not met.broken


def test_all_is_done_of_more_steps_than_threads_and_of_none() -> None:
    done: list[int] = []
    run_all([lambda i=i: done.append(i) for i in range(5 * THREADS_MAX + 3)])  # type: ignore[misc]
    assert sorted(done) == [*range(5 * THREADS_MAX + 3)]
    run_all([])


@pytest.mark.parametrize("bad", range(THREADS_MAX + 1))
def test_a_step_that_fails_is_told_when_all_have_ended(bad: int) -> None:
    """In another thread no other step waits for it; whoever waits hears of it afterwards."""
    done: list[int] = []

    def step(i: int) -> Callable[[], None]:
        def act() -> None:
            if i == bad:
                raise DurabilityError(f"step {i}")
            done.append(i)

        return act

    before = threading.active_count()
    with pytest.raises(DurabilityError, match=f"step {bad}"):
        run_all([step(i) for i in range(THREADS_MAX + 1)])
    assert {*range(1, THREADS_MAX)} - {bad} <= {*done}
    assert threading.active_count() <= before


def test_an_interrupt_waits_for_what_waits_for_the_disk() -> None:
    """The caller closes its files next: none may be in use then."""
    ended, begun = threading.Event(), threading.Event()

    def interrupted() -> None:
        begun.wait(WAIT_S)
        raise KeyboardInterrupt

    def slow() -> None:
        begun.set()
        threading.main_thread().join(0.05)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        run_all([interrupted, slow])
    assert ended.is_set()


def test_without_threads_it_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        run_all([lambda i=i: done.append(i) for i in range(4)])  # type: ignore[misc]
    assert sorted(done) == [0, 1, 2, 3]


def test_a_disk_syncs_at_once_what_was_put_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = threading.Barrier(4)
    together = GroupSyncFiles(Files())
    together.make_folder(str(tmp_path / "made"))
    for name in ("a", "b", "c"):
        file = together.create(str(tmp_path / "made" / name))
        file.append(name.encode())
        file.sync()
        file.close()
    monkeypatch.setattr("os.fdatasync", lambda fd: met.wait(WAIT_S))
    monkeypatch.setattr("os.fsync", lambda fd: met.wait(WAIT_S))
    together.settle()
    assert not met.broken


def test_all_are_closed_though_one_cannot_be(tmp_path: Path) -> None:
    closed: list[str] = []

    class Closes:
        def __init__(self, name: str, *, fails: bool = False) -> None:
            self.name, self.fails = name, fails

        def close(self) -> None:
            closed.append(self.name)
            if self.fails:
                raise DurabilityError(self.name)

    with pytest.raises(DurabilityError, match="b"):
        close_all([Closes("a"), Closes("b", fails=True), Closes("c")])
    assert sorted(closed) == ["a", "b", "c"]
