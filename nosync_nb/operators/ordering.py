"""Orders by several columns: a code that sorts a trace, and exact ranks for a few rows.

A trace sorts the rows of a key by a single 64-bit number. `OrderCodes` appends this number as a
column. It concatenates the bits of the columns to order by, then those of all other columns, and
truncates the result to 64 bits. Codes never contradict the order; `order_ranks` orders rows with
equal codes.

`group_heads` returns the first or the last rows of each group, from a trace ordered inside each
key. In each part these rows are at the beginning or end of the group. The result is complete up to
the first code of an unread row in any part. A caller that needs more rows looks up again with a
larger `look`.

Cost: a lookup reads O(layers x look) rows for each group, whatever its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.expressions import Types
from nosync_nb.operators.base import RowPiece, Step
from nosync_nb.operators.linear import rows_where
from nosync_nb.operators.spec import (
    AdaptedPart,
    DefinitionPart,
    Places,
    RemainingColumns,
    Spec,
    same_key,
)
from nosync_nb.rows import Column
from nosync_nb.rows.array_ops import any_true
from nosync_nb.rows.ddl import YEAR_MONTHS
from nosync_nb.trace import Trace, hash_ranges
from nosync_nb.trace.batch import Hashes, Index, Updates, concat_updates, no_updates

_SIGN = np.uint64(1 << 63)
_BITS = {"boolean": 1, "tinyint": 8, "smallint": 16, "int": 32, "date": 32}
_BITS |= dict.fromkeys(YEAR_MONTHS, 32)
_FAR = np.int64(2**62)


class OrderColumn(NamedTuple):
    """A column to order by: its position, direction and order of nulls."""

    place: int
    descending: bool = False
    nulls_first: bool = True


class OrderCodes(RowPiece):
    """Appends the order code of each row as a bigint."""

    name = "order"

    def __init__(self, types: Sequence[str], by: Sequence[OrderColumn]) -> None:
        self.types = tuple(types)
        named = {b.place for b in by}
        self.by = (*by, *(OrderColumn(i) for i in range(len(types)) if i not in named))

    def apply(self, updates: Updates, step: Step) -> Updates:
        code = np.zeros(len(updates.diff), np.uint64)
        room = 64
        for by in self.by:
            part, width = _field(updates.columns[by.place], self.types[by.place], by)
            used = min(width, room)
            room -= used
            code |= part >> np.uint64(width - used) << np.uint64(room)
            if not room:
                break
        return Updates([*updates.columns, (code ^ _SIGN).view(np.int64)], updates.diff)

    def types_after(self, types: tuple[str, ...]) -> tuple[str, ...]:
        return (*types, "bigint")


def order_bits(types: Sequence[str], by: Sequence[OrderColumn]) -> int:
    """Returns the number of leading bits of an order code that belong to the columns of an order.

    Rows that are equal by the order have equal leading bits.
    """
    widths = (_BITS[types[b.place]] + 1 if types[b.place] in _BITS else 64 for b in by)
    return min(sum(widths), 64)


def value_codes(column: Column, type_: str, by: OrderColumn, *, last: bool) -> Hashes:
    """Returns the first or the last order code that a row with each value can have.

    Args:
        by: the only column of the order.
    """
    code, width = _field(column, type_, by)
    room = 64 - min(width, 64)
    if not room:
        return code
    code = code << np.uint64(room)
    return code | np.uint64((1 << room) - 1) if last else code


def _field(column: Column, type_: str, by: OrderColumn) -> tuple[Hashes, int]:
    """Returns the code of one column, and its number of bits.

    The codes of narrow types are exact, and have a leading bit for null. In other types null has
    the code of an extreme value. No other column follows such a code, so this is only a tie.
    """
    codes = rows.order_codes(column, type_)
    missing = rows.null_mask(column)
    bits = _BITS.get(type_)
    if bits is None:
        if by.descending:
            codes = ~codes
        if missing is not None:
            codes = np.where(missing, np.uint64(0 if by.nulls_first else 2**64 - 1), codes)
        return codes, 64
    lowest = 2**63 - (2 ** (bits - 1) if bits > 1 else 0)
    codes = codes - np.uint64(lowest)
    if by.descending:
        codes = np.uint64(2**bits - 1) - codes
    flag = np.uint64(2**bits if by.nulls_first else 0)
    codes = codes + flag
    if missing is not None:
        codes = np.where(missing, np.uint64(2**bits) - flag, codes)
    return codes, bits + 1


def order_ranks(
    columns: Sequence[Column], types: Sequence[str], by: Sequence[OrderColumn]
) -> list[Index]:
    """Returns, for each column to order by, numbers that are ordered and equal like its values."""
    numbers = []
    for place, descending, nulls_first in by:
        number = _dense(columns[place], types[place])
        if descending:
            number = -number
        missing = rows.null_mask(columns[place])
        if missing is not None:
            number = np.where(missing, -_FAR if nulls_first else _FAR, number)
        numbers.append(number)
    return numbers


def _dense(column: Column, type_: str) -> Index:
    """Returns the rank of each value among the distinct values, in ascending order."""
    order = rows.sort_indices([column], [type_])
    ordered = rows.take(column, order)
    new: npt.NDArray[np.int64] = np.ones(len(order), np.int64)
    if len(order) > 1:
        every = np.arange(len(order) - 1)
        new[1:] = ~rows.equal(rows.take(ordered, every), rows.take(ordered, every + 1), type_)
    number = np.empty(len(order), np.int64)
    number[order] = new.cumsum()
    return number


def placed_order(by: Sequence[Sequence[Any]], source: RemainingColumns) -> list[list[Any]]:
    """Returns the arguments of an order with the new positions of its columns.

    Raises:
        LostColumnError: if one of the columns is lost.
    """
    return [[*source.moved([place]), *how] for place, *how in by]


def _piece(part: DefinitionPart, types: Types | None) -> RowPiece:
    return OrderCodes(
        part.inputs[0].schema.types, [OrderColumn(*each) for each in part.params["by"]]
    )


def _adapt_order(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Requires the columns to order by, and passes the others on."""
    return AdaptedPart({"by": placed_order(part.params["by"], inputs[0])}, inputs[0].lost)


def _reads(part: DefinitionPart, wanted: Places, types: Types | None) -> Sequence[Places]:
    """Returns the columns to order by and the requested ones, without the computed last column."""
    places = {place for place, *_ in part.params["by"]}
    return [frozenset(places | wanted - {len(part.schema) - 1})]


SPEC = Spec("order", _adapt_order, piece=_piece, key=same_key, reads=_reads)


class GroupHeads(NamedTuple):
    """The result of a lookup of the first or last rows of groups.

    Attributes:
        rows: the rows of each group up to the first code that may have unread rows, unordered.
        probe: the number of the group of each row.
        open: a mask of the groups that have unread rows.
    """

    rows: Updates
    probe: Index
    open: npt.NDArray[np.bool_]


def group_heads(
    trace: Trace, khash: Hashes, keys: Sequence[Column], look: int, step: Step, *, last: bool
) -> GroupHeads:
    """Reads up to `look` rows of each group in each part.

    Args:
        khash, keys: the keys of the groups, and their hashes.
        last: True to read from the end of each group.
    """
    n = len(khash)
    types = trace.layout.types
    open_ = np.zeros(n, bool)
    horizon = np.full(n, 0 if last else 2**64 - 1, np.uint64)
    probes: list[Index] = []
    codes: list[Hashes] = []
    taken: list[Updates] = []
    for part in trace.parts():
        low = part.khash.searchsorted(khash)
        high = part.khash.searchsorted(khash, "right")
        if low.tobytes() == high.tobytes():
            continue
        assert part.code is not None
        size = high - low
        count = np.minimum(size, look)
        start = high - count if last else low
        more = size > look
        if any_true(more):
            open_ |= more
            edge = part.code[(start if last else start + count - 1)[more]]
            horizon[more] = (np.maximum if last else np.minimum)(horizon[more], edge)
        index = hash_ranges(start, count)
        probes.append(np.arange(n).repeat(count))
        codes.append(part.code[index])
        taken.append(part.updates.take(index))
    if not taken:
        return GroupHeads(no_updates(types), np.zeros(0, np.int64), open_)
    probe, code = np.concatenate(probes), np.concatenate(codes)
    step.add_touched(len(probe))
    seen = concat_updates(taken, types)
    certain = code > horizon[probe] if last else code < horizon[probe]
    own = certain | ~open_[probe]
    for key, place in zip(keys, trace.layout.key or (), strict=True):
        own &= rows.equal(rows.take(key, probe), seen.columns[place], types[place])
    return GroupHeads(rows_where(seen, own), probe[own], open_)
