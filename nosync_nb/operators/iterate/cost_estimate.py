"""Effort: whether a loop follows the changes of an epoch, or is run anew on all that is there.

To follow changes costs in proportion to what they touch in every round, and all that a key ever
held is looked through again. Where nearly all is touched, running anew costs a fraction of it. So
following is given up when it has cost three fifths of what the last run anew did, in a small loop
as much, or as soon as rounds are dense (see `run`, and of rows `few`): an epoch costs at most some
twice that.

A loop that gave up twice in a row *rests*: it keeps no traces, since they would change altogether,
is run anew each epoch, and only the difference of its result is logged. Every now and then it
keeps the traces of such a run, and follows the next epoch to see whether that pays again.

What it remembers is in memory and decides what an epoch costs, never what comes out. After a
restart it is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nosync_nb.operators.iterate.loop_key_caches import LoopKeyCaches

FREE_WORK = 40_000
"""Work that is never too much to try, in rows (see `run`): some ten milliseconds."""

SMALL_WORK = 100_000
"""A loop whose run anew costs no more is small. A change of one row takes as many rounds as all
rows do, so to follow it costs most of that, and still less."""

GUESS = 4
"""After a restart a run anew is taken to cost so many times the rows of the loop's traces, and to
be no small one."""

PATIENCE_MIN, PATIENCE_MAX = 4, 64
"""For how many epochs a loop rests before it tries to follow again: more each time."""


class LoopCostEstimate:
    """What one loop has cost.

    Attributes:
        whole: the work of its last run anew, None if it is not known.
        rounds: the work of each of its rounds, those of the outermost loop.
        failed: how often in a row following was given up.
        patience: for how many epochs it is to rest when it does so next.
        rests: for how many epochs it still rests.
        mirror: what the loop holds as rows, None if that is not known.
        unmirrored: for how many epochs it is not made anew.
    """

    __slots__ = ("_gaps", "failed", "mirror", "patience", "rests", "rounds", "unmirrored", "whole")

    def __init__(self) -> None:
        self.whole: int | None = None
        self.rounds: Mapping[int, int] = {}
        self.failed = 0
        self.patience = PATIENCE_MIN
        self.rests = PATIENCE_MIN
        self.mirror: LoopKeyCaches | None = None
        self.unmirrored = 0
        self._gaps = 0

    def take_mirror(self) -> LoopKeyCaches | None:
        """The mirror, which is the caller's from now on; None if there is none."""
        mirror, self.mirror = self.mirror, None
        return mirror

    def keep_mirror(self, mirror: LoopKeyCaches) -> None:
        """Keeps the mirror of the state that there is now."""
        self.mirror = mirror

    def ran_anew(self, work: int, rounds: Mapping[int, int]) -> None:
        """It was run on all that is there."""
        self.whole = work
        self.rounds = rounds

    def gave_up(self) -> None:
        """A run over rows found too many: the mirror is left out, longer each time."""
        self._gaps = min(2 * self._gaps + 1, PATIENCE_MAX)
        self.unmirrored = self._gaps

    def was_few(self) -> None:
        """A run over rows paid: after the next that does not, the mirror is left out for less."""
        self._gaps //= 2

    def mirrors(self) -> bool:
        """Whether the mirror is made anew, where there is none."""
        if self.unmirrored > 0:
            self.unmirrored -= 1
            return False
        return True

    def budget(self, rows_count: int) -> int:
        """What following may cost.

        Args:
            rows_count: the rows of the loop's traces.
        """
        whole = self.whole
        if whole is None:
            whole = max(SMALL_WORK, GUESS * rows_count)
        return max(FREE_WORK, min(SMALL_WORK, whole), 3 * whole // 5)

    def followed(self) -> None:
        """It followed an epoch."""
        self.failed = 0
        self.patience = PATIENCE_MIN

    def keeps(self, *, resting: bool) -> bool:
        """Whether the traces of a run anew are kept, so that the next epoch can be followed."""
        if resting:
            self.rests -= 1
            if self.rests > 0:
                return False
            self.failed = 1
            return True
        self.failed += 1
        if self.failed < 2:
            return True
        self.rests = self.patience
        self.patience = min(2 * self.patience, PATIENCE_MAX)
        return False
