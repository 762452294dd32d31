"""Numbers the readable epochs of a collection as positions 0, 1, 2, ...

Downsampled history leaves gaps between readable epochs; a slider must have none. Epochs are stored
as steps `(first, last, step)`, so that a hundred thousand of them cost a few numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any


class Timeline:
    """An immutable sequence of epochs, ascending."""

    def __init__(self, ranges: Iterable[Any]) -> None:
        self.steps: tuple[tuple[int, int, int], ...] = tuple(_compress(ranges))
        sizes = [(last - first) // step + 1 for first, last, step in self.steps]
        self._starts = [0, *accumulate(sizes)]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < len(self):
            raise IndexError(position)
        index = bisect_right(self._starts, position) - 1
        first, _, step = self.steps[index]
        return first + (position - self._starts[index]) * step

    def __iter__(self) -> Iterator[int]:
        return (self[position] for position in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timeline) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash(self.steps)

    @property
    def latest(self) -> int | None:
        """The newest readable epoch."""
        return self[len(self) - 1] if len(self) else None

    def before(self, epoch: int) -> int | None:
        """Returns the readable epoch before `epoch`, or None at the beginning."""
        position = self._floor(epoch - 1)
        return None if position is None else self[position]

    def nearest(self, epoch: int) -> int | None:
        """Returns the last readable epoch that is not after `epoch`, else the first of all."""
        if not len(self):
            return None
        position = self._floor(epoch)
        return self[position or 0]

    def _floor(self, epoch: int) -> int | None:
        index = bisect_right([first for first, _, _ in self.steps], epoch) - 1
        if index < 0:
            return None
        first, last, step = self.steps[index]
        return self._starts[index] + (min(epoch, last) - first) // step


def _compress(ranges: Iterable[Any]) -> Iterator[tuple[int, int, int]]:
    """Turns ranges into steps; lone epochs at equal distances become one step."""
    run: list[int] = []
    for first, last, step in map(_step, ranges):
        if last < first:
            continue
        if first < last:
            yield from _flush(run)
            run = []
            yield first, last, step
        elif len(run) < 2 or first - run[-1] == run[-1] - run[-2]:
            run.append(first)
        else:
            yield from _flush(run)
            run = [first]
    yield from _flush(run)


def _flush(run: list[int]) -> Iterator[tuple[int, int, int]]:
    if run:
        yield run[0], run[-1], (run[1] - run[0]) if len(run) > 1 else 1


def _step(item: Any) -> tuple[int, int, int]:
    """Reads a Python range, an inclusive pair, or a step of another timeline."""
    if isinstance(item, range):
        return (item[0], item[-1], item.step) if len(item) else (0, -1, 1)
    first, last, *distance = item
    return int(first), int(last), int(distance[0]) if distance else 1
