"""The course of a collection: how many rows it has over its epochs, or what a column adds up to.

Figures of the past stay, so each is made once, of what changed since the one before. Of many epochs
every second, fourth, ... is counted: always the same ones, however many follow.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any

from nosync_widgets import formats
from nosync_widgets.data.timeline import Timeline

if TYPE_CHECKING:
    import pyarrow as pa

    from nosync_nb import Collection, Session

POINTS_MAX = 200


class RowCountSeries:
    """The figures that are known of one collection. One thread at a time.

    Args:
        column: what is added up: the position of a numeric column, null and what is not finite left
            out; None: the rows are counted.
    """

    def __init__(self, column: int | None = None) -> None:
        self._column = column
        self._figures: dict[int, int | float] = {}
        self._epochs: list[int] = []

    def forget(self) -> None:
        """Epochs may be other ones by now: counts all of them again."""
        self._figures, self._epochs = {}, []

    def points(self, collection: Collection, timeline: Timeline) -> dict[str, Any]:
        """Counts rows at epochs of a timeline.

        Returns:
            `points`, at most 200 pairs of epoch and figure, ascending, the latest among them;
            `every`: that of so many readable epochs one is counted; `of`: what is counted.

        Cost: that of `changes` between those that are new, of the first one from the beginning.
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
            known = 0 if before is None else self._figures[before]
            self._figures[epoch] = known + self._change(changed)
            insort(self._epochs, epoch)
        return self._figures[epoch]

    def _change(self, changed: pa.Table) -> int | float:
        """What changes add to the figure."""
        diff = changed.column(-1)
        if self._column is None:
            return int(diff.to_numpy().sum())
        values = changed.column(self._column)
        there = values.is_valid()
        values, diff = values.filter(there), diff.filter(there).to_numpy()
        if str(values.type).startswith("int"):  # of a large load the sum may be beyond 64 bits
            pairs = zip(values.to_pylist(), diff.tolist(), strict=True)
            total: int = sum(value * copies for value, copies in pairs)
            return total
        numbers = values.cast("float64").to_numpy()
        finite = abs(numbers) < float("inf")
        return float((numbers[finite] * diff[finite]).sum())


def columns_of(collection: Collection) -> list[list[Any]]:
    """The columns that can be added up, as pairs of position and name."""
    schema = collection.schema
    return [
        [place, formats.one_line(name)]
        for place, (name, kind) in enumerate(zip(schema.names, schema.types, strict=True))
        if formats.is_numeric(kind)
    ]


def marks_of(session: Session, stage: str) -> list[list[Any]]:
    """Where branches forked and versions of a stage ended, as pairs of epoch and text, ascending.

    Cost: that of listing the branches, a file each.
    """
    from nosync_nb.session.session import owners_of

    seen = owners_of(session).publisher.snapshot
    marks = [
        [each.at, f"branch {formats.one_line(each.name)} forked"]
        for each in session.branches.values()
        if not each.damaged and not each.replicas
    ]
    marks += [
        [seen.last(each), f"version {each.version} of {formats.one_line(stage)} ended"]
        for name, each in seen.catalog.items()
        if each.frozen and name.rpartition("@")[0] == stage
    ]
    return sorted(marks)


def past_of(session: Session, stage: str) -> str:
    """What to type if a stage was defined late and has no past; empty: nothing is missing."""
    from nosync_nb.session.planning.replay import first_unread_epoch
    from nosync_nb.session.session import owners_of

    seen = owners_of(session).publisher.snapshot
    found = seen.catalog.get(stage)
    first = None if found is None else first_unread_epoch(seen, stage)
    if found is None or first is None:
        return ""
    return (
        f"{formats.one_line(stage)} begins at epoch {found.begin}, when it was defined:"
        f" %%dd --replay {first} as the first line of its cell computes what it was before"
    )
