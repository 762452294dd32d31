"""Background rebuild of operator state after a rewind and on a branch."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from faults.every_opcode import Struck, count, strike
from internals import (
    drain_background,
    graph_of,
    parts_folder,
    services_of,
    snapshot_of,
    store_of,
    traces_of,
)
from soak import SOAK

import nosync_nb
from nosync_nb import Session, StageError
from nosync_nb.dataflow.graph import Node
from nosync_nb.dataflow.runtime import runner
from nosync_nb.dataflow.runtime.delta import Delta
from nosync_nb.dataflow.runtime.executor import OperatorResult
from nosync_nb.operators import Step
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.store import point_in_time, store
from nosync_nb.trace import Trace

STAGES = ("labels", "pairs")
LAST, OLD = 8, 3
SECONDS = 60
STRUCK = 400 if SOAK else 8
"""The number of opcodes of a call at which an error is raised."""


class Kernels:
    """Records the kernels that run, and whether in the background; background ones can be held."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, bool]] = []
        self.waiting = False
        self.reached, self.released = threading.Event(), threading.Event()
        self.inside: Callable[[], Any] = lambda: None
        self._in_process = runner.run_in_process

    def run(self, node: Node, deltas: list[Delta | None], step: Step) -> OperatorResult:
        in_background = threading.current_thread() is not threading.main_thread()
        if step.first:
            self.ran.append((node.stage, in_background))
        if step.first and in_background:
            if self.waiting:
                self.reached.set()
                assert self.released.wait(SECONDS)
            self.inside()
        return self._in_process(node, deltas, step)

    def hold(self) -> None:
        """Makes the worker wait in its next kernel."""
        self.ran.clear()
        self.reached.clear()
        self.released.clear()
        self.waiting = True

    def go_on(self) -> None:
        self.waiting = False
        self.released.set()


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    """Hides the changes in frames, so that each former epoch counts as old."""
    monkeypatch.setattr(point_in_time, "recent_frames", lambda *_: [])
    monkeypatch.setattr(store, "FRAME_BYTES", 1 << 10)
    recorder = Kernels()
    monkeypatch.setattr(runner, "run_in_process", recorder.run)
    yield recorder
    recorder.go_on()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))
    return tmp_path / "log"


@pytest.fixture
def session(kernels: Kernels, folder: Path) -> Iterator[Session]:
    with nosync_nb.open(folder) as opened:
        edges = opened.input("edges", "src long, dst long")
        nodes = opened.input("nodes", "node long, label string", key="node")
        nodes.upsert([(i, f"n{i}") for i in range(200)])
        edges.insert([(i, i % 200) for i in range(400)])
        joined = edges.join(nodes, on={"dst": "node"})
        opened.stage("labels", joined.group_by("label").agg(n="count(*)", most="max(src)"))
        opened.stage("pairs", edges.group_by("src").agg(last="max(dst)"))
        opened.commit()
        while opened.now < LAST:
            commit(opened)
        drain_background(opened)
        yield opened
        kernels.go_on()


def commit(session: Session) -> int:
    """Commits the next epoch; its changes depend on its number alone."""
    at = session.now + 1
    session.inputs["edges"].insert([(1000 + at, at)])
    session.inputs["edges"].remove([(at, at)])
    session.inputs["nodes"].upsert([(at, f"m{at}")])
    return session.commit()


def rows(session: Session, at: int | None = None) -> dict[str, list[Any]]:
    return {name: sorted(session[name].rows(at=at)) for name in STAGES}


def without_waiting(act: Callable[[], Any]) -> Any:
    """Returns the result of a call that must not wait for the held kernel."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result(SECONDS)


def activity_text(session: Session) -> str:
    activity = session.info.activity
    return "" if activity is None else f"{activity.what}: {activity.done} of {activity.total}"


def check_continues(session: Session, by_epoch: dict[int, dict[str, list[Any]]]) -> None:
    while session.now < LAST:
        commit(session)
        assert rows(session) == by_epoch[session.now]
    assert session.verify().whole


@pytest.fixture
def by_epoch(session: Session) -> dict[int, dict[str, list[Any]]]:
    return {at: rows(session, at) for at in range(1, LAST + 1)}


# -- calls that do not wait for a rebuild ----------------------------------------------------------


def test_session_is_read_branched_and_rewound_during_a_rebuild(
    session: Session, kernels: Kernels, by_epoch: dict[int, dict[str, list[Any]]]
) -> None:
    kernels.hold()
    assert set(without_waiting(lambda: session.rewind(to=OLD)).remade) == set(STAGES)
    assert kernels.reached.wait(SECONDS)
    assert activity_text(session) == "rebuilding operator state of labels, pairs: 1 of 3"
    assert without_waiting(lambda: rows(session)) == by_epoch[OLD]
    aside = without_waiting(lambda: session.branch("aside"))
    assert rows(aside) == by_epoch[OLD]
    rewound = without_waiting(lambda: session.rewind(to=2))
    assert (rewound.left, rewound.epoch, set(rewound.remade)) == (OLD, 2, set(STAGES))
    assert without_waiting(lambda: rows(session)) == by_epoch[2]
    without_waiting(lambda: session.inputs["edges"].insert([(7, 7)]))
    session.discard()
    kernels.go_on()
    check_continues(session, by_epoch)
    check_continues(aside, by_epoch)
    aside.close()


def test_second_rewind_cancels_the_rebuild_of_the_first(session: Session, kernels: Kernels) -> None:
    kernels.hold()
    session.rewind(to=OLD)
    assert kernels.reached.wait(SECONDS)
    assert len(kernels.ran) == 1
    without_waiting(lambda: session.rewind(to=2))
    kernels.go_on()
    drain_background(session)
    assert len(kernels.ran) == 1 + 3, "the cancelled rebuild continued"
    assert not unreferenced_files(session)


def unreferenced_files(session: Session) -> set[str]:
    """The row files that nothing references."""
    parts = Path(parts_folder(session))
    return {each.name for each in parts.iterdir()} - services_of(session).publisher.named_files


def test_commit_waits_for_the_rebuild_and_runs_nothing_twice(
    session: Session, kernels: Kernels, by_epoch: dict[int, dict[str, list[Any]]]
) -> None:
    kernels.hold()
    session.rewind(to=OLD)
    assert kernels.reached.wait(SECONDS)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(commit, session)
        assert without_waiting(lambda: rows(session)) == by_epoch[OLD]
        kernels.go_on()
        assert waiting.result(SECONDS) == OLD + 1
    assert rows(session) == by_epoch[OLD + 1]
    assert sorted(kernels.ran) == [("labels", True), ("labels", True), ("pairs", True)]
    check_continues(session, by_epoch)


def test_merge_during_a_rebuild_is_retained(
    session: Session, kernels: Kernels, by_epoch: dict[int, dict[str, list[Any]]]
) -> None:
    kernels.hold()
    session.rewind(to=OLD)
    assert kernels.reached.wait(SECONDS)
    before = traces_of(session)
    number = next(iter(graph_of(session).named["labels"].traces.values()))
    merged = Trace.from_batch(before[number].consolidated(), OLD)
    version = snapshot_of(session).version
    services_of(session).publisher.replace(version._replace(traces={**before, number: merged}))
    kernels.go_on()
    drain_background(session)
    assert [layer.lower for layer in traces_of(session)[number].layers] == [OLD]
    assert len(kernels.ran) == 3
    check_continues(session, by_epoch)


# -- rebuilds that fail or are cancelled -----------------------------------------------------------


def test_close_waits_only_for_the_running_operator(
    session: Session, kernels: Kernels, folder: Path, by_epoch: dict[int, dict[str, list[Any]]]
) -> None:
    kernels.hold()
    session.rewind(to=OLD)
    assert kernels.reached.wait(SECONDS)
    with ThreadPoolExecutor(2) as pool:
        session.inputs["edges"].insert([(7, 7)])
        committing = pool.submit(session.commit)
        closing = pool.submit(session.close)
        with pytest.raises(nosync_nb.DurabilityError, match="closed"):
            committing.result(SECONDS)
        kernels.go_on()
        closing.result(SECONDS)
    assert len(kernels.ran) == 1
    files = {*(folder / "layers").iterdir()}
    with nosync_nb.open(folder) as opened:  # its worker may have written more files by now
        assert files <= {*(folder / "layers").iterdir()}, "unreferenced files were left"
        assert rows(opened) == by_epoch[OLD]
        check_continues(opened, by_epoch)


@pytest.mark.parametrize("error", [MemoryError("refused"), Struck("from outside")], ids=repr)
def test_failed_rebuild_is_repeated_by_the_next_commit(
    session: Session,
    kernels: Kernels,
    error: BaseException,
    by_epoch: dict[int, dict[str, list[Any]]],
) -> None:
    def fail() -> None:
        kernels.inside = lambda: None
        raise error

    kernels.inside = fail
    session.rewind(to=OLD)
    drain_background(session)
    kernels.ran.clear()
    if isinstance(error, Struck):
        with pytest.warns(UserWarning, match="failed: rebuilding operator state"):
            commit(session)
    else:
        commit(session)
    assert [in_background for _, in_background in kernels.ran] == [False] * 3
    assert rows(session) == by_epoch[OLD + 1]
    check_continues(session, by_epoch)


def test_disk_error_while_adopting_a_rebuild_is_reported_and_retried(
    session: Session,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
    by_epoch: dict[int, dict[str, list[Any]]],
) -> None:
    def full(*_: Any) -> None:
        raise nosync_nb.DurabilityError("the disk is full")

    kernels.hold()
    session.rewind(to=OLD)
    assert kernels.reached.wait(SECONDS)
    with monkeypatch.context() as patch:
        patch.setattr(store_of(session), "write_definition", full)
        kernels.go_on()
        drain_background(session)
    assert rows(session) == by_epoch[OLD]
    with pytest.warns(UserWarning, match="rebuilding operator state: the disk is full"):
        check_continues(session, by_epoch)


def test_crash_during_a_rebuild_leaves_the_log_rewound(
    session: Session, kernels: Kernels, folder: Path, by_epoch: dict[int, dict[str, list[Any]]]
) -> None:
    kernels.hold()
    session.rewind(to=OLD)
    assert kernels.reached.wait(SECONDS)
    kernels.inside = lambda: shutil.copytree(folder, folder.parent / "copy", dirs_exist_ok=True)
    kernels.go_on()
    drain_background(session)
    kernels.inside = lambda: None
    kernels.hold()
    with nosync_nb.open(folder.parent / "copy", takeover=True) as opened:
        assert kernels.reached.wait(SECONDS), "the rebuild starts before the first write"
        assert rows(opened) == by_epoch[OLD]
        kernels.go_on()
        check_continues(opened, by_epoch)
    assert len(kernels.ran) == 3


def test_function_that_changes_the_session_is_refused_during_a_rebuild(
    session: Session, kernels: Kernels
) -> None:
    refused: list[BaseException] = []

    def inner() -> None:
        with pytest.raises(StageError, match="inside a stage's function") as caught:
            session.commit()
        refused.append(caught.value)

    kernels.hold()
    kernels.inside = inner
    session.rewind(to=OLD)
    assert kernels.reached.wait(SECONDS)
    threading.Timer(0.05, kernels.go_on).start()
    assert commit(session) == OLD + 1
    assert len(refused) == 3


def test_interrupt_while_waiting_for_a_rebuild_commits_nothing(
    session: Session,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
    by_epoch: dict[int, dict[str, list[Any]]],
) -> None:
    kernels.hold()
    session.rewind(to=OLD)
    assert kernels.reached.wait(SECONDS)
    with monkeypatch.context() as patch:
        wait = threading.Condition.wait

        def interrupt(condition: threading.Condition, timeout: float | None = None) -> bool:
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return wait(condition, timeout)

        patch.setattr(threading.Condition, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            commit(session)
    assert session.now == OLD
    assert session.pending
    kernels.go_on()
    session.commit()
    assert rows(session) == by_epoch[OLD + 1]
    check_continues(session, by_epoch)


def test_interrupted_wait_does_not_report_the_epoch_of_another_thread(
    session: Session, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other() -> None:
        with session.epoch():
            session.inputs["edges"].insert([(5000, 1)])

    kernels.hold()
    session.rewind(to=OLD)
    assert kernels.reached.wait(SECONDS)
    wait, another = threading.Condition.wait, threading.Thread(target=other)

    def interrupt(condition: threading.Condition, timeout: float | None = None) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return wait(condition, timeout)
        threading.Condition.wait = wait  # type: ignore[method-assign]
        another.start()
        kernels.go_on()
        while another.is_alive():
            wait(condition, 0.1)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt) as raised:
            commit(session)
    assert session.now == OLD + 1
    assert not getattr(raised.value, "__notes__", [])
    assert session.pending


# -- interrupts at any opcode ----------------------------------------------------------------------


def rewind_again(session: Session) -> None:
    session.rewind(to=2)


def run_background(session: Session) -> None:
    Tasks.all.pop(0)()


class Tasks:
    """The tasks submitted to the worker."""

    all: list[Callable[[], None]] = []  # noqa: RUF012


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # what is raised in a finalizer
@pytest.mark.parametrize("error", [Struck("from outside"), MemoryError("refused")], ids=repr)
@pytest.mark.parametrize("act", [rewind_again, run_background, commit])
def test_rebuild_interrupted_at_any_opcode_is_done_or_not(
    act: Callable[[Session], Any],
    error: BaseException,
    session: Session,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    by_epoch: dict[int, dict[str, list[Any]]],
) -> None:
    monkeypatch.setattr(
        BackgroundWorker, "submit", lambda _, key, task, **_later: Tasks.all.append(task)
    )
    session.close()
    shutil.copytree(folder, folder.parent / "begun")
    sessions: list[Session] = []

    def rewound_copy() -> Session:
        Tasks.all.clear()
        path = folder.parent / str(len(sessions))
        shutil.copytree(folder.parent / "begun", path)
        sessions.append(nosync_nb.open(path))
        sessions[-1].rewind(to=OLD)
        return sessions[-1]

    def check_and_close(now: Session) -> None:
        assert now.now in (2, OLD, OLD + 1)
        now.discard()
        assert rows(now) == by_epoch[now.now]
        for task in Tasks.all:
            task()
        check_continues(now, by_epoch)
        now.close()
        shutil.rmtree(now.path)

    for _ in range(2):  # a second call runs fewer opcodes
        now = rewound_copy()
        opcodes, _ = count(lambda now=now: act(now), lambda: None)  # type: ignore[misc]
        check_and_close(now)
    drawn = random.Random(act.__name__).sample(range(1, opcodes), STRUCK)
    for at in sorted(drawn):
        now = rewound_copy()
        strike(lambda now=now: act(now), at, error)  # type: ignore[misc]
        error.__traceback__ = error.__context__ = error.__cause__ = None
        check_and_close(now)


# -- branches --------------------------------------------------------------------------------------


def test_branch_rebuilds_before_the_first_write_and_stops_when_closed(
    session: Session, kernels: Kernels, by_epoch: dict[int, dict[str, list[Any]]]
) -> None:
    kernels.hold()
    branch = without_waiting(lambda: session.branch("then", at=OLD))
    assert kernels.reached.wait(SECONDS)
    assert activity_text(branch) == "rebuilding operator state of labels, pairs: 1 of 3"
    assert without_waiting(lambda: rows(branch)) == by_epoch[OLD]
    commit(session)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(branch.close)
        while not branch.closed:
            pass
        kernels.go_on()
        closing.result(SECONDS)
    assert len(kernels.ran) == 1
    session.drop_branch("then")
    branch = session.branch("then", at=OLD)
    drain_background(branch)
    kernels.ran.clear()
    check_continues(branch, by_epoch)
    assert not kernels.ran
    branch.close()
