"""Hanging replicas: openings and commits wait for no mount that does not answer.

The mount is real where the machine allows it: a file system in user space whose server never
answers. System calls to it never end, and only the end of the process aborts them.
"""

from __future__ import annotations

import _thread
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checks.sessions import wait_until_level
from machines.other_host import run

import nosync_nb
from nosync_nb.errors import DurabilityError
from nosync_nb.store.replication import remote_call
from nosync_nb.store.replication.backends.folder import FolderReplica, FolderSite
from nosync_nb.store.replication.remote_call import (
    AbandonedCallError,
    Backoff,
    CallPolicy,
    RemoteTimeoutError,
    call_all,
    call_remote,
)

WAIT_S = 120.0

THERE = """
import ctypes, json, os, shutil, sys, warnings
import nosync_nb
from internals import services_of
from nosync_nb.store.replication import remote_call
from nosync_nb.store.replication.agent import keeper

FORBIDDEN, WAIT_S = 77, 120.0
top = sys.argv[1]
remote_call.DEFAULT = remote_call.DEFAULT._replace(silent_s=1.0, notice_s=0.2)
path = os.path.join(top, "x.nosync")
urls = [f"file://{top}/replica-{i}" for i in range(3)]

def wait_for_states(replication, wanted):
    with replication.heard:
        assert replication.heard.wait_for(
            lambda: wanted([each.state for each in replication.status()]), WAIT_S
        ), replication.status()

def commit(session):
    session.inputs["numbers"].insert([(session.now,)])
    session.commit(wait="replicas", timeout=WAIT_S)
    return session.now

with nosync_nb.open(path, replicas=urls) as session:
    session.input("numbers", "x int")
    commit(session)
    wait_for_states(services_of(session).replication, lambda states: states == ["level"] * 3)
try:
    server = os.open("/dev/fuse", os.O_RDWR)
except OSError as error:
    print(f"no file systems in user space: {error}")
    sys.exit(FORBIDDEN)
libc = ctypes.CDLL(None, use_errno=True)
options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
if libc.mount(b"hangs", f"{top}/replica-1".encode(), b"fuse", 0, options):
    print(f"no mount of a file system in user space: {os.strerror(ctypes.get_errno())}")
    sys.exit(FORBIDDEN)
report = {"epochs": [], "warnings": []}
for lost in (False, True):
    if lost:
        shutil.rmtree(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session = nosync_nb.open(path, replicas=urls[::-1] if not lost else urls)
    report["warnings"].append([str(each.message) for each in caught])
    replication = services_of(session).replication
    report["epochs"].append(commit(session))
    if lost:
        wait_for_states(replication, lambda states: sorted(states) == ["failing", "level", "level"])
        report["states"] = [[e.url[-1], e.state, e.why] for e in replication.status()]
    session.close()
print(json.dumps(report))
sys.stdout.flush()
os._exit(0)
"""


pytestmark = pytest.mark.usefixtures("own_key")


@pytest.mark.fault(28)
def test_hanging_mount_blocks_no_opening_and_is_reported(tmp_path: Path) -> None:
    """Opens with the folder of the log and without it; epochs are safe on the other replicas."""
    report = json.loads(run("-m", THERE, str(tmp_path)).splitlines()[-1])
    assert report["epochs"] == [2, 3]
    warnings, later_warnings = report["warnings"]
    assert any("waiting up to" in each and "replica-1" in each for each in warnings), warnings
    assert not any("waiting up to" in each for each in later_warnings), (
        "a hanging replica is not asked"
    )
    (hangs,) = [each for each in report["states"] if each[0] == "1"]
    assert hangs[1] == "failing"
    assert "has not answered" in hangs[2]


# -- each call -----------------------------------------------------------------------------------


@pytest.fixture
def lost_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments that open a lost log with three replicas, without a keeper."""
    urls = [f"file://{tmp_path}/replica-{i}" for i in range(3)]
    path = tmp_path / "x.nosync"
    with nosync_nb.open(path, replicas=urls) as session:
        numbers = session.input("numbers", "x int")
        numbers.insert([(1,), (2,)])
        session.commit()
        wait_until_level(session)
    shutil.rmtree(path)
    monkeypatch.setattr(
        "nosync_nb.session.durability.replication.ReplicationService.start", lambda _self: None
    )
    return {"path": path, "replicas": urls}


class HangingCall:
    """Makes one call of replica 1 hang until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.requested, self.released = threading.Event(), threading.Event()

    def at(self, owner: type, name: str) -> None:
        """Chooses the call."""
        call = getattr(owner, name)

        def hang(this: Any, *args: Any, **more: Any) -> Any:
            if "replica-1" in str(vars(this)):
                self.requested.set()
                self.released.wait()
            return call(this, *args, **more)

        self._monkeypatch.setattr(owner, name, hang)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingCall]:
    hanging = HangingCall(monkeypatch)
    yield hanging
    hanging.released.set()
    for thread in threading.enumerate():
        if thread.name.startswith("ask "):
            thread.join(WAIT_S)


CALLS = [
    (FolderSite, "prepare"),
    (FolderSite, "logs"),
    (FolderReplica, "promised"),
    (FolderReplica, "promise"),
    (FolderReplica, "held"),
    (FolderReplica, "acknowledged"),
]


@pytest.mark.parametrize(("owner", "name"), CALLS)
def test_lost_log_is_restored_despite_a_hanging_call(
    lost_log: dict[str, Any],
    hanging: HangingCall,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
) -> None:
    for policy in ("DEFAULT", "PROMISE"):
        monkeypatch.setattr(remote_call, policy, CallPolicy(silent_s=0.5))
    hanging.at(owner, name)
    with nosync_nb.open(**lost_log) as session:
        assert hanging.requested.is_set()
        assert len(session["numbers"].rows()) == 2
        notes = [each for each in session.recovery.notes if each.startswith("replica not used")]
        assert any("replica-1" in each and "has not answered" in each for each in notes), notes


@pytest.mark.parametrize(("owner", "name"), CALLS)
def test_interrupt_ends_a_wait_for_a_hanging_replica(
    lost_log: dict[str, Any],
    hanging: HangingCall,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
) -> None:
    for policy in ("DEFAULT", "PROMISE"):
        monkeypatch.setattr(remote_call, policy, CallPolicy(silent_s=WAIT_S))
    hanging.at(owner, name)

    def interrupt() -> None:
        assert hanging.requested.wait(WAIT_S)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        nosync_nb.open(**lost_log)
    thread.join()
    assert not lost_log["path"].exists()
    hanging.released.set()
    with nosync_nb.open(**lost_log) as session:
        assert len(session["numbers"].rows()) == 2


def test_interrupt_just_before_a_remote_call_waits_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag of the interrupt is set before the system call begins."""
    policy = CallPolicy(silent_s=WAIT_S, notice_s=WAIT_S)
    monkeypatch.setattr(remote_call, "DEFAULT", policy)
    released, waits = threading.Event(), threading.Event()

    def call(_beat: Any) -> None:
        waits.set()
        released.wait()

    def interrupt() -> None:
        assert waits.wait(WAIT_S)
        _thread.interrupt_main()

    for wait in (lambda: call_remote("one", call), lambda: call_all([("other", call)])):
        waits.clear()
        thread, started = threading.Thread(target=interrupt), time.monotonic()
        thread.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                wait()
        finally:
            thread.join()
        assert time.monotonic() - started < WAIT_S / 2
    released.set()


def test_hanging_replica_is_asked_again_only_after_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released, ended, calls = threading.Event(), threading.Event(), []

    def call(_beat: Any) -> int:
        calls.append(1)
        released.wait()
        return len(calls)

    def last(_beat: Any) -> int:
        ended.set()
        return call(_beat)

    for _ in range(3):
        with pytest.raises(RemoteTimeoutError):
            call_remote("the one", call, CallPolicy(silent_s=0.05))
    assert calls == [1]
    released.set()
    for thread in threading.enumerate():
        if thread.name == "ask the one":
            thread.join(WAIT_S)
    assert call_remote("the one", last, CallPolicy(silent_s=WAIT_S)) == 2


def test_hanging_replicas_are_waited_for_together() -> None:
    """Sixteen hanging replicas take as long as one, because their times run together."""
    released = threading.Event()
    moments: list[float] = []

    def hang(_beat: Any) -> None:
        released.wait()

    names = [f"hangs {i}" for i in range(16)]
    policy = CallPolicy(silent_s=0.5, notice_s=0.0)
    with pytest.MonkeyPatch.context() as patch:
        real_wait = threading.Condition.wait

        def wait(self: threading.Condition, timeout: float | None = None) -> bool:
            if timeout is not None and threading.current_thread() is threading.main_thread():
                moments.append(timeout)
            return real_wait(self, timeout)

        patch.setattr(threading.Condition, "wait", wait)
        with pytest.warns(UserWarning, match="waiting up to .* s for hangs 0, hangs 1"):
            results = call_all([(name, hang) for name in names], policy)
    released.set()
    assert [type(each) for each in results] == [RemoteTimeoutError] * 16
    assert sum(moments) < 2 * 0.5


# -- abandoned calls -------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["silence", "cancelled"])
def test_abandoned_call_ends_at_its_next_report_of_progress(end: str) -> None:
    """A call without a caller has no further effect after its next report of progress."""
    go_on, raised, cancelled = threading.Event(), threading.Event(), threading.Event()
    policy = CallPolicy(silent_s=0.05 if end == "silence" else WAIT_S, cancelled=cancelled)

    def call(beat: Any) -> None:
        beat()
        if end == "cancelled":
            cancelled.set()
        assert go_on.wait(WAIT_S)
        try:
            beat()
        except AbandonedCallError:
            raised.set()
            raise

    expected = RemoteTimeoutError if end == "silence" else DurabilityError
    with pytest.raises(expected) as error:
        call_remote(f"abandoned by {end}", call, policy)
    assert error.value.kind == ("silent" if end == "silence" else DurabilityError.kind)
    go_on.set()
    assert raised.wait(WAIT_S)


def test_call_that_makes_progress_is_waited_for_beyond_its_silence() -> None:
    steps = 8

    def call(beat: Any) -> int:
        pause = threading.Event()
        for _ in range(steps):
            pause.wait(0.1)
            beat()
        return steps

    assert call_remote("slow but there", call, CallPolicy(silent_s=0.5)) == steps


def test_backoff_doubles_up_to_its_limit_and_starts_over_after_a_success() -> None:
    backoff = Backoff(1.0, 5.0)
    assert [backoff.next_s() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next_s() == 1.0


def test_transfer_has_the_time_of_the_slowest_link() -> None:
    assert CallPolicy(silent_s=5.0, bytes_per_s=32e3).limit_s(64e3) == 7.0
