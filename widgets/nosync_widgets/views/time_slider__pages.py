"""What the time traveller shows for one epoch: rows, and what changed against the epoch before.

A page is a small dict of strings and numbers, at most `limit` rows of each kind; whole collections
never travel to the browser. Reading uses the public API only and touches no widget.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from nosync_widgets import formats
from nosync_widgets.data.tables import Table, ordered_by
from nosync_widgets.data.timeline import Timeline

if TYPE_CHECKING:
    import pyarrow as pa

    from nosync_nb import Collection
    from nosync_nb.collections.row_changes import RowChange
    from nosync_nb.session.reads.paging import CollectionView
    from nosync_nb.session.services import Services

_SORTED_AT_MOST = 50_000

Looks: TypeAlias = "dict[str | None, CollectionView]"
"""The last look at each collection, by name."""


def read_page(
    collection: Collection,
    owners: Services,
    timeline: Timeline,
    epoch: int,
    *,
    limit: int,
    looks: Looks,
) -> dict[str, Any]:
    """Reads a collection at `epoch`.

    Args:
        looks: what was read before, which the next epoch is read from; it is changed.

    Returns:
        `epoch before columns rows more ordered fresh by changes changes_more added removed`; a row
        is a list of strings with None for null, `ordered` says what they are ordered by, where a
        collection has an order of its own, `fresh` has the signs of rows that came with this epoch
        (+), or became what they are (→), else "". Changes are of rows that came, that went, or (if
        there is a key, `by`) whose cells changed.

    Cost: one pass over the rows the first time, then over what has changed since the page before;
    and over the changes of one epoch, in vectors.
    """
    before = timeline.before(epoch)
    schema = collection.schema
    look = owners.paging.look(collection, epoch, looks.get(collection.name))
    found = look.page(look.order, 0, limit + 1)
    looks[collection.name] = look
    changed = owners.comparing.changes(collection, before, epoch, limit=limit)
    show = formats.like(found)
    rows = [*map(show, found)]
    signs = {tuple(show(row)): "+" for row in changed.arrived}
    pairs = (each.b for each in changed.first if each.a is not None and each.b is not None)
    signs |= {tuple(show(row)): "→" for row in pairs}
    return {
        "epoch": epoch,
        "before": before,
        "columns": _columns(collection),
        "rows": rows[:limit],
        "more": len(rows) > limit,
        "ordered": formats.one_line(ordered_by(schema.names, look.order)),
        "fresh": [signs.get(tuple(row), "") for row in rows[:limit]],
        "by": [formats.one_line(name) for name in changed.by],
        "changes": [_change(each, show) for each in changed.first],
        "changes_more": changed.more,
        "added": changed.came,
        "removed": changed.went,
    }


def empty_page(collection: Collection, epoch: int) -> dict[str, Any]:
    """The page of a stale stage that has no rows left; see `read_page`."""
    return {
        "epoch": epoch,
        "before": None,
        "columns": _columns(collection),
        "rows": [],
        "more": False,
        "ordered": "",
        "fresh": [],
        "by": [],
        "changes": [],
        "changes_more": False,
        "added": 0,
        "removed": 0,
    }


def _columns(collection: Collection) -> list[dict[str, Any]]:
    schema = collection.schema
    return [
        {
            "name": formats.one_line(name),
            "type": formats.one_line(kind),
            "right": formats.is_numeric(kind),
        }
        for name, kind in zip(schema.names, schema.types, strict=True)
    ]


def _change(change: RowChange, show: Callable[[Any], list[str | None]]) -> list[Any]:
    """How often, and the row's cells; one that differs is a pair: what it was, what it is.

    A count below 0 is of a row that went; 0 stands before the copies of one that changed.
    """
    if change.a is None:
        return [change.copies, show(change.b)]
    if change.b is None:
        return [-change.copies, show(change.a)]
    pairs = zip(change.a, change.b, show(change.a), show(change.b), strict=True)
    # Two values may be shown alike, as long ones are cut short: it is said that they differ.
    cells = [
        b if one == other or (one != one and other != other) else [a, b]
        for one, other, a, b in pairs
    ]
    return [0, cells, change.copies]


def changed_rows(
    collection: Collection, before: int | None, epoch: int, limit: int
) -> tuple[list[tuple[int, list[str | None]]], int, int]:
    """Reads the changes in (before, epoch]: the first, and how many copies came and went."""
    table = collection.changes(after=before, upto=epoch)
    diffs = table.column(-1).to_numpy()  # its name depends on those of the columns
    added, removed = int(diffs[diffs > 0].sum()), -int(diffs[diffs < 0].sum())
    if 1 < table.num_rows <= _SORTED_AT_MOST:
        table = _sorted(table)
    columns = [table.column(name)[:limit].to_pylist() for name in collection.schema.names]
    shown = table.column(-1)[:limit].to_pylist()
    changes = [
        (diff, [formats.value(column[i]) for column in columns]) for i, diff in enumerate(shown)
    ]
    return changes, added, removed


def _sorted(table: pa.Table) -> pa.Table:
    """Puts changes of one row's neighbours together; nested columns leave the order as it is."""
    import pyarrow as pa

    names = [name for name in table.column_names if not pa.types.is_nested(table[name].type)]
    return table.sort_by([(name, "ascending") for name in names])


def page_table(name: str, page: dict[str, Any]) -> Table:
    """Draws a page as a static table, rows that came or changed marked; `past` is a note below."""
    columns = ["", *(column["name"] for column in page["columns"])]
    types = ["string", *(column["type"] for column in page["columns"])]
    rows = [[sign, *row] for row, sign in zip(page["rows"], page["fresh"], strict=True)]
    notes = [f"the first {formats.count(len(rows), 'row')}"] if page["more"] else []
    past = page.get("past")
    return Table(
        caption=page_title(name, page) + page["ordered"],
        columns=columns,
        types=types,
        rows=rows,
        notes=[*notes, past] if past else notes,
        marks=[page["stale"]] if page.get("stale") else [],
    )


def page_title(name: str, page: dict[str, Any]) -> str:
    """Says which epoch is shown and what it changed: `slow at epoch 3 (January): +2 −1`."""
    label = f" ({page['label']})" if page.get("label") else ""
    changed = f"+{page['added']:,} −{page['removed']:,}"
    against = "" if page["before"] is None else f" since epoch {page['before']}"
    return f"{name} at epoch {page['epoch']}{label}: {changed}{against}"
