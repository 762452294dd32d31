"""Transactions: the meaning, visibility and rollback of calls on inputs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from checks.sessions import run_threads, values
from faults.interleaving import at_one_line_after_the_other
from hypothesis import given
from hypothesis import strategies as st
from internals import notices_of, services_of, store_of
from models.model import Bag, bag, summed

import nosync_nb
from nosync_nb import SchemaError, Session, StageError
from nosync_nb.dataflow.runtime.delta import ArrangedChange
from nosync_nb.session.state.transactions import PendingCall
from nosync_nb.trace.batch import Layout, Updates, arrange


@pytest.fixture
def session(session: Session) -> Session:
    session.input("numbers", "x int")
    session.input("planes", "tail string, seats int", key="tail")
    return session


# -- calls -----------------------------------------------------------------------------------------


def test_changes_of_an_epoch_become_visible_together(session: Session) -> None:
    numbers, planes = session.inputs["numbers"], session.inputs["planes"]
    assert numbers.insert([(1,), (1,), (2,)]) == 3
    assert numbers.remove([(1,)]) == 1
    assert planes.insert([("a", 1)]) == 1
    assert {name: (c.calls, c.rows) for name, c in session.pending.items()} == {
        "numbers": (2, 4), "planes": (1, 1)
    }  # fmt: skip
    assert values(numbers, session.now) == []
    assert session.commit() == 1
    assert not session.pending
    assert values(numbers) == [1, 2]
    assert values(planes) == [("a", 1)]


@pytest.mark.parametrize(
    "rows",
    [
        [(1, "a"), (2, None)],
        [{"name": "a", "x": 1}, {"x": 2, "name": None}],
        pd.DataFrame({"name": ["a", None], "x": [1.0, 2.0]}),
        pa.table({"x": [1, 2], "name": ["a", None]}),
        pa.record_batch({"x": [1, 2], "name": ["a", None]}),
        {"name": ["a", None], "x": [1, 2]},
    ],
    ids=["tuples", "dicts", "pandas", "table", "record batch", "columns"],
)
def test_rows_of_many_forms_are_matched_by_name(session: Session, rows: Any) -> None:
    things = session.input("things", "x bigint, name string")
    assert things.insert(rows) == 2
    session.commit()
    assert values(things) == [(1, "a"), (2, None)]


@pytest.mark.parametrize("kind", ["insert", "remove", "set", "upsert"])
def test_none_is_refused_as_data(session: Session, kind: str) -> None:
    with pytest.raises(SchemaError, match=r"input 'planes'.*None"):
        getattr(session.inputs["planes"], kind)(None)
    assert not session.pending


def test_data_is_copied_at_the_call(session: Session) -> None:
    numbers = session.inputs["numbers"]
    rows = [(1,), (2,)]
    frame = pd.DataFrame({"x": [3, 4]})
    numbers.insert(rows)
    numbers.insert(frame)
    rows.append((9,))
    frame.loc[0, "x"] = 9
    session.commit()
    assert values(numbers) == [1, 2, 3, 4]


def test_set_commits_the_difference_and_nothing_if_equal(session: Session) -> None:
    numbers = session.inputs["numbers"]
    numbers.insert([(1,), (1,), (2,)])
    session.commit()
    assert numbers.set([(2,), (1,), (3,)]) == 2
    session.commit()
    assert values(numbers) == [1, 2, 3]
    assert numbers.changes(after=1).to_pylist() in (
        [{"x": 1, "diff": -1}, {"x": 3, "diff": 1}],
        [{"x": 3, "diff": 1}, {"x": 1, "diff": -1}],
    )
    assert numbers.set([(3,), (2,), (1,)]) == 0
    assert not session.pending


@pytest.mark.parametrize(
    "rows",
    [
        [("b", 1), ("a", 1), ("c", 1), ("a", 2)],
        [("b", 1), ("a", 1), ("a", 1)],
        pa.table({"tail": ["b", "a", "a"], "seats": [1, 1, 2]}),
        [(f"x{n}", n) for n in range(5000)] + [("a", 1), ("a", 2)],
    ],
    ids=["rows", "equal rows", "table", "many rows"],
)
def test_insert_of_two_rows_with_one_key_is_refused(session: Session, rows: Any) -> None:
    planes = session.inputs["planes"]
    with pytest.raises(SchemaError, match="'planes': key 'a' occurs twice in the rows") as caught:
        planes.insert(rows)
    assert "planes.upsert(rows)" in str(caught.value.hint)
    assert not session.pending
    planes.insert([("a", 1)])
    for _ in range(2):  # also while the first one is pending
        with pytest.raises(SchemaError, match="key 'a' exists already"):
            planes.insert([("a", 2)])
        session.commit()
    assert values(planes) == [("a", 1)]


def test_remove_by_key_removes_equal_rows_and_reports_absent_ones(session: Session) -> None:
    planes = session.inputs["planes"]
    planes.insert([("a", 1), ("b", 1), ("c", 1)])
    session.commit()
    assert planes.remove([("a", 1)]) == 1
    with pytest.warns(UserWarning, match="does not exist, nor do 2 more of the rows: nothing was"):
        assert planes.remove([("c", 1), ("c", 1), ("a", 1), ("d", 1)]) == 1
    expected = r"input 'planes': row \('b', 2\) does not exist: nothing was removed for it"
    with pytest.warns(UserWarning, match=expected) as caught:
        assert planes.remove([("b", 2)]) == 0
    assert caught[0].filename == __file__
    session.commit()
    assert values(planes) == [("b", 1)]
    exec(str(caught[0].message).partition("Hint: ")[2].partition(" removes")[0])
    session.commit()
    assert values(planes) == []


def test_remove_of_a_keyed_row_replaced_by_another_epoch_does_nothing(session: Session) -> None:
    planes = session.inputs["planes"]
    planes.insert([("a", 1), ("b", 1)])
    session.commit()
    planes.remove([("a", 1), ("b", 1)])
    with session.epoch():
        planes.upsert([("a", 2)])
    session.commit()
    assert values(planes) == [("a", 2)]


def test_upsert_and_set_keep_the_last_row_of_a_key(session: Session) -> None:
    planes = session.inputs["planes"]
    planes.upsert([("a", 1), ("b", 1), ("a", 2)])
    planes.upsert([("b", 3)])
    session.commit()
    assert values(planes) == [("a", 2), ("b", 3)]
    planes.upsert([("a", 2)])
    session.commit()
    assert planes.changes(after=1).num_rows == 0
    assert planes.upsert([("a", 2), ("b", 3)]) == 0  # equal rows
    assert not session.pending
    assert planes.upsert([("a", 5), ("c", 6)]) == 3
    planes.delete(["b", "nobody"])
    session.commit()
    assert values(planes) == [("a", 5), ("c", 6)]
    assert planes.delete(["nobody"]) == 0
    assert planes.key == ("tail",)


def test_key_of_several_columns(session: Session) -> None:
    seats = session.input("seats", "tail string, row int, free boolean", key=["tail", "row"])
    seats.insert([("a", 1, True), ("a", 2, True), ("b", 1, True)])
    session.commit()
    seats.upsert([("a", 2, False)])
    seats.delete([("b", 1)])
    session.commit()
    assert values(seats) == [("a", 1, True), ("a", 2, False)]


KEYED = st.lists(
    st.tuples(
        st.sampled_from(["upsert", "delete", "insert", "remove", "set", "clear", "commit"]),
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=3),
    ),
    max_size=12,
)


@pytest.mark.filterwarnings("ignore:input 'keyed'. row .* does not exist")
@given(KEYED)
def test_any_program_of_keyed_calls_equals_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, program: list[tuple[str, list[tuple[int, int]]]]
) -> None:
    with nosync_nb.open(tmp_path_factory.mktemp("keyed") / "log") as session:
        keyed = session.input("keyed", "k int, v int", key="k")
        expected: dict[int, int] = {}
        for call, rows in program:
            if call == "commit":
                session.commit()
                assert values(keyed) == sorted(expected.items())
            elif call == "clear":
                keyed.clear()
                expected = {}
            elif call == "delete":
                keyed.delete([k for k, _ in rows])
                expected = {k: v for k, v in expected.items() if k not in dict(rows)}
            elif call == "remove":
                removed = {k: v for k, v in rows if expected.get(k) == v}
                assert keyed.remove(rows) == len(removed)
                expected = {k: v for k, v in expected.items() if k not in removed}
            elif call == "insert" and len(dict(rows)) < len(rows):
                with pytest.raises(SchemaError, match="occurs twice"):
                    keyed.insert(rows)
            elif call == "insert" and any(k in expected for k, _ in rows):
                with pytest.raises(SchemaError, match="exists already"):
                    keyed.insert(rows)
            else:
                getattr(keyed, call)(rows)
                expected = dict(rows) if call == "set" else {**expected, **dict(rows)}
        session.commit()
        assert values(keyed) == sorted(expected.items())


UNKEYED = st.lists(
    st.tuples(
        st.sampled_from(["insert", "remove", "set", "clear", "commit"]),
        st.lists(st.tuples(st.integers(0, 3)), max_size=4),
    ),
    max_size=12,
)


@given(UNKEYED)
def test_any_program_of_unkeyed_calls_equals_a_bag(
    tmp_path_factory: pytest.TempPathFactory, program: list[tuple[str, list[tuple[int]]]]
) -> None:
    with nosync_nb.open(tmp_path_factory.mktemp("unkeyed") / "log") as session:
        numbers = session.input("numbers", "x int")
        expected: Bag = bag()
        for call, rows in program:
            if call == "commit":
                session.commit()
            elif call == "clear":
                numbers.clear()
                expected = bag()
            else:
                getattr(numbers, call)(rows)
                added = bag(rows, -1 if call == "remove" else 1)
                expected = added if call == "set" else summed([*expected.items(), *added.items()])
        numbers.insert([(x,) for x in range(4) for _ in range(60)])  # no count is negative
        session.commit()
        wanted = summed([*expected.items(), *(((x,), 60) for x in range(4))])
        assert bag(map(tuple, numbers.rows())) == wanted


# -- epochs ----------------------------------------------------------------------------------------


@pytest.mark.fault(46)
def test_commit_without_pending_changes_is_an_empty_epoch(session: Session) -> None:
    assert session.commit() == 1
    assert session.commit(label="empty") == 2
    assert session.inputs["numbers"].changes(after=0).num_rows == 0
    assert session.epochs()[2].label == "empty"


def test_epoch_block_is_an_epoch_of_its_own(session: Session) -> None:
    numbers = session.inputs["numbers"]
    numbers.insert([(1,)])
    with session.epoch(label="block") as block:
        numbers.insert([(2,)])
        assert session.pending["numbers"].rows == 1
        assert block.number is None
    assert block.number == 1
    assert not block.skipped
    assert values(numbers, "block") == [2]
    assert session.pending["numbers"].rows == 1
    session.commit()
    assert values(numbers) == [1, 2]


def test_epoch_block_that_raises_changes_nothing(session: Session) -> None:
    numbers = session.inputs["numbers"]
    numbers.insert([(1,)])
    with suppress(KeyError), session.epoch():
        numbers.insert([(2,)])
        raise KeyError
    assert session.now == 0
    assert session.pending["numbers"].rows == 1
    session.commit()
    assert values(numbers) == [1]


def test_epoch_block_with_a_failing_stage_changes_nothing(session: Session) -> None:
    numbers = session.inputs["numbers"]
    session.stage("inverse", numbers.map(lambda row: (12 // row.x,), "y int"))
    with pytest.raises(StageError), session.epoch():
        numbers.insert([(0,)])
    assert not session.pending
    assert session.now == 0


def test_load_with_a_key_is_taken_once(session: Session) -> None:
    numbers = session.inputs["numbers"]
    assert numbers.insert([(1,)], once="january") == 1
    assert numbers.insert([(1,)], once="january") == 0
    session.commit()
    assert numbers.insert([(1,)], once="january") == 0
    assert numbers.remove([(1,)], once="january") == 1
    session.discard()
    assert numbers.insert([(2,)], once=7) == 1
    session.discard()
    assert numbers.insert([(2,)], once=7) == 1
    session.commit()
    assert values(numbers) == [1, 2]
    assert any("'january' is loaded already" in notice for notice in notices_of(session))


def test_load_of_two_concurrent_blocks_is_taken_once(session: Session) -> None:
    both_inserted = threading.Barrier(2, timeout=60)
    refused: list[str] = []

    def load() -> None:
        try:
            with session.epoch():
                session.inputs["numbers"].insert([(1,)], once="january")
                both_inserted.wait()
        except StageError as error:
            refused.append(str(error))

    run_threads(load, load)
    assert session.now == 1
    assert values(session["numbers"]) == [1]
    assert refused == ["another thread has committed a load with the same key"]


@pytest.mark.parametrize("commits", [False, True], ids=["waits", "committed"])
def test_load_of_two_threads_into_pending_changes_is_taken_once(
    session: Session, commits: bool
) -> None:
    """One thread is stopped at each line while the other one inserts with the same key."""
    numbers = session.inputs["numbers"]
    keys = iter(range(1000))
    key = 0

    def load() -> None:
        nonlocal key
        key = next(keys)
        numbers.insert([(key,)], once=key)

    def other() -> None:
        numbers.insert([(key,)], once=key)
        if commits:
            session.commit()

    loaded = len(at_one_line_after_the_other(["session/writes/input"], load, other))
    session.commit()
    assert values(numbers) == [*range(loaded)]
    notices = [notice for notice in notices_of(session) if "already" in notice]
    assert len(notices) == loaded - 1


def test_load_key_can_be_a_number_a_date_or_nested(session: Session) -> None:
    numbers = session.inputs["numbers"]
    days = (date(2024, 1, 1), datetime(2024, 1, 1), np.int64(3), Decimal(1), ["a", {"b": None}])
    for key in days:
        assert [numbers.insert([(1,)], once=key) for _ in range(2)] == [1, 0]
    assert session.pending["numbers"].rows == len(days)


def test_epoch_block_of_known_loads_makes_no_epoch(session: Session) -> None:
    """A notebook that is run again commits no further epochs."""
    numbers = session.inputs["numbers"]
    for _ in range(2):
        with session.epoch(label="days") as block:
            for day in range(3):
                numbers.insert([(day,)], once=f"day {day}")
    assert block.skipped
    assert block.number is None
    assert session.now == 1
    with session.epoch() as block:  # some of it is new
        numbers.insert([(2,)], once="day 2")
        numbers.insert([(3,)], once="day 3")
    assert (block.skipped, block.number) == (False, 2)
    with session.epoch() as block:
        numbers.insert([(3,)], once="day 3")
        numbers.remove([(0,)])
    assert (block.skipped, block.number) == (False, 3)
    with session.epoch() as block:  # an empty epoch was requested
        pass
    assert (block.skipped, block.number) == (False, 4)
    assert values(numbers) == [1, 2, 3]


def test_epoch_block_with_a_key_is_committed_once(session: Session) -> None:
    numbers = session.inputs["numbers"]
    for _ in range(2):
        for day in range(3):
            with session.epoch(once=f"day {day}") as block:
                numbers.insert([(day,)])
    assert block.skipped
    assert block.number is None
    assert session.now == 3
    assert values(numbers) == [0, 1, 2]
    with suppress(KeyError), session.epoch(once="day 3"):
        raise KeyError
    with session.epoch(once="day 3") as block:
        numbers.insert([(3,)])
    assert block.number == 4


def test_transaction_ends_with_its_epoch_or_is_discarded(session: Session) -> None:
    numbers = session.inputs["numbers"]
    cell = session.begin(label="cell")
    numbers.insert([(1,)])
    assert cell.commit() == 1
    assert values(numbers, "cell") == [1]
    cell = session.begin()
    numbers.insert([(2,), (3,)])
    assert cell.discard() == 2
    numbers.insert([(4,)])
    session.commit()
    assert values(numbers) == [1, 4]


def test_upsert_semantics_are_decided_at_the_commit(session: Session) -> None:
    planes = session.inputs["planes"]
    planes.upsert([("a", 1)])
    with session.epoch():
        planes.insert([("a", 7), ("b", 7)])
    session.commit()
    assert values(planes) == [("a", 1), ("b", 7)]


def test_key_inserted_by_two_transactions_is_refused_at_the_second_commit(session: Session) -> None:
    people = session.input("keyed", "id int, name string", key="id")
    people.insert([(1, "first"), (2, "other")])
    with session.epoch():
        people.insert([(1, "second")])
    for _ in range(2):
        with pytest.raises(SchemaError, match="input 'keyed': key 1 exists already"):
            session.commit()
        assert session.pending["keyed"].rows == 2, "a refused commit keeps pending rows"
    assert session.discard() == 2
    assert people.rows() == [(1, "second")]


@pytest.mark.parametrize("kind", ["insert", "upsert"])
def test_equal_rows_of_a_key_in_files_are_merged_or_refused(session: Session, kind: str) -> None:
    """Executors write arranged rows, in which equal rows are one row with a count."""
    people = session.input("keyed", "id bigint, age bigint", key="id")
    layout = Layout(("bigint", "bigint"), (0,))
    columns = [np.array([1, 1, 2]), np.array([10, 10, 5])]
    batch = arrange(layout, Updates(columns, np.ones(3, np.int64)))
    assert sorted(batch.diff.tolist()) == [1, 2]
    change = PendingCall(kind, None, {layout: ArrangedChange((batch,))})
    if kind == "insert":
        with pytest.raises(SchemaError, match="'keyed': key 1 occurs twice in the rows"):
            services_of(session).ingest.add("keyed", change)
        return
    services_of(session).ingest.add("keyed", change)
    session.commit()
    assert people.rows() == [(1, 10), (2, 5)]


def test_rename_or_drop_of_an_input_with_pending_rows_is_refused(session: Session) -> None:
    session.inputs["numbers"].insert([(1,)])
    for act in (lambda: session.rename("numbers", "values"), lambda: session.drop("numbers")):
        with pytest.raises(StageError, match="input 'numbers' has 1 uncommitted changes"):
            act()
    session.commit()
    session.rename("numbers", "values")
    assert values(session["values"]) == [1]


def test_pending_rows_of_a_replaced_input_are_refused(session: Session) -> None:
    numbers = session.inputs["numbers"]

    def replace() -> None:
        session.drop("numbers")
        session.input("numbers", "x int, y int")

    with suppress(StageError), session.epoch():
        numbers.insert([(1,)])
        thread = threading.Thread(target=replace)
        thread.start()
        thread.join()
        with pytest.raises(StageError, match="'numbers' was dropped or renamed while 1 changes"):
            session.commit()
    assert session.now == 0
    assert session["numbers"].rows() == []


def test_concurrent_inserts_into_one_transaction_are_all_committed(session: Session) -> None:
    numbers = session.inputs["numbers"]

    def write(start: int) -> None:
        for x in range(start, start + 30):
            numbers.insert([(x,)])
            if x % 10 == 0:
                session.commit()

    run_threads(*(partial(write, n * 30) for n in range(4)))
    session.commit()
    assert values(numbers) == list(range(120))


def test_concurrent_commits_are_serialised(session: Session) -> None:
    numbers = session.inputs["numbers"]
    session.stage("sums", numbers.group_by().agg(n="count(*)", total="sum(x)"))
    read_rows = []

    def read() -> None:
        for _ in range(50):
            read_rows.append(session["sums"].rows(at=session.now)[0])

    def write(start: int) -> None:
        for x in range(start, start + 20):
            with session.epoch():
                numbers.insert([(x,)])

    run_threads(*(partial(write, n * 20) for n in range(3)), read, read)
    assert session.now == 60
    assert values(session["sums"]) == [(60, sum(range(60)))]
    assert {row.n for row in read_rows} <= set(range(61))


def test_insert_during_a_commit_is_pending_until_the_next(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is stopped until the other thread has reached or passed the lock."""
    numbers = session.inputs["numbers"]
    begun, arrived = threading.Event(), threading.Event()

    class Lock:
        """The lock of the session; reports when the second thread arrives."""

        def __init__(self, lock: Any) -> None:
            self.lock = lock

        def __enter__(self) -> None:
            if threading.current_thread() is other:
                arrived.set()
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    def insert() -> None:
        assert begun.wait(60)
        numbers.insert([(2,)])
        arrived.set()

    run = services_of(session).publisher.runner.epoch

    def slow(*arguments: Any) -> Any:
        draft = run(*arguments)
        begun.set()
        assert arrived.wait(60)
        return draft

    monkeypatch.setattr(services_of(session).publisher.runner, "epoch", slow)
    numbers.insert([(1,)])
    other = threading.Thread(target=insert)
    other.start()
    services_of(session).writer_lock.lock = Lock(services_of(session).writer_lock.lock)  # type: ignore[assignment]
    session.commit()
    other.join(60)
    assert values(numbers, at=1) == [1]
    session.commit()
    assert values(numbers) == [1, 2]


class TimeIsUpError(Exception):
    """Raised by the alarm handler of a user."""


def ring(*_: Any) -> None:
    raise TimeIsUpError


@pytest.fixture
def raise_after_write(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], None]]:
    """Raises a signal as soon as the next frame is written."""
    write, alarm = store_of(session).write_epoch, signal.signal(signal.SIGALRM, ring)
    # A process that a shell starts in the background ignores SIGINT.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)

    def arm(number: int) -> None:
        def written(*arguments: Any) -> Any:
            position = write(*arguments)
            monkeypatch.setattr(store_of(session), "write_epoch", write)
            signal.raise_signal(number)
            return position

        monkeypatch.setattr(store_of(session), "write_epoch", written)

    yield arm
    signal.signal(signal.SIGALRM, alarm)
    signal.signal(signal.SIGINT, interrupt)


SIGNALS = [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, TimeIsUpError)]


@pytest.mark.fault(48)
@pytest.mark.parametrize(("number", "error"), SIGNALS)
def test_signal_after_the_frame_is_written_leaves_the_epoch_committed(
    session: Session,
    raise_after_write: Callable[[int], None],
    number: int,
    error: type[BaseException],
) -> None:
    session.inputs["numbers"].insert([(1,)])
    raise_after_write(number)
    with pytest.raises(error) as raised:
        session.commit(label="first")
    assert raised.value.__notes__ == ["epoch 1 is committed: do not insert its rows again"]
    assert session.now == 1
    assert not session.pending
    assert session.commit() == 2
    assert values(session["numbers"]) == values(session["numbers"], at=1) == [1]
    assert [each.label for each in session.epochs()] == [None, "first", None]
    assert session.stats["epochs"] == 2
    assert session.frontiers["numbers"].memory == 2
    session.close()
    with nosync_nb.open(session.path) as session:
        assert session.now == 2
        assert session.recovery.clean
        assert values(session["numbers"]) == [1]


@pytest.mark.parametrize(("number", "error"), SIGNALS)
def test_interrupted_block_and_transaction_know_their_committed_epoch(
    session: Session,
    raise_after_write: Callable[[int], None],
    number: int,
    error: type[BaseException],
) -> None:
    raise_after_write(number)
    with pytest.raises(error), session.epoch() as block:
        session.inputs["numbers"].insert([(1,)])
    assert block.number == 1
    session.inputs["numbers"].insert([(2,)])
    transaction = session.begin()
    session.inputs["numbers"].insert([(3,)])
    raise_after_write(number)
    with pytest.raises(error):
        transaction.commit()
    assert values(session["numbers"], at=2) == [1, 3]
    assert session.discard() == 1
