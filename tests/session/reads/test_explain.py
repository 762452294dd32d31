"""`explain()`: the plan as text."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from nosync_nb import Collection, Session
from nosync_nb.collections.explain_output import ExplainOutput, PlanLine, PlanSection

HOSTILE = "<script>alert(1)</script>\x1b[2J"


@pytest.fixture
def flights(session: Session) -> Session:
    flights = session.input("flights", "id int, carrier string, origin string, minutes double")
    session.input("carriers", "code string, label string, country string")
    flights.insert([(i, "UA" if i % 2 else "AA", "SFO", i % 50 / 1.0) for i in range(100)])
    session["carriers"].insert([("UA", "United", "US"), ("AA", "American", "US")])  # type: ignore[attr-defined]
    session.commit()
    return session


def late(session: Session) -> Collection:
    pairs = session["flights"].select("*").join(session["carriers"], on={"carrier": "code"})
    slow = pairs.filter("minutes > 15")
    return session.stage("late", slow.group_by("label").agg(n="count(*)"))


def part(text: str, title: str) -> str:
    """One section of a plan."""
    return text.split(f"\n\n{title}\n")[1].split("\n\n")[0]


def test_columns_have_their_names_and_chains_no_depth(session: Session) -> None:
    one = session.input("one", "k int, v string, t double")
    two = session.input("two", "k int, w string")
    joined = one.select("k", "upper(v) as v").join(two, on="k").explain()
    assert "join on k: k, v, w" in joined
    assert "select k, upper(v) as v" in joined
    assert "aggregate by v: n = count(*)" in one.group_by("v").agg(n="count(*)").explain()
    first = one.group_by("v").top(2, by="t desc, k").explain()
    assert "first 2 by v, ordered by t desc, k" in first
    assert first.splitlines()[-1].strip().startswith("one")
    assert "two  · 1 of 2 columns: k" in one.join(two, on="k", how="semi").explain()


def test_what_was_moved_and_is_not_carried_is_told(flights: Session) -> None:
    text = late(flights).explain()
    assert re.search(r"filter minutes > 15 .*moved below a join", text)
    assert re.search(
        r"join on carrier = code: .*not carried, because no other operator reads it: id, .*origin",
        text,
    )
    assert "flights  · 2 of 4 columns: carrier, minutes" in text
    sums = flights.stage("sums", flights["late"].group_by("label").agg(n="sum(n)")).explain()
    assert "moved" not in sums
    assert "not carried" not in sums


def test_what_is_kept_is_told_with_rows_bytes_and_for_whom(flights: Session) -> None:
    stage = late(flights)
    flights.stage("names", flights["flights"].join(flights["carriers"], on={"carrier": "code"}))
    kept = part(stage.explain(), "arranged for lookups")
    assert re.search(r"carriers by code \(2 rows\): [\d.]+ .?i?B  · for late, names", kept)
    assert re.search(r"the state of late \(\d+ rows\): [\d.,]+ \w+  · for late", kept)
    assert "flights by carrier" not in kept, "only what this plan looks into"
    flights.drop("names")
    assert "names" not in stage.explain()


def test_what_a_change_of_an_input_looks_up_is_told(flights: Session) -> None:
    asked = part(late(flights).explain(), "lookups of a change").splitlines()
    by_input = {line.split(":")[0].strip(): line for line in asked}
    assert by_input.keys() == {"flights", "carriers"}
    assert "carriers by code (2 rows), the state of late" in by_input["flights"]
    assert re.search(r"by carrier \(\d+ rows\), the state of late", by_input["carriers"])
    passed = flights.stage("passed", flights["flights"].filter("id > 3"))
    assert "flights: nothing" in passed.explain()


def test_parts_that_are_used_twice_are_told_once(session: Session) -> None:
    one = session.input("one", "k int").select("k + 1 as k").distinct()
    lines = one.concat(one.filter("k > 1")).explain().splitlines()
    (number,) = {match[1] for line in lines if (match := re.search(r"#(\d+) distinct", line))}
    assert [("as above" in line) for line in lines if f"#{number} distinct" in line] == [
        False,
        True,
    ]
    assert sum("select k + 1 as k" in line for line in lines) == 1


def test_a_tree_of_many_branches_is_as_long_as_it_has_parts(session: Session) -> None:
    tall = session.input("one", "k int")
    other = session.input("other", "k int")
    parts: Collection = tall
    for i in range(300):
        parts = parts.filter(f"k > {i}").distinct().except_all(other)
    text = parts.explain()
    assert all(f"filter k > {i}" in text for i in range(300))
    assert max(map(len, text.splitlines())) < 300
    assert len(text) < 300 * 400


def test_a_stage_that_has_stopped_says_why(flights: Session) -> None:
    stage = late(flights)
    assert "has stopped" not in stage.explain()
    flights.stage("chosen", flights["late"].select("label"))
    flights.stage("late", flights["flights"].select("id"))
    assert "has stopped" in flights["chosen"].explain()


def test_html_is_text_that_opens_by_keyboard() -> None:
    plan = ExplainOutput(
        HOSTILE,
        [PlanSection("", [PlanLine(HOSTILE, HOSTILE)]), PlanSection(HOSTILE, [PlanLine("a")])],
    )
    shown = plan._repr_html_()
    assert "<script" not in shown
    assert "\x1b" not in shown + str(plan)
    assert shown.count("<details open><summary") == 2
    assert len(str(plan).splitlines()) == 5
    assert repr(plan) == str(plan)


def test_a_long_part_is_closed_at_first_and_copies_are_equal() -> None:
    plan = ExplainOutput("a", [PlanSection("", [PlanLine(str(i)) for i in range(100)])])
    assert "<details><summary" in plan._repr_html_()
    for again in (copy.copy(plan), pickle.loads(pickle.dumps(plan))):
        assert again == plan
        assert again._repr_html_() == plan._repr_html_()
