"""PySpark functions and `spark.sql` in cells: the error without Spark names the definition."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from jupyter.kernels import Kernel

from nosync.cells.spark_equivalents import frame_note, without_spark
from nosync_nb import Session

OWN = (
    "import sys\n"
    "from pyspark.sql import SparkSession\n"
    "spark = (SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')\n"
    "         .config('spark.driver.host', '127.0.0.1')\n"
    "         .config('spark.sql.session.timeZone', 'UTC').getOrCreate())"
)
FLIGHTS = (
    'flights = nosync.input("flights", "carrier string, dest string, delay double")\n'
    'flights.insert([("UA", "BOS", 5.0), ("AA", "BOS", 70.0), ("UA", "LAX", None)])'
)
QUERIES = {
    "select * from flights where delay > 10": "flights.filter('delay > 10')",
    "SELECT carrier, delay * 2 AS d FROM flights": "flights.select('carrier', 'delay * 2 AS d')",
    "select distinct f.carrier from flights f": "flights.select('carrier').distinct()",
    "select carrier, avg(delay) as a, count(*) from flights group by carrier": (
        "flights.group_by('carrier').agg(a='AVG(delay)', count='COUNT(*)')"
    ),
    "select max(delay) as worst from flights": "flights.group_by().agg(worst='MAX(delay)')",
    "select upper(dest) as d, count(*) as n from Flights where delay is not null"
    " group by upper(dest) having count(*) > 1": (
        "flights.filter('NOT delay IS NULL').group_by('UPPER(dest) AS d')"
        ".agg(n='COUNT(*)').filter('n > 1')"
    ),
    "select count(*) as n, carrier from flights group by carrier": (
        "flights.group_by('carrier').agg(n='COUNT(*)').select('n', 'carrier')"
    ),
    "select carrier, delay from flights order by delay desc limit 2": (
        "flights.select('carrier', 'delay').group_by().top(2, by='delay DESC')"
    ),
    "select a.carrier from flights a join flights b on a.dest = b.dest": None,
    "select carrier, row_number() over (order by delay) as r from flights": None,
    "select * from (select * from flights) q": None,
    "select carrier, count(*) as n from flights group by 1": None,
    "select * from elsewhere": None,
    "select * from db.flights": None,
    "select upper(dest) from flights": None,
    "with q as (select 1) select * from flights": None,
    "select * from flights union all select * from flights": None,
    "select * from flights, lateral explode(array(1))": None,
    "no query": None,
}


@pytest.mark.parametrize("sql", QUERIES)
def test_note_about_a_dataframe_shows_the_definition(sql: str, session: Session) -> None:
    expected = QUERIES[sql]
    note = frame_note(
        "g", f"x = 1\ng = spark.sql({sql!r})\n", {"flights": "flights", "Flights": "flights"}.get
    )
    if expected is None:
        assert "define it with select, filter, join" in note
        return
    assert note.endswith(f"To keep it up to date: g = {expected}")
    flights = session.input("flights", "carrier string, dest string, delay double")
    flights.insert([("UA", "BOS", 5.0), ("AA", "BOS", 70.0), ("UA", "LAX", None)])
    session.commit()
    collection: Any = eval(expected, {"flights": flights})
    duckdb = pytest.importorskip("duckdb")
    found = duckdb.sql(sql.replace("Flights", "flights")).fetchall()
    assert sorted(map(repr, map(tuple, collection.rows()))) == sorted(map(repr, found))


def test_note_without_a_query_in_the_cell_is_general() -> None:
    for source in ("g = spark.table('flights')", "g = spark.sql(text)", "a, g = 1, 2", "g ="):
        assert "define it with" in frame_note("g", source, lambda name: name)


def test_functions_of_pyspark_without_a_session_are_errors_with_a_hint() -> None:
    """Runs in its own process, because another test may have started Spark in this one."""
    script = """
from pyspark.sql import functions as F
from nosync.cells.spark_equivalents import without_spark
for call in (lambda: F.col('x') > 1, lambda: F.sum('x'), lambda: F.udf(lambda v: v, 'int')('x')):
    try:
        call()
    except Exception as error:
        told = without_spark(error)
        print(told.args[0].split(" needs a Spark session, and none runs")[0], told.hint)
"""
    told = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert [line.partition(" write expressions as text")[0] for line in told] == [
        "PySpark's col()",
        "PySpark's sum()",
        "PySpark's udf()",
    ]


def test_other_errors_are_left_alone() -> None:
    for error in (AssertionError(), AssertionError("told"), ValueError()):
        with pytest.raises(type(error)) as caught:
            raise error
        assert without_spark(caught.value) is None


def test_cells_without_spark_show_the_error_and_the_hint(tmp_path: Path) -> None:
    with closing(Kernel(tmp_path)) as kernel:
        for cell in ("import nosync\nfrom pyspark.sql import functions as F", FLIGHTS):
            assert kernel.run(cell).status == "ok"
        for cell in (
            "%%dd\nlate = flights.filter(F.col('delay') > 10)",
            "flights.filter(F.col('delay') > 10)",
        ):
            reply = kernel.run(cell)
            assert reply.status == "error"
            assert "PySpark's col() needs a Spark session, and none runs" in reply.text
            assert "Hint: write expressions as text" in reply.text
            assert len(reply.text.strip().splitlines()) <= 4, reply.text
        reply = kernel.run("%%dd\nlate = 5")
        assert "NoSync: no stage" in reply.text


@pytest.mark.spark
def test_cell_with_a_query_of_spark_shows_the_definition(tmp_path: Path) -> None:
    with closing(Kernel(tmp_path)) as kernel:
        assert (
            kernel.run(FLIGHTS.replace("flights = ", "import nosync\nflights = ", 1)).status == "ok"
        )
        assert kernel.run(OWN, timeout=240).status == "ok"
        reply = kernel.run(
            "%%dd\ng = spark.sql('select * from flights where delay > 10')", timeout=240
        )
        assert reply.status == "ok"
        assert "g is a Spark DataFrame with the current rows, not a stage" in reply.text
        assert "g = flights.filter('delay > 10')" in reply.text
        assert "no top-level name" not in reply.text
        assert kernel.run("%%dd\ng = flights.filter('delay > 10')").status == "ok"
