"""The grid: a stage as a table that follows commits; it sorts, filters, pages and summarises.

Design
    The kernel owns the state: `page` has the shown rows, and `latest` is the last epoch. The front
    end sends one request at a time: for a page with an order and a filter, to freeze, or for a
    file. The reply is the next page, or the pieces of the file. Commits notify a `Throttle`, which
    reads the page again in a background thread. Another throttle computes the summaries, because
    they take longest. A frozen grid keeps its cursor, and shows how far it is behind.
    A page is a small dict of strings and numbers with at most 200 rows. A whole collection is sent
    to the browser only as a requested file.

    No existing grid reads rows at a given epoch where they are stored. `itables` and `ipydatagrid`
    send all rows to the browser. `quak` and `perspective` copy the rows into their own engine, or
    query them in its language, whose order and decimals differ from NoSync's.

Failure
    One lock guards all state that messages, cells and commits change; a cursor never changes. An
    error becomes a line in the view, beside the rows that were shown last.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NamedTuple

import traitlets

from nosync_widgets import formats
from nosync_widgets.live_view import (
    StageView,
    column_fields,
    error_text,
    script,
    source,
    static_page,
)
from nosync_widgets.tables import Table, ordered_by
from nosync_widgets.throttle import ThreadBudget, Throttle

if TYPE_CHECKING:
    import pyarrow as pa

    from nosync_nb import Session
    from nosync_nb.frontend import Cursor, Profile

_PIECE_BYTES = 1 << 22

ROWS_MAX = 200

_MEDIA_TYPES = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet"}


class GridRequest(NamedTuple):
    """A request for a page.

    Attributes:
        order: pairs of a column position and True if the column descends; empty for the canonical
            order.
        where: a predicate in SQL; empty for all rows.
        offset: the number of rows before the page.
        limit: the maximum number of rows of the page.
    """

    order: tuple[tuple[int, bool], ...] = ()
    where: str = ""
    offset: int = 0
    limit: int = 20

    @classmethod
    def from_message(cls, asked: dict[str, Any], width: int) -> GridRequest:
        """Reads a request from a message, and limits its values to the valid ranges.

        Args:
            width: the number of columns.
        """
        places = [(int(place), bool(descending)) for place, descending in asked.get("order", ())]
        return cls(
            tuple((place, descending) for place, descending in places if 0 <= place < width),
            str(asked.get("where", "")).strip(),
            max(int(asked.get("offset", 0)), 0),
            min(max(int(asked.get("limit", 20)), 1), ROWS_MAX),
        )


class GridView(StageView):
    """Shows a page of a stage or input at the last epoch or, if frozen, at an earlier one.

    Attributes:
        summing: throttles the summaries.
    """

    _esm = script("grid.js")
    _css = source("grid.css")

    page = traitlets.Dict(
        help="Rows as strings, with their epoch, order and filter; `stale` says why there are no"
        " newer ones; `asked` is the number of the request that the page answers, 0 for none."
    ).tag(sync=True)
    summary = traitlets.Dict(
        help="Summaries of the columns, with their epoch; empty until computed."
    ).tag(sync=True)
    latest = traitlets.Int(0, help="The last epoch; 0 by default.").tag(sync=True)
    frozen = traitlets.Bool(
        False, help="True if the grid stays at its epoch; False by default."
    ).tag(sync=True)

    def __init__(
        self,
        session: Session,
        stage: str,
        *,
        limit: int = 20,
        branch: str | None = None,
        budget: ThreadBudget | None = None,
    ) -> None:
        self._cursor: Cursor | None = None
        self._request = GridRequest(limit=min(max(limit, 1), ROWS_MAX))
        budget = budget or ThreadBudget()
        self.summing = Throttle(self._summarise, budget)
        super().__init__(session, stage, branch, budget)
        self.refresh()
        self._subscribe()

    @property
    def epoch(self) -> int | None:
        """The epoch shown; None if nothing could be read yet."""
        return None if self._cursor is None else self._cursor.epoch

    def refresh(self, *, reload: bool = False) -> None:
        """Shows the last epoch; a frozen grid only shows how far it is behind.

        Args:
            reload: reads the rows again in any case, after a new version of the stage.
        """
        with self._lock:
            if self._closed:
                return
            before, shown = self._cursor, dict(self.page)
            try:
                self.latest = self._session.refresh()
                stale = self._stale(self.stage)
                if self.frozen and not reload:
                    if before is not None and stale != shown.get("stale"):
                        self._publish_page({**shown, "stale": stale, "asked": 0})
                    return
                cursor = self._reopen_cursor()
            except Exception as error:
                self._fail(error, 0)
                return
            if before is None or not cursor.has_rows_of(before) or "error" in shown or reload:
                self._show_page(0)
            elif (before.epoch, shown.get("stale")) != (cursor.epoch, stale):
                # only the epoch or the stale mark has changed, not the rows
                self._publish_page({**shown, "epoch": cursor.epoch, "stale": stale, "asked": 0})
                self.summary = {**self.summary, "epoch": cursor.epoch} if self.summary else {}

    def show(self, wanted: GridRequest, *, asked: int = 0) -> None:
        """Shows another page, order or filter; programs and tests call it like the front end.

        Args:
            asked: the number of the front end's request; 0 without a request.
        """
        with self._lock:
            if self._closed:
                return
            before, self._request = self._request, wanted
            if not self._show_page(asked):
                self._request = before

    def freeze(self, on: bool) -> None:
        """Freezes the grid at the epoch shown if `on`, or else follows commits again."""
        with self._lock:
            if self._closed:
                return
            self.frozen = on
            self.refresh()

    def move(self, session: Session, branch: str | None) -> None:
        """Switches to another session of the same log."""
        with self._lock:
            if self._closed:
                return
            self._switch(session, branch)
            self.frozen = False
            self.refresh(reload=True)

    def download(self, kind: str) -> None:
        """Sends all rows that match the filter, in the order shown, to the front end as a file.

        Args:
            kind: csv or parquet.
        """
        with self._lock:
            cursor, wanted = self._cursor, self._request
            if self._closed or cursor is None or kind not in ("csv", "parquet"):
                return
        try:
            total, most = cursor.count(wanted.where), self._session.collect_rows
            if total > most:
                raise ValueError(
                    f"{formats.count(total, 'row')} are more than session.collect_rows = {most:,}"
                )
            data, media = download_file(cursor.table(wanted.order, where=wanted.where), kind)
        except Exception as error:
            self.send({"kind": "failed", "error": error_text(error)})
            return
        pieces = [data[i : i + _PIECE_BYTES] for i in range(0, len(data), _PIECE_BYTES)]
        name = f"{self.stage}-epoch-{cursor.epoch}.{kind}"
        for number, piece in enumerate(pieces):
            about = {"kind": "file", "name": name, "media": media, "last": len(pieces) - 1}
            self.send({**about, "piece": number}, buffers=[piece])

    def close(self) -> None:
        """Frees the view, its layout and its subscription; a second call does nothing."""
        self.summing.close()
        super().close()

    def _forget_rows(self) -> None:
        self._cursor = None

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        """Handles a message of the front end."""
        self.answer()
        kind = content.get("kind")
        if kind == "show":
            width = len(self._cursor.schema) if self._cursor is not None else 0
            self.show(GridRequest.from_message(content, width), asked=int(content.get("asked", 0)))
        elif kind == "freeze":
            self.freeze(bool(content.get("on")))
        elif kind == "download":
            self.download(str(content.get("format")))

    def _reopen_cursor(self) -> Cursor:
        """Opens a cursor at the last epoch; resets order and filter if the columns changed."""
        before = self._cursor
        cursor = self._session.cursor(self.stage, previous=before)
        if before is None or before.schema != cursor.schema:
            self._request = GridRequest(cursor.order, limit=self._request.limit)
        self._cursor = cursor
        return cursor

    def _show_page(self, asked: int) -> bool:
        """Reads the requested page; returns True if it succeeded."""
        cursor = self._cursor
        if cursor is None:
            return False
        try:
            page = {**read_page(cursor, self._request), "stale": self._stale(self.stage)}
        except Exception as error:
            self._fail(error, asked)
            return False
        self._publish_page({**page, "asked": asked})
        self.summing.ask(soon=asked > 0)
        return True

    def _fail(self, error: Exception, asked: int) -> None:
        self._publish_page({**self.page, "error": error_text(error), "asked": asked})

    def _publish_page(self, page: dict[str, Any]) -> None:
        self._pages += 1
        self.page = {**page, "name": formats.one_line(self._name), "number": self._pages}

    def _summarise(self) -> None:
        """Computes the summaries of the shown rows, without blocking reads of pages."""
        with self._lock:
            cursor, where = self._cursor, self._request.where
        if cursor is None or self._closed:
            return
        try:
            summary = read_summary(cursor, where)
        except Exception as error:
            summary = {"error": error_text(error)}
        with self._lock:
            if not self._closed:
                self.summary = summary

    def bundle(self) -> dict[str, Any]:
        """Returns the display: the widget, and a table of the page for other front ends."""
        data: dict[str, Any] = self._repr_mimebundle_()[0]
        return data

    def static(self) -> tuple[str, str]:
        """Returns the page as text and as HTML, without widgets."""
        return static_page(self._name, self.page, page_table)

    def title(self) -> str:
        """Returns one line with the stage, its epoch and the rows shown."""
        return self._name if "error" in self.page else grid_title(self._name, self.page)


def read_page(cursor: Cursor, wanted: GridRequest) -> dict[str, Any]:
    """Reads a page; if the offset is beyond the end, the last page.

    Returns:
        a dict with the keys `epoch columns rows offset limit total order where`. A row is a list of
        strings, with None for null.
    """
    total = cursor.count(wanted.where)
    offset = min(wanted.offset, max(total - 1, 0) // wanted.limit * wanted.limit)
    found = cursor.page(wanted.order, offset, wanted.limit, where=wanted.where)
    return {
        "epoch": cursor.epoch,
        "columns": column_fields(cursor.schema),
        "rows": [*map(formats.like(found), found)],
        "offset": offset,
        "limit": wanted.limit,
        "total": total,
        "order": [list(each) for each in wanted.order],
        "where": wanted.where,
    }


def read_summary(cursor: Cursor, where: str) -> dict[str, Any]:
    """Summarises the columns of the rows that match `where`, with values formatted for display.

    Returns:
        a dict with the keys `epoch where columns`.
    """
    columns = [_summary(each) for each in cursor.profiles(where)]
    return {"epoch": cursor.epoch, "where": where, "columns": columns}


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
    """Describes a page: `late at epoch 7: rows 1 to 20 of 3,180 where delay > 60`."""
    offset, shown = page["offset"], len(page["rows"])
    some = f"rows {offset + 1:,} to {offset + shown:,} of {page['total']:,}"
    rows = some if shown < page["total"] else formats.count(shown, "row")
    where = f" where {page['where']}" if page["where"] else ""
    names = [column["name"] for column in page["columns"]]
    by = ordered_by(names, page["order"])
    stale = f"; {page['stale']}" if page.get("stale") else ""
    return formats.one_line(f"{name} at epoch {page['epoch']}: {rows}{where}{by}{stale}")


def page_table(name: str, page: dict[str, Any]) -> Table:
    """Returns a page as a static table."""
    return Table(
        caption=grid_title(name, {**page, "stale": ""}),
        columns=[column["name"] for column in page["columns"]],
        types=[column["type"] for column in page["columns"]],
        rows=page["rows"],
        marks=[page["stale"]] if page.get("stale") else [],
    )


def download_file(table: pa.Table, kind: str) -> tuple[bytes, str]:
    """Returns a table as a file, and its media type.

    Args:
        kind: csv or parquet. CSV has nested values as JSON, and binary values in hexadecimal.
    """
    out = io.BytesIO()
    if kind == "parquet":
        from pyarrow import parquet

        parquet.write_table(table, out)
    else:
        from pyarrow import csv

        csv.write_csv(_flat_columns(table), out)
    return out.getvalue(), _MEDIA_TYPES[kind]


def _flat_columns(table: pa.Table) -> pa.Table:
    """Converts nested and binary columns of a table to texts."""
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
