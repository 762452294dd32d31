"""`retain` and `pin`: old epochs become coarser, pinned ones stay, and all rows are right."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from internals import checkpoint_now, drain_background, services_of, store_of

import nosync_nb
from nosync_nb import SchemaError, Session, TimeError
from nosync_nb.files.filesystem import Files
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.store.log import segments, writer
from nosync_nb.trace.history.pack_plans import RecutPlan

EPOCHS = 700


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def again(**options: Any) -> Session:
        sessions.append(nosync_nb.open(tmp_path / "log", **options))
        return sessions[-1]

    yield again
    for each in sessions:
        each.close()


def filled(session: Session, epochs: int = EPOCHS, *, every: int = 64) -> Session:
    """Each epoch brings its number, and takes away one of before; `sums` reads it."""
    numbers = session.input("numbers", "x bigint")
    if "sums" not in session:
        session.stage("sums", numbers.group_by().agg(n="count(*)", total="sum(x)"))
    for epoch in range(session.now + 1, epochs + 1):
        numbers.insert([(epoch,)])
        if epoch > 10:
            numbers.remove([(epoch - 10,)])
        assert session.commit() == epoch
        if epoch % every == 0:
            checkpoint(session)
    return session


def checkpoint(session: Session) -> None:
    drain_background(session)
    checkpoint_now(session)


def rows_at(epoch: int) -> list[tuple[int]]:
    return [(each,) for each in range(max(1, epoch - 9), epoch + 1)]


def check(session: Session, epochs: int = EPOCHS) -> list[int]:
    """Every epoch is right or said not to be readable; returns those that are."""
    readable = []
    for epoch in range(epochs + 1):
        if not any(epoch in each for each in session["numbers"].history()):
            with pytest.raises(TimeError) as error:
                session["numbers"].rows(at=epoch)
            assert "nearest epochs" in str(error.value.hint)
            continue
        found = session["numbers"].rows(at=epoch)
        assert [tuple(row) for row in found] == rows_at(epoch)
        ((count, total),) = session["sums"].rows(at=epoch)
        assert (count, total or 0) == (len(found), sum(row.x for row in found))
        readable.append(epoch)
    assert [each.number for each in session.epochs()] == readable
    assert readable == [e for each in session["numbers"].history() for e in each]
    return readable


def test_old_epochs_are_told_apart_more_coarsely(opened: Callable[..., Session]) -> None:
    session = filled(opened(retain=20))
    assert session.retain == 20
    checkpoint(session)
    readable = check(session)
    assert readable[-21:] == list(range(EPOCHS - 20, EPOCHS + 1))
    assert len([e for e in range(EPOCHS) if e not in readable]) > 250
    coarse = [e for e in readable if e < 300]
    assert all((e + 1) % 256 == 0 for e in coarse if e < 256)
    assert repr(session.epochs()).startswith("<epochs ")
    session.close()
    again = opened()
    assert again.retain == 20
    assert check(again) == readable


def test_a_state_that_is_read_from_the_past_stays_when_that_is_thinned_out(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 1 << 10)  # so frames are kept for a short time
    monkeypatch.setattr(writer, "NEAR_FRAMES", 4)
    monkeypatch.setattr(segments, "NEAR_FRAMES", 4)
    filled(opened(), 300, every=30).close()
    session = opened()
    session.rewind(200)  # far behind the checkpoint: what operators hold is read from the past
    session.retain = 5
    session.input("more", "x bigint").insert([(1,)])
    session.commit()
    for epoch in range(202, 300):
        session["more"].insert([(1,)])
        assert session.commit() == epoch
        if epoch % 30 == 0:
            checkpoint(session)
    assert not any(200 in each for each in session["numbers"].history())
    session.close()
    again = opened()
    assert [tuple(row) for row in again["numbers"].rows()] == rows_at(200)
    again["numbers"].insert([(1000,)])
    again["numbers"].remove([(200,)])
    again.commit()
    assert again["sums"].rows() == [(10, sum(range(191, 200)) + 1000)]
    again.verify()


def test_all_is_kept_unless_something_else_is_said(opened: Callable[..., Session]) -> None:
    session = filled(opened())
    assert session.retain is None
    assert len(check(session)) == EPOCHS + 1


def test_a_pin_keeps_its_epoch_exactly(opened: Callable[..., Session]) -> None:
    session = filled(opened(), 300)
    assert session.pin(100, "before June") == 100
    assert session.pin(-3, "near") == 297
    session.retain = 20
    filled(session)
    checkpoint(session)
    assert session.pins == {"before June": 100, "near": 297}
    readable = check(session)
    assert {100, 297} <= set(readable)
    assert 230 not in readable
    session.close()
    session = opened()
    assert session.pins == {"before June": 100, "near": 297}
    session.unpin("before June")
    checkpoint(session)
    assert 100 not in check(session)


def test_a_time_says_how_long_epochs_are_kept(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = filled(opened(retain="2 hours"), 400)
    checkpoint(session)
    assert session.retain == "2 hours"
    assert len(check(session, 400)) == 401
    utc = services_of(session).publisher.ledger.committed(400)
    assert utc is not None
    monkeypatch.setattr("nosync_nb.store.catalog.epoch_index.time.time", lambda: utc + 7201)
    session.pin(0, "so that there is something to write")
    checkpoint(session)
    assert len(check(session, 400)) < 200


def test_what_a_stopped_stage_reads_stays_readable_where_it_stopped(
    opened: Callable[..., Session],
) -> None:
    session = filled(opened(), 100)
    session.stage("odd", session["numbers"].filter("x % 2 = 1"))
    session.stage("odd_sums", session["odd"].group_by().agg(total="sum(x)"))
    odd = session["numbers"].filter("x % 2 = 1")
    session.stage("odd", odd.select("cast(x as string) AS y"))
    assert "odd_sums" in session.stale
    session.retain = 10
    filled(session)
    checkpoint(session)
    assert any(100 in each for each in session["numbers"].history())
    session.stage("odd", odd)
    assert session.stale == {}
    ((total,),) = session["odd_sums"].rows()
    assert total == sum(row.x for row in session["odd"].rows())
    checkpoint(session)
    filled(session, EPOCHS + 1, every=1)
    assert not any(100 in each for each in session["numbers"].history())


def test_a_reader_goes_on_while_the_past_is_thinned_out(
    opened: Callable[..., Session], tmp_path: Path
) -> None:
    session = filled(opened(), 300)
    with nosync_nb.open(tmp_path / "log", mode="r") as reader:
        assert [tuple(row) for row in reader["numbers"].rows(at=100)] == rows_at(100)
        with pytest.raises(nosync_nb.FencedError):
            reader.retain = 5
        session.retain = 10
        filled(session, 400)
        checkpoint(session)
        checkpoint(session)
        filled(session, 401)
        checkpoint(session)
        if not any(100 in each for each in reader["numbers"].history()):
            with pytest.raises(TimeError, match="no longer retained separately"):
                reader["numbers"].rows(at=100)
        else:  # it has not begun again at a later checkpoint yet, and reads what it has
            assert [tuple(row) for row in reader["numbers"].rows(at=100)] == rows_at(100)
        assert [tuple(row) for row in reader["numbers"].rows(at=255)] == rows_at(255)
        assert reader.retain == 10


def test_a_reader_below_which_the_past_is_let_go_is_told_what_is_near(
    opened: Callable[..., Session], tmp_path: Path
) -> None:
    """What it has it reads on; of files that are gone before it has opened them it says so."""
    session = filled(opened(), 300)
    with (
        nosync_nb.open(tmp_path / "log", mode="r") as reader,
        nosync_nb.open(tmp_path / "log", mode="r") as late,
    ):
        held = reader["numbers"].rows(at=100)
        session.retain = 10
        for epochs in range(301, 304):
            filled(session, epochs)
            checkpoint(session)
        assert not any(100 in each for each in session["numbers"].history())
        assert [tuple(row) for row in held] == rows_at(100)
        assert reader["numbers"].rows(at=100) == held
        with pytest.raises(TimeError, match=r"epoch 100 .*no longer retained separately") as told:
            late["numbers"].rows(at=100)
        assert "nearest epochs" in str(told.value.hint)
        assert check(late, 303) == check(session, 303)


def test_files_of_what_is_let_go_are_deleted(
    opened: Callable[..., Session], tmp_path: Path
) -> None:
    session = filled(opened(), 400)
    before = sum(path.stat().st_size for path in (tmp_path / "log" / "history").iterdir())
    session.retain = 10
    checkpoint(session)
    filled(session, 402, every=1)
    names = {path.name for path in (tmp_path / "log" / "history").iterdir()}
    assert names <= services_of(session).publisher.named_files
    after = sum(path.stat().st_size for path in (tmp_path / "log" / "history").iterdir())
    assert after < 0.7 * before


def test_the_checkpoint_before_can_be_gone_back_to_as_long_as_it_is_there(
    opened: Callable[..., Session],
) -> None:
    """Packs that a checkpoint thins out are those of the one before it, which is kept."""
    session = filled(opened(retain=5), 150, every=150)
    for epochs in (152, 300, 301, 400):
        filled(session, epochs, every=epochs)
        assert session.verify().whole
        session.close()
        session = opened()
        assert session.verify().whole
        check(session, epochs)


@pytest.mark.parametrize("said", ["pin", "retain"])
def test_what_is_said_to_be_kept_while_the_past_is_thinned_out_is_kept(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    session = filled(opened(), 400, every=100)
    real = RecutPlan.perform

    def perform(self: RecutPlan, *arguments: Any) -> Any:
        made = real(self, *arguments)
        monkeypatch.undo()
        if said == "pin":
            session.pin(20, "mine")
        else:
            session.retain = None
        return made

    monkeypatch.setattr(RecutPlan, "perform", perform)
    session.retain = 2
    checkpoint(session)
    checkpoint(session)
    readable = check(session, 400)
    assert 20 in readable
    assert (readable == list(range(401))) == (said == "retain"), set(range(401)) - set(readable)
    for _ in range(3):
        checkpoint(session)
    there = store_of(session).packs
    assert set(os.listdir(there)) <= services_of(session).publisher.named_files


def test_nothing_is_let_go_because_a_strangers_log_says_so(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = filled(opened(), 400, every=10_000)
    with monkeypatch.context() as patch:
        patch.setattr(Maintenance, "plan_checkpoint", lambda *_, **__: None)
        session.retain = 5
    session.close()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another"))
    theirs = opened()
    assert theirs.retain is None
    theirs.inputs["numbers"].insert([(1000,)])
    theirs.commit()
    theirs.stage("mine", theirs["numbers"].filter("x > 3"))
    checkpoint(theirs)
    assert len([e for each in theirs["numbers"].history() for e in each]) == 402


@pytest.mark.parametrize("asked", [0, -1, 1.5, True, "", "soon", "3 fortnights", "0 days", [1]])
def test_what_is_no_retention_is_refused(opened: Callable[..., Session], asked: Any) -> None:
    session = opened()
    with pytest.raises(SchemaError, match="retain=") as error:
        session.retain = asked
    assert "30 days" in str(error.value.hint)
    assert session.retain is None


def test_a_retention_is_said_as_it_was_asked(opened: Callable[..., Session]) -> None:
    session = opened()
    for asked, told in (
        ("30 days", "30 days"),
        ("1 week", "1 week"),
        ("90 minutes", "90 minutes"),
        ("1000", 1000),
        (7, 7),
        ("all", None),
        (None, None),
    ):
        session.retain = asked  # type: ignore[assignment]
        assert session.retain == told


def test_pins_are_refused_with_what_is_there(opened: Callable[..., Session]) -> None:
    session = filled(opened(), 200)
    session.pin(7, "a")
    assert session.pin(7, "a") == 7
    with pytest.raises(SchemaError, match="pins epoch 7 already"):
        session.pin(8, "a")
    with pytest.raises(SchemaError, match="pinned as 'b'") as error:
        session.unpin("b")
    assert "a" in str(error.value.hint)
    with pytest.raises(TimeError, match="not readable"):
        session.pin(999, "c")
    with pytest.raises(SchemaError, match="has a name"):
        session.pin(7, "")
    session.unpin("a")
    session.retain = 5
    checkpoint(session)
    with pytest.raises(TimeError, match="no longer retained separately") as late:
        session.pin(20, "d")
    assert "79" in str(late.value.hint)
    assert session.pins == {}


def test_the_beginning_stays_pinned_when_the_log_is_opened_again(
    opened: Callable[..., Session],
) -> None:
    session = opened()
    session.input("x", "a int")
    session.pin(0, "before all")
    session.close()
    assert opened().pins == {"before all": 0}


def test_a_kill_while_the_past_is_thinned_leaves_all_that_is_said_to_be_there(
    tmp_path: Path, opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each operation on a file of a checkpoint that thins the log is copied and opened."""
    session = filled(opened(), 200)
    session.retain = 5
    drain_background(session)
    copies: list[Path] = []

    def copying(name: str) -> None:
        real = getattr(Files, name)

        def called(self: Files, *args: Any, **kwargs: Any) -> Any:
            result = real(self, *args, **kwargs)
            if str(tmp_path / "log") in str(args[0]):
                copies.append(tmp_path / f"copy{len(copies)}")
                shutil.copytree(tmp_path / "log", copies[-1])
            return result

        monkeypatch.setattr(Files, name, called)

    for name in ("replace", "unlink", "rename"):
        if hasattr(Files, name):
            copying(name)
    filled(session, 201, every=201)
    filled(session, 202, every=202)
    monkeypatch.undo()
    assert len(copies) > 5
    for copy in copies:
        with nosync_nb.open(copy, takeover=True) as again:
            for epoch in [e for each in again["numbers"].history() for e in each]:
                assert [tuple(row) for row in again["numbers"].rows(at=epoch)] == rows_at(epoch)
        shutil.rmtree(copy)
