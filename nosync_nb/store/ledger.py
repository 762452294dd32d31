"""The epochs of a session: when each was committed, its label, the frame that holds it."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, overload

if TYPE_CHECKING:
    pass


class Epoch(NamedTuple):
    """One readable epoch; `committed_at` is None for epoch 0."""

    number: int
    label: str | None
    committed_at: datetime | None


class Epochs(Sequence[Epoch]):
    """Readable epochs as a sequence that is made when it is looked at."""

    def __init__(
        self, first: int, last: int, times: array[float], labels: Mapping[str, int]
    ) -> None:
        self._range = range(first, last + 1)
        self._times = times
        self._labels = {number: label for label, number in labels.items()}

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, index: int) -> Epoch: ...
    @overload
    def __getitem__(self, index: slice) -> list[Epoch]: ...
    def __getitem__(self, index: int | slice) -> Epoch | list[Epoch]:
        if isinstance(index, slice):
            return [self._epoch(n) for n in self._range[index]]
        return self._epoch(self._range[index])

    def _epoch(self, number: int) -> Epoch:
        at = None
        if 0 < number <= len(self._times):
            at = datetime.fromtimestamp(self._times[number - 1], UTC)
        return Epoch(number, self._labels.get(number), at)

    def __repr__(self) -> str:
        if not self._range:
            return "<no epochs>"
        return f"<epochs {self._range[0]} to {self._range[-1]}>"


class Written:
    """Which epochs are in which frames of the log; so which are on disk, if the frames are.

    A frame holds an epoch or something else, a definition say. As long as each frame holds the
    epoch after that of the frame before, nothing is added: a *run* is its first frame and epoch,
    and of the runs only those are kept that are not on disk.

    Threads: one writes; any may read, and changes nothing by it.

    Args:
        epoch: the last one that is on disk already.
    """

    __slots__ = ("_state",)

    def __init__(self, epoch: int = 0) -> None:
        runs: tuple[tuple[int, int], ...] = ((0, epoch),)
        self._state = runs, epoch  # one reference, for who reads it meanwhile

    def note(self, seq: int, epoch: int, durable: int) -> None:
        """Notes the frame of the next epoch, and how far frames are on disk. Cost: below 1 us."""
        runs, _ = self._state
        if epoch - runs[-1][1] != seq - runs[-1][0]:
            first = max(0, bisect.bisect_right(runs, durable, key=_seq) - 1)
            runs = (*runs[first:], (seq, epoch))
        self._state = runs, epoch

    def upto(self, durable: int) -> int:
        """The last epoch that is on disk, if frames are up to `durable`.

        IMPORTANT: ask the log before, so that what it says is no older than what is here.
        """
        runs, last = self._state
        at = bisect.bisect_right(runs, durable, key=_seq) - 1
        if at + 1 < len(runs):
            last = runs[at + 1][1] - 1
        seq, epoch = runs[max(at, 0)]
        return min(max(durable - seq, 0) + epoch, last)

    def __len__(self) -> int:
        return len(self._state[0])


def _seq(run: tuple[int, int]) -> int:
    return run[0]
