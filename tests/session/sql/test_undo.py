"""SQL statements are all or nothing: failing statements, failing commits, errors at any step."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from checks.sessions import values
from faults.every_opcode import Struck, count, strike
from internals import catalog_of, settle_background

import nosync_nb
from nosync_nb import NosyncError, Session

GOOD = [
    "CREATE OR REPLACE VIEW late AS SELECT * FROM flights WHERE delay > 1",
    "CREATE VIEW fresh AS SELECT day FROM flights",
    "CREATE TEMP VIEW tv AS SELECT day FROM flights",
    "DROP VIEW days",
    "INSERT INTO flights VALUES ('N', 9, 1.0)",
    "UPDATE flights SET delay = delay + 1 WHERE day = 1",
    "DELETE FROM flights WHERE day = 2",
    "MERGE INTO planes USING (VALUES ('N1', 1), ('N3', 3)) AS s(tail, seats)"
    " ON planes.tail = s.tail WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
]
BAD = {
    "unknown column": "DELETE FROM flights WHERE nope = 1",
    "syntax": "INSERT INTO",
    "refused": "SET x = 1",
    "value": "INSERT INTO flights VALUES ('x', 3000000000, 1.0)",
    "row": "INSERT INTO flights SELECT 'x', 1 / (day - 1), 1.0 FROM flights",
    "key": "INSERT INTO planes VALUES ('N1', 5)",
    "two rows": "MERGE INTO planes USING (VALUES ('N1'), ('N1')) AS s(tail)"
    " ON planes.tail = s.tail WHEN MATCHED THEN UPDATE SET seats = 1",
    "view": "CREATE VIEW wrong AS SELECT nope FROM flights",
    "first run": "CREATE VIEW wrong AS SELECT 1 / (day - 1) AS x FROM flights",
    "cycle": "CREATE OR REPLACE VIEW late AS SELECT * FROM late",
    "reader": "DROP VIEW base",
    "stage": "INSERT INTO base VALUES (1)",
    "display": "SELECT 1 / (day - 1) FROM flights",
}


class State(NamedTuple):
    now: int
    rows: dict[str, list[Any]]
    reads: dict[str, Any]
    prints: dict[str, str]
    views: dict[str, tuple[str, ...]]
    pending: list[str]


def state_of(session: Session) -> State:
    names = [name for name in session.info.reads if "@" not in name]
    tables = session.info.sql_tables()
    return State(
        session.now,
        {name: values(session[name]) for name in names},
        {name: session.info.reads[name] for name in names},
        {name: catalog_of(session)[name].fingerprint for name in names},
        {name: columns for name, columns in tables.items() if name not in names},
        list(session.pending),
    )


def filled(session: Session) -> Session:
    flights = session.input("flights", "carrier string, day int, delay double")
    planes = session.input("planes", "tail string, seats int", key="tail")
    flights.insert([("AA", 1, 5.0), ("AA", 1, 75.0), ("UA", 2, 0.5)])
    planes.insert([("N1", 10), ("N2", 20)])
    session.commit()
    session.execute(
        "CREATE VIEW late AS SELECT * FROM flights WHERE delay > 60;"
        "CREATE VIEW days AS SELECT DISTINCT day FROM flights;"
        "CREATE VIEW base AS SELECT day FROM flights; CREATE VIEW above AS SELECT day FROM base;"
        "CREATE TEMP VIEW other AS SELECT 1 AS one"
    )
    return session


@pytest.fixture
def session(session: Session) -> Session:
    return filled(session)


@pytest.mark.parametrize("joined", [False, True], ids=["alone", "in a block"])
@pytest.mark.parametrize("bad", BAD, ids=list(BAD))
def test_failing_statement_undoes_all_before_it(session: Session, bad: str, joined: bool) -> None:
    before = state_of(session)
    for good in (GOOD, GOOD[:1], GOOD[4:5]):
        text = ";\n".join([*good, BAD[bad]])
        if not joined:
            with pytest.raises(NosyncError):
                session.execute(text)
        else:
            with session.epoch() as block, pytest.raises(NosyncError):
                session.execute(text)
            assert block.number == before.now + 1
            before = before._replace(now=session.now)
        assert state_of(session) == before
    session.execute(";\n".join(GOOD))
    assert state_of(session).now == before.now + 1
    assert "tv" in state_of(session).views


def test_failing_commit_restores_views(session: Session) -> None:
    session.stage("share", session["planes"].select("100 / seats AS share"))
    before = state_of(session)
    with pytest.raises(NosyncError, match="division by zero"):
        session.execute(";\n".join([*GOOD, "INSERT INTO planes VALUES ('zero', 0)"]))
    assert state_of(session) == before
    session.execute(";\n".join(GOOD))
    assert "fresh" in session.stages


def test_failing_statement_leaves_earlier_rows_of_the_transaction(session: Session) -> None:
    session.inputs["planes"].insert([("mine", 1)])
    pending = dict(session.pending)["planes"].rows
    session.execute("INSERT INTO flights VALUES ('own', 1, 1.0)")  # an epoch of its own
    assert dict(session.pending)["planes"].rows == pending
    transaction = session.begin()
    session.inputs["flights"].insert([("first", 1, 1.0)])
    with pytest.raises(NosyncError):
        session.execute("INSERT INTO planes VALUES ('second', 1); DELETE FROM nope")
    assert {name: changes.rows for name, changes in session.pending.items()} == {"flights": 1}
    session.execute("UPDATE flights SET day = 7 WHERE carrier = 'first'")
    transaction.commit()
    assert ("first", 7, 1.0) in values(session["flights"])
    session.discard()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undo") / "log"
    with nosync_nb.open(folder) as session:
        filled(session)
    return folder


CELLS = {
    "views": ";\n".join(GOOD[:4]),
    "all": ";\n".join([GOOD[0], GOOD[2], GOOD[3], GOOD[4], GOOD[6]]),
}


@pytest.mark.parametrize("joined", [False, True], ids=["alone", "in a transaction"])
@pytest.mark.parametrize("name", CELLS)
def test_error_at_any_step_leaves_all_or_nothing(
    log: Path, tmp_path: Path, name: str, joined: bool
) -> None:
    """Struck at opcodes over the whole length of the call, more densely where the state changes."""

    def opened(number: int) -> Session:
        folder = tmp_path / str(number)
        shutil.copytree(log, folder)
        session = nosync_nb.open(folder)
        session.execute("CREATE TEMP VIEW other AS SELECT 1 AS one")
        settle_background(session)
        return session

    def act(session: Session) -> None:
        session.execute(CELLS[name])

    def result(session: Session, transaction: Any) -> State:
        if transaction is not None:
            transaction.commit()
        return state_of(session)

    with opened(0) as session:
        transaction = session.begin() if joined else None
        names = set(catalog_of(session))
        steps, changed = count(
            lambda: act(session),
            lambda: (session.now, set(catalog_of(session)) == names, list(session.pending)),
        )
        after = result(session, transaction)
    with opened(1) as session:
        transaction = session.begin() if joined else None
        before = result(session, transaction)
    near = {at + shift for at in changed for shift in range(-2, 3)}
    places = {*range(1, steps, steps // 6), *near, steps}
    outcomes = set()
    for number, at in enumerate(sorted(place for place in places if 0 < place <= steps), 2):
        with opened(number) as session:
            transaction = session.begin() if joined else None
            error = strike(lambda session=session: act(session), at, Struck("from outside"))
            found = result(session, transaction)
            assert found in (before, after), (at, error, found)
            outcomes.add(found == after)
        shutil.rmtree(tmp_path / str(number))
    assert outcomes == {False, True} or not changed
