"""The difference of two states of a collection, as rows that are added and rows that are removed.

Two states with the same layout are sorted already. So the rows that both have are found by their
hashes, in one pass over both, and no other row is compared or copied. If the states have no row in
common, the difference consists of the new state, and of the previous one with opposite counts.

The previous one is then not written again: its files get a second name (parts/part_file.py). A
layer with such files and the layer that they remove cancel out, whatever their rows are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nosync_nb import rows
from nosync_nb.rows.array_ops import all_true, any_true
from nosync_nb.trace.batch import Batch, Hashes, Index, Layout, joined_updates
from nosync_nb.trace.layer import Layer
from nosync_nb.trace.parts.part_file import PartRef

_TABLE_BITS_MAX = 26
"""The maximum number of bits of hashes by which rows are searched, with a byte for each value."""

_LIMIT = 1 << 62
"""Counts up to this one can be subtracted in 64 bits."""


class Difference(NamedTuple):
    """A state minus a previous one, in two batches without common rows.

    Attributes:
        added: the rows that the new state has more often or less often, with their difference.
        removed: the rows that only the previous state has, with opposite counts; None if these are
            all of its rows. Then the previous state itself is not copied.
    """

    added: Batch
    removed: Batch | None


def difference(layout: Layout, after: Batch, before: Sequence[Batch]) -> Difference | None:
    """Returns a state minus a previous one.

    Args:
        after: the state, consolidated.
        before: the parts of the previous state, which are disjoint and ascending in key hash.

    Returns:
        the difference; None if different rows have equal hashes, or if counts are near the limit of
        64 bits. Then the caller merges the two states.

    Cost: 10 ns for each row. If the states have common rows, the remaining rows are copied.
    """
    found = _common_rows(after, before)
    if found is None:
        return None
    one, two = found
    if not len(one):
        return Difference(after, None)
    previous = joined_updates(layout, before)
    for column, old, type_ in zip(after.columns, previous.columns, layout.types, strict=True):
        if not all_true(rows.equal(rows.take(column, one), rows.take(old, two), type_)):
            return None
    counts, old_counts = after.diff[one], previous.diff[two]
    if max(int(np.abs(counts).max()), int(np.abs(old_counts).max())) > _LIMIT:
        return None
    diff = after.diff.copy()
    diff[one] = counts - old_counts
    remaining = diff.nonzero()[0]
    only_before = np.ones(len(previous), np.bool_)
    only_before[two] = False
    removed = only_before.nonzero()[0]
    return Difference(
        after.take(remaining, diff[remaining]), previous.take(removed, -previous.diff[removed])
    )


def _common_rows(after: Batch, before: Sequence[Batch]) -> tuple[Index, Index] | None:
    """Returns the positions of rows with equal hashes in two states, in pairs.

    None if the hashes of two rows of one state are equal.
    """
    hashes = after.rhash
    old_hashes = before[0].rhash if len(before) == 1 else np.concatenate([p.rhash for p in before])
    if after.rhash is after.khash and all(part.rhash is part.khash for part in before):
        some, old_some = None, None  # both states are sorted by these hashes
    else:
        some, old_some = _candidates(hashes, old_hashes)
        hashes, old_hashes = hashes[some], old_hashes[old_some]
    size, both = len(hashes), np.concatenate([hashes, old_hashes])
    index = both.argsort(kind="stable")  # in linear time if both states are sorted
    ordered = both[index]
    pairs = (ordered[1:] == ordered[:-1]).nonzero()[0]
    one, two = index[pairs], index[pairs + 1] - size
    if any_true(one >= size) or any_true(two < 0) or any_true(pairs[1:] == pairs[:-1] + 1):
        return None
    return (one, two) if some is None or old_some is None else (some[one], old_some[two])


def _candidates(hashes: Hashes, others: Hashes) -> tuple[Index, Index]:
    """Returns the positions of hashes that may be in both arrays, without sorting them.

    Cost: 10 ns for each hash; memory for 8 to 16 bytes for each hash.
    """
    bits = min((8 * max(len(hashes), len(others))).bit_length(), _TABLE_BITS_MAX)
    some = _filtered(hashes, others, np.uint64(64 - bits))
    old = _filtered(others, hashes[some], np.uint64(64 - bits))
    return some, old


def _filtered(hashes: Hashes, others: Hashes, shift: np.uint64) -> Index:
    """Returns the positions of hashes whose first bits are those of some of the others."""
    table = np.zeros(1 << (64 - int(shift)), np.bool_)
    table[(others >> shift).view(np.int64)] = True
    return table[(hashes >> shift).view(np.int64)].nonzero()[0]


class FilePart(NamedTuple):
    """A part of a layer, with its file; `layer` is the position of the layer."""

    layer: int
    place: int
    ref: PartRef


def uncancelled_files(layers: Sequence[Layer]) -> list[FilePart]:
    """Returns the parts in files that no other file removes; no file is opened.

    Layers in memory are left out.
    """
    every = [
        FilePart(at, place, ref)
        for at, layer in enumerate(layers)
        for place, ref in enumerate(layer.files)
    ]
    signs = Counter(part.ref.contents for part in every)
    cancelled: Counter[PartRef] = Counter()
    for ref, count in signs.items():
        if ref.removes:
            kept = ref._replace(path="")
            pairs = min(count, signs[kept])
            cancelled[ref] = cancelled[kept] = pairs
    remaining = []
    for part in every:
        contents = part.ref.contents
        if cancelled[contents]:
            cancelled[contents] -= 1
        else:
            remaining.append(part)
    return remaining


def uncancelled_parts(layers: Sequence[Layer]) -> list[Batch]:
    """Returns the parts of layers, without pairs of files that add and remove the same rows."""
    if not any(ref.removes for layer in layers for ref in layer.files):
        return [part for layer in layers for part in layer.parts]
    parts = [part for layer in layers if not layer.files for part in layer.parts]
    return parts + [layers[at].parts[place] for at, place, _ in uncancelled_files(layers)]


def negated(batch: Batch) -> Batch:
    """Returns a batch with opposite counts, whose rows are not copied."""
    columns, khash, rhash = batch.columns, batch.khash, batch.rhash
    return Batch(batch.layout, columns, khash, rhash, -batch.diff, batch.code)
