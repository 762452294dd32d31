"""`Session`: inputs and stages by name, definitions, and statistics."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from internals import (
    catalog_of,
    checkpoint_now,
    graph_of,
    log_of,
    services_of,
    settle_background,
    snapshot_of,
)

import nosync_nb
from nosync_nb import Collection, Frontier, Input, SchemaError, Session, StageError, TimeError
from nosync_nb.session.state import publisher


@pytest.fixture
def session(session: Session) -> Session:
    session.input("flights", "carrier string, origin string, delay double")
    return session


def fly(session: Session, *flights: tuple[str, str, float | None]) -> int:
    session.inputs["flights"].insert(list(flights))
    return session.commit()


def values(collection: Any, at: Any = None) -> list[Any]:
    return [tuple(row) if len(row) > 1 else row[0] for row in collection.rows(at)]


# -- names -----------------------------------------------------------------------------------------


def test_inputs_and_stages_are_found_by_name(session: Session) -> None:
    flights = session["flights"]
    slow = session.stage("slow", flights.filter("delay > 60"))
    assert isinstance(flights, Input)
    assert isinstance(slow, Collection)
    assert list(session.inputs) == ["flights"]
    assert list(session.stages) == ["slow"]
    assert "slow" in session
    assert "fast" not in session
    assert session.info.reads == {"flights": (), "slow": ("flights",)}
    assert slow.name == "slow"
    assert repr(session) == "<nosync session log at epoch 0: flights, slow>"


def test_an_input_with_equal_columns_is_the_input(session: Session) -> None:
    fly(session, ("UA", "EWR", 1.0))
    again = session.input("flights", "carrier string, origin string, delay double")
    assert values(again) == [("UA", "EWR", 1.0)]
    assert session.input("flights").schema == again.schema
    assert session.now == 1


def test_columns_can_be_taken_from_data_and_no_rows_are(session: Session) -> None:
    frame = pd.DataFrame({"tail": ["a"], "seats": [5], "built": [2001.0]})
    planes = session.input("planes", frame, key="tail")
    assert planes.schema.names == ("tail", "seats", "built")
    assert planes.key == ("tail",)
    session.commit()
    assert planes.rows() == []


# -- definitions -----------------------------------------------------------------------------------


def test_a_stage_is_kept_up_to_date_at_every_epoch(session: Session) -> None:
    flights = session["flights"]
    session.stage("worst", flights.group_by("carrier").agg(worst="max(delay)"))
    fly(session, ("UA", "EWR", 5.0), ("AA", "JFK", 7.0))
    fly(session, ("UA", "JFK", 9.0))
    session.inputs["flights"].remove([("UA", "JFK", 9.0), ("AA", "JFK", 7.0)])
    session.commit()
    worst = session["worst"]
    assert [values(worst, at) for at in range(4)] == [
        [], [("AA", 7.0), ("UA", 5.0)], [("AA", 7.0), ("UA", 9.0)], [("UA", 5.0)]
    ]  # fmt: skip


def test_a_stage_over_data_that_is_there_begins_with_it(session: Session) -> None:
    fly(session, ("UA", "EWR", 5.0), ("UA", "EWR", 5.0))
    flights = session["flights"]
    session.stage("count", flights.group_by().agg(n="count(*)"))
    session.stage("joined", flights.join(flights.select("carrier").distinct(), on="carrier"))
    assert values(session["count"]) == [2]
    assert len(session["joined"]) == 2
    fly(session, ("AA", "JFK", 1.0))
    assert values(session["count"]) == [3]
    assert len(session["joined"]) == 3


def test_an_equal_definition_changes_nothing(session: Session) -> None:
    flights = session["flights"]
    fly(session, ("UA", "EWR", 65.0))
    session.stage("slow", flights.filter("delay > 60"))
    head = log_of(session).head
    (report,) = session.define({"slow": session["flights"].filter("delay > 60")})
    assert (report.status, report.version, report.rows) == ("unchanged", 1, 1)
    assert log_of(session).head == head


def test_an_edited_stage_is_a_new_version_and_its_readers_follow_by_name(session: Session) -> None:
    session.replay_rows = 0
    flights = session["flights"]
    slow = session.stage("slow", flights.filter("delay > 60"))
    session.stage("slow_carriers", slow.select("carrier").distinct())
    session.stage("origins", flights.select("origin").distinct())
    fly(session, ("UA", "EWR", 65.0), ("AA", "JFK", 95.0))
    reports = session.define({"slow": flights.filter("delay > 90")})
    assert {r.name: r.status for r in reports} == {"slow": "changed", "slow_carriers": "followed"}
    assert values(session["slow_carriers"]) == ["AA"]
    assert values(session["slow@1"]) == [("AA", "JFK", 95.0), ("UA", "EWR", 65.0)]
    assert values(session["slow_carriers@1"], 1) == ["AA", "UA"]
    assert "slow@1" not in session.stages
    fly(session, ("DL", "LGA", 99.0), ("EV", "LGA", 70.0))
    assert values(session["slow_carriers"]) == ["AA", "DL"]
    assert len(session["slow@1"]) == 2
    with pytest.raises(TimeError, match="stage 'slow': epoch 0 is not readable, only 1"):
        session["slow"].rows(at=0)


def test_an_edited_stage_is_replayed_over_the_past_if_that_is_cheap(session: Session) -> None:
    flights = session["flights"]
    session.stage("slow", flights.filter("delay > 60"))
    for delay in (50.0, 70.0, 90.0):
        fly(session, ("UA", "EWR", delay))
    session.stage("slow", flights.filter("delay > 80"))
    assert [len(session["slow"].rows(at)) for at in range(4)] == [0, 0, 0, 1]
    assert [len(session["slow@1"].rows(at)) for at in range(4)] == [0, 0, 1, 2]


def replay_hinted(hint: str | None) -> int:
    """The epoch of the remedy that a report names."""
    found = re.search(r"run `%%dd --replay (\d+)` to compute its history", hint or "")
    assert found is not None, hint
    return int(found[1])


def test_the_remedy_for_the_past_of_an_edited_stage_does_what_it_says(session: Session) -> None:
    session.replay_rows = 0
    flights = session["flights"]
    session.stage("slow", flights.filter("delay > 60"))
    for delay in (50.0, 70.0, 90.0):
        fly(session, ("UA", "EWR", delay))
    cell = {"slow": flights.filter("delay > 80")}
    (report,) = session.define(cell)
    first = replay_hinted(report.hint)
    assert (report.status, first) == ("changed", 0)
    (report,) = session.define(cell, replay=first)
    assert (report.status, report.version) == ("changed", 3)
    assert [len(session["slow"].rows(at)) for at in range(4)] == [0, 0, 0, 1]
    (report,) = session.define(cell, replay=first)
    assert (report.status, report.version) == ("unchanged", 3)
    (report,) = session.define(cell, replay=2)
    assert (report.status, report.version) == ("unchanged", 3)


def test_the_remedy_for_the_past_names_an_epoch_at_which_all_that_is_read_is_there(
    session: Session,
) -> None:
    session.replay_rows = 0
    flights = session["flights"]
    session.stage("slow", flights.filter("delay > 60"))
    fly(session, ("UA", "EWR", 70.0))
    planes = session.input("planes", "carrier string")
    session.stage("flown", session["slow"].join(planes, on="carrier"))
    fly(session, ("UA", "EWR", 90.0))
    cell = {"slow": flights.filter("delay > 80")}
    reports = session.define(cell)
    assert {r.name: r.status for r in reports} == {"slow": "changed", "flown": "followed"}
    first = replay_hinted(reports[0].hint)
    assert first == 1
    with pytest.raises(TimeError, match=r"from epoch 0: .* from 1 to 2\n") as caught:
        session.define(cell, replay=0)
    assert caught.value.hint == "use --replay 1"
    reports = session.define(cell, replay=first)
    assert {r.name: r.status for r in reports} == {"slow": "changed", "flown": "followed"}
    assert [len(session["slow"].rows(at)) for at in (1, 2)] == [0, 1]


def test_a_stage_whose_past_cannot_be_had_promises_none(session: Session) -> None:
    session.replay_rows = 0
    fly(session, ("UA", "EWR", 70.0))
    late = session.input("late", "a int")
    session.stage("few", late.filter("a > 1"))
    (report,) = session.define({"few": late.filter("a > 2")})
    assert report.hint == "computed as of epoch 1; the previous version is 'few@1'"
    fly(session, ("UA", "EWR", 70.0))
    (report,) = session.define({"few": late.filter("a > 2")}, replay=0)
    assert (report.status, report.version) == ("unchanged", 2)
    assert report.hint == "'few' begins at epoch 1, like its inputs"


def test_stages_of_one_definition_refer_to_each_other_in_any_order(session: Session) -> None:
    slow = session["flights"].filter("delay > 60")
    carriers = slow.select("carrier").distinct()
    reports = session.define({"carriers": carriers, "slow": slow})
    assert {r.name for r in reports} == {"carriers", "slow"}
    assert session.info.reads["carriers"] == ("slow",)
    fly(session, ("UA", "EWR", 65.0))
    assert values(session["carriers"]) == ["UA"]


def test_a_definition_is_all_or_nothing(session: Session) -> None:
    fly(session, ("UA", "EWR", 0.0))
    flights = session["flights"]
    good = flights.filter("delay >= 0")
    bad = flights.map(lambda row: (1 / row.delay,), "y double")
    with pytest.raises(StageError, match=r"'bad'.*ZeroDivisionError"):
        session.define({"good": good, "bad": bad})
    assert not session.stages
    session.define({"good": good})
    fly(session, ("UA", "EWR", 1.0))
    assert len(session["good"]) == 2


def test_again_computes_anew_and_so_does_what_reads_it(session: Session) -> None:
    session.replay_rows = 0
    drawn = iter(range(100))
    flights = session["flights"]
    with pytest.warns(UserWarning, match="kernel|stored|identi"):
        session.stage("drawn", flights.map(lambda row: (next(drawn),), "n int"))
    session.stage("most", session["drawn"].group_by().agg(most="max(n)"))
    session.stage("other", flights.select("carrier"))
    fly(session, ("UA", "EWR", 1.0), ("AA", "JFK", 1.0))
    first = values(session["drawn"])
    same = session["drawn"]
    definition = catalog_of(session)["drawn"].definition
    assert definition is not None
    reports = session.define(
        {"drawn": Collection(services_of(session).host, definition)}, again=True
    )
    assert {r.name: r.status for r in reports} == {"drawn": "changed", "most": "followed"}
    assert not set(first) & set(values(same))
    assert values(session["most"]) == [max(values(same))]


def test_a_reader_whose_column_is_gone_stops_and_says_which(session: Session) -> None:
    session.replay_rows = 0
    flights = session["flights"]
    session.stage("slow", flights.filter("delay > 60"))
    session.stage("origins", session["slow"].group_by("origin").agg(n="count(*)"))
    session.stage("after", session["origins"].filter("n > 0"))
    fly(session, ("UA", "EWR", 65.0))
    reports = session.define({"slow": flights.filter("delay > 60").select("carrier", "delay")})
    assert {r.name: r.status for r in reports} == {
        "slow": "changed", "origins": "stale", "after": "stale"
    }  # fmt: skip
    fly(session, ("AA", "JFK", 70.0))
    assert len(session["slow"]) == 2
    with pytest.raises(
        TimeError, match=r"'origins' is stale since epoch 1: .* 'origin' \(string\)"
    ):
        session["origins"].rows()
    assert values(session["origins"], 1) == [("EWR", 1)]
    assert session.frontiers["after"].memory == 1
    session.stage("slow", flights.filter("delay > 60"))
    assert values(session["origins"]) == values(session["after"]) == [("EWR", 1), ("JFK", 1)]


def test_dropping_needs_that_nobody_reads_or_takes_them_along(session: Session) -> None:
    session.stage("slow", session["flights"].filter("delay > 60"))
    session.stage("carriers", session["slow"].select("carrier"))
    with pytest.raises(StageError, match="'slow' is read by carriers"):
        session.drop("slow")
    session.drop("carriers", "slow")
    assert not session.stages
    session.stage("slow", session["flights"].filter("delay > 60"))
    session.stage("carriers", session["slow"].select("carrier"))
    session.drop("flights", cascade=True)
    assert session.info.reads == {}
    session.input("flights", "something int").insert([(1,)])
    session.commit()
    assert values(session["flights"]) == [1]


def test_renaming_keeps_rows_past_and_readers(session: Session) -> None:
    session.stage("slow", session["flights"].filter("delay > 60"))
    fly(session, ("UA", "EWR", 65.0))
    session.rename("flights", "departures")
    session.rename("slow", "late")
    assert session.info.reads == {
        "departures": (),
        "late": ("departures",),
    }
    session.inputs["departures"].insert([("AA", "JFK", 70.0)])
    session.commit()
    assert [len(session["late"].rows(at)) for at in range(3)] == [0, 1, 2]
    assert values(session["departures"], 1) == [("UA", "EWR", 65.0)]


def test_collections_of_another_session_are_refused(session: Session, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "other") as other:
        theirs = other.input("flights", "x int")
        with pytest.raises(StageError, match="another session"):
            session.stage("mixed", theirs.distinct())
        with pytest.raises((StageError, SchemaError), match="session"):
            session.stage("mixed", session["flights"].select("delay").concat(theirs))


# -- knowing ---------------------------------------------------------------------------------------


def test_frontiers_are_inclusive_epochs(session: Session) -> None:
    assert session.frontiers == {"flights": Frontier(0, 0, None)}
    fly(session, ("UA", "EWR", 65.0))
    session.sync()
    assert session.frontiers == {"flights": Frontier(1, 1, None)}
    assert session.recovery_frontier() == session.recovery_frontier("power") == 1
    assert session.recovery_frontier("disk") == 0
    assert session.commit(wait="disk") == 2
    assert session.recovery_frontier("power") == 2


def test_subscribers_hear_of_each_epoch_after_it_is_visible(session: Session) -> None:
    heard: list[tuple[int, int]] = []

    def hear(epoch: int) -> None:
        heard.append((epoch, session.now))

    def fail(_: int) -> None:
        raise KeyError("broken")

    stop = session.subscribe(hear)
    session.commit()
    forget = session.subscribe(fail)
    with pytest.warns(UserWarning, match="a subscriber raised KeyError"):
        session.commit()
    forget()
    stop()
    session.commit()
    assert heard == [(1, 1), (2, 2)]


def test_counters_tell_what_was_done(session: Session) -> None:
    session.stage("slow", session["flights"].filter("delay > 60"))
    fly(session, ("UA", "EWR", 65.0))
    assert session.stats["epochs"] == 1
    assert session.stats["touched"] >= 1
    assert session.stats["executed"] >= 1
    settle_background(session)


def test_a_stage_counts_the_rows_that_it_is_given_when_it_is_defined_and_after(
    session: Session,
) -> None:
    for delay in range(50):
        session["flights"].insert([("UA", "EWR", float(delay))])
    session.commit()

    def counted(do: Callable[[], object]) -> tuple[int, int]:
        before = session.stats["touched"], session.stats["executed"]
        do()
        return session.stats["touched"] - before[0], session.stats["executed"] - before[1]

    flights = session["flights"]
    defined = [
        counted(lambda: session.stage("slow", flights.filter("delay > 60"))),
        counted(lambda: session.stage("sums", flights.group_by("carrier").agg(n="sum(delay)"))),
    ]
    assert defined == [(50, 1), (50, 1)]
    touched, executed = counted(lambda: fly(session, *[("UA", "EWR", float(n)) for n in range(20)]))
    assert touched >= 2 * 20
    assert executed == 2


def test_layers_tell_what_they_cover_and_where_they_are(session: Session) -> None:
    for delay in (65.0, 66.0, 67.0):
        fly(session, ("UA", "EWR", delay))
    session.sync()
    layers = session.info.layers("flights")
    assert sum(layer["rows"] for layer in layers) == 3
    assert layers[-1]["upper"] == 4
    assert all(set(layer["persistence"].split("+")) <= {"memory", "disk"} for layer in layers)


def test_a_reader_holds_its_version_while_others_commit(session: Session) -> None:
    session.stage("slow", session["flights"].filter("delay > 60"))
    fly(session, ("UA", "EWR", 65.0))
    version = snapshot_of(session).version
    fly(session, ("UA", "EWR", 66.0))
    number = next(iter(graph_of(session).named["slow"].traces.values()))
    assert version.traces[number].consolidated().diff.tolist() == [1]
    assert len(session["slow"]) == 2


def test_every_epoch_reads_as_it_was_after_a_checkpoint_in_the_same_session(
    session: Session,
) -> None:
    stage = session.stage("slow", session["flights"].filter("delay > 60").select("delay"))
    for epoch in range(1, 7):
        if epoch in (3, 5):
            checkpoint_now(session)
        assert fly(session, ("UA", "EWR", 60.0 + epoch)) == epoch
        for at in range(epoch + 1):
            there = [60.0 + e for e in range(1, at + 1)]
            assert values(stage, at) == there
            assert sorted(stage.changes(upto=at)["delay"].to_pylist()) == there
            if at:
                assert stage.changes(after=at - 1, upto=at)["delay"].to_pylist() == [60.0 + at]


@pytest.mark.fault(42)
def test_a_clock_that_is_set_back_does_not_mix_up_epochs(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((1e9, 1e9 - 3600, 1e9 - 7200, 1e9 + 60))
    for epoch in range(1, 5):
        with monkeypatch.context() as patch:
            patch.setattr(publisher.time, "time", lambda: next(clock))
            fly(session, ("UA", "EWR", float(epoch)))
    times = [e.committed_at for e in session.epochs() if e.number]
    assert times == sorted(times)
    assert [t.timestamp() for t in times] == [1e9, 1e9, 1e9, 1e9 + 60]
    for at, there in ((times[0], 3), (times[3], 4)):
        assert len(session["flights"].rows(at=at)) == there
