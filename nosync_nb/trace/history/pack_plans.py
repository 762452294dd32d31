"""Plans that write packs: the committing thread creates a plan, and any thread performs it.

A plan contains only immutable values. `History.adopt` adds its result to the history. If epochs
were rewound in the meantime, the result is discarded, and its files are garbage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from nosync_nb.trace.batch import Layout, concat_updates
from nosync_nb.trace.compaction import merge_ranges
from nosync_nb.trace.history.archive import Archive, add_sums
from nosync_nb.trace.history.downsampling import (
    PackFragment,
    RecutNode,
    RetainedEpochs,
    budget_relief,
    leaf_packs,
    packs_elsewhere,
    to_recut,
)
from nosync_nb.trace.history.pack_tree import PackNode, packs_to_sum
from nosync_nb.trace.history.sections import (
    LARGE,
    Entry,
    Large,
    Pause,
    Section,
    SectionShare,
    build_section,
    recut_section,
    sections_of,
    size_at,
    sum_sections,
)

_REST_S, _LONG_REST_S = 0.0002, 0.001
_WORK_S = 0.0003


class PackResult(NamedTuple):
    """The result of a plan.

    Attributes:
        new: the nodes of the written packs.
        old: the siblings that `new` replaces; empty if it replaces entries of tails.
        taken: the number of first entries of each trace's tail that are now in `new`.
        cuts: the number of truncations of the history when the plan was created.
        recut: the planned rewrite, if the plan was a downsampling.
    """

    new: tuple[PackNode, ...]
    old: tuple[PackNode, ...] = ()
    taken: Mapping[int, int] = {}
    cuts: int = 0
    recut: RecutNode | None = None

    @property
    def files(self) -> set[str]:
        """The names of the written files: packs, and part files that `old` does not reference."""
        every = (each for top in self.old for each in top.walk())
        before = {name for each in every for name in (each.name, *each.parts)}
        return {name for each in self.new for name in (each.name, *each.parts)} - before


class YieldingPause:
    """Rests regularly, because a busy worker delays epochs that take a fraction of a millisecond.

    The rests depend on the working time and not on the number of steps, because a small trace has
    many short steps. While another thread works, that thread gets most of the time; three of
    four small epochs are not disturbed.

    Args:
        way: called after each rest; it may wait longer for another thread, and then returns True.
    """

    def __init__(self, way: Callable[[], object] | None = None) -> None:
        self._way = way
        self._had_to_wait = False  # True if the last call of `way` has waited
        self._due = time.perf_counter() + _WORK_S

    def __call__(self) -> None:
        """Rests, if a rest is due."""
        if time.perf_counter() >= self._due:
            time.sleep(_LONG_REST_S if self._had_to_wait else _REST_S)
            if self._way is not None:
                self._had_to_wait = bool(self._way())
            self._due = time.perf_counter() + _WORK_S


class PackPlan(NamedTuple):
    """Writes the tails of traces up to an epoch as a pack.

    Attributes:
        lower, upper: the epochs `[lower, upper)` of the pack.
        entries: the entries of each trace.
        cuts: the number of truncations of the history so far.
    """

    archive: Archive
    lower: int
    upper: int
    entries: Mapping[int, Sequence[Entry]]
    cuts: int

    def perform(
        self, pause: Pause | None = None, begins: Callable[[int], object] = int
    ) -> PackResult:
        """Writes the pack.

        Args:
            begins: called with the number of each trace before its changes are read.

        Cost: O(n log n) in the updates, and a few numpy calls for each trace.
        """
        pause = pause or YieldingPause()
        sections: list[tuple[int, Section]] = []
        extents = {}
        for trace, entries in self.entries.items():
            begins(trace)
            start = min(self.lower, entries[0][0])
            if start < self.lower:
                extents[trace] = (start, self.upper)
            for section in sections_of(entries, start, self.upper, pause):
                sections.append((trace, section))
                pause()
        stem = f"pack-{self.lower}-{self.upper}"
        node = _write_node(self.archive, sections, stem, self.lower, self.upper)
        counts = {trace: len(entries) for trace, entries in self.entries.items()}
        return PackResult((node._replace(own=extents),), (), counts, self.cuts)


class SumPlan(NamedTuple):
    """Writes the sums over sibling nodes as a pack."""

    archive: Archive
    children: tuple[PackNode, ...]

    def perform(self, pause: Pause | None = None) -> PackResult:
        """Writes the pack; a sum of more than `LARGE` rows is written to part files."""
        pause = pause or YieldingPause()
        archive, children = self.archive, self.children
        lower = min(node.lower for node in children)
        upper = max(min(node.upper, node.clip) for node in children)
        holders: dict[int, list[PackNode]] = {}
        for node in children:
            for trace in archive.pack(node).numbers:
                holders.setdefault(trace, []).append(node)
        sections = []
        own = {}
        for trace, nodes in holders.items():
            start = min(node.extent(trace)[0] for node in nodes)
            stop = max(node.extent(trace)[1] for node in nodes)
            if start < lower or stop > upper:
                own[trace] = (start, stop)
            for section in self._sums(nodes, trace, start, stop):
                sections.append((trace, section))
            pause()
        stem = f"sum-{lower}-{upper}"
        node = _write_node(archive, sections, stem, lower, upper, children[0].level + 1)
        return PackResult((node._replace(own=own, children=children),), children)

    def _sums(self, nodes: list[PackNode], trace: int, start: int, stop: int) -> Iterable[Section]:
        """Yields the sections with the sums of a trace, one for each layout that it had."""
        archive = self.archive
        sums = archive.read(nodes, trace, start, stop)
        for layout in {**sums.updates, **sums.large}:
            large = sums.large.get(layout, [])
            batch = add_sums(layout, sums.updates[layout]) if layout in sums.updates else None
            if batch is not None and len(batch) > LARGE:
                stem = f"sum{trace}-{start}-{stop}"
                refs = archive.write_parts([batch], stem)
                large = [*large, (start, tuple(refs))]
                batch = None
            if large or (batch is not None and len(batch)):
                yield sum_sections(layout, start, stop, batch, large)


class RecutPlan(NamedTuple):
    """Rewrites a leaf, or all leaves of a sum, as coarser packs.

    Args:
        others: the part files that are also used elsewhere, so that merging them frees no space.
    """

    archive: Archive
    recut: RecutNode
    others: AbstractSet[str] = frozenset()

    def perform(self, pause: Pause | None = None) -> PackResult:
        """Writes each piece as a pack; for a leaf of one group only the grain changes."""
        pause = pause or YieldingPause()
        old, pieces = self.recut
        if self.recut.as_it_is:
            return PackResult((old._replace(grain=pieces[0].grain),), (old,), recut=self.recut)
        below = leaf_packs(old)
        new = tuple(self._piece(piece, below, piece is pieces[0], pause) for piece in pieces)
        return PackResult(new, (old,), recut=self.recut)

    def _piece(
        self, piece: PackFragment, below: Sequence[PackNode], first: bool, pause: Pause
    ) -> PackNode:
        """Writes a piece; the first piece includes late changes of earlier epochs."""
        archive = self.archive
        sections: list[tuple[int, Section]] = []
        own = {}
        for trace in sorted(set().union(*(archive.pack(leaf).numbers for leaf in below))):
            extents = [leaf.extent(trace) for leaf in below]
            lowest = min((low for low, high in extents if low < high), default=piece.lower)
            start = min(lowest, piece.lower) if first else piece.lower
            if start < piece.lower:
                own[trace] = (start, piece.upper)
            for section in self._recut(piece, trace, start, below):
                if section.levels or section.large:
                    sections.append((trace, section))
            pause()
        stem = f"pack-{piece.lower}-{piece.upper}"
        level = self.recut.old.level
        node = _write_node(archive, sections, stem, piece.lower, piece.upper, level)
        return node._replace(own=own, grain=piece.grain)

    def _recut(
        self, piece: PackFragment, trace: int, start: int, below: Sequence[PackNode]
    ) -> Iterable[Section]:
        """Yields the sections of a trace in a piece, one for each layout that it had."""
        shift = piece.grain.bit_length() - 1
        shares: dict[Layout, list[SectionShare]] = {}
        for leaf in below:
            low, high = leaf.extent(trace)
            low, high = max(low, start), min(high, piece.upper)
            for section in self.archive.pack(leaf).sections(trace) if low < high else ():
                shares.setdefault(section.layout, []).append(SectionShare(section, low, high))
        for layout, some in shares.items():
            large = [each for s in some for each in s.section.large if s.lower <= each[0] < s.upper]
            large, sums = self._merge_large(layout, large, trace, shift)
            more = [SectionShare(each, each.start, each.stop) for each in sums]
            yield recut_section(layout, start, piece.upper, shift, [*some, *more], large)

    def _merge_large(
        self, layout: Layout, large: list[Large], trace: int, shift: int
    ) -> tuple[list[Large], list[Section]]:
        """Merges the changes in part files for each group of epochs.

        Returns:
            the changes that remain in part files, and sections with those that became small.
        """
        result, small = [], []
        for some in _groups(large, shift):
            refs = [ref for _, refs in some for ref in refs]
            if len(some) < 2 or not self.others.isdisjoint(ref.path for ref in refs):
                result += some
                continue
            epoch, archive = some[0][0], self.archive
            parts = merge_ranges(layout, [(archive.part(ref, layout),) for ref in refs])
            if sum(map(len, parts)) > LARGE:
                stem = f"sum{trace}-{epoch}-{some[-1][0] + 1}"
                made = archive.write_parts(parts, stem)
                result.append((epoch, tuple(made)))
            elif parts:
                updates = [part.updates for part in parts]
                batch = concat_updates(updates, layout.types)
                small.append(
                    build_section(layout, epoch, epoch + 1, [epoch], [len(batch.diff)], [batch])
                )
        return result, small


def tidy_plans(
    archive: Archive,
    tree: Sequence[PackNode],
    now: int,
    keep: RetainedEpochs | None,
    needed: AbstractSet[str],
    *,
    to_fit: bool,
) -> SumPlan | RecutPlan | None:
    """Returns the next sum over packs, or the next downsampling; see `History.tidy`."""
    children = packs_to_sum(tree)
    if children is not None:
        return SumPlan(archive, children)
    coarser = None
    if keep is not None and to_fit:
        coarser = budget_relief(
            tree, now, keep, lambda recut: _bytes_gain(archive, tree, recut, needed)
        )
    elif keep is not None:
        coarser = to_recut(tree, now, keep)
    if coarser is None:
        return None
    return RecutPlan(archive, coarser, needed | packs_elsewhere(tree, coarser.old))


def _bytes_gain(
    archive: Archive, tree: Sequence[PackNode], recut: RecutNode, needed: AbstractSet[str]
) -> float:
    """Estimates the bytes that a rewrite frees, divided by the bytes that it writes.

    The number of rows that large changes have in common is unknown, and assumed to be a half.

    Cost: opens the packs of the node, which remain cached.
    """
    if recut.as_it_is:
        return 0.0
    others = needed | packs_elsewhere(tree, recut.old)
    shift = max(piece.grain for piece in recut.pieces).bit_length() - 1
    before = sum(node.size_bytes for node in recut.old.walk())
    after = 1.0
    freed: dict[str, int] = {}
    for node in recut.old.walk():
        pack = archive.pack(node)
        sections = [section for trace in pack.numbers for section in pack.sections(trace)]
        if node.children:
            summed_up = (ref for s in sections for _, own in s.large for ref in own)
            freed.update((ref.path, ref.size_bytes) for ref in summed_up if ref.path not in others)
            continue
        now, then = (sum(size_at(each, at) for each in sections) for at in (0, shift))
        after += node.size_bytes * then / max(now, 1)
    for leaf in leaf_packs(recut.old):
        pack = archive.pack(leaf)
        for section in (each for trace in pack.numbers for each in pack.sections(trace)):
            for some in _groups(section.large, shift):
                refs = [ref for _, own in some for ref in own]
                mergeable = len(some) > 1 and others.isdisjoint(ref.path for ref in refs)
                for ref in refs:
                    freed.pop(ref.path, None)
                if mergeable:
                    size = sum(ref.size_bytes for ref in refs)
                    before, after = before + size, after + size / 2
    return (before + sum(freed.values()) - after) / after


def _groups(large: Iterable[Large], shift: int) -> Iterable[list[Large]]:
    """Groups large changes by aligned groups of `2**shift` epochs."""
    groups: dict[int, list[Large]] = {}
    for each in large:
        groups.setdefault(each[0] >> shift, []).append(each)
    return groups.values()


def _write_node(
    archive: Archive,
    sections: Sequence[tuple[int, Section]],
    stem: str,
    lower: int,
    upper: int,
    level: int = 0,
) -> PackNode:
    """Writes sections as a pack, and returns its node."""
    name, size, digest = archive.write_pack(sections, stem)
    refs = [ref for _, s in sections for _, refs in s.large for ref in refs]
    parts = tuple(ref.path for ref in refs)
    return PackNode(name, size, digest, lower, upper, upper, level, parts=parts)
