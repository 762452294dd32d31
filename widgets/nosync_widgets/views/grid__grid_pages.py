"""What the grid shows, as small dicts of strings and numbers: a page of rows, column summaries.

At most 200 rows are in a page; whole collections never travel to the browser, but when somebody
asks for a file. Nothing here touches a widget.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NamedTuple

from nosync_widgets import formats
from nosync_widgets.data.tables import Table, ordered_by

if TYPE_CHECKING:
    import pyarrow as pa

    from nosync_nb.session.reads.paging import CollectionView
    from nosync_nb.trace.column_profiles import Profile

ROWS_MAX = 200

_TYPES = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet"}


class GridRequest(NamedTuple):
    """What somebody wants to see.

    Attributes:
        order: positions of columns, and whether they descend; empty: the canonical order.
        where: a predicate in SQL; empty: all rows.
    """

    order: tuple[tuple[int, bool], ...] = ()
    where: str = ""
    offset: int = 0
    limit: int = 20

    @classmethod
    def of(cls, asked: dict[str, Any], width: int) -> GridRequest:
        """What a message asks for, within bounds.

        Args:
            width: how many columns there are.
        """
        places = [(int(place), bool(descending)) for place, descending in asked.get("order", ())]
        return cls(
            tuple((place, descending) for place, descending in places if 0 <= place < width),
            str(asked.get("where", "")).strip(),
            max(int(asked.get("offset", 0)), 0),
            min(max(int(asked.get("limit", 20)), 1), ROWS_MAX),
        )


def read_page(look: CollectionView, wanted: GridRequest) -> dict[str, Any]:
    """Reads a page; one beyond the end is the last one.

    Returns:
        `epoch columns rows offset limit total order where`; a row is a list of strings with None
        for null.
    """
    total = look.count(wanted.where)
    offset = min(wanted.offset, max(total - 1, 0) // wanted.limit * wanted.limit)
    found = look.page(wanted.order, offset, wanted.limit, where=wanted.where)
    return {
        "epoch": look.epoch,
        "columns": [
            {
                "name": formats.one_line(name),
                "type": formats.one_line(kind),
                "right": formats.is_numeric(kind),
            }
            for name, kind in zip(look.schema.names, look.schema.types, strict=True)
        ],
        "rows": [*map(formats.like(found), found)],
        "offset": offset,
        "limit": wanted.limit,
        "total": total,
        "order": [list(each) for each in wanted.order],
        "where": wanted.where,
    }


def read_summary(look: CollectionView, where: str) -> dict[str, Any]:
    """Reads the summaries of the columns: `epoch where columns`, figures as they are shown."""
    columns = [_summary(each) for each in look.profiles(where)]
    return {"epoch": look.epoch, "where": where, "columns": columns}


def _summary(profile: Profile) -> dict[str, Any]:
    values = [(profile.low,), (profile.high,), *((value,) for value, _ in profile.common)]
    low, high, *common = (shown[0] for shown in map(formats.like(values), values))
    return {
        "nulls": profile.nulls,
        "distinct": profile.distinct,
        "low": low,
        "high": high,
        "bars": list(profile.bars),
        "common": [[text, count] for text, (_, count) in zip(common, profile.common, strict=True)],
    }


def grid_title(name: str, page: dict[str, Any]) -> str:
    """Says what a page shows: `late at epoch 7: rows 1 to 20 of 3,180 where delay > 60`."""
    offset, shown = page["offset"], len(page["rows"])
    some = f"rows {offset + 1:,} to {offset + shown:,} of {page['total']:,}"
    rows = some if shown < page["total"] else formats.count(shown, "row")
    where = f" where {page['where']}" if page["where"] else ""
    names = [column["name"] for column in page["columns"]]
    by = ordered_by(names, page["order"])
    stale = f"; {page['stale']}" if page.get("stale") else ""
    return formats.one_line(f"{name} at epoch {page['epoch']}: {rows}{where}{by}{stale}")


def page_table(name: str, page: dict[str, Any]) -> Table:
    """Draws a page as a static table."""
    return Table(
        caption=grid_title(name, {**page, "stale": ""}),
        columns=[column["name"] for column in page["columns"]],
        types=[column["type"] for column in page["columns"]],
        rows=page["rows"],
        marks=[page["stale"]] if page.get("stale") else [],
    )


def download_file(table: pa.Table, kind: str) -> tuple[bytes, str]:
    """A table as a file, and its media type.

    Args:
        kind: csv or parquet. In CSV nested values are written as JSON.
    """
    out = io.BytesIO()
    if kind == "parquet":
        from pyarrow import parquet

        parquet.write_table(table, out)
    else:
        from pyarrow import csv

        csv.write_csv(_flat(table), out)
    return out.getvalue(), _TYPES[kind]


def _flat(table: pa.Table) -> pa.Table:
    """A table whose nested and binary columns are texts."""
    import json

    import pyarrow as pa

    for i, field in enumerate(table.schema):
        if pa.types.is_nested(field.type):
            texts = [
                None if value is None else json.dumps(value, default=str, ensure_ascii=False)
                for value in table.column(i).to_pylist()
            ]
        elif pa.types.is_binary(field.type):
            texts = [None if v is None else "0x" + v.hex() for v in table.column(i).to_pylist()]
        else:
            continue
        table = table.set_column(i, field.name, pa.array(texts, pa.string()))
    return table
