"""`window(ts, ...)`: rows without a time are left out, as in Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import nosync_nb
from nosync_nb import ExpressionError, Session

pytestmark = pytest.mark.spark

DDL = "id int, ts timestamp"
START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS: list[tuple[int, datetime | None]] = [
    (1, START + timedelta(minutes=59)),
    (2, None),
    (3, START + timedelta(minutes=61)),
    (4, None),
    (5, START),
]
START_OF = "window(ts, '1 hour').start"
QUERIES = {
    "id, window(ts, '1 hour').start AS w": lambda c: c.select("id", f"{START_OF} AS w"),
    "id, ts, window(ts, '1 hour') AS w": lambda c: c.with_columns(w="window(ts, '1 hour')"),
    "id, window(coalesce(ts, null), '1 hour', '1 HOUR', '5 minutes').end AS e": lambda c: c.select(
        "id", "window(coalesce(ts, null), '1 hour', '1 HOUR', '5 minutes').end AS e"
    ),
    "id, if(id = 2, null, window(ts, '1 hour').end) AS e, ts": lambda c: c.select(
        "id", "if(id = 2, null, window(ts, '1 hour').end) AS e", "ts"
    ),
    "id, session_window(ts, '10 minutes').end AS e": lambda c: c.select(
        "id", "session_window(ts, '10 minutes').end AS e"
    ),
    "id, explode(array(window(ts, '1 hour').start, ts)) AS t": lambda c: c.select(
        "id", "explode(array(window(ts, '1 hour').start, ts)) AS t"
    ),
    f"id, ts WHERE {START_OF} is null or id > 1": lambda c: c.filter(
        f"{START_OF} is null or id > 1"
    ),
    "window(ts, '1 hour') AS w, count(*) AS count GROUP BY 1": lambda c: c.group_by(
        "window(ts, '1 hour') AS w"
    ).count(),
}


@pytest.fixture
def session(spark: Any, tmp_path: Path) -> Iterator[Session]:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        yield session


@pytest.mark.parametrize("query", QUERIES)
def test_row_of_a_null_time_is_left_out_as_in_spark(
    spark: Any, session: Session, query: str
) -> None:
    data = session.input("data", DDL)
    data.insert(ROWS[:1])
    session.commit()
    stage = session.stage("windows", QUERIES[query](data))
    data.insert(ROWS[1:2])
    session.commit()
    data.insert(ROWS[2:])
    session.commit()
    data.remove([ROWS[1], ROWS[0]])
    data.insert([ROWS[0]])
    session.commit()
    columns, _, rest = query.partition(" WHERE ")
    columns, _, group = columns.partition(" GROUP BY ")
    text = f"SELECT {columns} FROM data" + (f" WHERE {rest}" if rest else "")
    text += f" GROUP BY {group}" if group else ""
    spark.createDataFrame(ROWS, DDL).createOrReplaceTempView("data")
    expected = sorted(spark.sql(text).toArrow().to_pylist(), key=repr)
    assert sorted(stage.to_arrow().to_pylist(), key=repr) == expected
    session.stage("windows_later", QUERIES[query](data))
    assert session["windows_later"].rows() == stage.rows()


def test_window_is_refused_where_no_row_can_be_left_out(session: Session) -> None:
    data = session.input("data", DDL)
    hour = "window(ts, '1 hour').start"
    for define, told in (
        (lambda: data.select("id", "window(ts, '1 hour', '10 minutes') AS w"), "sliding"),
        (lambda: data.select("id", "session_window(ts, ts) AS w"), "sessions"),
        (lambda: data.agg(n=f"count({hour})"), "compute it as a column first"),
        (lambda: data.group_by("id").top(1, by=hour), "compute it as a column first"),
        (lambda: data.join(data, on={hour: "ts"}, how="semi"), "compute it as a column first"),
        (lambda: data.head(1, by=hour), "compute it as a column first"),
    ):
        with pytest.raises(ExpressionError) as caught:
            define()
        assert told in str(caught.value.hint)
    session.stage("before", data.select("*", "window(ts, '1 hour') AS w").agg(n="count(w)"))


def test_column_named_window_is_no_call(session: Session) -> None:
    data = session.input("data", "window int, `window(` int")
    session.stage(
        "plain", data.filter("window > 1 and 'window(x)' <> ''").select("window + 1 AS w")
    )
    data.insert([(2, 1), (None, 2)])
    session.commit()
    assert [tuple(row) for row in session["plain"].rows()] == [(3,)]
