"""Random programs of the log: appends, syncs, checkpoints and crashes against a list."""

from __future__ import annotations

import contextlib
import errno
import tempfile

import pytest
from checks.logs import everything, verified_frames
from faults.faults import Crash, FakeMachine, FaultyFiles, HastyFiles, Step
from hypothesis import given
from hypothesis import strategies as st

from nosync_nb.errors import DurabilityError, FencedError
from nosync_nb.store.log import Log, writer

ACTIONS = ["append", "append", "append", "sync", "checkpoint", "reopen", "takeover"]


class World:
    """A log on a faulty disk, and the promises to its user."""

    def __init__(self, path: str, files: FaultyFiles) -> None:
        self.path, self.files, self.machine = path, files, FakeMachine()
        self.appended: list[bytes] = []
        self.durable = 0
        self.states: dict[int, set[bytes]] = {}
        self.log: Log | None = None
        self.fenced: list[Log] = []

    def open(self, *, takeover: bool = False) -> None:
        if not takeover:
            self.machine.die()
        self.machine = self.machine.after()
        self.log = Log.open(
            self.path,
            takeover=takeover,
            files=self.files,
            machine=self.machine,
            background=False,
        )
        assert everything(self.path) == self.appended
        self.durable = self.log.durable

    def act(self, action: str, size: int) -> None:
        if self.log is None:
            self.open(takeover=True)
        log = self.log
        assert log is not None
        if action == "append":
            payload = b"%d:" % len(self.appended) + bytes([size]) * size
            self.appended.append(payload)
            try:
                log.append(1, payload)
            except DurabilityError:
                self.appended.pop()
                raise
        elif action == "sync":
            log.sync()
            self.durable = log.durable
            assert self.durable == len(self.appended)
        elif action == "checkpoint":
            self.states.setdefault(log.head.seq, set()).add(b"state %d" % size)
            log.write_checkpoint(b"state %d" % size)
        elif action == "reopen":
            self.log = None
            log.close()
            self.open()
        else:
            self.log = None
            self.open(takeover=True)
            self.fenced.append(log)

    def disturb(self) -> None:
        """Lets every fenced owner try to write; each must fail."""
        for log in self.fenced:
            with pytest.raises((FencedError, DurabilityError)):
                log.append(1, b"fenced")


@given(
    program=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 255)), max_size=14),
    crash_at=st.integers(1, 120),
    phase=st.sampled_from(["before", "inside", "after"]),
    errors=st.sets(st.integers(1, 120), max_size=3),
    code=st.sampled_from([errno.EIO, errno.ENOSPC]),
    power=st.booleans(),
    seed=st.integers(0, 1 << 16),
)
def test_random_programs_keep_every_promise(
    program: list[tuple[str, int]],
    crash_at: int,
    phase: str,
    errors: set[int],
    code: int,
    power: bool,
    seed: int,
) -> None:
    def error_at(step: Step) -> int | None:
        return code if step.number in errors else None

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "SEGMENT_BYTES_MAX", 700)
        files = FaultyFiles(
            crash_at=crash_at, crash_phase=phase, error_at=error_at, halves=True, seed=seed
        )
        world = World(f"{folder}/x.nosync", files)
        with contextlib.suppress(Crash):
            for action, size in program:
                with contextlib.suppress(DurabilityError):
                    world.act(action, size)
                world.disturb()
        check(world, power=power)


def check(world: World, *, power: bool) -> None:
    """Recovers the log after the crash, and compares."""
    published, acknowledged = len(world.appended) - world.files.dead, world.durable
    if power and world.files.exists(world.path):
        world.files.lose_power(world.path)
    machine = world.machine.after(boot="boot-2" if power else None)
    files = HastyFiles()
    with Log.open(world.path, takeover=True, files=files, machine=machine) as log:
        found = everything(world.path)
        assert found == world.appended[: len(found)]
        assert len(found) >= (acknowledged if power else published)
        assert verified_frames(log) == len(found)
        if log.checkpoint is not None:
            assert log.checkpoint in world.states[log.checkpoint_seq]
        log.append(1, b"after")
    assert everything(world.path) == [*found, b"after"]
