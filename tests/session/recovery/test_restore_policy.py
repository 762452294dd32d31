"""`on_loss`: refuse, wait or gap, if too few replicas of a lost log can be read."""

from __future__ import annotations

import os
import shutil
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from internals import services_of

import nosync_nb
from nosync_nb import Session
from nosync_nb.errors import DurabilityError, NosyncError, SchemaError
from nosync_nb.session import opening
from nosync_nb.store.replication.consistency import ReadableExtent

WAIT_S = 120.0


pytestmark = pytest.mark.usefixtures("own_key")


def level(session: Session) -> None:
    """Waits until all replicas have everything."""
    replication = services_of(session).replication
    with replication.heard:
        assert replication.heard.wait_for(
            lambda: all(each.state == "level" for each in replication.status()), WAIT_S
        )


@pytest.fixture
def lost(tmp_path: Path) -> dict[str, Any]:
    """How to open a log that is gone, with two of its three replicas."""
    urls = [f"file://{tmp_path}/replica-{i}" for i in range(3)]
    path = tmp_path / "x.nosync"
    with nosync_nb.open(path, replicas=urls) as session:
        edges = session.input("edges", "src int, dst int")
        session.stage("degrees", edges.group_by("src").agg(n="count(*)"))
        for i in range(3):
            edges.insert([(i, i)])
            session.commit()
        level(session)
    shutil.rmtree(path)
    for i in (1, 2):
        os.rename(tmp_path / f"replica-{i}", tmp_path / f"away-{i}")
    return {"path": path, "replicas": urls}


@pytest.mark.parametrize(
    ("options", "told"),
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
def test_what_is_no_policy_is_refused(tmp_path: Path, options: Any, told: str) -> None:
    with pytest.raises(SchemaError, match=told) as caught:
        nosync_nb.open(tmp_path / "x.nosync", **options)
    assert caught.value.hint
    assert not (tmp_path / "x.nosync").exists()


@pytest.mark.fault(34)
def test_unless_told_otherwise_a_loss_that_may_be_one_is_refused(lost: dict[str, Any]) -> None:
    with pytest.raises(DurabilityError, match="1 of its 3 replicas") as caught:
        nosync_nb.open(**lost)
    assert "on_loss" in str(caught.value.hint)
    assert not lost["path"].exists()


@pytest.mark.fault(34)
def test_a_gap_is_told_for_each_stage(lost: dict[str, Any]) -> None:
    with nosync_nb.open(**lost, on_loss="gap") as session:
        assert session.now == 3
        assert session.recovery.uncertain == {"edges": 4, "degrees": 4}
        assert "epoch 4 and later" in str(session.recovery)
        assert any("away" in n or "replica-1" in n for n in session.recovery.notes)
        assert len(session["degrees"].rows()) == 3
        session.inputs["edges"].insert([(9, 9)])
        assert session.commit() == 4
    with nosync_nb.open(lost["path"]) as session:
        assert session.now == 4


@pytest.mark.fault(33)
def test_no_gap_is_told_where_there_is_none(lost: dict[str, Any], tmp_path: Path) -> None:
    os.rename(tmp_path / "away-1", tmp_path / "replica-1")
    with nosync_nb.open(**lost, on_loss="gap") as session:
        assert session.recovery.uncertain == {}
        assert session.now == 3


@pytest.mark.fault(34)
def test_who_waits_is_told_for_what_and_goes_on_when_it_is_there(
    lost: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()
    texts: list[str] = []

    def tell(text: str, *, stacklevel: int) -> None:
        texts.append(text)
        told.set()

    monkeypatch.setattr(opening, "warn", tell)

    def bring_back() -> None:
        assert told.wait(WAIT_S)
        os.rename(tmp_path / "away-1", tmp_path / "replica-1")

    helper = threading.Thread(target=bring_back)
    helper.start()
    with nosync_nb.open(**lost, on_loss="wait", timeout=WAIT_S) as session:
        helper.join()
        assert session.now == 3
        assert session.recovery.uncertain == {}
    assert len(texts) == 1
    assert "1 of its 3 replicas" in texts[0]


@pytest.mark.fault(34)
def test_a_wait_ends_when_it_was_told_to(lost: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(DurabilityError, match="1 of its 3 replicas") as caught:
            nosync_nb.open(**lost, on_loss="wait", timeout=0.01)
    assert any("waited for 0.01 s" in note for note in caught.value.__notes__)
    assert not lost["path"].exists()


def test_who_is_asked_in_vain_twice_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of five cannot be read, of which the second is the furthest: three are enough."""
    path, urls = tmp_path / "x.nosync", [f"file://{tmp_path}/replica-{i}" for i in range(5)]
    with nosync_nb.open(path, replicas=urls) as session:
        session.input("numbers", "x int").insert([(1,)])
        session.commit()
        level(session)
    shutil.rmtree(path)
    asked = []

    def goes_away(copy: ReadableExtent, other: ReadableExtent) -> bool:
        if not asked:
            os.rename(other.url.removeprefix("file://"), tmp_path / "away")
            asked.append(copy.url)
        if copy.url in asked:
            raise DurabilityError("it does not answer")
        return False

    monkeypatch.setattr(ReadableExtent, "continues", goes_away)
    with nosync_nb.open(path, replicas=urls) as session:
        assert session["numbers"].rows() == [(1,)]
        (why,) = [note for note in session.recovery.notes if asked[0] in note]
        assert why.count("it does not answer") == 1


def emptied(tmp_path: Path, *numbers: int) -> None:
    """Replicas that were replaced by empty folders."""
    for number in numbers:
        shutil.rmtree(tmp_path / f"replica-{number}", ignore_errors=True)
        (tmp_path / f"replica-{number}").mkdir()


@pytest.mark.fault(34)
@pytest.mark.parametrize("on_loss", ["refuse", "gap"])
@pytest.mark.parametrize("by_id", [False, True])
def test_no_new_log_is_begun_while_a_replica_that_may_have_the_log_does_not_answer(
    lost: dict[str, Any], tmp_path: Path, on_loss: Any, *, by_id: bool
) -> None:
    (log_id,) = (each.name for each in (tmp_path / "away-1").iterdir() if len(each.name) == 32)
    emptied(tmp_path, 0, 2)
    if by_id:
        lost["replicas"][0] += f"#{log_id}"
    with pytest.raises(DurabilityError, match=r"may have one: .*replica-1") as caught:
        nosync_nb.open(**lost, on_loss=on_loss)
    assert "replica-0" not in str(caught.value)
    assert "on_loss='wait'" in str(caught.value.hint)
    assert not lost["path"].exists()
    assert not (tmp_path / "replica-1").exists(), "nothing is made in an empty mount point"
    (tmp_path / "away-1").rename(tmp_path / "replica-1")
    with nosync_nb.open(**lost, on_loss="gap") as session:
        assert session.now == 3


@pytest.mark.fault(34)
def test_a_log_that_begins_where_this_user_had_none_reports_the_replica_that_does_not_answer(
    tmp_path: Path,
) -> None:
    urls = [f"file://{tmp_path}/replica-{i}" for i in range(2)]
    away = f"file://{tmp_path}/not/there"
    with nosync_nb.open(tmp_path / "x.nosync", replicas=[*urls, away]) as session:
        (note,) = session.recovery.notes
        assert "a new log was created" in note
        assert away in note


@pytest.mark.fault(34)
def test_a_wait_for_the_one_replica_that_has_the_log_ends_when_it_is_back_or_in_time(
    lost: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied(tmp_path, 0, 2)
    told = threading.Event()
    monkeypatch.setattr(opening, "warn", lambda *_, **__: told.set())
    with pytest.raises(DurabilityError, match=r"may have one: .*replica-1") as caught:
        nosync_nb.open(**lost, on_loss="wait", timeout=0.01)
    assert any("waited for 0.01 s" in note for note in caught.value.__notes__)
    told.clear()

    def bring_back() -> None:
        assert told.wait(WAIT_S)
        (tmp_path / "away-1").rename(tmp_path / "replica-1")
        (tmp_path / "away-2").rename(tmp_path / "replica-2-again")

    helper = threading.Thread(target=bring_back)
    helper.start()
    lost["replicas"][2] = f"file://{tmp_path}/replica-2-again"
    emptied(tmp_path, 2)
    with nosync_nb.open(**lost, on_loss="wait", timeout=WAIT_S) as session:
        helper.join()
        assert session.now == 3


@pytest.mark.fault(34)
def test_a_new_log_is_begun_without_replicas_and_gets_them_later(
    lost: dict[str, Any], tmp_path: Path
) -> None:
    """As the hint says that refuses to begin one with them."""
    emptied(tmp_path, 0, 2)
    with pytest.raises(DurabilityError, match="may have one"):
        nosync_nb.open(**lost)
    with nosync_nb.open(lost["path"]) as session:
        assert session.now == 0
    with nosync_nb.open(**lost) as session:
        session.input("edges", "src int, dst int").insert([(1, 1)])
        assert session.commit(wait="replicas", timeout=WAIT_S) == 1


@pytest.mark.fault(32)
def test_a_copy_with_the_frames_of_another_log_is_not_restored(
    lost: dict[str, Any], tmp_path: Path
) -> None:
    copy = next(each for each in (tmp_path / "away-1").iterdir() if len(each.name) == 32)
    url = f"file://{tmp_path}/other"
    with nosync_nb.open(tmp_path / "other.nosync", replicas=[url]) as session:
        session.input("others", "x int").insert([(77,)])
        session.commit(wait="replicas", timeout=WAIT_S)
    (other,) = (each for each in (tmp_path / "other").iterdir() if len(each.name) == 32)
    swapped = tmp_path / "other" / copy.name
    other.rename(swapped)
    for asked in ([f"{url}#{copy.name}"], [url]):
        for on_loss in ("refuse", "gap"):
            with pytest.raises(NosyncError) as caught:
                nosync_nb.open(lost["path"], replicas=asked, on_loss=on_loss)  # type: ignore[arg-type]
            if asked[0] != url:
                assert copy.name in str(caught.value)
                assert f"holds frames of log {other.name}" in str(caught.value)
                assert f"rename the folder to '{other.name}'" in str(caught.value)
            assert not lost["path"].exists()
    # The copies of the log that can be read are used, and the report tells of the other one.
    shutil.rmtree(tmp_path / "replica-1", ignore_errors=True)
    shutil.rmtree(tmp_path / "replica-0")
    (tmp_path / "away-2").rename(tmp_path / "replica-2")
    (tmp_path / "away-1").rename(tmp_path / "replica-1")
    (tmp_path / "replica-0").mkdir()
    swapped.rename(tmp_path / "replica-0" / copy.name)
    with nosync_nb.open(**lost) as session:
        assert session.now == 3
        assert any(f"holds frames of log {other.name}" in n for n in session.recovery.notes)
