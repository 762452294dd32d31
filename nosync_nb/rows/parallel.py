"""Splits work on large columns among several cores.

numpy and Arrow release the interpreter's lock while they work, so threads of one process run in
parallel. Their result does not depend on the thread that made each part. No thread remains once the
call returns: an interrupted call waits for the running parts and starts no other.

The work must not slow down others: few threads, for large columns alone; none for background work
of a commit, and none on Spark's executors, which run a task for each core already.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

MANY = 1 << 18
"""Fewer rows are done before a thread has started."""

CORES_MAX = 4
"""Each core holds a copy of the data that it works on."""


class _ThreadSettings(threading.local):
    """Settings of the current thread."""

    shared = True


_settings = _ThreadSettings()


def single_threaded() -> None:
    """Makes the current thread work alone from here on, because others use the other cores."""
    _settings.shared = False


def count(rows: int) -> int:
    """Returns how many cores share the work on a number of rows."""
    if rows < MANY or not _settings.shared:
        return 1
    return min(usable_cores(), CORES_MAX)


def usable_cores() -> int:
    """Returns how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_parallel(work: Callable[[int], None], parts: int, cores: int) -> None:
    """Calls `work(0)`, `work(1)`, ... , each once, in any order and in parallel.

    Raises:
        Exception: raised by one of the calls; others may have finished, or not.
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
        with suppress(RuntimeError):  # no more threads can be started: fewer do the same
            for _ in range(cores - 1):
                others.append(threading.Thread(target=run_helper, name="nosync-cores", daemon=True))
                others[-1].start()
        run()
    finally:
        for _ in ahead:  # no thread starts another part
            pass
        for other in others:
            if other.ident is not None:
                other.join()
    if failed:
        raise failed[0]
