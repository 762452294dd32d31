"""A log behind its replicas: an opening takes the missing frames from them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import nosync_nb
from nosync_nb import Session

WAIT_S = 60
BIG = 70_000  # rows that go to a file of their own


pytestmark = pytest.mark.usefixtures("own_key")


@pytest.fixture
def urls(tmp_path: Path) -> list[str]:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    return [f"file://{tmp_path}/{name}/copy" for name in ("one", "two")]


@pytest.fixture
def session(tmp_path: Path, urls: list[str]) -> Iterator[Session]:
    with nosync_nb.open(tmp_path / "log", replicas=urls, quorum=2) as opened_session:
        rows = opened_session.input("rows", "k long, v long")
        opened_session.stage("sums", rows.group_by("k").agg(n="count(*)", most="max(v)"))
        rows.insert([(1, 2), (1, 3), (2, 2)])
        opened_session.commit(wait="replicas", timeout=WAIT_S)
        yield opened_session


def restore_image(tmp_path: Path) -> None:
    """Replaces the folder by the copy that was made earlier."""
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "image").rename(tmp_path / "log")


@pytest.mark.fault(32)
def test_restored_folder_gets_later_epochs_from_replicas(
    session: Session, tmp_path: Path, urls: list[str]
) -> None:
    shutil.copytree(session.path, tmp_path / "image")
    session.inputs["rows"].insert([(9, 9)])
    session.commit()
    session.inputs["rows"].insert((i, 7) for i in range(100, 100 + BIG))
    session.commit()
    session.stage("late", session.inputs["rows"].filter("k = 9"))
    session.inputs["rows"].insert([(9, 10)])
    session.commit(wait="replicas", timeout=WAIT_S)
    expected = sorted(session["sums"].rows())
    session.close()
    restore_image(tmp_path)
    with nosync_nb.open(tmp_path / "log", replicas=urls, quorum=2) as again:
        assert again.now == 4
        (note,) = (text for text in again.recovery.notes if "had lost" in text)
        assert note.startswith("this disk had lost epochs 2 to 4; restored from file://")
        assert again.recovery.lost == []
        assert sorted(again["sums"].rows()) == expected
        assert [tuple(row) for row in again["late"].rows()] == [(9, 9), (9, 10)]
        assert len(list(again["sums"].rows(at=2))) == 3
        again.inputs["rows"].insert([(9, 11)])
        again.commit(wait="replicas", timeout=WAIT_S)
    with nosync_nb.open(tmp_path / "log") as again:
        assert again.now == 5
        assert not any("had lost" in text for text in again.recovery.notes)


@pytest.mark.fault(32)
def test_restored_folder_opens_without_reachable_replicas(
    session: Session, tmp_path: Path, urls: list[str]
) -> None:
    shutil.copytree(session.path, tmp_path / "image")
    session.inputs["rows"].insert([(9, 9)])
    session.commit(wait="replicas", timeout=WAIT_S)
    session.close()
    restore_image(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).rename(tmp_path / f"{name}-away")
    with nosync_nb.open(tmp_path / "log", replicas=urls, quorum=2) as again:
        assert again.now == 1
        assert not any("had lost" in text for text in again.recovery.notes)
