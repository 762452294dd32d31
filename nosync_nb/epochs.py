"""Epochs as users name them: by number, label, time or offset; which are readable."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from nosync_nb.errors import TimeError

if TYPE_CHECKING:
    from nosync_nb.session import Session


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


def resolved(session: Session, at: Any, now: int) -> int:
    """The epoch that `at` names: a number, a negative offset, a label or a datetime.

    Args:
        now: the last epoch that the reader sees; others may have committed more.

    Raises:
        TimeError: if it names none; tells what there is.
    """
    if isinstance(at, bool):
        raise TimeError(f"{at!r} is not an epoch", hint="use a number, a label or a datetime")
    if hasattr(at, "__index__"):
        number = at.__index__()
        number = now + number if number < 0 else number
        if not 0 <= number <= now:
            raise TimeError(f"epoch {at} is not readable", hint=f"epochs 0 to {now} are")
        return int(number)
    if isinstance(at, str):
        labelled = session._labels.get(at)
        if labelled is not None and labelled <= now:
            return labelled
        known = ", ".join(session._labels) or "none"
        raise TimeError(f"no epoch is labelled '{at}'", hint=f"labels: {known}")
    if isinstance(at, datetime):
        return bisect.bisect_right(session._times, at.timestamp(), 0, now)
    raise TimeError(f"{at!r} is not an epoch", hint="use a number, a label or a datetime")
