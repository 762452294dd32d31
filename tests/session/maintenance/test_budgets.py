"""`budget`: a log above its bytes downsamples its history, and nothing else."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from internals import checkpoint_now, drain_background, services_of

import nosync_nb
from nosync_nb import SchemaError, Session
from nosync_nb.files.filesystem import Files
from nosync_nb.session.maintenance import disk_usage
from nosync_nb.session.maintenance.disk_usage import DiskUsage
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.store import retention_policy
from nosync_nb.store.log import writer
from nosync_nb.store.retention_policy import Retention
from nosync_nb.trace.history.pack_plans import RecutPlan


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes segments small, so that history is most of a log."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 16 << 10)


def fill(session: Session, epochs: int, *, every: int = 100) -> Session:
    """Commits epochs that insert ten rows and remove those of the previous epoch."""
    numbers = session.input("numbers", "x bigint, e bigint")
    for epoch in range(session.now + 1, epochs + 1):
        numbers.insert(rows_at(epoch))
        if epoch > 1:
            numbers.remove(rows_at(epoch - 1))
        session.commit()
        if epoch % every == 0:
            checkpoint(session)
    return session


def rows_at(epoch: int) -> list[tuple[int, int]]:
    return [(each, epoch) for each in range(10)] if epoch else []


def checkpoint(session: Session) -> None:
    drain_background(session)
    checkpoint_now(session)


def usage_of(session: Session) -> DiskUsage:
    drain_background(session)
    return disk_usage.measure_disk_usage(services_of(session).publisher)


def readable_epochs(session: Session) -> list[int]:
    """Returns the readable epochs, and checks their rows."""
    epochs = [e for each in session["numbers"].history() for e in each]
    for epoch in epochs:
        assert sorted(map(tuple, session["numbers"].rows(at=epoch))) == rows_at(epoch)
    return epochs


def test_log_above_its_budget_thins_its_history(opened: Callable[..., Session]) -> None:
    session = fill(opened(), 1000)
    session.pin(123, "mine")
    before = usage_of(session)
    assert before.history > 2 * (before.live + before.log)
    budget = before.live + before.log + before.history // 4
    session.budget = budget
    assert session.budget == budget
    assert usage_of(session).own <= budget
    assert len(readable_epochs(session)) < 500
    assert {123, 1000} <= {*readable_epochs(session)}
    session.close()
    again = opened()
    assert again.budget == budget
    assert {123, 1000} <= {*readable_epochs(again)}
    assert again.verify().whole


def test_thinned_history_is_deleted_after_a_few_epochs(opened: Callable[..., Session]) -> None:
    session = fill(opened(), 1000)
    before = usage_of(session)
    session.budget = before.live + before.log + before.history // 2
    for epoch in range(1001, 1006):
        fill(session, epoch)
        drain_background(session)
    after = usage_of(session)
    assert after.garbage == 0
    assert after.total <= session.budget + after.log


def test_oldest_history_is_thinned_first(opened: Callable[..., Session]) -> None:
    session = fill(opened(), 1000)
    before = usage_of(session)
    session.budget = before.live + before.history * 4 // 5
    assert usage_of(session).own <= session.budget
    epochs = readable_epochs(session)
    assert {*range(850, 1001)} <= {*epochs}
    assert len([epoch for epoch in epochs if epoch < 500]) < 450


def test_budget_below_the_current_state_is_refused_and_thins_nothing(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = fill(opened(), 300)
    session.budget = "1 GB"
    measured: list[int] = []  # concurrent merges change the size, so record what was measured

    def measure(publisher: Publisher) -> int:
        measured.append(real(publisher))
        return measured[-1]

    real = disk_usage.minimum_bytes
    monkeypatch.setattr(disk_usage, "minimum_bytes", measure)
    with pytest.raises(SchemaError, match="is less than the current state") as error:
        session.budget = "2 kB"
    need = retention_policy.size_text(measured.pop())
    assert "'2 kB', 2.0 kB" in str(error.value)
    assert need in str(error.value)
    assert f"at least {need}" in str(error.value.hint)
    assert session.budget == 10**9
    assert readable_epochs(session) == list(range(301))
    session.budget = None
    assert session.budget is None


@pytest.mark.parametrize("asked", [0, -1, 1.5, True, "", "much", "3 parrots", "0 MB", "-2 GB", []])
def test_invalid_budget_is_refused(opened: Callable[..., Session], asked: Any) -> None:
    session = opened()
    with pytest.raises(SchemaError, match="budget=") as error:
        session.budget = asked
    assert "2 GB" in str(error.value.hint)
    assert session.budget is None


def test_sizes_are_parsed_and_formatted() -> None:
    for text, size in (("2 GB", 2 * 10**9), ("1.5 MiB", 3 << 19), ("7", 7), (12, 12)):
        assert retention_policy.parse_budget(text) == size
    assert [retention_policy.size_text(n) for n in (999, 1000, 1001, 10**9)] == [
        "999 B",
        "1.0 kB",
        "1.1 kB",
        "1.0 GB",
    ]


def test_limits_of_a_budget() -> None:
    assert retention_policy.parse_budget(1) == retention_policy.parse_budget("1 B") == 1
    assert retention_policy.parse_budget(f"{2**20} TiB") == retention_policy.parse_budget(2**60)
    with pytest.raises(SchemaError, match="budget="):
        retention_policy.parse_budget(2**60 + 1)


@pytest.mark.parametrize(
    ("asked", "remedy"),
    [
        ("500 files", "2 GB"),
        ("3x", "2 GB"),
        ("2.5 x, 3 MB", "3 MB"),
        ("1 GB, 500 files, 3x", "1 GB"),
    ],
)
def test_removed_limits_raise_with_a_limit_in_bytes_to_type(
    opened: Callable[..., Session], asked: str, remedy: str
) -> None:
    with pytest.raises(SchemaError, match="number of files and on rewriting were removed"):
        opened(budget=asked)
    session = opened(budget="5 GB")
    with pytest.raises(SchemaError) as error:
        session.budget = asked
    assert session.budget == 5 * 10**9
    typed = re.match(r'limit the bytes: budget="([^"]+)"', str(error.value.hint))
    assert typed is not None
    assert typed[1] == remedy
    session.budget = typed[1]


def test_recorded_limits_of_an_older_release_are_ignored_and_reported_once(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    current = Retention.to_json

    def to_json(self: Retention) -> dict[str, Any]:
        return {**current(self), "bounds": {"files": 2, "writes": 1.5}}

    def notes(session: Session) -> list[str]:
        return [note for note in session.recovery.notes if "2 files and 1.5x" in note]

    with monkeypatch.context() as older_release:
        older_release.setattr(Retention, "to_json", to_json)
        session = fill(opened(), 300, every=30)
        assert "bounds" in services_of(session).publisher.catalog
        session.close()
    reader = opened(mode="r")
    assert len(notes(reader)) == 1
    reader.close()
    again = opened()
    assert len(notes(again)) == 1
    assert again.budget is None
    assert again.recovery.recomputed == 0
    fill(again, 400, every=30)
    assert readable_epochs(again) == list(range(401))  # although there are more than two files
    again.budget = None  # the remedy of the note
    again.close()
    assert notes(opened()) == []


def test_budget_can_be_set_at_opening_by_the_writer(opened: Callable[..., Session]) -> None:
    assert opened(budget="2 GB").budget == 2 * 10**9
    assert opened(budget="none").budget is None
    with pytest.raises(SchemaError, match="the log's owner"):
        opened(mode="r", budget="2 GB")


@pytest.mark.parametrize("setting", ["pin", "budget"])
def test_pin_or_budget_set_during_thinning_takes_effect(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    session = fill(opened(), 600)
    before = usage_of(session)
    real, performed = RecutPlan.perform, []

    def perform(self: RecutPlan, *arguments: Any) -> Any:
        made = real(self, *arguments)
        if not performed:
            performed.append(self)
            if setting == "pin":
                session.pin(20, "mine")
            else:
                session.budget = None
        return made

    with monkeypatch.context() as patch:
        patch.setattr(RecutPlan, "perform", perform)
        session.budget = before.live + before.log + before.history // 8
        usage_of(session)
    epochs = readable_epochs(session)
    assert 20 in epochs
    assert (epochs == list(range(601))) == (setting == "budget")


def test_kill_while_a_budget_is_applied_leaves_readable_epochs_right(
    tmp_path: Path, opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = fill(opened(), 300)
    before = usage_of(session)
    copies: list[Path] = []
    real = Files.replace

    def replace(self: Files, *arguments: Any, **options: Any) -> Any:
        result = real(self, *arguments, **options)
        copies.append(tmp_path / f"copy{len(copies)}")
        shutil.copytree(tmp_path / "log", copies[-1])
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Files, "replace", replace)
        session.budget = before.live + before.log + before.history // 4
        for epoch in (301, 302, 303):
            fill(session, epoch)
            drain_background(session)
    assert len(copies) >= 3
    for copy in copies:
        with nosync_nb.open(copy, takeover=True) as again:
            assert again.now in readable_epochs(again)
        shutil.rmtree(copy)
