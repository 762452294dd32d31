"""All or nothing: an exception at any opcode leaves nothing half done.

After any exception at any opcode the session continues in the state before or after the call, the
same call again reaches the state after it, and the log agrees with the session. A session with an
epoch that the log lacks, or the other way round, would silently compute wrong rows after the next
opening.

A usual run strikes at every k-th opcode, more densely after the frame is written; the first one is
drawn by the operation's name. The nightly profile strikes at all of them.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from faults.every_opcode import ENGINE, Struck, count, strike
from internals import is_held, services_of
from soak import SOAK

import nosync_nb
from nosync_nb import Session
from nosync_nb.store.log import fencing

BEFORE, NEAR, AFTER = 4, 12, 4
"""Numbers of struck opcodes before the last frame is written, soon afterwards, and later."""

SOON = 1000

FOLLOWED = 64
"""The number of readers that are struck, each at another opcode."""

pytestmark = pytest.mark.usefixtures("no_disk")


class Operation(NamedTuple):
    """An operation that is struck.

    Attributes:
        prepare: called first, with the opened session; part of the state before.
        act: the struck call; gets the session, or the folder if `folder`.
        again: True if the same call may be repeated after it has taken effect.
    """

    act: Callable[[Any], Any]
    prepare: Callable[[Session], Any] = lambda session: None
    again: bool = False
    folder: bool = False


def _stage(session: Session, name: str, condition: str) -> None:
    session.stage(name, session["data"].filter(condition))


OPERATIONS = {
    "commit": Operation(
        lambda session: session.commit(label="struck"),
        lambda session: session.inputs["data"].insert([(1, 7), (3, 9)]),
    ),
    "define": Operation(lambda session: _stage(session, "more", "v > 3"), again=True),
    "edit": Operation(lambda session: _stage(session, "some", "v > 2"), again=True),
    "drop": Operation(lambda session: session.drop("sums")),
    "rename": Operation(lambda session: session.rename("some", "others")),
    "set": Operation(lambda session: session.inputs["data"].set([(1, 2), (5, 5)]), again=True),
    "upsert": Operation(lambda session: session.inputs["named"].upsert([(1, 5)]), again=True),
    "rewind": Operation(lambda session: session.rewind(to=1), again=True),
    "close": Operation(lambda session: session.close(), again=True, folder=True),
    "open": Operation(nosync_nb.open, again=True, folder=True),
}

ERRORS = [Struck("from outside"), MemoryError("refused")]


class State(NamedTuple):
    """Everything that a session reports."""

    now: int
    labels: list[Any]
    pending: dict[str, int]
    rows: dict[str, Any]
    past: dict[str, Any]
    graph: dict[str, Any]


def state_of(session: Session, pool: ThreadPoolExecutor) -> State:
    """The state that a thread without pending changes sees."""

    def ask() -> State:
        names = list(session.info.reads)
        epochs = range(session.now + 1)
        return State(
            session.now,
            [(epoch.number, epoch.label) for epoch in session.epochs()],
            {name: changes.rows for name, changes in session.pending.items()},
            {name: sorted(session[name].rows()) for name in names if "@" not in name},
            {
                name: [
                    sorted(session[name].rows(at=at))
                    for at in epochs
                    if any(at in one for one in session[name].history())
                ]
                for name in names
            },
            session.info.reads,
        )

    return pool.submit(ask).result(60)


def commit_next(session: Session) -> None:
    session.inputs["data"].insert([(2, 8)])
    session.inputs["named"].upsert([(2, 8)])
    session.commit()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory, no_disk: None) -> Iterator[Path]:
    """The folder of a tiny session that was closed; copied for each case."""
    home = tmp_path_factory.mktemp("every")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOSYNC_KEY_FILE", str(home / "key"))
        with nosync_nb.open(home / "log") as session:
            data = session.input("data", "k int, v int")
            session.input("named", "k int, v int", key="k")
            some = session.stage("some", data.filter("v > 1"))
            session.stage("sums", some.group_by("k").agg(n="count(*)", total="sum(v)"))
            for epoch in range(2):
                data.insert([(1, 2), (1, epoch), (2, 3)])
                session.inputs["named"].upsert([(1, epoch)])
                session.commit()
        yield home / "log"


class Cases:
    """Strikes an operation, each time on a copy of the log."""

    def __init__(self, operation: Operation, log: Path, folder: Path) -> None:
        self.operation, self.log, self.folder = operation, log, folder
        self.pool = ThreadPoolExecutor(1)
        self.made = 0
        self.sessions: list[Session] = []
        self.before: State | None = None
        self.stayed: State | None = None
        session, act = self.begun()
        if session is not None:
            self.before = state_of(session, self.pool)
            commit_next(session)
            self.stayed = state_of(session, self.pool)
            session.close()
        for _ in range(2):  # a repeated call takes fewer opcodes
            _, act = self.begun()
            self.opcodes, self.written = count(act, lambda: segment_sizes(self.path))
            session = self.sessions[-1]
            if operation.folder:
                session.close()
                session = self.opened()
            self.after = state_of(session, self.pool)
            commit_next(session)
            self.end = state_of(session, self.pool)
            for each in self.sessions:
                each.close()
            self.sessions.clear()

    @property
    def path(self) -> Path:
        return self.folder / str(self.made)

    def opened(self) -> Session:
        session = nosync_nb.open(self.path)
        self.sessions.append(session)
        return session

    def begun(self) -> tuple[Session | None, Callable[[], Any]]:
        """A session in the state before, if there is one, and the call to strike."""
        self.made += 1
        shutil.copytree(self.log, self.path)
        if self.operation.act is nosync_nb.open:
            return None, self.opened
        session = self.opened()
        self.operation.prepare(session)
        return session, lambda: self.operation.act(session)

    def failure(self, at: int, error: BaseException, *, again: bool) -> str | None:
        """Strikes once; returns what was wrong afterwards.

        Args:
            again: True if the same call follows.
        """
        threads, descriptors = set(threading.enumerate()), descriptors_open()
        session, act = self.begun()
        silent = strike(act, at, error) is None  # the exception keeps frames and their objects
        error.__traceback__ = error.__context__ = error.__cause__ = None
        try:
            wrong = self.judged(session, act, silent=silent, again=again)
            left = set(threading.enumerate()) - threads
            return wrong or (f"left {left} behind" if left else None) or self.closed(descriptors)
        except Exception as failed:
            return f"is not usable: {failed!r}"
        finally:
            for each in self.sessions:
                with suppress(Exception):
                    each.close()
            self.sessions.clear()
            shutil.rmtree(self.path)

    def closed(self, descriptors: int) -> str | None:
        """Reports leaked descriptors, or a garbage collector that was left off."""
        if descriptors_open() != descriptors:
            return f"left {descriptors_open() - descriptors} descriptors open"
        return None if gc.isenabled() else "left the garbage where it is"

    def judged(
        self,
        session: Session | None,
        act: Callable[[], Any],
        *,
        silent: bool,
        again: bool,
    ) -> str | None:
        if self.operation.folder:
            act()
            session = self.sessions[-1]
            if session.closed:
                session = self.opened()
        assert session is not None
        found = state_of(session, self.pool)
        if found not in (self.before, self.after):
            return f"is neither as before nor as afterwards: {difference(found, self.after)}"
        if silent and found != self.after:
            return "did nothing, and raised nothing"
        if again and (found != self.after or self.operation.again):
            act()
            found = state_of(session, self.pool)
            if found != self.after:
                return f"ended elsewhere the second time: {difference(found, self.after)}"
        end = self.end if found == self.after else self.stayed
        commit_next(session)
        if (found := state_of(session, self.pool)) != end:
            return f"went on elsewhere: {difference(found, end)}"
        session.close()
        session = self.opened()
        report = session.recovery
        if not report.clean or report.lost or report.notes:
            return f"is not clean: {report}"
        if (found := state_of(session, self.pool)) != end:
            return f"reads otherwise after it was opened again: {difference(found, end)}"
        session.close()
        return None

    def numbers(self, name: str) -> list[int]:
        """The opcodes to strike at."""
        if SOAK:
            return list(range(1, self.opcodes + 1))
        first = self.written[-1] if self.written else self.opcodes
        draw = random.Random(name)
        soon, end = min(first + SOON, self.opcodes), self.opcodes + 1
        early = some(draw, 1, first, BEFORE if self.written else NEAR)
        return sorted({*early, *some(draw, first, soon, NEAR), *some(draw, soon, end, AFTER)})


def difference(found: State, wanted: State | None) -> str:
    """The fields in which two states differ."""
    assert wanted is not None
    return "; ".join(
        f"{name} {one!r}, not {other!r}"
        for name, one, other in zip(State._fields, found, wanted, strict=True)
        if one != other
    )


def some(draw: random.Random, lower: int, upper: int, wanted: int) -> range:
    """Every k-th number of `[lower, upper)`, about `wanted` of them."""
    step = max(1, (upper - lower) // wanted)
    return range(lower + draw.randrange(step), upper, step)


def descriptors_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def segment_sizes(path: Path) -> dict[str, int]:
    """The sizes of the log's segments."""
    with suppress(FileNotFoundError):
        return {e.name: e.stat().st_size for e in os.scandir(path) if e.name.startswith("segment")}
    return {}


# -- the promise -----------------------------------------------------------------------------------


@pytest.mark.fault(48)
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # of leaked threads
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of exceptions in finalizers
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_is_atomic_at_any_exception(
    name: str, error: BaseException, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(log.parent / "key"))
    monkeypatch.setattr(
        fencing, "OPEN_WAIT_S", 0.05
    )  # shortens the wait for a lock that was left locked
    cases = Cases(OPERATIONS[name], log, tmp_path)
    assert cases.opcodes > 1000
    for i, at in enumerate(cases.numbers(name), ERRORS.index(error)):
        wrong = cases.failure(at, error, again=i % 2 == 0)
        assert wrong is None, f"opcode {at} of {cases.opcodes}: the session {wrong}"


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of exceptions in finalizers
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_reader_misses_no_epoch_at_any_exception(
    error: BaseException, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next epoch is committed first, because it would not follow a half-read one."""
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(log.parent / "key"))
    shutil.copytree(log, tmp_path / "log")
    with ExitStack() as opened, ThreadPoolExecutor(1) as pool:
        session = opened.enter_context(nosync_nb.open(tmp_path / "log"))
        readers = [
            opened.enter_context(nosync_nb.open(tmp_path / "log", mode="r"))
            for _ in range(FOLLOWED)
        ]
        commit_next(session)
        _stage(session, "more", "v > 3")
        opcodes = [
            count(services_of(readers.pop()).follower.refresh, lambda: None)[0] for _ in range(2)
        ][-1]
        at = some(random.Random("refresh"), 1, opcodes, len(readers) - 1)
        struck = list(zip(at, readers, strict=False))
        for number, reader in struck:
            strike(reader.refresh, number, error)
        for change in (lambda _: None, commit_next):
            change(session)
            wanted = state_of(session, pool)
            for number, reader in struck:
                reader.refresh()
                assert state_of(reader, pool) == wanted, f"opcode {number} of {opcodes}"


class PendingCalls(NamedTuple):
    """The pending calls of an input."""

    calls: int
    kinds: list[str]
    rows: int
    removed: int
    threads: set[int]
    once: list[str]


def pending_calls(session: Session, name: str) -> PendingCalls:
    held = session.pending[name]
    kinds = [change.kind for change in held.changes]
    once = list(services_of(session).transactions.current.once)
    return PendingCalls(held.calls, kinds, held.rows, held.removed, held.threads, once)


@pytest.mark.fault(48)
@pytest.mark.parametrize("moved", [False, True], ids=["", "recomputed"])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("data", lambda held: held.insert([(3, 9), (4, 9)], once="later")),
        ("data", lambda held: held.remove([(1, 7)])),
        ("named", lambda held: held.upsert([(1, 8), (2, 8)])),
    ],
    ids=["insert", "remove", "upsert"],
)
def test_input_call_is_atomic_at_any_interrupt(
    name: str, call: Callable[[Any], Any], moved: bool, tmp_path: Path
) -> None:
    """Rows without their idempotency key would be inserted twice by the next run of the cell."""
    with nosync_nb.open(tmp_path / "log") as session, ThreadPoolExecutor(1) as pool:
        held = session.input(name, "k int, v int", key="k" if name == "named" else None)

        def elsewhere() -> None:
            with session.epoch():
                held.insert([(7 + session.now, 7)])

        def begun() -> None:
            session.discard()
            held.insert([(1, 7)])
            if moved:  # another thread committed an epoch
                pool.submit(elsewhere).result(60)

        begun()
        before = pending_calls(session, name)
        for _ in range(2):  # a repeated call takes fewer opcodes
            begun()
            opcodes, changed = count(lambda: call(held), lambda: pending_calls(session, name))
        after = pending_calls(session, name)
        assert after.calls == before.calls + 1
        near = {at + i for at in changed for i in range(-3, 4)}
        found = set()
        for at in sorted({*near, *some(random.Random(name), 1, opcodes, NEAR)}):
            begun()
            silent = strike(lambda: call(held), at, Struck()) is None
            left = pending_calls(session, name)
            assert left in ((after,) if silent else (before, after)), f"opcode {at} of {opcodes}"
            found.add(left.calls)
            if left == before or left.once:
                call(held)
                assert pending_calls(session, name) == after, f"opcode {at} of {opcodes}, again"
        assert found == {1, 2}


# -- the harness -----------------------------------------------------------------------------------


def planted_function(text: str) -> Callable[..., Any]:
    """A function that counts as one of the engine."""
    names: dict[str, Any] = {}
    exec(compile(text, os.path.join(ENGINE, "planted.py"), "exec"), names)
    act: Callable[..., Any] = names["act"]
    return act


def outcomes(act: Callable[..., Any], fresh: Callable[[], Any]) -> list[Any]:
    """The states after strikes at every opcode of an act."""
    passed, _ = count(lambda: act(fresh()), lambda: None)
    found = []
    for at in range(1, passed + 1):
        state, error = fresh(), Struck()
        assert strike(partial(act, state), at, error) is error
        found.append(state)
    state = fresh()
    assert strike(lambda: act(state), passed + 1, Struck()) is None
    return [*found, state]


def test_harness_sees_two_steps_half_done() -> None:
    act = planted_function("def act(x):\n    x[0] += 1\n    x[1] += 1")
    assert {tuple(x) for x in outcomes(act, lambda: [0, 0])} == {(0, 0), (1, 0), (1, 1)}


def test_harness_sees_one_step_as_atomic() -> None:
    act = planted_function("def act(x):\n    x[:] = [x[0] + 1, x[1] + 1]")
    assert {tuple(x) for x in outcomes(act, lambda: [0, 0])} == {(0, 0), (1, 1)}


@pytest.mark.parametrize(
    "body",
    [
        "with x: len('')",
        "with x:\n  try:\n    len('')\n  except KeyError: pass",
        pytest.param(
            "with x:\n  for _ in 'ab':\n    if len(_): return _",
            marks=pytest.mark.xfail(
                sys.version_info >= (3, 12), reason="a jump back has no handler in this Python"
            ),
        ),
        "with x:\n  with x:\n    try: len('')\n    finally: len('')",
    ],
)
def test_lock_is_released_wherever_its_block_is_left(body: str) -> None:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    for lock in outcomes(planted_function(f"def act(x):\n{lines}"), threading.RLock):
        assert not is_held(lock)


def test_harness_strikes_only_the_engine_and_only_once() -> None:
    act = planted_function("def act(call): call()\n")
    own: list[int] = []
    assert count(lambda: act(lambda: own.extend(abs(n) for n in (-2, -1))), int)[0] < 9
    assert own == [2, 1]
    seen: list[BaseException] = []

    def twice() -> None:
        for _ in range(2):
            try:
                act(len)
            except BaseException as error:
                seen.append(error)

    error = Struck()
    assert strike(twice, 1, error) is None
    assert seen[0] is error
    assert [type(each) for each in seen] == [Struck, TypeError]
