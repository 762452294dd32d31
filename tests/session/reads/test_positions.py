"""Positions: a consumer that follows by them has the rows of the stage, whatever happened."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from nosync_nb import Collection, Session
from nosync_nb.collections.position import Epoch, Position
from nosync_nb.errors import SchemaError, TimeError

Open = Callable[..., Session]

DEFINITIONS = (
    lambda rows: rows.group_by("k").agg(s="sum(v)"),
    lambda rows: rows.filter("v > 2").group_by("k").agg(s="sum(v)"),
    lambda rows: rows.select("k", "cast(v * 2 as bigint) as s"),
)


class Consumer:
    """What a sink holds: the rows that it has applied, and its position."""

    def __init__(self, stage: Collection) -> None:
        self.rows = Counter(map(tuple, stage.rows()))
        self.after: Any = stage.position

    def take(self, stage: Collection) -> None:
        for *row, diff in (each.values() for each in stage.changes(self.after).to_pylist()):
            self.rows[tuple(row)] += diff
        self.rows = Counter({row: n for row, n in self.rows.items() if n})
        self.after = stage.position

    def check(self, stage: Collection) -> None:
        self.take(stage)
        assert self.rows == Counter(map(tuple, stage.rows()))


@pytest.fixture
def rows(session: Session) -> Any:
    rows = session.input("rows", "k int, v int")
    session.stage("sums", DEFINITIONS[0](rows))
    for e in range(10):
        rows.insert([(e % 3, e)])
        session.commit()
    return rows


@pytest.mark.filterwarnings("ignore:.*they will be counted twice")  # that is intended
@pytest.mark.parametrize("seed", range(30))
def test_consumers_follow_over_rewinds_and_redefinitions(opened: Open, seed: int) -> None:
    rng = Random(seed)
    session = opened()
    session.stage("sums", DEFINITIONS[0](session.input("rows", "k int, v int")))
    consumers = [Consumer(session["sums"]) for _ in range(3)]
    for number in range(40):
        event = rng.choice(["insert", "insert", "insert", "rewind", "define", "take", "open"])
        if event == "insert":
            session.inputs["rows"].insert([(rng.randrange(3), rng.randrange(9))])
            session.commit()
        elif event == "rewind":
            session.rewind(to=rng.randrange(max(session.now - 4, 0), session.now + 1))
        elif event == "define":
            session.stage("sums", rng.choice(DEFINITIONS)(session["rows"]))
        elif event == "open" and number % 3 == 0:
            session.close()
            session = opened()
            for consumer in consumers:
                consumer.after = Position.parse(str(consumer.after))
        else:
            rng.choice(consumers).check(session["sums"])
    for consumer in consumers:
        consumer.check(session["sums"])


def test_epoch_numbers_remember_what_they_denote(session: Session, rows: Any) -> None:
    at = session.now
    before = Counter(map(tuple, session["sums"].rows()))
    assert at == 10
    session.rewind(to=5)
    for e in range(8):
        rows.insert([(7, e)])
        committed = session.commit()
    assert (committed, session.now) == (13, 13)
    for *row, diff in (each.values() for each in session["sums"].changes(after=at).to_pylist()):
        before[tuple(row)] += diff
    assert +before == Counter(map(tuple, session["sums"].rows()))
    with pytest.raises(TimeError, match="epoch 10 was undone by a rewind"):
        session["sums"].rows(at=at)
    assert session["sums"].rows(at=10) != session["sums"].rows()


def test_changes_after_rewind_cost_the_changes(
    session: Session, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the rows: both histories are read from their last common epoch."""
    rows.insert([(100 + i, i) for i in range(1000)])
    session.commit()
    position = session["rows"].position
    rows.insert([(1, 1)])
    session.commit()
    later = session["rows"].position
    session.rewind(to=position.epoch)
    rows.insert([(2, 2)])
    session.commit()
    assert session["rows"].changes(after=position).num_rows == 1
    assert session["rows"].changes(after=later).num_rows == 2


def test_stage_that_did_not_exist_had_no_rows(session: Session, rows: Any) -> None:
    at = session.now
    session.stage("late", rows.filter("v > 5"))
    assert session["late"].changes(after=at).num_rows == len(session["late"].rows()) == 4


def test_positions_are_texts_and_epochs_are_integers(session: Session, rows: Any) -> None:
    position = session["sums"].position
    assert Position.parse(str(position)) == position
    assert isinstance(session.now, Epoch)
    assert json.dumps({"at": session.now}) == '{"at": 10}'
    assert type(pickle.loads(pickle.dumps(session.now))) is int
    assert type(session.now + 1) is int
    for text in ("", "x", "a/b/c/d/e", "a/b/1/2", 7):
        with pytest.raises(TimeError, match="is not a position"):
            Position.parse(text)  # type: ignore[arg-type]


def test_position_of_another_log_is_refused(opened: Open) -> None:
    one, other = opened("one"), opened("other")
    for session in (one, other):
        session.input("rows", "k int").insert([(1,)])
        session.commit()
    with pytest.raises(TimeError, match="belongs to log"):
        other["rows"].changes(after=one["rows"].position)


def test_dropped_backup_branch_is_an_error_with_the_place_to_continue(
    session: Session, rows: Any
) -> None:
    position = session["sums"].position
    report = session.rewind(to=5)
    session.drop_branch(report.branch)
    with pytest.raises(TimeError, match="there is no branch with the undone epochs") as error:
        session["sums"].changes(after=position)
    hint = error.value.hint or ""
    text = hint.rsplit(" ", 1)[-1]
    assert session["sums"].changes(after=Position.parse(text)).num_rows == 0


def test_other_columns_are_an_error_and_appended_ones_are_null(session: Session, rows: Any) -> None:
    position = session["sums"].position
    session.stage("sums", rows.group_by("k").agg(s="sum(v)", n="count(*)"))
    changes = session["sums"].changes(after=position).to_pylist()
    assert sorted((each["n"] is None, each["diff"]) for each in changes) == [
        *[(False, 1)] * 3,
        *[(True, -1)] * 3,
    ]
    session.stage("sums", rows.select("v"))
    with pytest.raises(SchemaError, match=r"the columns at the position were \(k int"):
        session["sums"].changes(after=position)


def test_images_pair_the_rows_of_a_key(session: Session) -> None:
    users = session.input("users", "id int, name string", key="id")
    users.insert([(1, "a"), (2, "b")])
    at = session.commit()
    users.upsert([(1, "z"), (3, "c")])
    users.delete([(2,)])
    session.commit()
    found = [tuple(row.values()) for row in users.changes(after=at, images=True).to_pylist()]
    assert sorted(found, key=str) == sorted(
        [
            (1, "a", "update_preimage"),
            (1, "z", "update_postimage"),
            (2, "b", "delete"),
            (3, "c", "insert"),
        ],
        key=str,
    )
    assert found.index((1, "z", "update_postimage")) == 1 + found.index((1, "a", "update_preimage"))


def test_images_need_a_key_and_repeat_rows(session: Session) -> None:
    rows = session.input("rows", "k int, v int")
    rows.insert([(1, 1), (1, 1), (2, 2)])
    at = session.commit()
    rows.remove([(1, 1), (1, 1)])
    rows.insert([(1, 3)])
    session.commit()
    with pytest.raises(SchemaError, match="'rows' has no known key"):
        rows.changes(after=at, images=True)
    found = rows.changes(after=at, images="k").to_pylist()
    assert [(row["v"], row["change"]) for row in found] == [
        (1, "update_preimage"),
        (1, "update_preimage"),
        (3, "update_postimage"),
    ]
    with pytest.raises(SchemaError, match="nope"):
        rows.changes(images=["nope"])
    assert rows.changes(after=session.now, images="k").num_rows == 0
