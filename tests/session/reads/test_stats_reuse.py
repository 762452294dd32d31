"""Reuse of statistics: they follow rows to branches, rewinds, merges and restarts.

Work is told in rows that are looked up to see that none is below 0, and in files that are compared
with their checksums.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from internals import checkpoint_now, graph_of, merge_trace, on_compared, on_enough, snapshot_of

import nosync_nb
from nosync_nb import Session
from nosync_nb.errors import CorruptLogError, NegativeMultiplicityError
from nosync_nb.session.maintenance import maintenance
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.store import store
from nosync_nb.trace import compaction, stats

ROWS, EPOCHS, TAKEN = 3000, 60, 10


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were looked up, each time; small layers are files, and merged."""
    numbers: list[int] = []
    on_enough(monkeypatch, numbers.append)
    for place in (store, maintenance):
        monkeypatch.setattr(place, "SPILL_ROWS", 64)
    monkeypatch.setattr(compaction, "YOUNG_ROWS", 32)
    monkeypatch.setattr(
        BackgroundWorker, "submit", lambda *_, **__: False
    )  # the test merges and checkpoints
    return numbers


def made(path: Path) -> Session:
    """A log of which each epoch takes away ten rows, and adds ten."""
    session = nosync_nb.open(path)
    data = session.input("data", "id bigint, n bigint")
    data.insert([(i, 0) for i in range(ROWS)])
    session.commit()
    for epoch in range(EPOCHS):
        changed = range(epoch * TAKEN, (epoch + 1) * TAKEN)
        data.remove([(i, 0) for i in changed])
        data.insert([(i, 1) for i in changed])
        session.commit()
    return session


def shown(session: Any, epoch: int) -> None:
    """Reads what was shown at an epoch."""
    data = session["data"]
    taken = (epoch - 1) * TAKEN
    assert data.count() == ROWS
    assert data.head(20) == [(i, int(i < taken)) for i in range(20)]


def merged(session: Session) -> None:
    """Does what the worker would do."""
    trace = next(iter(graph_of(session).named["data"].traces.values()))
    merge_trace(session, trace)


def test_a_branch_is_read_by_what_was_changed_since_its_parent_was(
    tmp_path: Path, looked: list[int]
) -> None:
    with made(tmp_path / "log") as session:
        shown(session, EPOCHS + 1)
        assert sum(looked) >= EPOCHS * TAKEN
        for at in (EPOCHS + 1, EPOCHS - 1, EPOCHS // 2, 1):
            looked.clear()
            with session.branch(f"b{at}", at=at) as branch:
                assert sum(looked) == 0, "to make it costs nothing of this"
                shown(branch, at)
            assert sum(looked) <= (EPOCHS + 1 - at) * TAKEN
            with nosync_nb.open(branch.path) as again:
                shown(again, at)


def test_after_a_rewind_what_was_changed_since_is_looked_at_alone(
    tmp_path: Path, looked: list[int]
) -> None:
    with made(tmp_path / "log") as session:
        shown(session, EPOCHS + 1)
        for back in (3, 20):
            looked.clear()
            to = session.now - back
            session.rewind(to=to)
            shown(session, to)
            assert sum(looked) <= back * TAKEN


def test_a_checkpoint_says_what_is_known_of_layers(tmp_path: Path, looked: list[int]) -> None:
    with made(tmp_path / "log") as session:
        shown(session, EPOCHS + 1)
        checkpoint_now(session)
    looked.clear()
    with nosync_nb.open(tmp_path / "log") as session:
        shown(session, EPOCHS + 1)
    assert sum(looked) == 0


def test_what_a_stranger_says_of_his_layers_is_not_believed(
    tmp_path: Path, looked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(tmp_path / "log") as session:
        shown(session, EPOCHS + 1)
        checkpoint_now(session)
    looked.clear()
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "strangers"))
    with nosync_nb.open(tmp_path / "log", mode="r") as session:
        shown(session, EPOCHS + 1)
    assert sum(looked) >= EPOCHS * TAKEN


def test_a_merge_keeps_what_is_known_of_layers(tmp_path: Path, looked: list[int]) -> None:
    with made(tmp_path / "log") as session:
        checkpoint_now(session)  # of rows that only add nothing has to be looked up
        assert sum(looked) == 0
        merged(session)
        assert 0 < sum(looked) <= EPOCHS * TAKEN, "each row once"
        looked.clear()
        shown(session, EPOCHS + 1)
        newest = snapshot_of(session).contents("data").layers[-1]
        assert sum(looked) <= newest.rows_count


def test_a_merge_that_looks_at_more_than_it_merges_leaves_it_to_readers(
    tmp_path: Path, looked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "LOOKED_UP", 0)
    with made(tmp_path / "log") as session:
        checkpoint_now(session)
        merged(session)
        assert sum(looked) == 0
        shown(session, EPOCHS + 1)


@pytest.mark.parametrize("read", ["parent", "nobody"])
def test_a_row_that_was_below_zero_for_some_epochs_is_so_on_their_branches_alone(
    tmp_path: Path, looked: list[int], read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "_LOOKUP_COST", 0)
    with made(tmp_path / "log") as session:
        data, sound = session.inputs["data"], session.now
        data.remove([(0, 0)])
        session.commit()
        for _ in range(3):
            data.insert([(ROWS, 0)])
            session.commit()
        if read == "parent":
            with pytest.raises(NegativeMultiplicityError, match="a count of -1"):
                data.head(20)
        data.insert([(0, 0), (0, 0)])
        session.commit()
        if read == "parent":
            assert data.head(2) == [(0, 0), (0, 1)]
        for at in range(sound, session.now + 1):
            branch = session.branch(f"b{at}", at=at)
            if at in (sound, session.now):
                assert branch["data"].head(1) == [(0, int(at == sound))]
            else:
                with pytest.raises(NegativeMultiplicityError, match="a count of -1"):
                    branch["data"].head(20)
            branch.close()
        session.rewind(to=sound + 1)
        with pytest.raises(NegativeMultiplicityError, match="a count of -1"):
            session["data"].head(20)


def test_files_that_the_parent_has_mapped_are_compared_once_until_one_is_changed(
    tmp_path: Path, looked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []
    on_compared(monkeypatch, compared.append)
    made(tmp_path / "log").close()
    with nosync_nb.open(tmp_path / "log") as session:
        shown(session, EPOCHS + 1)
        assert compared
        compared.clear()
        with session.branch("one") as branch:
            assert len(branch["data"].rows()) == ROWS
            assert compared == []
        session.branch("other").close()
        for file in (tmp_path / "log" / "layers").iterdir():
            held = bytearray(file.read_bytes())
            held[len(held) // 2] ^= 1
            with file.open("r+b") as opened:
                opened.write(held)
            os.utime(file, (0, 0))  # another moment, however coarse the clock of the disk is
        with session.branch("late") as branch, pytest.raises(CorruptLogError, match="damaged"):
            branch["data"].rows()
    with (
        nosync_nb.open(tmp_path / "log") as session,
        pytest.raises(CorruptLogError, match="damaged"),
    ):
        session["data"].rows()
