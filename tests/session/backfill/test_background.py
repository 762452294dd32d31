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
"""At how many opcodes of a call it is struck."""


class Kernels:
    """The kernels that run, each as its stage, and where it runs; those of the worker may wait."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, bool]] = []
        self.held = False
        self.reached, self.released = threading.Event(), threading.Event()
        self.inside: Callable[[], Any] = lambda: None
        self._in_process = runner.run_in_process

    def run(self, node: Node, deltas: list[Delta | None], step: Step) -> OperatorResult:
        behind = threading.current_thread() is not threading.main_thread()
        if step.first:
            self.ran.append((node.stage, behind))
        if step.first and behind:
            if self.held:
                self.reached.set()
                assert self.released.wait(SECONDS)
            self.inside()
        return self._in_process(node, deltas, step)

    def hold(self) -> None:
        """Has the worker wait in the next of its kernels."""
        self.ran.clear()
        self.reached.clear()
        self.released.clear()
        self.held = True

    def go_on(self) -> None:
        self.held = False
        self.released.set()


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    """Frames tell nothing of what was changed, so an epoch of before now is an old one."""
    monkeypatch.setattr(point_in_time, "recent_frames", lambda *_: [])
    monkeypatch.setattr(store, "FRAME_BYTES", 1 << 10)
    made = Kernels()
    monkeypatch.setattr(runner, "run_in_process", made.run)
    yield made
    made.go_on()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))
    return tmp_path / "log"


@pytest.fixture
def session(kernels: Kernels, folder: Path) -> Iterator[Session]:
    with nosync_nb.open(folder) as made:
        edges = made.input("edges", "src long, dst long")
        nodes = made.input("nodes", "node long, label string", key="node")
        nodes.upsert([(i, f"n{i}") for i in range(200)])
        edges.insert([(i, i % 200) for i in range(400)])
        joined = edges.join(nodes, on={"dst": "node"})
        made.stage("labels", joined.group_by("label").agg(n="count(*)", most="max(src)"))
        made.stage("pairs", edges.group_by("src").agg(last="max(dst)"))
        made.commit()
        while made.now < LAST:
            commit(made)
        drain_background(made)
        yield made
        kernels.go_on()


def commit(session: Session) -> int:
    """The next epoch: what it does depends on its number alone."""
    at = session.now + 1
    session.inputs["edges"].insert([(1000 + at, at)])
    session.inputs["edges"].remove([(at, at)])
    session.inputs["nodes"].upsert([(at, f"m{at}")])
    return session.commit()


def rows(session: Session, at: int | None = None) -> dict[str, list[Any]]:
    return {name: sorted(session[name].rows(at=at)) for name in STAGES}


def soon(act: Callable[[], Any]) -> Any:
    """What comes of a call that must not wait for what is held here."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result(SECONDS)


def doing(session: Session) -> str:
    activity = session.info.activity
    return "" if activity is None else f"{activity.what}: {activity.done} of {activity.total}"


def gone_on(session: Session, was: dict[int, dict[str, list[Any]]]) -> None:
    while session.now < LAST:
        commit(session)
        assert rows(session) == was[session.now]
    assert session.verify().whole


@pytest.fixture
def was(session: Session) -> dict[int, dict[str, list[Any]]]:
    return {at: rows(session, at) for at in range(1, LAST + 1)}


# -- nobody waits for it who does not need it ------------------------------------------------------


def test_a_session_is_read_branched_and_taken_back_while_it_is_made(
    session: Session, kernels: Kernels, was: dict[int, dict[str, list[Any]]]
) -> None:
    kernels.hold()
    assert set(soon(lambda: session.rewind(to=OLD)).remade) == set(STAGES)
    assert kernels.reached.wait(SECONDS)
    assert doing(session) == "builds operator state of labels, pairs: 1 of 3"
    assert soon(lambda: rows(session)) == was[OLD]
    aside = soon(lambda: session.branch("aside"))
    assert rows(aside) == was[OLD]
    told = soon(lambda: session.rewind(to=2))
    assert (told.left, told.epoch, set(told.remade)) == (OLD, 2, set(STAGES))
    assert soon(lambda: rows(session)) == was[2]
    soon(lambda: session.inputs["edges"].insert([(7, 7)]))
    session.discard()
    kernels.go_on()
    gone_on(session, was)
    gone_on(aside, was)
    aside.close()


def test_a_second_rewind_has_what_the_first_one_wanted_end_before_the_next_operator(
    session: Session, kernels: Kernels
) -> None:
    kernels.hold()
    session.rewind(to=OLD)
    assert kernels.reached.wait(SECONDS)
    assert len(kernels.ran) == 1
    soon(lambda: session.rewind(to=2))
    kernels.go_on()
    drain_background(session)
    assert len(kernels.ran) == 1 + 3, "the first one went on though nobody waited for it"
    assert not left_over(session)


def left_over(session: Session) -> set[str]:
    """The files of rows that nobody names."""
    parts = Path(parts_folder(session))
    return {each.name for each in parts.iterdir()} - services_of(session).publisher.named_files


def test_who_commits_waits_for_it_and_nothing_runs_twice(
    session: Session, kernels: Kernels, was: dict[int, dict[str, list[Any]]]
) -> None:
    kernels.hold()
    session.rewind(to=OLD)
    assert kernels.reached.wait(SECONDS)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(commit, session)
        assert soon(lambda: rows(session)) == was[OLD]
        kernels.go_on()
        assert waiting.result(SECONDS) == OLD + 1
    assert rows(session) == was[OLD + 1]
    assert sorted(kernels.ran) == [("labels", True), ("labels", True), ("pairs", True)]
    gone_on(session, was)


def test_what_was_merged_meanwhile_stays_merged(
    session: Session, kernels: Kernels, was: dict[int, dict[str, list[Any]]]
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
    gone_on(session, was)


# -- it comes to nothing ---------------------------------------------------------------------------


def test_a_session_that_is_closed_waits_for_no_operator_but_the_one_that_runs(
    session: Session, kernels: Kernels, folder: Path, was: dict[int, dict[str, list[Any]]]
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
    there = {*(folder / "layers").iterdir()}
    with nosync_nb.open(folder) as opened:  # whose worker may have written more by now
        assert there <= {*(folder / "layers").iterdir()}, "files that nobody names were left"
        assert rows(opened) == was[OLD]
        gone_on(opened, was)


@pytest.mark.parametrize("error", [MemoryError("refused"), Struck("from outside")], ids=repr)
def test_what_fails_behind_is_made_by_who_needs_it(
    session: Session, kernels: Kernels, error: BaseException, was: dict[int, dict[str, list[Any]]]
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
    assert [behind for _, behind in kernels.ran] == [False] * 3
    assert rows(session) == was[OLD + 1]
    gone_on(session, was)


def test_a_disk_that_fails_while_it_is_adopted_is_told_and_it_is_made_again(
    session: Session,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
    was: dict[int, dict[str, list[Any]]],
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
    assert rows(session) == was[OLD]
    with pytest.warns(UserWarning, match="rebuilding operator state: the disk is full"):
        gone_on(session, was)


def test_a_process_that_dies_meanwhile_has_gone_back(
    session: Session, kernels: Kernels, folder: Path, was: dict[int, dict[str, list[Any]]]
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
        assert kernels.reached.wait(SECONDS), "it is begun with before somebody writes"
        assert rows(opened) == was[OLD]
        kernels.go_on()
        gone_on(opened, was)
    assert len(kernels.ran) == 3


def test_a_function_that_would_change_the_session_is_refused_though_somebody_waits(
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


def test_who_is_interrupted_while_he_waits_has_committed_nothing(
    session: Session,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
    was: dict[int, dict[str, list[Any]]],
) -> None:
    kernels.hold()
    session.rewind(to=OLD)
    assert kernels.reached.wait(SECONDS)
    with monkeypatch.context() as patch:
        wait = threading.Condition.wait

        def interrupted(condition: threading.Condition, timeout: float | None = None) -> bool:
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return wait(condition, timeout)

        patch.setattr(threading.Condition, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            commit(session)
    assert session.now == OLD
    assert session.pending
    kernels.go_on()
    session.commit()
    assert rows(session) == was[OLD + 1]
    gone_on(session, was)


def test_who_is_interrupted_while_he_waits_is_not_told_of_the_epoch_of_another_thread(
    session: Session, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other() -> None:
        with session.epoch():
            session.inputs["edges"].insert([(5000, 1)])

    kernels.hold()
    session.rewind(to=OLD)
    assert kernels.reached.wait(SECONDS)
    wait, another = threading.Condition.wait, threading.Thread(target=other)

    def interrupted(condition: threading.Condition, timeout: float | None = None) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return wait(condition, timeout)
        threading.Condition.wait = wait  # type: ignore[method-assign]
        another.start()
        kernels.go_on()
        while another.is_alive():
            wait(condition, 0.1)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt) as raised:
            commit(session)
    assert session.now == OLD + 1
    assert not getattr(raised.value, "__notes__", [])
    assert session.pending


# -- wherever it is struck -------------------------------------------------------------------------


def again(session: Session) -> None:
    session.rewind(to=2)


def behind(session: Session) -> None:
    Tasks.all.pop(0)()


class Tasks:
    """What the worker would do."""

    all: list[Callable[[], None]] = []  # noqa: RUF012


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # what is raised in a finalizer
@pytest.mark.parametrize("error", [Struck("from outside"), MemoryError("refused")], ids=repr)
@pytest.mark.parametrize("act", [again, behind, commit])
def test_it_is_made_or_not_wherever_it_is_struck(
    act: Callable[[Session], Any],
    error: BaseException,
    session: Session,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    was: dict[int, dict[str, list[Any]]],
) -> None:
    monkeypatch.setattr(
        BackgroundWorker, "submit", lambda _, key, task, **_later: Tasks.all.append(task)
    )
    session.close()
    shutil.copytree(folder, folder.parent / "begun")
    made: list[Session] = []

    def begun() -> Session:
        Tasks.all.clear()
        path = folder.parent / str(len(made))
        shutil.copytree(folder.parent / "begun", path)
        made.append(nosync_nb.open(path))
        made[-1].rewind(to=OLD)
        return made[-1]

    def judged(now: Session) -> None:
        assert now.now in (2, OLD, OLD + 1)
        now.discard()
        assert rows(now) == was[now.now]
        for task in Tasks.all:
            task()
        gone_on(now, was)
        now.close()
        shutil.rmtree(now.path)

    for _ in range(2):  # what was done once is done with fewer opcodes
        now = begun()
        opcodes, _ = count(lambda now=now: act(now), lambda: None)  # type: ignore[misc]
        judged(now)
    drawn = random.Random(act.__name__).sample(range(1, opcodes), STRUCK)
    for at in sorted(drawn):
        now = begun()
        strike(lambda now=now: act(now), at, error)  # type: ignore[misc]
        error.__traceback__ = error.__context__ = error.__cause__ = None
        judged(now)


# -- branches --------------------------------------------------------------------------------------


def test_a_branch_begins_with_it_before_anybody_writes_and_ends_when_it_is_closed(
    session: Session, kernels: Kernels, was: dict[int, dict[str, list[Any]]]
) -> None:
    kernels.hold()
    branch = soon(lambda: session.branch("then", at=OLD))
    assert kernels.reached.wait(SECONDS)
    assert doing(branch) == "builds operator state of labels, pairs: 1 of 3"
    assert soon(lambda: rows(branch)) == was[OLD]
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
    gone_on(branch, was)
    assert not kernels.ran
    branch.close()
