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


def define_late(session: Session) -> Collection:
    pairs = session["flights"].select("*").join(session["carriers"], on={"carrier": "code"})
    slow = pairs.filter("minutes > 15")
    return session.stage("late", slow.group_by("label").agg(n="count(*)"))


def section_of(text: str, title: str) -> str:
    """One section of a plan."""
    return text.split(f"\n\n{title}\n")[1].split("\n\n")[0]


def test_explain_names_columns_and_flattens_chains(session: Session) -> None:
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


def test_explain_reports_pushed_filters_and_dropped_columns(flights: Session) -> None:
    text = define_late(flights).explain()
    assert re.search(r"filter minutes > 15 .*moved below a join", text)
    assert re.search(
        r"join on carrier = code: .*not carried, because no other operator reads it: id, .*origin",
        text,
    )
    assert "flights  · 2 of 4 columns: carrier, minutes" in text
    sums = flights.stage("sums", flights["late"].group_by("label").agg(n="sum(n)")).explain()
    assert "moved" not in sums
    assert "not carried" not in sums


def test_explain_lists_arrangements_with_size_and_users(flights: Session) -> None:
    stage = define_late(flights)
    flights.stage("names", flights["flights"].join(flights["carriers"], on={"carrier": "code"}))
    assert stage.explain().startswith("late  [in process")
    arrangements = section_of(stage.explain(), "arranged for lookups")
    assert re.search(r"carriers by code \(2 rows\): [\d.]+ .?i?B  · for late, names", arrangements)
    assert re.search(r"the state of late \(\d+ rows\): [\d.,]+ \w+  · for late", arrangements)
    assert "flights by carrier" not in arrangements, "only arrangements of this plan"
    flights.drop("names")
    assert "names" not in stage.explain()


def test_explain_lists_the_lookups_of_a_change(flights: Session) -> None:
    lookups = section_of(define_late(flights).explain(), "lookups of a change").splitlines()
    by_input = {line.split(":")[0].strip(): line for line in lookups}
    assert by_input.keys() == {"flights", "carriers"}
    assert "carriers by code (2 rows), the state of late" in by_input["flights"]
    assert re.search(r"by carrier \(\d+ rows\), the state of late", by_input["carriers"])
    without_lookups = flights.stage("passed", flights["flights"].filter("id > 3"))
    assert "flights: nothing" in without_lookups.explain()


def test_explain_prints_shared_nodes_once(session: Session) -> None:
    one = session.input("one", "k int").select("k + 1 as k").distinct()
    tree = one.concat(one.filter("k > 1")).explain().split("\n\n")[0]
    lines = tree.splitlines()
    (number,) = {match[1] for line in lines if (match := re.search(r"#(\d+) distinct", line))}
    assert [("as above" in line) for line in lines if f"#{number} distinct" in line] == [
        False,
        True,
    ]
    assert sum("select k + 1 as k" in line for line in lines) == 1


def test_explain_of_a_deep_tree_grows_with_its_nodes(session: Session) -> None:
    tall = session.input("one", "k int")
    other = session.input("other", "k int")
    parts: Collection = tall
    for i in range(300):
        parts = parts.filter(f"k > {i}").distinct().except_all(other)
    text = parts.explain()
    assert all(f"filter k > {i}" in text for i in range(300))
    assert max(map(len, text.splitlines())) < 300
    assert len(text) < 300 * 400


def test_explain_reports_a_stale_stage(flights: Session) -> None:
    stage = define_late(flights)
    assert "has stopped" not in stage.explain()
    flights.stage("chosen", flights["late"].select("label"))
    flights.stage("late", flights["flights"].select("id"))
    assert "has stopped" in flights["chosen"].explain()


def test_html_of_a_plan_is_escaped_and_opens_by_keyboard() -> None:
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


def test_long_section_is_closed_and_copies_are_equal() -> None:
    plan = ExplainOutput("a", [PlanSection("", [PlanLine(str(i)) for i in range(100)])])
    assert "<details><summary" in plan._repr_html_()
    for again in (copy.copy(plan), pickle.loads(pickle.dumps(plan))):
        assert again == plan
        assert again._repr_html_() == plan._repr_html_()
