"""Shows the differences of two states: a table of differing rows, and a chart of their numbers.

A row whose key occurs on both sides is listed once, with each differing cell as `30 → 10`.

The chart shows the numbers of differing rows over epochs. It is an SVG picture that needs no
library. Its lines differ in dashes and in colour, and are readable on light and on dark pages. It
has a title and a table of the figures for screen readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nosync_widgets import formats
from nosync_widgets.tables import Table

if TYPE_CHECKING:
    from nosync_nb.frontend import Comparison, DifferenceCounts, RowPair

WIDTH, HEIGHT = 560, 150
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 10, 24
LINES = (("#3a86d8", ""), ("#d1611b", "7 3"), ("#8a63d2", "2 3"))
"""Colour and dashes of each line; each colour has a contrast above 3 on white and on black."""

CHANGED = "changed"


@dataclass(frozen=True, repr=False)
class ChartedTable(Table):
    """A table with a chart below it; the text form has no chart."""

    chart: str = ""

    def html(self) -> str:
        """Draws the table, and the chart below it."""
        return super().html() + self.chart


def comparison_table(comparison: Comparison, *, limit: int) -> Table:
    """Returns a table of the first pairs of rows that differ, with all counts and the chart.

    Cost: reads `limit` pairs, and the history of both sides; see `Comparison.rows` and `counts`.
    """
    schema, titles = comparison.schema, _titles(comparison)
    pairs = comparison.rows(limit)
    total = comparison.only_a + comparison.only_b + comparison.changed
    notes = [f"rows matched on {', '.join(comparison.by)}"] if comparison.by else []
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
    """Returns labels of the sides: their names, or their epochs if the names are equal."""
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
    """Returns a row of the table; in a cell that differs, null is written as a word."""
    for side, title in zip(pair, titles, strict=True):
        if side is not None and None in pair:
            return [f"only in {title}", *map(formats.value, side)]
    cells = []
    for one, other in zip(pair.a, pair.b, strict=True):
        a, b = formats.value(one), formats.value(other)
        cells.append(a if a == b else f"{_text(a)} → {_text(b)}")
    return [CHANGED, *cells]


def _text(item: str | None) -> str:
    return "null" if item is None else item


def counts_chart(counts: Sequence[DifferenceCounts], titles: tuple[str, str]) -> str:
    """Draws the numbers of differing rows over epochs as HTML; empty below two epochs.

    Args:
        titles: labels of the sides.
    """
    if len(counts) < 2:
        return ""
    names = (f"only in {titles[0]}", f"only in {titles[1]}", "changed")
    series = list(zip(*(each[1:] for each in counts), strict=True))
    drawn = [i for i, values in enumerate(series) if any(values)]
    epochs = [each.epoch for each in counts]
    label = f"rows that differ, over epochs {epochs[0]} to {epochs[-1]}"
    top = max(1, *(max(values) for values in series))
    parts = [_axis(epochs, top)]
    for i in drawn:
        colour, dashes = LINES[i]
        path = _path(epochs, series[i], top)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>')
        # A step at the last epoch has no length, so a dot marks its end.
        end = f'cx="{_place(epochs, epochs[-1])}" cy="{_height(series[i][-1], top)}"'
        parts.append(f'<circle {end} r="3.5" fill="{colour}"/>')
    last = [f"{names[i]} {series[i][-1]:,}" for i in drawn] or ["no row differs"]
    summary = formats.html(f"{label}; at the last one: {', '.join(last)}")
    svg = (
        f'<svg role="img" aria-label="{summary}" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        f' height="{HEIGHT}" style="max-width:100%"><title>{summary}</title>{"".join(parts)}</svg>'
    )
    figure = f'<figure style="margin:8px 0">{svg}{_legend(names, drawn)}</figure>'
    return figure + _figures(counts, names, label)


def _place(epochs: Sequence[int], epoch: int) -> float:
    """Returns the horizontal position of an epoch."""
    span = max(1, epochs[-1] - epochs[0])
    return round(LEFT + (WIDTH - LEFT - RIGHT) * (epoch - epochs[0]) / span, 1)


def _height(value: int, top: int) -> float:
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top, 1)


def _path(epochs: Sequence[int], values: Sequence[int], top: int) -> str:
    """Draws a step line: a count is valid until the next epoch that is drawn."""
    steps = [f"M{_place(epochs, epochs[0])} {_height(values[0], top)}"]
    for epoch, value in zip(epochs[1:], values[1:], strict=True):
        steps.append(f"H{_place(epochs, epoch)}V{_height(value, top)}")
    return "".join(steps)


def _axis(epochs: Sequence[int], top: int) -> str:
    """Draws both axes, with the values at their ends."""
    text = '<text fill="currentColor" font-size="11" font-family="sans-serif"'
    floor, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    return (
        f'<path d="M{LEFT} {TOP}V{floor}H{right}" fill="none" stroke="currentColor" opacity=".4"/>'
        f'{text} x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">{top:,}</text>'
        f'{text} x="{LEFT - 6}" y="{floor}" text-anchor="end">0</text>'
        f'{text} x="{LEFT}" y="{HEIGHT - 8}">epoch {epochs[0]}</text>'
        f'{text} x="{right}" y="{HEIGHT - 8}" text-anchor="end">{epochs[-1]}</text>'
    )


def _legend(names: Sequence[str], drawn: Sequence[int]) -> str:
    """Draws the legend: a piece of each line with its name."""
    entries = []
    for i in drawn:
        colour, dashes = LINES[i]
        line = f'<line x2="26" y1="5" y2="5" stroke="{colour}" stroke-width="2" '
        line += f'stroke-dasharray="{dashes}"/>'
        piece = f'<svg aria-hidden="true" width="26" height="10">{line}</svg>'
        entries.append(f"<span>{piece} {formats.html(names[i])}</span>")
    style = "display:flex;flex-wrap:wrap;gap:4px 18px;font-size:12px"
    return f'<figcaption style="{style}">{"".join(entries)}</figcaption>'


def _figures(counts: Sequence[DifferenceCounts], names: Sequence[str], label: str) -> str:
    """Returns the figures of the chart as a folded-up table."""
    rows = [[str(each.epoch), *(f"{value:,}" for value in each[1:])] for each in counts]
    table = Table(label, ("epoch", *names), rows, ("bigint",) * 4)
    return f"<details><summary>figures of the chart</summary>{table.html()}</details>"
