"""Crashes of the log: before, in and after every durable step."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path

import pytest
from checks.logs import everything, verified_frames
from faults.faults import Crash, FakeMachine, FaultyFiles, HastyFiles, Phase

from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import Log, writer


@dataclasses.dataclass
class Promises:
    """The promises to a run: payloads in order, and how many were published and durable."""

    tried: list[bytes] = dataclasses.field(default_factory=list)
    published: int = 0
    durable: int = 0
    checkpoint: bytes | None = None


def append(log: Log, promises: Promises, size: int) -> None:
    payload = b"%d:" % len(promises.tried) + b"x" * size
    del promises.tried[log.head.seq :]
    promises.tried.append(payload)
    log.append(1, payload)
    promises.published = log.head.seq


def run_session(files: Files, machine: FakeMachine, path: str, promises: Promises) -> None:
    """Opens, appends, sometimes syncs, writes a checkpoint, and closes."""
    log = Log.open(path, files=files, machine=machine, background=False)
    assert promises.tried[: log.head.seq] == everything(path)
    promises.published = promises.durable = log.head.seq
    for number in range(5):
        append(log, promises, size=(number * 37) % 200)
        if number % 2:
            log.sync()
            promises.durable = log.durable
        if number == 2:
            state = b"state %d" % log.head.seq
            log.write_checkpoint(state)
            promises.checkpoint = state
            promises.durable = log.head.seq
    log.close()
    promises.durable = log.head.seq


def run_two_sessions(
    files: Files, machine: FakeMachine, path: str, promises: Promises
) -> FakeMachine:
    """Runs two sessions one after the other."""
    run_session(files, machine, path, promises)
    machine.die()
    machine = machine.after()
    run_session(files, machine, path, promises)
    return machine


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 600)


def count_steps(path: str) -> int:
    files = FaultyFiles()
    run_two_sessions(files, FakeMachine(), path, Promises())
    return len(files.steps)


def crash(path: str, number: int, phase: Phase, *, power: bool, seed: int = 0) -> Promises:
    """Runs until the crash at one step; returns the promises."""
    files, promises = FaultyFiles(crash_at=number, crash_phase=phase, seed=seed), Promises()
    machine = FakeMachine()
    try:
        run_two_sessions(files, machine, path, promises)
    except Crash:
        pass
    else:
        raise AssertionError("the step was not reached")
    if power and os.path.isdir(path):
        files.lose_power(path)
    return promises


def crash_again(path: str, machine: FakeMachine, number: int, seed: int, *, power: bool) -> bool:
    """Crashes at one step of an opening; returns True if it reached that step."""
    files = FaultyFiles(crash_at=number, crash_phase="inside", seed=seed)
    try:
        Log.open(path, files=files, machine=machine, background=False)
    except Crash:
        if power:
            files.lose_power(path)
        return True
    return False


def check_recovery(path: str, promises: Promises, *, power: bool) -> None:
    """Opens the log twice, and checks every promise."""
    machine = FakeMachine(boot="boot-2" if power else "boot-1")
    log = Log.open(path, files=HastyFiles(), machine=machine, background=False)
    payloads = everything(path)
    least = promises.durable if power else promises.published
    assert payloads == promises.tried[: len(payloads)]
    assert len(payloads) >= least
    assert log.head.seq == log.durable == len(payloads)
    assert verified_frames(log) == len(payloads)
    after = [frame.payload for frame in log.frames()]
    assert payloads[log.checkpoint_seq :] == after
    if log.checkpoint is not None:
        assert log.checkpoint == b"state %d" % log.checkpoint_seq
    log.append(1, b"after")
    log.close()
    machine.die()
    with Log.open(path, files=HastyFiles(), machine=machine.after(), background=False) as again:
        assert again.clean
        assert everything(path) == [*payloads, b"after"]


@pytest.mark.fault(1)
@pytest.mark.parametrize("phase", ["before", "inside", "after"])
def test_killed_process_keeps_published_frames(tmp_path, phase: Phase) -> None:
    for number in range(1, count_steps(str(tmp_path / "count")) + 1):
        path = str(tmp_path / f"log-{number}")
        promises = crash(path, number, phase, power=False)
        check_recovery(path, promises, power=False)


@pytest.mark.fault(8)
@pytest.mark.parametrize("seed", range(4))
def test_power_failure_keeps_durable_frames(tmp_path, seed: int) -> None:
    for number in range(1, count_steps(str(tmp_path / "count")) + 1):
        path = str(tmp_path / f"log-{number}")
        promises = crash(path, number, "inside", power=True, seed=1000 * seed + number)
        check_recovery(path, promises, power=True)


@pytest.mark.fault(5)
@pytest.mark.parametrize("power", [False, True])
def test_crash_during_recovery_loses_nothing_more(tmp_path, power: bool) -> None:
    steps = count_steps(str(tmp_path / "count"))
    for first in range(20, steps, 9):
        for second in range(1, 40):
            path = str(tmp_path / f"log-{first}-{second}")
            promises = crash(path, first, "inside", power=power, seed=first)
            machine = FakeMachine(boot="boot-2" if power else "boot-1")
            if not crash_again(path, machine, second, seed=first + second, power=power):
                break
            check_recovery(path, promises, power=power)
        else:
            raise AssertionError("an opening has fewer steps")


@pytest.mark.parametrize("synced", [0, 2])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_frames_of_killed_owner_are_rewritten_before_durable(
    tmp_path: Path, synced: int, checkpoint: bool
) -> None:
    """The next owner rewrites frames that the killed one did not sync.

    Failure: 1. An owner is killed; its frames are in the page cache. 2. The next owner, on the
    same boot, reads them, appends and syncs. 3. The power fails, and unsynced frames are lost.
    """
    for seed in range(25):
        where = str(tmp_path / f"{seed}")
        files, machine = FaultyFiles(seed=seed), FakeMachine()
        opened = functools.partial(Log.open, where, files=files, background=False)
        first = opened(machine=machine)
        tried = [b"%d" % number * 100 for number in range(6)]
        for number, payload in enumerate(tried[:4]):
            if number == synced:
                first.sync()
                if checkpoint:
                    first.write_checkpoint(b"state")
            first.append(1, payload)
        machine.die()
        machine = machine.after()
        second = opened(machine=machine)
        for payload in tried[4:]:
            second.append(1, payload)
        second.sync()
        durable = second.durable
        assert durable == len(tried)
        files.lose_power(where)
        after = Log.open(where, files=HastyFiles(), machine=machine.after(boot="boot-2"))
        after.close()
        assert everything(where)[: len(tried)] == tried, seed


@pytest.mark.fault(9)
@pytest.mark.parametrize("deep", [False, True])
def test_new_folder_survives_power_failure(tmp_path: Path, deep: bool) -> None:
    for seed in range(25):
        where = str(tmp_path.joinpath(f"{seed}", *(["a", "log"] if deep else [])))
        files = FaultyFiles(seed=seed)
        log = Log.open(where, files=files, machine=FakeMachine(), background=False)
        log.append(1, b"x")
        log.sync()
        files.lose_power(str(tmp_path / f"{seed}"))
        assert everything(where) == [b"x"]
