"""`on_loss`: refuse, wait or gap, if too few replicas of a lost log can be read."""

from __future__ import annotations

import os
import shutil
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from checks.sessions import wait_until_level

import nosync_nb
from nosync_nb.errors import DurabilityError, NosyncError, SchemaError
from nosync_nb.session import opening
from nosync_nb.store.replication.consistency import ReadableExtent

WAIT_S = 120.0


pytestmark = pytest.mark.usefixtures("own_key")


@pytest.fixture
def lost_log(tmp_path: Path) -> dict[str, Any]:
    """Arguments that open a lost log, of which two of three replicas are unreachable."""
    urls = [f"file://{tmp_path}/replica-{i}" for i in range(3)]
    path = tmp_path / "x.nosync"
    with nosync_nb.open(path, replicas=urls) as session:
        edges = session.input("edges", "src int, dst int")
        session.stage("degrees", edges.group_by("src").agg(n="count(*)"))
        for i in range(3):
            edges.insert([(i, i)])
            session.commit()
        wait_until_level(session)
    shutil.rmtree(path)
    for i in (1, 2):
        os.rename(tmp_path / f"replica-{i}", tmp_path / f"away-{i}")
    return {"path": path, "replicas": urls}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_loss": "guess"}, "on_loss='guess'"),
        ({"on_loss": None}, "on_loss=None"),
        ({"timeout": 3}, "has no effect"),
        ({"on_loss": "gap", "timeout": 3}, "has no effect"),
        ({"on_loss": "wait", "timeout": 0}, "not a time"),
        ({"on_loss": "wait", "timeout": "3"}, "not a time"),
        ({"on_loss": "wait", "timeout": True}, "not a time"),
    ],
)
def test_invalid_restore_policy_is_refused(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message) as caught:
        nosync_nb.open(tmp_path / "x.nosync", **options)
    assert caught.value.hint
    assert not (tmp_path / "x.nosync").exists()


@pytest.mark.fault(34)
def test_uncertain_loss_is_refused_by_default(lost_log: dict[str, Any]) -> None:
    with pytest.raises(DurabilityError, match="1 of its 3 replicas") as caught:
        nosync_nb.open(**lost_log)
    assert "on_loss" in str(caught.value.hint)
    assert not lost_log["path"].exists()


@pytest.mark.fault(34)
def test_gap_policy_reports_uncertain_epochs_of_each_stage(lost_log: dict[str, Any]) -> None:
    with nosync_nb.open(**lost_log, on_loss="gap") as session:
        assert session.now == 3
        assert session.recovery.uncertain == {"edges": 4, "degrees": 4}
        assert "epoch 4 and later" in str(session.recovery)
        assert any("away" in n or "replica-1" in n for n in session.recovery.notes)
        assert len(session["degrees"].rows()) == 3
        session.inputs["edges"].insert([(9, 9)])
        assert session.commit() == 4
    with nosync_nb.open(lost_log["path"]) as session:
        assert session.now == 4


@pytest.mark.fault(33)
def test_gap_policy_reports_nothing_if_enough_replicas_answer(
    lost_log: dict[str, Any], tmp_path: Path
) -> None:
    os.rename(tmp_path / "away-1", tmp_path / "replica-1")
    with nosync_nb.open(**lost_log, on_loss="gap") as session:
        assert session.recovery.uncertain == {}
        assert session.now == 3


@pytest.mark.fault(34)
def test_wait_policy_reports_the_missing_replica_and_continues_with_it(
    lost_log: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned = threading.Event()
    texts: list[str] = []

    def tell(text: str, *, stacklevel: int) -> None:
        texts.append(text)
        warned.set()

    monkeypatch.setattr(opening, "warn", tell)

    def bring_back() -> None:
        assert warned.wait(WAIT_S)
        os.rename(tmp_path / "away-1", tmp_path / "replica-1")

    helper = threading.Thread(target=bring_back)
    helper.start()
    with nosync_nb.open(**lost_log, on_loss="wait", timeout=WAIT_S) as session:
        helper.join()
        assert session.now == 3
        assert session.recovery.uncertain == {}
    assert len(texts) == 1
    assert "1 of its 3 replicas" in texts[0]


@pytest.mark.fault(34)
def test_wait_policy_ends_after_its_timeout(lost_log: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(DurabilityError, match="1 of its 3 replicas") as caught:
            nosync_nb.open(**lost_log, on_loss="wait", timeout=0.01)
    assert any("waited for 0.01 s" in note for note in caught.value.__notes__)
    assert not lost_log["path"].exists()


def test_replica_that_fails_twice_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of five replicas cannot be read, the second of them the most recent; three are enough."""
    path, urls = tmp_path / "x.nosync", [f"file://{tmp_path}/replica-{i}" for i in range(5)]
    with nosync_nb.open(path, replicas=urls) as session:
        session.input("numbers", "x int").insert([(1,)])
        session.commit()
        wait_until_level(session)
    shutil.rmtree(path)
    failed = []

    def fail_twice(copy: ReadableExtent, other: ReadableExtent) -> bool:
        if not failed:
            os.rename(other.url.removeprefix("file://"), tmp_path / "away")
            failed.append(copy.url)
        if copy.url in failed:
            raise DurabilityError("it does not answer")
        return False

    monkeypatch.setattr(ReadableExtent, "continues", fail_twice)
    with nosync_nb.open(path, replicas=urls) as session:
        assert session["numbers"].rows() == [(1,)]
        (why,) = [note for note in session.recovery.notes if failed[0] in note]
        assert why.count("it does not answer") == 1


def empty_replicas(tmp_path: Path, *numbers: int) -> None:
    """Replaces replicas by empty folders."""
    for number in numbers:
        shutil.rmtree(tmp_path / f"replica-{number}", ignore_errors=True)
        (tmp_path / f"replica-{number}").mkdir()


@pytest.mark.fault(34)
@pytest.mark.parametrize("on_loss", ["refuse", "gap"])
@pytest.mark.parametrize("by_id", [False, True])
def test_no_new_log_while_a_replica_that_may_have_it_is_unreachable(
    lost_log: dict[str, Any], tmp_path: Path, on_loss: Any, *, by_id: bool
) -> None:
    (log_id,) = (each.name for each in (tmp_path / "away-1").iterdir() if len(each.name) == 32)
    empty_replicas(tmp_path, 0, 2)
    if by_id:
        lost_log["replicas"][0] += f"#{log_id}"
    with pytest.raises(DurabilityError, match=r"may have one: .*replica-1") as caught:
        nosync_nb.open(**lost_log, on_loss=on_loss)
    assert "replica-0" not in str(caught.value)
    assert "on_loss='wait'" in str(caught.value.hint)
    assert not lost_log["path"].exists()
    assert not (tmp_path / "replica-1").exists(), "nothing is made in an empty mount point"
    (tmp_path / "away-1").rename(tmp_path / "replica-1")
    with nosync_nb.open(**lost_log, on_loss="gap") as session:
        assert session.now == 3


@pytest.mark.fault(34)
def test_new_log_of_a_user_without_one_reports_the_unreachable_replica(tmp_path: Path) -> None:
    urls = [f"file://{tmp_path}/replica-{i}" for i in range(2)]
    away = f"file://{tmp_path}/not/there"
    with nosync_nb.open(tmp_path / "x.nosync", replicas=[*urls, away]) as session:
        (note,) = session.recovery.notes
        assert "a new log was created" in note
        assert away in note


@pytest.mark.fault(34)
def test_wait_policy_for_the_only_replica_with_the_log(
    lost_log: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty_replicas(tmp_path, 0, 2)
    warned = threading.Event()
    monkeypatch.setattr(opening, "warn", lambda *_, **__: warned.set())
    with pytest.raises(DurabilityError, match=r"may have one: .*replica-1") as caught:
        nosync_nb.open(**lost_log, on_loss="wait", timeout=0.01)
    assert any("waited for 0.01 s" in note for note in caught.value.__notes__)
    warned.clear()

    def bring_back() -> None:
        assert warned.wait(WAIT_S)
        (tmp_path / "away-1").rename(tmp_path / "replica-1")
        (tmp_path / "away-2").rename(tmp_path / "replica-2-again")

    helper = threading.Thread(target=bring_back)
    helper.start()
    lost_log["replicas"][2] = f"file://{tmp_path}/replica-2-again"
    empty_replicas(tmp_path, 2)
    with nosync_nb.open(**lost_log, on_loss="wait", timeout=WAIT_S) as session:
        helper.join()
        assert session.now == 3


@pytest.mark.fault(34)
def test_new_log_without_replicas_can_get_replicas_later(
    lost_log: dict[str, Any], tmp_path: Path
) -> None:
    """Follows the hint of the error that refuses a new log with these replicas."""
    empty_replicas(tmp_path, 0, 2)
    with pytest.raises(DurabilityError, match="may have one"):
        nosync_nb.open(**lost_log)
    with nosync_nb.open(lost_log["path"]) as session:
        assert session.now == 0
    with nosync_nb.open(**lost_log) as session:
        session.input("edges", "src int, dst int").insert([(1, 1)])
        assert session.commit(wait="replicas", timeout=WAIT_S) == 1


@pytest.mark.fault(32)
def test_copy_with_frames_of_another_log_is_not_restored(
    lost_log: dict[str, Any], tmp_path: Path
) -> None:
    copy = next(each for each in (tmp_path / "away-1").iterdir() if len(each.name) == 32)
    url = f"file://{tmp_path}/other"
    with nosync_nb.open(tmp_path / "other.nosync", replicas=[url]) as session:
        session.input("others", "x int").insert([(77,)])
        session.commit(wait="replicas", timeout=WAIT_S)
    (other,) = (each for each in (tmp_path / "other").iterdir() if len(each.name) == 32)
    swapped = tmp_path / "other" / copy.name
    other.rename(swapped)
    for addresses in ([f"{url}#{copy.name}"], [url]):
        for on_loss in ("refuse", "gap"):
            with pytest.raises(NosyncError) as caught:
                nosync_nb.open(lost_log["path"], replicas=addresses, on_loss=on_loss)  # type: ignore[arg-type]
            if addresses[0] != url:
                assert copy.name in str(caught.value)
                assert f"holds frames of log {other.name}" in str(caught.value)
                assert f"rename the folder to '{other.name}'" in str(caught.value)
            assert not lost_log["path"].exists()
    # The readable copies of the log are used, and the report names the other one.
    shutil.rmtree(tmp_path / "replica-1", ignore_errors=True)
    shutil.rmtree(tmp_path / "replica-0")
    (tmp_path / "away-2").rename(tmp_path / "replica-2")
    (tmp_path / "away-1").rename(tmp_path / "replica-1")
    (tmp_path / "replica-0").mkdir()
    swapped.rename(tmp_path / "replica-0" / copy.name)
    with nosync_nb.open(**lost_log) as session:
        assert session.now == 3
        assert any(f"holds frames of log {other.name}" in n for n in session.recovery.notes)
