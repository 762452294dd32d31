"""Reuse of statistics: they follow rows to branches, rewinds, merges and restarts.

Work is counted in rows that are looked up because of negative counts, and in files whose checksums
are verified.
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
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows of each lookup; small layers are spilled and merged."""
    numbers: list[int] = []
    on_enough(monkeypatch, numbers.append)
    for place in (store, maintenance):
        monkeypatch.setattr(place, "SPILL_ROWS", 64)
    monkeypatch.setattr(compaction, "YOUNG_ROWS", 32)
    monkeypatch.setattr(BackgroundWorker, "submit", lambda *_, **__: False)
    return numbers


def prepare_log(path: Path) -> Session:
    """Makes a log in which each epoch removes ten rows and inserts ten."""
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


def check_epoch(session: Any, epoch: int) -> None:
    """Reads and checks the rows of an epoch."""
    data = session["data"]
    taken = (epoch - 1) * TAKEN
    assert data.count() == ROWS
    assert data.head(20) == [(i, int(i < taken)) for i in range(20)]


def merge_data(session: Session) -> None:
    """Merges the layers of the input, as the background worker does."""
    trace = next(iter(graph_of(session).named["data"].traces.values()))
    merge_trace(session, trace)


def test_branch_looks_up_only_changes_since_its_parent_was_read(
    tmp_path: Path, lookups: list[int]
) -> None:
    with prepare_log(tmp_path / "log") as session:
        check_epoch(session, EPOCHS + 1)
        assert sum(lookups) >= EPOCHS * TAKEN
        for at in (EPOCHS + 1, EPOCHS - 1, EPOCHS // 2, 1):
            lookups.clear()
            with session.branch(f"b{at}", at=at) as branch:
                assert sum(lookups) == 0, "creating a branch looks up nothing"
                check_epoch(branch, at)
            assert sum(lookups) <= (EPOCHS + 1 - at) * TAKEN
            with nosync_nb.open(branch.path) as again:
                check_epoch(again, at)


def test_rewound_session_looks_up_only_undone_changes(tmp_path: Path, lookups: list[int]) -> None:
    with prepare_log(tmp_path / "log") as session:
        check_epoch(session, EPOCHS + 1)
        for back in (3, 20):
            lookups.clear()
            to = session.now - back
            session.rewind(to=to)
            check_epoch(session, to)
            assert sum(lookups) <= back * TAKEN


def test_checkpoint_stores_statistics_of_layers(tmp_path: Path, lookups: list[int]) -> None:
    with prepare_log(tmp_path / "log") as session:
        check_epoch(session, EPOCHS + 1)
        checkpoint_now(session)
    lookups.clear()
    with nosync_nb.open(tmp_path / "log") as session:
        check_epoch(session, EPOCHS + 1)
    assert sum(lookups) == 0


def test_statistics_of_an_untrusted_log_are_ignored(
    tmp_path: Path, lookups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with prepare_log(tmp_path / "log") as session:
        check_epoch(session, EPOCHS + 1)
        checkpoint_now(session)
    lookups.clear()
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "strangers"))
    with nosync_nb.open(tmp_path / "log", mode="r") as session:
        check_epoch(session, EPOCHS + 1)
    assert sum(lookups) >= EPOCHS * TAKEN


def test_merge_keeps_statistics_of_layers(tmp_path: Path, lookups: list[int]) -> None:
    with prepare_log(tmp_path / "log") as session:
        checkpoint_now(session)  # layers of inserts need no lookups
        assert sum(lookups) == 0
        merge_data(session)
        assert 0 < sum(lookups) <= EPOCHS * TAKEN, "each row once"
        lookups.clear()
        check_epoch(session, EPOCHS + 1)
        newest = snapshot_of(session).contents("data").layers[-1]
        assert sum(lookups) <= newest.rows_count


def test_merge_with_too_many_lookups_leaves_them_to_readers(
    tmp_path: Path, lookups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "LOOKED_UP", 0)
    with prepare_log(tmp_path / "log") as session:
        checkpoint_now(session)
        merge_data(session)
        assert sum(lookups) == 0
        check_epoch(session, EPOCHS + 1)


@pytest.mark.parametrize("read", ["parent", "nobody"])
def test_negative_count_is_reported_only_at_its_epochs_and_their_branches(
    tmp_path: Path, lookups: list[int], read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "_LOOKUP_COST", 0)
    with prepare_log(tmp_path / "log") as session:
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


def test_mapped_files_are_verified_once_until_one_changes(
    tmp_path: Path, lookups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []
    on_compared(monkeypatch, compared.append)
    prepare_log(tmp_path / "log").close()
    with nosync_nb.open(tmp_path / "log") as session:
        check_epoch(session, EPOCHS + 1)
        assert compared
        compared.clear()
        with session.branch("one") as branch:
            assert len(branch["data"].rows()) == ROWS
            assert compared == []
        session.branch("other").close()
        for file in (tmp_path / "log" / "layers").iterdir():
            damaged = bytearray(file.read_bytes())
            damaged[len(damaged) // 2] ^= 1
            with file.open("r+b") as opened:
                opened.write(damaged)
            os.utime(file, (0, 0))  # another time, however coarse the clock of the disk is
        with session.branch("late") as branch, pytest.raises(CorruptLogError, match="damaged"):
            branch["data"].rows()
    with (
        nosync_nb.open(tmp_path / "log") as session,
        pytest.raises(CorruptLogError, match="damaged"),
    ):
        session["data"].rows()
