"""What differs between two states, as a table: rows of one side, and rows that were changed.

A row that both sides have by its key stands once, each cell that differs as `30 → 10`; no meaning
is carried by colour alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nosync_widgets import formats
from nosync_widgets.data.comparison import ChartedTable, counts_chart
from nosync_widgets.data.tables import Table

if TYPE_CHECKING:
    from nosync_nb.collections.comparison import Comparison, RowPair

CHANGED = "changed"


def comparison_table(comparison: Comparison, *, limit: int) -> Table:
    """Shows the first pairs of rows that differ, and counts all of them.

    Cost: `limit` pairs, and the past of both; see `Comparison.rows` and `counts`.
    """
    schema, titles = comparison.schema, _titles(comparison)
    pairs = comparison.rows(limit)
    total = comparison.only_a + comparison.only_b + comparison.changed
    notes = [f"rows are told apart by {', '.join(comparison.by)}"] if comparison.by else []
    if len(pairs) < total:
        notes.append(f"the first {len(pairs)} of {formats.count(total, 'difference')}")
    return ChartedTable(
        chart=counts_chart(comparison.counts(), titles),
        caption=_caption(comparison, titles),
        columns=("", *schema.names),
        types=("string", *schema.types),
        rows=[_row(pair, titles) for pair in pairs],
        notes=notes,
    )


def _titles(comparison: Comparison) -> tuple[str, str]:
    """What tells the sides apart: their names, or else their epochs."""
    a, b = comparison.a, comparison.b
    if a.name == b.name:
        return f"epoch {a.epoch}", f"epoch {b.epoch}"
    return a.name, b.name


def _caption(comparison: Comparison, titles: tuple[str, str]) -> str:
    a, b = comparison.a, comparison.b
    both = formats.count(comparison.same, "row")
    if comparison.equal:
        return f"no difference between {a.title} and {b.title}: {both} in both"
    figures = [
        f"{comparison.changed:,} {CHANGED}" if comparison.changed else "",
        f"{comparison.only_a:,} only in {titles[0]}" if comparison.only_a else "",
        f"{comparison.only_b:,} only in {titles[1]}" if comparison.only_b else "",
        f"{comparison.same:,} in both",
    ]
    return f"{a.title} and {b.title}: {', '.join(each for each in figures if each)}"


def _row(pair: RowPair, titles: tuple[str, str]) -> list[str | None]:
    """A line of the table; null in a cell that differs is written out."""
    for side, title in zip(pair, titles, strict=True):
        if side is not None and None in pair:
            return [f"only in {title}", *map(formats.value, side)]
    cells = []
    for one, other in zip(pair.a, pair.b, strict=True):
        a, b = formats.value(one), formats.value(other)
        cells.append(a if a == b else f"{_written(a)} → {_written(b)}")
    return [CHANGED, *cells]


def _written(item: str | None) -> str:
    return "null" if item is None else item
