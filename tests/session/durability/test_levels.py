"""Durability levels: a stage in memory leaves no byte on disk, and is recomputed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checks.sessions import past_rows
from internals import (
    catalog_of,
    checkpoint_now,
    files_with,
    graph_of,
    history_of,
    log_of,
    services_of,
    settle_background,
    tails_of,
)

from nosync_nb import CorruptLogError, Session, StageError, TimeError
from nosync_nb.dataflow.stage import StageOptions
from nosync_nb.trace.history.sections import EncodedChange

pytestmark = pytest.mark.usefixtures("own_key", "large_from_ten_rows")


Opened = Callable[..., Session]


def values(session: Session, name: str, at: int | None = None) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in session[name].rows(at))


def define(session: Session, persist: str | None) -> None:
    orders = session.input("orders", "customer int, amount int")
    totals = orders.group_by("customer").agg(total="sum(amount)")
    session.define({"totals": totals}, persist=persist)
    session.define({"ranked": session["totals"].filter("total > 50").distinct()}, persist=persist)


def feed(session: Session, epochs: int = 6, *, more: int = 0) -> None:
    for epoch in range(epochs):
        count = 30 if epoch % 2 else 3
        session["orders"].insert([(c, 10 * epoch + c + more) for c in range(count)])
        session.commit()


def bytes_written(session: Session) -> int:
    """The bytes of frames and of row files."""
    settle_background(session)
    layers = sum(p.stat().st_size for p in Path(session.path, "layers").iterdir())
    return int(log_of(session).head.offset) + layers


def part_files(session: Session) -> list[str]:
    """The names of the row files."""
    return [path.name for path in Path(session.path, "layers").iterdir()]


def number_of(name: str) -> int:
    """The number of the log or trace of a row file."""
    return int(re.sub(r"^[a-z]+", "", name).partition("-")[0])


def test_memory_stage_writes_no_byte_to_the_log(opened: Opened) -> None:
    growth = {}
    for how in (None, "memory", "disk"):
        session = opened(str(how))
        if how is None:
            session.input("orders", "customer int, amount int")
        else:
            define(session, how)
        before = bytes_written(session)
        feed(session)
        growth[how] = bytes_written(session) - before
        checkpoint_now(session)
        numbers = graph_of(session).unwritten
        assert bool(numbers) == (how == "memory")
        assert not [name for name in part_files(session) if number_of(name) in numbers]
    assert growth["memory"] == growth[None] < growth["disk"]


@pytest.mark.parametrize("ended", ["killed", "closed", "checkpoint"])
def test_memory_stage_is_recomputed_after_a_restart(opened: Opened, ended: str) -> None:
    session = opened()
    define(session, "memory")
    feed(session)
    expected = {name: past_rows(session, name) for name in ("orders", "totals", "ranked")}
    if ended == "checkpoint":
        checkpoint_now(session)
        session["orders"].insert([(1, 1)])
        session.commit()
        expected = {name: past_rows(session, name) for name in expected}
    if ended == "closed":
        session.close()
    session = opened(takeover=True)
    assert session.recovery.stages == {"totals": "recompute", "ranked": "recompute"}
    assert "in memory only" in session.recovery.reasons["totals"]
    assert {name: past_rows(session, name) for name in expected} == expected
    for name in ("totals", "ranked"):
        assert session.frontiers[name].memory == session.now
        assert session.frontiers[name].disk == 0
    session.sync()
    assert session.frontiers["orders"].disk == session.now
    feed(session, more=100)
    checkpoint_now(session)
    unwritten = graph_of(session).unwritten
    assert not [name for name in part_files(session) if number_of(name) in unwritten]
    session = opened(takeover=True)
    assert session["totals"].rows() != []


def test_memory_stage_with_a_large_past_is_recomputed_at_the_last_epoch(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened()
    define(session, "memory")
    feed(session)
    expected = past_rows(session, "totals")
    session.close()
    monkeypatch.setattr("nosync_nb.session.backfill.plan.EPOCHS_MAX", 2)
    session = opened()
    assert [*session["totals"].history()] == [range(6, 7)]
    assert past_rows(session, "totals") == {6: expected[6]}
    with pytest.raises(TimeError):
        session["totals"].rows(at=3)


def test_memory_stage_over_thinned_history_can_move_to_disk(opened: Opened) -> None:
    session = opened()
    orders = session.input("orders", "customer int, amount int")
    totals = orders.group_by("customer").agg(total="sum(amount)")
    session.stage("totals", totals, persist="memory")
    for epoch in range(40):
        orders.insert([(epoch % 3, epoch)])
        session.commit()
    session.retain = 4
    checkpoint_now(session)
    settle_background(session)
    expected = past_rows(session, "totals")
    assert 0 not in expected
    session.stage("totals", totals, persist="disk")
    assert past_rows(session, "totals") == expected
    session.close()
    session = opened()
    assert session.recovery.stages == {"totals": "read"}
    assert past_rows(session, "totals") == expected


def test_disk_stage_over_a_memory_stage_is_read_after_a_restart(opened: Opened) -> None:
    session = opened()
    orders = session.input("orders", "customer int, amount int")
    totals = orders.group_by("customer").agg(total="sum(amount)")
    session.stage("totals", totals, persist="memory")
    both = session["totals"].join(orders, on="customer")
    session.stage("both", both)
    feed(session)
    expected = {name: past_rows(session, name) for name in ("totals", "both")}
    session = opened(takeover=True)
    assert session.recovery.stages == {"totals": "recompute", "both": "read"}
    assert services_of(session).metrics.stages.keys() == {"totals"}
    assert {name: past_rows(session, name) for name in expected} == expected
    session["orders"].insert([(1, 100)])
    session.commit()
    (total,) = [t for c, t in values(session, "totals") if c == 1]
    assert {row[1] for row in values(session, "both") if row[0] == 1} == {total}


def test_node_shared_with_a_disk_stage_is_written(opened: Opened) -> None:
    session = opened()
    orders = session.input("orders", "customer int, amount int")
    shared = orders.group_by("customer").agg(total="sum(amount)")
    session.stage("small", shared.filter("total < 100").distinct(), persist="memory")
    feed(session, 3)
    assert graph_of(session).unwritten
    session.stage("big", shared.filter("total >= 50").distinct())
    feed(session, 3)
    expected = {name: values(session, name) for name in ("small", "big")}
    session = opened(takeover=True)
    assert session.recovery.stages == {"small": "recompute", "big": "read"}
    assert {name: values(session, name) for name in expected} == expected
    feed(session, 2, more=100)
    session["orders"].insert([(77, 70)])
    session.commit()
    assert (77, 70) in values(session, "small")
    assert (77, 70) in values(session, "big")


def test_stage_moved_to_disk_is_logged_with_its_past(opened: Opened) -> None:
    session = opened()
    define(session, "memory")
    feed(session)
    expected = past_rows(session, "totals")
    define(session, "disk")
    assert past_rows(session, "totals") == expected
    assert session["totals"].explain()
    assert "totals@1" not in session
    assert not graph_of(session).unwritten
    feed(session, 2)
    session.sync()
    assert session.frontiers["totals"].disk == session.now
    expected = {name: past_rows(session, name) for name in ("totals", "ranked")}
    session = opened(takeover=True)
    assert session.recovery.stages == {"totals": "read", "ranked": "read"}
    assert session.recovery.recomputed == 0
    assert {name: past_rows(session, name) for name in expected} == expected


@pytest.mark.parametrize("level", ["memory", "disk"])
def test_no_stage_is_moved_if_another_of_its_cell_fails(
    opened: Opened, tmp_path: Path, level: str
) -> None:
    def fail(row: dict[str, Any]) -> bool:
        raise ArithmeticError(f"not {row['customer']}")

    (tmp_path / "copies").mkdir()
    session = opened(replicas=[f"file://{tmp_path}/copies"])
    define(session, level)
    feed(session)
    expected = past_rows(session, "totals")
    before, head = catalog_of(session), log_of(session).head
    totals = session["orders"].group_by("customer").agg(total="sum(amount)")
    failing = {"totals": totals, "worse": session["orders"].filter(fail)}
    higher = "replicas" if level == "disk" else "disk"
    with pytest.raises(StageError, match="worse"):
        session.define(failing, persist=higher)
    assert catalog_of(session) == before
    assert log_of(session).head == head
    assert "worse" not in session
    working = {"totals": totals, "better": session["orders"].distinct()}
    session.define(working, persist=higher)
    assert values(session, "better") == values(session, "orders")
    assert catalog_of(session)["totals"].options.persist == higher
    assert past_rows(session, "totals") == expected


def test_stage_that_cannot_move_to_disk_stays_in_memory_and_says_so(
    opened: Opened, tmp_path: Path
) -> None:
    refused = str(tmp_path / "refused")

    def double_row(row: Any) -> tuple[int, int]:
        if Path(refused).exists():
            raise ArithmeticError("not now")
        return row.customer, 2 * row.amount

    session = opened()
    orders = session.input("orders", "customer int, amount int")
    twice = orders.map(double_row, "customer int, amount int")
    session.stage("twice", twice, persist="memory")
    feed(session, 2)
    expected = values(session, "twice")
    cell = {"twice": twice, "better": orders.distinct()}
    Path(refused).touch()
    with pytest.raises(StageError, match="not now") as caught:
        session.define(cell, persist="disk")
    assert caught.value.__notes__[1:] == [
        "'twice': stored in memory only, as before, until the cell is run again",
        "stages 'twice', 'better' are defined; do not define them again",
    ]
    assert values(session, "twice") == expected
    assert values(session, "better") == values(session, "orders")
    assert catalog_of(session)["twice"].in_memory
    Path(refused).unlink()
    session.define(cell, persist="disk")
    assert not catalog_of(session)["twice"].in_memory
    feed(session, 1, more=7)
    assert len(values(session, "twice")) == len(expected) + 3


def test_persist_cannot_be_lowered_from_disk_to_memory(opened: Opened) -> None:
    session = opened()
    define(session, None)
    feed(session)
    with pytest.raises(
        StageError, match="persist cannot be lowered from 'disk' to 'memory'"
    ) as caught:
        define(session, "memory")
    assert "session.drop('totals')" in (caught.value.hint or "")
    assert not graph_of(session).unwritten
    define(session, None)
    edited = session["orders"].group_by("customer").agg(total="max(amount)")
    session.define({"totals": edited}, persist="memory")
    assert graph_of(session).unwritten


def test_omitted_persist_keeps_the_level(opened: Opened) -> None:
    session = opened()
    define(session, "memory")
    feed(session, 1)
    define(session, None)
    assert graph_of(session).unwritten
    assert catalog_of(session)["totals"].in_memory


def test_reader_of_a_memory_stage_is_refused(opened: Opened) -> None:
    session = opened()
    define(session, "memory")
    feed(session)
    reader = opened(mode="r")
    assert values(reader, "orders") == values(session, "orders")
    for at in (None, session.now, 1):
        with pytest.raises((TimeError, CorruptLogError), match="memory"):
            reader["totals"].rows(at=at)


@pytest.mark.parametrize(
    ("persist", "message", "hint"),
    [
        ("tape", "persist='tape' is unknown", "memory, disk or replicas"),
        ("replicas", "this log has no replicas", "open it with replicas="),
    ],
)
def test_unavailable_level_is_refused(
    opened: Opened, persist: str, message: str, hint: str
) -> None:
    session = opened()
    with pytest.raises(StageError, match=message) as caught:
        define(session, persist)
    assert hint in (caught.value.hint or "")
    assert "totals" not in session


def test_nondeterministic_stage_cannot_be_in_memory(opened: Opened) -> None:
    session = opened()
    numbers = session.input("numbers", "x int")
    with pytest.raises(StageError, match="cannot be recomputed"):
        session.stage(
            "drawn", numbers.map(lambda r: (r.x,), "x int"), nondeterministic=True, persist="memory"
        )


KILLED = """
import os, signal, sys
import nosync_nb
session = nosync_nb.open(sys.argv[1])
orders = session.input("orders", "customer int, amount int")
totals = orders.group_by("customer").agg(total="sum(amount)", n="count(*)")
session.stage("totals", totals, persist="memory")
for epoch in range(20):
    orders.insert([(c, epoch) for c in range(epoch)])
    session.commit()
print([[list(row) for row in session["totals"].rows(at=e)] for e in range(21)], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_memory_stage_of_a_killed_process_is_recomputed(opened: Opened, tmp_path: Path) -> None:
    script = [sys.executable, "-c", KILLED, str(tmp_path / "log")]
    killed = subprocess.run(script, capture_output=True, text=True, check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    expected = json.loads(killed.stdout)
    session = opened(takeover=True)
    found = [[list(row) for row in session["totals"].rows(at=e)] for e in range(21)]
    assert expected == found
    assert session.recovery.stages["totals"] == "recompute"


def test_memory_stage_without_its_function_is_stale_until_redefined(
    opened: Opened, tmp_path: Path
) -> None:
    session = opened()
    numbers = session.input("numbers", "x int")
    double = numbers.map(lambda row: (2 * row.x,), "x int")
    session.stage("double", double, persist="memory")
    session.stage("read", session["double"].filter("x > 2"))
    numbers.insert([(1,), (2,)])
    session.commit()
    session.close()
    (tmp_path / "key").unlink()
    session = opened()
    assert session.recovery.stages == {"double": "stale", "read": "stale"}
    for at in (None, 1):
        with pytest.raises(TimeError, match="in memory only"):
            session["double"].rows(at=at)
    assert values(session, "read", 1) == [(4,)]
    double = session["numbers"].map(lambda row: (2 * row.x,), "x int")
    session.define({"double": double, "read": double.filter("x > 2")}, persist="memory")
    assert values(session, "double") == [(2,), (4,)]
    assert values(session, "read") == [(4,)]


def test_memory_stage_can_be_renamed_and_dropped(opened: Opened) -> None:
    session = opened()
    define(session, "memory")
    feed(session)
    expected = past_rows(session, "totals")
    session.rename("totals", "sums")
    assert past_rows(session, "sums") == expected
    unwritten = graph_of(session).unwritten
    assert unwritten
    session["orders"].insert([(1, 1)])
    session.commit()
    expected = past_rows(session, "sums")
    session = opened(takeover=True)
    assert past_rows(session, "sums") == expected
    session.drop("sums", cascade=True)
    assert not graph_of(session).unwritten


def double(row: Any) -> tuple[int, int]:
    """Calls a service that may be down."""
    import os

    if os.environ.get("SERVICE") == "down":
        raise ValueError("the service is down")
    return (row.customer, row.amount * 2)


def draw_random(row: Any) -> tuple[int, float]:
    """Returns another result each time."""
    import random

    return (row.customer, random.random())


DOUBLE = "customer int, amount int"


def delete_parts(session: Session, names: set[str]) -> None:
    assert names
    session.close()
    for name in names:
        Path(session.path, "layers", name).unlink()


def test_log_opens_although_a_memory_stage_fails(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened()
    orders = session.input("orders", "customer int, amount int")
    session.stage("twice", orders.map(double, DOUBLE), persist="memory")
    session.stage("sums", session["twice"].group_by("customer").agg(total="sum(amount)"))
    session.stage("alone", orders.filter("customer > 1"))
    feed(session, 2)
    session.close()
    monkeypatch.setenv("SERVICE", "down")
    session = opened()
    assert session.recovery.stages == {"twice": "stale", "sums": "stale", "alone": "read"}
    assert "the service is down" in session.recovery.reasons["twice"]
    feed(session, 2, more=100)
    assert len(values(session, "alone")) == 58
    monkeypatch.delenv("SERVICE")
    twice = session["orders"].map(double, DOUBLE)
    (report, *_) = session.define({"twice": twice}, persist="memory")
    assert report.status == "changed"
    assert values(session, "twice") == sorted((c, 2 * a) for c, a in values(session, "orders"))
    sums: dict[int, int] = {}
    for customer, amount in values(session, "twice"):
        sums[customer] = sums.get(customer, 0) + amount
    assert values(session, "sums") == sorted(sums.items())


def test_memory_stage_over_a_caught_up_stage_has_all_rows(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened()
    orders = session.input("orders", "customer int, amount int")
    session.stage("twice", orders.map(double, DOUBLE), persist="memory")
    session.stage("sums", session["twice"].group_by("customer").agg(total="sum(amount)"))
    session.stage("some", session["sums"].filter("total >= 0").distinct(), persist="memory")
    feed(session, 2)
    session.close()
    monkeypatch.setenv("SERVICE", "down")
    session = opened()
    feed(session, 1, more=100)
    session.close()
    monkeypatch.delenv("SERVICE")
    session = opened()
    assert values(session, "sums") != []
    assert values(session, "some") == values(session, "sums")
    assert past_rows(session, "some")[1] == past_rows(session, "sums")[1]
    assert session.recovery.stages["some"] == "recompute"
    feed(session, 2, more=7)
    assert values(session, "some") == values(session, "sums")


def test_stage_over_a_memory_stage_over_lost_files_is_recomputed(opened: Opened) -> None:
    session = opened()
    orders = session.input("orders", "customer int, amount int")
    totals = orders.group_by("customer").agg(total="sum(amount)")
    session.stage("kept", totals)
    session.stage("over", session["kept"].filter("total > 3").distinct(), persist="memory")
    session.stage("last", session["over"].group_by("customer").agg(n="max(total)"))
    feed(session)
    expected = {name: past_rows(session, name) for name in ("kept", "over", "last")}
    delete_parts(session, files_with(session, "kept") | files_with(session, "last"))
    session = opened()
    assert {name: past_rows(session, name) for name in expected} == expected
    feed(session, 2, more=5)
    assert len(values(session, "last")) == len(values(session, "over"))
    session.close()
    assert opened().recovery.stages["last"] == "read"


def test_memory_stage_over_lost_memoised_rows_is_stale(opened: Opened) -> None:
    session = opened()
    orders = session.input("orders", "customer int, amount int")
    kept = orders.map(draw_random, "customer int, amount double")
    session.stage("kept", kept, nondeterministic=True)
    over = session["kept"].group_by("customer").agg(top="max(amount)")
    session.stage("over", over, persist="memory")
    session.stage("last", session["over"].filter("top >= 0"))
    session.stage("alone", orders.group_by("customer").agg(total="sum(amount)"))
    feed(session, 3)
    delete_parts(session, files_with(session, "kept"))
    session = opened()
    stages = {"kept": "stale", "over": "stale", "last": "stale", "alone": "read"}
    assert session.recovery.stages == stages
    feed(session, 2, more=100)
    kept = session["orders"].map(draw_random, "customer int, amount double")
    session.stage("kept", kept, nondeterministic=True)
    tops: dict[int, float] = {}
    for customer, amount in values(session, "kept"):
        tops[customer] = max(tops.get(customer, 0.0), amount)
    assert values(session, "over") == values(session, "last") == sorted(tops.items())


def test_reader_of_a_lost_version_in_memory_is_stale(opened: Opened) -> None:
    session = opened()
    orders = session.input("orders", "customer int, amount int")
    totals = orders.group_by("customer").agg(total="sum(amount)")
    session.stage("totals", totals, persist="memory")
    feed(session, 2)
    totals = orders.group_by("customer").agg(total="max(amount)")
    session.stage("totals", totals, persist="memory")
    session.stage("both", orders.join(session["totals@1"], on="customer"))
    session.stage("few", session["totals@1"].filter("total > 3").distinct(), persist="memory")
    feed(session, 1)
    expected, epoch = values(session, "both"), session.now
    session.close()
    for more in (100, 200):
        session = opened()
        assert session.recovery.stages == {"totals": "recompute", "both": "stale", "few": "stale"}
        for name in ("both", "few"):
            assert "was in memory only and is lost" in session.recovery.reasons[name]
        feed(session, 1, more=more)
        assert values(session, "both", epoch) == expected
        with pytest.raises(TimeError, match="is stale"):
            session["both"].rows()
        session.close()


def test_stage_that_became_nondeterministic_is_logged(opened: Opened) -> None:
    session = opened()
    orders = session.input("orders", "customer int, amount int")
    for name in ("declared", "detected"):
        session.stage(name, orders.map(double, DOUBLE), persist="memory")
    feed(session, 2)
    declared = orders.map(draw_random, "customer int, amount double")
    session.stage("declared", declared, nondeterministic=True)
    services_of(session).definitions.demote("detected")
    feed(session, 1)
    expected = {name: past_rows(session, name) for name in ("declared", "detected")}
    session.close()
    session = opened()
    assert session.recovery.stages == {"declared": "read", "detected": "read"}
    assert {name: past_rows(session, name) for name in expected} == expected
    detected = session["orders"].map(double, DOUBLE)
    session.define({"detected": detected}, persist="memory")
    assert not catalog_of(session)["detected"].in_memory


def test_stage_recorded_as_memory_and_nondeterministic_is_stale_at_opening(opened: Opened) -> None:
    session = opened()
    orders = session.input("orders", "customer int, amount int")
    definitions = {"declared": orders.map(draw_random, "customer int, amount double")}
    both = StageOptions(nondeterministic=True, persist="memory")
    services_of(session).definitions.define_checked(definitions, both)
    session.stage("over", session["declared"].distinct())
    feed(session, 2)
    session.close()
    session = opened()
    assert session.recovery.stages == {"declared": "stale", "over": "stale"}
    assert "run its cell" in session.recovery.reasons["declared"]
    definitions = session["orders"].map(draw_random, "customer int, amount double")
    session.stage("declared", definitions, nondeterministic=True)
    assert not catalog_of(session)["declared"].in_memory
    assert values(session, "over") == sorted(set(values(session, "declared")))


def test_past_of_a_memory_stage_is_limited_by_replay_rows(opened: Opened) -> None:
    session = opened()
    define(session, "memory")
    limits = services_of(session).limits
    limits.replay_rows = 200
    log = graph_of(session).named["totals"].log
    assert log is not None
    sizes = []
    for _ in range(6):
        feed(session)
        expected = {name: past_rows(session, name) for name in ("totals", "ranked")}
        checkpoint_now(session)
        tail = tails_of(history_of(session))[log]
        sizes.append(sum(len(c.data if isinstance(c, EncodedChange) else c) for _, c in tail))
        for name, each in expected.items():
            now = past_rows(session, name)
            assert now.items() <= each.items()
            assert session.now in now
    retained = past_rows(session, "totals")
    assert 0 not in retained
    assert 1 not in retained
    with pytest.raises(TimeError, match="no longer retained separately"):
        session["totals"].rows(at=1)
    assert max(sizes[2:]) <= min(sizes[2:]) + 200
    assert sizes[-1] <= len(retained[session.now]) + 200
    feed(session)
    totals: dict[int, int] = {}
    for customer, amount in values(session, "orders"):
        totals[customer] = totals.get(customer, 0) + amount
    assert values(session, "totals") == sorted(totals.items())
    assert past_rows(session, "totals")[session.now - 6] == retained[session.now - 6]


def test_past_needed_by_a_stale_stage_is_retained(opened: Opened) -> None:
    session = opened()
    orders = session.input("orders", "customer int, amount int")
    session.stage("sums", orders.group_by("customer").agg(total="sum(amount)"), persist="memory")
    session.stage("tops", orders.group_by("customer").agg(top="max(amount)", least="min(amount)"))
    both = session["sums"].join(session["tops"], on="customer").filter("least >= 0")
    session.stage("both", both)
    services_of(session).limits.replay_rows = 10
    feed(session, 3)
    session.stage("tops", orders.group_by("customer").agg(top="max(amount)"))
    assert "both" in session.stale
    feed(session, 3, more=100)
    before = past_rows(session, "sums")
    checkpoint_now(session)
    assert {e: rows for e, rows in past_rows(session, "sums").items() if e >= 3}.keys() == {
        3,
        4,
        5,
        6,
    }
    assert past_rows(session, "sums").items() <= before.items()
    session.drop("both")
    checkpoint_now(session)
    assert len(past_rows(session, "sums")) < 4


def test_memory_stage_over_lost_files_over_a_memory_stage_is_recomputed(opened: Opened) -> None:
    session = opened()
    orders = session.input("orders", "customer int, amount int")
    totals = orders.group_by("customer").agg(total="sum(amount)")
    session.stage("totals", totals, persist="memory")
    session.stage("over", session["totals"].filter("total > 3").distinct())
    session.stage("few", session["over"].group_by().agg(n="count(*)"), persist="memory")
    session.stage("last", session["few"].distinct())
    feed(session)
    expected = {name: past_rows(session, name) for name in ("totals", "over", "few", "last")}
    delete_parts(session, files_with(session, "over"))
    session = opened()
    stages = session.recovery.stages
    assert (stages["last"], stages["few"]) == ("read", "recompute")
    assert stages["over"] in ("recompute", "extend")
    for name, each in expected.items():
        assert past_rows(session, name) == each
    feed(session, 2, more=5)
    assert values(session, "few") == [(len(values(session, "over")),)]
