"""Changed columns of a source: stages that do not use them follow, others become stale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from internals import catalog_of

import nosync_nb
from nosync_nb import Collection, Session

Build = Callable[[Collection, Collection], Collection]

BETWEEN = "age BETWEEN phone AND most"
FOLLOW: dict[str, Build] = {
    "filter": lambda p, c: p.filter("age >= 18"),
    "select": lambda p, c: p.select("name", "age + 1 AS next"),
    "drop": lambda p, c: p.filter("age >= 18").select("name").distinct(),
    "distinct": lambda p, c: p.distinct(),
    "negate": lambda p, c: p.concat(p.negate(), p),
    "except_all": lambda p, c: p.except_all(p.filter("age < 18")),
    "subtract": lambda p, c: p.subtract(p.filter("age < 18")),
    "multiplicity": lambda p, c: p.multiplicity().filter("count > 1"),
    "consolidate": lambda p, c: p.consolidate(),
    "aggregate": lambda p, c: p.group_by("age").agg(n="count(*)", first="min(name)"),
    "global": lambda p, c: p.agg(oldest="max(age)"),
    "join": lambda p, c: p.join(c, on="name"),
    "join right": lambda p, c: c.join(p, on="name"),
    "left join": lambda p, c: p.join(c, on="name", how="left"),
    "semi join": lambda p, c: p.join(c, on="name", how="semi"),
    "anti join": lambda p, c: p.join(c, on="name", how="anti"),
    "widened": lambda p, c: p.select("name", "age").concat(c.select("name", "1 AS age")),
    "threshold": lambda p, c: p.threshold(lambda n: 2 * n),
    "top": lambda p, c: p.group_by("age").top(1, by="name desc"),
    "top of all": lambda p, c: p.group_by().top(2, offset=1),
    "computed top": lambda p, c: p.group_by("age").top(1, by="length(name) desc, age"),
    "rank": lambda p, c: p.group_by("name").rank("age + 1 desc", 2),
    "window": lambda p, c: p.window("name", "age desc").with_columns(
        n="row_number()", older="lag(age, 1, 0)", total="sum(age)"
    ),
    "computed window": lambda p, c: p.window(
        order_by="length(name)", range_between=(-1, 0)
    ).with_columns(n="max(age + 1)", before="first_value(upper(name))"),
    "top behind": lambda p, c: p.group_by("age").top(1, by="- age").join(c, on="name"),
    "self join": lambda p, c: p.join(p.select("name", "age AS other"), on="name"),
    "range join": lambda p, c: p.join(c.select("phone", "phone + 9 AS most"), where=BETWEEN),
    "range join right": lambda p, c: c.drop("name").join(p, where="phone < age"),
    "intervals": lambda p, c: c.drop("name").join(p, where="phone BETWEEN age - 9 AND age"),
}
USE: dict[str, Build] = {
    "filter": lambda p, c: p.filter("age >= 18 and City = 'rome'"),
    "select": lambda p, c: p.select("name", "city"),
    "expression": lambda p, c: p.select("upper(city) AS big"),
    "key": lambda p, c: p.group_by("city").agg(n="count(*)"),
    "aggregate": lambda p, c: p.group_by("age").agg(n="count(city)"),
    "ordered by": lambda p, c: p.group_by("age").agg(n="max_by(name, city)"),
    "top by key": lambda p, c: p.group_by("city").top(1, by="name"),
    "top": lambda p, c: p.group_by("name").top(1, by="age, city desc"),
    "computed top": lambda p, c: p.group_by("name").top(1, by="length(city)"),
    "rank": lambda p, c: p.group_by("name").rank("city", 2),
    "window by key": lambda p, c: p.window("city", "age").with_columns(n="row_number()"),
    "order of a window": lambda p, c: p.window("name", "city").with_columns(n="row_number()"),
    "argument of a window": lambda p, c: p.window("name", "age").with_columns(b="lag(city)"),
    "aggregate of a window": lambda p, c: p.window("name", "age").with_columns(b="max(city)"),
    "named before a top": lambda p, c: (
        p.select("name", "age", "city", "age + 1 AS next").group_by("name").top(1, by="next")
    ),
    "join": lambda p, c: p.join(c.select("name AS city", "phone"), on="city"),
    "range join": lambda p, c: p.join(c.select("name AS other"), where="city > other"),
    "later": lambda p, c: p.filter("age > 0").distinct().join(c, on="name").filter("city > ''"),
    "function": lambda p, c: p.map(lambda row: (row.name,), "name string"),
    "predicate": lambda p, c: p.filter(lambda row: row.age > 18),
    "reduce": lambda p, c: p.group_by("age").reduce(lambda key, rows: [(len(rows),)], "n int"),
    "one side": lambda p, c: p.concat(c.select("name", "1 AS age", "'x' AS city")),
}


@pytest.fixture
def session(session: Session) -> Session:
    session.input("people", "name string, age int, city string")
    session.input("calls", "name string, phone int")
    session.stage("grown", session["people"].filter("age > 0"))
    insert(session, ("ann", 20, "rome"), ("ann", 20, "oslo"), ("bob", 10, "rome"))
    return session


def insert(session: Session, *people: tuple[str, int, str]) -> None:
    session.inputs["people"].insert(list(people))
    session.inputs["calls"].insert([(people[0][0], 1)])
    session.commit()


def lose_city(session: Session) -> None:
    session.stage("grown", session["people"].filter("age > 0").select("name", "age"))


def check(session: Session, build: Build) -> None:
    """Compares the stage with its definition computed again."""
    expected = build(session["grown"], session["calls"])
    assert session["reader"].schema == expected.schema
    assert session["reader"].rows() == expected.rows()


@pytest.mark.parametrize("name", FOLLOW)
@pytest.mark.parametrize("again", [False, True], ids=["", "reopened"])
def test_stage_that_does_not_use_lost_column_follows(
    session: Session, tmp_path: Path, name: str, again: bool
) -> None:
    build = FOLLOW[name]
    session.stage("reader", build(session["grown"], session["calls"]))
    before = session["reader"].rows()
    lose_city(session)
    assert catalog_of(session)["reader"].reason is None
    if again:
        session.close()
        session = nosync_nb.open(tmp_path / "log")
        assert session.recovery.stages["reader"] == "read"
    check(session, build)
    assert session["reader@1"].rows() == before
    insert(session, ("cy", 30, "rome"), ("ann", 20, "rome"))
    check(session, build)
    session.close()


@pytest.mark.parametrize("name", USE)
def test_stage_that_uses_lost_column_is_stale_with_reason(session: Session, name: str) -> None:
    session.stage("reader", USE[name](session["grown"], session["calls"]))
    before = session["reader"].rows()
    lose_city(session)
    reason = catalog_of(session)["reader"].reason
    assert reason == "it reads column 'city' (string) of 'grown', which now has no such column"
    insert(session, ("cy", 30, "rome"))
    assert session["reader"].rows(at=1) == before


def test_reader_of_adapted_stage_depends_on_remaining_columns(session: Session) -> None:
    session.stage("adults", session["grown"].filter("age >= 18"))
    session.stage("ages", session["adults"].select("age").distinct())
    session.stage("cities", session["adults"].select("city").distinct())
    lose_city(session)
    reasons = {n: catalog_of(session)[n].reason for n in ("adults", "ages", "cities")}
    assert reasons == {
        "adults": None,
        "ages": None,
        "cities": "it reads column 'city' (string) of 'adults', which now has no such column",
    }


@pytest.mark.parametrize(
    ("name", "follows"),
    [
        ("select", True),
        ("aggregate", True),
        ("filter", False),
        ("join", False),
        ("top", False),
        ("computed top", False),
        ("threshold", False),
    ],
)
def test_retyped_column_is_not_treated_as_lost(session: Session, name: str, follows: bool) -> None:
    session.stage("reader", FOLLOW[name](session["grown"], session["calls"]))
    people = session["people"].filter("age > 0")
    session.stage("grown", people.select("name", "age", "length(city) AS city"))
    reason = catalog_of(session)["reader"].reason
    if follows:
        assert reason is None
        check(session, FOLLOW[name])
    else:
        why = "it reads column 'city' (string) of 'grown', which now has int"
        assert reason == why


def test_stage_that_loses_all_columns_is_stale(session: Session) -> None:
    session.stage("reader", session["grown"].distinct())
    session.stage("grown", session["people"].select("age * 2 AS twice"))
    assert "column 'name'" in str(catalog_of(session)["reader"].reason)


def counts(session: Session, **named: str) -> None:
    session.stage("counts", session["grown"].group_by("name").agg(**named))


EDITS: dict[str, list[dict[str, str]]] = {
    "added": [{"n": "count(*)", "young": "min(age)", "old": "max(age)"}],
    "moved": [{"young": "min(age)", "n": "count(*)"}],
    "twice": [
        {"old": "max(age)", "young": "min(age)", "n": "count(*)"},
        {"n": "count(*)", "young": "min(age)"},
    ],
}


@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("again", [False, True], ids=["", "reopened"])
def test_adapted_stage_uses_no_more_columns_than_before(
    session: Session, tmp_path: Path, edits: list[dict[str, str]], again: bool
) -> None:
    counts(session, n="count(*)", young="min(age)")
    session.stage("names", session["counts"].filter("n > 1").select("name"))
    session.stage("many", session["counts"].filter("n > 1"))
    for edit in edits:
        counts(session, **edit)
    if again:
        session.close()
        session = nosync_nb.open(tmp_path / "log")
    counts(session, n="count(*)", old="max(age)")
    assert [catalog_of(session)[name].reason for name in ("names", "many")] == [None, None]
    assert session["names"].rows() == [("ann",)]
    assert session["many"].rows() == [("ann", 2)]
    insert(session, ("bob", 30, "rome"))
    assert session["many"].rows() == [("ann", 2), ("bob", 2)]
    counts(session, old="max(age)")
    why = "it reads column 'n' (bigint) of 'counts', which now has no such column"
    assert catalog_of(session)["names"].reason == why
    counts(session, n="count(*)", old="max(age)")
    assert session["names"].rows() == [("ann",), ("bob",)]
    session.close()


@pytest.mark.parametrize("name", FOLLOW)
def test_stage_adapts_to_added_then_lost_columns(session: Session, name: str) -> None:
    build = FOLLOW[name]
    session.stage("reader", build(session["grown"], session["calls"]))
    before = session["reader"].rows()
    people = session["people"].filter("age > 0")
    session.stage("grown", people.select("upper(name) AS extra", "city", "age", "name"))
    assert session["reader"].rows() == before
    lose_city(session)
    check(session, build)
    insert(session, ("cy", 30, "rome"), ("ann", 20, "rome"))
    check(session, build)


def test_stage_is_unchanged_after_columns_return(session: Session) -> None:
    counts(session, n="count(*)")
    session.stage("many", session["counts"].filter("n > 1"))
    counts(session, young="min(age)", n="count(*)")
    counts(session, n="count(*)")
    many = session["counts"].filter("n > 1")
    assert [r.status for r in session.define({"many": many})] == ["unchanged"]


def test_select_of_user_uses_its_columns_after_adaptation(session: Session) -> None:
    counts(session, n="count(*)", young="min(age)")
    session.stage("few", session["counts"].select("name", "young"))
    counts(session, young="min(age)", n="count(*)")
    counts(session, n="count(*)")
    why = "it reads column 'young' (int) of 'counts', which now has no such column"
    assert catalog_of(session)["few"].reason == why
