"""Branches at replicas: restored and dropped in folders, servers and object stores."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from machines.object_server import with_bucket
from machines.replica_servers import ReplicaServer

import nosync_nb
from nosync_nb import Session
from nosync_nb.files.filesystem import Files
from nosync_nb.store.replication.address import parse_address
from nosync_nb.store.replication.config import checked_config
from nosync_nb.store.replication.endpoints import connect_site
from nosync_nb.store.replication.protocol import LogName, OwnerTerm
from nosync_nb.store.replication.remote_branches import remote_branches

WAIT_S = 60


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
    with opened(tmp_path, urls) as session:
        yield session


def opened(tmp_path: Path, urls: list[str]) -> Session:
    """A session with one epoch, which all replicas have."""
    session = nosync_nb.open(tmp_path / "log", replicas=urls, quorum=2)
    rows = session.input("rows", "k long, v long")
    session.stage("sums", rows.group_by("k").agg(n="count(*)", most="max(v)"))
    rows.insert([(1, 2), (1, 3), (2, 2)])
    session.commit(wait="replicas", timeout=WAIT_S)
    return session


def commit_in_branch(session: Session, name: str) -> list[tuple[object, ...]]:
    """Commits one epoch in a branch, waits for all replicas, and closes it."""
    with session.branch(name) as branch:
        branch.inputs["rows"].insert([(1, 9)])
        branch.commit(wait="replicas", timeout=WAIT_S)
        return [tuple(row) for row in branch["sums"].rows()]


def log_ids(url: str) -> set[bytes]:
    return set(connect_site(parse_address(url), Files()).logs())


@pytest.mark.parametrize("home", [True, False], ids=["home is there", "home is lost"])
def test_branches_of_a_lost_disk_are_listed_and_restored(
    session: Session, tmp_path: Path, urls: list[str], home: bool
) -> None:
    expected = commit_in_branch(session, "what_if")
    session.branch("here_alone").close()
    session.sync("replicas", timeout=WAIT_S)
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
            assert [tuple(row) for row in back["sums"].rows()] == expected
            back.inputs["rows"].insert([(3, 3)])
            back.commit(wait="replicas", timeout=WAIT_S)
        assert again.branches["what_if"].replicas == ()
        assert again.branches["what_if"].now == 3


def test_drop_of_branch_reports_unreachable_replica_and_retries(
    session: Session, tmp_path: Path, urls: list[str]
) -> None:
    commit_in_branch(session, "what_if")
    (tmp_path / "two").rename(tmp_path / "away")
    with pytest.warns(
        UserWarning, match=r"'what_if' is dropped locally, but a copy remains at .*/two/copy"
    ):
        session.drop_branch("what_if")
    assert not Path(session.path, "branches", "what_if").exists()
    assert log_ids(f"{urls[0]}/branches/what_if") == set()
    (remaining,) = session.branches["what_if"].replicas
    assert "/two/copy/branches/what_if#" in remaining
    (tmp_path / "away").rename(tmp_path / "two")
    session.drop_branch("what_if")
    assert log_ids(f"{urls[1]}/branches/what_if") == set()
    assert session.branches == {}


def test_branch_copy_of_a_later_owner_is_left_when_dropped(
    session: Session, urls: list[str]
) -> None:
    commit_in_branch(session, "what_if")
    path = session.branches["what_if"].path
    url = f"{urls[0]}/branches/what_if"
    (log_id,) = log_ids(url)
    later = connect_site(parse_address(url), Files()).replica(log_id)
    later.promise(OwnerTerm(99, "somebody"), LogName(path, "", 1, 1))
    with pytest.warns(UserWarning, match=r"the copy belongs to a later owner \(generation 99\)"):
        session.drop_branch("what_if")
    assert log_ids(url) == {log_id}
    assert log_ids(f"{urls[1]}/branches/what_if") == set()


def test_replica_refuses_writes_to_a_dropped_branch(session: Session, urls: list[str]) -> None:
    commit_in_branch(session, "what_if")
    url = f"{urls[0]}/branches/what_if"
    (log_id,) = log_ids(url)
    copy = connect_site(parse_address(url), Files()).replica(log_id)
    term = copy.promised()
    assert term is not None
    session.drop_branch("what_if")
    with pytest.raises(nosync_nb.FencedError):
        copy.promise(term, LogName(session.path, "", 1, 1))


@pytest.fixture
def servers(key: None, tmp_path: Path) -> Iterator[list[ReplicaServer]]:
    with ExitStack() as running:
        folders = [tmp_path / name for name in ("one", "two")]
        yield [running.enter_context(ReplicaServer(folder)) for folder in folders]


@pytest.fixture
def bucket_urls(key: None) -> Iterator[list[str]]:
    """Two folders of an object store."""
    with with_bucket():
        yield ["s3://bucket/one", "s3://bucket/two"]


@pytest.fixture
def folder_urls(tmp_path: Path, urls: list[str]) -> list[str]:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    return urls


@pytest.fixture(params=["folder_urls", "servers", "bucket_urls"])
def remote_urls(request: pytest.FixtureRequest) -> list[str]:
    places = request.getfixturevalue(request.param)
    return [each.url if isinstance(each, ReplicaServer) else each for each in places]


def open_with_branch(tmp_path: Path, urls: list[str]) -> Session:
    """A session with a branch of one more epoch; all replicas have both."""
    session = opened(tmp_path, urls)
    commit_in_branch(session, "what_if")
    return session


def copies_by_branch(tmp_path: Path, urls: list[str]) -> dict[str, int]:
    """The number of copies of each branch at the replicas."""
    log = str(tmp_path / "log")
    asked = checked_config(urls, 2, log=log).replicas
    return {each.name: len(each.urls) for each in remote_branches(Files(), log, asked)}


@pytest.mark.fault(33)
def test_branch_is_restored_and_dropped_at_every_kind_of_replica(
    tmp_path: Path, remote_urls: list[str]
) -> None:
    open_with_branch(tmp_path, remote_urls).close()
    assert copies_by_branch(tmp_path, remote_urls) == {"what_if": 2}
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "home" / "replicas.json").unlink()
    with nosync_nb.open(tmp_path / "log", replicas=remote_urls, quorum=2) as again:
        (note,) = (text for text in again.recovery.notes if "what_if" in text)
        assert note.startswith("branch 'what_if' is at its replicas: nosync.open(")
        branch = again.branches["what_if"]
        with nosync_nb.open(branch.path, replicas=branch.replicas) as back:
            assert sorted(map(tuple, back["sums"].rows())) == [(1, 3, 9), (2, 1, 2)]
            back.inputs["rows"].insert([(3, 3)])
            back.commit(wait="replicas", timeout=WAIT_S)
        again.drop_branch("what_if")
        assert again.branches == {}
        assert copies_by_branch(tmp_path, remote_urls) == {}
        (log_id,) = {log for url in remote_urls for log in log_ids_at(tmp_path, url)}
        assert all(log_id in log_ids_at(tmp_path, url) for url in remote_urls)
        commit_in_branch(again, "what_if")  # the name is free again
        assert [tuple(row) for row in again["sums"].rows()] == [(1, 2, 3), (2, 1, 2)]


def log_ids_at(tmp_path: Path, url: str) -> set[bytes]:
    """The ids of the logs of which a replica has copies."""
    (address,) = checked_config([url], 1, log=str(tmp_path / "log")).replicas
    return set(connect_site(address, Files()).logs())


@pytest.mark.fault(27)
def test_drop_of_branch_is_retried_after_server_returns(
    tmp_path: Path, servers: list[ReplicaServer]
) -> None:
    urls = [each.url for each in servers]
    with open_with_branch(tmp_path, urls) as session:
        servers[1].kill()
        with pytest.warns(
            UserWarning, match="'what_if' is dropped locally, but a copy remains at grpc://"
        ):
            session.drop_branch("what_if")
        (remaining,) = session.branches["what_if"].replicas
        assert remaining.startswith(urls[1])
        servers[1].start()
        assert copies_by_branch(tmp_path, urls) == {"what_if": 1}
        session.drop_branch("what_if")
        assert session.branches == {}
        assert copies_by_branch(tmp_path, urls) == {}
