"""The course of a collection: how many rows it has over its epochs, for a line above a slider.

Counts of the past stay, so each is made once, of what changed since the one before. Of many epochs
every second, fourth, ... is counted: always the same ones, however many follow.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any

from nosync_widgets import formats
from nosync_widgets.timeline import Timeline

if TYPE_CHECKING:
    from nosync_nb import Collection, Session

POINTS_MAX = 200


class Course:
    """The counts that are known of one collection. One thread at a time."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._epochs: list[int] = []

    def forget(self) -> None:
        """Epochs may be other ones by now: counts all of them again."""
        self._counts, self._epochs = {}, []

    def points(self, collection: Collection, timeline: Timeline) -> dict[str, Any]:
        """Counts rows at epochs of a timeline.

        Returns:
            `points`, at most 200 pairs of epoch and rows, ascending, the latest among them;
            `every`: that of so many readable epochs one is counted.

        Cost: that of `changes` between those that are new, of the first one from the beginning.
        """
        every = 1
        while (len(timeline) + every - 1) // every >= POINTS_MAX:
            every *= 2
        epochs = [timeline[position] for position in range(0, len(timeline), every)]
        if timeline.latest is not None and epochs[-1] != timeline.latest:
            epochs.append(timeline.latest)
        points = [[epoch, self._count(collection, epoch)] for epoch in epochs]
        return {"points": points, "every": every}

    def _count(self, collection: Collection, epoch: int) -> int:
        if epoch not in self._counts:
            place = bisect_left(self._epochs, epoch)
            before = self._epochs[place - 1] if place else None
            changed = collection.changes(after=before, upto=epoch)
            known = 0 if before is None else self._counts[before]
            self._counts[epoch] = known + int(changed.column(-1).to_numpy().sum())
            insort(self._epochs, epoch)
        return self._counts[epoch]


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
    from nosync_nb.session.session import owners_of

    found = owners_of(session).publisher.snapshot.catalog.get(stage)
    if found is None or found.is_input or not found.begin:
        return ""
    return (
        f"{formats.one_line(stage)} begins at epoch {found.begin}, when it was defined:"
        " %%dd --replay 0 as the first line of its cell computes what it was before"
    )
