"""Changes that remove most rows of a node, as parts in files: the added rows, and the removed rows.

A change of all rows has twice the rows of the contents. If it were sorted and written like any
other change, it would cost twice as much as a load. The two halves are sorted already: the removed
rows are those of the node's trace. So they are neither sorted nor written again. Their files get a
second name, under which the counts are negative (trace/parts/part_file.py). Rows that are removed
and added again cancel out first (trace/difference.py), so the change is a net change.

This applies to traces that are one layer in files. All other changes are merged in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from nosync_nb import rows
from nosync_nb.dataflow.graph import Node
from nosync_nb.dataflow.runtime.delta import ArrangedChange, ArrangedDifference, Delta
from nosync_nb.rows.array_ops import all_true
from nosync_nb.trace import Trace, empty_batch
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, joined_updates, merge
from nosync_nb.trace.difference import (
    Difference,
    difference,
    negated,
    uncancelled_files,
    uncancelled_parts,
)
from nosync_nb.trace.parts.part_file import REMOVED

SPILL_ROWS = 1 << 16
"""A difference of more rows is written as one part for the added rows and one for the removed."""


class DifferenceWriter(Protocol):
    """Writes differences to files; see `nosync_nb.dataflow.runtime.runner`."""

    def difference(
        self, number: int, added: Batch, removed: ArrangedChange, epoch: int
    ) -> ArrangedDifference | None:
        """Returns a change as parts in files; None if the log or the trace is not written.

        Args:
            number: the log or the trace.
            added, removed: see `SpillTarget.difference`.
        """


class Replacement:
    """The changes of one epoch that remove most rows of a node.

    Args:
        traces: the traces before the epoch.
    """

    def __init__(self, writer: DifferenceWriter, traces: Mapping[int, Trace], epoch: int) -> None:
        self._writer = writer
        self._traces = traces
        self._epoch = epoch

    def of_contents(self, node: Node, contents: Delta | None) -> tuple[Delta | None, Delta | None]:
        """Returns the contents of a node minus its previous rows, and the contents.

        The second value refers to the files of the change, if the contents were written to them.
        The first one is None if nothing changes.
        """
        layout, number = next(iter(node.traces.items()))
        before = self._traces.get(number)
        after = empty_batch(layout) if contents is None else contents.batch(layout)
        if before is None or not before.layers:
            return as_delta(node, after), contents
        if len(after) + before.rows_count > SPILL_ROWS:
            stored = self.stored_files(number)
            result = None if stored is None else difference(layout, after, stored.parts)
            made = None if result is None else self._in_files(node, layout, result, contents)
            if made is not None:
                return made
        previous = map(negated, uncancelled_parts(before.layers))
        return as_delta(node, merge(layout, [after, *previous])), contents

    def of_input(self, node: Node, change: Delta) -> Delta:
        """Returns the change of an input: in files if it removes all previous rows."""
        layout, number = next(iter(node.traces.items()))
        if len(change) <= SPILL_ROWS or change.held or change.in_files:
            return change
        before = self.stored_files(number)
        if before is None:
            return change
        columns, diff = change.updates
        removes = diff < 0
        removed = removes.nonzero()[0]
        if len(removed) != sum(map(len, before.parts)):
            return change
        previous = joined_updates(layout, before.parts)
        old = change.updates.take(removed)
        if not _are_opposite(previous, old):
            arranged = arrange(layout, old)
            same = _have_equal_hashes(previous, arranged)
            if not same or not _are_opposite(previous, arranged.updates):
                return change
        after = arrange(layout, Updates(columns, diff).take((~removes).nonzero()[0]))
        result = difference(layout, after, before.parts)
        contents = as_delta(node, after)
        made = None if result is None else self._in_files(node, layout, result, contents)
        return change if made is None or made[0] is None else made[0]

    def new_parts(self, node: Node, layout: Layout, change: Delta | None) -> ArrangedChange | None:
        """Returns the rows of a node, if its change removes the files of all previous rows.

        Cost: O(1) in the rows.
        """
        arranged = None if change is None else change.held.get(layout)
        if arranged is None or not any(ref.removes for ref in arranged.refs):
            return None
        stored = self.stored_files(node.traces[layout])
        if stored is None:
            return None
        count = len(arranged.refs) - len(stored.refs)
        removed = {ref.contents for ref in arranged.refs[count:]}
        if removed != {ref._replace(path=REMOVED) for ref in stored.refs}:
            return None
        return ArrangedChange(arranged.parts[:count], arranged.refs[:count])

    def stored_files(self, number: int) -> ArrangedChange | None:
        """Returns the previous rows of a trace, if they are consolidated in files; else None."""
        trace = self._traces.get(number)
        layers = () if trace is None else [each for each in trace.layers if each.rows_count]
        if not layers or not all(layer.files for layer in layers):
            return None
        files = uncancelled_files(layers)
        if len({each.layer for each in files}) != 1 or any(each.ref.removes for each in files):
            return None
        parts = layers[files[0].layer].parts
        return ArrangedChange(
            tuple(parts[each.place] for each in files), tuple(each.ref for each in files)
        )

    def _in_files(
        self, node: Node, layout: Layout, result: Difference, contents: Delta | None
    ) -> tuple[Delta | None, Delta | None] | None:
        """Writes a difference; returns the change and the contents, or None if it is not written.

        Args:
            layout: the layout of the difference.
            contents: all rows of the node.
        """
        assert node.log is not None
        if result.removed is None:
            before = self.stored_files(node.traces[layout])
            assert before is not None
        else:
            if len(result.added) + len(result.removed) <= SPILL_ROWS:
                return as_delta(node, merge(layout, [result.added, result.removed])), contents
            before = ArrangedChange((result.removed,))
        made = self._writer.difference(node.log, result.added, before, self._epoch)
        if made is None:
            return None
        changes, new = {layout: made.change}, {layout: made.added}
        if result.removed is not None or contents is None:
            return Delta(node.types, None, changes), contents
        for other, number in node.traces.items():
            previous = self.stored_files(number)
            if other != layout and previous is not None:
                made = self._writer.difference(number, contents.batch(other), previous, self._epoch)
                if made is not None:
                    changes[other], new[other] = made.change, made.added
        return Delta(node.types, None, changes), Delta(node.types, None, new)


def _have_equal_hashes(one: Batch, other: Batch) -> bool:
    if len(one) != len(other) or not np.array_equal(one.khash, other.khash):
        return False
    return np.array_equal(one.rhash, other.rhash)


def _are_opposite(batch: Batch, updates: Updates) -> bool:
    """Returns True if updates have the rows of a batch in its order, with opposite counts."""
    if len(batch) != len(updates.diff) or not np.array_equal(batch.diff, -updates.diff):
        return False
    return all(
        all_true(rows.equal(a, b, type_))
        for a, b, type_ in zip(batch.columns, updates.columns, batch.layout.types, strict=True)
    )


def as_delta(node: Node, batch: Batch) -> Delta | None:
    """Returns a batch as the change of a node; None if it is empty."""
    if not len(batch):
        return None
    return Delta(node.types, batch.updates, {batch.layout: ArrangedChange((batch,))})
