"""Finds the history that cannot be read because files are missing. Pure, but opens packs.

A sum over packs is redundant, so history is readable without it. A missing leaf loses epochs of all
traces, because only the leaf itself says which traces it had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from nosync_nb.trace.history.archive import Archive
from nosync_nb.trace.history.pack_tree import PackNode
from nosync_nb.trace.history.unpacked_tail import Entry, FiledChange


class MissingHistory(NamedTuple):
    """The history that cannot be read.

    Attributes:
        changes: by trace and epoch, the missing files of changes.
        packs: the missing packs.
    """

    changes: Mapping[int, Mapping[int, frozenset[str]]]
    packs: tuple[PackNode, ...]

    def first_missing(self, trace: int, begin: int = 0) -> tuple[int, set[str]] | None:
        """Returns the first unreadable epoch of a trace, and its missing files, or None.

        Args:
            begin: its first epoch; a pack that ends before has nothing of it.
        """
        unreadable = [*self.changes.get(trace, {}).items()]
        for node in self.packs:
            lower, upper = node.extent(trace)
            if lower < upper and upper > begin:
                unreadable.append((max(lower, begin), frozenset([node.name])))
        if not unreadable:
            return None
        return min(epoch for epoch, _ in unreadable), {
            name for _, names in unreadable for name in names
        }


def without_missing(tree: Sequence[PackNode], missing: AbstractSet[str]) -> Iterator[PackNode]:
    """Yields the packs, and replaces a sum with missing files by its children."""
    for node in tree:
        if node.children and not missing.isdisjoint([node.name, *node.parts]):
            yield from without_missing(node.children, missing)
        else:
            yield node._replace(children=tuple(without_missing(node.children, missing)))


def missing_history(
    archive: Archive,
    tree: Iterable[PackNode],
    tails: Mapping[int, Sequence[Entry]],
    missing: AbstractSet[str],
) -> MissingHistory:
    """Returns the history that lies in missing files.

    Cost: O(packs), and those are opened that refer to such files.
    """
    changes: dict[int, dict[int, frozenset[str]]] = {}
    packs = []
    for node in (each for top in tree for each in top.walk() if not each.children):
        if node.name in missing:
            packs.append(node)
        elif not missing.isdisjoint(node.parts):
            pack = archive.pack(node)
            for trace in pack.numbers:
                large = (each for section in pack.sections(trace) for each in section.large)
                _record_missing(
                    changes, trace, ((e, {r.path for r in refs}) for e, refs in large), missing
                )
    for trace, tail in tails.items():
        filed = ((e, {r.path for r in c.refs}) for e, c in tail if isinstance(c, FiledChange))
        _record_missing(changes, trace, filed, missing)
    return MissingHistory(changes, tuple(packs))


def _record_missing(
    changes: dict[int, dict[int, frozenset[str]]],
    trace: int,
    filed: Iterable[tuple[int, AbstractSet[str]]],
    missing: AbstractSet[str],
) -> None:
    """Records the changes of a trace whose files are missing."""
    for epoch, names in filed:
        if lost := missing & names:
            by_epoch = changes.setdefault(trace, {})
            by_epoch[epoch] = by_epoch.get(epoch, frozenset()) | lost
