"""Cores: work on large columns that several cores share.

numpy and Arrow leave the interpreter's lock while they work, so threads of one process run beside
each other. What they make does not depend on who made which part, and there is nothing of them
once the call returns: who is interrupted waits for the parts in hand, and no other is begun.

Nobody else should be slowed: few threads, for large columns alone; none for what runs in the
background of a commit, and on Spark's executors, which run a task for each core already.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

MANY = 1 << 18
"""Fewer rows are done before a thread has begun."""

CORES_MAX = 4
"""Each holds a copy of what it works on."""


class _Own(threading.local):
    """What holds for the current thread."""

    shared = True


_own = _Own()


def single_threaded() -> None:
    """From here on the current thread does its work by itself: others have the other cores."""
    _own.shared = False


def count(rows: int) -> int:
    """How many cores share the work on so many rows."""
    if rows < MANY or not _own.shared:
        return 1
    return min(usable_cores(), CORES_MAX)


def usable_cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_parallel(work: Callable[[int], None], parts: int, cores: int) -> None:
    """Does `work(0)`, `work(1)`, ... , each once, in any order and beside each other.

    Raises:
        Exception: what one of them raised; others may have been done, or not.
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

    def beside() -> None:
        try:
            run()
        except BaseException as error:
            failed.append(error)

    others: list[threading.Thread] = []
    try:
        with suppress(RuntimeError):  # no more threads are to be had: fewer do the same
            for _ in range(cores - 1):
                others.append(threading.Thread(target=beside, name="nosync-cores", daemon=True))
                others[-1].start()
        run()
    finally:
        for _ in ahead:  # nobody begins another one
            pass
        for other in others:
            if other.ident is not None:
                other.join()
    if failed:
        raise failed[0]
