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


def defined(session: Session) -> None:
    edges = session.input("edges", "src long, dst long")
    nodes = session.input("nodes", "node long, label string", key="node")
    if not session.now:
        nodes.upsert([(i, f"n{i}") for i in range(7)])
    joined = edges.filter("src != 3").join(nodes, on={"dst": "node"})
    session.stage("labels", joined.group_by("label").agg(n="count(*)", most="max(src)"))
    session.stage("pairs", edges.distinct())


def commit(session: Session, i: int, **more: Any) -> int:
    """The i-th epoch: what it does depends on nothing but i."""
    edges = session.inputs["edges"]
    edges.insert([(i % 7, i % 5), (i % 3, 10 + i)], once=f"load {i}")
    if i > 3:
        edges.remove([(i % 3, 10 + i)])
    session.inputs["nodes"].upsert([(i % 7, f"m{i}")])
    return session.commit(**more)


def rows(session: Session, at: int | None = None) -> dict[str, list[Any]]:
    return {name: sorted(session[name].rows(at=at)) for name in NAMES}


def checkpointed(session: Session) -> None:
    """Has a checkpoint of now; there is one at a time, the worker's first."""
    drain_background(session)
    checkpoint_now(session)


@pytest.fixture
def was() -> dict[int, dict[str, list[Any]]]:
    """What there was after each epoch; filled by `session`."""
    return {}


@pytest.fixture
def session(folder: Path, was: dict[int, dict[str, list[Any]]]) -> Iterator[Session]:
    with nosync_nb.open(folder) as made:
        defined(made)
        for i in range(1, 13):
            assert commit(made, i, label=f"epoch {i}") == i
            was[i] = rows(made)
        yield made


# -- what goes back --------------------------------------------------------------------------------


def test_data_go_back_and_the_session_goes_on_as_it_went_on_then(
    session: Session, was: dict[int, dict[str, list[Any]]]
) -> None:
    told = session.rewind(to=6)
    assert (told.left, told.epoch) == (12, 6)
    assert set(told.cut) == set(NAMES)
    assert session.now == 6
    assert rows(session) == was[6]
    for i in range(7, 13):
        assert commit(session, i) == i
        assert rows(session) == was[i]
    for at in range(1, 13):
        assert rows(session, at) == was[at]


def test_what_is_left_is_a_branch_that_can_be_gone_on_with(
    session: Session, was: dict[int, dict[str, list[Any]]]
) -> None:
    first, second = session.rewind(to=6), session.rewind(to=3)
    assert (first.branch, second.branch) == ("before-rewind-1", "before-rewind-2")
    assert {name: branch.at for name, branch in session.branches.items()} == {
        "before-rewind-1": 12,
        "before-rewind-2": 6,
    }
    assert first.undo == f"nosync.open({first.path!r})"
    with nosync_nb.open(first.path) as left:
        assert rows(left) == was[12]
        assert rows(left, 4) == was[4]
        commit(left, 13)
        assert left.rewind(to=11).branch == "before-rewind-1"
        assert rows(left) == was[11]
    assert rows(session) == was[3]
    session.drop_branch("before-rewind-2")
    assert session.rewind(to=1).branch == "before-rewind-3"


def test_a_rewind_that_is_refused_leaves_no_branch(session: Session) -> None:
    with pytest.raises(TimeError):
        session.rewind(to=99)
    assert not session.branches


@pytest.mark.parametrize("checkpoint", ["before", "after", "between", None])
def test_who_opens_the_log_finds_what_the_session_went_back_to(
    folder: Path, was: dict[int, dict[str, list[Any]]], session: Session, checkpoint: str | None
) -> None:
    if checkpoint == "before":
        checkpointed(session)
    session.rewind(to=5)
    if checkpoint == "after":
        checkpointed(session)
    for i in (6, 7, 8):
        commit(session, i)
    if checkpoint == "between":
        checkpointed(session)
    session.rewind(to=7)
    with nosync_nb.open(folder, takeover=True) as opened:
        assert opened.now == 7
        assert not opened.recovery.lost
        assert {name: opened.recovery.stages[name] for name in ("labels", "pairs")} == {
            "labels": "read",
            "pairs": "read",
        }
        assert rows(opened) == was[7]
        for i in range(8, 13):
            assert commit(opened, i) == i
            assert rows(opened) == was[i]
        assert [epoch.number for epoch in opened.epochs()] == list(range(13))
        assert not opened.verify().damage


def test_keys_of_loads_and_labels_of_the_epochs_that_are_left_are_forgotten(
    session: Session, folder: Path
) -> None:
    session.rewind(to="epoch 8")
    assert [epoch.label for epoch in session.epochs()][-2:] == ["epoch 7", "epoch 8"]
    for opened in (session, nosync_nb.open(folder, takeover=True)):
        with pytest.raises(TimeError, match="no epoch is labelled 'epoch 9'"):
            opened["edges"].rows(at="epoch 9")
        known = services_of(opened).publisher.ledger
        assert [known.loaded(f"edges:load {i}") for i in (8, 9)] == [
            known.loaded("edges:load 8"),
            False,
        ]
    assert commit(opened, 9, label="epoch 9") == 9
    opened.close()


def test_a_stage_that_was_defined_later_is_computed_from_its_inputs_as_of_then(
    session: Session, was: dict[int, dict[str, list[Any]]], folder: Path
) -> None:
    session.stage("few", session["labels"].filter("n > 1"))
    commit(session, 13)
    told = session.rewind(to=6)
    assert told.computed == ("few",)
    expected = sorted(row for row in was[6]["labels"] if row[1] > 1)
    assert sorted(session["few"].rows()) == expected
    assert expected
    assert [*session["few"].history()] == [range(6, 7)]
    opened = nosync_nb.open(folder, takeover=True)
    assert sorted(opened["few"].rows()) == expected
    commit(opened, 7)
    assert sorted(opened["few"].rows()) == sorted(r for r in was[7]["labels"] if r[1] > 1)
    opened.close()


def test_an_input_that_was_declared_later_stays_and_is_empty(session: Session) -> None:
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


def test_an_edit_stays_and_what_it_replaced_is_known_as_far_as_it_went(session: Session) -> None:
    session.stage("pairs", session["edges"].select("src").distinct())
    commit(session, 13)
    session.rewind(to=6)
    assert sorted(session["pairs"].rows()) == sorted({(s,) for s, _ in session["edges"].rows()})
    assert sorted(session["pairs@1"].rows(at=4)) == sorted(set(session["edges"].rows(at=4)))
    commit(session, 7)
    assert sorted(session["pairs"].rows()) == sorted({(s,) for s, _ in session["edges"].rows()})


def test_a_stage_that_has_stopped_does_so_from_where_the_session_went_back_to(
    session: Session, folder: Path
) -> None:
    session.stage("ends", session["pairs"].group_by("dst").agg(n="count(*)"))
    for i in (13, 14):
        commit(session, i)
    then = sorted(session["ends"].rows(at=13))
    session.stage("pairs", session["edges"].select("src").distinct())
    assert "ends" in session.stale
    commit(session, 15)
    session.rewind(to=13)
    for opened in (session, nosync_nb.open(folder, takeover=True)):
        assert "ends" in opened.stale
        assert sorted(opened["ends"].rows(at=13)) == then
    commit(opened, 14)
    with pytest.raises(TimeError, match="stale since epoch 13"):
        opened["ends"].rows(at=14)
    opened.stage("pairs", opened["edges"].distinct())
    counts = {dst: 0 for _, dst in set(opened["edges"].rows())}
    for _, dst in set(opened["edges"].rows()):
        counts[dst] += 1
    assert sorted(opened["ends"].rows()) == sorted(counts.items())
    opened.close()


def test_a_stage_in_memory_goes_back_too(session: Session) -> None:
    session.define({"light": session["edges"].group_by("src").agg(n="count(*)")}, persist="memory")
    before = {}
    for i in (13, 14, 15):
        commit(session, i)
        before[i] = sorted(session["light"].rows())
    session.rewind(to=13)
    assert sorted(session["light"].rows()) == before[13]
    commit(session, 14)
    assert sorted(session["light"].rows()) == before[14]


def test_now_is_gone_back_to_without_a_frame(session: Session) -> None:
    head = log_of(session).head
    told = session.rewind(to=12)
    assert (told.left, told.epoch) == (12, 12)
    assert log_of(session).head == head


def test_nothing_of_the_state_is_written(session: Session, folder: Path) -> None:
    checkpointed(session)
    before = log_of(session).head.offset
    there = {p.name for p in folder.glob("*/*.*")}
    session.rewind(to=2)
    catalog = len(log_of(session).read(services_of(session).publisher.position).payload)  # type: ignore[arg-type]
    assert log_of(session).head.offset - before < catalog + 200
    assert {p.name for p in folder.glob("layers/*")} <= there


# -- who else is told ------------------------------------------------------------------------------


def test_who_follows_begins_again(session: Session, folder: Path, was: Any) -> None:
    with nosync_nb.open(folder, mode="r") as reader:
        assert rows(reader) == was[12]
        session.rewind(to=6)
        assert rows(reader) == was[6]
        assert reader.now == 6
        commit(session, 7)
        assert rows(reader) == was[7]


def test_inspectors_are_told_what_takes_a_collection_back(session: Session, was: Any) -> None:
    held = dict.fromkeys(was[12]["labels"], 1)
    heard = []

    def hear(epoch: int, changes: pa.Table) -> None:
        heard.append(epoch)
        for *row, diff in zip(*changes.to_pydict().values(), strict=True):
            held[tuple(row)] = held.get(tuple(row), 0) + diff

    session["labels"].inspect(hear)
    epochs: list[int] = []
    stop = session.subscribe(epochs.append)
    session.rewind(to=6)
    assert sorted(row for row, count in held.items() if count) == was[6]["labels"]
    assert (heard, epochs) == ([6], [6])
    stop()


def test_readers_of_before_go_on_with_what_they_have(session: Session, was: Any) -> None:
    seen = snapshot_of(session)
    epochs = session.epochs()
    session.rewind(to=3)
    commit(session, 4)
    checkpointed(session)
    gc.collect()
    number = seen.graph.named["edges"].log
    assert number is not None
    assert sum(len(b) for b in seen.history.state(number, 12)) > 0
    assert [e.number for e in epochs][-1] == 12
    assert epochs[12].committed_at is not None


def test_what_is_on_disk_follows_epochs_that_fall(session: Session) -> None:
    services_of(session).commits.sync("disk")
    assert session.frontiers["edges"].disk == 12
    session.rewind(to=6)
    assert session.frontiers["edges"].disk == 6
    services_of(session).commits.sync("disk")
    commit(session, 7, wait="disk")
    assert session.frontiers["edges"] == session.frontiers["labels"]
    assert session.frontiers["edges"].disk == 7


def test_epochs_that_are_left_are_not_told_as_lost(session: Session, folder: Path) -> None:
    session.rewind(to=6)
    commit(session, 7)
    with nosync_nb.open(folder, takeover=True) as opened:
        assert opened.recovery.lost == []
        assert opened.now == 7


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("to", [13, -1, 10**20, "no such label", True, 1.5])
def test_an_epoch_that_is_none_is_refused(session: Session, to: Any, was: Any) -> None:
    with pytest.raises(TimeError) as caught:
        session.rewind(to=to)
    assert caught.value.__notes__
    assert rows(session) == was[12]


def test_an_epoch_that_was_let_go_is_refused_with_those_that_are_near(
    session: Session, was: Any
) -> None:
    while session.now < 60:
        commit(session, session.now + 1)
    session.retain = 2
    for _ in range(2):
        checkpointed(session)
    there = [epoch.number for epoch in session.epochs()]
    gone = next(each for each in range(there[0], 60) if each not in there)
    before, branches, head = rows(session), session.branches, log_of(session).head
    with pytest.raises(TimeError, match=f"epoch {gone}") as caught:
        session.rewind(to=gone)
    near = max(each for each in there if each < gone), min(each for each in there if each > gone)
    for each in near:
        assert str(each) in str(caught.value.hint)
    assert (rows(session), session.branches, log_of(session).head) == (
        before,
        branches,
        head,
    )
    assert session.rewind(to=near[1]).epoch == near[1]


def test_rows_that_wait_keep_the_session_where_it_is(session: Session) -> None:
    session.inputs["edges"].insert([(1, 1), (2, 2)])
    with pytest.raises(StageError, match="2 changes of edges are pending") as caught:
        session.rewind(to=3)
    assert "session.discard()" in caught.value.__notes__[0]
    assert (session.now, session.pending["edges"].rows) == (12, 2)
    session.discard()
    assert session.rewind(to=3).epoch == 3


def test_it_is_refused_in_a_transaction(session: Session) -> None:
    with session.epoch(), pytest.raises(StageError, match="inside a transaction"):
        session.rewind(to=3)
    transaction = session.begin(None)
    session.inputs["edges"].insert([(1, 1)])
    with pytest.raises(StageError, match="1 changes of edges are pending"):
        session.rewind(to=3)
    transaction.discard()
    assert session.rewind(to=3).epoch == 3


def test_it_is_refused_in_a_stages_function(session: Session) -> None:
    def meddle(row: Any) -> Any:
        session.rewind(to=3)
        return row

    stage: Collection = session["edges"].map(meddle, "src long, dst long")
    with pytest.raises(StageError, match="rewind inside a stage's function"):
        session.stage("meddled", stage)
    assert session.now == 12


def test_a_reader_cannot_go_back(session: Session, folder: Path) -> None:
    with (
        nosync_nb.open(folder, mode="r") as reader,
        pytest.raises(FencedError, match="open for reading"),
    ):
        reader.rewind(to=3)


def test_who_was_fenced_cannot_go_back(session: Session, folder: Path, was: Any) -> None:
    with nosync_nb.open(folder, takeover=True) as owner:
        with pytest.raises(FencedError):
            session.rewind(to=3)
        assert session.now == 12
        assert rows(owner) == was[12]


def test_a_stage_that_cannot_be_computed_then_keeps_the_session_where_it_is(
    session: Session, was: Any
) -> None:
    def picky(row: Any) -> Any:
        if row.dst == 12:  # it was there from epoch 2 on, until it was removed
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


def test_a_stage_that_stopped_and_of_which_a_rewind_left_nothing_points_to_no_epoch(
    tmp_path: Path,
) -> None:
    with nosync_nb.open(tmp_path / "stopped") as made:
        rows = made.input("rows", "k int, v int")
        for i in range(1, 6):
            rows.insert([(i % 2, i)])
            made.commit()
        made.stage("narrow", rows.select("k", "v"))
        made.stage("sums", made["narrow"].group_by("k").agg(total="sum(v)"))
        rows.insert([(0, 9)])
        made.commit()
        made.stage("narrow", rows.select("k"))
        made.rewind(to=2)
        assert made["sums"].history() == []
        made.inputs["rows"].insert([(1, 1)])
        made.commit()
        for epoch in (1, 2, 3):
            with pytest.raises(TimeError, match="stale since epoch 2") as told:
                made["sums"].rows(at=epoch)
            assert told.value.hint == "run the cell that defines it"
