"""Decides which past epochs are merged into groups, and which packs are rewritten. Pure functions.

With their age, epochs are merged into coarser groups, of 16, of 256, and so on (`RetainedEpochs`).
A pack of which only a part is old enough is split. A pinned epoch stays individually readable,
whatever happens to its neighbours. A sum whose packs have few groups left is rewritten as a leaf.

Design: a leaf is rewritten only if at most half of its groups remain, and a sum becomes a leaf only
once for each grain. So for each factor of 16, downsampling writes at most three times the packed
bytes, however often it is called. The number of packs in the manifest is bounded by the number of
readable epochs, not by the number of committed ones.
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
"""The least ratio of freed to written bytes that justifies a rewrite."""
PER_FILE = 16
"""The packs below a sum become one pack if they have at most this number of groups on average."""
GRAIN_MAX = FACTOR**10


class RetainedEpochs(NamedTuple):
    """The epochs that are not downsampled: the last `single` epochs, and the pinned ones."""

    single: int
    pinned: AbstractSet[int] = frozenset()

    def grain(self, upper: int, now: int) -> int:
        """Returns the grain for a group of epochs that ends before `upper`, at the epoch `now`."""
        grain, least = 1, self.single
        while now + 1 - upper >= least and grain < GRAIN_MAX:
            grain, least = grain * FACTOR, least * FACTOR
        return grain


class PackFragment(NamedTuple):
    """The epochs `[lower, upper)` that are rewritten as a separate pack, with a grain."""

    lower: int
    upper: int
    grain: int

    @property
    def groups(self) -> int:
        """The number of groups of epochs, including incomplete groups at the ends."""
        return -(-self.upper // self.grain) - self.lower // self.grain


class RecutNode(NamedTuple):
    """A leaf, or a sum with all nodes below it, and the pieces that would replace it."""

    old: PackNode
    pieces: tuple[PackFragment, ...]

    @property
    def groups(self) -> int:
        """The number of groups of a leaf; the number of children of a sum."""
        old = self.old
        if old.children:
            return len(old.children)
        return PackFragment(_lowest_epoch(old), min(old.upper, old.clip), old.grain).groups

    @property
    def left(self) -> int:
        """The number of groups after the rewrite."""
        first, *rest = self.pieces
        first = first._replace(lower=min(first.lower, _lowest_epoch(leaf_packs(self.old)[0])))
        return sum(piece.groups for piece in (first, *rest))

    @property
    def as_it_is(self) -> bool:
        """True if nothing must be written, because a leaf has one group before and after."""
        return not self.old.children and self.groups == self.left == 1

    @property
    def pays(self) -> bool:
        """True if few enough groups remain: half of a leaf's, or `PER_FILE` for each child."""
        most = PER_FILE * self.groups if self.old.children else self.groups // 2
        return self.as_it_is or self.left <= most


def leaf_packs(node: PackNode) -> list[PackNode]:
    """Returns the leaves of a node, which may be the node itself."""
    return [each for each in node.walk() if not each.children]


def to_recut(nodes: Sequence[PackNode], now: int, keep: RetainedEpochs) -> RecutNode | None:
    """Returns the next leaf or sum whose rewrite pays."""
    return next(recut_nodes(nodes, now, keep), None)


def recut_nodes(nodes: Iterable[PackNode], now: int, keep: RetainedEpochs) -> Iterator[RecutNode]:
    """Yields the leaves and sums whose rewrite pays, sums before their children."""
    for node in nodes:
        recut = RecutNode(node, wanted_fragments(node, now, keep))
        if recut.pieces and recut.pays:
            yield recut
        else:
            yield from recut_nodes(node.children, now, keep)


def budget_relief(
    nodes: Sequence[PackNode], now: int, keep: RetainedEpochs, gain: Callable[[RecutNode], float]
) -> RecutNode | None:
    """Returns the next rewrite that reduces the size of history, whatever the age of epochs.

    The number of retained single epochs is halved until a rewrite is worth its cost, so that as few
    epochs as possible are affected. The rewrite with the greatest gain is chosen.

    Args:
        keep: the requested number of single epochs, and the pinned ones.
        gain: returns the freed bytes divided by the written bytes.

    Returns:
        the rewrite; None if no rewrite is worth its cost.
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
    """Returns the part files that nodes outside of a subtree reference."""
    inside = {id(each) for each in node.walk()}
    every = (each for top in nodes for each in top.walk())
    return {name for each in every if id(each) not in inside for name in each.parts}


def wanted_fragments(node: PackNode, now: int, keep: RetainedEpochs) -> tuple[PackFragment, ...]:
    """Returns the pieces into which a node should be rewritten; empty if it must not change.

    Failure: 1. A collection that lagged behind has changes of earlier epochs in a leaf, in groups,
    or one of these epochs is pinned. 2. The leaf is cut inside such a group, or downsampled. 3. A
    read at an epoch returns the state of another one. Therefore such a leaf is not rewritten, nor
    is a leaf in which a rewind has left only such epochs.
    """
    below = leaf_packs(node)
    if any(_has_late_pin(leaf, keep.pinned) or leaf.clip < leaf.lower for leaf in below):
        return ()
    pieces: list[PackFragment] = []
    for leaf in below:
        for piece in _leaf_fragments(leaf, now, keep):
            if pieces and piece.grain == pieces[-1].grain:
                pieces[-1] = pieces[-1]._replace(upper=piece.upper)
            else:
                pieces.append(piece)
    if not node.children:
        lower, upper = node.lower, min(node.upper, node.clip)
        return () if pieces in ([], [(lower, upper, node.grain)]) else tuple(pieces)
    late = any(_lowest_epoch(leaf) < leaf.lower and leaf.grain > 1 for leaf in below)
    return () if late and len(pieces) > 1 else tuple(pieces)


def _lowest_epoch(leaf: PackNode) -> int:
    """Returns the first epoch of which a leaf may have changes, including late ones."""
    return min((low for low, high in leaf.own.values() if low < high), default=leaf.lower)


def _has_late_pin(leaf: PackNode, pinned: Iterable[int]) -> bool:
    """Returns True if a pinned epoch is before a leaf, in the range of its late changes."""
    lowest = _lowest_epoch(leaf)
    return any(lowest <= epoch < leaf.lower for epoch in pinned)


def _leaf_fragments(leaf: PackNode, now: int, keep: RetainedEpochs) -> Iterator[PackFragment]:
    """Yields the pieces of a leaf, split where the grain changes and around pinned epochs."""
    lower, upper = leaf.lower, min(leaf.upper, leaf.clip)
    if lower == upper and lower > _lowest_epoch(leaf):
        yield PackFragment(lower, upper, max(leaf.grain, keep.grain(upper, now)))
    ends = {upper}
    grain, least = FACTOR, keep.single
    while now + 1 - least > lower and grain <= GRAIN_MAX:
        # Leaves are split only between groups, because a split group may store a row twice.
        whole = max(grain, leaf.grain)
        ends.add(min(upper, max(lower, (now + 1 - least) // whole * whole)))
        grain, least = grain * FACTOR, least * FACTOR
    pins = [epoch for epoch in keep.pinned if _needs_pin(epoch, leaf, now, keep)]
    for epoch in pins:
        ends |= {max(lower, epoch + 1 - leaf.grain), epoch + 1}
    for low, high in pairwise(sorted({lower, *ends})):
        pinned = any(low <= epoch < high for epoch in pins) and high - low <= leaf.grain
        yield PackFragment(
            low, high, leaf.grain if pinned else max(leaf.grain, keep.grain(high, now))
        )


def _needs_pin(epoch: int, leaf: PackNode, now: int, keep: RetainedEpochs) -> bool:
    """Returns True if an epoch is readable in a leaf, and would become unreadable with age."""
    inside = leaf.lower <= epoch < min(leaf.upper, leaf.clip)
    aged = keep.grain(epoch + 1, now)
    return inside and not (epoch + 1) % leaf.grain and bool((epoch + 1) % aged)


def would_lose(recut: RecutNode, now: int, keep: RetainedEpochs | None) -> bool:
    """Returns True if a planned rewrite would drop epochs that must be retained now.

    This happens if retention has been extended since the plan was created.
    """
    below = leaf_packs(recut.old)
    if keep is None:
        return any(piece.grain > 1 for piece in recut.pieces)
    if any(_has_late_pin(leaf, keep.pinned) for leaf in below):
        return True
    if any(piece.grain > _allowed_grain(piece, below, now, keep) for piece in recut.pieces):
        return True
    return any(
        not (epoch + 1) % leaf.grain and not _is_readable(recut.pieces, epoch)
        for epoch in keep.pinned
        for leaf in below
        if leaf.lower <= epoch < min(leaf.upper, leaf.clip)
    )


def _allowed_grain(
    piece: PackFragment, below: Iterable[PackNode], now: int, keep: RetainedEpochs
) -> int:
    """Returns the coarsest grain that a piece may have now; at least that of its old leaves."""
    lower, upper = piece.lower, piece.upper
    if lower == upper:  # a rewind has left only late changes of earlier epochs
        grains = [leaf.grain for leaf in below if leaf.lower <= lower <= leaf.upper]
    else:
        grains = [leaf.grain for leaf in below if leaf.lower < upper and lower < leaf.upper]
    return max([keep.grain(upper, now), *grains])


def _is_readable(pieces: Iterable[PackFragment], epoch: int) -> bool:
    """Returns True if an epoch will be individually readable after a rewrite into pieces."""
    return any(p.lower <= epoch < p.upper and not (epoch + 1) % p.grain for p in pieces)
