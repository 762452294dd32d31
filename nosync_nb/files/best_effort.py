"""Several: what is done to more than one file, whatever becomes of one of them.

Failure: 1. Of some files that are synced at once one is closed, as an exception has come meanwhile.
2. Its number is given to another file, which is synced in its place. Hence nobody goes on before
all of them are done, and a step reaches its file by its object, which has no number any more.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

THREADS_MAX = 8
"""So many wait at once: a disk takes more of them together, and one is enough for one write."""


class _Closes(Protocol):
    def close(self) -> None: ...


def close_all(files: Iterable[_Closes]) -> None:
    """Closes every one of some files; raises what the first of them raised that could not be."""
    with contextlib.ExitStack() as stack:
        for file in files:
            stack.callback(file.close)


def run_all(steps: Sequence[Callable[[], None]]) -> None:
    """Does steps that wait for the disk in threads, and returns when all are done or have failed.

    Files that are synced one after the other wait for a write of the disk's journal each; what
    waits at the same time is written together.

    Raises:
        Exception: what one of the steps raised.
    """
    failed: list[BaseException] = []

    def done(own: Sequence[Callable[[], None]]) -> None:
        for step in own:
            try:
                step()
            except BaseException as error:  # who waits raises it
                failed.append(error)

    shares = [steps[i::THREADS_MAX] for i in range(min(THREADS_MAX, len(steps)))]
    threads = [threading.Thread(target=done, args=(share,)) for share in shares[1:]]
    try:
        for thread, share in zip(threads, shares[1:], strict=True):
            try:
                thread.start()
            except RuntimeError:  # there may be no more threads
                done(share)
        for step in shares[0] if shares else ():
            step()
    finally:
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    if failed:
        raise failed[0]
