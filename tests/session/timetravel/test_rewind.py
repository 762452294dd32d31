"""`rewind`: the session continues from an earlier epoch, with its current stages."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from internals import checkpoint_now, drain_background, log_of, services_of, snapshot_of

import nosync_nb
from nosync_nb import Collection, FencedError, Session, StageError, TimeError

NAMES = ("edges", "nodes", "labels", "pairs")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))
    return tmp_path / "log"


def define_stages(session: Session) -> None:
    edges = session.input("edges", "src long, dst long")
    nodes = session.input("nodes", "node long, label string", key="node")
    if not session.now:
        nodes.upsert([(i, f"n{i}") for i in range(7)])
    joined = edges.filter("src != 3").join(nodes, on={"dst": "node"})
    session.stage("labels", joined.group_by("label").agg(n="count(*)", most="max(src)"))
    session.stage("pairs", edges.distinct())


def commit(session: Session, i: int, **more: Any) -> int:
    """Commits the i-th epoch; its changes depend on nothing but i."""
    edges = session.inputs["edges"]
    edges.insert([(i % 7, i % 5), (i % 3, 10 + i)], once=f"load {i}")
    if i > 3:
        edges.remove([(i % 3, 10 + i)])
    session.inputs["nodes"].upsert([(i % 7, f"m{i}")])
    return session.commit(**more)


def rows(session: Session, at: int | None = None) -> dict[str, list[Any]]:
    return {name: sorted(session[name].rows(at=at)) for name in NAMES}


def take_checkpoint(session: Session) -> None:
    """Takes a checkpoint, after the one of the background worker."""
    drain_background(session)
    checkpoint_now(session)


@pytest.fixture
def by_epoch() -> dict[int, dict[str, list[Any]]]:
    """The contents after each epoch; filled by `session`."""
    return {}


@pytest.fixture
def session(folder: Path, by_epoch: dict[int, dict[str, list[Any]]]) -> Iterator[Session]:
    with nosync_nb.open(folder) as opened:
        define_stages(opened)
        for i in range(1, 13):
            assert commit(opened, i, label=f"epoch {i}") == i
            by_epoch[i] = rows(opened)
        yield opened


# -- state after a rewind --------------------------------------------------------------------------


def test_rewind_restores_data_and_later_epochs_repeat(
    session: Session, by_epoch: dict[int, dict[str, list[Any]]]
) -> None:
    rewound = session.rewind(to=6)
    assert (rewound.left, rewound.epoch) == (12, 6)
    assert set(rewound.cut) == set(NAMES)
    assert session.now == 6
    assert rows(session) == by_epoch[6]
    for i in range(7, 13):
        assert commit(session, i) == i
        assert rows(session) == by_epoch[i]
    for at in range(1, 13):
        assert rows(session, at) == by_epoch[at]


def test_undone_epochs_are_in_a_branch_that_continues(
    session: Session, by_epoch: dict[int, dict[str, list[Any]]]
) -> None:
    first, second = session.rewind(to=6), session.rewind(to=3)
    assert (first.branch, second.branch) == ("before-rewind-1", "before-rewind-2")
    assert {name: branch.at for name, branch in session.branches.items()} == {
        "before-rewind-1": 12,
        "before-rewind-2": 6,
    }
    assert first.undo == f"nosync.open({first.path!r})"
    with nosync_nb.open(first.path) as left:
        assert rows(left) == by_epoch[12]
        assert rows(left, 4) == by_epoch[4]
        commit(left, 13)
        assert left.rewind(to=11).branch == "before-rewind-1"
        assert rows(left) == by_epoch[11]
    assert rows(session) == by_epoch[3]
    session.drop_branch("before-rewind-2")
    assert session.rewind(to=1).branch == "before-rewind-3"


@pytest.mark.parametrize("checkpoint", ["before", "after", "between", None])
def test_opening_after_rewinds_finds_the_rewound_state(
    folder: Path,
    by_epoch: dict[int, dict[str, list[Any]]],
    session: Session,
    checkpoint: str | None,
) -> None:
    if checkpoint == "before":
        take_checkpoint(session)
    session.rewind(to=5)
    if checkpoint == "after":
        take_checkpoint(session)
    for i in (6, 7, 8):
        commit(session, i)
    if checkpoint == "between":
        take_checkpoint(session)
    session.rewind(to=7)
    with nosync_nb.open(folder, takeover=True) as opened:
        assert opened.now == 7
        assert not opened.recovery.lost
        assert {name: opened.recovery.stages[name] for name in ("labels", "pairs")} == {
            "labels": "read",
            "pairs": "read",
        }
        assert rows(opened) == by_epoch[7]
        for i in range(8, 13):
            assert commit(opened, i) == i
            assert rows(opened) == by_epoch[i]
        assert [epoch.number for epoch in opened.epochs()] == list(range(13))
        assert not opened.verify().damage


def test_load_keys_and_labels_of_undone_epochs_are_forgotten(
    session: Session, folder: Path
) -> None:
    session.rewind(to="epoch 8")
    assert [epoch.label for epoch in session.epochs()][-2:] == ["epoch 7", "epoch 8"]
    for opened in (session, nosync_nb.open(folder, takeover=True)):
        with pytest.raises(TimeError, match="no epoch is labelled 'epoch 9'"):
            opened["edges"].rows(at="epoch 9")
        epoch_index = services_of(opened).publisher.ledger
        assert [epoch_index.loaded(f"edges:load {i}") for i in (8, 9)] == [
            epoch_index.loaded("edges:load 8"),
            False,
        ]
    assert commit(opened, 9, label="epoch 9") == 9
    opened.close()


def test_stage_defined_later_is_computed_from_inputs_at_that_epoch(
    session: Session, by_epoch: dict[int, dict[str, list[Any]]], folder: Path
) -> None:
    session.stage("few", session["labels"].filter("n > 1"))
    commit(session, 13)
    rewound = session.rewind(to=6)
    assert rewound.computed == ("few",)
    expected = sorted(row for row in by_epoch[6]["labels"] if row[1] > 1)
    assert sorted(session["few"].rows()) == expected
    assert expected
    assert [*session["few"].history()] == [range(6, 7)]
    opened = nosync_nb.open(folder, takeover=True)
    assert sorted(opened["few"].rows()) == expected
    commit(opened, 7)
    assert sorted(opened["few"].rows()) == sorted(r for r in by_epoch[7]["labels"] if r[1] > 1)
    opened.close()


def test_input_declared_later_remains_and_is_empty(session: Session) -> None:
    late = session.input("late", "x long")
    late.insert([(1,), (2,)])
    session.stage("doubled", late.select("x * 2 as y"))
    session.commit()
    session.rewind(to=3)
    assert (late.rows(), session["doubled"].rows()) == ([], [])
    late.insert([(5,)])
    assert session.commit() == 4
    assert session["doubled"].rows() == [(10,)]
    assert late.rows(at=3) == []


def test_edited_stage_remains_and_its_old_version_is_cut(session: Session) -> None:
    session.stage("pairs", session["edges"].select("src").distinct())
    commit(session, 13)
    session.rewind(to=6)
    assert sorted(session["pairs"].rows()) == sorted({(s,) for s, _ in session["edges"].rows()})
    assert sorted(session["pairs@1"].rows(at=4)) == sorted(set(session["edges"].rows(at=4)))
    commit(session, 7)
    assert sorted(session["pairs"].rows()) == sorted({(s,) for s, _ in session["edges"].rows()})


def test_stale_stage_remains_stale_since_the_rewound_epoch(session: Session, folder: Path) -> None:
    session.stage("ends", session["pairs"].group_by("dst").agg(n="count(*)"))
    for i in (13, 14):
        commit(session, i)
    expected = sorted(session["ends"].rows(at=13))
    session.stage("pairs", session["edges"].select("src").distinct())
    assert "ends" in session.stale
    commit(session, 15)
    session.rewind(to=13)
    for opened in (session, nosync_nb.open(folder, takeover=True)):
        assert "ends" in opened.stale
        assert sorted(opened["ends"].rows(at=13)) == expected
    commit(opened, 14)
    with pytest.raises(TimeError, match="stale since epoch 13"):
        opened["ends"].rows(at=14)
    opened.stage("pairs", opened["edges"].distinct())
    counts = {dst: 0 for _, dst in set(opened["edges"].rows())}
    for _, dst in set(opened["edges"].rows()):
        counts[dst] += 1
    assert sorted(opened["ends"].rows()) == sorted(counts.items())
    opened.close()


def test_rewind_to_the_current_epoch_writes_no_frame(session: Session) -> None:
    head = log_of(session).head
    rewound = session.rewind(to=12)
    assert (rewound.left, rewound.epoch) == (12, 12)
    assert log_of(session).head == head


def test_rewind_writes_no_state(session: Session, folder: Path) -> None:
    take_checkpoint(session)
    before = log_of(session).head.offset
    files = {p.name for p in folder.glob("*/*.*")}
    session.rewind(to=2)
    catalog = len(log_of(session).read(services_of(session).publisher.position).payload)  # type: ignore[arg-type]
    assert log_of(session).head.offset - before < catalog + 200
    assert {p.name for p in folder.glob("layers/*")} <= files


# -- readers, listeners and frontiers --------------------------------------------------------------


def test_reader_follows_a_rewind(session: Session, folder: Path, by_epoch: Any) -> None:
    with nosync_nb.open(folder, mode="r") as reader:
        assert rows(reader) == by_epoch[12]
        session.rewind(to=6)
        assert rows(reader) == by_epoch[6]
        assert reader.now == 6
        commit(session, 7)
        assert rows(reader) == by_epoch[7]
        with pytest.raises(FencedError, match="open for reading"):
            reader.rewind(to=3)


def test_inspectors_get_the_changes_that_undo_epochs(session: Session, by_epoch: Any) -> None:
    counts = dict.fromkeys(by_epoch[12]["labels"], 1)
    inspected = []

    def hear(epoch: int, changes: pa.Table) -> None:
        inspected.append(epoch)
        for *row, diff in zip(*changes.to_pydict().values(), strict=True):
            counts[tuple(row)] = counts.get(tuple(row), 0) + diff

    session["labels"].inspect(hear)
    epochs: list[int] = []
    stop = session.subscribe(epochs.append)
    session.rewind(to=6)
    assert sorted(row for row, count in counts.items() if count) == by_epoch[6]["labels"]
    assert (inspected, epochs) == ([6], [6])
    stop()


def test_snapshot_from_before_a_rewind_stays_readable(session: Session, by_epoch: Any) -> None:
    snapshot = snapshot_of(session)
    epochs = session.epochs()
    session.rewind(to=3)
    commit(session, 4)
    take_checkpoint(session)
    gc.collect()
    number = snapshot.graph.named["edges"].log
    assert number is not None
    assert sum(len(b) for b in snapshot.history.state(number, 12)) > 0
    assert [e.number for e in epochs][-1] == 12
    assert epochs[12].committed_at is not None


def test_disk_frontier_falls_with_a_rewind(session: Session) -> None:
    services_of(session).commits.sync("disk")
    assert session.frontiers["edges"].disk == 12
    session.rewind(to=6)
    assert session.frontiers["edges"].disk == 6
    services_of(session).commits.sync("disk")
    commit(session, 7, wait="disk")
    assert session.frontiers["edges"] == session.frontiers["labels"]
    assert session.frontiers["edges"].disk == 7


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", [13, -1, 10**20, "no such label", True, 1.5])
def test_rewind_to_no_epoch_is_refused(session: Session, to: Any, by_epoch: Any) -> None:
    with pytest.raises(TimeError) as caught:
        session.rewind(to=to)
    assert caught.value.__notes__
    assert rows(session) == by_epoch[12]
    assert not session.branches


def test_rewind_to_thinned_epoch_names_the_nearest_retained_ones(
    session: Session, by_epoch: Any
) -> None:
    while session.now < 60:
        commit(session, session.now + 1)
    session.retain = 2
    for _ in range(2):
        take_checkpoint(session)
    retained = [epoch.number for epoch in session.epochs()]
    gone = next(each for each in range(retained[0], 60) if each not in retained)
    before, branches, head = rows(session), session.branches, log_of(session).head
    with pytest.raises(TimeError, match=f"epoch {gone}") as caught:
        session.rewind(to=gone)
    near = (
        max(each for each in retained if each < gone),
        min(each for each in retained if each > gone),
    )
    for each in near:
        assert str(each) in str(caught.value.hint)
    assert (rows(session), session.branches, log_of(session).head) == (before, branches, head)
    assert session.rewind(to=near[1]).epoch == near[1]


def test_rewind_with_pending_rows_is_refused(session: Session) -> None:
    session.inputs["edges"].insert([(1, 1), (2, 2)])
    with pytest.raises(StageError, match="2 changes of edges are pending") as caught:
        session.rewind(to=3)
    assert "session.discard()" in caught.value.__notes__[0]
    assert (session.now, session.pending["edges"].rows) == (12, 2)
    session.discard()
    assert session.rewind(to=3).epoch == 3


def test_rewind_in_a_transaction_is_refused(session: Session) -> None:
    with session.epoch(), pytest.raises(StageError, match="inside a transaction"):
        session.rewind(to=3)
    transaction = session.begin(None)
    session.inputs["edges"].insert([(1, 1)])
    with pytest.raises(StageError, match="1 changes of edges are pending"):
        session.rewind(to=3)
    transaction.discard()
    assert session.rewind(to=3).epoch == 3


def test_rewind_in_a_stage_function_is_refused(session: Session) -> None:
    def meddle(row: Any) -> Any:
        session.rewind(to=3)
        return row

    stage: Collection = session["edges"].map(meddle, "src long, dst long")
    with pytest.raises(StageError, match="rewind inside a stage's function"):
        session.stage("meddled", stage)
    assert session.now == 12


def test_rewind_of_a_fenced_session_is_refused(
    session: Session, folder: Path, by_epoch: Any
) -> None:
    with nosync_nb.open(folder, takeover=True) as owner:
        with pytest.raises(FencedError):
            session.rewind(to=3)
        assert session.now == 12
        assert rows(owner) == by_epoch[12]


def test_failing_recomputation_leaves_the_session_unchanged(
    session: Session, by_epoch: Any
) -> None:
    def picky(row: Any) -> Any:
        if row.dst == 12:  # in the input from epoch 2 until it was removed
            raise ValueError("not this one")
        return row

    session.inputs["edges"].remove([(2, 12)])
    session.commit()
    session.stage("picked", session["edges"].map(picky, "src long, dst long"))
    head = log_of(session).head
    with pytest.raises(StageError, match="not this one"):
        session.rewind(to=6)
    assert (session.now, log_of(session).head) == (13, head)
    assert session.rewind(to=1).computed == ("picked",)


def test_stale_stage_without_epochs_names_no_epoch_after_rewind(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "stopped") as session:
        rows = session.input("rows", "k int, v int")
        for i in range(1, 6):
            rows.insert([(i % 2, i)])
            session.commit()
        session.stage("narrow", rows.select("k", "v"))
        session.stage("sums", session["narrow"].group_by("k").agg(total="sum(v)"))
        rows.insert([(0, 9)])
        session.commit()
        session.stage("narrow", rows.select("k"))
        session.rewind(to=2)
        assert session["sums"].history() == []
        session.inputs["rows"].insert([(1, 1)])
        session.commit()
        for epoch in (1, 2, 3):
            with pytest.raises(TimeError, match="stale since epoch 2") as raised:
                session["sums"].rows(at=epoch)
            assert raised.value.hint == "run the cell that defines it"
