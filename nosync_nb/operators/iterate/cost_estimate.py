"""Chooses whether a loop follows the changes of an epoch, or runs from scratch on all rows.

Following changes costs in proportion to the rows that they touch in every round, because the whole
history of a key is read again. If nearly all rows are touched, a run from scratch costs a fraction
of that. Therefore following is given up when it has cost three fifths of the last run from scratch,
in a small loop as much as that run, or as soon as rounds are dense (see `batch_driver`, and for
rows `row_driver`). So an epoch costs at most about twice that.

A loop that gave up twice in a row *rests*: it has no traces, since they would change altogether. It
runs from scratch each epoch, and only the difference of its result is logged. Every now and then it
stores the traces of such a run, and follows the next epoch to see if that pays again.

The estimates are in memory. They decide the cost of an epoch, never its result. After a restart
they are guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nosync_nb.operators.iterate.round_state import LoopKeyCaches

FREE_WORK = 40_000
"""Work that may always be tried, in rows (see `batch_driver`): some ten milliseconds."""

SMALL_WORK = 100_000
"""A loop whose run from scratch costs at most this is small. A change of one row takes as many
rounds as all rows do, so following it costs nearly as much, and still less."""

GUESS = 4
"""After a restart a run from scratch is assumed to cost this many times the rows of the loop's
traces, and not to be small."""

PATIENCE_MIN, PATIENCE_MAX = 4, 64
"""How many epochs a loop rests before it tries to follow again: more each time."""


class LoopCostEstimate:
    """The costs of one loop in the past.

    Attributes:
        whole: the work of its last run from scratch, None if unknown.
        rounds: the work of each of its rounds, those of the outermost loop.
        failed: how many times in a row following was given up.
        patience: the number of epochs of its next rest.
        rests: the number of epochs that it still rests.
        mirror: the key caches of the loop, if any.
        unmirrored: the number of epochs in which they are not rebuilt.
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
        """Returns the key caches, if any; the caller owns them from now on."""
        mirror, self.mirror = self.mirror, None
        return mirror

    def keep_mirror(self, mirror: LoopKeyCaches) -> None:
        """Stores the key caches of the current state."""
        self.mirror = mirror

    def ran_anew(self, work: int, rounds: Mapping[int, int]) -> None:
        """Records a run from scratch."""
        self.whole = work
        self.rounds = rounds

    def gave_up(self) -> None:
        """Records that a run over rows met too many: caches are left out longer each time."""
        self._gaps = min(2 * self._gaps + 1, PATIENCE_MAX)
        self.unmirrored = self._gaps

    def was_few(self) -> None:
        """Records that a run over rows paid: the next failure counts for less."""
        self._gaps //= 2

    def mirrors(self) -> bool:
        """Returns True if missing key caches are rebuilt."""
        if self.unmirrored > 0:
            self.unmirrored -= 1
            return False
        return True

    def budget(self, rows_count: int) -> int:
        """Returns the work that following may cost.

        Args:
            rows_count: the rows of the loop's traces.
        """
        whole = self.whole
        if whole is None:
            whole = max(SMALL_WORK, GUESS * rows_count)
        return max(FREE_WORK, min(SMALL_WORK, whole), 3 * whole // 5)

    def followed(self) -> None:
        """Records that the loop followed an epoch."""
        self.failed = 0
        self.patience = PATIENCE_MIN

    def keeps(self, *, resting: bool) -> bool:
        """Returns True if a run from scratch stores its traces for the next epoch."""
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
