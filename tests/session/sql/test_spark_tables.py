"""Tables of a running Spark session in FROM, and REFRESH TABLE; none of it starts Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from checks.sessions import values

from nosync_nb import NosyncError, Session
from nosync_nb.errors import SqlError
from nosync_nb.session.sql.spark_tables import SparkTables
from nosync_nb.session.writes.ingest import IngestService

LOADED = (
    "loaded 3 rows of Spark's table shop into input 'shop'; REFRESH TABLE shop loads its changes"
)
ROWS = [(1, "a"), (2, "b"), (2, "b")]


@pytest.fixture
def shop(spark: Any) -> Iterator[Callable[..., None]]:
    """Creates the temporary view `shop` of a Spark session."""

    def create(rows: list[Any], columns: str = "id int, name string") -> None:
        spark.createDataFrame(rows, columns).createOrReplaceTempView("shop")

    create(ROWS)
    yield create
    spark.catalog.dropTempView("shop")


@pytest.fixture
def stored(spark: Any) -> Iterator[str]:
    """A table of a database, without a view."""
    spark.sql("CREATE DATABASE other")
    spark.createDataFrame([(1, 0.5), (3, 1.5)], "k int, v double").write.saveAsTable("other.sales")
    yield "other.sales"
    spark.sql("DROP DATABASE other CASCADE")


def refused(session: Session, text: str) -> SqlError:
    before = session.now, list(session.stages), list(session.inputs), dict(session.pending)
    with pytest.raises(SqlError) as raised:
        session.execute(text)
    after = session.now, list(session.stages), list(session.inputs), dict(session.pending)
    assert after == before
    assert raised.value.hint
    return raised.value


pytestmark = pytest.mark.spark


# -- loads -----------------------------------------------------------------------------------------


def test_query_loads_a_temporary_view_once_and_says_so(
    opened: Callable[..., Session], spark: Any, shop: Callable[..., None]
) -> None:
    session = opened(spark=spark)
    [result] = session.execute("SELECT * FROM shop WHERE id > 1")
    assert [tuple(row) for row in result.first(9)] == [(2, "b"), (2, "b")]
    assert result.note == LOADED
    assert session.now == 1
    assert sorted(values(session["shop"])) == ROWS
    shop([(9, "z")])
    [result] = session.execute("SELECT * FROM SHOP ORDER BY id LIMIT 1")
    assert [tuple(row) for row in result.first(9)] == [(1, "a")]
    assert result.note == ""
    assert session.now == 1


def test_collection_of_a_query_loads_in_an_epoch_of_its_own(
    opened: Callable[..., Session], spark: Any, shop: Callable[..., None]
) -> None:
    session = opened(spark=spark)
    notices: list[str] = []
    session.on_notice(notices.append)
    session.input("own", "id int").insert([(2,)])
    with session.epoch():
        session["own"].insert([(1,)])
        counted = session.sql("SELECT name, count(*) AS n FROM shop GROUP BY name")
        assert sorted(values(counted)) == [("a", 1), ("b", 2)]
        assert values(session["own"], session.now) == []
    assert notices == [LOADED]
    session.stage("counted", counted)
    session.execute("INSERT INTO shop VALUES (5, 'a')")
    assert sorted(values(session["counted"])) == [("a", 2), ("b", 2)]


def test_names_with_a_database_find_the_same_input(
    opened: Callable[..., Session], spark: Any, shop: Callable[..., None], stored: str
) -> None:
    session = opened(spark=spark)
    [result] = session.execute(
        f"CREATE VIEW joined AS SELECT name, v FROM shop LEFT JOIN {stored} AS s ON s.k = shop.id"
    )
    assert LOADED in result.note
    assert "table spark_catalog.other.sales into input 'sales'" in result.note
    assert sorted(values(session["joined"]), key=repr) == [("a", 0.5), ("b", None), ("b", None)]
    epoch = session.now
    for name in ("sales", "other.sales", "OTHER.Sales", "`spark_catalog`.other.sales"):
        assert session.execute(f"SELECT count(*) AS n FROM {name}")[0].first(1)[0].n == 2
    assert (session.now, list(session.inputs)) == (epoch, ["shop", "sales"])
    for name in ("default.sales", "nowhere.sales", "a.b.c.sales", "x.other.sales", "`a.b`"):
        assert "TABLE_OR_VIEW_NOT_FOUND" in str(refused(session, f"SELECT * FROM {name}"))
    spark.sql("CREATE TABLE default.sales AS SELECT 1 AS x")
    try:
        error = refused(session, "SELECT 1 AS one FROM default.sales")
    finally:
        spark.sql("DROP TABLE default.sales")
    assert "[TABLE_OR_VIEW_ALREADY_EXISTS] spark_catalog.default.sales cannot be" in str(error)


def test_statement_that_writes_reads_the_table_in_the_same_epoch(
    opened: Callable[..., Session], spark: Any, shop: Callable[..., None]
) -> None:
    session = opened(spark=spark)
    session.input("kept", "id int, name string", key="id")
    results = session.execute(
        "MERGE INTO kept USING (SELECT DISTINCT * FROM shop) s ON kept.id = s.id"
        " WHEN NOT MATCHED THEN INSERT *;"
        "CREATE VIEW many AS SELECT id, count(*) AS n FROM shop GROUP BY id;"
        "SELECT * FROM many"
    )
    assert [result.note for result in results] == [LOADED, "", ""]
    assert session.now == 1
    assert sorted(values(session["kept"])) == [(1, "a"), (2, "b")]
    assert sorted(values(session["many"])) == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM shop JOIN nope USING (id)",
        "SELECT nope FROM shop",
        "CREATE VIEW v AS SELECT * FROM shop; SELECT 1 / (id - 1) AS x FROM shop",
        "INSERT INTO own SELECT id FROM shop; INSERT INTO own VALUES ('x')",
    ],
)
@pytest.mark.parametrize("joined", [False, True])
def test_failed_statement_undoes_the_load(
    opened: Callable[..., Session], spark: Any, shop: Callable[..., None], text: str, joined: bool
) -> None:
    session = opened(spark=spark)
    session.input("own", "id int").insert([(7,)])
    session.commit()
    transaction = session.begin() if joined else None
    refused(session, text)
    if transaction is not None:
        transaction.discard()
    assert list(session.inputs) == ["own"]
    assert values(session.sql("SELECT id FROM shop")) == [1, 2, 2]


@pytest.mark.parametrize("step", ["declare", "ingest", "after"])
def test_interrupt_at_each_step_of_a_load_undoes_it(
    opened: Callable[..., Session],
    spark: Any,
    shop: Callable[..., None],
    step: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = opened(spark=spark)
    session.input("own", "id int")
    owner, name = {
        "declare": (SparkTables, "_fill"),
        "ingest": (IngestService, "ingest"),
        "after": (SparkTables, "_pending_rows"),
    }[step]
    real = getattr(owner, name)

    def interrupted(self: Any, *args: Any) -> Any:
        if step == "ingest":
            real(self, *args)
        raise KeyboardInterrupt

    for run in (session.execute, session.sql):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                run("SELECT * FROM shop")
        assert (list(session.inputs), session.now, dict(session.pending)) == (["own"], 0, {})
    assert len(values(session.sql("SELECT id FROM shop"))) == 3


def test_explanation_and_lists_load_nothing(
    opened: Callable[..., Session], spark: Any, shop: Callable[..., None]
) -> None:
    session = opened(spark=spark)
    for text in ("EXPLAIN SELECT * FROM shop", "INSERT INTO shop VALUES (1, 'x')"):
        refused(session, text)
    with pytest.raises(SqlError) as raised:
        session.explain("SELECT * FROM shop")
    assert raised.value.hint == "Spark has it, and a query loads it: SELECT * FROM shop"
    assert session.execute("SHOW TABLES")[0].table == ()
    assert list(session.inputs) == []


def test_name_that_no_input_can_have_has_a_remedy(
    opened: Callable[..., Session], spark: Any, shop: Callable[..., None]
) -> None:
    session = opened(spark=spark)
    spark.table("shop").createOrReplaceTempView("`two words`")
    try:
        error = refused(session, "SELECT * FROM `two words`")
    finally:
        spark.catalog.dropTempView("two words")
    assert "a name must be an identifier" in str(error)
    assert "nosync.input('x', spark.table('`two words`'))" in (error.hint or "")


def test_discarded_and_rewound_loads_are_loaded_again(
    opened: Callable[..., Session], spark: Any, shop: Callable[..., None]
) -> None:
    session = opened(spark=spark)
    transaction = session.begin()
    session.execute("SELECT count(*) AS n FROM shop")
    transaction.discard()
    assert values(session["shop"]) == []
    assert session.execute("SELECT id FROM shop ORDER BY id LIMIT 1")[0].note == LOADED
    assert len(values(session["shop"])) == 3
    session.rewind(0)
    assert values(session["shop"]) == []
    assert len(values(session.sql("SELECT * FROM shop"))) == 3
    shop([])
    session.rewind(0)
    assert values(session.sql("SELECT * FROM shop")) == []
    epoch = session.now
    assert values(session.sql("SELECT * FROM shop")) == []
    assert session.now == epoch  # an empty table is loaded once, too


# -- REFRESH TABLE ---------------------------------------------------------------------------------


def test_refresh_loads_the_difference_also_in_the_next_session(
    opened: Callable[..., Session], spark: Any, shop: Callable[..., None]
) -> None:
    session = opened(spark=spark)
    session.execute("CREATE VIEW ids AS SELECT id, count(*) AS n FROM shop GROUP BY id")
    for turn in range(2):
        shop([(2, "b"), (3, "c"), (4 + turn, "d")])
        before = session.now
        [result] = session.execute("REFRESH TABLE shop")
        counts = (2, 2) if turn == 0 else (1, 1)
        assert (result.statement, result.name) == ("REFRESH TABLE", "shop")
        assert (result.inserted, result.deleted) == counts
        assert session.now == before + 1
        changed = session["shop"].changes(before, session.now)
        assert changed.num_rows == sum(counts)
        assert sorted(values(session["ids"])) == [(2, 1), (3, 1), (4 + turn, 1)]
        assert session.execute("REFRESH TABLE shop")[0].inserted == 0
        assert session.now == before + 1
        session.close()
        session = opened(spark=spark)


def test_refresh_is_a_part_of_its_cell(
    opened: Callable[..., Session], spark: Any, shop: Callable[..., None]
) -> None:
    session = opened(spark=spark)
    session.execute("SELECT * FROM shop")
    shop([(8, "h")])
    refused(session, "REFRESH TABLE shop; SELECT * FROM nope")
    assert sorted(values(session["shop"])) == ROWS
    results = session.execute("REFRESH TABLE shop; SELECT id FROM shop ORDER BY id LIMIT 9")
    assert [row.id for row in results[1].first(9)] == [8]
    session.rename("shop", "store")
    shop([(9, "i")])
    session.execute("REFRESH TABLE store")
    assert values(session["store"]) == [(9, "i")]
    with session.branch("idea") as branch:
        shop([])
        branch.execute("REFRESH TABLE store")
        assert values(branch["store"]) == []
    assert values(session["store"]) == [(9, "i")]


def test_refresh_that_is_impossible_names_the_remedy(
    opened: Callable[..., Session], spark: Any, shop: Callable[..., None]
) -> None:
    session = opened(spark=spark)
    session.input("own", "id int")
    error = refused(session, "REFRESH TABLE shop")
    assert error.hint == "a query loads it: SELECT * FROM shop"
    session.execute("CREATE VIEW ids AS SELECT id FROM shop")
    assert "was not loaded from a table of Spark" in str(refused(session, "REFRESH TABLE own"))
    assert "is a stage" in str(refused(session, "REFRESH TABLE ids"))
    assert "TABLE_OR_VIEW_NOT_FOUND" in str(refused(session, "REFRESH TABLE a.b"))
    assert "PARSE_SYNTAX_ERROR" in str(refused(session, "REFRESH TABLE"))
    assert "PARSE_SYNTAX_ERROR" in str(refused(session, "REFRESH TABLE shop x"))
    assert "UNSUPPORTED_STATEMENT" in str(refused(session, "REFRESH shop"))
    shop([(1, "a", 2.0)], "id bigint, title string, price double")
    error = refused(session, "REFRESH TABLE shop")
    assert "title string is new; price double is new; name is gone; id is bigint, and was int" in (
        str(error)
    )
    assert "session.drop('shop', cascade=True)" in (error.hint or "")
    spark.catalog.dropTempView("shop")
    assert "does not exist any more" in str(refused(session, "REFRESH TABLE shop"))
    assert sorted(values(session["shop"])) == ROWS
    assert list(session.stages) == ["ids"]


def test_order_of_columns_does_not_matter(
    opened: Callable[..., Session], spark: Any, shop: Callable[..., None]
) -> None:
    session = opened(spark=spark)
    session.execute("SELECT * FROM shop")
    shop([("q", 5)], "name string, id int")
    session.execute("REFRESH TABLE shop")
    assert values(session["shop"]) == [(5, "q")]


def test_own_view_of_an_input_in_spark_is_no_source(
    opened: Callable[..., Session], spark: Any, shop: Callable[..., None]
) -> None:
    session = opened(spark=spark)
    session.execute("SELECT * FROM shop")
    spark.catalog.dropTempView("shop")
    session.close()
    session = opened(spark=spark)
    assert spark.table("shop").count() == 3  # the view of the input itself
    assert "does not exist any more" in str(refused(session, "REFRESH TABLE shop"))
    shop([(6, "f")])
    session.execute("REFRESH TABLE shop")
    assert values(session["shop"]) == [(6, "f")]


def test_reader_of_a_log_loads_nothing(
    opened: Callable[..., Session], spark: Any, shop: Callable[..., None]
) -> None:
    opened(spark=spark).input("own", "id int").insert([(1,)])
    with opened(spark=spark, mode="r") as reader:
        assert "TABLE_OR_VIEW_NOT_FOUND" in str(refused(reader, "SELECT * FROM shop"))
        with pytest.raises(NosyncError):
            reader.execute("REFRESH TABLE own")


# -- without Spark ---------------------------------------------------------------------------------


def test_load_that_was_not_committed_is_no_empty_input(
    opened: Callable[..., Session], spark: Any, shop: Callable[..., None]
) -> None:
    session = opened(spark=spark)
    session.begin()
    session.execute("CREATE VIEW ids AS SELECT id FROM shop")
    session.close()  # as after the end of the process: the input is declared, its rows are lost
    session = opened()
    assert values(session["shop"]) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nosync_nb.spark.connection.SparkConnection.present", lambda self: None)
        for run in (session.execute, session.sql):
            with pytest.raises(SqlError) as raised:
                run("SELECT id FROM shop ORDER BY id LIMIT 3")
            assert "its load was not committed" in str(raised.value)
            assert "no Spark session runs" in str(raised.value)
    [result] = session.execute("SELECT id FROM shop ORDER BY id LIMIT 3")
    assert (result.note, len(result.first(9))) == (LOADED, 3)
    assert sorted(values(session["ids"])) == [1, 2, 2]


def test_loaded_input_is_read_without_spark_and_refresh_asks_for_it(
    opened: Callable[..., Session],
    spark: Any,
    shop: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = opened(spark=spark)
    session.execute("SELECT * FROM shop")
    session.close()
    session = opened()
    connection = "nosync_nb.spark.connection.SparkConnection"
    monkeypatch.setattr(f"{connection}.present", lambda self: None)
    monkeypatch.setattr(f"{connection}.require", pytest.fail)
    assert len(session.execute("SELECT * FROM shop WHERE id > 0")[0].first(9)) == 3
    error = refused(session, "REFRESH TABLE shop")
    assert "no Spark session runs" in str(error)
    assert "TABLE_OR_VIEW_NOT_FOUND" in str(refused(session, "SELECT * FROM nope"))
