"""Branches at replicas: what a lost disk leaves of them, and what becomes of them when one goes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import nosync_nb
from nosync_nb import Session
from nosync_nb.files.filesystem import Files
from nosync_nb.store.replication.address import parse_address
from nosync_nb.store.replication.endpoints import connect_site
from nosync_nb.store.replication.protocol import LogName, OwnerTerm


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "home" / "key"))


@pytest.fixture
def urls(tmp_path: Path) -> list[str]:
    return [f"file://{tmp_path}/{name}/copy" for name in ("one", "two")]


@pytest.fixture
def session(tmp_path: Path, urls: list[str]) -> Iterator[Session]:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with nosync_nb.open(tmp_path / "log", replicas=urls, quorum=2) as made:
        rows = made.input("rows", "k long, v long")
        made.stage("sums", rows.group_by("k").agg(n="count(*)", most="max(v)"))
        rows.insert([(1, 2), (1, 3), (2, 2)])
        made.commit(wait="replicas", timeout=60)
        yield made


def shipped(session: Session, name: str) -> list[tuple[object, ...]]:
    """A branch of one epoch more, which all replicas have; closed."""
    with session.branch(name) as branch:
        branch.inputs["rows"].insert([(1, 9)])
        branch.commit(wait="replicas", timeout=60)
        return [tuple(row) for row in branch["sums"].rows()]


def logs(url: str) -> set[bytes]:
    return set(connect_site(parse_address(url), Files()).logs())


@pytest.mark.parametrize("home", [True, False], ids=["home is there", "home is lost"])
def test_branches_that_a_lost_disk_has_taken_are_named_and_come_back(
    session: Session, tmp_path: Path, urls: list[str], home: bool
) -> None:
    held = shipped(session, "what_if")
    session.branch("here_alone").close()
    session.sync("replicas", timeout=60)
    session.close()
    shutil.rmtree(tmp_path / "log")
    if not home:
        (tmp_path / "home" / "replicas.json").unlink()
    with nosync_nb.open(tmp_path / "log", replicas=urls, quorum=2) as again:
        (note,) = (text for text in again.recovery.notes if "what_if" in text)
        assert note.startswith("branch 'what_if' is at its replicas: nosync.open(")
        branch = again.branches["what_if"]
        assert len(branch.replicas) == 2
        with nosync_nb.open(branch.path, replicas=branch.replicas) as back:
            assert [tuple(row) for row in back["sums"].rows()] == held
            back.inputs["rows"].insert([(3, 3)])
            back.commit(wait="replicas", timeout=60)
        assert again.branches["what_if"].replicas == ()
        assert again.branches["what_if"].now == 3


def test_a_dropped_branch_goes_from_its_replicas_as_well(session: Session, urls: list[str]) -> None:
    shipped(session, "what_if")
    below = [f"{url}/branches/what_if" for url in urls]
    assert all(len(logs(url)) == 1 for url in below)
    session.drop_branch("what_if")
    assert all(logs(url) == set() for url in below)
    assert session.branches == {}
    assert all(len(logs(url)) == 1 for url in urls)
    held = shipped(session, "what_if")
    with nosync_nb.open(session.branches["what_if"].path) as branch:
        assert [tuple(row) for row in branch["sums"].rows()] == held


def test_replicas_that_cannot_be_reached_are_told_and_tried_again(
    session: Session, tmp_path: Path, urls: list[str]
) -> None:
    shipped(session, "what_if")
    (tmp_path / "two").rename(tmp_path / "away")
    with pytest.warns(UserWarning, match=r"'what_if' is dropped here, and is still at .*/two/copy"):
        session.drop_branch("what_if")
    assert not Path(session.path, "branches", "what_if").exists()
    assert logs(f"{urls[0]}/branches/what_if") == set()
    (left,) = session.branches["what_if"].replicas
    assert "/two/copy/branches/what_if#" in left
    (tmp_path / "away").rename(tmp_path / "two")
    session.drop_branch("what_if")
    assert logs(f"{urls[1]}/branches/what_if") == set()
    assert session.branches == {}


def test_a_copy_that_obeys_a_later_owner_is_left_alone(session: Session, urls: list[str]) -> None:
    shipped(session, "what_if")
    path = session.branches["what_if"].path
    url = f"{urls[0]}/branches/what_if"
    (log_id,) = logs(url)
    later = connect_site(parse_address(url), Files()).replica(log_id)
    later.promise(OwnerTerm(99, "somebody"), LogName(path, "", 1, 1))
    with pytest.warns(UserWarning, match="its copy obeys generation 99, of a later owner"):
        session.drop_branch("what_if")
    assert logs(url) == {log_id}
    assert logs(f"{urls[1]}/branches/what_if") == set()


def test_a_keeper_ships_nothing_of_a_branch_that_was_dropped(
    session: Session, urls: list[str]
) -> None:
    shipped(session, "what_if")
    url = f"{urls[0]}/branches/what_if"
    (log_id,) = logs(url)
    copy = connect_site(parse_address(url), Files()).replica(log_id)
    term = copy.promised()
    assert term is not None
    session.drop_branch("what_if")
    with pytest.raises(nosync_nb.FencedError):
        copy.promise(term, LogName(session.path, "", 1, 1))
