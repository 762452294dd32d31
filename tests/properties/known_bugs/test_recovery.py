"""Known bugs of recovery.

A kill within a test is an opening with `takeover`: the previous session is not closed, and the next
one has only its written files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from checks.checking import EDGES, change, closure, count, merge_all
from internals import checkpoint_now, log_of, parts_folder, snapshot_of

from nosync_nb import Collection, DurabilityError, Session, rows
from nosync_nb.session.maintenance import maintenance
from nosync_nb.session.reads import reader as reader_module
from nosync_nb.store import store
from nosync_nb.trace import compaction

Open = Callable[..., Session]


pytestmark = pytest.mark.usefixtures("no_disk", "own_key")


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of more than four rows are written to files; only the tests merge them."""
    monkeypatch.setattr(store, "SPILL_ROWS", 4)
    monkeypatch.setattr(maintenance, "SPILL_ROWS", 4)
    monkeypatch.setattr(compaction, "YOUNG_ROWS", 2)


def reachable(roots: Collection, edges: Collection) -> Collection:
    return roots.iterate(
        lambda r: r.join(edges, on={"node": "src"}).select("dst as node").concat(roots).distinct()
    )


def define(session: Session) -> None:
    """Loops of every kind, and stages whose operators have state beyond their output."""
    edges, roots = session.input("edges", EDGES), session.input("roots", "node int")
    sides = session.iterate(
        lambda even, odd: (
            odd.join(edges, on={"node": "src"}).select("dst as node").concat(roots).distinct(),
            even.join(edges, on={"node": "src"}).select("dst as node").distinct(),
        ),
        even=roots,
        odd=roots.filter("false"),
    )
    session.define(
        {
            "reached": reachable(roots, edges),
            "even": sides["even"],
            "rounds": edges.iterate(lambda v: v.select("dst as src", "src as dst"), rounds=3),
            "nested": edges.iterate(
                lambda v: closure(v).filter("src < dst").concat(edges).distinct()
            ),
            "far": reachable(roots, edges).select("node as src").join(edges, on="src"),
            "many": edges.group_by("dst").count().filter("count > 2"),
            "lonely": edges.join(roots, on={"src": "node"}, how="anti").filter("src > dst"),
            "least": edges.group_by("dst").agg(src="min(src)", n="count(distinct src)"),
            "first": edges.group_by("dst").top(1, by="src", offset=1),
            "listed": edges.group_by("dst").reduce(
                lambda key, rows: [(str([row.src for row in rows]),)], "all string"
            ),
        }
    )


EPOCHS: list[dict[str, Mapping[Any, int]]] = [
    {"roots": {(0,): 1}, "edges": {(0, 1): 1, (1, 2): 1, (2, 3): 1, (3, 1): 1, (4, 5): 2}},
    {"edges": {(3, 4): 1, (5, 2): 1, (1, 2): 1}},
    {"edges": {(0, 1): -1, (0, 3): 1}},
    {"edges": {(1, 2): -2, (2, 5): 1}, "roots": {(4,): 1}},
    {"edges": {(3, 1): -1, (4, 5): -1, (5, 1): 1}},
    {"roots": {(0,): -1}, "edges": {(0, 5): 1}},
    {"edges": {(2, 3): -1, (4, 5): -1, (5, 4): 1}},
]


def commit(session: Session, epoch: int) -> None:
    """Commits one of the epochs, counted from 1."""
    for name, diffs in EPOCHS[epoch - 1].items():
        for row, n in diffs.items():
            source = session.inputs[name]
            (source.insert if n > 0 else source.remove)([row] * abs(n))
    assert session.commit() == epoch


def everything(session: Session) -> dict[str, dict[Any, int]]:
    return {name: count(stage) for name, stage in session.stages.items()}


@pytest.fixture
def undisturbed(opened: Open) -> list[dict[str, dict[Any, int]]]:
    """The stages after each epoch without restarts."""
    session = opened("undisturbed")
    define(session)
    found = [everything(session)]
    for epoch in range(1, len(EPOCHS) + 1):
        commit(session, epoch)
        found.append(everything(session))
    assert all(any(each[name] for each in found) for name in found[0])
    return found


# -- restarts --------------------------------------------------------------------------------------


def test_checkpoint_contains_state_of_loops(opened: Open, undisturbed: Any) -> None:
    session = opened()
    define(session)
    for epoch in range(1, len(EPOCHS) + 1):
        commit(session, epoch)
        checkpoint_now(session)
        session = opened(takeover=True)
        assert session.recovery.recomputed == 0
        assert everything(session) == undisturbed[epoch]


@pytest.mark.parametrize("checkpoint", [None, "before", "after"])
@pytest.mark.parametrize("quick", [1, 2])
def test_second_kill_after_restart_keeps_next_epoch_right(
    opened: Open, undisturbed: Any, checkpoint: str | None, quick: int
) -> None:
    session = opened()
    define(session)
    for epoch in range(1, len(EPOCHS) + 1):
        if checkpoint == "before" and epoch % 2:
            checkpoint_now(session)
        commit(session, epoch)
        assert everything(session) == undisturbed[epoch]
        for _ in range(quick):
            session = opened(takeover=True)
            assert session.recovery.recomputed == 0
            if checkpoint == "after":
                checkpoint_now(session)
        session = opened(takeover=True)
        if epoch % 3 == 0:
            assert everything(session) == undisturbed[epoch]


def test_checkpoint_contains_state_without_output(opened: Open) -> None:
    """Negative counts, a pair without its partner, and an input without a reader."""
    session = opened()
    a, b = session.input("a", "x int"), session.input("b", "x int")
    session.input("unread", "x int")
    session.stage("once", a.distinct())
    session.stage("common", a.join(b, on="x"))
    session.stage("many", a.group_by("x").count().filter("count > 2"))
    session.stage("closed", a.iterate(lambda v: v.concat(b).distinct()).filter("x < 0"))
    change(session, a, {(1,): -1, (2,): 2})
    session["unread"].insert([(7,)])  # type: ignore[attr-defined]
    change(session, b, {(-3,): 1, (5,): -1})
    for _ in range(2):
        checkpoint_now(session)
        session = opened(takeover=True)
        assert session.recovery.recomputed == 0
        assert session["common"].rows() == session["many"].rows() == []
        assert count(session["once"]) == {(2,): 1}
    a, b = session.inputs["a"], session.inputs["b"]
    change(session, a, {(1,): 1, (2,): 1, (5,): 1})
    assert count(session["once"]) == {(2,): 1, (5,): 1}
    assert count(session["many"]) == {(2, 3): 1}
    change(session, b, {(-3,): -1, (2,): 1, (5,): 1})
    assert count(session["closed"]) == {}
    assert count(session["common"]) == {(2,): 3}
    assert count(session.stage("read", session["unread"].distinct())) == {(7,): 1}


# -- files -----------------------------------------------------------------------------------------


def files(session: Session) -> set[str]:
    return set(os.listdir(parts_folder(session)))


@pytest.mark.usefixtures("small_files")
def test_retried_epoch_writes_files_of_its_own(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened()
    numbers = session.input("numbers", "x int")
    session.stage("once", numbers.distinct())
    change(session, numbers, {(x,): 1 for x in range(6)})
    before = files(session)
    rows = [(x,) for x in range(10, 20)]
    append = type(log_of(session)).append

    def refused(*arguments: Any) -> Any:
        raise DurabilityError("the disk is full")

    numbers.insert(rows)
    monkeypatch.setattr(type(log_of(session)), "append", refused)
    with pytest.raises(DurabilityError):
        session.commit()
    first = {
        name: Path(parts_folder(session), name).read_bytes() for name in files(session) - before
    }
    assert first
    monkeypatch.setattr(type(log_of(session)), "append", append)
    session.commit()
    second = files(session) - before - set(first)
    assert len(second) == len(first)
    for name in first:  # no epoch references the files of the first attempt
        Path(parts_folder(session), name).write_bytes(b"half")
    session = opened(takeover=True)
    assert set(first) & files(session) == set()
    assert second <= files(session)
    assert len(session["once"].rows()) == len(session["numbers"].rows()) == 16


def replace_files(session: Session) -> set[str]:
    """Commits, merges and checkpoints until files are deleted; returns their names."""
    before = files(session)
    for n in range(3):
        session.inputs["numbers"].insert([(x,) for x in range(5)], once=f"{session.now}-{n}")
        session.commit()
        merge_all(session)
        checkpoint_now(session)
    return before - files(session)


@pytest.fixture
def merged(opened: Open, small_files: None) -> Session:
    """A session at epoch 5 whose stage lies in merged files that only the current epoch needs."""
    session = opened()
    numbers = session.input("numbers", "x int")
    session.stage("counts", numbers.group_by("x").count())
    for _ in range(5):
        change(session, numbers, {(x,): 1 for x in range(9)})
    merge_all(session)
    checkpoint_now(session)
    return session


def test_slow_reader_keeps_merged_and_deleted_files(merged: Session, opened: Open) -> None:
    session = opened(takeover=True)  # maps no file yet
    seen = snapshot_of(session)
    assert replace_files(session)
    assert count(session["counts"]) == {(x, 8 if x < 5 else 5): 1 for x in range(9)}
    for epoch in range(6):
        found = reader_module.collection_state(seen, "counts", epoch)
        assert rows.to_pylist(found.columns[1], "bigint") == [epoch] * (9 if epoch else 0)
        assert (
            sum(reader_module.collection_state(seen, "numbers", epoch).diff.tolist()) == 9 * epoch
        )


@pytest.mark.parametrize("at", [None, 3])
def test_reader_restarts_when_its_files_are_deleted(
    merged: Session, opened: Open, monkeypatch: pytest.MonkeyPatch, at: int | None
) -> None:
    reader = opened(mode="r")
    read, gone = reader_module.SnapshotReader.read, set[str]()

    def late(*arguments: Any) -> Any:
        if not gone:
            gone.update(replace_files(merged))
        return read(*arguments)

    monkeypatch.setattr(reader_module.SnapshotReader, "read", late)
    found = count(reader["counts"], at)
    assert gone
    assert found == {(x, at or (8 if x < 5 else 5)): 1 for x in range(9)}
