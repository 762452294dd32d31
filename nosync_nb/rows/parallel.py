"""Splits work on large columns among several cores.

numpy and Arrow release the interpreter's lock while they work, so threads of one process run in
parallel. The result does not depend on the thread that computes a part. No thread remains after the
call returns: an interrupted call waits for the running parts and starts no further ones.

The work must not slow down other work. So few threads are started, and only for large columns. None
are started for the background work of a commit, or on Spark's executors, which already run a task
on each core.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

MANY = 1 << 18
"""The fewest rows that are split; fewer are processed before a thread has started."""

CORES_MAX = 4
"""The maximum number of cores, because each core copies the data on which it works."""


class _ThreadSettings(threading.local):
    """The settings of the current thread: `shared` is True if it may use several cores."""

    shared = True


_settings = _ThreadSettings()


def single_threaded() -> None:
    """Restricts the current thread to one core, because other work uses the other cores."""
    _settings.shared = False


def count(rows: int) -> int:
    """Returns the number of cores that share the work on a number of rows."""
    if rows < MANY or not _settings.shared:
        return 1
    return min(usable_cores(), CORES_MAX)


def usable_cores() -> int:
    """Returns the number of cores on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_parallel(work: Callable[[int], None], parts: int, cores: int) -> None:
    """Calls `work(0)`, `work(1)`, ... , each once, in any order and in parallel.

    Raises:
        Exception: raised by one of the calls; other calls may or may not have been completed.
    """
    if cores < 2 or parts < 2:
        for part in range(parts):
            work(part)
        return
    ahead = iter(range(parts))
    failed: list[BaseException] = []

    def run() -> None:
        for part in ahead:
            work(part)

    def run_helper() -> None:
        try:
            run()
        except BaseException as error:
            failed.append(error)

    others: list[threading.Thread] = []
    try:
        with suppress(RuntimeError):  # if no more threads can start, fewer threads do the work
            for _ in range(cores - 1):
                others.append(threading.Thread(target=run_helper, name="nosync-cores", daemon=True))
                others[-1].start()
        run()
    finally:
        for _ in ahead:  # takes the remaining parts, so that no thread starts another one
            pass
        for other in others:
            if other.ident is not None:
                other.join()
    if failed:
        raise failed[0]
