"""Repeated loads: an equal insert after a restart is reported, and nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from internals import checkpoint_now, repeats_of

import nosync_nb
from nosync_nb import Session
from nosync_nb.session.writes import idempotency
from nosync_nb.trace.batch import Batch
from nosync_nb.trace.history.history import EpochReads, History

LOADS = [[(1, "a"), (2, None)], [(3, "c")], [(x, str(x)) for x in range(100)]]

PROGRAM = """
import os, signal, sys
import nosync_nb
session = nosync_nb.open(sys.argv[1])
events = session.input("events", "x bigint, name string")
for rows in eval(sys.argv[2]):
    events.insert(rows)
    session.commit()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def opened(opened: Callable[..., Session]) -> Callable[..., Session]:
    """Opens the log as after a crash."""
    return partial(opened, takeover=True)


def warnings_of(act: Callable[[], Any]) -> list[str]:
    """The warnings of an act."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [str(warning.message) for warning in caught]


def test_insert_repeated_after_a_kill_warns(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = subprocess.run([sys.executable, "-c", PROGRAM, str(log), repr(LOADS)], timeout=60)
    assert run.returncode == -signal.SIGKILL
    with nosync_nb.open(log) as session:
        events = session.input("events", "x bigint, name string")
        for epoch, rows in enumerate(LOADS, 1):
            with pytest.warns(UserWarning, match=f"those that epoch {epoch} inserted") as caught:
                assert events.insert(rows) == len(rows)
            text = str(caught[0].message)
            assert "once=KEY" in text
            assert "set(rows)" in text
            assert caught[0].filename == __file__
            session.commit()
        assert events.count() == 2 * sum(map(len, LOADS))


@pytest.mark.parametrize("packed", [False, True], ids=["in frames", "in a checkpoint"])
def test_repeated_insert_is_found_in_any_form_and_order(
    opened: Callable[..., Session], packed: bool
) -> None:
    session = opened()
    events = session.input("events", "x bigint, name string")
    events.insert([(2, None), (1, "a"), (1, "a")])
    session.commit()
    if packed:
        checkpoint_now(session)
    session = opened()
    again = pa.table({"name": ["a", "a", None], "x": [1, 1, 2]})
    assert len(warnings_of(lambda: session["events"].insert(again))) == 1


def session_with_files(opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session whose load is in files."""
    monkeypatch.setattr("nosync_nb.store.store.SPILL_ROWS", 16)
    session = opened()
    session.input("events", "x bigint, name string").insert(LOADS[2])
    session.commit()
    return session


def test_repeated_insert_of_rows_in_files_warns(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_with_files(opened, monkeypatch)
    assert list((Path(session.path) / "layers").glob("*.arrow"))
    session = opened()
    assert len(warnings_of(lambda: session["events"].insert(LOADS[2]))) == 1


def test_calls_of_one_epoch_are_compared_together(opened: Callable[..., Session]) -> None:
    session = opened()
    events = session.input("events", "x bigint, name string")
    for x in range(5):
        events.insert([(x, "one")])
    session.commit()
    session = opened()
    events = session["events"]
    assert warnings_of(lambda: [events.insert([(x, "one")]) for x in range(4)]) == []
    (text,) = warnings_of(lambda: events.insert([(4, "one")]))
    assert "the 5 rows to insert are those that epoch 1 inserted" in text


CLEARED: dict[str, Callable[[Any, Session], Any]] = {
    "in the same transaction": lambda events, _: events.clear(),
    "in an epoch before": lambda events, session: (events.clear(), session.commit()),
    "by set": lambda events, _: events.set([(7, "new")]),
    "by remove": lambda events, session: (events.remove([(3, "c")]), session.commit()),
    "in part": lambda events, session: (events.remove(LOADS[2][:1]), session.commit()),
}


@pytest.mark.parametrize("filed_rows", [False, True], ids=["in frames", "in files"])
@pytest.mark.parametrize("clear", CLEARED.values(), ids=list(CLEARED))
def test_insert_of_removed_rows_does_not_warn(
    opened: Callable[..., Session],
    monkeypatch: pytest.MonkeyPatch,
    clear: Callable[[Any, Session], Any],
    filed_rows: bool,
) -> None:
    if filed_rows:
        monkeypatch.setattr("nosync_nb.store.store.SPILL_ROWS", 16)
    rows = [(3, "c")] if clear is CLEARED["by remove"] else LOADS[2]
    session = opened()
    session.input("events", "x bigint, name string").insert(rows)
    session.commit()
    session = opened()
    events = session["events"]
    clear(events, session)
    assert warnings_of(lambda: events.insert(rows)) == []


def test_insert_of_rows_present_again_warns(opened: Callable[..., Session]) -> None:
    session = opened()
    session.input("events", "x bigint, name string").insert(LOADS[2])
    session.commit()
    session = opened()
    events = session["events"]
    events.clear()
    session.commit()
    events.set([*LOADS[2], (1000, "more")])
    assert len(warnings_of(lambda: events.insert(LOADS[2]))) == 1


def test_other_rows_and_idempotent_loads_do_not_warn(opened: Callable[..., Session]) -> None:
    session = opened()
    events = session.input("events", "x bigint, name string")
    people = session.input("people", "id bigint", key="id")
    people.insert([(1,)])
    for rows in LOADS:
        events.insert(rows)
        session.commit()
    events.remove(LOADS[1])
    session.commit()
    with session.epoch(once="a day"):
        events.insert([(7, "day")])
    session = opened()
    events, people = session["events"], session["people"]

    def act() -> None:
        events.insert([(1, "a"), (2, "b")])
        events.insert([(3, "c"), (3, "c")])
        events.insert(LOADS[0], once="first")
        events.set([(3, "c")])
        events.remove(LOADS[0])
        people.upsert([(1,)])
        session.discard()
        with session.epoch(once="a day") as block:
            events.insert([(7, "day")])
        assert block.skipped

    assert warnings_of(act) == []


def test_repetition_without_a_restart_does_not_warn(opened: Callable[..., Session]) -> None:
    session = opened()
    events = session.input("events", "x bigint, name string")

    def act() -> None:
        for _ in range(2):
            events.insert(LOADS[0])
            session.commit()

    assert warnings_of(act) == []


def test_repetition_of_an_epoch_warns_once(opened: Callable[..., Session]) -> None:
    session = opened()
    session.input("events", "x bigint, name string").insert(LOADS[1])
    session.commit()
    session = opened()
    assert len(warnings_of(lambda: session["events"].insert(LOADS[1]))) == 1
    session.discard()
    assert warnings_of(lambda: session["events"].insert(LOADS[1])) == []


def test_new_input_of_the_same_name_does_not_warn(opened: Callable[..., Session]) -> None:
    session = opened()
    session.input("events", "x bigint, name string").insert(LOADS[0])
    session.commit()
    session = opened()
    session.drop("events")
    events = session.input("events", "x bigint, name string")
    assert warnings_of(lambda: events.insert(LOADS[0])) == []


def test_comparison_ends_some_epochs_after_the_restart(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "EPOCHS_MAX", 2)
    session = opened()
    session.input("events", "x bigint, name string").insert(LOADS[0])
    session.commit()
    session = opened()
    session.commit()
    session.commit()
    assert warnings_of(lambda: session["events"].insert(LOADS[0])) == []
    assert repeats_of(session) is None


def test_first_and_last_epochs_are_compared(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "COMPARED_MAX", 3)
    session = opened()
    events = session.input("events", "x bigint, name string")
    for x in range(10):
        events.insert([(x, "one")])
        session.commit()
    session = opened()
    events = session["events"]
    found = [x for x in range(10) if warnings_of(lambda x=x: events.insert([(x, "one")]))]  # type: ignore[misc]
    assert found == [0, 1, 7, 8, 9]  # epoch 0 is one of the first three


def test_small_insert_is_not_compared_with_loads_in_files(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_with_files(opened, monkeypatch)
    session["events"].insert(LOADS[0])
    session.commit()
    read_epochs: list[int] = []
    read = History.changes

    def record_read(self: History, trace: int, after: int | None, upto: int) -> list[Batch]:
        read_epochs.append(upto)
        return read(self, trace, after, upto)

    session = opened()
    with monkeypatch.context() as patch:
        patch.setattr(History, "changes", record_read)
        assert len(warnings_of(lambda: session["events"].insert(LOADS[0]))) == 1
        assert read_epochs == []
        session.discard()
        assert warnings_of(lambda: session["events"].insert(LOADS[2][1:])) == []
        assert read_epochs == []
        session.discard()
        assert len(warnings_of(lambda: session["events"].insert(LOADS[2]))) == 1
        assert read_epochs == [1]


def test_epochs_to_compare_are_read_in_few_steps(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened()
    events = session.input("events", "x bigint, name string")
    for x in range(2 * idempotency.COMPARED_MAX + 40):
        events.insert([(x, "one")])
        session.commit()
        if x == 200:
            checkpoint_now(session)
    session = opened()
    steps: list[tuple[int, int]] = []
    read = History.changes_by_epoch

    def record_read(self: History, trace: int, lower: int, upper: int) -> EpochReads:
        steps.append((lower, upper))
        return read(self, trace, lower, upper)

    with monkeypatch.context() as patch:
        patch.setattr(History, "changes_by_epoch", record_read)
        patch.setattr(History, "changes", None)
        found = [x for x in (0, 126, 127, 167, 168, 295) if warnings_of(inserter(session, x))]
    assert found == [0, 126, 168, 295]  # epoch 0 is one of the first
    assert len(steps) == 2


def inserter(session: Session, x: int) -> Callable[[], Any]:
    return lambda: session["events"].insert([(x, "one")])
