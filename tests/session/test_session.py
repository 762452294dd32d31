"""`Session`: inputs and stages by name, definitions, and statistics."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from checks.sessions import values
from internals import catalog_of, checkpoint_now, log_of, services_of, settle_background

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


def test_input_with_equal_columns_is_the_same_input(session: Session) -> None:
    fly(session, ("UA", "EWR", 1.0))
    again = session.input("flights", "carrier string, origin string, delay double")
    assert values(again) == [("UA", "EWR", 1.0)]
    assert session.input("flights").schema == again.schema
    assert session.now == 1


def test_columns_are_taken_from_data_without_rows(session: Session) -> None:
    frame = pd.DataFrame({"tail": ["a"], "seats": [5], "built": [2001.0]})
    planes = session.input("planes", frame, key="tail")
    assert planes.schema.names == ("tail", "seats", "built")
    assert planes.key == ("tail",)
    session.commit()
    assert planes.rows() == []


# -- definitions -----------------------------------------------------------------------------------


def test_stage_over_existing_rows_starts_with_them(session: Session) -> None:
    fly(session, ("UA", "EWR", 5.0), ("UA", "EWR", 5.0))
    flights = session["flights"]
    session.stage("count", flights.group_by().agg(n="count(*)"))
    session.stage("joined", flights.join(flights.select("carrier").distinct(), on="carrier"))
    assert values(session["count"]) == [2]
    assert len(session["joined"]) == 2
    fly(session, ("AA", "JFK", 1.0))
    assert values(session["count"]) == [3]
    assert len(session["joined"]) == 3


def test_equal_definition_changes_nothing(session: Session) -> None:
    flights = session["flights"]
    fly(session, ("UA", "EWR", 65.0))
    session.stage("slow", flights.filter("delay > 60"))
    head = log_of(session).head
    (report,) = session.define({"slow": session["flights"].filter("delay > 60")})
    assert (report.status, report.version, report.rows) == ("unchanged", 1, 1)
    assert log_of(session).head == head


def test_edited_stage_is_a_new_version_and_its_readers_follow(session: Session) -> None:
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


def test_edited_stage_is_replayed_over_a_cheap_past(session: Session) -> None:
    flights = session["flights"]
    session.stage("slow", flights.filter("delay > 60"))
    for delay in (50.0, 70.0, 90.0):
        fly(session, ("UA", "EWR", delay))
    session.stage("slow", flights.filter("delay > 80"))
    assert [len(session["slow"].rows(at)) for at in range(4)] == [0, 0, 0, 1]
    assert [len(session["slow@1"].rows(at)) for at in range(4)] == [0, 0, 1, 2]


def hinted_replay_epoch(hint: str | None) -> int:
    """The epoch that the hint of a report names."""
    found = re.search(r"run `%%dd --replay (\d+)` to compute its history", hint or "")
    assert found is not None, hint
    return int(found[1])


def test_hint_to_replay_an_edited_stage_works(session: Session) -> None:
    session.replay_rows = 0
    flights = session["flights"]
    session.stage("slow", flights.filter("delay > 60"))
    for delay in (50.0, 70.0, 90.0):
        fly(session, ("UA", "EWR", delay))
    cell = {"slow": flights.filter("delay > 80")}
    (report,) = session.define(cell)
    first = hinted_replay_epoch(report.hint)
    assert (report.status, first) == ("changed", 0)
    (report,) = session.define(cell, replay=first)
    assert (report.status, report.version) == ("changed", 3)
    assert [len(session["slow"].rows(at)) for at in range(4)] == [0, 0, 0, 1]
    (report,) = session.define(cell, replay=first)
    assert (report.status, report.version) == ("unchanged", 3)
    (report,) = session.define(cell, replay=2)
    assert (report.status, report.version) == ("unchanged", 3)


def test_hint_to_replay_names_an_epoch_at_which_all_inputs_exist(session: Session) -> None:
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
    first = hinted_replay_epoch(reports[0].hint)
    assert first == 1
    with pytest.raises(TimeError, match=r"from epoch 0: .* from 1 to 2\n") as caught:
        session.define(cell, replay=0)
    assert caught.value.hint == "use --replay 1"
    reports = session.define(cell, replay=first)
    assert {r.name: r.status for r in reports} == {"slow": "changed", "flown": "followed"}
    assert [len(session["slow"].rows(at)) for at in (1, 2)] == [0, 1]


def test_stage_without_a_computable_past_has_no_replay_hint(session: Session) -> None:
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


def test_stages_of_one_definition_can_be_in_any_order(session: Session) -> None:
    slow = session["flights"].filter("delay > 60")
    carriers = slow.select("carrier").distinct()
    reports = session.define({"carriers": carriers, "slow": slow})
    assert {r.name for r in reports} == {"carriers", "slow"}
    assert session.info.reads["carriers"] == ("slow",)
    fly(session, ("UA", "EWR", 65.0))
    assert values(session["carriers"]) == ["UA"]


def test_definition_is_all_or_nothing(session: Session) -> None:
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


def test_again_recomputes_a_stage_and_its_readers(session: Session) -> None:
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


def test_reader_of_a_removed_column_is_stale_and_names_it(session: Session) -> None:
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


def test_drop_needs_no_readers_or_cascade(session: Session) -> None:
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


def test_rename_keeps_rows_past_and_readers(session: Session) -> None:
    session.stage("slow", session["flights"].filter("delay > 60"))
    fly(session, ("UA", "EWR", 65.0))
    session.rename("flights", "departures")
    session.rename("slow", "late")
    assert session.info.reads == {"departures": (), "late": ("departures",)}
    session.inputs["departures"].insert([("AA", "JFK", 70.0)])
    session.commit()
    assert [len(session["late"].rows(at)) for at in range(3)] == [0, 1, 2]
    assert values(session["departures"], 1) == [("UA", "EWR", 65.0)]


def test_collection_of_another_session_is_refused(session: Session, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "other") as other:
        foreign = other.input("flights", "x int")
        with pytest.raises(StageError, match="another session"):
            session.stage("mixed", foreign.distinct())
        with pytest.raises((StageError, SchemaError), match="session"):
            session.stage("mixed", session["flights"].select("delay").concat(foreign))


# -- status ----------------------------------------------------------------------------------------


def test_frontiers_are_inclusive_epochs(session: Session) -> None:
    assert session.frontiers == {"flights": Frontier(0, 0, None)}
    fly(session, ("UA", "EWR", 65.0))
    session.sync()
    assert session.frontiers == {"flights": Frontier(1, 1, None)}
    assert session.recovery_frontier() == session.recovery_frontier("power") == 1
    assert session.recovery_frontier("disk") == 0
    assert session.commit(wait="disk") == 2
    assert session.recovery_frontier("power") == 2


def test_subscribers_are_notified_after_the_epoch_is_visible(session: Session) -> None:
    notified: list[tuple[int, int]] = []

    def record(epoch: int) -> None:
        notified.append((epoch, session.now))

    def fail(_: int) -> None:
        raise KeyError("broken")

    stop = session.subscribe(record)
    session.commit()
    stop_failing = session.subscribe(fail)
    with pytest.warns(UserWarning, match="a subscriber raised KeyError"):
        session.commit()
    stop_failing()
    stop()
    session.commit()
    assert notified == [(1, 1), (2, 2)]


def test_stats_count_work(session: Session) -> None:
    session.stage("slow", session["flights"].filter("delay > 60"))
    fly(session, ("UA", "EWR", 65.0))
    assert session.stats["epochs"] == 1
    assert session.stats["touched"] >= 1
    assert session.stats["executed"] >= 1
    settle_background(session)


def test_stage_counts_rows_at_its_definition_and_after(session: Session) -> None:
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


def test_layers_report_epochs_and_persistence(session: Session) -> None:
    for delay in (65.0, 66.0, 67.0):
        fly(session, ("UA", "EWR", delay))
    session.sync()
    layers = session.info.layers("flights")
    assert sum(layer["rows"] for layer in layers) == 3
    assert layers[-1]["upper"] == 4
    assert all(set(layer["persistence"].split("+")) <= {"memory", "disk"} for layer in layers)


def test_every_epoch_is_readable_after_a_checkpoint(session: Session) -> None:
    stage = session.stage("slow", session["flights"].filter("delay > 60").select("delay"))
    for epoch in range(1, 7):
        if epoch in (3, 5):
            checkpoint_now(session)
        assert fly(session, ("UA", "EWR", 60.0 + epoch)) == epoch
        for at in range(epoch + 1):
            expected = [60.0 + e for e in range(1, at + 1)]
            assert values(stage, at) == expected
            assert sorted(stage.changes(upto=at)["delay"].to_pylist()) == expected
            if at:
                assert stage.changes(after=at - 1, upto=at)["delay"].to_pylist() == [60.0 + at]


@pytest.mark.fault(42)
def test_clock_set_back_keeps_epoch_times_in_order(
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
    for at, count in ((times[0], 3), (times[3], 4)):
        assert len(session["flights"].rows(at=at)) == count
