"""Defines the tree of packs: the files with the epochs of each trace. Immutable; pure functions.

A leaf is a pack with the levels of some epochs. A node with children stores the sums over all
epochs of its children, in a separate file. Every change of a trace at an epoch is in exactly one
leaf. Normally this is the leaf whose interval contains the epoch. A trace that was backfilled over
old epochs, or that lagged behind, has a different interval in some packs (`own`).

Other functions choose the stored sums that add up to an interval of epochs (the grid). A section
stores the changes of a trace in `[start, stop)` at several *levels*. Level `s` has one sum for each
aligned group of `2**s` epochs; the groups at the ends are limited to the section. Level `WHOLE` has
one sum for the whole section. Level 0 has single epochs, unless downsampling has dropped it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import Any, NamedTuple

from nosync_nb.errors import CorruptLogError, TimeError
from nosync_nb.files.safe_names import PACK, PART, checked_file_name

SHIFTS = (4, 8)
WHOLE = 62


class GroupRun(NamedTuple):
    """The groups with the numbers `[first, end)` of the level `shift`."""

    shift: int
    first: int
    end: int


def cover(
    lower: int, upper: int, start: int, stop: int, shifts: tuple[int, ...]
) -> list[GroupRun] | None:
    """Covers `[lower, upper)`, limited to the section, with few groups of the given levels.

    Args:
        start, stop: the epochs `[start, stop)` of the section.
        shifts: the levels of the section, ascending.

    Returns:
        disjoint runs, at most two of each level; None if a bound is inside a group of the lowest
        level.
    """
    lower, upper = max(lower, start), min(upper, stop)
    if lower >= upper:
        return []
    runs: list[GroupRun] = []
    todo = [(lower, upper, len(shifts) - 1)]
    while todo:
        low, high, k = todo.pop()
        if k < 0:
            return None
        shift = shifts[k]
        first = low >> shift if low == start else -(-low >> shift)
        end = -(-stop >> shift) if high == stop else high >> shift
        if first >= end:
            todo.append((low, high, k - 1))
            continue
        runs.append(GroupRun(shift, first, end))
        if low < first << shift:
            todo.append((low, first << shift, k - 1))
        if end << shift < high:
            todo.append((end << shift, high, k - 1))
    return runs


def readable(spans: list[tuple[int, int]], grains: list[tuple[int, int, int]]) -> list[range]:
    """Returns the epochs at which a state can be read.

    Args:
        spans: half-open intervals in which a trace is complete, ascending.
        grains: `(lower, upper, grain)`, ascending and disjoint. An epoch t in `[lower, upper)` is
            individually readable if t + 1 is a multiple of the grain. All epochs outside of these
            intervals are readable.

    Returns:
        ascending ranges, whose steps are the grains.
    """
    ranges: list[range] = []
    for begin, end in spans:
        at = begin
        for lower, upper, grain in grains:
            if upper <= at or lower >= end or grain == 1:
                continue
            _add(ranges, range(at, lower))
            first = -(-(max(lower, begin) + 1) // grain) * grain - 1
            _add(ranges, range(first, min(upper, end), grain))
            at = min(upper, end)
        _add(ranges, range(at, end))
    return ranges


def common(one: list[range], other: list[range]) -> list[range]:
    """Returns the intersection of two results of `readable`, whose steps are powers of two.

    Where two ranges overlap, the epochs of the larger step are also epochs of the smaller step.
    """
    both: list[range] = []
    i = j = 0
    while i < len(one) and j < len(other):
        a, b = one[i], other[j]
        lower, upper = max(a[0], b[0]), min(a[-1], b[-1]) + 1
        coarse = a if a.step >= b.step else b
        first = coarse[0] + max(0, -(-(lower - coarse[0]) // coarse.step)) * coarse.step
        _add(both, range(first, upper, coarse.step))
        if a[-1] <= b[-1]:
            i += 1
        if b[-1] <= a[-1]:
            j += 1
    return both


def _add(ranges: list[range], more: range) -> None:
    """Appends a range, or extends the last range if the new one continues it."""
    if not more:
        return
    if ranges and ranges[-1].step == more.step and ranges[-1][-1] + more.step == more[0]:
        more = range(ranges.pop()[0], more.stop, more.step)
    ranges.append(more)


def nearest_epochs(ranges: list[range], at: int) -> tuple[int | None, int | None]:
    """Returns the last readable epoch before `at` and the first one after it; None without one."""
    before = after = None
    for each in ranges:
        if each[0] < at:
            before = each[min(len(each), -(-(at - each[0]) // each.step)) - 1]
        if each[-1] > at and after is None:
            after = each[max(0, (at - each[0]) // each.step + 1)]
    return before, after


FANOUT = 16


class PackNode(NamedTuple):
    """A pack and its position in the tree.

    Args:
        lower, upper: the epochs `[lower, upper)` that the pack stores for all traces not in `own`.
        clip: the epochs from `clip` on are undone by a rewind.
        level: 0 for a leaf. For a sum, and for a leaf that has replaced a sum, one more than the
            level of its children.
        grain: an epoch t of a leaf is individually readable if t + 1 is a multiple of the grain.
        own: the intervals of traces that differ from the pack's; that of a dropped trace is empty.
        parts: the part files that the sections reference.
        children: the nodes whose sums the pack stores; empty for a leaf.
    """

    name: str
    size_bytes: int
    digest: str
    lower: int
    upper: int
    clip: int
    level: int = 0
    grain: int = 1
    own: Mapping[int, tuple[int, int]] = {}
    parts: tuple[str, ...] = ()
    children: tuple[PackNode, ...] = ()

    def extent(self, trace: int) -> tuple[int, int]:
        """Returns the epochs `[lower, upper)` in which the pack may have changes of a trace."""
        lower, upper = self.own.get(trace, (self.lower, self.upper))
        return lower, min(upper, self.clip)

    def walk(self) -> Iterator[PackNode]:
        """Yields this node and all nodes below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def to_json(self) -> list[Any]:
        """Returns the node as JSON values; see `node_from_json`."""
        own = [[trace, *bounds] for trace, bounds in self.own.items()]
        return [*self[:8], own, list(self.parts), [c.to_json() for c in self.children]]


def check_cut(top: PackNode, upper: int) -> None:
    """Raises TimeError if a downsampled leaf cannot be split at the epoch `upper`."""
    for node in top.walk():
        bounds = [(node.lower, node.upper), *node.own.values()]
        crossing = any(low < upper < min(high, node.clip) for low, high in bounds)
        if not node.children and crossing and upper % node.grain:
            below = upper // node.grain * node.grain - 1
            raise TimeError(
                f"cannot use epoch {upper - 1}: it is no longer retained separately",
                hint=f"use {below} or {below + node.grain}, the nearest epochs",
            )


def epoch_grains(tree: Iterable[PackNode], trace: int) -> list[tuple[int, int, int]]:
    """Returns the downsampled epochs of a trace: (lower, upper, grain), ascending and disjoint.

    If two leaves have changes of the same epochs, because the trace lagged behind, the coarser
    grain applies.
    """
    leaves = (node for top in tree for node in top.walk() if node.grain > 1)
    bounds = sorted((*leaf.extent(trace), leaf.grain) for leaf in leaves)
    if all(one[1] <= other[0] for one, other in pairwise(bounds)):
        return bounds
    ends = sorted({end for lower, upper, _ in bounds for end in (lower, upper)})
    spans = []
    for low, high in pairwise(ends):
        grain = max((g for lower, upper, g in bounds if lower <= low < upper), default=1)
        spans.append((low, high, grain))
    return spans


def epochs(
    tree: Iterable[PackNode], trace: int, hidden: Iterable[tuple[int, int]], now: int
) -> list[range]:
    """Returns the epochs up to `now` at which a trace can be read.

    Args:
        hidden: intervals `[lower, upper)` of epochs that are not individually readable.
    """
    spans = []
    at = 0
    for lower, upper in hidden:
        spans.append((at, min(lower, now + 1)))
        at = max(at, upper)
    spans.append((at, now + 1))
    return readable([(a, b) for a, b in spans if a < b], epoch_grains(tree, trace))


def node_from_json(data: Sequence[Any]) -> PackNode:
    """Builds a node from the values of `to_json`.

    Raises:
        CorruptLogError: if a name is not that of a pack or part file, or a number is invalid.
    """
    name = checked_file_name(data[0], PACK)
    parts = tuple(checked_file_name(part, PART) for part in data[9])
    own = {trace: (lower, upper) for trace, lower, upper in data[8]}
    children = tuple(map(node_from_json, data[10]))
    node = PackNode._make((name, *data[1:8], own, parts, children))
    numbers = [
        node.size_bytes,
        *node[3:8],
        *own,
        *(bound for pair in own.values() for bound in pair),
    ]
    whole = all(type(number) is int and number >= 0 for number in numbers)
    if not whole or node.lower > node.upper or node.grain < 1 or not isinstance(node.digest, str):
        raise CorruptLogError(
            f"'{name}': its epochs are not valid numbers",
            hint="restore the log from a copy",
        )
    return node


def hidden_from_json(data: Sequence[Any]) -> dict[int, tuple[tuple[int, int], ...]]:
    """Reads the hidden epochs `[lower, upper)` of each trace from a manifest.

    Raises:
        CorruptLogError: if an epoch or a trace is invalid, or if a trace occurs twice.
    """
    hidden = {}
    for trace, some in data:
        bounds = tuple((lower, upper) for lower, upper in some)
        numbers = [trace, *(bound for pair in bounds for bound in pair)]
        whole = all(type(number) is int and number >= 0 for number in numbers)
        if not whole or trace in hidden or not all(lower < upper for lower, upper in bounds):
            raise CorruptLogError(
                "the log hides invalid epochs, or epochs of an unknown trace",
                hint="restore the log from a copy",
            )
        hidden[trace] = bounds
    return hidden


def hidden_below(some: Iterable[tuple[int, int]], upper: int) -> tuple[tuple[int, int], ...]:
    """Returns the hidden intervals of a trace, limited to epochs before `upper`."""
    return tuple((low, min(high, upper)) for low, high in some if low < upper)


def without_packs(
    node: PackNode, trace: int, gone: Callable[[PackNode], AbstractSet[str]]
) -> PackNode:
    """Removes the references to the part files of a trace from a node and all nodes below it.

    Args:
        gone: returns the part files that a pack references for the trace.
    """
    below = tuple(without_packs(child, trace, gone) for child in node.children)
    files = gone(node) if node.parts else ()
    if not files:
        return node if below == node.children else node._replace(children=below)
    parts = tuple(part for part in node.parts if part not in files)
    own = {**node.own, trace: (node.lower, node.lower)}
    return node._replace(parts=parts, own=own, children=below)


def cut_tree(nodes: Sequence[PackNode], upper: int) -> Iterator[PackNode]:
    """Yields the nodes without the epochs from `upper` on.

    A sum that includes epochs on both sides is replaced by its children.
    """
    for node in nodes:
        bounds = [(node.lower, node.upper), *node.own.values()]
        if min(low for low, _ in bounds) >= upper:
            continue
        if min(node.clip, max(high for _, high in bounds)) <= upper:
            yield node
        elif node.children:
            yield from cut_tree(node.children, upper)
        else:
            yield node._replace(clip=upper)


def replace_packs(
    nodes: tuple[PackNode, ...], old: tuple[PackNode, ...], new: tuple[PackNode, ...]
) -> tuple[PackNode, ...] | None:
    """Replaces adjacent siblings in a tree; returns None if the tree no longer has them."""
    for i, node in enumerate(nodes):
        if node is old[0]:
            same = all(a is b for a, b in zip(old, nodes[i : i + len(old)], strict=False))
            if not same or len(nodes) - i < len(old):
                return None
            return (*nodes[:i], *new, *nodes[i + len(old) :])
        if node.children:
            below = replace_packs(node.children, old, new)
            if below is not None:
                return (*nodes[:i], node._replace(children=below), *nodes[i + 1 :])
    return None


def packs_to_sum(nodes: Sequence[PackNode]) -> tuple[PackNode, ...] | None:
    """Returns the first `FANOUT` adjacent nodes of the same level, for which a sum is due."""
    for start in range(len(nodes) - FANOUT + 1):
        run = nodes[start : start + FANOUT]
        if len({node.level for node in run}) == 1:
            return tuple(run)
    return None
