"""MERGE: Spark's rules, against a model that goes through the rows one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from checks.sessions import values
from hypothesis import given, settings
from hypothesis import strategies as st

from nosync_nb import Session
from nosync_nb.errors import SqlError

Row = tuple[Any, ...]
Pair = Mapping[str, Any]


class When(NamedTuple):
    """A clause: its text, when it applies, its condition, and what it does to the input."""

    text: str
    when: str
    condition: Callable[[Pair], Any]
    act: Callable[[Pair], Row | None]
    unconditional: bool = False
    deletes: bool = False


ALWAYS: Callable[[Pair], Any] = lambda pair: True  # noqa: E731
CLAUSES = [
    When(
        "WHEN MATCHED AND s.v > t.v THEN UPDATE SET v = s.v, n = t.n + 1",
        "matched",
        lambda p: None if p["sv"] is None or p["v"] is None else p["sv"] > p["v"],
        lambda p: (p["id"], p["sv"], p["n"] + 1),
    ),
    When(
        "WHEN MATCHED AND s.v IS NULL THEN DELETE",
        "matched",
        lambda p: p["sv"] is None,
        lambda p: None,
        deletes=True,
    ),
    When(
        "WHEN MATCHED THEN UPDATE SET *",
        "matched",
        ALWAYS,
        lambda p: (p["sid"], p["sv"], p["sn"]),
        unconditional=True,
    ),
    When(
        "WHEN MATCHED THEN DELETE", "matched", ALWAYS, lambda p: None,
        unconditional=True, deletes=True,
    ),
    When(
        "WHEN NOT MATCHED AND s.v = 1 THEN INSERT (id, v) VALUES (s.id, s.v + 10)",
        "not matched",
        lambda p: p["sv"] == 1,
        lambda p: (p["sid"], p["sv"] + 10, None),
    ),
    When(
        "WHEN NOT MATCHED THEN INSERT *",
        "not matched",
        ALWAYS,
        lambda p: (p["sid"], p["sv"], p["sn"]),
        unconditional=True,
    ),
    When(
        "WHEN NOT MATCHED BY SOURCE AND t.v = 2 THEN DELETE",
        "not matched by source",
        lambda p: p["v"] == 2,
        lambda p: None,
        deletes=True,
    ),
    When(
        "WHEN NOT MATCHED BY SOURCE THEN UPDATE SET n = -1",
        "not matched by source",
        ALWAYS,
        lambda p: (p["id"], p["v"], -1),
        unconditional=True,
    ),
]  # fmt: skip


class CardinalityError(Exception):
    """The model refuses the statement."""


def merged(target: Sequence[Row], source: Sequence[Row], clauses: Sequence[When]) -> list[Row]:
    """The rows of the input after MERGE ... ON t.id = s.id."""
    of = {kind: [each for each in clauses if each.when == kind] for kind in WHENS}
    matched = of["matched"]
    lone_delete = len(matched) == 1 and matched[0].deletes and matched[0].unconditional
    result: list[Row] = []
    for row in target:
        pairs = [s for s in source if s[0] is not None and s[0] == row[0]]
        if len(pairs) > 1 and matched and not lone_delete:
            raise CardinalityError
        kind = "matched" if pairs else "not matched by source"
        given = pair_of(row, pairs[0] if pairs else (None, None, None))
        clause = next((each for each in of[kind] if each.condition(given)), None)
        if clause is None:
            result.append(row)
        elif (new := clause.act(given)) is not None:
            result.append(new)
    keys = {row[0] for row in target}
    for row in source:
        if row[0] in keys and row[0] is not None:
            continue
        given = pair_of((None, None, None), row)
        clause = next((each for each in of["not matched"] if each.condition(given)), None)
        if clause is not None:
            new = clause.act(given)
            assert new is not None
            result.append(new)
    if any(row[0] is None for row in result) or len({row[0] for row in result}) < len(result):
        raise CardinalityError
    return sorted(result, key=repr)


WHENS = ("matched", "not matched", "not matched by source")


def pair_of(row: Row, other: Row) -> Pair:
    return dict(zip(("id", "v", "n", "sid", "sv", "sn"), (*row, *other), strict=True))


VALUES = st.none() | st.integers(1, 3)
TARGETS = st.lists(
    st.tuples(st.integers(1, 4), VALUES, st.integers(0, 1)), max_size=4, unique_by=lambda r: r[0]
)
SOURCES = st.lists(st.tuples(st.none() | st.integers(1, 5), VALUES, st.integers(5, 6)), max_size=4)


@st.composite
def clause_lists(draw: st.DrawFn) -> list[When]:
    """Clauses in an order that Spark accepts: one without a condition is the last of its kind."""
    chosen = draw(st.lists(st.sampled_from(CLAUSES), min_size=1, max_size=5, unique=True))
    ended: set[str] = set()
    kept = []
    for each in chosen:
        if each.when not in ended:
            kept.append(each)
        if each.unconditional:
            ended.add(each.when)
    return kept


@given(target=TARGETS, source=SOURCES, clauses=clause_lists())
@settings(max_examples=60, deadline=None)
def test_merge_equals_model(
    target: list[Row], source: list[Row], clauses: list[When], tmp_path_factory: Any
) -> None:
    import nosync_nb

    with nosync_nb.open(tmp_path_factory.mktemp("merge") / "log") as session:
        t = session.input("t", "id int, v int, n int", key="id")
        s = session.input("s", "id int, v int, n int")
        t.insert(target)
        s.insert(source)
        session.commit()
        text = f"MERGE INTO t USING s ON t.id = s.id {' '.join(each.text for each in clauses)}"
        try:
            expected = merged(target, source, clauses)
        except CardinalityError:
            with pytest.raises(SqlError, match="MERGE_CARDINALITY_VIOLATION"):
                session.execute(text)
            expected = sorted(target, key=repr)
        else:
            session.execute(text)
        assert sorted(map(tuple, t.rows()), key=repr) == expected


@pytest.fixture
def session(session: Session) -> Session:
    planes = session.input("planes", "tail string, seats int", key="tail")
    session.input("plain", "a int")
    planes.insert([("N1", 10), ("N2", 20)])
    session.commit()
    return session


def test_merge_takes_subqueries_and_values_as_source(session: Session) -> None:
    [result] = session.execute(
        "MERGE INTO planes AS p USING (VALUES ('N1', 11), ('N3', 30)) AS s(tail, seats)"
        " ON p.tail = s.tail"
        " WHEN MATCHED AND s.seats > (SELECT min(seats) FROM planes) THEN UPDATE SET *"
        " WHEN NOT MATCHED AND EXISTS (SELECT 1 FROM planes WHERE seats < s.seats) THEN INSERT *"
    )
    assert (result.inserted, result.updated, result.deleted) == (1, 1, 0)
    assert values(session["planes"]) == [("N1", 11), ("N2", 20), ("N3", 30)]


def test_merge_on_other_condition_than_the_key(session: Session) -> None:
    session.execute(
        "MERGE INTO planes p USING (SELECT 15 AS bound) b ON p.seats < b.bound"
        " WHEN MATCHED THEN DELETE WHEN NOT MATCHED BY SOURCE THEN UPDATE SET seats = p.seats + 1"
    )
    assert values(session["planes"]) == [("N2", 21)]


@pytest.mark.parametrize(
    ("rest", "error"),
    [
        ("WHEN MATCHED THEN UPDATE SET seats = 1", "MERGE_CARDINALITY_VIOLATION"),
        ("WHEN MATCHED AND s.seats = 1 THEN UPDATE SET seats = 1", "MERGE_CARDINALITY_VIOLATION"),
        ("WHEN NOT MATCHED THEN INSERT *", "MERGE_CARDINALITY_VIOLATION"),
        (
            "WHEN MATCHED THEN DELETE WHEN MATCHED AND s.seats = 1 THEN DELETE",
            "NON_LAST_MATCHED_CLAUSE_OMIT_CONDITION",
        ),
        ("WHEN MATCHED THEN INSERT *", "PARSE_SYNTAX_ERROR"),
        ("WHEN NOT MATCHED THEN DELETE", "PARSE_SYNTAX_ERROR"),
        ("WHEN NOT MATCHED BY SOURCE THEN UPDATE SET *", "PARSE_SYNTAX_ERROR"),
        ("WHEN NOT MATCHED THEN INSERT (tail) VALUES (s.tail, 1)", "PARSE_SYNTAX_ERROR"),
        ("WHEN NOT MATCHED THEN INSERT (tail, seats) VALUES (s.tail, 'x')", "CANNOT_SAFELY_CAST"),
        ("WHEN NOT MATCHED THEN INSERT (nope) VALUES (1)", "UNRESOLVED_COLUMN"),
        ("WHEN MATCHED THEN UPDATE SET seats = nope", "UNRESOLVED_COLUMN"),
        ("WHEN MATCHED AND rand() < 0.5 THEN DELETE", "INVALID_NON_DETERMINISTIC_EXPRESSIONS"),
        ("", "PARSE_SYNTAX_ERROR"),
    ],
)
def test_refused_merge_changes_nothing(session: Session, rest: str, error: str) -> None:
    source = "(VALUES ('N1', 1), ('N1', 2), ('N9', 1), ('N9', 2)) AS s(tail, seats)"
    with pytest.raises(SqlError, match=error) as raised:
        session.execute(f"MERGE INTO planes USING {source}\nON planes.tail = s.tail\n{rest}")
    assert "^" in str(raised.value)
    assert raised.value.hint
    assert values(session["planes"]) == [("N1", 10), ("N2", 20)]
    assert not session.pending


def test_two_source_rows_may_delete_one_row(session: Session) -> None:
    [result] = session.execute(
        "MERGE INTO planes USING (VALUES ('N1'), ('N1')) AS s(tail) ON planes.tail = s.tail"
        " WHEN MATCHED THEN DELETE"
    )
    assert (result.deleted, values(session["planes"])) == (1, [("N2", 20)])


def test_merge_into_input_without_key_is_refused(session: Session) -> None:
    with pytest.raises(SqlError, match="has no key") as raised:
        session.execute("MERGE INTO plain USING planes ON a = seats WHEN MATCHED THEN DELETE")
    assert "key=" in str(raised.value.hint)
    with pytest.raises(SqlError, match="the source has no name"):
        session.execute(
            "MERGE INTO planes USING (SELECT 'a' AS tail, 1 AS seats) ON true"
            " WHEN NOT MATCHED THEN INSERT *"
        )
