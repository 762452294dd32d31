"""Stores the changes of named collections at every epoch, for reads at past epochs.

The last epochs (the *tail*) are in memory, in the form in which the log recorded them. `pack` moves
them to a pack: one file with the single epochs of all traces, and with sums over 16, 256 and all of
its epochs. `tidy` builds sums over 16 packs, over 16 of these sums, and so on, and drops epochs
that retention does not require. So the state at any epoch is a sum of O(16 log n) stored batches.

The current state is stored elsewhere, as a `Trace`. A history does not know stages: a trace is a
number that is never reused. It does not know which epochs were committed either; the session does.
Epoch 0 is empty. A state is the sum of all changes up to its epoch.

Threads: changes of a history belong to the committing thread, or are made under its lock. Plans are
performed in any thread. Readers take one immutable view and never wait.

Failure: a pack counts once a checkpoint has the manifest that names it. A file that no manifest
names is garbage.
IMPORTANT: the changes in the manifest must not be appended again after a restart. So a checkpoint
names the position in the log at the time when `pack` was called, and opening replays what follows
it.

The changes in an interval are returned as large batches in files, and all others. A reader of the
whole state merges all of them. A reader of the first rows uses the large batches in their files.
The cost of a read is estimated in advance, without decoding or sorting rows.

The changes of a trace in many single epochs are read together. This takes a few numpy calls for
each pack and for the tail, in place of a few calls for each epoch. Changes in part files are only
counted, without opening the files.

If files are missing, some history cannot be read. The affected traces are found by opening packs. A
sum over packs is redundant, so history is readable without it. A missing leaf loses epochs of all
traces, because only the leaf itself records its traces.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nosync_nb.errors import CorruptLogError, TimeError
from nosync_nb.files.filesystem import Files
from nosync_nb.trace.batch import Batch, Layout, Updates, concat_updates
from nosync_nb.trace.history import downsampling, pack_tree, sections
from nosync_nb.trace.history.archive import Archive, ArchivedSums, RowWeight, unpacked_changes
from nosync_nb.trace.history.downsampling import RetainedEpochs
from nosync_nb.trace.history.pack_plans import PackPlan, PackResult, RecutPlan, SumPlan, tidy_plans
from nosync_nb.trace.history.pack_tree import PackNode
from nosync_nb.trace.history.sections import (
    Decode,
    EncodedChange,
    Entry,
    FiledChange,
    end_of,
    excess,
)
from nosync_nb.trace.parts.arrow_file import DISK
from nosync_nb.trace.parts.part_file import PartRef

_ROW_BYTES = 16
"""The estimated minimum size of a row in a frame, in bytes."""


class IntervalFragments(NamedTuple):
    """The batches that add up to the changes of a trace in an interval, in their own layouts.

    Attributes:
        loose: the small batches.
        whole: the large batches, each as parts without common rows.
    """

    loose: list[Batch]
    whole: list[tuple[Batch, ...]]


def interval_fragments(
    archive: Archive, sums: ArchivedSums, entries: Iterable[Entry]
) -> IntervalFragments:
    """Returns the fragments of an interval from its sums in packs and its entries of a tail."""
    fragments = IntervalFragments([], [])
    encoded: dict[tuple[Layout, Decode], list[Any]] = {}
    for epoch, change in entries:
        if isinstance(change, Batch):
            if len(change) > sections.LARGE:
                fragments.whole.append((change,))
            else:
                fragments.loose.append(change)
        elif isinstance(change, EncodedChange):
            encoded.setdefault((change.layout, change.decode), []).append(change.data)
        elif change.parts:
            fragments.whole.append(change.parts)
        else:
            sums.large.setdefault(change.layout, []).append((epoch, change.refs))
    for (layout, decode), data in encoded.items():
        sums.updates.setdefault(layout, []).append(decode(data, layout.types)[0])
    return IntervalFragments(
        unpacked_changes(sums) + fragments.loose, archive.large_batches(sums) + fragments.whole
    )


def weight(entries: Iterable[Entry]) -> RowWeight:
    """Estimates the number of rows in the entries of a tail, without decoding them."""
    loose, filed = 0, 0
    for _, change in entries:
        if isinstance(change, FiledChange):
            filed += sum(ref.rows for ref in change.refs)
        elif isinstance(change, EncodedChange):
            loose += _estimated_rows(change.data)
        elif len(change) > sections.LARGE:
            filed += len(change)
        else:
            loose += len(change)
    return RowWeight(loose, filed)


def _estimated_rows(data: Any) -> int:
    """Estimates the number of rows of an encoded change, by its bytes; counts those of a batch."""
    return 1 + len(data) // _ROW_BYTES if isinstance(data, bytes | memoryview) else len(data)


_FORMAT = 1


class _View(NamedTuple):
    """The snapshot of a reader.

    Attributes:
        tree: the packs.
        tails: the append-only tail of each trace.
        hidden: the intervals of hidden epochs of each trace.
        packed: the end of the packed epochs.
    """

    tree: tuple[PackNode, ...]
    tails: dict[int, list[Entry]]
    hidden: Mapping[int, tuple[tuple[int, int], ...]]
    packed: int
    cuts: int = 0  # the number of truncations: a pack planned before one is not adopted

    def tail(self, trace: int, after: int, upto: int) -> list[Entry]:
        """Returns the entries of a trace's tail in the epochs `(after, upto]`."""
        tail = self.tails.get(trace, [])
        return tail[end_of(tail, after) : end_of(tail, upto)]


class History:
    """The history of the traces of a session, in a folder.

    Args:
        folder: the folder of packs.
        parts: the folder of part files; by default `layers` in the same parent folder.
    """

    def __init__(self, folder: str, *, parts: str | None = None, files: Files = DISK) -> None:
        beside = os.path.join(os.path.dirname(os.path.abspath(folder)), "layers")
        self._archive = Archive(folder, beside if parts is None else parts, files=files)
        self._view = _View((), {}, {}, 0)

    @classmethod
    def restore(
        cls,
        folder: str,
        manifest: Mapping[str, Any] | None,
        *,
        write: bool = True,
        parts: str | None = None,
        files: Files = DISK,
    ) -> History:
        """Opens the history that a checkpoint's manifest describes; empty without a manifest.

        Cost: O(packs); no pack is opened.
        """
        history = cls(folder, parts=parts, files=files)
        if write:
            files.make_folder(folder)
            files.make_folder(history._archive.parts)
        if manifest is None:
            return history
        if manifest["format"] != _FORMAT:
            raise CorruptLogError(
                f"'{folder}' has format {manifest['format']}, not {_FORMAT}",
                hint="open it with the version of nosync that wrote it",
            )
        tree = tuple(map(pack_tree.node_from_json, manifest["tree"]))
        hidden = pack_tree.hidden_from_json(manifest["hidden"])
        packed = manifest["packed"]
        if type(packed) is not int:
            raise CorruptLogError(
                f"'{folder}': the number of packed epochs is not a number",
                hint="restore the log from a copy",
            )
        history._view = _View(tree, {}, hidden, packed)
        return history

    def manifest(self) -> dict[str, Any]:
        """Returns the history without its tails as JSON values, for a checkpoint."""
        view = self._view
        return {
            "format": _FORMAT,
            "packed": view.packed,
            "hidden": [[trace, [list(b) for b in some]] for trace, some in view.hidden.items()],
            "tree": [node.to_json() for node in view.tree],
        }

    def append(
        self, trace: int, epoch: int, made: Batch | EncodedChange, *, again: bool = False
    ) -> None:
        """Adds the change of a trace at an epoch.

        Args:
            again: True if the change may exist already; then it is not added twice.

        Cost: below 1 us.
        """
        tail = self._view.tails.get(trace)
        if tail is None:
            tail = self._view.tails[trace] = []
        if not (again and tail and tail[-1][0] >= epoch):
            tail.append((epoch, made))

    def last(self, trace: int) -> int:
        """Returns the last epoch of a trace's tail; -1 if the tail is empty."""
        tail = self._view.tails.get(trace)
        return tail[-1][0] if tail else -1

    def append_encoded(
        self, trace: int, layout: Layout, changes: Iterable[tuple[int, Any]], decode: Decode
    ) -> None:
        """Adds pairs (epoch, change) as encoded in frames of the log; reads decode them."""
        if entries := [
            (e, tuple.__new__(EncodedChange, (layout, each, decode))) for e, each in changes
        ]:
            self._view.tails.setdefault(trace, []).extend(entries)

    def append_files(
        self,
        trace: int,
        epoch: int,
        layout: Layout,
        refs: Sequence[PartRef],
        parts: Sequence[Batch] = (),
    ) -> None:
        """Adds a change in part files, which are referenced and not copied.

        Args:
            parts: the batches of the files, if they are mapped already.
        """
        tail = self._view.tails.setdefault(trace, [])
        tail.append((epoch, FiledChange(layout, tuple(refs), tuple(parts))))

    def hide(self, trace: int, lower: int, upper: int) -> None:
        """Makes the epochs `[lower, upper)` of a trace unreadable; their states are unknown.

        A trace that is first computed at epoch e hides `[0, e)`. A trace that lagged behind and has
        caught up in one step hides the epochs that it skipped.
        """
        view = self._view
        hidden = view.hidden.get(trace, ())
        if lower < upper and (lower, upper) not in hidden:
            bounds = sorted([*hidden, (lower, upper)])
            self._view = view._replace(hidden={**view.hidden, trace: tuple(bounds)})

    def start_at(self, trace: int, epoch: int) -> None:
        """Hides all epochs of a trace before its first run."""
        self.hide(trace, 0, epoch)

    def copied(self, written: Iterable[int]) -> History:
        """Copies the history; changes of the copy do not affect this history.

        Args:
            written: the traces to which changes may be appended in the copy; other tails are
                shared.

        Cost: about 10 ns for each trace, and a copy of the tails of the `written` traces.
        """
        other = copy.copy(self)
        tails = dict(self._view.tails)
        for trace in written:
            if trace in tails:
                tails[trace] = list(tails[trace])
        other._view = self._view._replace(tails=tails)
        return other

    def become(self, other: History) -> None:
        """Replaces the state with that of a copy, in one assignment that can be repeated."""
        self._view = other._view

    def drop(self, trace: int) -> None:
        """Removes a trace; its sections in packs are no longer read.

        The history also stops referencing its part files.

        Cost: opens the packs that reference part files.
        """
        view = self._view

        def unused_names(node: PackNode) -> set[str]:
            with suppress(CorruptLogError):  # a lost pack keeps its references
                return self._archive.parts_of(node, trace)
            return set()

        tails = {number: tail for number, tail in view.tails.items() if number != trace}
        hidden = {number: some for number, some in view.hidden.items() if number != trace}
        tree = tuple(pack_tree.without_packs(node, trace, unused_names) for node in view.tree)
        self._view = view._replace(tree=tree, tails=tails, hidden=hidden)

    def remove_missing(self, missing: AbstractSet[str]) -> MissingHistory:
        """Removes missing files from the history, and returns the history that is unreadable."""
        view = self._view
        tree = tuple(without_missing(view.tree, missing))
        self._view = view._replace(tree=tree)
        return missing_history(self._archive, tree, view.tails, missing)

    def truncate(self, to_epoch: int) -> None:
        """Removes all epochs after `to_epoch`, which must be individually readable.

        Hidden epochs after it are removed as well, because new epochs will have the same numbers.
        Files are not deleted, because a branch may read them.
        """
        upper = to_epoch + 1
        view = self._view
        for node in view.tree:
            pack_tree.check_cut(node, upper)
        tree = tuple(pack_tree.cut_tree(view.tree, upper))
        tails = {trace: tail[: end_of(tail, to_epoch)] for trace, tail in view.tails.items()}
        hidden = {
            trace: pack_tree.hidden_below(some, to_epoch) for trace, some in view.hidden.items()
        }
        self._view = _View(tree, tails, hidden, min(view.packed, upper), view.cuts + 1)

    def state(self, trace: int, at: int) -> list[Batch]:
        """Returns the batches whose sum is a trace at an epoch; none for an empty state.

        Each batch has the layout of the trace at the time when it was appended.

        Raises:
            TimeError: if the epoch is not individually readable; the hint names the nearest
                readable epochs.
            CorruptLogError: if a file is missing or damaged.

        Cost: O(16 log n) stored batches in n epochs, and the tail.
        """
        return self.changes(trace, None, at)

    def changes(self, trace: int, after: int | None, upto: int) -> list[Batch]:
        """Returns the batches whose sum is the change of a trace in `(after, upto]`.

        Args:
            after: the epoch before the interval; `None` means from the beginning.
        """
        changed = self.change_parts(trace, after, upto)
        return changed.loose + [part for parts in changed.whole for part in parts]

    def changes_by_epoch(self, trace: int, lower: int, upper: int) -> EpochReads:
        """Returns the changes of a trace in each readable epoch of `[lower, upper)`."""
        view = self._view
        tail = view.tail(trace, lower - 1, upper - 1)
        return read_epochs(self._archive, view.tree, tail, trace, lower, upper)

    def epochs(self, trace: int, now: int) -> list[range]:
        """Returns the epochs up to `now` at which a trace can be read, as ascending ranges."""
        view = self._view
        return pack_tree.epochs(view.tree, trace, view.hidden.get(trace, ()), now)

    @property
    def is_thinned(self) -> bool:
        """True if downsampling has dropped single epochs.

        Cost: O(packs).
        """
        return any(node.grain > 1 for top in self._view.tree for node in top.walk())

    @property
    def packed(self) -> int:
        """The last epoch that is in packs; later epochs are in memory."""
        return self._view.packed - 1

    def change_parts(self, trace: int, after: int | None, upto: int) -> IntervalFragments:
        """Returns the same batches as `changes`, with the large sorted ones separately."""
        view, lower = self._readable_view(trace, after, upto)
        sums = self._archive.read(view.tree, trace, lower + 1, upto + 1)
        return interval_fragments(self._archive, sums, view.tail(trace, lower, upto))

    def weight(self, trace: int, after: int | None, upto: int) -> RowWeight:
        """Estimates the number of rows of `change_parts`.

        Cost: O(16 log n) in n epochs, and the tail.
        """
        view, lower = self._readable_view(trace, after, upto)
        packed = self._archive.weight(view.tree, trace, lower + 1, upto + 1)
        return packed + weight(view.tail(trace, lower, upto))

    def _readable_view(self, trace: int, after: int | None, upto: int) -> tuple[_View, int]:
        """Returns the view, and the epoch before the interval (-1 for the beginning).

        Raises:
            TimeError: if a bound of the interval is not individually readable.
        """
        view = self._view
        self._check(view, trace, upto)
        if after is not None:
            self._check(view, trace, after)
        return view, -1 if after is None else after

    def _check(self, view: _View, trace: int, at: int) -> None:
        """Raises TimeError if an epoch of a trace is not individually readable."""
        if at >= view.packed and trace not in view.hidden:
            return
        hidden = any(lower <= at < upper for lower, upper in view.hidden.get(trace, ()))
        grains = pack_tree.epoch_grains(view.tree, trace)
        if not hidden and not any(a <= at < b and (at + 1) % g for a, b, g in grains):
            return
        last = max([at, view.packed - 1, *(tail[-1][0] for tail in view.tails.values() if tail)])
        both = [
            str(e) for e in pack_tree.nearest_epochs(self.epochs(trace, last), at) if e is not None
        ]
        nearest = f"{' or '.join(both)}, the nearest epochs" if both else "a later epoch"
        raise TimeError(
            f"epoch {at} is no longer retained separately",
            hint=f"read at {nearest}",
        )

    def pack(self, upto: int, without: AbstractSet[int] = frozenset()) -> PackPlan | None:
        """Plans a pack with the tails up to an epoch; None if they are empty.

        Args:
            without: the traces that are not packed; their tails remain in memory.

        Cost: O(traces), and a copy of the lists of batches.
        """
        view = self._view
        entries = {}
        for trace, tail in view.tails.items():
            if packed := [] if trace in without else tail[: end_of(tail, upto)]:
                entries[trace] = packed
        if not entries:
            return None
        # A collection that caught up later may have changes before the end of the last pack.
        return PackPlan(self._archive, view.packed, max(view.packed, upto + 1), entries, view.cuts)

    def tidy(
        self,
        keep: RetainedEpochs | None = None,
        needed: Iterable[str] = (),
        *,
        to_fit: bool = False,
    ) -> SumPlan | RecutPlan | None:
        """Plans the next sum over packs, or the next downsampling; None if nothing is due.

        Args:
            keep: the epochs that must not be downsampled; `None` means all epochs.
            needed: the files that are used outside of this history.
            to_fit: True to plan the downsampling that frees most space, whatever the age of epochs;
                only pinned epochs are retained.
        """
        view = self._view
        return tidy_plans(self._archive, view.tree, view.packed - 1, keep, {*needed}, to_fit=to_fit)

    def adopt(self, packed: PackResult) -> bool:
        """Adds the written files of a plan to the history, in place of the plan's inputs.

        Returns False if the history no longer has these inputs.
        """
        view = self._view
        if packed.old:
            tree = pack_tree.replace_packs(view.tree, packed.old, packed.new)
            if tree is not None:
                self._view = view._replace(tree=tree)
            return tree is not None
        new = packed.new[-1]
        if packed.cuts != view.cuts or new.lower != view.packed:
            return False
        tails = {t: tail[packed.taken.get(t, 0) :] for t, tail in view.tails.items()}
        self._view = view._replace(tree=(*view.tree, new), tails=tails, packed=new.upper)
        return True

    def loses(self, packed: PackResult, keep: RetainedEpochs | None) -> bool:
        """Returns True if the result of a downsampling lacks epochs that must be retained now."""
        return packed.recut is not None and downsampling.would_lose(packed.recut, self.packed, keep)

    def excess(self, trace: int, rows_max: int) -> int | None:
        """Returns the epoch up to which a trace's tail should be added up; see `excess`."""
        return excess(self._view.tails.get(trace, ()), rows_max)

    def shorten(self, trace: int, epoch: int, batch: Batch, of: History) -> None:
        """Replaces the changes of a trace up to an epoch with their sum; hides earlier epochs.

        Does nothing if the tail is not shared with the history `of`, from which it was copied.
        """
        view = self._view
        tail = view.tails.get(trace, [])
        if tail is not of._view.tails.get(trace):
            return
        later = [each for each in view.hidden.get(trace, ()) if each[1] > epoch]
        hidden = {**view.hidden, trace: ((0, epoch), *later)}
        tails = {**view.tails, trace: [(epoch, batch), *tail[end_of(tail, epoch) :]]}
        self._view = view._replace(tails=tails, hidden=hidden)

    def files(self) -> set[str]:
        """Returns the names of all files in use: packs, and the part files of packs and tails."""
        view = self._view
        every = [node for top in view.tree for node in top.walk()]
        named = {name for node in every for name in (node.name, *node.parts)}
        filed = (
            c for tail in list(view.tails.values()) for _, c in tail if isinstance(c, FiledChange)
        )
        return named.union(ref.path for change in filed for ref in change.refs)

    def only_of(self, traces: AbstractSet[int]) -> dict[int, set[str]]:
        """Returns, by trace, the part files that packs reference only for these traces."""
        return self._archive.only_of(self._view.tree, traces)

    def look_through(self) -> None:
        """Turns on full validation: every value of a file is checked before it is used."""
        self._archive.look_through()


Epochs = npt.NDArray[np.int64]


class EpochReads(NamedTuple):
    """The changes of a trace in some epochs.

    Attributes:
        small: the changes that are not in part files, as (layout, epoch of each update, updates).
            An epoch may occur in several of them.
        large: for each epoch with a change in part files, the number of rows of this change.
    """

    small: list[tuple[Layout, Epochs, Updates]]
    large: dict[int, int]


def read_epochs(
    archive: Archive,
    tree: Iterable[PackNode],
    tail: Sequence[Entry],
    trace: int,
    lower: int,
    upper: int,
) -> EpochReads:
    """Returns the changes of a trace in the individually readable epochs of `[lower, upper)`.

    Args:
        tail: the entries of the tail in this interval.

    Raises:
        CorruptLogError: if a file is missing or damaged.
    """
    result = EpochReads([], {})
    for leaf in _leaves(tree, trace, lower, upper):
        stop = min(upper, leaf.extent(trace)[1])
        for section in archive.sections(leaf, trace):
            singly = section.singly(lower, stop)
            if singly is not None:
                result.small.append((section.layout, *singly))
            for epoch, refs in section.large:
                if lower <= epoch < stop:
                    result.large[epoch] = sum(ref.rows for ref in refs)
    result.large.update((e, _rows(c)) for e, c in tail if isinstance(c, FiledChange))
    result.small.extend(_tail_changes(tail))
    return result


def _leaves(tree: Iterable[PackNode], trace: int, lower: int, upper: int) -> Iterator[PackNode]:
    """Yields the leaves whose epochs of a trace overlap `[lower, upper)`."""
    for top in tree:
        for node in top.walk():
            low, high = node.extent(trace)
            if not node.children and max(low, lower) < min(high, upper):
                yield node


def _rows(change: FiledChange) -> int:
    return sum(ref.rows for ref in change.refs)


def _tail_changes(tail: Sequence[Entry]) -> Iterator[tuple[Layout, Epochs, Updates]]:
    """Yields the changes of a tail that are in memory, grouped by layout.

    Changes with the same layout and decoder are decoded in one call.
    """
    batches: dict[Layout, list[tuple[int, Batch]]] = {}
    encoded: dict[tuple[Layout, Decode], list[tuple[int, Any]]] = {}
    for epoch, change in tail:
        if isinstance(change, Batch):
            batches.setdefault(change.layout, []).append((epoch, change))
        elif isinstance(change, EncodedChange):
            encoded.setdefault((change.layout, change.decode), []).append((epoch, change.data))
    for layout, some in batches.items():
        counts = [len(batch) for _, batch in some]
        updates = concat_updates([batch.updates for _, batch in some], layout.types)
        yield layout, _repeat_epochs([epoch for epoch, _ in some], counts), updates
    for (layout, decode), changes in encoded.items():
        updates, counts = decode([data for _, data in changes], layout.types)
        yield layout, _repeat_epochs([epoch for epoch, _ in changes], counts), updates


def _repeat_epochs(epochs: Sequence[int], counts: Sequence[int]) -> Epochs:
    return np.array(epochs, np.int64).repeat(counts)


class MissingHistory(NamedTuple):
    """The history that cannot be read because files are missing.

    Attributes:
        changes: by trace and epoch, the missing part files of changes.
        packs: the leaves whose packs are missing.
    """

    changes: Mapping[int, Mapping[int, frozenset[str]]]
    packs: tuple[PackNode, ...]

    def first_missing(self, trace: int, begin: int = 0) -> tuple[int, set[str]] | None:
        """Returns the first unreadable epoch of a trace and all of its missing files; else None.

        Args:
            begin: the first epoch of the trace; packs that end before it are ignored.
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
    """Yields the nodes of a tree; a sum with missing files is replaced by its children."""
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
    """Returns the history that is unreadable because of missing files.

    Cost: O(packs); opens the packs that reference missing files.
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
    """Adds the changes of a trace whose files are missing to `changes`."""
    for epoch, names in filed:
        if lost := missing & names:
            by_epoch = changes.setdefault(trace, {})
            by_epoch[epoch] = by_epoch.get(epoch, frozenset()) | lost
