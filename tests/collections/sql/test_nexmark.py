"""Nexmark in SQL: q0 to q22 are equal to DuckDB after rounds with late events and retractions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from nexmark import DDL, QUERIES, rounds
from soak import tried

import nosync_nb
from bench.sql.compare import difference
from nosync_nb.errors import NosyncError
from nosync_nb.spark import launch

ROUNDS = tried(5, 30)

pytestmark = pytest.mark.usefixtures("no_disk")


def differences(session: Any, db: Any) -> dict[str, str]:
    """The queries whose rows are not those of DuckDB, with the first difference."""
    found = {
        name: difference(session[name].rows(), db.execute(sql).fetchall())
        for name, sql in QUERIES.items()
    }
    return {name: told for name, told in found.items() if told}


def test_queries_are_equal_to_duckdb_after_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_spark(_conf: object) -> None:
        raise NosyncError("no query of Nexmark needs Spark")

    monkeypatch.setattr(launch, "start_session", no_spark)
    monkeypatch.setenv("TZ", "UTC")
    db = duckdb.connect()
    with nosync_nb.open(tmp_path / "log") as session:
        for name, ddl in DDL.items():
            session.input(name, ddl)
            db.execute(f"create table {name} ({ddl.replace('string', 'varchar')})")
        for name, sql in QUERIES.items():
            session.stage(name, session.sql(sql))
        present: dict[str, list[Any]] = {name: [] for name in DDL}
        for changes in rounds(ROUNDS):
            for name, (inserts, removals) in changes.items():
                session[name].insert(inserts)
                session[name].remove(removals)
                present[name] += inserts
                for row in removals:
                    present[name].remove(row)
                db.execute(f"delete from {name}")
                marks = ", ".join("?" * len(present[name][0]))
                db.executemany(f"insert into {name} values ({marks})", present[name])
            session.commit()
            assert differences(session, db) == {}, f"epoch {session.now}"
        assert [name for name in QUERIES if not session[name].count()] == []
    with nosync_nb.open(tmp_path / "log") as session:
        assert differences(session, db) == {}, "from the reopened log"
