"""Budgets: a log that needs more bytes than it may have thins out its past, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from internals import inside

import nosync_nb
from nosync_nb import SchemaError, Session
from nosync_nb.files.filesystem import Files
from nosync_nb.session.maintenance import disk_usage, maintenance
from nosync_nb.session.maintenance.disk_usage import DiskUsage
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.store import retention_policy, store
from nosync_nb.store.log import writer
from nosync_nb.store.retention_policy import DiskBudget
from nosync_nb.trace import compaction
from nosync_nb.trace.compaction import LAYERS_MAX, WIDTH
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
    inside(session).worker.drain()
    inside(session).upkeep.checkpoint()


def taken(session: Session) -> DiskUsage:
    inside(session).worker.drain()
    return disk_usage.measure_disk_usage(inside(session).publisher)


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
        inside(session).worker.drain()
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

    def least(publisher: Publisher) -> DiskBudget:
        need = was(publisher)
        assert need.budget is not None
        measured.append(need.budget)
        return need

    was = disk_usage.minimum_bytes
    monkeypatch.setattr(disk_usage, "minimum_bytes", least)
    with pytest.raises(SchemaError, match="is less than the state of now") as error:
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
        assert retention_policy.parse_bounds(asked) == (size, None, None)
    assert [retention_policy.size_text(n) for n in (999, 1000, 1001, 10**9)] == [
        "999 B",
        "1.0 kB",
        "1.1 kB",
        "1.0 GB",
    ]


def test_the_least_and_the_greatest_bounds_are_bounds() -> None:
    assert (
        retention_policy.parse_bounds(1) == retention_policy.parse_bounds("1 B") == (1, None, None)
    )
    assert retention_policy.parse_bounds(f"{2**20} TiB") == retention_policy.parse_bounds(2**60)
    assert retention_policy.parse_bounds("1 file, 1x") == (None, 1, 1.0)
    assert retention_policy.parse_bounds(f"{2**40} files") == (None, 2**40, None)
    for asked in (2**60 + 1, f"{2**40 + 1} files", f"{2**40 + 1}x", "0.5x"):
        with pytest.raises(SchemaError, match="budget="):
            retention_policy.parse_bounds(asked)


@pytest.mark.parametrize(
    "asked", ["0 files", "1.5 files", "5 files, 6 files", "2 MB, 3 MB", "5 f", "5 files, much", ","]
)
def test_what_is_no_number_of_files_is_refused(opened: Callable[..., Session], asked: str) -> None:
    session = opened(budget="100 files")
    with pytest.raises(SchemaError, match="budget=") as error:
        session.budget = asked
    assert "500 files" in str(error.value.hint)
    assert session.budget == "100 files"


def test_files_are_said_as_they_were_asked_for(opened: Callable[..., Session]) -> None:
    session = opened(budget="2 GB, 500 files")
    assert session.budget == "2000000000 B, 500 files"
    session.budget = session.budget
    assert session.budget == "2000000000 B, 500 files"
    session.budget = "40 files"
    assert session.budget == "40 files"
    session.close()
    again = opened()
    assert again.budget == "40 files"
    again.budget = "3 GB"
    assert again.budget == 3 * 10**9


def test_a_log_with_more_files_than_it_may_have_keeps_less_of_its_past(
    opened: Callable[..., Session],
) -> None:
    session = filled(opened(), 3000, every=30)
    session.pin(123, "mine")
    before = taken(session)
    need = disk_usage.minimum_bytes(inside(session).publisher).files
    assert need is not None
    assert before.needed > need + 60
    session.budget = f"{need + 30} files"
    after = taken(session)
    assert after.needed <= need + 30
    assert {123, 3000} <= {*readable(session)}
    for epoch in range(3001, 3006):  # two checkpoints later they are gone from the disk
        filled(session, epoch)
        inside(session).worker.drain()
    after = taken(session)
    assert after.garbage == 0
    assert len([*Path(session.path).rglob("*")]) < before.needed
    session.close()
    again = opened()
    assert {123, 3000} <= {*readable(again)}
    assert again.verify().whole


def test_epochs_stay_that_would_go_without_a_file_less(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pack that becomes coarser is a pack as before: of fewer bytes, which nobody asked for."""
    session = filled(opened(), 300, every=150)
    session.budget = f"{taken(session).needed} files"
    monkeypatch.setattr(store, "SPILL_ROWS", 4)
    session.input("more", "x bigint").insert([(each,) for each in range(9)])
    session.commit()  # a file that the state of now needs
    for _ in range(3):
        session["more"].insert([(1,)])
        session.commit()
        checkpoint(session)
    assert disk_usage.over_budget(inside(session).publisher) == ("files",)
    told = [e for each in session["numbers"].history() for e in each]
    assert told[:301] == list(range(301))


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight rows are many: such batches lie in files, and merging them writes others."""
    for place in (store, maintenance):
        monkeypatch.setattr(place, "SPILL_ROWS", 8)
    monkeypatch.setattr(compaction, "YOUNG_ROWS", 4)


def grown(session: Session, epochs: int) -> int:
    """Each epoch brings twenty rows; how many layers its input has when all is done."""
    rows = session.input("rows", "x bigint")
    for _ in range(epochs):
        rows.insert([(session.now * 20 + each,) for each in range(20)])
        session.commit()
        inside(session).worker.drain()
    return len(session_layers(session))


def session_layers(session: Session) -> Sequence[Any]:
    return inside(session).upkeep.layers("rows")


@pytest.mark.usefixtures("large")
def test_merges_wait_if_more_was_written_than_may_be(opened: Callable[..., Session]) -> None:
    session = opened(budget="1x")
    counts = [grown(session, 1) for _ in range(60)]
    assert max(counts) > WIDTH + 2  # a full level waits,
    assert max(counts) <= LAYERS_MAX + 1  # but never more of them than who reads may meet
    merges, spared = (
        session.stats["merges"],
        disk_usage.write_amplification(inside(session).publisher),
    )
    assert 0 < merges < 40
    session.budget = None
    inside(session).worker.drain()
    assert len(session_layers(session)) <= 2 * WIDTH < max(counts)
    assert session.stats["merges"] > merges
    assert session["rows"].count() == 60 * 20
    assert disk_usage.write_amplification(inside(session).publisher).again > spared.again


@pytest.mark.usefixtures("large")
def test_less_is_written_again_with_a_budget_and_after_a_restart(tmp_path: Path) -> None:
    found = {}
    for budget in ("none", "1.1x"):
        session = nosync_nb.open(tmp_path / budget, budget=budget)
        grown(session, 100)
        session.close()
        session = nosync_nb.open(tmp_path / budget)
        assert (session.budget or "none") == budget
        grown(session, 300)
        assert len(session_layers(session)) <= LAYERS_MAX + 1
        assert session["rows"].count() == 400 * 20
        found[budget] = disk_usage.write_amplification(inside(session).publisher)
        session.close()
    assert 1.1 < found["1.1x"].times < found["none"].times
    assert found["1.1x"].again < 0.8 * found["none"].again


@pytest.mark.parametrize("asked", ["0x", "0.5x", "3x, 4x", "x", "3 y", "-1x"])
def test_what_is_no_number_of_writes_is_refused(opened: Callable[..., Session], asked: str) -> None:
    session = opened(budget="3x")
    with pytest.raises(SchemaError, match="budget=") as error:
        session.budget = asked
    assert '"3x" for what comes in to be written three times' in str(error.value.hint)
    assert session.budget == "3x"
    session.budget = "2.5 x, 2 GB"
    assert session.budget == "2000000000 B, 2.5x"


def test_a_release_that_knows_no_writes_reads_the_log() -> None:
    said = retention_policy.Retention(budget=5, writes=2.5)
    assert said.to_json() == {
        retention_policy.KEY: {"epochs": None, "seconds": None, "pins": {}, "budget": 5},
        retention_policy.BOUNDS: {"writes": 2.5},
    }
    assert retention_policy.retention_of(said.to_json()) == said
    assert retention_policy.bounds_well_formed({"writes": 2.5})
    for wrong in ({"writes": "2"}, {"writes": 0.5}, {"writes": True}, {"writes": float("nan")}):
        assert not retention_policy.bounds_well_formed(wrong)


def test_fewer_files_than_the_state_of_now_takes_are_refused(
    opened: Callable[..., Session],
) -> None:
    session = filled(opened(), 300)
    with pytest.raises(SchemaError, match=r"'3 files', 3 files, is less .* take: \d+ files"):
        session.budget = "3 files"
    assert session.budget is None
    assert readable(session) == list(range(301))


def test_a_budget_is_said_when_a_log_is_opened_by_who_writes(
    opened: Callable[..., Session],
) -> None:
    assert opened(budget="2 GB").budget == 2 * 10**9
    assert opened(budget="none").budget is None
    with pytest.raises(SchemaError, match="who writes"):
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
            inside(session).worker.drain()
    assert len(copies) >= 3
    for copy in copies:
        with nosync_nb.open(copy, takeover=True) as again:
            assert again.now in readable(again)
        shutil.rmtree(copy)
