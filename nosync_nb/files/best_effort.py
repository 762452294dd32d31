"""Applies an operation to several files, even if it fails for some of them.

Failure: 1. Several files are synced in parallel, and an exception closes one of them. 2. The system
reuses its descriptor number for another file, which is then synced instead. Therefore the caller
continues only after all steps are done. Each step refers to its file by the object, which has no
number once it is closed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

THREADS_MAX = 8
"""The number of steps in parallel: a disk combines several waiting writes, and a single write needs
one thread.
"""


class _Closeable(Protocol):
    def close(self) -> None: ...


def close_all(files: Iterable[_Closeable]) -> None:
    """Closes all of the files; then raises the error of the first one that could not be closed."""
    with contextlib.ExitStack() as stack:
        for file in files:
            stack.callback(file.close)


def run_all(steps: Sequence[Callable[[], None]]) -> None:
    """Runs steps that wait for the disk in threads, and returns when all have finished or failed.

    Files that are synced one after the other each wait for a write of the disk's journal. Waits at
    the same time share one write.

    Raises:
        Exception: the error of one of the steps.
    """
    failed: list[BaseException] = []

    def run_share(share_steps: Sequence[Callable[[], None]]) -> None:
        for step in share_steps:
            try:
                step()
            except BaseException as error:  # raised by the waiting thread
                failed.append(error)

    shares = [steps[i::THREADS_MAX] for i in range(min(THREADS_MAX, len(steps)))]
    threads = [threading.Thread(target=run_share, args=(share,)) for share in shares[1:]]
    try:
        for thread, share in zip(threads, shares[1:], strict=True):
            try:
                thread.start()
            except RuntimeError:  # the limit of threads is reached
                run_share(share)
        for step in shares[0] if shares else ():
            step()
    finally:
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    if failed:
        raise failed[0]
