"""Random SELECTs: equal to DuckDB at every epoch, after recovery, rewinds, branches and replays."""

from __future__ import annotations

import tempfile
from collections import Counter
from random import Random
from typing import Any

import duckdb
import pytest
from random_selects import TABLES, Mirror, Selects, comparable
from soak import tried

import nosync_nb
from nosync_nb import Session
from nosync_nb.errors import NosyncError
from nosync_nb.spark import launch, spark_session

pytestmark = [
    pytest.mark.usefixtures("no_disk"),
    pytest.mark.filterwarnings("ignore:.*they will be counted twice"),  # that is intended
]

STATEMENTS = 4
"""Statements of one life; those of all lives in soaks are 10,000."""
SEEDS = tried(range(12), range(1_000, 3_500))
EPOCHS = tried(8, 20)
WAITS = ("needs Spark",)
"""Parts of the errors of statements that this process does not evaluate yet."""

EVENTS = ["", "", "", "open", "rewind", "branch"]


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_conf: object) -> None:
        raise NosyncError("a statement needs Spark")

    monkeypatch.setattr(spark_session, "find_session", lambda *_: None)
    monkeypatch.setattr(launch, "start_session", start)


class Life:
    """A session with statements as stages, and a mirror of its tables in DuckDB."""

    def __init__(self, path: str, rng: Random) -> None:
        self.path, self.rng = path, rng
        self.mirror = Mirror(duckdb.connect())
        self.session = nosync_nb.open(path)
        for name, ddl in TABLES.items():
            self.session.input(name, ddl)
        self.statements: dict[str, str] = {}
        self.past = {self.session.now: self.mirror.snapshot()}

    def define(self, name: str, sql: str) -> None:
        """Defines a stage; a statement that waits for Spark is left out."""
        try:
            self.session.stage(name, self.session.sql(sql))
            self.statements[name] = sql
        except NosyncError as error:
            if not any(each in str(error) for each in WAITS):
                raise AssertionError(f"refused: {sql}") from error

    def take(self, most: int) -> None:
        """Commits an epoch of random changes."""
        for name, row, diff in self.mirror.change(self.rng, most):
            table = self.session.inputs[name]
            (table.insert if diff > 0 else table.remove)([row])
        self.session.commit()
        self.past[self.session.now] = self.mirror.snapshot()

    def check(self, session: Session, at: int | None = None) -> None:
        """Compares every stage with DuckDB, now or at an epoch of the past."""
        if at is not None:
            now, self.mirror.rows = self.mirror.rows, self.past[at]
        self.mirror.fill()
        for name, sql in self.statements.items():
            rows = session[name].rows() if at is None else session[name].rows(at=at)
            assert comparable(rows) == self.mirror.query(sql), f"epoch {session.now}: {sql}"
        if at is not None:
            self.mirror.rows = now

    def happen(self, event: str) -> None:
        if event == "open":
            self.session.close()
            self.session = nosync_nb.open(self.path)
        elif event == "rewind":
            epoch = self.rng.choice([*self.past][-3:])
            self.session.rewind(to=epoch)
            self.mirror.rows = {name: [*rows] for name, rows in self.past[epoch].items()}
            self.past = {e: rows for e, rows in self.past.items() if e <= epoch}
            self.past[self.session.now] = self.mirror.snapshot()
        elif event == "branch":
            epoch = self.rng.choice([*self.past][-3:])
            with self.session.branch(f"b{len(self.session.branches)}", at=epoch) as branch:
                now, self.mirror.rows = self.mirror.rows, self.past[epoch]
                self.check(branch)
                self.mirror.rows = now

    def close(self) -> None:
        self.session.close()
        self.mirror.db.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_random_statements_are_equal_to_duckdb(seed: int) -> None:
    rng = Random(seed)
    selects = Selects(rng)
    with tempfile.TemporaryDirectory() as folder:
        life = Life(f"{folder}/log", rng)
        try:
            for number in range(STATEMENTS):
                life.define(f"s{number}", selects.statement())
            life.take(30)
            for _ in range(EPOCHS - 1):
                life.check(life.session)
                life.happen(rng.choice(EVENTS))
                life.take(5)
            life.check(life.session)
            for epoch in [*life.past][-4:-1]:
                life.check(life.session, at=epoch)
            _replay(life)
        finally:
            life.close()


def _replay(life: Life) -> None:
    """Computes the statements for the past as well, as new stages."""
    life.statements, known = {}, life.statements
    for name, sql in known.items():
        life.define(f"{name}_again", f"select * from ({sql}) as again")
    for name in life.statements:
        life.session.replay(name)
    for epoch in [*life.past][-3:]:
        life.check(life.session, at=epoch)


@pytest.mark.parametrize("seed", SEEDS)
def test_predicate_its_negation_and_its_null_add_up(seed: int) -> None:
    rng = Random(seed)
    columns, source, predicate = Selects(rng).predicate_case()
    parts = {"true": predicate, "false": f"not ({predicate})", "null": f"({predicate}) is null"}
    with tempfile.TemporaryDirectory() as folder:
        life = Life(f"{folder}/log", rng)
        try:
            life.define("whole", f"select {columns} from {source}")
            for name, condition in parts.items():
                life.define(name, f"select {columns} from {source} where {condition}")
            for _ in range(4):
                life.take(12)
                counted = _counts(life.session, "whole")
                if parts.keys() <= life.statements.keys():
                    added = sum((_counts(life.session, name) for name in parts), Counter())
                    assert added == counted, f"where {predicate}"
        finally:
            life.close()


def _counts(session: Session, name: str) -> Counter[Any]:
    return Counter(map(tuple, session[name].rows()))


def test_most_statements_run_in_process() -> None:
    rng = Random(0)
    with tempfile.TemporaryDirectory() as folder:
        life = Life(f"{folder}/log", rng)
        try:
            for number in range(30):
                life.define(f"s{number}", Selects(rng).statement())
            assert len(life.statements) >= 15
        finally:
            life.close()
