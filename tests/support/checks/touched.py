"""The work per epoch: rows that operators touched, and rows that were sorted or merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean

import pytest
from internals import on_sorted, settle_background

from nosync_nb import Session

EPOCHS = 200
SPARE = 4  # rows an epoch


@contextmanager
def sorted_rows() -> Iterator[list[int]]:
    """Counts the rows that batches and merges sort inside the block."""
    counted = [0]

    def count(rows: int) -> None:
        counted[0] += rows

    with pytest.MonkeyPatch.context() as patch:
        on_sorted(patch, count)
        yield counted


def work_of(
    session: Session, change: Callable[[int], None], epochs: int = EPOCHS
) -> tuple[list[int], list[int]]:
    """Commits epochs; returns the rows touched and the rows sorted in each, background merges
    included.
    """
    touched, ordered = [], []
    with sorted_rows() as counted:
        for epoch in range(epochs):
            before = session.stats["touched"], counted[0]
            change(epoch)
            session.commit()
            settle_background(session)  # what the worker does is of this epoch
            touched.append(session.stats["touched"] - before[0])
            ordered.append(counted[0] - before[1])
    return touched, ordered


def growth(counts: list[int]) -> float:
    """Returns the work of the last epochs divided by that of as many epochs before them.

    A few rows are allowed for. The first epochs are skipped, because the number of layers grows at
    first.
    """
    span = len(counts) // 3
    return (fmean(counts[-span:]) + SPARE) / (fmean(counts[-2 * span : -span]) + SPARE)
