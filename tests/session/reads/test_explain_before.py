"""`session.explain()`: the work and the state of a query before anything is defined."""

from __future__ import annotations

import re

import pytest

import nosync_nb
from nosync_nb import Session
from nosync_nb.collections.library.graphs import connected_components
from nosync_nb.dataflow.state_estimate import distinct_estimate
from nosync_nb.errors import SqlError, StageError
from nosync_nb.operators.base import Operator, UpdateCost
from nosync_nb.session.reads.explain import SHOWN_MAX

QUERY = """
    SELECT label, count(*) AS n, max(minutes) AS most
    FROM flights JOIN carriers ON carrier = code
    WHERE minutes > 24
    GROUP BY label
"""

BY_LABEL = """\
query
  aggregate by label: n = count(*), most = max(minutes)
  join on carrier = code: minutes, label  · not carried, because no other operator reads it: id,\
 carrier, origin, code
  ├─ #1 filter minutes > 24
  │  select carrier, minutes
  │  flights  · 2 of 4 columns: carrier, minutes
  └─ carriers

work of an update, in proportion to
  changed rows: select carrier, minutes, filter minutes > 24, join on carrier = code
  changed groups: aggregate by label
"""

REACH = """

reach of a change
  flights: select carrier, minutes, filter minutes > 24, join on carrier = code, aggregate by\
 label  · at most changed groups
  carriers: join on carrier = code, aggregate by label  · at most changed groups

"""


@pytest.fixture
def flights(session: Session) -> Session:
    flights = session.input("flights", "id int, carrier string, origin string, minutes double")
    session.input("carriers", "code string, label string").insert([(c, c * 2) for c in "ABCD"])
    flights.insert([(i, "ABCD"[i % 4], f"S{i % 25}", i / 200) for i in range(10_000)])
    session.commit()
    return session


def estimates(text: str) -> dict[str, int]:
    """The estimated rows of each arrangement, by its title."""
    found = re.findall(r"^  (.*) \(about ([\d,]+) rows?\): .*\(estimate\)", text, re.MULTILINE)
    return {title: int(rows.replace(",", "")) for title, rows in found}


def test_explain_of_query_has_work_state_and_reach(flights: Session) -> None:
    text = flights.explain(QUERY)
    assert text.startswith(BY_LABEL)
    assert REACH in text
    assert "waits for Spark" not in text


def test_explain_estimates_state_from_row_and_value_counts(flights: Session) -> None:
    found = estimates(flights.explain(QUERY))
    assert 4500 <= found["#1 filter by carrier"] <= 5500, "half of the flights, from a sample"
    assert found["carriers by code"] == 4
    assert found["the result"] == 4, "one row for each label"
    by_origin = flights.explain("SELECT carrier, origin, count(*) AS n FROM flights GROUP BY 1, 2")
    assert estimates(by_origin)["the result"] == 100
    by_id = flights.explain("SELECT id % 5000 AS k, count(*) AS n FROM flights GROUP BY id % 5000")
    assert 3000 <= estimates(by_id)["the result"] <= 8000
    top = flights["flights"].group_by("origin").top(2, by="minutes")
    assert estimates(flights.explain(top))["the result"] == 50
    assert estimates(flights.explain("SELECT count(*) AS n FROM flights"))["the result"] == 1


def test_grouping_sets_are_estimated_from_the_groups_of_each_set(flights: Session) -> None:
    query = "SELECT carrier, origin, count(*) AS n FROM flights GROUP BY ROLLUP (carrier, origin)"
    assert estimates(flights.explain(query))["the result"] == 100 + 4 + 1
    real = flights.stage("rolled_up", flights.sql(query))
    assert real.count() == 100 + 4 + 1


def test_estimates_are_near_real_sizes(flights: Session) -> None:
    found = estimates(flights.explain(QUERY))
    stage = flights.stage("by_label", flights.sql(QUERY))
    real = dict(
        re.findall(r"^  (.*) \(([\d,]+) rows?\): ", stage.explain(), re.MULTILINE),
    )
    for title in ("#1 filter by carrier", "carriers by code"):
        assert abs(found[title] - int(real[title].replace(",", ""))) <= 500
    assert found["the result"] == int(real["by_label"])


def test_explain_defines_and_changes_nothing(flights: Session) -> None:
    flights.stage("minutes", flights["flights"].select("minutes"))
    flights.sync()  # so that the layers do not change by themselves
    before = flights.info.layers("flights"), flights.now, [*flights.stages]
    files = flights.info.disk_usage()
    for _ in range(2):
        flights.explain(QUERY)
    assert (flights.info.layers("flights"), flights.now, [*flights.stages]) == before
    assert flights.info.disk_usage() == files
    flights["flights"].insert([(-1, "A", "S1", 30.0)])
    flights.commit()
    assert len(flights["minutes"]) == 10_001
    assert flights.explain(QUERY).startswith(BY_LABEL)


def test_existing_arrangements_are_not_counted_again(flights: Session) -> None:
    flights.stage("by_label", flights.sql(QUERY))
    text = flights.explain(QUERY.replace("24", "30"))
    found = estimates(text)
    assert "carriers by code" not in found
    assert re.search(r"carriers by code \(4 rows\): .* · for by_label$", text, re.MULTILINE)
    assert "the state of the result" in found


@pytest.mark.parametrize(
    ("query", "most"),
    [
        ("SELECT upper(carrier) AS c FROM flights WHERE minutes > 1", "changed rows"),
        ("SELECT DISTINCT carrier FROM flights", "changed rows"),
        ("SELECT carrier, avg(minutes) AS m FROM flights GROUP BY carrier", "changed groups"),
        ("SELECT * FROM flights ORDER BY minutes LIMIT 3", "changed groups"),
        (
            "SELECT carrier, median(minutes) AS m FROM flights GROUP BY carrier",
            "changed partitions",
        ),
        (
            "SELECT id, lag(id) OVER (PARTITION BY carrier ORDER BY id) AS b FROM flights",
            "changed rows",
        ),
        (
            "SELECT id, ntile(4) OVER (PARTITION BY carrier ORDER BY id) AS b FROM flights",
            "changed partitions",
        ),
        (
            "SELECT a.id FROM flights a JOIN carriers b ON a.minutes > length(b.code) + a.id",
            "everything",
        ),
    ],
)
def test_reach_has_the_dearest_work_on_the_way(flights: Session, query: str, most: str) -> None:
    reach = flights.explain(query).split("\nreach of a change\n")[1]
    assert reach.splitlines()[0].endswith(f"· at most {most}")


def test_loop_may_touch_everything(session: Session) -> None:
    edges = session.input("edges", "src int, dst int")
    text = session.explain(connected_components(edges))
    assert "everything: repeat until nothing changes" in text


def test_reader_explains_like_the_owner(flights: Session) -> None:
    flights.stage("sums", flights["flights"].group_by("carrier").agg(n="count(*)", m="median(id)"))
    with nosync_nb.open(flights.path, mode="r") as reader:
        for name in ("work of an update, in proportion to", "reach of a change"):
            for query in (QUERY, "sums"):
                wanted = flights.explain(query).split(f"\n\n{name}\n")[1].split("\n\n")[0]
                assert wanted in reader.explain(query)
        assert "changed partitions: aggregate by carrier" in reader.explain("sums")
        assert estimates(reader.explain(QUERY)) == estimates(flights.explain(QUERY))


def test_explain_takes_names_queries_and_collections(flights: Session) -> None:
    stage = flights.stage("late", flights["flights"].filter("minutes > 40"))
    assert flights.explain("late") == stage.explain()
    assert flights.explain(" flights ") == flights["flights"].explain()
    assert flights.explain(stage) == stage.explain()
    assert flights.explain(flights.sql(QUERY)).startswith("collection\n")
    assert (
        flights.sql(QUERY).explain().split("\n", 1)[1] == (flights.explain(QUERY).split("\n", 1)[1])
    )


def test_bad_queries_are_refused_like_sql(flights: Session) -> None:
    with pytest.raises(StageError, match="there is no stage or input 'carier'") as error:
        flights.explain("carier")
    assert "did you mean" in str(error.value.hint)
    with pytest.raises(SqlError, match=r"UNRESOLVED_COLUMN.*line 1, column 8"):
        flights.explain("SELECT nothing FROM flights")
    with pytest.raises(StageError, match="is not a collection"):
        flights.explain(3)  # type: ignore[arg-type]


def test_expressions_for_spark_are_listed_with_reason(flights: Session) -> None:
    query = flights["flights"].select("id", "mask(carrier) as hidden", "minutes")
    text = flights.explain(query)
    waiting = text.split("\n\nwaits for Spark\n")[1].split("\n\n")[0].strip()
    assert re.fullmatch(r"select id, mask\(carrier\) .*: 'mask\(.*' \(function mask\)", waiting)


def test_explanation_of_stopped_inputs_is_the_plan_alone(flights: Session) -> None:
    flights.stage("late", flights["flights"].filter("minutes > 40"))
    read = flights["late"].select("id")
    flights.stage("slow", flights["late"].select("id", "minutes"))
    flights.stage("late", flights["flights"].select("carrier"))
    assert "has stopped" in flights["slow"].explain()
    assert read.explain().startswith("collection\n  select id")


def test_long_lists_of_inputs_are_shortened(session: Session) -> None:
    parts = [session.input(f"i{n}", "k int") for n in range(SHOWN_MAX + 5)]
    text = session.explain(parts[0].concat(*parts[1:]))
    reach = text.split("\nreach of a change\n")[1].split("\n\n")[0].splitlines()
    assert len(reach) == SHOWN_MAX + 1
    assert reach[-1].strip() == "and 5 more inputs"


@pytest.mark.parametrize(
    ("sample", "different", "single", "every", "least", "most"),
    [
        (0, 0, 0, 0.0, 0, 0),
        (1000, 10, 0, 1e6, 10, 10),
        (1000, 1000, 1000, 1e6, 1e6, 1e6),
        (1000, 900, 810, 1e4, 900, 1e4),
        (100, 60, 30, 100.0, 60, 60),
    ],
)
def test_distinct_estimate_is_between_sample_and_all(
    sample: int, different: int, single: int, every: float, least: float, most: float
) -> None:
    assert least <= distinct_estimate(sample, different, single, every) <= most


def test_costs_are_ordered_and_have_phrases() -> None:
    assert [each.phrase for each in sorted(UpdateCost)] == [
        "changed rows",
        "changed groups",
        "changed partitions",
        "everything",
    ]
    assert Operator.update_cost is UpdateCost.ROWS
