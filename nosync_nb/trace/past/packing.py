"""Packing: plans that write packs. Made by the committing thread, performed in any thread.

A plan holds immutable things only. What it returns is put in place by `History.adopt`; if that is
too late, since epochs were rewound meanwhile, its file is nobody's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from nosync_nb.trace.batch import Batch, Hashes, Layout, Updates
from nosync_nb.trace.parts import PartRef, write_parts
from nosync_nb.trace.past.archive import Archive, added
from nosync_nb.trace.past.packs import write_pack
from nosync_nb.trace.past.sections import LARGE, Large, Section, build, summed, thinned
from nosync_nb.trace.past.tree import PackNode

_REST_S = 0.0002
_WORK_S = 0.0005


class Filed(NamedTuple):
    """A change that lies in part files; `parts` if they are mapped already."""

    layout: Layout
    refs: tuple[PartRef, ...]
    parts: tuple[Batch, ...] = ()


Decode: TypeAlias = Callable[[Sequence[Any], Sequence[str]], Updates]


class Encoded(NamedTuple):
    """A change that is decoded when it is needed: consolidated updates, in any order.

    `decode` gets `data` of any number of changes, and the column types: many at once cost less.
    """

    layout: Layout
    data: Any
    decode: Decode


Change: TypeAlias = Batch | Filed | Encoded
"""A batch, in memory, in files, or as a frame of the log has it."""
Entry: TypeAlias = tuple[int, Change]
Pause: TypeAlias = Callable[[], None]


def excess(tail: Sequence[Entry], rows_max: int) -> int | None:
    """The epoch up to which changes are to be summed, where those after the first are too many.

    Half of `rows_max` is left. None: they are not too many, or one epoch has all of them.
    """
    batches = (c.data if isinstance(c, Encoded) else c for _, c in tail[1:])
    sizes = [len(each) if isinstance(each, Batch) else 0 for each in batches]
    if sum(sizes) <= rows_max:
        return None
    left = 0
    for (epoch, _), size in zip(reversed(tail[1:]), reversed(sizes), strict=True):
        left += size
        if left > rows_max // 2:
            return int(epoch)
    return None


class Packed(NamedTuple):
    """What a plan made: `new` in place of the siblings `old`, or of `taken` entries of tails."""

    new: PackNode
    old: tuple[PackNode, ...] = ()
    taken: Mapping[int, int] = {}
    cuts: int = 0


class Rest:
    """Lets other threads run: a worker that computes holds up epochs of a fraction of a ms.

    It goes by the work that was done, not by its steps: those of a small trace are many and short.
    """

    def __init__(self) -> None:
        self._due = time.perf_counter() + _WORK_S

    def __call__(self) -> None:
        """Rests, if that is due."""
        if time.perf_counter() >= self._due:
            time.sleep(_REST_S)
            self._due = time.perf_counter() + _WORK_S


class PackPlan(NamedTuple):
    """Writes the tails of traces up to an epoch as a pack."""

    archive: Archive
    lower: int
    upper: int
    entries: Mapping[int, Sequence[Entry]]
    cuts: int

    def perform(self, pause: Pause | None = None) -> Packed:
        """Writes the pack. Cost: O(n log n) in its updates, a few numpy calls per trace."""
        pause = pause or Rest()
        sections: list[tuple[int, Section]] = []
        own = {}
        for trace, entries in self.entries.items():
            start = min(self.lower, entries[0][0])
            if start < self.lower:
                own[trace] = (start, self.upper)
            for section in _sections(entries, start, self.upper, pause):
                sections.append((trace, section))
                pause()
        stem = f"pack-{self.lower}-{self.upper}"
        node = _written(self.archive, sections, stem, self.lower, self.upper)
        taken = {trace: len(entries) for trace, entries in self.entries.items()}
        return Packed(node._replace(own=own), (), taken, self.cuts)


class SumPlan(NamedTuple):
    """Writes the sums of siblings."""

    archive: Archive
    children: tuple[PackNode, ...]

    def perform(self, pause: Pause | None = None) -> Packed:
        """Writes the pack of sums; sums above `LARGE` rows become part files."""
        pause = pause or Rest()
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
        node = _written(archive, sections, stem, lower, upper, children[0].level + 1)
        return Packed(node._replace(own=own, children=children), children)

    def _sums(self, nodes: list[PackNode], trace: int, start: int, stop: int) -> Iterable[Section]:
        """The sections of a trace, one for each layout it had."""
        archive = self.archive
        sums = archive.read(nodes, trace, start, stop)
        for layout in {**sums.updates, **sums.large}:
            large = sums.large.get(layout, [])
            batch = added(layout, sums.updates[layout]) if layout in sums.updates else None
            if batch is not None and len(batch) > LARGE:
                stem = f"sum{trace}-{start}-{stop}"
                refs = write_parts(archive.parts, [batch], stem, files=archive.files)
                large = [*large, (start, tuple(refs))]
                batch = None
            if large or (batch is not None and len(batch)):
                yield summed(layout, start, stop, batch, large)


class ThinPlan(NamedTuple):
    """Writes a leaf again without the levels below a grain."""

    archive: Archive
    leaf: PackNode
    grain: int

    def perform(self, pause: Pause | None = None) -> Packed:
        """Writes the thinner pack."""
        pause = pause or Rest()
        leaf = self.leaf
        shift = self.grain.bit_length() - 1
        pack = self.archive.pack(leaf)
        sections = []
        for trace in sorted(pack.numbers):
            lower, upper = leaf.extent(trace)
            if lower >= upper:
                continue
            sections += [(trace, thinned(s, shift)) for s in pack.sections(trace)]
            pause()
        stem = f"pack-{leaf.lower}-{leaf.upper}"
        made = _written(self.archive, sections, stem, leaf.lower, leaf.upper)
        return Packed(made._replace(own=leaf.own, clip=leaf.clip, grain=self.grain), (leaf,))


def _sections(entries: Sequence[Entry], start: int, stop: int, pause: Pause) -> Iterable[Section]:
    """The sections of the changes of one trace, one for each layout it had."""
    groups: dict[Layout, tuple[list[int], list[Updates], list[Hashes], list[Large]]] = {}
    for i, (epoch, change) in enumerate(entries):
        group = groups.get(change.layout)
        if group is None:
            group = groups[change.layout] = ([], [], [], [])
        epochs, updates, hashes, large = group
        if isinstance(change, Filed):
            large.append((epoch, change.refs))
            continue
        epochs.append(epoch)
        if isinstance(change, Batch):
            updates.append(change.updates)
            hashes.append(change.rhash)
        else:
            updates.append(change.decode([change.data], change.layout.types))
            if not i % 64:
                pause()
    for layout, (epochs, updates, hashes, large) in groups.items():
        known = hashes if len(hashes) == len(epochs) else None
        yield build(layout, start, stop, epochs, updates, known, large, pause)


def _written(
    archive: Archive,
    sections: Sequence[tuple[int, Section]],
    stem: str,
    lower: int,
    upper: int,
    level: int = 0,
) -> PackNode:
    """Writes sections as a pack and makes its node."""
    name, size, digest = write_pack(archive.folder, sections, stem, files=archive.files)
    refs = [ref for _, s in sections for _, refs in s.large for ref in refs]
    parts = tuple(ref.path for ref in refs)
    return PackNode(name, size, digest, lower, upper, upper, level, parts=parts)
