"""Frames lost by a disk: an opening takes them from replicas."""

from __future__ import annotations

import pytest
from faults.faults import Crash, FakeMachine
from machines.replica_world import World

from nosync_nb.store.log import Log, segments
from nosync_nb.store.log.frames import Mark
from nosync_nb.store.log.recovery import CaughtUpFrames
from nosync_nb.store.log.segments import Segment
from nosync_nb.store.replication.endpoints import connect_site
from nosync_nb.store.replication.protocol import LogName, OwnerTerm
from nosync_nb.store.replication.restore import restore

SEED = 1


@pytest.fixture
def world() -> World:
    """A log of three epochs, one of them durable, the last one with a file of rows."""
    made = World(SEED)
    made.append()
    made.sync()
    made.append_file()
    made.append()
    return made


def ship_written(world: World, number: int = 0) -> None:
    """The keeper ships the frames of a dead owner."""
    world.ship(number, written=True)


def open_with_catch_up(world: World, machine: FakeMachine) -> tuple[Log, list[Mark]]:
    """Opens the log as another process; returns the marks at which it asks replicas."""
    marks = []

    def ask(head: Segment, end: Mark) -> CaughtUpFrames | None:
        marks.append(end)
        return restore.furthest_replica(world.quiet, world.replicas.replicas, head, end)

    log = Log.open(world.path, files=world.files, machine=machine, background=False, further=ask)
    return log, marks


def next_process(world: World, boot: str | None = None) -> FakeMachine:
    """The process after this one died."""
    world.machine.die()
    return world.machine.after(boot=boot)


@pytest.mark.fault(8)
def test_frames_lost_by_power_failure_return_from_replica(world: World) -> None:
    ship_written(world)
    world.darken()
    log, marks = open_with_catch_up(world, next_process(world, "boot-2"))
    assert [mark.seq for mark in marks] == [1]
    assert [frame.payload for frame in log.frames()] == world.appended
    (note,) = (text for text in log.notes if "had lost" in text)
    url = world.replicas.replicas[0].url
    assert note == f"this disk had lost epochs 2 to 3; restored from {url}"
    assert log.durable == 3
    log.close()
    assert not any(
        "had lost" in text for text in open_with_catch_up(world, next_process(world))[0].notes
    )


@pytest.mark.fault(5, 8)
def test_crash_at_any_step_of_catch_up_is_repeatable(
    world: World,
) -> None:
    ship_written(world)
    world.darken()
    machine, crashes = world.machine, 0
    while True:
        machine.die()
        machine = machine.after(boot=f"boot-{crashes + 2}")
        world.files.crash_in(crashes + 1, "after")
        try:
            log, _ = open_with_catch_up(world, machine)
            break
        except Crash:
            crashes += 1
            world.files.go_on()
            world.darken()
    assert crashes > 3
    assert [frame.payload for frame in log.frames()] == world.appended


@pytest.mark.fault(1, 7)
def test_replicas_are_not_asked_if_disk_is_complete(world: World) -> None:
    ship_written(world)
    killed, marks = open_with_catch_up(world, next_process(world))
    assert marks == []
    killed.close()
    after_close, marks = open_with_catch_up(world, next_process(world, "boot-2"))
    assert marks == []
    assert [frame.payload for frame in after_close.frames()] == world.appended


@pytest.mark.fault(14, 32)
def test_frames_with_missing_files_are_not_taken(world: World) -> None:
    ship_written(world)
    world.darken()
    address = world.replicas.replicas[0]
    copy = connect_site(address, world.quiet).replica(world.log.id)
    (name,) = (name for name in copy.held().files if name.endswith(".arrow"))
    world.quiet.unlink(f"{address.path}/{world.log.id.hex()}/layers/{name}")
    log, _ = open_with_catch_up(world, next_process(world, "boot-2"))
    assert [frame.payload for frame in log.frames()] == world.appended[:1]


@pytest.mark.fault(24, 32)
def test_frames_of_other_owner_are_not_taken(world: World) -> None:
    """One of the two owners is fenced, and neither takes frames of the other."""
    ship_written(world)
    world.darken()
    address = world.replicas.replicas[0]
    folder = f"{address.path}/{world.log.id.hex()}"
    copy = connect_site(address, world.quiet).replica(world.log.id)
    (name,) = (name for name in copy.held().files if name.startswith("segment-"))
    data = world.quiet.read(f"{folder}/{name}")
    head = segments.decode_header(data[: segments.HEADER_BYTES])
    assert head is not None
    other = segments.encode_header(head._replace(word=b"another."))
    world.quiet.unlink(f"{folder}/{name}")
    world.quiet.replace(f"{folder}/{name}", other + data[len(other) :])
    log, marks = open_with_catch_up(world, next_process(world, "boot-2"))
    assert len(marks) == 1
    assert [frame.payload for frame in log.frames()] == world.appended[:1]


@pytest.mark.fault(31, 35)
def test_furthest_copy_is_taken(world: World) -> None:
    ship_written(world, 0)
    world.append()
    ship_written(world, 1)
    world.darken()
    log, _ = open_with_catch_up(world, next_process(world, "boot-2"))
    assert [frame.payload for frame in log.frames()] == world.appended
    assert any(world.replicas.replicas[1].url in text for text in log.notes)


@pytest.mark.fault(27)
def test_unacknowledged_frames_are_not_taken(world: World) -> None:
    ship_written(world)
    address = world.replicas.replicas[0]
    copy = connect_site(address, world.quiet).replica(world.log.id)
    term = copy.promised()
    assert isinstance(term, OwnerTerm)
    world.append()
    ship_written(world)
    assert copy.acknowledged() == 4
    copy.promise(term, LogName(world.path, "me", 3, 2))
    copy.sync(term, 2)
    world.darken()
    log, _ = open_with_catch_up(world, next_process(world, "boot-2"))
    assert [frame.payload for frame in log.frames()] == world.appended[:2]
