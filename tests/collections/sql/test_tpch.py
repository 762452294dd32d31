"""TPC-H in SQL: the 22 queries are equal to DuckDB after every epoch of changes of all tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from soak import tried
from tpch_tables import DDL, tables

import nosync_nb
from bench.sql.compare import difference
from bench.tpch.changes import Epoch, changes
from bench.tpch.sql import queries
from nosync_nb.errors import NosyncError
from nosync_nb.spark import launch

SCALE = 0.01
EPOCHS = tried(4, 20)
IN_PROCESS = 1 << 40

pytestmark = pytest.mark.usefixtures("no_disk")


def differences(session: Any, texts: dict[str, str], db: Any) -> dict[str, str]:
    """The queries whose rows are not those of DuckDB, with the first difference."""
    found = {
        name: difference(session[name].rows(), db.execute(text).fetchall())
        for name, text in texts.items()
    }
    return {name: told for name, told in found.items() if told}


def no_spark(_conf: object) -> None:
    raise NosyncError("no query of TPC-H needs Spark")


@pytest.fixture(scope="module")
def load() -> dict[str, pa.Table]:
    return tables(SCALE)


def test_queries_are_equal_to_duckdb_at_every_epoch(
    load: dict[str, pa.Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, db = queries(SCALE), duckdb.connect()
    monkeypatch.setattr(launch, "start_session", no_spark)
    with nosync_nb.open(tmp_path / "log", spark_rows=IN_PROCESS) as session:
        for name, ddl in DDL.items():
            session.input(name, ddl)
        for name, text in texts.items():
            session.stage(name, session.sql(text))
        rows = {}
        for epoch in [Epoch(load, {}, load), *changes(load, EPOCHS)]:
            for name, table in epoch.after.items():
                db.register("changed", table)
                db.execute(f"create or replace table {name} as select * from changed")
            for name, table in epoch.removals.items():
                session[name].remove(table)
            for name, table in epoch.inserts.items():
                session[name].insert(table)
            session.commit()
            assert differences(session, texts, db) == {}, f"epoch {session.now}"
            rows[session.now] = {name: session[name].rows() for name in texts}
        assert [name for name in texts if not any(each[name] for each in rows.values())] == []
        changed = [name for name in texts if len({repr(each[name]) for each in rows.values()}) > 1]
        assert len(changed) >= 18, "most queries give other rows after some epoch"
    with nosync_nb.open(tmp_path / "log", spark_rows=IN_PROCESS) as session:
        assert differences(session, texts, db) == {}, "from the reopened log"
