"""A replica without the checkpoint of its frames.

The files of those frames are gone, so that they cannot be read back, and they were never
acknowledged. They hide no acknowledged frame, and block no owner.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from faults.faults import Crash
from faults.memory_disk import Inode
from internals import log_of
from machines.replica_world import World

from nosync_nb import open as open_session
from nosync_nb.errors import DurabilityError, FencedError
from nosync_nb.store.log import Log
from nosync_nb.store.records import payloads
from nosync_nb.store.replication.address import parse_address
from nosync_nb.store.replication.agent.log_source import LogSource
from nosync_nb.store.replication.agent.shipper import Shipper
from nosync_nb.store.replication.agent.takeover import (
    QuorumPendingError,
    ReplicaAheadError,
    TakeoverPoll,
    TakeoverVote,
)
from nosync_nb.store.replication.backends.folder import FolderReplica
from nosync_nb.store.replication.config import ReplicaConfig
from nosync_nb.store.replication.protocol import LogName, OwnerTerm
from nosync_nb.store.replication.restore import restore

NAME = LogName("/logs/x.nosync", "me")


def world_with_unshipped_files() -> World:
    """A log with four epochs on all replicas, and two with files on two of them."""
    world = World(7)
    for _ in range(4):
        world.append()
    world.sync()
    for number in range(3):
        world.ship(number)
    world.append_file()
    world.append_file()
    world.sync()
    for number in (1, 2):
        world.ship(number)
    return world


def drop_files(world: World) -> None:
    """Writes a checkpoint that needs none of the files, and an epoch after it."""
    while world.live:
        world.checkpoint()
    world.append()
    world.sync()


def empty_replica(world: World, number: int) -> None:
    """Empties a replica."""
    world.clear(number)
    world.acks[number] = world.holds[number] = 0
    world.wiped.add(number)


def crashed_at_each_step(prepared: Callable[[], World]) -> Iterator[World]:
    """Worlds in which the shipper to the first replica died at each step."""
    for step in range(1, 100):
        world = prepared()
        world.disks[0].crash_in(step, "before")
        try:
            world.ship(0)
        except Crash:
            world.shippers[0] = None
            world.disks[0].go_on()
            yield world
        else:
            return
    raise AssertionError("it does not end")


@pytest.mark.fault(27, 33)
def test_outdated_copy_of_later_owner_hides_no_longer_copy() -> None:
    def prepared() -> World:
        world = world_with_unshipped_files()
        drop_files(world)
        for number in (1, 2):
            world.ship(number)
        world.take_over()
        world.append_file()
        world.sync()
        for number in (1, 2):
            try:
                world.poll.ask(number, TakeoverVote("", 1))
            except QuorumPendingError:
                assert number == 1
        return world

    seen = set()
    for world in crashed_at_each_step(prepared):
        assert world.announced == 7
        seen.add((len(world.segments(0)), world.readable(0)))
        empty_replica(world, 2)
        world.lose_disk()  # asserts that announced epochs are there
        assert len(world.appended) >= 7
        world.level()
        assert world.announced == len(world.appended)
    assert (2, 4) in seen  # unreadable frames of the later owner


@pytest.mark.fault(27, 32, 33)
def test_unreadable_frames_do_not_block_log() -> None:
    def prepared() -> World:
        world = world_with_unshipped_files()
        world.ship(0)
        world.append_file()
        drop_files(world)
        return world

    unread = 0
    for world in crashed_at_each_step(prepared):
        before = world.readable(0)
        empty_replica(world, 1)
        sizes = [len(world.quiet.read(path)) for path in world.segments(0)]
        unread += before == 6 and sum(sizes) > len(world.quiet.read(world.segments(2)[0]))
        world.lose_disk()
        assert len(world.appended) >= world.announced == 6
        world.level()
        assert world.announced == len(world.appended)
    assert unread


@pytest.mark.fault(31, 33, 34)
def test_refilled_replica_counts_after_its_acknowledgement() -> None:
    def prepared() -> World:
        world = world_with_unshipped_files()
        world.ship(0)
        world.append_file()
        world.append()
        world.sync()
        for number in (0, 1):
            world.ship(number)
        assert world.announced == 8
        empty_replica(world, 0)
        return world

    half = 0
    for world in crashed_at_each_step(prepared):
        named = tuple(each._replace(log_id=world.log.id) for each in world.replicas.replicas)
        there, known = bool(world.segments(0)), world.acknowledged(0)
        half += there and not known
        world.tree.put(world.path, None)
        with world.hidden([1]):
            if known:
                restored = world.restored(world.replicas._replace(replicas=named))
                assert restored is not None
                assert restored.seq == 8
            else:
                with pytest.raises(restore.QuorumUnavailableError, match="1 of its 3 replicas"):
                    world.restored(world.replicas._replace(replicas=named))
    assert half


def half_damaged() -> World:
    """Four frames on two replicas, and a third replica of a later owner with a damaged last frame.

    The later owner began after a loss of power, and has written them again.
    """
    world = World(8)
    for _ in range(3):
        world.append()
    world.keep_copy()
    world.append()
    world.sync()
    for number in (0, 1):
        world.ship(number)
    world.power()
    assert world.log.heads[-1].start.seq < 4  # the other frames were not known to be synced
    for number in (0, 1, 2):
        with suppress(QuorumPendingError):
            world.poll.ask(number, TakeoverVote("", 1))
    world.ship(2)
    assert world.announced == 4
    inode = world.tree.find(world.segments(2)[-1])
    assert isinstance(inode, Inode)
    inode.flip(8 * len(inode.content) - 1)
    noted = f"{world.replicas.replicas[2].path}/{world.log.id.hex()}/acknowledged"
    world.quiet.replace(noted, b"torn")  # the note is not synced, so a loss of power tears it
    world.holds[2] = 0
    assert world.readable(2) == 3
    return world


@pytest.mark.fault(12, 33)
def test_damaged_copy_of_later_owner_hides_nothing() -> None:
    world = half_damaged()
    world.lose_disk()  # asserts that announced epochs are there
    world.level()
    assert world.announced == len(world.appended) == 5


@pytest.mark.fault(12, 32)
def test_damaged_copy_does_not_vouch_for_old_disk() -> None:
    world = half_damaged()
    before = world.put_back(alone=True)
    assert (before.last, before.announced) == (3, 4)
    world.outrank()
    world.refuted(before)  # asserts that announced epochs are not overwritten
    assert world.appended == before.appended


class Unsure(FolderReplica):
    """A replica that fails once it has a segment."""

    def sync(self, term: OwnerTerm, seq: int | None) -> None:
        if self.held().files:
            raise DurabilityError("it has died")
        super().sync(term, seq)


@pytest.mark.fault(27, 32)
def test_emptied_replica_has_no_vote_before_acknowledging(tmp_path: Path) -> None:
    path, backup = tmp_path / "x.nosync", tmp_path / "backup"
    places = [tmp_path / "a", tmp_path / "b"]
    for place in places:
        place.mkdir()

    def ship(
        log: Log, poll: TakeoverPoll, number: int, kind: type[FolderReplica] = FolderReplica
    ) -> None:
        source = LogSource(str(path), log.generation)
        replica = kind(str(places[number]), source.log_id)
        Shipper(source, replica, NAME, lambda vote: poll.ask(number, vote)).ship()

    def write(log: Log, label: str) -> None:
        log.append(payloads.EPOCH, payloads.encode_payload(1, 0.0, {"label": label}, []))
        log.sync()

    with Log.open(path) as log:
        write(log, "one")
    shutil.copytree(path, backup)
    with Log.open(path) as log:
        write(log, "two")
        for number in (0, 1):
            ship(log, TakeoverPoll(1, 1), number)
        shutil.rmtree(places[1])
        places[1].mkdir()
        with pytest.raises(DurabilityError, match="has died"):
            ship(log, TakeoverPoll(1, 1), 1, Unsure)
    assert len(list(places[1].glob("*/segment-*"))) == 1  # of two
    shutil.rmtree(path)
    os.rename(backup, path)
    Log.open(path).close()  # of a generation that the replicas have granted
    with Log.open(path) as log:
        write(log, "another")
        poll = TakeoverPoll(2, 2)
        with pytest.raises(QuorumPendingError):
            ship(log, poll, 1)
        with pytest.raises(ReplicaAheadError):
            ship(log, poll, 0)


@pytest.mark.fault(14, 32)
def test_replica_with_lost_file_is_still_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "keys" / "key"))
    path, backup, place = tmp_path / "x.nosync", tmp_path / "backup", tmp_path / "r"
    place.mkdir()

    def shipper(source: LogSource) -> Shipper:
        replica = FolderReplica(str(place), source.log_id)
        return Shipper(
            source, replica, LogName(str(path), "me"), lambda vote: TakeoverPoll(1, 1).ask(0, vote)
        )

    with open_session(path) as session:
        edges = session.input("edges", "src int, dst int")
        session.commit(wait="disk")
        shutil.copytree(path, backup)
        edges.insert([(i, i) for i in range(70_000)])
        session.commit(wait="disk")
        shipper(LogSource(session.path, log_of(session).generation)).ship()
    (part,) = place.glob("*/layers/*.arrow")
    part.unlink()
    shutil.rmtree(path)
    os.rename(backup, path)
    with open_session(path) as session:
        session.inputs["edges"].insert([(1, 2)])
        session.commit(wait="disk")
        source = LogSource(session.path, log_of(session).generation)
        with pytest.raises(FencedError, match="lacks"):
            shipper(source).ship()


def test_changed_quorum_settles_when_enough_replicas_know_it() -> None:
    three = tuple(parse_address(f"file:///replicas/{number}") for number in range(3))
    fewer = ReplicaConfig(three, 2).changed(ReplicaConfig(three, 1), 10)
    assert not fewer.settles([True, False, False], [10, 10, 10])
    assert fewer.settles([True, True, False], [10, 0, 0])
    more = ReplicaConfig(three, 1).changed(ReplicaConfig(three, 2), 10)
    assert not more.settles([True, True, True], [10, 9, 0])
    assert more.settles([False, False, False], [10, 10, 0])
