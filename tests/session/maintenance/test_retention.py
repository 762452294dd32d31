"""`retain` and `pin`: old epochs become coarser, pinned ones stay, and all rows are right."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from internals import checkpoint_now, drain_background, services_of, store_of

import nosync_nb
from nosync_nb import SchemaError, Session, TimeError
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.store.log import segments, writer
from nosync_nb.trace.history.pack_plans import RecutPlan

EPOCHS = 700


def fill(session: Session, epochs: int = EPOCHS, *, every: int = 64) -> Session:
    """Commits epochs that insert their number and remove an older one; `sums` reads the input."""
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


def check_readable(session: Session, epochs: int = EPOCHS) -> list[int]:
    """Checks that every epoch is right or reported as not readable; returns the readable ones."""
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


def test_old_epochs_are_retained_more_coarsely(opened: Callable[..., Session]) -> None:
    session = fill(opened(retain=20))
    assert session.retain == 20
    checkpoint(session)
    readable = check_readable(session)
    assert readable[-21:] == list(range(EPOCHS - 20, EPOCHS + 1))
    assert len([e for e in range(EPOCHS) if e not in readable]) > 250
    coarse = [e for e in readable if e < 300]
    assert all((e + 1) % 256 == 0 for e in coarse if e < 256)
    assert repr(session.epochs()).startswith("<epochs ")
    session.close()
    again = opened()
    assert again.retain == 20
    assert check_readable(again) == readable


def test_state_read_from_the_past_survives_its_thinning(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 1 << 10)  # frames are retained shortly
    monkeypatch.setattr(writer, "NEAR_FRAMES", 4)
    monkeypatch.setattr(segments, "NEAR_FRAMES", 4)
    fill(opened(), 300, every=30).close()
    session = opened()
    session.rewind(200)  # far behind the checkpoint, so operator state is read from the past
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


def test_all_epochs_are_retained_by_default(opened: Callable[..., Session]) -> None:
    session = fill(opened())
    assert session.retain is None
    assert len(check_readable(session)) == EPOCHS + 1


def test_pinned_epoch_stays_readable(opened: Callable[..., Session]) -> None:
    session = fill(opened(), 300)
    assert session.pin(100, "before June") == 100
    assert session.pin(-3, "near") == 297
    session.retain = 20
    fill(session)
    checkpoint(session)
    assert session.pins == {"before June": 100, "near": 297}
    readable = check_readable(session)
    assert {100, 297} <= set(readable)
    assert 230 not in readable
    session.close()
    session = opened()
    assert session.pins == {"before June": 100, "near": 297}
    session.unpin("before June")
    checkpoint(session)
    assert 100 not in check_readable(session)


def test_retention_can_be_a_time(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = fill(opened(retain="2 hours"), 400)
    checkpoint(session)
    assert session.retain == "2 hours"
    assert len(check_readable(session, 400)) == 401
    utc = services_of(session).publisher.ledger.committed(400)
    assert utc is not None
    monkeypatch.setattr("nosync_nb.store.catalog.epoch_index.time.time", lambda: utc + 7201)
    session.pin(0, "so that there is something to write")
    checkpoint(session)
    assert len(check_readable(session, 400)) < 200


def test_inputs_of_a_stale_stage_stay_readable_where_it_stopped(
    opened: Callable[..., Session],
) -> None:
    session = fill(opened(), 100)
    session.stage("odd", session["numbers"].filter("x % 2 = 1"))
    session.stage("odd_sums", session["odd"].group_by().agg(total="sum(x)"))
    odd = session["numbers"].filter("x % 2 = 1")
    session.stage("odd", odd.select("cast(x as string) AS y"))
    assert "odd_sums" in session.stale
    session.retain = 10
    fill(session)
    checkpoint(session)
    assert any(100 in each for each in session["numbers"].history())
    session.stage("odd", odd)
    assert session.stale == {}
    ((total,),) = session["odd_sums"].rows()
    assert total == sum(row.x for row in session["odd"].rows())
    checkpoint(session)
    fill(session, EPOCHS + 1, every=1)
    assert not any(100 in each for each in session["numbers"].history())


def test_reader_of_thinned_epochs_gets_the_nearest_ones(
    opened: Callable[..., Session], tmp_path: Path
) -> None:
    """Mapped epochs stay readable; an epoch whose files are deleted before is reported."""
    session = fill(opened(), 300)
    with (
        nosync_nb.open(tmp_path / "log", mode="r") as reader,
        nosync_nb.open(tmp_path / "log", mode="r") as late,
    ):
        rows = reader["numbers"].rows(at=100)
        session.retain = 10
        for epochs in range(301, 304):
            fill(session, epochs)
            checkpoint(session)
        assert not any(100 in each for each in session["numbers"].history())
        assert [tuple(row) for row in rows] == rows_at(100)
        assert reader["numbers"].rows(at=100) == rows
        with pytest.raises(TimeError, match=r"epoch 100 .*no longer retained separately") as raised:
            late["numbers"].rows(at=100)
        assert "nearest epochs" in str(raised.value.hint)
        assert check_readable(late, 303) == check_readable(session, 303)
        assert late.retain == 10
        with pytest.raises(nosync_nb.FencedError):
            reader.retain = 5


def test_files_of_thinned_epochs_are_deleted(
    opened: Callable[..., Session], tmp_path: Path
) -> None:
    session = fill(opened(), 400)
    before = sum(path.stat().st_size for path in (tmp_path / "log" / "history").iterdir())
    session.retain = 10
    checkpoint(session)
    fill(session, 402, every=1)
    names = {path.name for path in (tmp_path / "log" / "history").iterdir()}
    assert names <= services_of(session).publisher.named_files
    after = sum(path.stat().st_size for path in (tmp_path / "log" / "history").iterdir())
    assert after < 0.7 * before


def test_previous_checkpoint_stays_usable_while_it_exists(opened: Callable[..., Session]) -> None:
    """The packs that a checkpoint thins belong to the previous checkpoint, which is retained."""
    session = fill(opened(retain=5), 150, every=150)
    for epochs in (152, 300, 301, 400):
        fill(session, epochs, every=epochs)
        assert session.verify().whole
        session.close()
        session = opened()
        assert session.verify().whole
        check_readable(session, epochs)


@pytest.mark.parametrize("setting", ["pin", "retain"])
def test_pin_or_retain_set_during_thinning_takes_effect(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    session = fill(opened(), 400, every=100)
    real = RecutPlan.perform

    def perform(self: RecutPlan, *arguments: Any) -> Any:
        made = real(self, *arguments)
        monkeypatch.undo()
        if setting == "pin":
            session.pin(20, "mine")
        else:
            session.retain = None
        return made

    monkeypatch.setattr(RecutPlan, "perform", perform)
    session.retain = 2
    checkpoint(session)
    checkpoint(session)
    readable = check_readable(session, 400)
    assert 20 in readable
    assert (readable == list(range(401))) == (setting == "retain"), set(range(401)) - set(readable)
    for _ in range(3):
        checkpoint(session)
    there = store_of(session).packs
    assert set(os.listdir(there)) <= services_of(session).publisher.named_files


def test_retention_of_an_untrusted_log_is_ignored(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = fill(opened(), 400, every=10_000)
    with monkeypatch.context() as patch:
        patch.setattr(Maintenance, "plan_checkpoint", lambda *_, **__: None)
        session.retain = 5
    session.close()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another"))
    untrusted = opened()
    assert untrusted.retain is None
    untrusted.inputs["numbers"].insert([(1000,)])
    untrusted.commit()
    untrusted.stage("mine", untrusted["numbers"].filter("x > 3"))
    checkpoint(untrusted)
    assert len([e for each in untrusted["numbers"].history() for e in each]) == 402


@pytest.mark.parametrize("asked", [0, -1, 1.5, True, "", "soon", "3 fortnights", "0 days", [1]])
def test_invalid_retention_is_refused(opened: Callable[..., Session], asked: Any) -> None:
    session = opened()
    with pytest.raises(SchemaError, match="retain=") as error:
        session.retain = asked
    assert "30 days" in str(error.value.hint)
    assert session.retain is None


def test_retention_is_reported_as_it_was_set(opened: Callable[..., Session]) -> None:
    session = opened()
    for value, expected in (
        ("30 days", "30 days"),
        ("1 week", "1 week"),
        ("90 minutes", "90 minutes"),
        ("1000", 1000),
        (7, 7),
        ("all", None),
        (None, None),
    ):
        session.retain = value  # type: ignore[assignment]
        assert session.retain == expected


def test_invalid_pins_are_refused(opened: Callable[..., Session]) -> None:
    session = fill(opened(), 200)
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


def test_pin_of_epoch_zero_survives_reopening(opened: Callable[..., Session]) -> None:
    session = opened()
    session.input("x", "a int")
    session.pin(0, "before all")
    session.close()
    assert opened().pins == {"before all": 0}
