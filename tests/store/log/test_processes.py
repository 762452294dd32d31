"""Processes that share a log: they race, are killed, stopped and forked."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from checks.logs import everything, verified_frames

from nosync_nb.errors import FencedError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import Log
from nosync_nb.store.log.owner import HostIdentity, ProcessIdentity


class Child:
    """A forked process that runs `work(connection)` until the end of the test."""

    def __init__(self, work: Callable[[Connection], None]) -> None:
        self.pipe, theirs = Pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                self.pipe.close()
                work(theirs)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        theirs.close()

    def ask(self, question: object = None) -> object:
        self.pipe.send(question)
        assert self.pipe.poll(60)
        return self.pipe.recv()

    def wait_until_stopped(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def kill(self) -> None:
        """Kills it, and waits until it is a zombie process, which is no owner."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.pipe.close()


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        child.end()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "x.nosync")


def attempt(act: Callable[[], object]) -> str:
    """Returns the result of an action, or its error, as text."""
    try:
        return str(act())
    except FencedError as error:
        return f"FencedError: {error}"


@pytest.mark.fault(23)
@pytest.mark.parametrize("takeover", [False, True])
def test_exactly_one_of_many_openers_writes(
    path: str, children: list[Child], takeover: bool
) -> None:
    def opener(pipe: Connection) -> None:
        pipe.recv()
        try:
            log = Log.open(path, takeover=takeover)
            pipe.send("open")
        except FencedError as error:
            pipe.send(str(error))
            return
        pipe.recv()
        pipe.send(attempt(lambda: log.append(1, str(os.getpid()).encode())))
        pipe.recv()

    for _ in range(6):
        children.append(Child(opener))
    for child in children:
        child.pipe.send("go")
    answers = {child.pid: child.pipe.recv() for child in children}
    opened = [child for child in children if answers[child.pid] == "open"]
    assert len(opened) == (6 if takeover else 1)
    results = {child.pid: child.ask("append") for child in opened}
    winners = [pid for pid, result in results.items() if "Position" in str(result)]
    assert len(winners) == 1
    for pid, answer in {**answers, **results}.items():
        if pid != winners[0]:
            assert f"process {winners[0]} " in str(answer)
    assert everything(path) == [str(winners[0]).encode()]


@pytest.mark.fault(23)
def test_log_begun_by_other_opener_is_recognised(path: str) -> None:
    class Overtaken(Files):
        """Another process creates the log right after this one has listed the folder."""

        def __init__(self) -> None:
            super().__init__()
            self.others: list[Log] = []

        def names(self, folder: str) -> list[str]:
            before = super().names(folder)
            if not self.others:
                self.others.append(Log.open(path))
            return before

    os.mkdir(path)
    overtaken = Overtaken()
    with pytest.raises(FencedError, match=f"process {os.getpid()} "):
        Log.open(path, files=overtaken)
    overtaken.others.pop().close()


@pytest.mark.fault(24)
def test_stopped_owner_is_fenced_after_takeover(path: str, children: list[Child]) -> None:
    def owner(pipe: Connection) -> None:
        log = Log.open(path)
        while request := pipe.recv():
            if request == "append":
                pipe.send(attempt(lambda: log.append(1, b"stopped")))
            elif request == "sync":
                pipe.send(attempt(log.sync))
            elif request == "checkpoint":
                pipe.send(attempt(lambda: log.write_checkpoint(b"stopped")))
            else:
                pipe.send(attempt(log.close))

    children.append(stopped := Child(owner))
    assert "Position(seq=1" in str(stopped.ask("append"))
    stopped.wait_until_stopped()
    with pytest.raises(FencedError, match=rf"process {stopped.pid} on .*: alive"):
        Log.open(path)
    with Log.open(path, takeover=True) as log:
        log.append(1, b"new")
        log.sync()
        os.kill(stopped.pid, signal.SIGCONT)
        for request in ("append", "append", "checkpoint", "close"):
            answer = str(stopped.ask(request))
            assert answer.startswith("FencedError"), request
            assert f"taken over by process {os.getpid()} on " in answer
        log.append(1, b"newer")
    assert everything(path) == [b"stopped", b"new", b"newer"]
    with Log.open(path) as again:
        assert again.clean
        assert verified_frames(again) == 3


@pytest.mark.fault(1)
def test_killed_process_keeps_acknowledged_frames(path: str, children: list[Child]) -> None:
    acknowledged = 0
    for round_ in range(5):

        def busy(pipe: Connection) -> None:
            log = Log.open(path)
            for number in range(log.head.seq, 1_000_000):
                log.append(1, b"%d" % number + bytes(number % 3000))
                pipe.send_bytes(b"%d" % log.head.seq)

        children.append(child := Child(busy))
        for _ in range(40 + 97 * round_):
            acknowledged = int(child.pipe.recv_bytes())
        child.kill()
        with suppress(EOFError, OSError):  # the last message may be truncated
            while True:
                acknowledged = int(child.pipe.recv_bytes())
        found = everything(path)
        assert len(found) >= acknowledged
        assert found == [b"%d" % number + bytes(number % 3000) for number in range(len(found))]
    with Log.open(path) as again:
        assert not again.clean
        assert again.durable == again.head.seq >= acknowledged
        assert verified_frames(again) == again.head.seq


@pytest.mark.fault(26)
def test_forked_child_cannot_write_or_close(path: str, children: list[Child]) -> None:
    with Log.open(path) as log:
        log.append(1, b"parent")

        def child(pipe: Connection) -> None:
            pipe.recv()
            acts = [lambda: log.append(1, b"child"), log.sync, log.check]
            pipe.send([attempt(act) for act in acts] + [attempt(log.close)])

        children.append(forked := Child(child))
        *errors, closed = forked.ask()  # type: ignore[misc]
        for error in errors:
            assert f"belongs to process {os.getpid()}, not to its child {forked.pid}" in error
        assert closed == "None"
        log.append(1, b"still parent")
        log.sync()
    assert everything(path) == [b"parent", b"still parent"]


@pytest.mark.fault(26)
def test_child_of_killed_owner_does_not_hold_log(path: str, children: list[Child]) -> None:
    def owner(pipe: Connection) -> None:
        log = Log.open(path)
        log.append(1, b"x")
        grandchild = os.fork()
        if not grandchild:
            signal.pause()
        pipe.send(grandchild)
        signal.pause()

    children.append(child := Child(owner))
    grandchild = child.pipe.recv()
    child.kill()
    try:
        with Log.open(path) as log:
            assert log.head.seq == 1
    finally:
        os.kill(grandchild, signal.SIGKILL)


class OtherHost(HostIdentity):
    """This machine under another host name, from which no process here is visible."""

    def identity(self) -> ProcessIdentity:
        return super().identity()._replace(host="there")


@pytest.mark.fault(24, 42)
def test_invisible_owner_is_judged_by_heartbeat(path: str, children: list[Child]) -> None:
    def own(pipe: Connection) -> None:
        with Log.open(path) as log:
            while (payload := pipe.recv()) is not None:
                try:
                    log.append(1, payload)
                    pipe.send(log.sync() or "on disk")
                except FencedError:
                    pipe.send("fenced")

    child = Child(own)
    children.append(child)
    assert child.ask(b"before") == "on disk"
    with pytest.raises(FencedError, match="it is alive"):
        Log.open(path, machine=OtherHost())
    assert child.ask(b"still") == "on disk"
    child.wait_until_stopped()
    with Log.open(path, machine=OtherHost()) as log:  # the owner only slept: a wrong guess
        log.append(1, b"after")
        os.kill(child.pid, signal.SIGCONT)
        assert child.ask(b"too late") == "fenced"
        log.sync()
    assert everything(path) == [b"before", b"still", b"after"]
