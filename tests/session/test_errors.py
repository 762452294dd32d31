"""Errors of users: each has its own kind, a place and a hint.

After each error, every collection, the epoch, and the log are unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from samples import people, state

import nosync_nb
from nosync_nb import (
    DivergenceError,
    DurabilityError,
    ExpressionError,
    NegativeMultiplicityError,
    NosyncError,
    SchemaError,
    Session,
    StageError,
    TimeError,
)
from nosync_nb.collections.session_protocol import definition_of
from nosync_nb.rows import objects
from nosync_nb.session.state import transactions
from nosync_nb.trace.batch import Updates

pytestmark = pytest.mark.usefixtures("own_key")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as made:
        people(made)
        yield made


def commit_in_function(session: Session) -> None:
    def meddle(row: Any) -> tuple[int]:
        session.commit()
        return (1,)

    session.stage("meddled", session["people"].map(meddle, "y int"))


def insert_in_function(session: Session) -> None:
    def meddle(row: Any) -> tuple[int]:
        session.inputs["people"].insert([("di", 1, 1.0)])
        return (1,)

    session.stage("meddled", session["people"].map(meddle, "y int"))


def define_circle(session: Session) -> None:
    session.stage("grown", session["by_age"].filter("n > 1"))


Act = Callable[[Session], Any]
CASES: dict[str, tuple[type[NosyncError], str, str, Act]] = {
    # case: error kind, its message, its hint, the call
    "an unknown column in a filter": (
        ExpressionError, "expression 'agee > 1': no column 'agee'", "did you mean 'age'",
        lambda s: s.stage("x", s["people"].filter("agee > 1")),
    ),
    "an unknown column in an aggregate": (
        ExpressionError, "no column 'agee'", "the columns are",
        lambda s: s["people"].group_by("name").agg(n="max(agee)"),
    ),
    "an unknown key": (
        SchemaError, "no column 'nam'", "the columns are name, age, score",
        lambda s: s["people"].group_by("nam").agg(n="count(*)"),
    ),
    "an unknown column in a row": (
        SchemaError, "input 'people': row 0: unknown column 'agee'", "the columns are",
        lambda s: s["people"].insert([{"name": "x", "agee": 1, "score": 1.0}]),
    ),
    "a column that a row lacks": (
        SchemaError, "input 'people': row 0: column 'score' is missing", "fill it with None",
        lambda s: s["people"].insert([{"name": "x", "age": 1}]),
    ),
    "a value of the wrong type": (
        SchemaError, "input 'people': column 'age', row 0: 'old' is not a valid int",
        "convert it first",
        lambda s: s["people"].insert([("x", "old", 1.0)]),
    ),
    "a number that does not fit": (
        SchemaError, "column 'age', row 0: 1099511627776 does not fit int", "a wider type",
        lambda s: s["people"].insert([("x", 2**40, 1.0)]),
    ),
    "a fraction in the last of many rows": (
        SchemaError, "column 'age', row 1000: 1.5 is not exactly int", "round it",
        lambda s: s["people"].insert([("x", 1, 1.0)] * 1000 + [("x", 1.5, 1.0)]),
    ),
    "a row too few columns": (
        SchemaError, r"row 0 has 2 values for 3 columns: \('x', 1\)", "the columns are",
        lambda s: s["people"].insert([("x", 1)]),
    ),
    "no rows at all": (
        SchemaError, "input 'people': 5 is not a list of rows", "pass a list of tuples",
        lambda s: s["people"].insert(5),
    ),
    "bad SQL": (
        ExpressionError, "cannot read the expression 'age >'", "one Spark SQL expression",
        lambda s: s["people"].filter("age >"),
    ),
    "a filter that is no condition": (
        ExpressionError, r"filter 'age \+ 1' is of type int", "write a comparison",
        lambda s: s["people"].filter("age + 1"),
    ),
    "a value that SQL cannot cast": (
        ExpressionError, "stage 'x': expression .*'ann' is not of type int", "try_cast",
        lambda s: s.stage("x", s["people"].select("cast(name as int) as n")),
    ),
    "a function that raises": (
        StageError, "stage 'x': .*raised ZeroDivisionError.*name='ann', age=20", "filter the row",
        lambda s: s.stage("x", s["people"].map(lambda row: (1 // (row.age - 20),), "y int")),
    ),
    "a function that gives too much": (
        StageError, r"stage 'x': map must return rows of \(y int\): row 0 has 2", "return tuples",
        lambda s: s.stage("x", s["people"].map(lambda row: (1, 2), "y int")),
    ),
    "a reducer that raises": (
        StageError, "stage 'x': .*raised KeyError", "fix the function",
        lambda s: s.stage("x", s["people"].group_by("age").reduce(lambda k, r: {}[k], "y int")),
    ),
    "a commit inside a function": (
        StageError, "commit inside a stage's function", "commit outside", commit_in_function,
    ),
    "an insert inside a function": (
        StageError, "insert inside a stage's function", "change inputs", insert_in_function,
    ),
    "an epoch in the future": (
        TimeError, "epoch 99 is not readable", "epochs 0 to 2 are", lambda s: s["grown"].rows(at=99)
    ),
    "an offset before the beginning": (
        TimeError, "epoch -4 is not readable", "epochs 0 to 2 are", lambda s: s["grown"].rows(at=-4)
    ),
    "an invalid epoch": (
        TimeError, "1.5 is not an epoch", "a number, a label", lambda s: s["grown"].rows(at=1.5)
    ),
    "an unknown label": (
        TimeError, "no epoch is labelled 'third'", "labels: second",
        lambda s: s["grown"].rows(at="third"),
    ),
    "a label that is taken": (
        StageError, "label 'second' is used for epoch 2", "another label",
        lambda s: s.commit(label="second"),
    ),
    "a load with an unstable key": (
        SchemaError, "people': once=.* is not a key: type object cannot", "once='2024-01'",
        lambda s: s["people"].insert([("x", 1, 1.0)], once=("january", object())),
    ),
    "an epoch with an unstable key": (
        SchemaError, "epoch: once={'a'} is not a key: type set cannot", "a text, a number",
        lambda s: s.epoch(once={"a"}).__enter__(),
    ),
    "an invalid Spark session": (
        SchemaError, "spark='off' is neither a Spark session nor", "omit it",
        lambda s: nosync_nb.open(f"{s.path}-other", spark="off"),
    ),
    "an unknown mode": (
        SchemaError, "mode='x' is unknown", 'mode="r" to read',
        lambda s: nosync_nb.open(s.path, mode="x"),  # type: ignore[arg-type]
    ),
    "a function of an unnamed collection": (
        StageError, "^an unnamed collection: .*raised ZeroDivisionError", "fix the function",
        lambda s: s["people"].map(lambda row: (1 // 0,), "y int").rows(),
    ),
    "a loop of an unnamed collection": (
        DivergenceError, "^an unnamed collection: .* iterate did not converge", "limit the rounds",
        lambda s: s["people"].iterate(
            lambda p: p.select("name", "age + 1 AS age", "score")
        ).rows(),
    ),
    "a name with a space": (
        SchemaError, "input 'my table': a name must be an identifier", "letters, digits",
        lambda s: s.input("my table", "x int"),
    ),
    "a name that Python has": (
        SchemaError, "stage 'class': a name must be an identifier", "not a Python keyword",
        lambda s: s.stage("class", s["people"].distinct()),
    ),
    "an unknown type": (
        SchemaError, "unknown type 'floof'", "types are", lambda s: s.input("more", "x floof")
    ),
    "an input without columns": (
        SchemaError, "input 'more' needs columns", "session.input", lambda s: s.input("more")
    ),
    "an input of data without columns": (
        SchemaError, "input 'more': there are no columns", "'id bigint'",
        lambda s: s.input("more", pd.DataFrame()),
    ),
    "an input with columns that differ in case": (
        SchemaError, "input 'more': columns 'a' and 'A' differ only in case", "rename one",
        lambda s: s.input("more", "a int, b int, A int"),
    ),
    "a map to columns that differ in case": (
        SchemaError, "map: columns 'a' and 'A' differ only in case", "rename one",
        lambda s: s["people"].map(lambda row: (1, 2), "a int, A int"),
    ),
    "a select of nothing": (
        SchemaError, "select: there are no columns", "select('*')", lambda s: s["people"].select()
    ),
    "an input with other columns": (
        SchemaError, r"input 'people' has columns \(name string.*, not \(name string\)", "drop it",
        lambda s: s.input("people", "name string"),
    ),
    "an input with another key": (
        SchemaError, r"input 'planes' has key \['tail'\], not \['seats'\]", "leave key out",
        lambda s: s.input("planes", "tail string, seats int", key="seats"),
    ),
    "a stage that is an input": (
        StageError, "'people' is an input", "name the result differently",
        lambda s: s.stage("people", s["people"].distinct()),
    ),
    "a stage that is no collection": (
        StageError, "stage 'x': 5 is not a collection", "an operator",
        lambda s: s.stage("x", 5),
    ),
    "a stage over itself": (
        StageError, "stage 'grown' depends on itself", "name the result differently",
        lambda s: s.stage("grown", s["grown"].filter("age > 20")),
    ),
    "stages in a circle": (
        StageError, "depend on each other: grown -> by_age -> grown", "use iterate", define_circle
    ),
    "an unknown stage": (
        StageError, "there is no stage or input 'gron'", "did you mean 'grown'", lambda s: s["gron"]
    ),
    "a drop of an input with readers": (
        StageError, "'people' is read by grown, by_age", "cascade=True", lambda s: s.drop("people")
    ),
    "a rename to a name that is taken": (
        StageError, "'people' exists already", "drop it", lambda s: s.rename("grown", "people")
    ),
    "a null key": (
        SchemaError, "input 'planes': key 'tail' is null in row 1", "without a key",
        lambda s: s["planes"].upsert([("b", 1), (None, 2)]),
    ),
    "a key that exists": (
        SchemaError, "input 'planes': key 'a' exists already", "planes.upsert",
        lambda s: s["planes"].insert([("b", 2), ("a", 2)]),
    ),
    "an upsert without a key": (
        SchemaError, r"input 'people' has no key, so it has no upsert\(\)", "key='id'",
        lambda s: s["people"].upsert([("ann", 1, 1.0)]),
    ),
    "a join on an unknown column": (
        SchemaError, "no column 'tail'", "the columns are",
        lambda s: s["people"].join(s["planes"], on="tail"),
    ),
    "a join of names that clash": (
        SchemaError, "both sides have a column 'age'", "rename",
        lambda s: s["people"].join(s["grown"], on="name"),
    ),
    "a concat of other columns": (
        SchemaError, "concat: the schemas differ", "select",
        lambda s: s["people"].concat(s["planes"]),
    ),
    "a reducer that is no function": (
        StageError, "reduce: 5 is not a function", "reduce(lambda key, rows",
        lambda s: s["people"].group_by("age").reduce(5, "y int"),
    ),
    "a reducer without columns": (
        SchemaError, "reduce: schema=None does not declare", "Spark DDL",
        lambda s: s["people"].group_by("age").reduce(lambda k, r: [], None),
    ),
    "a map that is no function": (
        StageError, "map: 'x' is not a function", "map(lambda row",
        lambda s: s["people"].map("x", "y int"),
    ),
    "a threshold that is no function": (
        StageError, "threshold: 2 is not a function", "threshold(lambda count",
        lambda s: s["people"].threshold(2),
    ),
    "a join on an invalid value": (
        SchemaError, "join: 5 is neither a column nor an expression", "on='id'",
        lambda s: s["people"].join(s["planes"], on=5),
    ),
    "a wait for replicas without any": (
        DurabilityError, "no replicas", "disk", lambda s: s.commit(wait="replicas")
    ),
    "a wait for an unknown level": (
        DurabilityError, "unknown level 'soon'", "disk", lambda s: s.commit(wait="soon")
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:.*kernel:UserWarning", "ignore:.*cannot be:UserWarning")
def test_error_names_place_and_hint_and_changes_nothing(session: Session, case: str) -> None:
    kind, says, remedy, act = CASES[case]
    before = state(session)
    with pytest.raises(kind, match=says) as caught:
        act(session)
    assert remedy in (caught.value.hint or "")
    assert caught.value.__notes__ == [f"Hint: {caught.value.hint}"]
    session.discard()
    assert state(session) == before
    session["people"].insert([("di", 30, 4.0)])
    assert session.commit() == before["now"] + 1
    assert session["by_age"].rows() == [(20, 2), (30, 1)]


def test_failed_epoch_keeps_pending_rows(session: Session) -> None:
    session.stage("inverse", session["people"].map(lambda row: (100 // row.age,), "x int"))
    before = state(session)
    session["people"].insert([("eve", 5, 1.0)])
    session["people"].insert([("nil", 0, 1.0)])
    for _ in range(2):
        with pytest.raises(StageError, match="name='nil', age=0") as caught:
            session.commit()
        assert caught.value.stage == "inverse"
        assert session.pending["people"].rows == 2
    assert session.discard() == 2
    assert state(session) == before


def test_function_that_raises_on_one_row_in_a_million_names_it(session: Session) -> None:
    numbers = session.input("numbers", "x bigint")
    session.stage("halves", numbers.map(lambda row: (10 // (row.x - 777_777),), "y bigint"))
    before = state(session)
    numbers.insert(pa.table({"x": pa.array(range(1_000_000))}))
    with pytest.raises(StageError, match=r"'halves'.*ZeroDivisionError.*x=777777"):
        session.commit()
    session.discard()
    assert state(session) == before


def test_nan_can_be_a_key(session: Session) -> None:
    scores = session.input("scores", "x double, n int", key="x")
    scores.insert([(math.nan, 1), (-0.0, 1)])
    session.commit()
    scores.upsert([(float("nan"), 2), (0.0, 2)])
    session.commit()
    assert repr(scores.rows()) == "[Row(x=0.0, n=2), Row(x=nan, n=2)]"
    scores.delete([math.nan])
    session.commit()
    assert scores.rows() == [(0.0, 2)]


def test_absent_removed_row_is_named_by_reads(session: Session) -> None:
    session["people"].remove([("zed", 40, 1.0)])
    session.commit()
    with pytest.raises(NegativeMultiplicityError) as caught:
        session["people"].rows()
    assert str(caught.value) == (
        "input 'people': row ('zed', 40, 1.0) has a count of -1 at epoch 3: it was removed more"
        " often than inserted"
    )
    with pytest.raises(NegativeMultiplicityError, match=r"collection 'grown': row .*'zed'"):
        session["grown"].count()
    assert session["people"].count(at=2) == 3
    session["people"].insert([("zed", 40, 1.0)])
    session.commit()
    assert session["people"].count() == 3


ABSENT: dict[str, tuple[str, list[Any], str]] = {
    # case: columns, absent rows that are removed, start of the command
    "a row": ("x int, s string", [(1, "a")], "lacking.insert([(1, 'a')])  #"),
    "a row twice": ("x int, s string", [(1, "a")] * 2, "lacking.insert([(1, 'a'), (1, 'a')])  #"),
    "odd values": (
        "x double, d date, t timestamp, m decimal(3,1), b binary, a array<double>, f struct<q:int>",
        [(math.inf, date(2024, 1, 1), None, Decimal("1.5"), b"\0", [math.nan], {"q": 1})],
        "import datetime; from decimal import Decimal; lacking.insert([(float('inf'),",
    ),
    "a date beyond Python": (
        "x date", [pa.table({"x": pa.array([2**31 - 1], pa.int32()).view(pa.date32())})],
        "lacking.set(lacking.except_all(",
    ),
    "many rows": ("x int", [(n,) for n in range(200)], "lacking.set(lacking.except_all("),
    "a long row": ("s string", [("x" * 500,)], "lacking.set(lacking.except_all("),
}  # fmt: skip


@pytest.mark.parametrize(("ddl", "rows", "begin"), ABSENT.values(), ids=list(ABSENT))
def test_error_of_a_negative_count_ends_with_the_command_that_repairs_it(
    session: Session, ddl: str, rows: list[Any], begin: str
) -> None:
    lacking = session.input("lacking", ddl)
    over = session.stage("over", lacking.filter("true"))
    lacking.remove(rows[0] if isinstance(rows[0], pa.Table) else rows)
    session.commit()
    below = session.now
    commands = set()
    for read in (
        lambda: lacking.rows(limit=1),
        lambda: lacking.count(),
        lambda: over.to_arrow(),
        lambda: over.filter("true").to_pandas(),
        lambda: session.cursor(over).count(),
    ):
        with pytest.raises(NegativeMultiplicityError, match=f"at epoch {below}") as caught:
            read()
        commands.add(str(caught.value.hint))
    (command,) = commands
    assert command.startswith(begin)
    exec(command)
    session.commit()
    assert (lacking.count(), over.count()) == (0, 0)
    with pytest.raises(NegativeMultiplicityError) as caught:
        lacking.count(at=below)
    assert "read the last epoch" in str(caught.value.hint)


def test_negative_counts_of_a_keyed_input_of_an_old_log_are_repaired(session: Session) -> None:
    planes = session["planes"]  # has ("a", 1)
    row = Updates([objects(["a"]), np.array([2], np.int32)], np.array([-1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactions, "_present_removed", lambda stage, updates, trace: row)
        planes.remove([("a", 2)])
        session.commit()
    with pytest.raises(NegativeMultiplicityError) as caught:
        planes.rows()
    exec(str(caught.value.hint))
    session.commit()
    assert planes.rows() == [("a", 1)]


def test_definition_that_doubles_itself_is_shared(session: Session) -> None:
    ones: Any = session.input("ones", "x int")

    def doubled(times: int) -> Any:
        return ones if not times else (lambda x: x.concat(x).consolidate())(doubled(times - 1))

    assert definition_of("test", doubled(70)).size == 141
    assert session.stage("many", doubled(70)).count() == 0
