"""`compare`: two collections, versions, epochs or branches against counted rows."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import services_of

import nosync_nb
from nosync_nb import SchemaError, Session, StageError, TimeError


@pytest.fixture
def session(session: Session) -> Session:
    flights = session.input("flights", "carrier string, tail string, delay double")
    session.input("planes", "tail string, seats int", key="tail")
    session.stage("delays", flights.group_by("carrier").agg(delay="avg(delay)", n="count(*)"))
    flights.insert([("UA", "N1", 50.0), ("UA", "N1", 70.0), ("AA", "N2", 10.0)])
    session.commit()
    flights.insert([("UA", "N3", 90.0), ("DL", "N2", 5.0)])
    flights.remove([("AA", "N2", 10.0)])
    session.commit()
    return session


def pairs(comparison: Any, limit: int | None = None) -> list[tuple[Any, Any]]:
    return [(a and tuple(a), b and tuple(b)) for a, b in comparison.rows(limit)]


def test_stages_without_a_key_differ_in_whole_rows(session: Session) -> None:
    flights = session["flights"]
    late = session.stage("late", flights.filter("delay > 60"))
    later = session.stage("later", flights.filter("delay > 80"))
    comparison = session.compare(late, later)
    assert (comparison.only_a, comparison.only_b, comparison.changed, comparison.same) == (
        1,
        0,
        0,
        1,
    )
    assert pairs(comparison) == [(("UA", "N1", 70.0), None)]
    assert not comparison.equal
    assert comparison.by == ()
    assert "late at epoch 2" in str(comparison)
    assert session.compare("late", "late").equal


def test_rows_of_one_group_are_a_changed_row(session: Session) -> None:
    comparison = session.compare("delays", at=(1, 2))
    assert comparison.by == ("carrier",)
    assert (comparison.only_a, comparison.only_b, comparison.changed, comparison.same) == (
        1,
        1,
        1,
        0,
    )
    assert pairs(comparison) == [
        (("AA", 10.0, 1), None),
        (None, ("DL", 5.0, 1)),
        (("UA", 60.0, 2), ("UA", 70.0, 3)),
    ]
    assert pairs(session.compare("delays", at=(2, 1))) == [(b, a) for a, b in pairs(comparison)]
    assert pairs(comparison, limit=2) == pairs(comparison)[:2]
    assert comparison.to_arrow()["diff"].to_pylist().count(-1) == 2


def test_versions_are_compared_by_their_common_key(session: Session) -> None:
    flights = session["flights"]
    session.stage("worst", flights.group_by("carrier").agg(delay="max(delay)"))
    session.stage("worst", flights.group_by("carrier").agg(delay="min(delay)"))
    comparison = session.compare("worst@1", "worst")
    assert comparison.by == ("carrier",)
    assert pairs(comparison) == [(("UA", 90.0), ("UA", 50.0))]
    assert comparison.same == 1


def test_key_is_followed_through_operators(session: Session) -> None:
    flights, planes = session["flights"], session["planes"]
    wide = session.stage("wide", planes.filter("seats > 100").rename({"tail": "plane"}))
    assert session.compare(wide, wide).by == ("plane",)
    assert session.compare(planes.select("seats"), planes.select("seats")).by == ()
    worst = flights.group_by("carrier").top(1, by="delay desc")
    assert session.compare(worst, worst).by == ("carrier",)
    per = flights.group_by("carrier", "tail").agg(n="count(*)")
    joined = session.stage("joined", per.join(planes, on="tail"))
    assert session.compare(joined, joined).by == ("carrier", "tail")
    assert session.compare(flights.join(planes, on="tail"), joined, columns=["tail"]).by == (
        "tail",
    )
    assert session.compare(per, per, by="tail").by == ("tail",)
    everything = flights.group_by().agg(n="count(*)")
    assert pairs(session.compare(everything, everything, at=(1, 2))) == [((3,), (4,))]


def test_comparison_keeps_its_epochs(session: Session) -> None:
    late = session.stage("late", session["flights"].filter("delay > 60"))
    comparison = session.compare(late, session["flights"])
    before = pairs(comparison)
    session.inputs["flights"].insert([("UA", "N9", 99.0)])
    session.commit()
    assert pairs(comparison) == before
    assert (comparison.a.epoch, comparison.b.epoch) == (2, 2)


def test_collections_of_two_sessions_are_compared(session: Session, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "other") as other:
        other_flights = other.input("flights", "carrier string, tail string, delay double")
        other_flights.insert([("UA", "N1", 50.0), ("UA", "N1", 70.0)])
        other.commit()
        comparison = session.compare("flights", other_flights, at=(1, 1))
        assert pairs(comparison) == [(("AA", "N2", 10.0), None)]
        assert comparison.same == 2


def test_epochs_of_one_collection_are_compared_by_its_changes(session: Session) -> None:
    """Two epochs of a large collection cost what changed between them."""
    big = session.input("big", "id bigint")
    big.insert([(i,) for i in range(50_000)])
    session.commit()
    big.insert([(-1,)])
    session.commit()
    comparison = session.compare("big", at=(session.now - 1, session.now))
    assert (comparison.only_a, comparison.only_b, comparison.changed, comparison.same) == (
        0,
        1,
        0,
        50_000,
    )


def test_invalid_comparison_is_refused_with_a_hint(session: Session) -> None:
    flights = session["flights"]
    late = session.stage("late", flights.select("carrier", "delay"))
    with pytest.raises(SchemaError, match="columns differ") as error:
        session.compare("flights", late)
    assert "columns=['carrier', 'delay']" in str(error.value.hint)
    assert session.compare("flights", late, columns=["carrier", "delay"]).equal
    with pytest.raises(TimeError, match="epoch 9"):
        session.compare(late, late, at=9)
    with pytest.raises(SchemaError, match="at="):
        session.compare(late, at=(1, 2, 3))
    with pytest.raises(StageError, match="there is nothing to compare"):
        session.compare(late)
    with pytest.raises(StageError, match="nothing"):
        session.compare("nothing", late)
    with pytest.raises(StageError, match="not a collection"):
        session.compare(late, 7)  # type: ignore[arg-type]
    flights.insert([("UA", "N1", 1.0)])  # type: ignore[attr-defined]
    assert session.compare(late, late, at=session.now).equal
    with pytest.raises(StageError, match="not committed"):
        session.compare(late, session["flights"].select("carrier", "delay"))
    session.discard()


ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(ROWS, ROWS, st.booleans())
def test_counts_and_rows_equal_those_of_multisets(
    tmp_path_factory: pytest.TempPathFactory, one: Any, other: Any, keyed: bool
) -> None:
    with nosync_nb.open(tmp_path_factory.mktemp("log")) as session:
        for name, rows in (("one", one), ("other", other)):
            session.input(name, "k string, v bigint").insert(rows)
        session.commit()
        comparison = session.compare("one", "other", by="k" if keyed else None)
    less, more = Counter(one) - Counter(other), Counter(other) - Counter(one)
    found = pairs(comparison)
    assert Counter(a for a, _ in found if a) == less
    assert Counter(b for _, b in found if b) == more
    changed = 0
    if keyed:
        for key in "abc":
            expected_sides = (
                sum(n for row, n in each.items() if row[0] == key) for each in (less, more)
            )
            changed += min(expected_sides)
    assert comparison.changed == changed == sum(1 for a, b in found if a and b)
    assert all(a[0] == b[0] for a, b in found if a and b)
    assert comparison.only_a == less.total() - changed
    assert comparison.only_b == more.total() - changed
    assert comparison.same == (Counter(one) & Counter(other)).total()
    assert comparison.equal == (Counter(one) == Counter(other))


def test_difference_can_be_a_stage(session: Session) -> None:
    late = session.stage("late", session["flights"].filter("delay > 60"))
    session.stage("early", session["flights"].filter("delay < 80"))
    comparison = session.compare("late", "early")
    session.stage("changed", comparison.collection)
    assert session["changed"].schema.names == ("carrier", "tail", "delay", "side")
    flights = session.inputs["flights"]
    for delay in (65.0, 10.0, 95.0, 95.0):
        flights.insert([("B6", "N4", delay)])
        session.commit()
        flights.remove([("UA", "N3", 90.0)]) if delay == 10.0 else None
        session.commit()
        now = session.compare("late", "early")
        rows = Counter(map(tuple, session["changed"].rows()))
        wanted: Counter[tuple[Any, ...]] = Counter()
        for a, b in pairs(now):
            wanted[(*a, "a") if b is None else (*b, "b")] += 1
        assert rows == wanted
    session.drop("changed")
    assert late.count() == 4


def test_difference_of_versions_and_columns_can_be_a_collection(session: Session) -> None:
    flights = session["flights"]
    session.stage("some", flights.filter("delay > 60").rename({"tail": "side"}))
    session.stage("more", flights.filter("delay > 40").rename({"tail": "side"}))
    difference = session.compare("some", "more", columns=["side"]).collection
    assert difference.schema.names == ("side", "side_")
    assert [tuple(row) for row in difference.rows()] == [("N1", "b")]
    session.stage("some", flights.filter("delay > 80").rename({"tail": "side"}))
    again = session.compare("some@1", "some").collection
    assert [row[-1] for row in again.rows()] == ["a"]


def test_difference_of_two_sessions_is_refused_with_a_command(
    session: Session, tmp_path: Path
) -> None:
    with nosync_nb.open(tmp_path / "other") as other:
        other_flights = other.input("flights", "carrier string, tail string, delay double")
        other_flights.insert([("UA", "N1", 50.0), ("UA", "N1", 70.0)])
        other.commit()
        comparison = session.compare("flights", other_flights)
        assert (comparison.only_a, comparison.only_b, comparison.same) == (2, 0, 2)
        with pytest.raises(StageError, match="comparison of two sessions") as error:
            _ = comparison.collection
        difference = run_hint(error, session, session["flights"], other_flights)
        other_flights.remove([("UA", "N1", 50.0)])
        other.commit()
    assert Counter(map(tuple, difference.rows())) == expected_sides(comparison)
    session.inputs["flights"].remove([("DL", "N2", 5.0)])
    session.commit()
    assert [tuple(row) for row in difference.rows()] == [("UA", "N3", 90.0, "a")]


@pytest.mark.parametrize("at", [1, (2, 1), (None, 1)])
def test_difference_of_an_epoch_is_refused_with_a_command(session: Session, at: Any) -> None:
    flights = session["flights"]
    comparison = session.compare(flights, flights, at=at)
    with pytest.raises(StageError, match="or at a given epoch") as error:
        _ = comparison.collection
    difference = run_hint(error, session, flights, flights)
    assert Counter(map(tuple, difference.rows())) == expected_sides(
        session.compare(flights, at=(2, 1))
    )
    session.inputs["flights"].insert([("B6", "N4", 1.0)])
    session.commit()
    assert ("B6", "N4", 1.0, "a") in set(map(tuple, difference.rows()))


def test_difference_belongs_to_the_session_of_both_sides(session: Session) -> None:
    with session.branch("other") as branch:
        difference = session.compare(branch["flights"], branch["flights"].filter("delay > 60"))
        branch.stage("changed", difference.collection)
        assert branch["changed"].count() == difference.only_a == 2
        with pytest.raises(StageError, match="another session"):
            session.stage("changed", difference.collection)


def expected_sides(comparison: Any) -> Counter[tuple[Any, ...]]:
    """The rows of the collection of a comparison."""
    return Counter((*a, "a") if b is None else (*b, "b") for a, b in pairs(comparison))


def run_hint(error: pytest.ExceptionInfo[StageError], session: Session, a: Any, b: Any) -> Any:
    """Runs the commands of a hint; returns the value of the last one."""
    found = re.search(r"an input, (.*), (session.commit\(\)), and use (.*)", str(error.value.hint))
    assert found is not None
    names = {"session": session, "a": a, "b": b}
    return [eval(each, names) for each in found.groups()][-1]


def test_counts_over_epochs_equal_those_of_each_epoch(session: Session) -> None:
    session.stage("late", session["flights"].group_by("tail").agg(n="count(*)"))
    session.stage(
        "early", session["flights"].filter("delay < 80").group_by("tail").agg(n="count(*)")
    )
    for number in range(60):
        session.inputs["flights"].insert([("B6", f"N{number % 7}", float(number + 40))])
        session.commit()
    for at, most in ((None, 48), (None, 5), (30, 100)):
        comparison = session.compare("late", "early", at=at).counts(most)
        assert len(comparison) <= most
        assert comparison[-1].epoch == (at or session.now)
        for epoch, *counts in comparison:
            each = session.compare("late", "early", at=epoch)
            assert counts == [each.only_a, each.only_b, each.changed]
    assert session.compare("late", at=(3, 9)).counts() == []


def test_first_changes_of_an_epoch_are_paired_by_key(session: Session) -> None:
    changes = services_of(session).compare_service.changes(session["delays"], 1, 2, limit=10)
    assert changes.by == ("carrier",)
    assert [tuple(each) for each in changes.first] == [
        (("AA", 10.0, 1), None, 1),
        (None, ("DL", 5.0, 1), 1),
        (("UA", 60.0, 2), ("UA", 70.0, 3), 1),
    ]
    assert (changes.came, changes.went, changes.more) == (2, 2, False)
    assert changes.arrived == [("DL", 5.0, 1), ("UA", 70.0, 3)]
    with pytest.raises(TimeError):
        services_of(session).compare_service.changes(session["delays"], 1, 9, limit=10)


def test_limited_changes_are_the_first_of_all(session: Session) -> None:
    choose, nan = Random(7), float("nan")
    keyed = session.input("keyed", "number int, value double", key="number")
    current: dict[int, float] = {}
    for _ in range(6):
        rows = {n: choose.choice([0.5, nan, 2.0]) for n in choose.sample(range(30), 15)}
        keyed.remove([(n, value) for n, value in current.items() if n not in rows])
        keyed.upsert(list(rows.items()))
        session.commit()
        every = session.compare(keyed, at=(session.now - 1, session.now)).rows()
        came = [pair.b for pair in every if pair.b is not None]
        for limit in (0, 1, 5, len(every), 99):
            changes = services_of(session).compare_service.changes(
                keyed, session.now - 1, session.now, limit=limit
            )
            first = [each[:2] for each in changes.first]
            assert repr(first) == repr([tuple(pair) for pair in every[:limit]])
            assert changes.more == (len(every) > limit)
            assert repr(changes.arrived) == repr(came[:limit])
            assert changes.came == len(came)
            assert changes.went == sum(pair.a is not None for pair in every)
        current = rows
