"""SQL cells and lines: through a real shell and the real engine."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from jupyter.shell import Notebook

import nosync
from nosync.cells.source import read_cell
from nosync_nb.errors import SqlError

INPUTS = (
    'flights = nosync.input("flights", "carrier string, day int, delay double")\n'
    'planes = nosync.input("planes", "tail string, seats int", key="tail")\n'
    'flights.insert([("AA", 1, 5.0), ("UA", 1, 75.0), ("AA", 2, 80.0)])'
)


@pytest.fixture
def notebook(empty: Notebook) -> Notebook:
    empty.ok(INPUTS)
    return empty


def test_sql_cell_defines_writes_and_displays(notebook: Notebook) -> None:
    shown = notebook.ok(
        "%%dd sql\n"
        "-- a comment\n"
        "INSERT INTO flights VALUES ('UA', 3, 90.0), ('ZZ', 3, 1.0);\n"
        "CREATE VIEW late AS SELECT carrier, count(*) AS n FROM flights WHERE delay > 60\n"
        "  GROUP BY carrier;\n"
        "UPDATE planes SET seats = 0;\n"
        "MERGE INTO planes USING late ON tail = carrier\n"
        "  WHEN NOT MATCHED THEN INSERT (tail, seats) VALUES (carrier, n);\n"
        "SELECT carrier FROM flights WHERE day = 3 ORDER BY delay DESC;"
    )
    assert "carrier\nUA\nZZ" in shown
    for line in (
        "INSERT INTO flights: 2 rows",
        "UPDATE planes: 0 rows",
        "MERGE INTO planes: 2 inserted",
        "epoch 2 is committed",
        "ordered by an expression desc",
        "ORDER BY without LIMIT orders this display only",
    ):
        assert line in shown
    assert "late   new     2      2" in shown
    assert [tuple(row) for row in notebook.names["late"].rows()] == [("AA", 1), ("UA", 2)]
    assert list(nosync.session().stages) == ["late"]
    assert notebook.ok("%%dd sql\nSELECT * FROM late").value.name == "late"
    again = "SELECT carrier, count(*) AS n FROM flights WHERE delay > 60 GROUP BY carrier"
    assert "unchanged" in notebook.ok(f"%%dd sql\nCREATE VIEW late AS {again}")


def test_sql_cell_stores_its_select_under_a_name(notebook: Notebook) -> None:
    assert "late   new     2" in notebook.ok(
        "%%dd sql late --persist memory\nSELECT * FROM flights\nWHERE delay > 60 -- minutes\n"
    )
    assert "in memory only" in notebook.ok("%%dd sql late\nSELECT * FROM flights WHERE delay > 60")
    assert "changed, version 2" in notebook.ok("%%dd sql late\nSELECT * FROM flights WHERE day = 1")
    for cell in ("%%dd sql late\nSELECT 1; SELECT 2", "%%dd sql late\nDELETE FROM flights"):
        assert "stores one SELECT" in str(notebook.fails(cell).error)
    assert isinstance(notebook.fails("%%dd sql late x\nSELECT 1").error, UsageError)
    assert isinstance(notebook.fails("%%dd sql --nope\nSELECT 1").error, UsageError)
    error = notebook.fails("%%dd sql other\nSELECT *\nFROM flihgts").error
    assert "line 3, column 6" in str(error)


@pytest.mark.parametrize(
    ("cell", "lines"),
    [
        (
            "%%dd sql\nSELECT carrier,\n    dealy FROM flights",
            ["line 3, column 5", "    dealy FROM flights", "    ^^^^^"],
        ),
        (
            "%%dd sql\nDELETE FROM flights;\nDELETE FROM planes WHERE seats = ;",
            ["[PARSE_SYNTAX_ERROR]", "line 3, column"],
        ),
        ("%%dd sql\nSELECT 1 / (day - 1) FROM flights", ["[DIVIDE_BY_ZERO]", "line 2, column 1"]),
        ("x = 1\n%dd sql SELECT * FROM nope", ["line 1, column 23", "nope", "^^^^"]),
        (
            "nosync.sql('SELECT dealy FROM flights')",
            ["line 1, column 8", "line 1: nosync.sql('SELECT dealy"],
        ),
    ],
)
def test_error_shows_line_and_caret_of_the_cell(
    notebook: Notebook, cell: str, lines: list[str]
) -> None:
    shown = notebook.fails(cell)
    assert isinstance(shown.error, SqlError)
    for line in lines:
        assert line in shown
    assert "Hint: " in shown
    assert "Traceback" not in shown.text
    assert ".py" not in shown.text
    assert notebook.names["flights"].count() == 3


def test_equal_names_are_displayed_with_numbers_and_not_stored(notebook: Notebook) -> None:
    shown = notebook.ok("%dd sql SELECT day, day FROM flights")
    assert "day day_1" in " ".join(shown.text.split())
    error = notebook.fails("%%dd sql days\nSELECT day, day FROM flights").error
    assert isinstance(error, SqlError)
    assert "[COLUMN_ALREADY_EXISTS]" in str(error)
    assert "days" not in nosync.session().stages


def test_failing_sql_cell_undoes_all_of_it(notebook: Notebook) -> None:
    before = nosync.session().now
    for last in ("SELECT nope FROM flights", "SELECT 1 / (day - 1) FROM flights", "DROP VIEW no"):
        notebook.fails(
            "%%dd sql\nCREATE VIEW late AS SELECT * FROM flights;\n"
            f"CREATE TEMP VIEW tv AS SELECT 1 AS a;\nDELETE FROM flights WHERE day = 2;\n{last}"
        )
        assert nosync.session().now == before
        assert not nosync.session().stages
        assert notebook.names["flights"].count() == 3
        assert {"late", "tv"}.isdisjoint(notebook.names)
    assert "no table" in notebook.fails("%dd sql SELECT * FROM tv")


def test_sql_lines_belong_to_the_transaction_of_their_cell(notebook: Notebook) -> None:
    before = nosync.session().now
    shown = notebook.ok(
        "flights.insert([('B', 5, 1.0)])\n"
        "%dd sql UPDATE flights SET day = 6 WHERE day = 5\n"
        "%dd sql INSERT INTO planes VALUES ('it''s', 1), (\"two words\", 2)"
    )
    assert "UPDATE flights: 1 row" in shown
    assert nosync.session().now == before + 1
    assert sorted(row.tail for row in notebook.names["planes"].rows()) == ["it's", "two words"]
    notebook.fails("%dd sql DELETE FROM flights\nraise ValueError")
    assert notebook.names["flights"].count() == 4
    shown = notebook.ok("%dd sql SELECT count(*) AS n FROM flights\n1")
    assert "n\n4" in shown
    assert isinstance(notebook.fails("%dd sql").error, UsageError)
    assert "run SQL in a line" in notebook.ok("%dd help sql")


def test_views_of_cells_are_variables(notebook: Notebook) -> None:
    shown = notebook.ok("%%dd sql\nCREATE TEMPORARY VIEW tv AS SELECT day FROM flights")
    assert "tv is a temporary view: it is not logged" in shown
    assert notebook.names["tv"].count() == 3
    notebook.ok("%%dd\ndays = nosync.sql('SELECT DISTINCT day FROM tv')")
    assert nosync.session().info.reads["days"] == ("flights",)
    notebook.ok("mine = 5")
    assert "mine is your variable" in notebook.ok(
        "%%dd sql\nCREATE TEMP VIEW mine AS SELECT 1 AS one; SELECT * FROM mine"
    )
    assert notebook.names["mine"] == 5
    assert "dropped days" in notebook.ok("%%dd sql\nDROP VIEW days; DROP VIEW tv")
    assert {"days", "tv"}.isdisjoint(notebook.names)
    notebook.fails("%%dd sql\nSELECT * FROM tv")


def test_tables_are_shown_and_explained(notebook: Notebook) -> None:
    notebook.ok("%%dd sql\nCREATE VIEW late AS SELECT * FROM flights")
    shown = notebook.ok("%%dd sql\nSHOW TABLES").text
    assert [line.split() for line in shown.splitlines() if "false" in line] == [
        ["flights", "false", "input"],
        ["late", "false", "stage"],
        ["planes", "false", "input"],
    ]
    assert "delay     double" in notebook.ok("%%dd sql\nDESCRIBE flights")
    assert "select carrier" in notebook.ok("%%dd sql\nEXPLAIN SELECT carrier FROM flights")
    for cell in ("SET x = 1", "USE db", "CREATE TABLE t (a int)", "COMMIT"):
        assert "Hint: " in notebook.fails(f"%%dd sql\n{cell}")


def test_long_result_shows_first_rows_and_count(notebook: Notebook) -> None:
    notebook.ok("%%dd sql\nINSERT INTO flights SELECT carrier, day + 10, delay FROM flights")
    notebook.ok("%config NoSync.limit = 2")
    shown = notebook.ok("%%dd sql\nSELECT day FROM flights ORDER BY day DESC LIMIT 5")
    assert "the first 2 of 5 rows" in shown
    assert [row[0] for row in shown.value.rows] == ["12", "11"]
    assert "display only" not in shown


def test_sql_insert_is_not_repeatable() -> None:
    for source, repeatable in (
        ("%%dd sql\nINSERT INTO t VALUES (1)", False),
        ("%dd sql insert  into t select 1", False),
        ("%%dd sql\nSELECT 1", True),
    ):
        assert read_cell(source, str).repeatable is repeatable


def words(notebook: Notebook, text: str) -> list[str]:
    """The completions at the character | of a cell."""
    at = text.index("|")
    text = text.replace("|", "")
    with provisionalcompleter():
        return [item.text for item in notebook.shell.Completer.completions(text, at)]


def test_sql_is_completed(notebook: Notebook) -> None:
    notebook.ok("%%dd sql\nCREATE TEMP VIEW tv AS SELECT 1 AS `a b`, 2 AS one")
    assert words(notebook, "%%dd sql\nSELECT * FROM |") == ["flights", "planes", "tv"]
    assert words(notebook, "%%dd sql\nSELECT f.| FROM flights f, tv") == ["carrier", "day", "delay"]
    assert words(notebook, "%%dd sql\nSELECT | FROM tv")[:3] == ["`a b`", "one", "tv"]
    assert words(notebook, "%%dd sql\nDELETE FROM tv;\nUPDATE planes SET se|")[0] == "seats"
    assert "row_number" in words(notebook, "%%dd sql\nSELECT row_n|")
    assert words(notebook, "x = %dd sql SELECT coun|")[0] == "count"
    assert words(notebook, "x = 1\n%dd sql sel|") == ["select"]
    assert "SELECT" in words(notebook, "%%dd sql\nSEL|")
    assert words(notebook, "%%dd sql\nSELECT 'fl|") == []
    assert "sql" in words(notebook, "%%dd s|")
    assert "sql" in words(notebook, "%dd s|")
    assert "flights" in words(notebook, "%dd show fl|")


def test_sql_cell_joins_earlier_rows_with_current_ones(notebook: Notebook) -> None:
    notebook.ok("flights.insert([('AA', 1, 6.0)])")
    shown = notebook.ok(
        "%%dd sql\n"
        "CREATE VIEW more AS SELECT f.carrier, count(*) AS n FROM flights f\n"
        "  LEFT ANTI JOIN flights VERSION AS OF 1 o ON f.delay = o.delay GROUP BY f.carrier;\n"
        "SELECT * FROM more ORDER BY carrier LIMIT 5"
    )
    assert "carrier  n\nAA       1" in shown
    notebook.ok("flights.insert([('AA', 1, 7.0), ('UA', 1, 75.0)])")
    assert [tuple(row) for row in notebook.names["more"].rows()] == [("AA", 2)]
    shown = notebook.fails("%%dd sql\nSELECT *\nFROM flights\nVERSION AS OF 77")
    assert "VERSION AS OF 77\n" in str(shown.error)


@pytest.mark.spark
def test_sql_cell_loads_a_table_of_spark_and_says_so(notebook: Notebook, spark: Any) -> None:
    columns = "code string, seats int"
    spark.createDataFrame([("AA", 10), ("UA", 20)], columns).createOrReplaceTempView("fleet")
    try:
        shown = notebook.ok("%%dd sql\nSELECT * FROM fleet")
        assert "loaded 2 rows of Spark's table fleet into input 'fleet'; REFRESH TABLE" in shown
        assert "AA" in shown
        spark.createDataFrame([("AA", 11)], columns).createOrReplaceTempView("fleet")
        shown = notebook.ok("%%dd sql\nREFRESH TABLE fleet; SELECT seats FROM fleet")
        assert "REFRESH TABLE fleet: 1 inserted, 2 deleted" in shown
        nosync.session().drop("fleet")
        shown = notebook.ok("x = 1\n%dd sql SELECT * FROM fleet\nx = 2")
        assert "loaded 1 row of Spark's table fleet" in shown
        assert "11" in shown
        assert [tuple(row) for row in nosync.session()["fleet"].rows()] == [("AA", 11)]
    finally:
        spark.catalog.dropTempView("fleet")


@pytest.mark.parametrize(
    "cell",
    [
        "SELECT carrier\n     , count(*) AS n\n  FROM flights\n GROUP BY carrier\n LIMIT 9",
        "SELECT concat(carrier, '''s') AS c FROM flights",
        "SELECT carrier -- all of them :(\nFROM flights",
        "/* it's a\n comment ( [ */ SELECT carrier FROM flights",
        "SELECT carrier FROM flights;",
    ],
)
def test_sql_is_never_read_as_python(notebook: Notebook, cell: str) -> None:
    """IPython once read it, to find a semicolon at its end, and failed after the cell had run."""
    assert "AA" in notebook.ok(f"%%dd sql\n{cell}")
    assert "AA" in notebook.ok(f"%%dd SQL\n{cell}")


def test_semicolon_silences_python_and_no_sql(notebook: Notebook) -> None:
    assert "AA" in notebook.ok("%dd sql SELECT carrier FROM flights;")
    assert "AA" not in notebook.ok("%%dd\nflights.head();")
    assert "AA" in notebook.ok("%%dd\nflights.head()")
    assert "'x" in notebook.ok("%dd sql SELECT '''x' AS c FROM flights LIMIT 1")


def test_parameters_are_variables_of_the_notebook(notebook: Notebook) -> None:
    notebook.ok('who, days, least = "it\'s", [1, 3], -1')
    notebook.ok("%%dd sql\nINSERT INTO flights VALUES (:who, 3, :least)")
    notebook.ok(
        "%%dd sql\nCREATE VIEW some AS SELECT carrier, day -:least AS next FROM flights"
        " WHERE array_contains(:days, day) AND carrier = :who"
    )
    assert [tuple(row) for row in notebook.names["some"].rows()] == [("it's", 4)]
    assert "it's" in notebook.ok("%dd sql SELECT :who AS w, `a:b` FROM (SELECT 1 AS `a:b`)")
    plan = notebook.ok("%dd explain SELECT 1 FROM flights WHERE carrier = :who")
    assert "carrier = 'it\\'s'" in plan
    shown = notebook.fails("%%dd sql\nSELECT * FROM flights WHERE day = :nope")
    assert "[UNBOUND_SQL_PARAMETER] the parameter :nope has no value (line 2" in shown
    assert "define the variable nope" in shown


def test_notes_name_the_view(notebook: Notebook) -> None:
    notebook.ok("%%dd sql\nCREATE VIEW one AS SELECT 1 AS a")
    shown = notebook.ok("%%dd sql\nCREATE VIEW IF NOT EXISTS one AS SELECT 1 AS a")
    assert "one exists already" in shown
    assert "temporary" not in shown
    assert "nope does not exist" in notebook.ok("%%dd sql\nDROP VIEW IF EXISTS nope")


def test_update_in_a_line_is_one_change(notebook: Notebook) -> None:
    shown = notebook.ok("%dd sql UPDATE flights SET delay = 1.0 WHERE carrier = 'UA'")
    assert "epoch 2: flights +1 / −1 row" in shown
    assert "became one epoch" not in shown
