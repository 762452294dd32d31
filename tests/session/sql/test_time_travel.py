"""`VERSION AS OF` and `TIMESTAMP AS OF`: rows are copied once, and later changes leave them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from checks.sessions import values
from internals import checkpoint_now, drain_background

from nosync_nb import NosyncError, Session
from nosync_nb.errors import SqlError, StageError, TimeError

EPOCHS = 12


def fill(session: Session, epochs: int = EPOCHS, seed: int = 1) -> Session:
    """Commits epochs of random rows of `t (k int, v string)`; `per` counts them by key."""
    chance = random.Random(seed)
    table = session.input("t", "k int, v string")
    session.stage("per", table.group_by("k").agg(n="count(*)"))
    present: list[tuple[int, str]] = []
    for epoch in range(1, epochs + 1):
        rows = [(chance.randrange(4), chance.choice("abc")) for _ in range(3)]
        table.insert(rows)
        present += rows
        if len(present) > 6:
            gone = [present.pop(chance.randrange(len(present))) for _ in range(2)]
            table.remove(gone)
        assert session.commit(label=f"e{epoch}") == epoch
    return session


@pytest.fixture
def session(session: Session) -> Session:
    return fill(session)


def query(session: Session, text: str) -> list[Any]:
    return sorted(values(session.sql(text)), key=repr)


def refused(session: Session, text: str) -> SqlError:
    before = session.now, list(session.stages), list(session.inputs)
    with pytest.raises(SqlError) as raised:
        session.execute(text)
    assert (session.now, list(session.stages), list(session.inputs)) == before
    assert raised.value.hint
    return raised.value


def caret_of(error: SqlError) -> str:
    """The text above the caret of an error."""
    _, line, marks = str(error).rsplit("\n", 2)
    return line[marks.index("^") : marks.rindex("^") + 1]


# -- reads -----------------------------------------------------------------------------------------


def test_version_as_of_equals_a_read_at_every_epoch(session: Session) -> None:
    edited = "SELECT k, count(*) AS n, 1 AS x FROM t GROUP BY k"
    session.execute(f"CREATE OR REPLACE VIEW per AS {edited}")
    for name in ("t", "per", "per@1"):
        readable = [epoch for each in session[name].history() for epoch in each]
        for epoch in readable:
            expected = sorted(values(session[name], epoch), key=repr)
            for point in (epoch, f"'e{epoch}'" if epoch else 0, f"'{epoch}'"):
                found = query(session, f"SELECT * FROM `{name}` VERSION AS OF {point}")
                assert found == expected, (name, point)
    assert readable[0] < 3 < readable[-1]


def test_timestamp_as_of_reads_the_last_epoch_committed_until_then(session: Session) -> None:
    for each in list(session.epochs())[1:]:
        assert each.committed_at is not None
        micros = int(each.committed_at.timestamp() * 1e6) + 1
        found = query(session, f"SELECT * FROM t TIMESTAMP AS OF timestamp_micros({micros})")
        assert found == sorted(values(session["t"], each.number), key=repr)
    assert query(session, "SELECT * FROM t TIMESTAMP AS OF '2001-01-01'") == []
    assert query(session, "SELECT * FROM t TIMESTAMP AS OF date '2001-01-01'") == []
    current = sorted(values(session["t"]), key=repr)
    assert query(session, "SELECT * FROM t TIMESTAMP AS OF now()") == current
    latest = "(SELECT max(timestamp_seconds(0) + interval 1 year) FROM t)"
    assert query(session, f"SELECT * FROM t TIMESTAMP AS OF {latest}") == []


@pytest.mark.parametrize(
    "clause",
    [
        "VERSION AS OF 3",
        "FOR VERSION AS OF 3",
        "SYSTEM_VERSION AS OF 3",
        "FOR SYSTEM_VERSION AS OF 3",
        "version as of 'e3'",
        "TIMESTAMP AS OF {time}",
        "FOR TIMESTAMP AS OF {time}",
        "SYSTEM_TIME AS OF {time}",
        "FOR SYSTEM_TIME AS OF {time}",
    ],
)
def test_each_form_of_the_clause_takes_an_alias(session: Session, clause: str) -> None:
    committed = next(e.committed_at for e in session.epochs() if e.number == 3)
    assert committed is not None
    clause = clause.format(time=f"timestamp_micros({int(committed.timestamp() * 1e6) + 1})")
    expected = sorted(values(session["t"], 3), key=repr)
    for alias in ("", " x", " AS x", " AS x (k, v)"):
        assert query(session, f"SELECT * FROM t {clause}{alias}") == expected
    assert query(session, f"FROM t {clause} |> WHERE k > 0 |> SELECT k, v") == [
        row for row in expected if row[0] > 0
    ]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT t.k, o.v FROM t JOIN {old} o ON t.k = o.k",
        "SELECT t.k, o.v FROM t LEFT JOIN {old} o ON t.k = o.k AND t.v < o.v",
        "SELECT t.k, o.v FROM t FULL JOIN {old} o USING (k, v)",
        "SELECT * FROM t WHERE EXISTS (SELECT 1 FROM {old} o WHERE o.k = t.k AND o.v <> t.v)",
        "SELECT * FROM t WHERE k NOT IN (SELECT k FROM {old} WHERE v = 'a')",
        "SELECT k, (SELECT count(*) FROM {old} o WHERE o.k = t.k) AS n FROM t",
        "WITH w AS (SELECT k FROM {old}) SELECT a.k FROM w a, w b WHERE a.k = b.k",
        "SELECT k, v FROM t EXCEPT ALL SELECT * FROM {old}",
        "SELECT a.k, b.v FROM {old} a CROSS JOIN {old} b",
        "SELECT x.k, y.n FROM t x, LATERAL (SELECT count(*) n FROM {old} o WHERE o.k < x.k) y",
        "SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v) AS r FROM {old}",
        "SELECT * FROM {old} PIVOT (count(*) FOR v IN ('a', 'b'))",
        "SELECT * FROM ({old} o JOIN t ON o.k = t.k AND o.v = 'a')",
        "WITH RECURSIVE r (n) AS (SELECT k FROM {old} UNION SELECT n + 1 FROM r WHERE n < 6)"
        " SELECT n FROM r",
        "WITH RECURSIVE r (n) AS (SELECT k FROM t UNION SELECT o.k FROM r JOIN {old} o"
        " ON o.k = r.n + 1) SELECT n FROM r",
        "SELECT count(*) AS n FROM {old}",
        "SELECT k, c FROM {old} LATERAL VIEW explode(array(k, k + 1)) e AS c",
        "SELECT v FROM {old} ORDER BY v, k LIMIT 3",
        "SELECT v FROM t UNION SELECT v FROM {old}",
    ],
)
def test_clause_in_each_position_equals_an_input_of_those_rows(session: Session, text: str) -> None:
    session.input("old", "k int, v string").insert(session["t"].at(5))
    session.commit()
    names = text.replace("SELECT t.k, o.v", "SELECT t.k AS a, o.v AS b")
    if "* FROM ({old}" in names:
        names = names.replace("SELECT *", "SELECT o.k AS a, t.v AS b")
    past, input_ = names.format(old="t VERSION AS OF 5"), names.format(old="old")
    session.execute(f"CREATE VIEW past AS {past}; CREATE VIEW expected AS {input_}")
    assert query(session, past) == query(session, input_)
    chance = random.Random(7)
    for _ in range(4):
        gone = values(session["t"])[:1]
        session["t"].insert([(chance.randrange(6), chance.choice("abcd")) for _ in range(2)])
        session["t"].remove(gone)
        session.commit()
        assert sorted(values(session["past"]), key=repr) == sorted(
            values(session["expected"]), key=repr
        )


def test_statements_that_write_read_earlier_rows(session: Session) -> None:
    before = values(session["t"], 4)
    session.execute("DELETE FROM t; INSERT INTO t SELECT * FROM t VERSION AS OF 4")
    assert sorted(values(session["t"])) == sorted(before)
    session.input("by_key", "k int, v string", key="k")
    session.execute(
        "MERGE INTO by_key USING (SELECT k, max(v) v FROM t VERSION AS OF 2 GROUP BY k) s"
        " ON by_key.k = s.k WHEN NOT MATCHED THEN INSERT *"
    )
    expected = query(session, "SELECT k, max(v) AS v FROM t VERSION AS OF 2 GROUP BY k")
    assert sorted(values(session["by_key"])) == expected
    assert expected != query(session, "SELECT k, max(v) AS v FROM t GROUP BY k")
    with session.epoch():
        session["t"].insert([(99, "z")])
        [result] = session.execute("SELECT count(*) AS n FROM t VERSION AS OF 3")
        assert result.first(1)[0].n == len(values(session["t"], 3))


def test_explain_names_the_table_the_epoch_and_the_rows(session: Session) -> None:
    rows = len(values(session["t"], 5))
    text = str(session.explain("SELECT t.k FROM t JOIN t VERSION AS OF 5 o ON t.k = o.k"))
    assert f"rows of t at epoch 5, copied once: {rows}" in text
    [result] = session.execute("EXPLAIN SELECT k FROM t VERSION AS OF 'e5'")
    assert f"rows of t at epoch 5, copied once: {rows}" in result.text


def test_changed_row_is_looked_up_in_the_copied_rows(session: Session) -> None:
    session["t"].insert([(k, "x") for k in range(5000)])
    session.commit()
    session.execute(
        "CREATE VIEW v AS SELECT t.k, o.v FROM t JOIN t VERSION AS OF 13 o ON t.k = o.k"
    )
    touched = session.stats["touched"]
    session["t"].insert([(4000, "y")])
    session.commit()
    assert session.stats["touched"] - touched < 100
    assert (4000, "x") in values(session["v"])


# -- the life of a view ----------------------------------------------------------------------------

VIEW = (
    "CREATE OR REPLACE VIEW v AS SELECT t.k, o.v FROM t LEFT JOIN t VERSION AS OF 5 o ON t.k = o.k"
)


def expected_view(session: Session, old: list[Any]) -> list[Any]:
    found = []
    for k, _ in values(session["t"]):
        found += [(k, v) for key, v in old if key == k] or [(k, None)]
    return sorted(found, key=repr)


def view_rows(session: Session) -> list[Any]:
    return sorted(values(session["v"]), key=repr)


def test_view_is_the_same_after_a_restart_and_runs_again_without_change(
    opened: Callable[..., Session],
) -> None:
    session = fill(opened())
    old = values(session["t"], 5)
    [result] = session.execute(VIEW)
    assert result.report is not None
    assert result.report.status == "new"
    for turn in range(2):
        assert session.execute(VIEW)[0].report.status == "unchanged"  # type: ignore[union-attr]
        session["t"].insert([(1, f"q{turn}"), (9, "q")])
        session.commit()
        assert view_rows(session) == expected_view(session, old)
        session.close()
        session = opened()
        assert session.recovery.recomputed == 0
        assert view_rows(session) == expected_view(session, old)
    assert session.execute(VIEW)[0].report.version == 1  # type: ignore[union-attr]


def test_equal_rows_of_another_epoch_are_the_same_view(session: Session) -> None:
    session.execute(VIEW)
    session.input("other", "x int").insert([(1,)])
    epoch = session.commit()
    session.execute(VIEW.replace("5", str(epoch)))
    assert "v@1" in session
    same = VIEW.replace("VERSION AS OF 5", f"VERSION AS OF {epoch - 1}")
    assert session.execute(same)[0].report.status == "unchanged"  # type: ignore[union-attr]


def test_rewind_keeps_the_copied_rows_and_a_rerun_needs_the_epoch(session: Session) -> None:
    old = values(session["t"], 5)
    session.execute(VIEW)
    session.rewind(to=3)
    assert view_rows(session) == expected_view(session, old)
    assert "epochs 0 to 3" in (refused(session, VIEW).hint or "")
    session["t"].insert([(1, "n")])
    session.commit()
    session["t"].insert([(2, "n")])
    assert session.commit() == 5
    assert view_rows(session) == expected_view(session, old)
    assert session.execute(VIEW)[0].report.status == "changed"  # type: ignore[union-attr]
    assert view_rows(session) == expected_view(session, values(session["t"], 5))


@pytest.mark.parametrize("at", [2, 8])
def test_branch_has_the_copied_rows(session: Session, at: int) -> None:
    old = values(session["t"], 5)
    session.execute(VIEW)
    with session.branch("idea", at=at) as branch:
        assert view_rows(branch) == expected_view(branch, old)
        branch["t"].insert([(1, "b"), (7, "b")])
        branch.commit()
        assert view_rows(branch) == expected_view(branch, old)
    session.close()


def test_view_needs_neither_the_table_nor_its_history(opened: Callable[..., Session]) -> None:
    session = fill(opened(retain=4), 300)
    old = values(session["t"], 299)
    session.execute("CREATE VIEW copied AS SELECT * FROM t VERSION AS OF 299")
    for _ in range(300):
        session["t"].insert([(1, "z")])
        session.commit()
    drain_background(session)
    checkpoint_now(session)
    error = refused(session, "SELECT * FROM t VERSION AS OF 299")
    assert "nearest epochs" in (error.hint or "")
    assert caret_of(error) == "299"
    session.rename("t", "renamed")
    assert sorted(values(session["copied"])) == sorted(old)
    session.drop("renamed", cascade=True)
    session.close()
    session = opened()
    assert list(session.stages) == ["copied"]
    assert sorted(values(session["copied"])) == sorted(old)


def test_earlier_version_is_named_for_its_epochs(session: Session) -> None:
    session.replay_rows = 0
    session.execute("CREATE OR REPLACE VIEW per AS SELECT k, max(v) AS m FROM t GROUP BY k")
    error = refused(session, "SELECT * FROM per VERSION AS OF 4")
    assert "`per@1` VERSION AS OF 4" in (error.hint or "")
    assert query(session, "SELECT * FROM `per@1` VERSION AS OF 4") == sorted(
        values(session["per@1"], 4)
    )


def test_temporary_view_is_a_copy(session: Session) -> None:
    old = sorted(values(session["t"], 5))
    session.execute("CREATE TEMPORARY VIEW past AS SELECT * FROM t VERSION AS OF 5")
    session["t"].clear()
    session.commit()
    assert sorted(query(session, "SELECT * FROM past")) == old
    error = refused(session, "SELECT * FROM past VERSION AS OF 5")
    assert "[UNSUPPORTED_FEATURE.TIME_TRAVEL]" in str(error)


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "place"),
    [
        ("SELECT * FROM t VERSION AS OF 99", "epoch 99 is not readable", "99"),
        ("SELECT * FROM t VERSION AS OF 'nope'", "no epoch is labelled 'nope'", "'nope'"),
        ("SELECT * FROM t VERSION AS OF 1 + 1", "PARSE_SYNTAX_ERROR", "1 + 1"),
        ("SELECT * FROM t VERSION AS OF k", "PARSE_SYNTAX_ERROR", "k"),
        ("SELECT * FROM t TIMESTAMP AS OF 'abc'", "TIME_TRAVEL_TIMESTAMP_EXPR.INPUT", "'abc'"),
        ("SELECT * FROM t TIMESTAMP AS OF NULL", "TIME_TRAVEL_TIMESTAMP_EXPR.INPUT", "NULL"),
        ("SELECT * FROM t TIMESTAMP AS OF '2999-01-01'", "is in the future", "'2999-01-01'"),
        ("SELECT * FROM t TIMESTAMP AS OF k", "UNRESOLVED_COLUMN", "k"),
        ("SELECT * FROM t TIMESTAMP AS OF array(1)", "TIMESTAMP_EXPR.INPUT", "array(1)"),
        ("SELECT * FROM t FOR SYSTEM_TIME BETWEEN 1 AND 2", "PARSE_SYNTAX_ERROR", ""),
        ("SELECT * FROM nope VERSION AS OF 1", "TABLE_OR_VIEW_NOT_FOUND", "nope"),
        ("WITH w AS (SELECT 1 AS a) SELECT * FROM w VERSION AS OF 1", "TIME_TRAVEL", "1"),
        ("CREATE VIEW w AS SELECT * FROM t; SELECT * FROM w VERSION AS OF 1", "TIME_TRAVEL", "1"),
        ("INSERT INTO t SELECT * FROM t VERSION AS OF 99", "epoch 99", "99"),
        ("SELECT * FROM per@1 VERSION AS OF 1", "PARSE_SYNTAX_ERROR", ""),
    ],
)
def test_refused_clause_shows_its_place_and_a_remedy(
    session: Session, text: str, kind: str, place: str
) -> None:
    error = refused(session, text)
    assert kind in str(error)
    if place:
        assert caret_of(error) == place


def test_copied_rows_have_a_limit_in_stages_only(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nosync_nb.session.definitions.define.BYTES_MAX", 100)
    assert query(session, "SELECT count(*) AS n FROM t VERSION AS OF 5") != []
    for define in (
        lambda: session.execute(VIEW),
        lambda: session.stage("v", session.sql("SELECT * FROM t VERSION AS OF 5")),
    ):
        with pytest.raises(NosyncError) as raised:
            define()
        assert "the rows of 't' at epoch 5" in str(raised.value)
        assert "session['t'].at(5)" in (raised.value.hint or "")
        assert "v" not in session
    hint = str(raised.value.hint).partition(": ")[2]
    exec(hint, {"session": session})  # the remedy works as it is written
    session.commit()
    assert sorted(values(session["t_5"])) == sorted(values(session["t"], 5))
    assert isinstance(raised.value, StageError)


# -- Python ----------------------------------------------------------------------------------------


def test_collection_at_an_epoch_is_an_operand_with_the_same_definition(session: Session) -> None:
    table = session["t"]
    old, rows = table.at(5), values(table, 5)
    text = "SELECT a.k, b.v AS old FROM t a JOIN t VERSION AS OF 5 b ON a.k = b.k"
    session.execute(f"CREATE VIEW by_sql AS {text}")
    joined = table.select("k").join(old, on="k").rename(v="old")
    session.stage("by_python", joined)
    session.stage("copied", old)
    session.stage("both", table.concat(table.at("e5")))
    for _ in range(2):
        session["t"].insert([(1, "n"), (2, "n")])
        session.commit()
        assert sorted(values(session["by_python"])) == sorted(values(session["by_sql"]))
        assert sorted(values(session["copied"])) == sorted(rows)
        assert sorted(values(session["both"])) == sorted(rows + values(table))
    never_read = table.at(5)
    session.rewind(to=2)
    assert sorted(values(session["copied"])) == sorted(rows)
    with pytest.raises(TimeError, match="undone by a rewind"):
        session.stage("again", never_read)
    assert "again" not in session
