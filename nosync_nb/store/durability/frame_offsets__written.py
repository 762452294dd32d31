"""Written: which epochs are in which frames of the log; so which are on disk, if the frames are.

Frames are counted on for ever; epochs are not, as a session may go back to an earlier one.
"""

from __future__ import annotations

import bisect


class EpochOffsets:
    """Which epochs are in which frames of the log; so which are on disk, if the frames are.

    A frame holds an epoch or something else, a definition say. As long as each frame holds the
    epoch after that of the frame before, nothing is added: a *run* is its first frame and epoch,
    and of the runs only those are kept that are not on disk.

    Noting an epoch again changes nothing.

    Args:
        epoch: the last one that is on disk already.
    """

    __slots__ = ("_state",)

    def __init__(self, epoch: int = 0) -> None:
        runs: tuple[tuple[int, int], ...] = ((0, epoch),)
        self._state = runs, epoch  # one reference: a note is whole, or was not made

    def note(self, seq: int, epoch: int, durable: int) -> None:
        """Notes the frame of the next epoch, and how far frames are on disk. Cost: below 1 us."""
        runs, last = self._state
        if epoch <= last:
            return
        if epoch - runs[-1][1] != seq - runs[-1][0]:
            first = max(0, bisect.bisect_right(runs, durable, key=_seq) - 1)
            runs = (*runs[first:], (seq, epoch))
        self._state = runs, epoch

    def cut(self, epoch: int) -> None:
        """Forgets the epochs after one, which is on disk as soon as its own frame is.

        Nothing is said of the frame that leaves them: without it they are there again.
        """
        runs = tuple(run for run in self._state[0] if run[1] <= epoch)
        self._state = runs or ((0, epoch),), epoch

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
