"""Thinning: which epochs of the past are told apart no more, and which packs are written anew.

Epochs become coarser with their age, as `RetainedEpochs` says: groups of 16, of 256, and so on. A
pack of which a part is old is cut there; a pinned epoch keeps an interval of its own, whatever
becomes of its neighbours; a sum whose packs have few groups left takes their place. Pure functions.

Design: a leaf is written anew only if that leaves at most half of its groups, and a sum becomes a
leaf once for a grain. So what is written by thinning is bounded by three times what was packed, for
each factor of 16, however often it is asked; and what has to be known of packs to open a log by how
much of the past can be told apart, not by how many there were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from nosync_nb.trace.history.pack_tree import PackNode

FACTOR = 16
WORTH = 0.1
"""So much of what is written has to be freed by it."""
PER_FILE = 16
"""Packs below a sum that have no more groups each than these become one."""
GRAIN_MAX = FACTOR**10


class RetainedEpochs(NamedTuple):
    """What is not thinned out: so many single epochs before the last one, and some others."""

    single: int
    pinned: AbstractSet[int] = frozenset()

    def grain(self, upper: int, now: int) -> int:
        """The grain of the epochs below `upper`, if the last one is `now`."""
        grain, least = 1, self.single
        while now + 1 - upper >= least and grain < GRAIN_MAX:
            grain, least = grain * FACTOR, least * FACTOR
        return grain


class PackFragment(NamedTuple):
    """Epochs `[lower, upper)` that get a pack of their own, with a grain."""

    lower: int
    upper: int
    grain: int

    @property
    def groups(self) -> int:
        """How many groups of epochs it can tell apart, those at its ends included."""
        return -(-self.upper // self.grain) - self.lower // self.grain


class RecutNode(NamedTuple):
    """A leaf, or a sum with all below it, that is to be in pieces."""

    old: PackNode
    pieces: tuple[PackFragment, ...]

    @property
    def groups(self) -> int:
        """How many groups a leaf has; of a sum, how many files would be one."""
        old = self.old
        if old.children:
            return len(old.children)
        return PackFragment(_lowest(old), min(old.upper, old.clip), old.grain).groups

    @property
    def left(self) -> int:
        """How many groups there are in its place."""
        first, *rest = self.pieces
        first = first._replace(lower=min(first.lower, _lowest(leaf_packs(self.old)[0])))
        return sum(piece.groups for piece in (first, *rest))

    @property
    def as_it_is(self) -> bool:
        """Whether nothing has to be written: a leaf of one group has one of any grain."""
        return not self.old.children and self.groups == self.left == 1

    @property
    def pays(self) -> bool:
        """Whether few enough groups are left: half of a leaf's, or some for each file of a sum."""
        most = PER_FILE * self.groups if self.old.children else self.groups // 2
        return self.as_it_is or self.left <= most


def leaf_packs(node: PackNode) -> list[PackNode]:
    """The leaves of a node, which is one itself if nothing is below it."""
    return [each for each in node.walk() if not each.children]


def to_recut(nodes: Sequence[PackNode], now: int, keep: RetainedEpochs) -> RecutNode | None:
    """The next leaf or sum of which few enough groups are to be left."""
    return next(recut_nodes(nodes, now, keep), None)


def recut_nodes(nodes: Iterable[PackNode], now: int, keep: RetainedEpochs) -> Iterator[RecutNode]:
    """The leaves and sums of which few enough groups are to be left, sums before what they have."""
    for node in nodes:
        recut = RecutNode(node, wanted_fragments(node, now, keep))
        if recut.pieces and recut.pays:
            yield recut
        else:
            yield from recut_nodes(node.children, now, keep)


def budget_relief(
    nodes: Sequence[PackNode], now: int, keep: RetainedEpochs, gain: Callable[[RecutNode], float]
) -> RecutNode | None:
    """What is to be written anew so that the past takes less, whatever its age; None: nothing.

    As few epochs as possible are touched: those that would be old if single ones were kept half as
    long, and half of that again, until there is one that is worth it. Of these that which frees
    most bytes for each that is written.

    Args:
        keep: for how long single epochs were to be kept, and those that stay.
        gain: the bytes that are freed by those that are written.
    """
    single = min(keep.single, now + 1)
    while single:
        gains = [
            (gain(each), each) for each in recut_nodes(nodes, now, keep._replace(single=single))
        ]
        best = max(gains, key=itemgetter(0), default=None)
        if best is not None and best[0] > WORTH:
            return best[1]
        single //= 2
    return None


def packs_elsewhere(nodes: Iterable[PackNode], node: PackNode) -> set[str]:
    """The part files that others than a node, and what is below it, refer to."""
    inside = {id(each) for each in node.walk()}
    every = (each for top in nodes for each in top.walk())
    return {name for each in every if id(each) not in inside for name in each.parts}


def wanted_fragments(node: PackNode, now: int, keep: RetainedEpochs) -> tuple[PackFragment, ...]:
    """The pieces that a node would be written in; none if it is as it should be, or has to stay.

    Failure: 1. A collection that lagged behind has in a leaf what it got for earlier epochs, in
    groups, or one of them is pinned. 2. The leaf is cut inside of such a group, or thinned out.
    3. An epoch that is said to be there is that of another. So what may lead there stays as it is,
    and so does a leaf of which a rewind has left nothing but such epochs.
    """
    below = leaf_packs(node)
    if any(_before(leaf, keep.pinned) or leaf.clip < leaf.lower for leaf in below):
        return ()
    pieces: list[PackFragment] = []
    for leaf in below:
        for piece in _cut(leaf, now, keep):
            if pieces and piece.grain == pieces[-1].grain:
                pieces[-1] = pieces[-1]._replace(upper=piece.upper)
            else:
                pieces.append(piece)
    if not node.children:
        lower, upper = node.lower, min(node.upper, node.clip)
        return () if pieces in ([], [(lower, upper, node.grain)]) else tuple(pieces)
    late = any(_lowest(leaf) < leaf.lower and leaf.grain > 1 for leaf in below)
    return () if late and len(pieces) > 1 else tuple(pieces)


def _lowest(leaf: PackNode) -> int:
    """The first epoch that a leaf has something of."""
    return min((low for low, high in leaf.own.values() if low < high), default=leaf.lower)


def _before(leaf: PackNode, pinned: Iterable[int]) -> bool:
    """Whether a leaf has a pinned epoch of a collection that got it later."""
    lowest = _lowest(leaf)
    return any(lowest <= epoch < leaf.lower for epoch in pinned)


def _cut(leaf: PackNode, now: int, keep: RetainedEpochs) -> Iterator[PackFragment]:
    """The pieces of a leaf: cut where grains change, and around epochs that are pinned."""
    lower, upper = leaf.lower, min(leaf.upper, leaf.clip)
    if lower == upper and lower > _lowest(leaf):
        yield PackFragment(lower, upper, max(leaf.grain, keep.grain(upper, now)))
    ends = {upper}
    grain, least = FACTOR, keep.single
    while now + 1 - least > lower and grain <= GRAIN_MAX:
        # Whole groups: one that is cut in two has a row twice.
        whole = max(grain, leaf.grain)
        ends.add(min(upper, max(lower, (now + 1 - least) // whole * whole)))
        grain, least = grain * FACTOR, least * FACTOR
    pins = [epoch for epoch in keep.pinned if _stays(epoch, leaf, now, keep)]
    for epoch in pins:
        ends |= {max(lower, epoch + 1 - leaf.grain), epoch + 1}
    for low, high in pairwise(sorted({lower, *ends})):
        pinned = any(low <= epoch < high for epoch in pins) and high - low <= leaf.grain
        yield PackFragment(
            low, high, leaf.grain if pinned else max(leaf.grain, keep.grain(high, now))
        )


def _stays(epoch: int, leaf: PackNode, now: int, keep: RetainedEpochs) -> bool:
    """Whether an epoch of a leaf can be told apart in it, and would not be by its age."""
    inside = leaf.lower <= epoch < min(leaf.upper, leaf.clip)
    aged = keep.grain(epoch + 1, now)
    return inside and not (epoch + 1) % leaf.grain and bool((epoch + 1) % aged)


def would_lose(recut: RecutNode, now: int, keep: RetainedEpochs | None) -> bool:
    """Whether pieces lack what is to be kept now, as more is than when they were planned."""
    below = leaf_packs(recut.old)
    if keep is None:
        return any(piece.grain > 1 for piece in recut.pieces)
    if any(_before(leaf, keep.pinned) for leaf in below):
        return True
    if any(piece.grain > _allowed(piece, below, now, keep) for piece in recut.pieces):
        return True
    return any(
        not (epoch + 1) % leaf.grain and not _told(recut.pieces, epoch)
        for epoch in keep.pinned
        for leaf in below
        if leaf.lower <= epoch < min(leaf.upper, leaf.clip)
    )


def _allowed(piece: PackFragment, below: Iterable[PackNode], now: int, keep: RetainedEpochs) -> int:
    """The grain that the epochs of a piece may have now; never finer than they had."""
    lower, upper = piece.lower, piece.upper
    if lower == upper:  # what a trace got for epochs before, where a rewind has left nothing else
        had = [leaf.grain for leaf in below if leaf.lower <= lower <= leaf.upper]
    else:
        had = [leaf.grain for leaf in below if leaf.lower < upper and lower < leaf.upper]
    return max([keep.grain(upper, now), *had])


def _told(pieces: Iterable[PackFragment], epoch: int) -> bool:
    """Whether an epoch can be told apart in pieces."""
    return any(p.lower <= epoch < p.upper and not (epoch + 1) % p.grain for p in pieces)
