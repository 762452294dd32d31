"""The time slider: moves through the readable epochs of a stage, and shows rows and changes.

Design
    The kernel owns the state: `page` is the shown content. The front end requests one epoch at a
    time by message, and the next page is the reply. It does not write traits, because ipywidgets
    stores the state of a synchronisation (held notifications, locked traits) per widget, and not
    per thread: the first message of a widget is handled in the main thread, and later ones in the
    thread of a subshell.
    A page is a small dict of strings and numbers, with at most `limit` rows and `limit` changes.
    Whole collections are never sent to the browser.
    The line of row counts, or of the sums of a column, has at most 200 points. A past count never
    changes, so each is computed once, from the changes since the previous counted epoch. If there
    are too many epochs, only every second, fourth, ... one is counted. So the counts that are
    cached remain in use as further epochs follow.

Failure
    One lock guards all state that these threads, the cells and the commits of a stream change; they
    read immutable versions of the engine. An error becomes a line in the view.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

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
from nosync_widgets.throttle import ThreadBudget

if TYPE_CHECKING:
    import pyarrow as pa

    from nosync_nb import Collection, Session
    from nosync_nb.frontend import Cursor, EpochInfo, RowChange

_ROWS_MAX = 100
"""The maximum number of rows, and of changes, of a page."""

POINTS_MAX = 200

Cursors: TypeAlias = "dict[str | None, Cursor]"
"""The last cursor of each collection, by name."""


class ForkActions(Protocol):
    """The actions of the buttons of a slider; each returns a message."""

    def rewind(self, epoch: int) -> str:
        """Rewinds to an epoch."""

    def branch(self, name: str, epoch: int) -> str:
        """Forks a branch at an epoch."""

    def replay(self, stage: str) -> str:
        """Backfills a stage that was defined late."""


class TravelView(StageView):
    """Shows a stage at any readable epoch; at the latest one it follows new epochs.

    Args:
        at: the epoch shown first; None means the latest.
        limit: the number of rows, and of changes, that are shown of all stages together.
        beside: further stages, which the same slider moves.
    """

    _esm = script("course.js", "forks.js", "travel.js")
    _css = source("travel.css")

    steps: Any = traitlets.List(
        help="Readable epochs as [first, last, step], ascending; empty by default."
    ).tag(sync=True)
    course = traitlets.Dict(
        help="Rows or sums over epochs, columns that can be added up, marks, and how to compute the"
        " history; empty until requested."
    ).tag(sync=True)
    forks = traitlets.Bool(help="True if it can rewind and fork; False by default.").tag(sync=True)
    said = traitlets.Dict(
        help="The result of the last action: `text`, `bad`, `number`; empty by default."
    ).tag(sync=True)
    page = traitlets.Dict(
        help="Rows and changes of the epoch shown, as strings; `asked` is the requested epoch,"
        " `stale` says why there are no newer ones, `beside` has the same of the other stages."
    ).tag(sync=True)

    def __init__(
        self,
        session: Session,
        stage: str,
        *,
        at: int | None = None,
        limit: int = 100,
        beside: Sequence[str] = (),
        branch: str | None = None,
        forks: ForkActions | None = None,
        budget: ThreadBudget | None = None,
    ) -> None:
        self._incarnation = 0
        self._beside = tuple(beside)
        self._limit = max(min(limit, _ROWS_MAX) // (1 + len(beside)), 1)
        self._cursors: Cursors = {}
        self._stopped: list[str] = []
        self._course = RowCountSeries()
        self._course_lock = threading.Lock()  # for counting, so that no page waits for it
        self._drawn = False
        self._forks = forks
        budget = budget or ThreadBudget()
        super().__init__(session, stage, branch, budget, forks=forks is not None)
        self.travel(at)
        self._subscribe()

    @property
    def epoch(self) -> int:
        """The epoch shown."""
        shown: int = self.page["epoch"]
        return shown

    def travel(self, epoch: int | None = None) -> None:
        """Moves to an epoch, or to the latest one; programs and tests call it like the slider."""
        with self._lock:
            self.refresh()
            timeline = Timeline(self.steps)
            self._show_epoch(epoch if epoch is not None else timeline.latest or 0)

    def refresh(self, *, reload: bool = False) -> None:
        """Looks for new epochs; a slider at the latest epoch moves to the new one.

        If the epoch shown is no longer readable, the readable epoch before it is shown. After a
        rewind the rows are read again, because the number may now be that of another epoch.

        Args:
            reload: reads the rows again in any case, after a new version of the stage.
        """
        with self._lock:
            if self._closed:
                return
            incarnation = self._session.info.rewinds
            reload |= incarnation != self._incarnation
            self._incarnation = incarnation
            ends = bool(self.page) and self.epoch == Timeline(self.steps).latest
            try:
                timeline = Timeline(self._session[self.stage].history())
            except Exception:
                timeline = Timeline(self.steps)  # the stage was dropped: reading a page reports it
            self.steps = [list(step) for step in timeline.steps]
            goal = timeline.latest if ends else None
            goal = self.epoch if self.page and goal is None else goal
            marks = self._marks()
            stale, self._stopped = marks != self._stopped, marks
            if reload and self._drawn:
                self.draw(again=True)
            moved = reload or stale or (goal is not None and timeline.nearest(goal) != self.epoch)
            if self.page and goal is not None and moved:
                self._show_epoch(goal)

    def move(self, session: Session, branch: str | None) -> None:
        """Switches to another session of the same log.

        A slider at the latest epoch moves to the latest epoch of the new session.
        """
        with self._lock:
            if self._closed:
                return
            ends = self.epoch >= (Timeline(self.steps).latest or 0)
            self._switch(session, branch)
            self.steps = []
            self.refresh(reload=True)
            if ends:
                self.travel()

    def _forget_rows(self) -> None:
        self._cursors = {}

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        """Handles a message of the front end."""
        self.answer()
        if "epoch" in content:
            self._show_epoch(int(content["epoch"]))
        if "course" in content:
            self._drawn = True
            self._count(content["course"])
            self.draw()
        if self._forks is not None and content.keys() & {"branch", "rewind", "replay"}:
            self._fork(self._forks, content)

    def _fork(self, forks: ForkActions, content: Any) -> None:
        """Rewinds, forks or replays; without the lock, because listeners may need other locks."""
        try:
            if "replay" in content:
                text, bad = forks.replay(self.stage), False
            elif "rewind" in content:
                text, bad = forks.rewind(int(content["rewind"])), False
            elif name := str(content["branch"]).strip():
                text, bad = forks.branch(name, int(content["at"])), False
            else:
                text, bad = "enter a name for the branch first", True
        except Exception as error:
            text, bad = error_text(error), True
        self.refresh(reload="replay" in content)
        if self._drawn:
            self.draw()
        number = self.said.get("number", 0) + 1
        self.said = {"text": formats.visible(text), "bad": bad, "number": number}

    def _count(self, column: Any) -> None:
        """Sets the column whose sums the line shows; None means row counts."""
        with self._course_lock:
            self._course = RowCountSeries(
                column if isinstance(column, int) and column >= 0 else None
            )

    def draw(self, *, again: bool = False) -> None:
        """Updates the line of row counts or sums with the new epochs.

        Args:
            again: counts all epochs again, because a rewind may have changed them.
        """
        with self._course_lock:
            if again:
                self._course.forget()
            try:
                stage = self._session[self.stage]
                course = self._course.points(stage, Timeline(stage.history()))
                course["columns"] = columns_of(stage)
                course["marks"] = marks_of(self._session, self.stage)
                course["past"] = past_of(self._session, self.stage)
            except Exception:
                course = {}  # the page shows why the stage cannot be read
            if not self._closed:
                self.course = course

    def _show_epoch(self, asked: int) -> None:
        with self._lock:
            if self._closed:
                return
            timeline = Timeline(self.steps)
            nearest = timeline.nearest(asked)
            epoch = asked if nearest is None else nearest
            try:
                page = self._read(timeline, epoch)
            except Exception as error:
                page = {"error": error_text(error)}
            self._pages += 1
            own = {"name": formats.one_line(self._name), "epoch": epoch, "asked": asked}
            beside = [self._beside_page(stage, epoch) for stage in self._beside]
            self.page = {**page, **own, "beside": beside, "number": self._pages}

    def _beside_page(self, stage: str, epoch: int) -> dict[str, Any]:
        """Returns the page of a further stage; it contains the error if it cannot be read."""
        try:
            page = self._page(stage, Timeline(self._session[stage].history()), epoch)
        except Exception as error:
            page = {"epoch": epoch, "error": error_text(error)}
        return {**page, "name": formats.one_line(self._full_name(stage))}

    def _read(self, timeline: Timeline, epoch: int) -> dict[str, Any]:
        page = self._page(self.stage, timeline, epoch)
        info = epoch_info(self._session, epoch)
        label = info and info.label
        page["label"] = label and formats.one_line(label)
        page["time"] = formats.moment(info and info.committed_at)
        return page

    def _page(self, stage: str, timeline: Timeline, epoch: int) -> dict[str, Any]:
        collection = self._session[stage]
        stale = self._stale(stage)
        if stale and timeline.latest is None:
            return {**empty_page(collection, epoch), "stale": stale}
        if stale:
            epoch = timeline.nearest(epoch) or 0
        page = read_page(
            self._session, collection, timeline, epoch, limit=self._limit, cursors=self._cursors
        )
        return {**page, "stale": stale, "past": past_of(self._session, stage)}

    def _marks(self) -> list[str]:
        """Returns the stale marks of all stages; empty if a stage was dropped.

        Reading the page of the stage reports that it was dropped.
        """
        try:
            return [self._stale(stage) for stage in (self.stage, *self._beside)]
        except Exception:
            return []

    def _refresh_in_background(self) -> None:
        self.refresh()
        if self._drawn:
            self.draw()

    def static(self) -> tuple[str, str]:
        """Returns the epoch shown as text and as HTML, without widgets."""
        own = static_page(self._name, self.page, page_table)
        beside = self.page.get("beside", ())
        others = [static_page(page["name"], page, page_table) for page in beside]
        texts, htmls = zip(own, *others, strict=True)
        return "\n\n".join(texts), "".join(htmls)

    def title(self) -> str:
        """Returns one line: stage, epoch, label, and the numbers of inserted and removed rows."""
        title = self._name if "error" in self.page else page_title(self._name, self.page)
        if self._beside:
            title += f"; with {', '.join(self._beside)}"
        return formats.one_line(title)


def epoch_info(session: Session, epoch: int) -> EpochInfo | None:
    """Returns the label and time of an epoch; None if the epoch does not exist.

    Cost: O(log epochs).
    """
    epochs = session.epochs()
    place = bisect_left(epochs, epoch, key=lambda each: each.number)
    return epochs[place] if place < len(epochs) and epochs[place].number == epoch else None


def read_page(
    session: Session,
    collection: Collection,
    timeline: Timeline,
    epoch: int,
    *,
    limit: int,
    cursors: Cursors,
) -> dict[str, Any]:
    """Reads the page of a collection at `epoch`.

    Args:
        cursors: the cursors of earlier pages, by name; the one of this page is added.

    Returns:
        a dict with the keys
        `epoch before columns rows more ordered fresh by changes changes_more added removed`. A row
        is a list of strings, with None for null. `ordered` describes the order of the rows, if the
        collection has its own order. `fresh` has a sign for each row: + if it was inserted since
        the previous readable epoch, → if it was changed, "" otherwise. `changes` has inserted and
        removed rows and, if there is a key `by`, rows with changed cells.

    Cost: one pass over the rows the first time, then over the changes since the previous page; and
    over the changes of one epoch, vectorised.
    """
    before = timeline.before(epoch)
    schema = collection.schema
    cursor = session.cursor(collection, epoch, previous=cursors.get(collection.name))
    found = cursor.page(cursor.order, 0, limit + 1)
    cursors[collection.name] = cursor
    changed = cursor.changes(before, limit)
    show = formats.like(found)
    rows = [*map(show, found)]
    signs = {tuple(show(row)): "+" for row in changed.arrived}
    pairs = (each.b for each in changed.first if each.a is not None and each.b is not None)
    signs |= {tuple(show(row)): "→" for row in pairs}
    return {
        "epoch": epoch,
        "before": before,
        "columns": column_fields(collection.schema),
        "rows": rows[:limit],
        "more": len(rows) > limit,
        "ordered": formats.one_line(ordered_by(schema.names, cursor.order)),
        "fresh": [signs.get(tuple(row), "") for row in rows[:limit]],
        "by": [formats.one_line(name) for name in changed.by],
        "changes": [_change(each, show) for each in changed.first],
        "changes_more": changed.more,
        "added": changed.came,
        "removed": changed.went,
    }


def empty_page(collection: Collection, epoch: int) -> dict[str, Any]:
    """Returns the page of a stale stage that has no rows left; see `read_page`."""
    return {
        "epoch": epoch,
        "before": None,
        "columns": column_fields(collection.schema),
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


def _change(change: RowChange, show: Callable[[Any], list[str | None]]) -> list[Any]:
    """Returns a change as its count and the cells of the row.

    The count of a removed row is negative. The count of a changed row is 0, and the number of its
    duplicates is a third item. A changed cell is a pair of the old and the new value.
    """
    if change.a is None:
        return [change.copies, show(change.b)]
    if change.b is None:
        return [-change.copies, show(change.a)]
    pairs = zip(change.a, change.b, show(change.a), show(change.b), strict=True)
    # Two different values may look alike, because long ones are cut: a pair shows the change.
    cells = [
        b if one == other or (one != one and other != other) else [a, b]
        for one, other, a, b in pairs
    ]
    return [0, cells, change.copies]


def page_table(name: str, page: dict[str, Any]) -> Table:
    """Returns a page as a static table with signs for new and changed rows, and notes below."""
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
    """Describes an epoch and its changes: `slow at epoch 3 (January): +2 −1`."""
    label = f" ({page['label']})" if page.get("label") else ""
    changed = f"+{page['added']:,} −{page['removed']:,}"
    against = "" if page["before"] is None else f" since epoch {page['before']}"
    return f"{name} at epoch {page['epoch']}{label}: {changed}{against}"


class Timeline:
    """The readable epochs of a collection, ascending, as positions 0, 1, 2, ...

    Downsampled history leaves gaps between readable epochs, but the positions of a slider must have
    none. Epochs are stored as steps `(first, last, step)`, so that a hundred thousand epochs take
    only a few numbers.
    """

    def __init__(self, ranges: Iterable[Any]) -> None:
        self.steps: tuple[tuple[int, int, int], ...] = tuple(_compress(ranges))
        sizes = [(last - first) // step + 1 for first, last, step in self.steps]
        self._starts = [0, *accumulate(sizes)]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < len(self):
            raise IndexError(position)
        index = bisect_right(self._starts, position) - 1
        first, _, step = self.steps[index]
        return first + (position - self._starts[index]) * step

    def __iter__(self) -> Iterator[int]:
        return (self[position] for position in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timeline) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash(self.steps)

    @property
    def latest(self) -> int | None:
        """The newest readable epoch."""
        return self[len(self) - 1] if len(self) else None

    def before(self, epoch: int) -> int | None:
        """Returns the readable epoch before `epoch`, or None at the beginning."""
        position = self._floor(epoch - 1)
        return None if position is None else self[position]

    def nearest(self, epoch: int) -> int | None:
        """Returns the last readable epoch up to `epoch`, or else the first one; None if empty."""
        if not len(self):
            return None
        position = self._floor(epoch)
        return self[position or 0]

    def _floor(self, epoch: int) -> int | None:
        index = bisect_right([first for first, _, _ in self.steps], epoch) - 1
        if index < 0:
            return None
        first, last, step = self.steps[index]
        return self._starts[index] + (min(epoch, last) - first) // step


def _compress(ranges: Iterable[Any]) -> Iterator[tuple[int, int, int]]:
    """Converts ranges into steps; single epochs at equal distances become one step."""
    run: list[int] = []
    for first, last, step in map(_step, ranges):
        if last < first:
            continue
        if first < last:
            yield from _flush(run)
            run = []
            yield first, last, step
        elif len(run) < 2 or first - run[-1] == run[-1] - run[-2]:
            run.append(first)
        else:
            yield from _flush(run)
            run = [first]
    yield from _flush(run)


def _flush(run: list[int]) -> Iterator[tuple[int, int, int]]:
    if run:
        yield run[0], run[-1], (run[1] - run[0]) if len(run) > 1 else 1


def _step(item: Any) -> tuple[int, int, int]:
    """Reads a Python range, an inclusive pair, or a step of another timeline."""
    if isinstance(item, range):
        return (item[0], item[-1], item.step) if len(item) else (0, -1, 1)
    first, last, *distance = item
    return int(first), int(last), int(distance[0]) if distance else 1


class RowCountSeries:
    """The row counts of one collection over epochs, or the sums of a column, cached.

    Threads: one at a time.

    Args:
        column: the position of the numeric column whose values are added up, except null and
            infinite ones; None means that rows are counted.
    """

    def __init__(self, column: int | None = None) -> None:
        self._column = column
        self._figures: dict[int, int | float] = {}
        self._epochs: list[int] = []

    def forget(self) -> None:
        """Clears the cache, because epochs may have changed."""
        self._figures, self._epochs = {}, []

    def points(self, collection: Collection, timeline: Timeline) -> dict[str, Any]:
        """Counts rows at epochs of a timeline.

        Returns:
            a dict: `points` has at most 200 pairs of epoch and count, ascending, including the
            latest epoch; `every` is the distance between counted epochs, in readable epochs; `of`
            names the quantity.

        Cost: that of `changes` between epochs that are not cached; for the first epoch, that of all
        changes before it.
        """
        every = 1
        while (len(timeline) + every - 1) // every >= POINTS_MAX:
            every *= 2
        epochs = [timeline[position] for position in range(0, len(timeline), every)]
        if timeline.latest is not None and epochs[-1] != timeline.latest:
            epochs.append(timeline.latest)
        points = [[epoch, self._count(collection, epoch)] for epoch in epochs]
        of = "rows"
        if self._column is not None:
            of = f"sum of {formats.one_line(collection.schema.names[self._column])}"
        return {"points": points, "every": every, "of": of}

    def _count(self, collection: Collection, epoch: int) -> int | float:
        if epoch not in self._figures:
            place = bisect_left(self._epochs, epoch)
            before = self._epochs[place - 1] if place else None
            changed = collection.changes(after=before, upto=epoch)
            previous = 0 if before is None else self._figures[before]
            self._figures[epoch] = previous + self._sum_of(changed)
            insort(self._epochs, epoch)
        return self._figures[epoch]

    def _sum_of(self, changed: pa.Table) -> int | float:
        """Returns the amount that changes add to the count or sum."""
        diff = changed.column(-1)
        if self._column is None:
            return int(diff.to_numpy().sum())
        values = changed.column(self._column)
        valid = values.is_valid()
        values, diff = values.filter(valid), diff.filter(valid).to_numpy()
        if str(values.type).startswith("int"):  # the sum of a large load may exceed 64 bits
            pairs = zip(values.to_pylist(), diff.tolist(), strict=True)
            total: int = sum(value * copies for value, copies in pairs)
            return total
        numbers = values.cast("float64").to_numpy()
        finite = abs(numbers) < float("inf")
        return float((numbers[finite] * diff[finite]).sum())


def columns_of(collection: Collection) -> list[list[Any]]:
    """Returns the columns that can be added up, as pairs of position and name."""
    schema = collection.schema
    return [
        [place, formats.one_line(name)]
        for place, (name, kind) in enumerate(zip(schema.names, schema.types, strict=True))
        if formats.is_numeric(kind)
    ]


def marks_of(session: Session, stage: str) -> list[list[Any]]:
    """Returns the epochs where branches forked and versions of a stage ended, with labels.

    Cost: lists the branches, and reads a file of each.
    """
    marks = [
        [each.at, f"branch {formats.one_line(each.name)} forked"]
        for each in session.branches.values()
        if not each.damaged and not each.replicas
    ]
    marks += [
        [last, f"version {version} of {formats.one_line(stage)} ended"]
        for version, last in session.info.earlier_versions(stage).items()
    ]
    return sorted(marks)


def past_of(session: Session, stage: str) -> str:
    """Returns a note on how to compute the history before a late definition; else empty."""
    missing = session.info.missing_past(stage)
    if not missing:
        return ""
    return (
        f"{formats.one_line(stage)} begins at epoch {missing.stop}, when it was defined:"
        f" %%dd --replay {missing.start} as the first line of its cell computes the epochs before"
    )
