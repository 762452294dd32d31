"""Static tables: the same rows as text and as HTML.

A saved notebook keeps a table as HTML without script and style sheet, with every text escaped. Null
is written as a word in its own style, so in HTML it differs from the text "null".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nosync_widgets import formats

if TYPE_CHECKING:
    import pyarrow as pa

    from nosync_nb import Collection, Session
    from nosync_nb.frontend import Cursor, Schema, Stopped

WIDEST = 40
"""The maximum number of characters of a value in a text table."""
_SORTED_ROWS_MAX = 50_000
_ROWS_HIGH = 40
_HIGH = ' style="max-height:480px;overflow:auto"'
_RIGHT = ' style="text-align:right"'
_LEFT = ' style="text-align:left"'
_TITLE = ' style="text-align:left;white-space:nowrap"'
_NULL = '<em style="opacity:.6">null</em>'


@dataclass(frozen=True)
class Table:
    """Rows of strings under named columns; None is null.

    `types` are Spark types: numbers are set flush right and HTML shows the type as a tooltip.
    `marks` are warnings, above the rows and yellow in HTML: `stale: ...`.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | None]]
    types: Sequence[str] = ()
    notes: Sequence[str] = field(default=())
    marks: Sequence[str] = field(default=())

    def _numeric(self) -> list[bool]:
        types = list(self.types) or ["string"] * len(self.columns)
        return [formats.is_numeric(name) for name in types]

    def text(self) -> str:
        """Draws the table with spaces; values longer than 40 characters are cut."""
        numeric = self._numeric()
        grid = [[_plain(item) for item in row] for row in (self.columns, *self.rows)]
        widths = [max(len(row[i]) for row in grid) for i in range(len(self.columns))]
        lines = [formats.one_line(self.caption)] if self.caption else []
        lines += map(formats.visible, self.marks)
        for row in grid:
            cells = (
                item.rjust(width) if right else item.ljust(width)
                for item, width, right in zip(row, widths, numeric, strict=True)
            )
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, *map(formats.visible, self.notes)])

    def html(self) -> str:
        """Draws a `<table>` with caption and column scopes; more than 40 rows scroll."""
        types = list(self.types) or [""] * len(self.columns)
        aligned = [_RIGHT if right else _LEFT for right in self._numeric()]
        head = "".join(
            f'<th scope="col"{style}{_tooltip(kind)}>{formats.html(name)}</th>'
            for name, kind, style in zip(self.columns, types, aligned, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(
                f"<td{style}>{_NULL if item is None else formats.html(item)}</td>"
                for item, style in zip(row, aligned, strict=True)
            )
            + "</tr>"
            for row in self.rows
        )
        caption = f"<caption{_TITLE}>{formats.html(self.caption)}</caption>" if self.caption else ""
        notes = "".join(f"<div>{formats.html(note)}</div>" for note in self.notes)
        table = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        if len(self.rows) > _ROWS_HIGH:
            table = f"<div{_HIGH}>{table}</div>"
        return f"<div>{''.join(map(formats.mark, self.marks))}{table}{notes}</div>"

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Exports the shown texts as an Arrow stream, for example for `polars.DataFrame(table)`."""
        import pyarrow as pa

        names: list[str] = []
        for name in self.columns:
            while name in names:
                name += "_"
            names.append(name)
        columns = [pa.array([row[i] for row in self.rows], pa.string()) for i in range(len(names))]
        return pa.table(columns, names=names).__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.html()


def _plain(item: str | None) -> str:
    if item is None:
        return "null"
    line = formats.one_line(item)
    return line if len(line) <= WIDEST else line[: WIDEST - 1] + "…"


def _tooltip(kind: str) -> str:
    return f' title="{formats.html(kind)}"' if kind else ""


def collection_table(
    collection: Collection, *, at: Any = None, limit: int = 20, session: Session | None = None
) -> Table:
    """Returns a table of the first rows of a collection; a stale one is shown at its last epoch.

    Args:
        session: the session of the collection. If it is given, the table of a stage or input names
            the epoch, and is in the order of the stage if it has one, as a `top` has. All other
            tables are in canonical order.

    Cost: one read of `limit + 1` rows. The rows are counted only if there are more than `limit`.
    """
    if session is not None and collection.name is not None:
        return cursor_table(collection.name, session.cursor(collection, at), limit)
    ended, title = collection.stale, collection_title(collection, at=at)
    if ended is not None and at is None:
        at = ended.epoch
        title += " has no rows left" if at is None else f", as of epoch {at}"
    none = ended is not None and at is None
    rows = [] if none else collection.rows(at=at, limit=limit + 1)
    total = len(collection) if len(rows) > limit and at is None else None
    return rows_table(title, collection.schema, rows, limit, total, ended)


def cursor_table(name: str, cursor: Cursor, limit: int) -> Table:
    """Returns a table of the first rows of a stage or input, in its own order, with the epoch."""
    rows = cursor.page(cursor.order, 0, limit + 1)
    total = cursor.count() if len(rows) > limit else None
    title = f"{name} at epoch {cursor.epoch}{ordered_by(cursor.schema.names, cursor.order)}"
    return rows_table(title, cursor.schema, rows, limit, total, cursor.stopped)


def changed_rows(
    collection: Collection, before: int | None, epoch: int, limit: int
) -> tuple[list[tuple[int, list[str | None]]], int, int]:
    """Reads the first changes in (before, epoch], and counts all inserted and removed rows.

    Duplicates are included in the counts.
    """
    table = collection.changes(after=before, upto=epoch)
    diffs = table.column(-1).to_numpy()  # the last column, whose name depends on the other columns
    added, removed = int(diffs[diffs > 0].sum()), -int(diffs[diffs < 0].sum())
    if 1 < table.num_rows <= _SORTED_ROWS_MAX:
        table = _sort_by_row(table)
    columns = [table.column(name)[:limit].to_pylist() for name in collection.schema.names]
    shown = table.column(-1)[:limit].to_pylist()
    changes = [
        (diff, [formats.value(column[i]) for column in columns]) for i, diff in enumerate(shown)
    ]
    return changes, added, removed


def _sort_by_row(table: pa.Table) -> pa.Table:
    """Sorts changes so that similar rows are adjacent; nested columns are ignored."""
    import pyarrow as pa

    names = [name for name in table.column_names if not pa.types.is_nested(table[name].type)]
    return table.sort_by([(name, "ascending") for name in names])


def ordered_by(names: Sequence[str], order: Iterable[Sequence[Any]]) -> str:
    """Describes the order of rows: ` by carrier, delay desc`; empty for the canonical order."""
    keys = [names[place] + (" desc" if descending else "") for place, descending in order]
    return f" by {', '.join(keys)}" if keys else ""


def rows_table(
    title: str,
    schema: Schema,
    rows: Sequence[Any],
    limit: int,
    total: int | None,
    stopped: Stopped | None = None,
) -> Table:
    """Returns a table of the first `limit` rows; `rows` has one more if there are further rows."""
    beyond = "" if total is None else f" of {formats.count(total, 'row')}"
    return Table(
        caption=title,
        columns=tuple(schema.names),
        types=tuple(schema.types),
        rows=[*map(formats.like(rows), rows[:limit])],
        notes=[f"the first {limit}{beyond}"] if len(rows) > limit else [],
        marks=[] if stopped is None else [str(stopped)],
    )


def collection_title(collection: Collection, *, at: Any = None) -> str:
    """Returns the name of a collection for a caption: `slow at epoch 7`."""
    name = collection.name
    if name is None:
        return "an unnamed collection: computed for this output, not stored"
    if at is None:
        return name
    return f"{name} at epoch {at}" if isinstance(at, int) else f"{name} at {at!r}"
