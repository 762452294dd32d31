"""Explode: a row for each element of an array or map column, which replaces this column.

The operator is row-wise like `flat_map`, but without a Python call for each row: it repeats rows
and takes elements by the offsets of Arrow's lists. It passes diffs on, so the retraction of a row
retracts all rows that came from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.expressions import Types
from nosync_nb.operators.base import RowPiece, Step
from nosync_nb.operators.spec import AdaptedPart, DefinitionPart, Places, RemainingColumns, Spec
from nosync_nb.rows import Column, buffers
from nosync_nb.rows.types import nested_parts
from nosync_nb.trace.batch import Updates

Index = npt.NDArray[np.int64]


class Explode(RowPiece):
    """Replaces a column of arrays or maps with columns of their elements.

    Args:
        place: the position of the column.
        type_: the type of the column.
        positions: True to output the position of each element, from 0, as the first new column.
        outer: True to output a row with nulls for a row without elements.
        apart: True if the elements are structs whose fields become separate columns.
    """

    name = "explode"

    def __init__(
        self, place: int, type_: str, *, positions: bool, outer: bool, apart: bool
    ) -> None:
        self.place = place
        self.type = type_
        self.positions = positions
        self.outer = outer
        self.apart = apart

    def apply(self, updates: Updates, step: Step) -> Updates:
        array = rows.to_arrow(updates.columns[self.place], self.type)
        starts, sizes = _extents(array)
        counts = np.maximum(sizes, 1) if self.outer else sizes
        owner = np.arange(len(sizes)).repeat(counts)
        within = np.arange(len(owner)) - (counts.cumsum() - counts).repeat(counts)
        at = starts.repeat(counts) + within
        none = (sizes == 0)[owner] if self.outer else None
        if none is not None and not none.any():
            none = None
        exploded = self._element_columns(array, at, within, none)
        around = [None if c is None else rows.take(c, owner) for c in self._other_columns(updates)]
        columns = [*around[: self.place], *exploded, *around[self.place + 1 :]]
        return Updates(columns, updates.diff[owner])

    def _other_columns(self, updates: Updates) -> list[Column]:
        return [None if i == self.place else c for i, c in enumerate(updates.columns)]

    def _element_columns(
        self, array: pa.Array, at: Index, within: Index, none: npt.NDArray[np.bool_] | None
    ) -> list[Column]:
        """Returns the new columns.

        Args:
            at: for each output row the position of its element in the values of the array.
            within: the position of the element in its own list.
            none: a mask of the output rows without an element, which are null; None without any.
        """
        index = buffers.arrow_from_numpy(at, nulls=none)
        types = [inner for _, inner in nested_parts(self.type)]
        if self.type.startswith("array<"):
            parts = [array.values.take(index)]
        else:
            parts = [array.keys.take(index), array.items.take(index)]
        if self.apart:
            types = [inner for _, inner in nested_parts(types[0])]
            parts = parts[0].flatten()
        columns = [rows.from_arrow(part, type_) for part, type_ in zip(parts, types, strict=True)]
        if not self.positions:
            return columns
        places = buffers.arrow_from_numpy(within.astype(np.int32), nulls=none)
        return [rows.from_arrow(places, "int"), *columns]

    def types_after(self, types: tuple[str, ...]) -> tuple[str, ...]:
        inner = [type_ for _, type_ in nested_parts(self.type)]
        if self.apart:
            inner = [type_ for _, type_ in nested_parts(inner[0])]
        place = ["int"] if self.positions else []
        return (*types[: self.place], *place, *inner, *types[self.place + 1 :])


def _extents(array: pa.Array) -> tuple[Index, Index]:
    """Returns the position of each row's first element in the values, and its element count."""
    offsets = buffers.bounds(array).astype(np.int64)
    sizes = np.diff(offsets)
    if array.null_count:
        sizes[buffers.null_mask_of(array)] = 0  # Arrow allows a null row to have elements
    return offsets[:-1], sizes


def _build(part: DefinitionPart, types: Types | None) -> RowPiece:
    place = part.params["place"]
    given = part.inputs[0].schema.types[place]
    how = {each: bool(part.params[each]) for each in ("positions", "outer", "apart")}
    return Explode(place, given, **how)


def _made_count(part: DefinitionPart) -> int:
    return len(part.schema) - len(part.inputs[0].schema) + 1


def _adapt_explode(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Requires the exploded column, and passes the others on."""
    source, place, more = inputs[0], part.params["place"], _made_count(part) - 1
    (now,) = source.moved([place])
    lost = {i if i < place else i + more: why for i, why in source.lost.items()}
    params: dict[str, Any] = {**part.params, "place": now}
    return AdaptedPart(params, lost)


def _reads(part: DefinitionPart, wanted: Places, types: Types | None) -> Sequence[Places]:
    """Returns the requested columns and the exploded one, which determines the number of rows."""
    place, count = part.params["place"], _made_count(part)
    before = {i for i in wanted if i < place}
    behind = {i - count + 1 for i in wanted if i >= place + count}
    return [frozenset((*before, place, *behind))]


SPEC = Spec("explode", _adapt_explode, piece=_build, reads=_reads)
