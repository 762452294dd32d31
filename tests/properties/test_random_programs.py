"""Random programs: at every epoch equal to evaluation from scratch, loops included.

Between epochs the log may be reopened, or a copy of it be taken over as after a kill, so that the
epoch after a recovery is compared, too.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import nullcontext
from random import Random
from typing import Any
from unittest import mock

import pytest
import random_programs
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import checkpoint_now, merge_trace, spark_unseen, traces_of
from models import model
from models.model import Bag, bag
from strategies import Epoch, histories

import nosync_nb
from nosync_nb import Collection, Session
from nosync_nb.session.maintenance import maintenance
from nosync_nb.trace import Merge, Trace

pytestmark = pytest.mark.usefixtures("no_disk")


def bag_of(collection: Collection, at: int | None = None) -> Bag:
    return bag(map(model.typed, collection.rows(at=at)))


def typed_bag(wanted: Bag) -> Bag:
    return bag(map(model.typed, model.rows(wanted)))


def reopened(session: Session, folder: str, how: str, number: int) -> Session:
    """The session after a clean end, or after a kill, which leaves a copy of the folder."""
    if how == "close":
        path = session.path
        session.close()
        return nosync_nb.open(path)
    copy = f"{folder}/copy-{number}"
    shutil.copytree(session.path, copy)
    session.close()
    return nosync_nb.open(copy, takeover=True)


def compact(session: Session, chance: Random) -> None:
    """Merges some neighbouring layers of every trace."""

    def some(trace: Trace) -> Merge | None:
        count = len(trace.layers)
        start, stop = sorted(chance.sample(range(count + 1), 2)) if count > 1 else (0, 0)
        return Merge(start, stop) if stop - start > 1 else None

    with mock.patch.object(maintenance, "plan", some):
        for number in traces_of(session):
            merge_trace(session, number)


@pytest.mark.spark
@settings(max_examples=max(5, settings.default.max_examples // 10))
@given(random_programs.programs(["a", "b"], depth=4), st.integers(0, 2**32))
def test_programs_have_equal_rows_on_executors_and_in_process(
    spark: Any, program: random_programs.Program, seed: int
) -> None:
    found = []
    for on in ("local", "spark"):
        chance = Random(seed)
        with (
            nullcontext() if on == "spark" else spark_unseen(),
            tempfile.TemporaryDirectory() as folder,
            nosync_nb.open(f"{folder}/log", spark=spark if on == "spark" else None) as session,
        ):
            inputs = {name: session.input(name, random_programs.COLUMNS) for name in ("a", "b")}
            session.define({"result": random_programs.build(program, inputs)}, on=on)
            rows = []
            bag_of: list[tuple[str, Any]] = []
            for _ in range(2):
                for _ in range(6):
                    bag_of.append((chance.choice("ab"), (chance.randrange(4), chance.randrange(4))))
                    inputs[bag_of[-1][0]].insert([bag_of[-1][1]])
                for _ in range(2 if len(bag_of) > 6 else 0):
                    name, row = bag_of.pop(chance.randrange(len(bag_of)))
                    inputs[name].remove([row])
                session.commit()
                rows.append(session["result"].rows())
            found.append(rows)
    assert repr(found[0]) == repr(found[1])
    bags = [bag(row for name, row in bag_of if name == each) for each in ("a", "b")]
    wanted = random_programs.run(program, dict(zip("ab", bags, strict=True)))
    assert bag(map(model.typed, found[0][-1])) == typed_bag(wanted)


@settings(max_examples=4 * settings.default.max_examples)
@pytest.mark.filterwarnings("ignore:.*before the restart")
@given(st.data(), random_programs.programs(["a", "b"]))
def test_programs_equal_evaluation_from_scratch(
    data: st.DataObject, program: random_programs.Program
) -> None:
    kinds = {"a": ("int", "int"), "b": ("int", "int")}
    pools = dict.fromkeys(kinds, random_programs.ROWS)
    history = data.draw(histories(kinds, pools=pools, pool_size=10), label="history")
    defined_at = data.draw(st.integers(0, len(history)), label="defined at")
    with tempfile.TemporaryDirectory() as folder:
        open_ = [nosync_nb.open(f"{folder}/log")]
        try:
            follow(data, folder, open_, program, history, defined_at)
        finally:
            open_[-1].close()


def follow(
    data: st.DataObject,
    folder: str,
    open_: list[Session],
    program: random_programs.Program,
    history: list[Epoch],
    defined_at: int,
) -> None:
    """Runs a history and compares; the last session of `open_` is open."""
    names = ("a", "b")
    for name in names:
        open_[-1].input(name, random_programs.COLUMNS)
    wanted: dict[int, Bag] = {}
    for number in range(len(history) + 1):
        session = open_[-1]
        after = history[number - 1].after if number else {name: bag() for name in names}
        if number:
            for name, calls in history[number - 1].calls.items():
                for change in calls:
                    method = "insert" if change.insert else "remove"
                    getattr(session[name], method)(change.rows)
            session.commit()
        wanted[number] = random_programs.run(program, after)
        if number == defined_at:
            session.stage("result", random_programs.build(program, session.inputs))
        if number >= defined_at:
            assert bag_of(session["result"]) == typed_bag(wanted[number])
        ways = ["", "compact", "checkpoint", "close", "kill"]
        how = data.draw(st.sampled_from(ways), label="then")
        if how == "compact":
            compact(session, data.draw(st.randoms(use_true_random=False)))
        elif how == "checkpoint":
            checkpoint_now(session)
        elif how:
            open_.append(reopened(session, folder, how, number))
            assert open_[-1].recovery.recomputed == 0
    for number in range(defined_at, len(history) + 1):
        assert bag_of(open_[-1]["result"], number) == typed_bag(wanted[number])
