"""`budget`: a log above its bytes downsamples its history, and nothing else."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
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


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Session]]:
    """Opens a log whose segments are small, so that the past is most of it."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 16 << 10)
    sessions: list[Session] = []

    def again(**options: Any) -> Session:
        sessions.append(nosync_nb.open(tmp_path / "log", **options))
        return sessions[-1]

    yield again
    for each in sessions:
        each.close()


def filled(session: Session, epochs: int, *, every: int = 100) -> Session:
    """Each epoch brings ten rows, and takes away those of before."""
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


def taken(session: Session) -> DiskUsage:
    drain_background(session)
    return disk_usage.measure_disk_usage(services_of(session).publisher)


def readable(session: Session) -> list[int]:
    """The epochs that can be read, each of which is right."""
    epochs = [e for each in session["numbers"].history() for e in each]
    for epoch in epochs:
        assert sorted(map(tuple, session["numbers"].rows(at=epoch))) == rows_at(epoch)
    return epochs


def test_a_log_beyond_its_budget_keeps_less_of_its_past(opened: Callable[..., Session]) -> None:
    session = filled(opened(), 1000)
    session.pin(123, "mine")
    before = taken(session)
    assert before.history > 2 * (before.live + before.log)
    budget = before.live + before.log + before.history // 4
    session.budget = budget
    assert session.budget == budget
    assert taken(session).own <= budget
    assert len(readable(session)) < 500
    assert {123, 1000} <= {*readable(session)}
    session.close()
    again = opened()
    assert again.budget == budget
    assert {123, 1000} <= {*readable(again)}
    assert again.verify().whole


def test_what_is_let_go_is_gone_from_the_disk_after_a_few_epochs(
    opened: Callable[..., Session],
) -> None:
    session = filled(opened(), 1000)
    before = taken(session)
    session.budget = before.live + before.log + before.history // 2
    for epoch in range(1001, 1006):
        filled(session, epoch)
        drain_background(session)
    after = taken(session)
    assert after.garbage == 0
    assert after.total <= session.budget + after.log


def test_the_oldest_past_gives_way_first(opened: Callable[..., Session]) -> None:
    session = filled(opened(), 1000)
    before = taken(session)
    session.budget = before.live + before.history * 4 // 5
    assert taken(session).own <= session.budget
    epochs = readable(session)
    assert {*range(850, 1001)} <= {*epochs}
    assert len([epoch for epoch in epochs if epoch < 500]) < 450


def test_a_budget_below_the_state_of_now_is_refused_and_nothing_is_let_go(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = filled(opened(), 300)
    session.budget = "1 GB"
    measured: list[int] = []  # merges go on meanwhile: what counts is what was measured then

    def least(publisher: Publisher) -> int:
        measured.append(was(publisher))
        return measured[-1]

    was = disk_usage.minimum_bytes
    monkeypatch.setattr(disk_usage, "minimum_bytes", least)
    with pytest.raises(SchemaError, match="is less than the current state") as error:
        session.budget = "2 kB"
    need = retention_policy.size_text(measured.pop())
    assert "'2 kB', 2.0 kB" in str(error.value)
    assert need in str(error.value)
    assert f"at least {need}" in str(error.value.hint)
    assert session.budget == 10**9
    assert readable(session) == list(range(301))
    session.budget = None
    assert session.budget is None


@pytest.mark.parametrize("asked", [0, -1, 1.5, True, "", "much", "3 parrots", "0 MB", "-2 GB", []])
def test_what_is_no_size_is_refused(opened: Callable[..., Session], asked: Any) -> None:
    session = opened()
    with pytest.raises(SchemaError, match="budget=") as error:
        session.budget = asked
    assert "2 GB" in str(error.value.hint)
    assert session.budget is None


def test_a_size_is_read_as_it_is_written() -> None:
    for asked, size in (("2 GB", 2 * 10**9), ("1.5 MiB", 3 << 19), ("7", 7), (12, 12)):
        assert retention_policy.parse_budget(asked) == size
    assert [retention_policy.size_text(n) for n in (999, 1000, 1001, 10**9)] == [
        "999 B",
        "1.0 kB",
        "1.1 kB",
        "1.0 GB",
    ]


def test_the_least_and_the_greatest_budget_are_accepted() -> None:
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


def test_a_log_that_records_removed_limits_opens_ignores_them_and_reports_it_once(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    current = Retention.to_json

    def to_json(self: Retention) -> dict[str, Any]:
        return {**current(self), "bounds": {"files": 2, "writes": 1.5}}

    def notes(session: Session) -> list[str]:
        return [note for note in session.recovery.notes if "2 files and 1.5x" in note]

    with monkeypatch.context() as older_release:
        older_release.setattr(Retention, "to_json", to_json)
        session = filled(opened(), 300, every=30)
        assert "bounds" in services_of(session).publisher.catalog
        session.close()
    reader = opened(mode="r")
    assert len(notes(reader)) == 1
    reader.close()
    again = opened()
    assert len(notes(again)) == 1
    assert again.budget is None
    assert again.recovery.recomputed == 0
    filled(again, 400, every=30)
    assert readable(again) == list(range(401))  # although there are more than two files
    again.budget = None  # the remedy of the note
    again.close()
    assert notes(opened()) == []


def test_a_budget_is_said_when_a_log_is_opened_by_who_writes(
    opened: Callable[..., Session],
) -> None:
    assert opened(budget="2 GB").budget == 2 * 10**9
    assert opened(budget="none").budget is None
    with pytest.raises(SchemaError, match="the session that writes"):
        opened(mode="r", budget="2 GB")


@pytest.mark.parametrize("said", ["pin", "budget"])
def test_what_is_said_while_the_past_gives_way_holds(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    session = filled(opened(), 600)
    before = taken(session)
    real, performed = RecutPlan.perform, []

    def perform(self: RecutPlan, *arguments: Any) -> Any:
        made = real(self, *arguments)
        if not performed:
            performed.append(self)
            if said == "pin":
                session.pin(20, "mine")
            else:
                session.budget = None
        return made

    with monkeypatch.context() as patch:
        patch.setattr(RecutPlan, "perform", perform)
        session.budget = before.live + before.log + before.history // 8
        taken(session)
    epochs = readable(session)
    assert 20 in epochs
    assert (epochs == list(range(601))) == (said == "budget")


def test_a_kill_while_the_past_gives_way_leaves_all_that_is_said_to_be_there(
    tmp_path: Path, opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = filled(opened(), 300)
    before = taken(session)
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
            filled(session, epoch)
            drain_background(session)
    assert len(copies) >= 3
    for copy in copies:
        with nosync_nb.open(copy, takeover=True) as again:
            assert again.now in readable(again)
        shutil.rmtree(copy)
