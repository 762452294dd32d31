"""Opens packs and part files of history, and reads sums from them.

An archive caches a bounded number of mapped files. It does not store the tree of packs, but
receives it as an argument, so that readers with different views can share the archive.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from nosync_nb.errors import CorruptLogError
from nosync_nb.files.filesystem import Files
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, concat_updates, merge
from nosync_nb.trace.history.pack_file import Pack, write_pack
from nosync_nb.trace.history.pack_tree import PackNode
from nosync_nb.trace.history.sections import Large, Section
from nosync_nb.trace.parts.arrow_file import DISK
from nosync_nb.trace.parts.part_file import PartRef, open_part, readable, write_parts
from nosync_nb.trace.trace import empty_batch

OPEN_MAX = 256


class ArchivedSums(NamedTuple):
    """The changes of a trace in an interval, from packs.

    Attributes:
        updates: by layout the updates that are stored in packs.
        large: by layout the large changes that are stored in part files.
    """

    updates: dict[Layout, list[Updates]]
    large: dict[Layout, list[Large]]


class RowWeight(NamedTuple):
    """The estimated number of changed rows in an interval of epochs.

    Attributes:
        loose: rows that must be sorted.
        filed: rows of large batches, which are already sorted.
    """

    loose: int
    filed: int

    def __add__(self, other: RowWeight) -> RowWeight:  # type: ignore[override]
        return RowWeight(self.loose + other.loose, self.filed + other.filed)


class Archive:
    """Packs in one folder, and the part files that they reference in another.

    Attributes:
        folder: the folder of packs.
        parts: the folder of part files.
        thorough: True if every value of a file is validated, because this user has not signed the
            log.
    """

    def __init__(self, folder: str, parts: str, *, files: Files = DISK) -> None:
        self.folder = folder
        self.parts = parts
        self.files = files
        self.thorough = False
        self._open: OrderedDict[Any, Any] = OrderedDict()
        self._lock = threading.Lock()

    def look_through(self) -> None:
        """Turns on full validation: every value of a file is checked before it is used."""
        self.thorough = True

    def write_parts(self, batches: Sequence[Batch], stem: str) -> list[PartRef]:
        """Writes batches to part files that packs can reference; returns the references."""
        return write_parts(self.parts, batches, stem, files=self.files)

    def write_pack(
        self, sections: Sequence[tuple[int, Section]], stem: str
    ) -> tuple[str, int, str]:
        """Writes a pack; see `pack_file.write_pack`."""
        return write_pack(self.folder, sections, stem, files=self.files)

    def pack(self, node: PackNode) -> Pack:
        """Returns the pack of a node, which is opened if it is not cached."""
        pack: Pack = self._cached(
            node.name,
            lambda: Pack(
                self.folder,
                node.name,
                node.size_bytes,
                node.digest,
                files=self.files,
                thorough=self.thorough,
            ),
        )
        return pack

    def parts_of(self, node: PackNode, trace: int) -> set[str]:
        """Returns the names of the part files that a pack references for a trace."""
        sections = self.pack(node).sections(trace)
        return {ref.path for each in sections for _, refs in each.large for ref in refs}

    def only_of(self, tree: Iterable[PackNode], traces: AbstractSet[int]) -> dict[int, set[str]]:
        """Returns, by trace, the part files that packs reference only for these traces.

        Cost: opens each pack that references part files.
        """
        by_trace: dict[int, set[str]] = {}
        others: set[str] = set()
        for node in (each for top in tree for each in top.walk() if each.parts and traces):
            try:
                for trace in self.pack(node).numbers:
                    files = by_trace.setdefault(trace, set()) if trace in traces else others
                    files |= self.parts_of(node, trace)
            except CorruptLogError:  # the traces of the part files are unknown
                others.update(node.parts)
        return {trace: files - others for trace, files in by_trace.items()}

    def part(self, ref: PartRef, layout: Layout) -> Batch:
        """Returns a part, which is mapped if it is not cached."""
        key = (ref.path, layout)

        def load() -> Batch:
            return open_part(
                self.parts, ref, layout, files=self.files, checked=True, thorough=self.thorough
            )

        batch: Batch = self._cached(key, load)
        (current,) = readable((batch,))
        if current is not batch:  # the file was truncated and has been repaired
            with self._lock:
                self._open[key] = current
        return current

    def read(self, tree: Iterable[PackNode], trace: int, lower: int, upper: int) -> ArchivedSums:
        """Reads the changes of a trace in `[lower, upper)`, with sums where possible."""
        sums = ArchivedSums({}, {})
        for section, stop in self._sections(tree, trace, lower, upper):
            updates = section.updates(lower, stop)
            if updates is not None:
                sums.updates.setdefault(section.layout, []).append(updates)
            for large in section.large:
                if lower <= large[0] < stop:
                    sums.large.setdefault(section.layout, []).append(large)
        return sums

    def weight(self, tree: Iterable[PackNode], trace: int, lower: int, upper: int) -> RowWeight:
        """Counts the rows that `read` returns, without reading them."""
        weight = RowWeight(0, 0)
        for section, stop in self._sections(tree, trace, lower, upper):
            large = (refs for epoch, refs in section.large if lower <= epoch < stop)
            filed = sum(ref.rows for refs in large for ref in refs)
            weight += RowWeight(section.rows_between(lower, stop), filed)
        return weight

    def _sections(
        self, tree: Iterable[PackNode], trace: int, lower: int, upper: int
    ) -> Iterator[tuple[Section, int]]:
        """Yields the sections to read for `[lower, upper)`, each with the end of its share."""
        for node in _nodes_within(tree, trace, lower, upper):
            stop = min(upper, node.clip)
            for section in self.sections(node, trace):
                yield section, stop

    def large_batches(self, sums: ArchivedSums) -> list[tuple[Batch, ...]]:
        """Returns the large batches, each as its parts; maps their files."""
        return [
            tuple(self.part(ref, layout) for ref in refs)
            for layout, large in sums.large.items()
            for _, refs in large
        ]

    def sections(self, node: PackNode, trace: int) -> tuple[Section, ...]:
        """Returns the sections of a trace in a pack.

        A damaged pack is removed from the cache, so that the next call opens the file again.
        """
        try:
            return self.pack(node).sections(trace)
        except CorruptLogError:
            with self._lock:
                self._open.pop(node.name, None)
            raise

    def _cached(self, key: Any, make: Callable[[], Any]) -> Any:
        """Returns the cached file of a key; opens it if necessary, and evicts the oldest ones."""
        with self._lock:
            file = self._open.get(key)
            if file is not None:
                self._open.move_to_end(key)
                return file
        file = make()
        with self._lock:
            self._open[key] = file
            while len(self._open) > OPEN_MAX:
                self._open.popitem(last=False)
        return file


def unpacked_changes(sums: ArchivedSums) -> list[Batch]:
    """Returns the sum of the changes in packs, as one batch for each layout.

    Cost: that of sorting the changes.
    """
    return [b for layout, some in sums.updates.items() if len(b := add_sums(layout, some))]


def add_sums(layout: Layout, updates: Sequence[Updates]) -> Batch:
    """Returns the sum of updates as a batch."""
    return arrange(layout, concat_updates(updates, layout.types))


def total_of(batches: Sequence[Batch], layout: Layout) -> Batch:
    """Adds up batches with the same columns in any layouts; uses the layout of the largest batch.

    Args:
        layout: the layout of the empty sum if there are no batches.
    """
    if not batches:
        return empty_batch(layout)
    layout = max(batches, key=len).layout
    return merge(layout, [b if b.layout == layout else arrange(layout, b.updates) for b in batches])


def _nodes_within(
    tree: Iterable[PackNode], trace: int, lower: int, upper: int
) -> Iterator[PackNode]:
    """Yields the nodes to read for `[lower, upper)`: sums inside it, and leaves that overlap it."""
    for node in tree:
        low, high = node.extent(trace)
        if high <= lower or low >= upper or low >= high:
            continue
        if node.children and (low < lower or high > upper):
            yield from _nodes_within(node.children, trace, lower, upper)
        else:
            yield node
