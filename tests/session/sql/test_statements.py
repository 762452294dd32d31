"""SQL statements of a session: each kind, its errors, and the rules for names and types."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from checks.sessions import in_thread, values
from internals import catalog_of

import nosync_nb
from nosync_nb import NosyncError, Session
from nosync_nb.errors import SqlError


@pytest.fixture
def session(session: Session) -> Session:
    flights = session.input("flights", "carrier string, day int, delay double")
    session.input("planes", "tail string, seats int", key="tail")
    flights.insert([("AA", 1, 5.0), ("AA", 1, 75.0), ("UA", 2, None)])
    session.commit()
    return session


def caret_of(error: SqlError) -> str:
    """The text above the caret of an error."""
    _, line, marks = str(error).rsplit("\n", 2)
    return line[marks.index("^") : marks.rindex("^") + 1]


def refused(session: Session, text: str) -> SqlError:
    before = {name: values(session[name]) for name in (*session.inputs, *session.stages)}
    epoch = session.now
    with pytest.raises(SqlError) as raised:
        session.execute(text)
    assert {name: values(session[name]) for name in before} == before
    assert (session.now, dict(session.pending)) == (epoch, {})
    assert raised.value.hint
    return raised.value


# -- views -----------------------------------------------------------------------------------------


def test_view_is_a_stage_with_the_same_fingerprint_as_in_python(session: Session) -> None:
    [result] = session.execute("CREATE VIEW late AS SELECT * FROM flights WHERE delay > 60")
    assert (result.statement, result.name, result.report.status) == ("CREATE VIEW", "late", "new")
    assert values(session["late"]) == [("AA", 1, 75.0)]
    again = session.define({"late": session["flights"].filter("delay > 60")})
    assert [report.status for report in again] == ["unchanged"]


def test_view_that_is_created_again_stays_and_another_is_refused(session: Session) -> None:
    text = "CREATE VIEW late AS SELECT * FROM flights WHERE delay > {}"
    session.execute(text.format(60))
    assert session.execute(text.format(60))[0].report.status == "unchanged"
    assert "[TABLE_OR_VIEW_ALREADY_EXISTS]" in str(refused(session, text.format(70)))
    assert session.execute(text.format(70).replace("VIEW", "VIEW IF NOT EXISTS"))[0].note
    assert values(session["late"]) == [("AA", 1, 75.0)]
    [result] = session.execute(text.format(1).replace("CREATE", "CREATE OR REPLACE"))
    assert result.report.status == "changed"
    assert len(values(session["late"])) == 2


def test_view_names_its_columns(session: Session) -> None:
    session.execute("CREATE VIEW v (who, `how late`) AS SELECT carrier, delay FROM flights")
    assert session["v"].schema.names == ("who", "how late")
    error = refused(session, "CREATE VIEW w (a) AS SELECT carrier, delay FROM flights")
    assert "[CREATE_VIEW_COLUMN_ARITY_MISMATCH.TOO_MANY_DATA_COLUMNS]" in str(error)


def test_views_of_a_cell_read_each_other_by_name(session: Session) -> None:
    session.execute(
        "CREATE VIEW late AS SELECT * FROM flights WHERE delay > 60;"
        "CREATE VIEW carriers AS SELECT DISTINCT carrier FROM late"
    )
    assert session.info.reads["carriers"] == ("late",)
    assert "'late' is read by carriers" in str(refused(session, "DROP VIEW late")).replace("`", "'")
    session.execute("DROP VIEW carriers; DROP VIEW late")
    assert list(session.stages) == []


def test_temporary_view_is_not_logged(session: Session, tmp_path: Path) -> None:
    session.execute("CREATE TEMPORARY VIEW tv AS SELECT day FROM flights")
    assert "tv" not in session.stages
    [result] = session.execute("SELECT * FROM TV WHERE day > 1")
    assert result.first(9) == [(2,)]
    assert session.sql("SELECT count(*) AS n FROM tv").rows() == [(3,)]
    session.execute("CREATE VIEW days AS SELECT DISTINCT day FROM tv")
    assert session.info.reads["days"] == ("flights",)
    assert "temporary" in str(refused(session, "CREATE VIEW tv AS SELECT 1 AS x"))
    session.execute("CREATE OR REPLACE TEMP VIEW tv AS SELECT 7 AS x; DROP VIEW days")
    assert session.sql("SELECT * FROM tv").rows() == [(7,)]
    path = session.path
    session.close()
    with nosync_nb.open(path) as reopened:
        assert "[TABLE_OR_VIEW_NOT_FOUND]" in str(refused(reopened, "SELECT * FROM tv"))


def test_dropped_and_created_view_of_one_cell_is_replaced(session: Session) -> None:
    session.execute("CREATE VIEW v AS SELECT day FROM flights")
    session.execute("DROP VIEW v; CREATE VIEW v AS SELECT carrier FROM flights")
    assert session["v"].schema.names == ("carrier",)
    assert session.execute("DROP VIEW IF EXISTS absent")[0].note == "absent does not exist"


# -- INSERT, DELETE, UPDATE ------------------------------------------------------------------------


def test_insert_converts_values_by_store_assignment(session: Session) -> None:
    session.input("typed", "a tinyint, b bigint, c double, d decimal(5,2), e string, f timestamp")
    session.execute(
        "INSERT INTO typed VALUES (1, 2, 3, 4, 'x', NULL), (-128, 1 + 1, 2.5, 1.25, 'y', DEFAULT);"
        "INSERT INTO typed (e, a) SELECT day, day FROM flights WHERE day = 2;"
        "INSERT INTO typed BY NAME SELECT date'2024-05-06' AS f, true AS e"
    )
    rows = session["typed"].rows()
    assert sorted(map(repr, (row[:5] for row in rows))) == sorted(
        map(
            repr,
            [
                (1, 2, 3.0, Decimal("4.00"), "x"),
                (-128, 2, 2.5, Decimal("1.25"), "y"),
                (2, None, None, None, "2"),
                (None, None, None, None, "true"),
            ],
        )
    )
    assert [str(row.f)[:10] for row in rows if row.f is not None] == ["2024-05-06"]


@pytest.mark.parametrize(
    ("value", "error", "part"),
    [
        ("300, 'x'", "CAST_OVERFLOW_IN_TABLE_INSERT", "300"),
        ("200 + 100, 'x'", "CAST_OVERFLOW_IN_TABLE_INSERT", "200 + 100"),
        ("1e9, 'x'", "CAST_OVERFLOW_IN_TABLE_INSERT", "1e9"),
        ("'1', 'x'", "INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_SAFELY_CAST", "'1'"),
        ("true, 'x'", "INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_SAFELY_CAST", "true"),
        ("1", "INSERT_COLUMN_ARITY_MISMATCH.NOT_ENOUGH_DATA_COLUMNS", "VALUES (1)"),
        ("1, 'x', 2", "INSERT_COLUMN_ARITY_MISMATCH.TOO_MANY_DATA_COLUMNS", "VALUES (1, 'x', 2)"),
    ],
)
def test_value_that_does_not_fit_names_column_value_and_place(
    session: Session, value: str, error: str, part: str
) -> None:
    session.input("small", "a tinyint, b string")
    found = refused(session, f"INSERT INTO small VALUES ({value})")
    assert f"[{error}]" in str(found)
    assert "small" in str(found)
    assert caret_of(found) == part


def test_rows_of_a_query_that_do_not_fit_are_refused(session: Session) -> None:
    session.input("small", "a tinyint")
    found = refused(session, "INSERT INTO small SELECT day * 1000 FROM flights")
    assert "value 1000 of type INT" in str(found) or "value 2000 of type INT" in str(found)
    assert "CANNOT_SAFELY_CAST" in str(
        refused(session, "INSERT INTO small SELECT carrier FROM flights")
    )
    session.execute("INSERT INTO small SELECT NULL")
    assert values(session["small"]) == [None]


def test_delete_removes_every_copy_of_matching_rows(session: Session) -> None:
    session.execute("INSERT INTO flights VALUES ('AA', 1, 5.0), ('AA', 1, 5.0)")
    [result] = session.execute("DELETE FROM flights AS f WHERE f.delay = 5")
    assert result.deleted == 3
    assert len(values(session["flights"])) == 2
    assert session.execute("DELETE FROM FLIGHTS WHERE delay IS NULL")[0].deleted == 1
    assert session.execute("DELETE FROM flights")[0].deleted == 1
    assert session.execute("DELETE FROM flights")[0].deleted == 0


def test_delete_and_update_take_subqueries(session: Session) -> None:
    session.execute("INSERT INTO planes VALUES ('UA', 2), ('N1', 9)")
    session.execute(
        "DELETE FROM flights WHERE EXISTS (SELECT 1 FROM planes WHERE tail = flights.carrier);"
        "UPDATE planes SET seats = (SELECT count(*) FROM flights) WHERE tail IN ('N1')"
    )
    assert values(session["flights"]) == [("AA", 1, 5.0), ("AA", 1, 75.0)]
    assert values(session["planes"]) == [("N1", 2), ("UA", 2)]


def test_update_reads_old_values_in_every_assignment(session: Session) -> None:
    [result] = session.execute(
        "UPDATE flights f SET f.delay = f.day, day = delay WHERE delay IS NOT NULL"
    )
    assert result.updated == 2
    assert values(session["flights"]) == [("AA", 5, 1.0), ("AA", 75, 1.0), ("UA", 2, None)]
    session.execute("UPDATE flights SET delay = DEFAULT")
    assert {row.delay for row in session["flights"].rows()} == {None}


def test_update_of_keys_moves_rows_and_refuses_collisions(session: Session) -> None:
    session.execute("INSERT INTO planes VALUES ('a', 1), ('b', 2)")
    session.execute("UPDATE planes SET tail = CASE tail WHEN 'a' THEN 'b' ELSE 'a' END")
    assert values(session["planes"]) == [("a", 2), ("b", 1)]
    assert "'x' occurs twice" in str(refused(session, "UPDATE planes SET tail = 'x'"))
    assert "null" in str(refused(session, "UPDATE planes SET tail = NULL"))


@pytest.mark.parametrize(
    ("text", "error", "part"),
    [
        ("UPDATE flights SET nope = 1", "UNRESOLVED_COLUMN.WITH_SUGGESTION", "nope"),
        ("UPDATE flights SET day = 1, day = 2", "COLUMN_ALREADY_EXISTS", "day"),
        ("UPDATE flights SET other.day = 1", "UNRESOLVED_COLUMN", "other"),
        ("UPDATE flights SET day = 'x'", "CANNOT_SAFELY_CAST", "'x'"),
        (
            "UPDATE flights SET day = day * 1000000000 * 3L",
            "CAST_OVERFLOW",
            "day * 1000000000 * 3L",
        ),
        ("DELETE FROM flights WHERE nope = 1", "UNRESOLVED_COLUMN", "nope"),
        ("DELETE FROM flihgts", "TABLE_OR_VIEW_NOT_FOUND", "flihgts"),
        ("INSERT INTO late VALUES (1)", "EXPECT_TABLE_NOT_VIEW", "late"),
        ("UPDATE late SET day = 1", "EXPECT_TABLE_NOT_VIEW", "late"),
        ("DELETE FROM tv", "EXPECT_TABLE_NOT_VIEW", "tv"),
        ("CREATE VIEW flights AS SELECT 1 AS a", "TABLE_OR_VIEW_ALREADY_EXISTS", "flights"),
        ("CREATE VIEW `a b` AS SELECT 1 AS a", "'a b'", "`a b`"),
        ("DROP VIEW flights", "WRONG_COMMAND_FOR_OBJECT_TYPE", "flights"),
        ("DROP VIEW nope", "TABLE_OR_VIEW_NOT_FOUND", "nope"),
        ("DESCRIBE nope", "TABLE_OR_VIEW_NOT_FOUND", "nope"),
        ("INSERT INTO flights (day, day) VALUES (1, 2)", "COLUMN_ALREADY_EXISTS", "day"),
        ("INSERT INTO flights VALUES (1, 2, 3), (4)", "NUM_COLUMNS_MISMATCH", "4"),
        ("INSERT INTO flights VALUES (1, 2, 3), ('a', 2, 3)", "INCOMPATIBLE_TYPES", ""),
        ("INSERT INTO flights VALUES ('a', 1, 2), (NULL, 2, 3), (1 + 1, 2, 3)", "INCOMPATIBLE", ""),
        ("INSERT INTO flights VALUES (true, 1, 2), (2, 2, 3)", "INCOMPATIBLE_TYPES", ""),
        ("SELECT 1; DELETE FROM flights", "UNSUPPORTED_STATEMENT", "SELECT 1"),
        ("DELETE FROM flights WHERE 1 / (day - 1) > 0", "DIVIDE_BY_ZERO", "DELETE FROM flights"),
        ("DELETE FROM a.flights", "PARSE_SYNTAX_ERROR", "a."),
        ("DELETE FROM flights WHERE (day = 1", "PARSE_SYNTAX_ERROR", "("),
        ("DELETE FROM flights WHERE day = 1)", "PARSE_SYNTAX_ERROR", ")"),
        ("DELETE FROM flights WHERE carrier = 'x", "PARSE_SYNTAX_ERROR", "'"),
        ("DELETE FROM flights WHERE day = 1 ORDER BY day", "PARSE_SYNTAX_ERROR", ""),
        ("SET spark.sql.ansi.enabled = false", "UNSUPPORTED_STATEMENT", "SET"),
        ("CREATE TABLE t (a int)", "UNSUPPORTED_STATEMENT", "CREATE"),
        ("USE db", "UNSUPPORTED_STATEMENT", "USE"),
        ("REFRESH flights", "UNSUPPORTED_STATEMENT", "REFRESH"),
        ("REFRESH TABLE flights", "was not loaded from a table of Spark", "flights"),
        ("REFRESH TABLE nope", "TABLE_OR_VIEW_NOT_FOUND", "nope"),
        ("REFRESH TABLE db.nope", "TABLE_OR_VIEW_NOT_FOUND", "db.nope"),
        ("REFRESH TABLE 'x'", "PARSE_SYNTAX_ERROR", "'x'"),
        ("TRUNCATE TABLE flights", "UNSUPPORTED_STATEMENT", "TRUNCATE"),
        ("DROP TABLE flights", "UNSUPPORTED_STATEMENT", "DROP"),
        ("BEGIN SELECT 1; END", "UNSUPPORTED_STATEMENT", "BEGIN"),
        ("INSERT OVERWRITE flights SELECT 1", "UNSUPPORTED_STATEMENT", "INSERT"),
        ("nonsense", "UNSUPPORTED_STATEMENT", "nonsense"),
    ],
)
def test_statement_that_is_refused_shows_class_and_place(
    session: Session, text: str, error: str, part: str
) -> None:
    session.execute(
        "CREATE VIEW late AS SELECT * FROM flights; CREATE TEMP VIEW tv AS SELECT 1 AS a"
    )
    found = refused(session, "\n  " + text)
    assert error in str(found)
    assert "line 2, column " in str(found)
    assert caret_of(found).startswith(part)


# -- names -----------------------------------------------------------------------------------------


def test_names_are_found_in_any_case_and_ambiguous_ones_refused(session: Session) -> None:
    session.execute("INSERT INTO Flights (CARRIER) VALUES ('x')")
    assert session.sql("SELECT Carrier FROM FLIGHTS WHERE day IS NULL").rows() == [("x",)]
    session.stage("Late", session["flights"].filter("day = 1"))
    session.stage("late", session["flights"].filter("day = 2"))
    assert session.sql("SELECT count(*) AS n FROM late").rows() == [(1,)]
    error = refused(session, "SELECT count(*) AS n FROM LATE")
    assert "[AMBIGUOUS_REFERENCE]" in str(error)
    assert caret_of(error) == "LATE"


def test_view_in_other_case_is_the_same_view(session: Session) -> None:
    session.execute("CREATE VIEW late AS SELECT day FROM flights")
    session.execute("CREATE OR REPLACE VIEW LATE AS SELECT carrier FROM flights")
    assert list(session.stages) == ["late"]
    session.execute("DROP VIEW Late")
    assert list(session.stages) == []


# -- order, results, inspection --------------------------------------------------------------------


def test_select_is_read_in_its_order_with_its_statements(session: Session) -> None:
    *_, result = session.execute(
        "INSERT INTO flights VALUES ('ZZ', 0, 1.0);"
        "SELECT carrier FROM flights ORDER BY delay DESC NULLS FIRST, day"
    )
    assert [row.carrier for row in result.first(9)] == ["UA", "AA", "AA", "ZZ"]
    assert [row.carrier for row in result.first(2)] == ["UA", "AA"]
    assert result.count == 4
    assert "orders this display only" in result.note
    session.execute("DELETE FROM flights")
    assert result.count == 4
    [limited] = session.execute("SELECT 1 AS a UNION ALL SELECT 2 ORDER BY a DESC LIMIT 1")
    assert (limited.first(9), limited.note) == ([(2,)], "")


def test_equal_names_are_numbered_in_a_display_and_named_in_a_view(session: Session) -> None:
    [result] = session.execute("SELECT day, f.*, day FROM flights f WHERE day = 2")
    assert result.first(1)[0]._fields == ("day", "carrier", "day_1", "delay", "day_2")
    session.execute("CREATE VIEW two (a, b) AS SELECT day, day FROM flights WHERE day = 2")
    assert values(session["two"]) == [(2, 2)]
    error = refused(session, "CREATE VIEW v AS SELECT day, day FROM flights")
    assert "COLUMN_ALREADY_EXISTS" in str(error)


def test_show_describe_and_explain_describe_tables(session: Session) -> None:
    session.execute(
        "CREATE VIEW late AS SELECT day FROM flights; CREATE TEMP VIEW tv AS SELECT 1 AS a"
    )
    [shown] = session.execute("SHOW TABLES")
    assert shown.columns == ("tableName", "isTemporary", "kind")
    assert ("tv", "true", "view") in shown.table
    assert ("flights", "false", "input") in shown.table
    *_, views = session.execute("DROP VIEW tv; SHOW VIEWS")
    assert [row[0] for row in views.table] == ["late"]
    [described] = session.execute("DESCRIBE TABLE Flights")
    assert described.table == (("carrier", "string"), ("day", "int"), ("delay", "double"))
    [explained] = session.execute("EXPLAIN SELECT day FROM flights")
    assert "select" in explained.text


# -- transactions ----------------------------------------------------------------------------------


def test_statements_are_one_epoch_and_see_each_other(session: Session) -> None:
    epoch = session.now
    session.execute("CREATE VIEW days AS SELECT DISTINCT day FROM flights")
    results = session.execute(
        "INSERT INTO flights VALUES ('N', 9, 1.0);"
        "INSERT INTO planes SELECT 'p' || day, day FROM days;"
        "UPDATE flights SET day = 10 WHERE day = 9;"
        "DELETE FROM planes WHERE seats NOT IN (SELECT day FROM days)"
    )
    assert [each.inserted + each.updated + each.deleted for each in results] == [1, 3, 1, 1]
    assert session.now == epoch + 1
    assert values(session["planes"]) == [("p1", 1), ("p2", 2)]


def test_statements_in_a_block_belong_to_it(session: Session) -> None:
    epoch = session.now
    with session.epoch(label="block"):
        session.inputs["flights"].insert([("B", 5, 1.0)])
        [result] = session.execute("UPDATE flights SET day = 6 WHERE day = 5")
        assert result.updated == 1
        with pytest.raises(SqlError):
            session.execute("DELETE FROM flights; DELETE FROM nope")
        with pytest.raises(SqlError):
            session.execute(
                "INSERT INTO planes VALUES ('x', 1); INSERT INTO planes VALUES ('x', 2)"
            )
        assert session.execute("INSERT INTO planes VALUES ('own', 1)", commit=True)[0].inserted == 1
        assert session.now == epoch + 1
    assert session.now == epoch + 2
    assert values(session["planes"]) == [("own", 1)]
    assert ("B", 6, 1.0) in values(session["flights"])
    assert len(values(session["flights"])) == 4
    transaction = session.begin()
    session.execute("DELETE FROM flights")
    transaction.discard()
    assert len(values(session["flights"])) == 4


def test_write_between_read_and_commit_of_a_statement_repeats_it(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nosync_nb.session.sql.evaluate import StatementReader

    flights, read, others = session.inputs["flights"], StatementReader.rows, [1, 2]

    def rows(reader: StatementReader, *given: Any) -> Any:
        found = read(reader, *given)
        if others:
            others.pop()

            def commit() -> None:
                flights.remove([flights.rows()[0]])
                session.commit()

            in_thread(commit)
        return found

    monkeypatch.setattr(StatementReader, "rows", rows)
    assert session.execute("DELETE FROM flights")[0].deleted == 1
    assert values(flights) == []
    with session.epoch():
        session.execute("UPDATE flights SET day = 1")
    others.append(1)
    flights.insert([("a", 1, 1.0), ("b", 1, 1.0)])
    session.commit()
    with pytest.raises(NosyncError, match="another thread has changed it"), session.epoch():
        session.execute("UPDATE flights SET day = 2")
    assert values(flights) == [("b", 1, 1.0)]


def test_reader_refuses_writes_and_answers_queries(session: Session) -> None:
    with nosync_nb.open(session.path, mode="r") as reader:
        assert reader.execute("SELECT count(*) AS n FROM flights")[0].first(1) == [(3,)]
        with pytest.raises(NosyncError, match="open for reading"):
            reader.execute("DELETE FROM flights")
        with pytest.raises(NosyncError, match="open for reading"):
            reader.execute("CREATE VIEW v AS SELECT day FROM flights")


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("DELETE FROM big WHERE id = 7 AND v >= 0", 1),
        ("UPDATE big b SET v = -1 WHERE b.id = 8", 1),
        ("UPDATE big SET v = -2 WHERE 9 = id AND (v = 9 OR v = 10)", 1),
        ("MERGE INTO big USING few ON big.id = few.id WHEN MATCHED THEN UPDATE SET *"
         " WHEN NOT MATCHED THEN INSERT *", 2),
        ("DELETE FROM big WHERE id = 7 OR v = 8", 2000),
        ("DELETE FROM big WHERE id = 7 AND v < (SELECT count(*) FROM big)", 2000),
        ("MERGE INTO big USING tv ON big.id = tv.id WHEN MATCHED THEN DELETE", 2000),
        ("MERGE INTO big USING few ON big.id = few.id WHEN NOT MATCHED BY SOURCE THEN DELETE",
         2000),
    ],
)  # fmt: skip
def test_rows_are_found_by_key(
    session: Session, monkeypatch: pytest.MonkeyPatch, text: str, most: int
) -> None:
    from nosync_nb.session.reads.reader import SnapshotReader
    from nosync_nb.session.sql import statement_run

    big = session.input("big", "id bigint, v int", key="id")
    big.insert([(n, n) for n in range(2000)])
    session.input("few", "id int, v int").insert([(3, 1), (5, None), (9999, 2), (None, 1)])
    session.commit()
    session.execute("CREATE TEMP VIEW tv AS SELECT id FROM big WHERE v < 10")
    read, scratch = [0], SnapshotReader.scratch

    def counting(
        reader: Any,
        snapshot: Any,
        definition: Any,
        epoch: int,
        contents: Any = {},  # noqa: B006
    ) -> Any:
        if "big" in definition.references:
            read.append(len(contents["big"]) if "big" in contents else 2000)
        return scratch(reader, snapshot, definition, epoch, contents)

    monkeypatch.setattr(SnapshotReader, "scratch", counting)
    session.begin()
    if "THEN INSERT" in text:  # a key cannot be null
        text = text.replace("few ON", "(SELECT * FROM few WHERE id IS NOT NULL) AS few ON")
    narrowed = session.execute(text)
    rows = {name: c.rows for name, c in session.pending.items()}
    assert max(read) == most
    session.discard()
    monkeypatch.setattr(statement_run, "key_values", lambda *_: None)
    session.begin()
    whole = session.execute(text)
    assert whole == narrowed
    assert {name: c.rows for name, c in session.pending.items()} == rows
    session.discard()


def test_sql_takes_one_query_and_names_likely_tables(session: Session) -> None:
    for text in ("DELETE FROM flights", " INSERT INTO flights VALUES (1)", "SET a = 1", "USE x"):
        with pytest.raises(SqlError, match="is not a query") as raised:
            session.sql(text)
        assert "session.execute" in str(raised.value.hint)
    with pytest.raises(SqlError, match="2 statements"):
        session.sql("SELECT 1; SELECT 2")
    with pytest.raises(SqlError, match="TABLE_OR_VIEW_NOT_FOUND") as raised:
        session.sql("SELECT 1 FROM flihgts")
    assert raised.value.hint == "did you mean 'flights'?"
    assert session.sql("VALUES (1), (2)").count() == 2


# -- size and trust --------------------------------------------------------------------------------


def test_statement_of_a_megabyte_runs_and_deep_nesting_is_refused(session: Session) -> None:
    session.input("numbers", "n int, text string")
    rows = ",\n".join(f"({n}, 'a row of a long statement, number {n}')" for n in range(20_000))
    text = f"INSERT INTO numbers VALUES {rows}"
    assert len(text) > 1_000_000
    assert session.execute(text)[0].inserted == 20_000
    assert session["numbers"].count() == 20_000
    error = refused(session, text.replace("(19999,", "(nope,"))
    assert "[UNRESOLVED_COLUMN" in str(error)
    assert "line 20000, column" in str(error)
    for deep in ("(" * 500 + "1" + ")" * 500, "abs(" * 500 + "1" + ")" * 500):
        error = refused(session, f"SELECT {deep}")
        assert "[FAILED_TO_PARSE_TOO_COMPLEX]" in str(error)
        error = refused(session, f"UPDATE numbers SET n = {deep}")
        assert "nested" in str(error)
    deep = "SELECT * FROM (" * 500 + "SELECT * FROM numbers" + ")" * 500
    assert "nested" in str(refused(session, f"CREATE VIEW deep AS {deep}"))


def test_sql_of_a_log_is_stored_as_a_definition_and_not_as_text(session: Session) -> None:
    marker = "a text of a comment"
    session.execute(f"CREATE VIEW late AS SELECT day FROM flights /* {marker} */ WHERE day > 1")
    definition = catalog_of(session)["late"].definition
    assert definition is not None
    assert marker not in str(definition.to_json([]))
    path = Path(session.path)
    session.close()
    assert not any(
        marker.encode() in file.read_bytes() for file in path.rglob("*") if file.is_file()
    )


def test_opening_a_log_runs_no_sql_and_another_key_runs_no_view(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.execute("CREATE VIEW late AS SELECT carrier FROM flights WHERE delay > 60")
    path = session.path
    session.close()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("SQL is parsed")

    for module in ("collections.sql.grammar", "collections.sql.query", "session.sql.execute"):
        for name in ("parse_statements", "words_of", "ordered_query", "parse_cell"):
            monkeypatch.setattr(f"nosync_nb.{module}.{name}", refuse, raising=False)
    with nosync_nb.open(path) as again:
        again.inputs["flights"].insert([("ZZ", 3, 99.0)])
        again.commit()
        assert values(again["late"]) == ["AA", "ZZ"]
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "another key"))
    with nosync_nb.open(path) as foreign:
        assert values(foreign["late"]) == ["AA", "ZZ"]
        assert set(foreign.stale) == {"late"}
    monkeypatch.undo()
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "another key"))
    with nosync_nb.open(path) as foreign:
        assert foreign.execute("SELECT count(*) AS n FROM late")[0].first(1) == [(2,)]
        foreign.execute("DELETE FROM flights")
        with pytest.raises(NosyncError, match="stale"):
            foreign.execute("SELECT carrier FROM late WHERE carrier = 'AA'")
        assert len(foreign["late"].rows(at=2)) == 2
