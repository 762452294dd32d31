"""Loops with new cost estimates, and the rows of all traces."""

from __future__ import annotations

from typing import Any

from internals import services_of, traces_of

from nosync_nb import Collection, Session
from nosync_nb.collections.collection import iterate_together
from nosync_nb.collections.session_protocol import session_of


def both_ways(edges: Collection) -> Collection:
    """Nodes reached from 0 in even and in odd numbers of steps: two variables."""

    def step(side: Collection) -> Collection:
        return side.join(edges, on={"node": "src"}).select("dst AS node")

    start = edges.filter("src = 0").select("src AS node").distinct()
    sides = iterate_together(
        session_of(edges),
        lambda even, odd: (step(odd).concat(start).distinct(), step(even).distinct()),
        None,
        {"even": start, "odd": start.filter("false")},
    )
    return sides["even"].concat(sides["odd"], sides["odd"])


def traces(session: Session) -> dict[int, Any]:
    services_of(session).writer_lock.run_pre_write_tasks()
    sums = {}
    for number, trace in traces_of(session).items():
        batch = trace.consolidated()
        if len(batch):
            sums[number] = (batch.layout, batch.khash.tolist(), batch.rhash.tolist(), *batch.diff)
    return sums
