"""The difference of two collections that do not both go on in one session, against counted rows."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from checks.logs import everything
from faults.interleaving import at_every_line, lines
from internals import inside
from soak import tried

import nosync_nb
from nosync_nb import Collection, Session, StageError, TimeError

MODULES = ["session/between", "session/feed"]

Rows = Counter[tuple[Any, ...]]


@pytest.fixture
def session(session: Session) -> Session:
    rows = session.input("rows", "k string, v int")
    rows.insert([("a", 1), ("b", 2), ("b", 2)])
    session.commit()
    return session


@pytest.fixture
def branch(session: Session) -> Iterator[Session]:
    with session.branch("other") as branch:
        yield branch


def sides(a: Rows, b: Rows) -> Rows:
    """What the difference of two has to be."""
    made: Rows = Counter()
    for less, more, name in ((b, a, "a"), (a, b, "b")):
        for row, count in (more - less).items():
            made[(*row, name)] = count
    return made


def rows_of(collection: Any) -> Rows:
    return Counter(map(tuple, collection.rows()))


def commit(session: Session, *rows: tuple[str, int]) -> None:
    session.inputs["rows"].insert(list(rows))
    session.commit()


class Log:
    """A session with the rows of its input at every epoch, and the bound of its stage."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.epochs: list[Rows] = [Counter(), Counter([("a", 1), ("b", 2), ("b", 2)])]
        self.least = 0
        self._define()

    @property
    def rows(self) -> Rows:
        """What the stage has."""
        return Counter({row: n for row, n in self.epochs[-1].items() if row[1] > self.least})

    def step(self, choose: Random) -> bool:
        """Some epoch, edit or rewind; whether who listens is told of it."""
        what = choose.randrange(8)
        if what == 0:
            self.least = choose.randrange(3)
            self._define()
        elif what == 1 and len(self.epochs) > 2:
            to = choose.randrange(1, len(self.epochs) - 1)
            self.session.rewind(to=to)
            del self.epochs[to + 1 :]
        else:
            self._commit(choose)
        return what > 0

    def _commit(self, choose: Random) -> None:
        now = Counter(self.epochs[-1])
        gone = choose.choice(sorted(now.elements())) if now and choose.random() < 0.5 else None
        came = (choose.choice("abc"), choose.randrange(4))
        with self.session.epoch():
            if gone is not None:
                self.session.inputs["rows"].remove([gone])
                now[gone] -= 1
            self.session.inputs["rows"].insert([came])
            now[came] += 1
        self.epochs.append(+now)

    def _define(self) -> None:
        self.session.stage("some", self.session["rows"].filter(f"v > {self.least}"))


@pytest.mark.parametrize("seed", range(tried(3, 400)))
def test_it_is_the_difference_after_any_commits_edits_and_rewinds_of_both(
    session: Session, branch: Session, seed: int
) -> None:
    choose = Random(seed)
    logs = [Log(session), Log(branch)]
    made = session.compare("some", branch["some"]).collection
    loose = session.compare(session["rows"].filter("v > 1"), branch["rows"]).collection
    fixed = session.compare("rows", at=(1, None)).collection
    heard: Rows = Counter()

    def hears(_: int, changes: Any) -> None:
        for row in changes.to_pylist():
            heard[tuple(row.values())[:-1]] += row["diff"]

    made.inspect(hears)
    heard.update(rows_of(made))
    for _ in range(30):
        if not choose.choice(logs).step(choose):
            made.count()
        wanted = sides(logs[0].rows, logs[1].rows)
        assert wanted == Counter({row: n for row, n in heard.items() if n})
        if choose.random() < 0.5:
            a, b = (log.epochs[-1] for log in logs)
            assert wanted == rows_of(made)
            assert sides(Counter({r: n for r, n in a.items() if r[1] > 1}), b) == rows_of(loose)
            assert sides(logs[0].epochs[1], a) == rows_of(fixed)


def test_it_is_read_as_any_collection(session: Session, branch: Session) -> None:
    made = session.compare("rows", branch["rows"]).collection
    commit(branch, ("b", 2), ("c", 3), ("c", 3))
    assert made.schema.names == ("k", "v", "side")
    assert (made.name, made.count(), made.history()) == (None, 3, [])
    assert [tuple(row) for row in made.head(1)] == [("b", 2, "b")]
    assert made.to_arrow().num_rows == 3
    per = made.group_by("k").agg(n="count(*)")
    assert [tuple(row) for row in per.rows()] == [("b", 1), ("c", 2)]
    dated = made.at(None)
    assert dated.count() == 3
    assert "rows at epoch 2 of" in made.explain()
    commit(session, ("c", 3))
    assert [tuple(row) for row in per.rows()] == [("b", 1), ("c", 1)]
    with pytest.raises(TimeError, match="no past"):
        dated.rows()
    with pytest.raises(TimeError, match="no past"):
        made.rows(at=1)
    with pytest.raises(StageError, match="no history"):
        made.changes()
    with pytest.raises(StageError, match="this process alone"):
        made.to_spark()
    with pytest.raises(StageError, match="another session"):
        session.stage("kept", made)
    with pytest.raises(StageError, match="computed when it is read"):
        per.inspect(print)
    assert session.compare(made, made).equal
    with pytest.raises(StageError, match="not both collections of a session"):
        _ = session.compare(made, made).collection


def test_two_epochs_differ_in_a_collection_that_stays(session: Session) -> None:
    commit(session, ("c", 3))
    made = session.compare("rows", at=(1, 2)).collection
    commit(session, ("d", 4))
    assert rows_of(made) == Counter([("c", 3, "b")])
    gone = session.compare("rows", at=(3, 1)).collection
    session.rewind(to=2)
    commit(session, ("e", 5))
    assert rows_of(made) == Counter([("c", 3, "b")])
    with pytest.raises(TimeError, match="epoch 3 was left"):
        gone.rows()


def test_a_side_as_of_an_epoch_is_no_other_version(session: Session) -> None:
    session.stage("some", session["rows"].filter("v > 1"))
    stays, made = (session.compare("some", at=(1, b)).collection for b in (1, None))
    assert stays.count() == made.count() == 0
    unread = session.compare("some", at=(1, None)).collection
    session.stage("some", session["rows"].filter("v > 0"))
    assert rows_of(made) == Counter([("a", 1, "b")])
    assert stays.count() == 0
    with pytest.raises(StageError, match="edited since"):
        unread.rows()
    session.drop("some", cascade=True)
    with pytest.raises(StageError, match="there is no stage"):
        made.rows()


def test_neither_log_has_anything_of_it(session: Session, branch: Session) -> None:
    commit(branch, ("c", 3))
    session.sync()
    branch.sync()
    before = [everything(each.path) for each in (session, branch)]
    epochs = [session.now, branch.now]
    made = session.compare("rows", branch["rows"]).collection
    made.inspect(lambda *_: None)
    assert made.count() == 1
    assert before == [everything(each.path) for each in (session, branch)]
    assert epochs == [session.now, branch.now]
    assert [*session.inputs] == [*branch.inputs] == ["rows"]


def test_it_ends_when_either_is_closed(session: Session) -> None:
    branch = session.branch("other")
    made = session.compare("rows", branch["rows"]).collection
    heard: list[int] = []
    made.inspect(lambda epoch, _: heard.append(epoch))
    commit(branch, ("c", 3))
    assert len(heard) == 1
    branch.close()
    with pytest.raises(StageError, match="has ended"):
        made.rows()
    commit(session, ("c", 3))
    assert len(heard) == 1
    assert inside(session).listeners.subscribers == 0
    with session.branch("other2", at=1) as again:
        assert rows_of(session.compare("rows", again["rows"]).collection) == Counter(
            [("c", 3, "a")]
        )


def test_it_is_there_again_after_a_restart_if_it_is_asked_for(tmp_path: Path) -> None:
    for round_ in range(2):
        with nosync_nb.open(tmp_path / "log") as session:
            session.input("rows", "k string, v int")
            commit(session, ("a", round_))
            if "other" not in session.branches:
                session.branch("other", at=1).close()
            with nosync_nb.open(session.branches["other"].path) as branch:
                assert [*session.inputs] == ["rows"]
                made = session.compare("rows", branch["rows"]).collection
                assert made.count() == 0
                commit(branch, ("a", round_ + 1))
                assert rows_of(made) == Counter([("a", round_ + 1, "b")])


def test_a_reader_of_a_log_is_a_side(session: Session, branch: Session) -> None:
    with nosync_nb.open(branch.path, mode="r") as reader:
        made = session.compare("rows", reader["rows"]).collection
        assert made.count() == 0
        commit(branch, ("c", 3))
        assert rows_of(made) == Counter([("c", 3, "b")])


def test_what_waits_for_a_commit_is_told(session: Session, branch: Session) -> None:
    made = session.compare("rows", branch["rows"]).collection
    made.inspect(lambda *_: None)
    branch.inputs["rows"].insert([("c", 3)])
    commit(session, ("c", 3))
    with pytest.raises(StageError, match="not committed"):
        made.rows()
    branch.commit()
    assert made.count() == 0


def test_it_goes_with_who_holds_it(session: Session, branch: Session) -> None:
    told = session.compare("rows", branch["rows"])
    told.collection.inspect(lambda *_: None)
    gone = weakref.ref(told.collection)
    assert inside(branch).listeners.subscribers == 1
    del told
    gc.collect()
    assert gone() is None
    assert inside(session).listeners.subscribers == 0
    assert inside(branch).listeners.subscribers == 0


def test_an_interrupt_at_any_step_loses_nothing(session: Session, branch: Session) -> None:
    made = session.compare("rows", branch["rows"]).collection
    a, b = rows_of(session["rows"]), rows_of(branch["rows"])
    assert rows_of(made) == sides(a, b)
    step, done = 0, False
    while not done:
        commit(session, ("s", step % 5))
        commit(branch, ("s", step % 3))
        a[("s", step % 5)] += 1
        b[("s", step % 3)] += 1

        def visit(number: int, wanted: int = step) -> None:
            if number == wanted:
                raise KeyboardInterrupt

        try:
            with lines(MODULES, visit):
                made.count()
            done = True
        except KeyboardInterrupt:
            pass
        step += tried(3, 1)
        assert rows_of(made) == sides(a, b)
    assert step > 50


def test_commits_of_another_thread_at_any_step_are_taken_in(
    session: Session, branch: Session
) -> None:
    made = session.compare("rows", branch["rows"]).collection
    made.count()
    commit(session, ("t", 0))
    results = at_every_line(MODULES, made.count, lambda: commit(branch, ("t", 1)))
    assert len(results) > 20
    assert made.count() == len(results) + 1


def test_a_change_costs_what_changed(session: Session, branch: Session) -> None:
    commit(session, *((f"k{i}", i) for i in range(20_000)))
    made: Collection = session.compare("rows", branch["rows"]).collection
    assert made.count() == 20_000
    heard: list[int] = []
    made.inspect(lambda _, changes: heard.append(changes.num_rows))
    commit(session, ("one", 1))
    commit(branch, ("one", 1), ("two", 2))
    assert heard == [1, 2]
