"""Random plans: planned and unplanned definitions have the same rows at every epoch.

The plan changes with an opening, like with another release: the state of nodes of one plan is
continued or rebuilt by the other.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import ExitStack, suppress
from itertools import chain
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from internals import snapshot_of
from planner_switches import granted, planless, weighed
from random_plans import INPUTS, Plan, chains, changes, described, plans, raising_plans
from soak import tried

import nosync_nb
from nosync_nb import Session
from nosync_nb.dataflow.snapshot import collection_state
from nosync_nb.errors import NosyncError, TimeError
from nosync_nb.rows import to_pylist

pytestmark = [
    pytest.mark.usefixtures("no_disk"),
    pytest.mark.filterwarnings("ignore:.*they will be counted twice"),  # that is intended
]

EXAMPLES = tried(6 * settings.default.max_examples, 10_000)


class Side:
    """A session with or without planning."""

    def __init__(self, path: str, *, plans: bool) -> None:
        self.path, self.plans = path, plans
        self.session = self.opened()

    def opened(self) -> Session:
        with planless(off=not self.plans):
            return nosync_nb.open(self.path)

    def again(self, *, plans: bool) -> None:
        """Reopens the session, with or without planning."""
        self.session.close()
        self.plans = plans
        self.session = self.opened()

    def define(self, named: dict[str, Plan]) -> None:
        of: dict[str, Any] = {name: self.session.input(name, ddl) for name, ddl in INPUTS.items()}
        with planless(off=not self.plans):
            self.session.define({name: described(plan, of) for name, plan in named.items()})

    def take(self, change: list[Any]) -> str:
        """Commits an epoch; returns the kind of error, after which it is discarded."""
        for name, row, diff in change:
            into = self.session.inputs[name]
            for _ in range(abs(diff)):
                (into.insert if diff > 0 else into.remove)([row])
        try:
            with planless(off=not self.plans):
                self.session.commit()
        except NosyncError as error:
            self.session.discard()
            return type(error).__name__
        return ""

    def rows(self) -> dict[str, list[str]]:
        return self.at(self.session.now)

    def at(self, epoch: int) -> dict[str, list[str]]:
        """The rows of the stages that existed at an epoch, with their counts."""
        seen, held = snapshot_of(self.session), {}
        for name, stage in self.session.stages.items():
            with suppress(TimeError):
                batch = collection_state(seen, name, epoch)
                columns = [
                    to_pylist(c, t) for c, t in zip(batch.columns, stage.schema.types, strict=True)
                ]
                held[name] = sorted(map(repr, zip(*columns, batch.diff.tolist(), strict=True)))
        return held

    def close(self) -> None:
        self.session.close()


def compare_sessions(
    named: dict[str, Plan], history: list[Any], edit: Plan, *, plans: bool
) -> None:
    """Runs a history in two sessions, one of them without planning, and compares them."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        one, other = Side(f"{folder}/one", plans=plans), Side(f"{folder}/other", plans=False)
        ends.callback(one.close)
        ends.callback(other.close)
        for side in (one, other):
            side.define(named)
        for change, event in history:
            assert other.take(change) == one.take(change)
            assert other.rows() == one.rows()
            if event in ("open", "switch"):
                one.again(plans=one.plans == (event == "open"))
            elif event in ("edit", "drop"):
                for side in (one, other):
                    if event == "drop":
                        side.session.drop("s0")
                    side.define({**named, "s0": edit})
            assert other.rows() == one.rows()
        for epoch in range(one.session.now + 1):
            assert other.at(epoch) == one.at(epoch)


A, B = ("a", (None,) * 6, 1), ("b", (None,) * 5, 1)
"""A unique row of each input."""

EVENTS = st.sampled_from(["", "", "open", "switch", "edit", "drop"])


@settings(max_examples=EXAMPLES)
@given(
    st.lists(plans(), min_size=1, max_size=2),
    st.lists(st.tuples(changes, EVENTS), max_size=4),
    plans(),
    st.booleans(),
)
@example(  # the plan of the opening needs one more arrangement of an existing part
    [
        (("filter", 0, 0),),
        (("filter", 1, 0), ("join", 5, 4), ("join", 6, 0), ("filter", 1, 0)),
    ],
    [([A], "open"), ([A, B], "")],
    (("filter", 0, 0),),
    False,
)
@example(  # the plan of the first write differs from the log, and that of the commit does not
    [(("outer", 0, 0), ("count", 1, 0), ("filter", 1, 2)), (("outer", 0, 0), ("count", 1, 0))],
    [([A], "open"), ([A], "")],
    (("filter", 0, 0),),
    False,
)
def test_planned_rows_equal_written_rows_at_every_epoch(
    made: list[Plan], history: list[Any], edit: Plan, planned: bool
) -> None:
    compare_sessions({f"s{i}": plan for i, plan in enumerate(made)}, history, edit, plans=planned)


@settings(max_examples=EXAMPLES)
@given(
    st.lists(chains(), min_size=1, max_size=2),
    st.lists(st.tuples(changes, EVENTS), min_size=1, max_size=4),
    chains(),
    st.sampled_from(["", "granted", "weighed"]),
)
@example(  # the same with an input, and the edit adds numbers
    [(("join", 1, 0), ("join", 1, 0), ("filter", 0, 0))],
    [([A] * 2, "switch"), ([A] * 2, "edit"), ([A], "open"), ([A, B], "")],
    (("join", 1, 0), ("join", 1, 1), ("join", 2, 0), ("select", 9, 0)),
    "",
)
@example(  # a plan by current sizes is continued after an opening
    [(("filter", 0, 0),)],
    [([A] * 2, ""), ([A, B], "edit"), ([A], "open"), ([B], "switch"), ([A, B], "drop"), ([A], "")],
    (("join", 1, 0), ("join", 1, 1), ("join", 2, 0), ("select", 9, 0)),
    "weighed",
)
def test_multiway_joins_equal_written_joins_at_every_epoch(
    made: list[Plan], history: list[Any], edit: Plan, kept: str
) -> None:
    with granted(off=kept != "granted"), weighed(off=kept != "weighed"):
        compare_sessions({f"s{i}": plan for i, plan in enumerate(made)}, history, edit, plans=True)


def may_cancel(plan: Plan, changes: list[Any]) -> bool:
    """True if some counts may be negative after some changes."""
    counts: Counter[Any] = Counter()
    for name, row, diff in chain.from_iterable(changes):
        counts[name, row] += diff
    if min(counts.values()) < 0:
        return True
    return any(word in ("negate", "except", "some of a difference") for word, _, _ in plan)


@settings(max_examples=EXAMPLES)
@given(raising_plans(), st.lists(st.tuples(changes, st.just("")), min_size=1, max_size=3))
@example(  # two rows differ in an unread column, and one has the count -1
    (("join", 1, 1), ("select", 1, 10), ("divide", 5, 0), ("filter", 1, 0)),
    [([("b", (None, None, 0, None, None), 1), ("b", (0, 0, 0, None, None), -1)], "")],
)
def test_plan_raises_where_written_definition_raises(plan: Plan, history: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        one, other = Side(f"{folder}/one", plans=True), Side(f"{folder}/other", plans=False)
        ends.callback(one.close)
        ends.callback(other.close)
        for side in (one, other):
            side.define({"s0": plan})
        taken: list[Any] = []
        for change, _ in history:
            written, planned = other.take(change), one.take(change)
            if written and not planned and may_cancel(plan, [*taken, change]):
                return  # the failing row is in no collection that is read
            assert written == planned
            taken += [] if written else [change]
            assert other.rows() == one.rows()
