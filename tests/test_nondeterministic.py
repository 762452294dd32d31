"""Stages whose functions may give another result next time: what they gave is kept."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import model
import programs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import histories

import nosync_nb
from nosync_nb import Collection, ExpressionError, Session, StageError, auditing
from nosync_nb.files import File, Files


def tagged(row: Any) -> tuple[Any, int]:
    """Another result at every call."""
    return (row[0], random.getrandbits(60))


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with nosync_nb.open(tmp_path / "log") as session:
        yield session


def bag(collection: Collection) -> dict[Any, int]:
    return dict(Counter(tuple(row) for row in collection.rows()))


def define(session: Session, **stages: Collection) -> Any:
    return session.define(stages, nondeterministic=True)


def test_a_retraction_takes_back_what_was_given(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    define(session, tags=numbers.map(tagged, "n int, tag bigint"))
    tags = session["tags"]
    numbers.insert([(1,), (1,), (2,)])
    session.commit()
    first = bag(tags)
    assert sorted(first.values()) == [1, 2], "copies of a row share what was made of it"
    numbers.remove([(1,)])
    numbers.insert([(3,)])
    session.commit()
    second = bag(tags)
    assert {row: n for row, n in second.items() if row[0] != 3} == dict.fromkeys(first, 1)
    numbers.remove([(1,), (2,), (3,)])
    session.commit()
    assert bag(tags) == {}
    numbers.insert([(1,)])
    session.commit()
    assert set(bag(tags)).isdisjoint(first), "what was forgotten is asked for anew"


def test_a_stage_may_be_declared_by_a_word_of_stage(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    with pytest.raises(ExpressionError, match="gives something else each time"):
        session.stage("tags", numbers.select("n", "uuid() AS id"))
    tags = session.stage("tags", numbers.map(tagged, "n int, tag bigint"), nondeterministic=True)
    numbers.insert([(1,), (2,)])
    session.commit()
    numbers.remove([(1,), (2,)])
    session.commit()
    assert bag(tags) == {}


def test_a_threshold_takes_back_what_it_gave(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    define(session, some=numbers.threshold(lambda n: random.randrange(1, 1000)))
    numbers.insert([(1,), (1,), (1,)])
    session.commit()
    for _ in range(3):
        assert session["some"].count() > 0
        numbers.remove([(1,)])
        session.commit()
    assert bag(session["some"]) == {}


def test_what_was_given_survives_a_restart(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("numbers", "n int")
        define(session, tags=numbers.map(tagged, "n int, tag bigint"))
        numbers.insert([(n,) for n in range(5)])
        session.commit()
        before = bag(session["tags"])
    with nosync_nb.open(tmp_path / "log") as session:
        assert session.recovery.recomputed == 0
        session["numbers"].remove([(n,) for n in range(4)])
        session.commit()
        assert bag(session["tags"]) == {row: 1 for row in before if row[0] == 4}


@given(st.data(), programs.programs(["a", "b"], depth=3))
def test_kept_stages_equal_deterministic_ones(
    data: st.DataObject, program: programs.Program
) -> None:
    """A function that happens to be deterministic gives the same, kept or not."""
    kinds = {"a": ("int", "int"), "b": ("int", "int")}
    history = data.draw(histories(kinds, pools=dict.fromkeys(kinds, programs.ROWS)))

    def spread(row: Any) -> list[Any]:
        return [(row.c1, row.c0)] * ((row.c0 or 0) % 3)

    def spread_model(row: Any) -> list[Any]:
        return [(row[1], row[0])] * ((row[0] or 0) % 3)

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(File, "sync", lambda file: None)
        patch.setattr(Files, "sync_folder", lambda files, path: None)
        with nosync_nb.open(f"{folder}/log") as session:
            inputs = {name: session.input(name, programs.COLUMNS) for name in kinds}
            made = programs.build(program, inputs).filter("c0 is not null")
            define(session, kept=made.flat_map(spread, programs.COLUMNS))
            for epoch in history:
                for name, calls in epoch.calls.items():
                    for change in calls:
                        getattr(inputs[name], "insert" if change.insert else "remove")(change.rows)
                session.commit()
                held = model.filtered(
                    programs.run(program, epoch.after), lambda r: r[0] is not None
                )
                wanted = model.flat_mapped(held, spread_model)
                found = model.bag(session["kept"].rows())
                assert found == wanted


def test_expressions_that_change_are_refused_unless_kept(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    with pytest.raises(ExpressionError, match=r"'dice'.*each time"):
        session.stage("dice", numbers.with_columns(r="rand()"))
    assert "dice" not in session.stages
    loop = numbers.iterate(lambda v: v.map(lambda row: (row.n,), "n int").distinct())
    with pytest.raises(StageError, match="inside a loop"):
        define(session, loop=loop)


# -- audits ------------------------------------------------------------------------------------


def commit_until_audited(session: Session) -> None:
    """Empty epochs up to the next audit."""
    session.commit()
    while session.now % auditing.AUDIT_EVERY:
        session.commit()


def noisy(row: Any) -> tuple[Any, int]:
    """Not deterministic, and not declared so."""
    return (row[0], random.getrandbits(60))


@pytest.mark.parametrize("counted", [False, True])
def test_an_audit_demotes_a_stage_that_is_not_deterministic(
    session: Session, counted: bool
) -> None:
    numbers = session.input("numbers", "n int")
    tags = numbers.map(noisy, "n int, tag bigint")
    stage = session.stage("tags", tags.group_by("tag").count() if counted else tags)
    above = session.stage("above", session["tags"].agg(n="count(*)"))
    numbers.insert([(n,) for n in range(20)])
    with pytest.warns(UserWarning, match=r"'tags' is not deterministic"):
        commit_until_audited(session)
    assert bag(above) == {(20,): 1}
    numbers.remove([(n,) for n in range(19)])
    session.commit()
    assert len(stage.rows()) == 1
    assert bag(above) == {(1,): 1}
    session.stage("tags", tags.group_by("tag").count() if counted else tags)
    numbers.remove([(19,)])
    session.commit()
    assert bag(session["tags"]) == {}, "the cell may run again: it stays as it was found"


def test_an_audit_finds_a_function_that_changes_with_the_world(
    session: Session, tmp_path: Path
) -> None:
    rate = tmp_path / "rate"
    rate.write_text("2")
    path = str(rate)

    def priced(row: Any) -> tuple[int, int]:
        return (row.n, row.n * int(Path(path).read_text()))

    numbers = session.input("numbers", "n int")
    session.stage("prices", numbers.map(priced, "n int, price int"))
    numbers.insert([(1,), (2,)])
    commit_until_audited(session)
    rate.write_text("3")
    with pytest.warns(UserWarning, match="now gives"):
        commit_until_audited(session)
    numbers.remove([(1,)])
    session.commit()
    assert bag(session["prices"]) == {(2, 6): 1}


def test_an_audit_is_content_with_a_deterministic_stage(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    session.stage("twice", numbers.flat_map(lambda row: [(row.n,), (row.n,)], "n int"))
    session.stage("odd", numbers.filter(lambda row: row.n % 2))
    session.stage("none", numbers.filter(lambda row: False))
    numbers.insert([(n,) for n in range(10)] * 2)
    commit_until_audited(session)
    assert auditing.audit(session) == []
    assert session["twice"].count() == 40
