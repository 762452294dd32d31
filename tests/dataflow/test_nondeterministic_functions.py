"""Nondeterministic stages: results of functions are memoised, so a removal takes them back."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import random_programs
from hypothesis import given
from hypothesis import strategies as st
from internals import catalog_of, services_of
from models import model
from strategies import histories

import nosync_nb
from nosync_nb import Collection, Session, StageError
from nosync_nb.files.filesystem import File, Files
from nosync_nb.session.writes import determinism_check


def random_tag(row: Any) -> tuple[Any, int]:
    """Returns another result at every call."""
    return (row[0], random.getrandbits(60))


def bag(collection: Collection) -> dict[Any, int]:
    return dict(Counter(tuple(row) for row in collection.rows()))


def define(session: Session, **stages: Collection) -> Any:
    return session.define(stages, nondeterministic=True)


def test_retraction_removes_emitted_results(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    define(session, tags=numbers.map(random_tag, "n int, tag bigint"))
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


def test_stage_accepts_nondeterministic_option(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    tags = session.stage(
        "tags", numbers.map(random_tag, "n int, tag bigint"), nondeterministic=True
    )
    numbers.insert([(1,), (2,)])
    session.commit()
    numbers.remove([(1,), (2,)])
    session.commit()
    assert bag(tags) == {}


def test_threshold_retracts_emitted_copies(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    define(session, some=numbers.threshold(lambda n: random.randrange(1, 1000)))
    numbers.insert([(1,), (1,), (1,)])
    session.commit()
    for _ in range(3):
        assert session["some"].count() > 0
        numbers.remove([(1,)])
        session.commit()
    assert bag(session["some"]) == {}


@pytest.mark.fault(36)
def test_emitted_results_survive_restart(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("numbers", "n int")
        define(session, tags=numbers.map(random_tag, "n int, tag bigint"))
        numbers.insert([(n,) for n in range(5)])
        session.commit()
        before = bag(session["tags"])
    with nosync_nb.open(tmp_path / "log") as session:
        assert session.recovery.recomputed == 0
        session["numbers"].remove([(n,) for n in range(4)])
        session.commit()
        assert bag(session["tags"]) == {row: 1 for row in before if row[0] == 4}


@given(st.data(), random_programs.programs(["a", "b"], depth=3))
def test_memoised_stage_equals_deterministic_one(
    data: st.DataObject, program: random_programs.Program
) -> None:
    """A deterministic function gives the same rows with and without memoised results."""
    kinds = {"a": ("int", "int"), "b": ("int", "int")}
    history = data.draw(histories(kinds, pools=dict.fromkeys(kinds, random_programs.ROWS)))

    def spread(row: Any) -> list[Any]:
        return [(row.c1, row.c0)] * ((row.c0 or 0) % 3)

    def spread_model(row: Any) -> list[Any]:
        return [(row[1], row[0])] * ((row[0] or 0) % 3)

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(File, "sync", lambda file: None)
        patch.setattr(Files, "sync_folder", lambda files, path: None)
        with nosync_nb.open(f"{folder}/log") as session:
            inputs = {name: session.input(name, random_programs.COLUMNS) for name in kinds}
            made = random_programs.build(program, inputs).filter("c0 is not null")
            define(session, kept=made.flat_map(spread, random_programs.COLUMNS))
            for epoch in history:
                for name, calls in epoch.calls.items():
                    for change in calls:
                        getattr(inputs[name], "insert" if change.insert else "remove")(change.rows)
                session.commit()
                held = model.filtered(
                    random_programs.run(program, epoch.after), lambda r: r[0] is not None
                )
                wanted = model.flat_mapped(held, spread_model)
                found = model.bag(session["kept"].rows())
                assert found == wanted


def test_memoised_functions_are_refused_in_loop(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    loop = numbers.iterate(lambda v: v.map(lambda row: (row.n,), "n int").distinct())
    with pytest.raises(StageError, match="inside a loop"):
        define(session, loop=loop)


# -- audits ------------------------------------------------------------------------------------


def commit_until_audited(session: Session) -> None:
    """Commits empty epochs up to the next check."""
    session.commit()
    while session.now % determinism_check.AUDIT_EVERY:
        session.commit()


def undeclared_random(row: Any) -> tuple[Any, int]:
    """A nondeterministic function without declaration."""
    return (row[0], random.getrandbits(60))


@pytest.mark.fault(37)
@pytest.mark.parametrize("counted", [False, True])
def test_check_demotes_nondeterministic_stage(session: Session, counted: bool) -> None:
    numbers = session.input("numbers", "n int")
    tags = numbers.map(undeclared_random, "n int, tag bigint")
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


@pytest.mark.fault(37)
def test_check_finds_function_of_changing_file(session: Session, tmp_path: Path) -> None:
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
    with pytest.warns(UserWarning, match="now returns"):
        commit_until_audited(session)
    numbers.remove([(1,)])
    session.commit()
    assert bag(session["prices"]) == {(2, 6): 1}


def test_check_accepts_deterministic_stage(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    session.stage("twice", numbers.flat_map(lambda row: [(row.n,), (row.n,)], "n int"))
    session.stage("odd", numbers.filter(lambda row: row.n % 2))
    session.stage("none", numbers.filter(lambda row: False))
    numbers.insert([(n,) for n in range(10)] * 2)
    commit_until_audited(session)
    assert services_of(session).determinism_checks.audit() == []
    assert session["twice"].count() == 40


def rate_file(path: Path, rate: int) -> str:
    """A file with a rate, for functions that depend on it."""
    path.write_text(str(rate))
    return str(path)


@pytest.mark.fault(37)
@pytest.mark.parametrize("inner", [False, True], ids=["named", "below"])
def test_check_demotes_nondeterministic_reducer(session: Session, inner: bool) -> None:
    numbers = session.input("numbers", "k int, n int")
    made = numbers.group_by("k").reduce(lambda k, r: [(random.getrandbits(60),)], "tag bigint")
    stage = session.stage("tags", made.agg(n="count(*)", tag="max(tag)") if inner else made)
    above = session.stage("above", session["tags"].agg(n="count(*)"))
    numbers.insert([(k, n) for k in range(9) for n in range(3)])
    with pytest.warns(UserWarning, match="'tags' is not deterministic: reduce now returns"):
        commit_until_audited(session)
    assert catalog_of(session)["tags"].options.nondeterministic is True
    assert session["tags@1"].rows(at=1), "what it gave before can be read"
    before = stage.rows()
    commit_until_audited(session)
    assert stage.rows() == before, "it is not asked again, and not demoted twice"
    numbers.remove([(k, n) for k in range(1, 9) for n in range(3)])
    session.commit()
    if not inner:
        assert stage.rows() == [row for row in before if row[0] == 0], "what it gave was kept"
        assert above.rows() == [(1,)]
    numbers.remove([(0, n) for n in range(3)])
    session.commit()
    assert stage.rows() == ([(0, None)] if inner else [])


@pytest.mark.fault(37)
@pytest.mark.parametrize("below", [False, True], ids=["named", "below"])
def test_check_demotes_threshold_of_changing_file(
    session: Session, tmp_path: Path, below: bool
) -> None:
    path = rate_file(tmp_path / "rate", 2)

    def times(n: int) -> int:
        return n * int(Path(path).read_text())

    numbers = session.input("numbers", "n int")
    made = numbers.threshold(times)
    stage = session.stage("some", made.group_by("n").count() if below else made)
    numbers.insert([(1,), (1,), (2,)])
    commit_until_audited(session)
    assert sum(row[-1] if below else 1 for row in stage.rows()) == 6
    rate_file(tmp_path / "rate", 3)
    if below:  # nothing of it is held: only two answers that differ would show
        assert services_of(session).determinism_checks.audit() == []
        return
    with pytest.warns(UserWarning, match=r"'some' is not det.*threshold now returns \d copies of"):
        commit_until_audited(session)
    assert bag(stage) == {(1,): 6, (2,): 3}
    rate_file(tmp_path / "rate", 5)
    numbers.remove([(1,), (1,)])
    session.commit()
    assert bag(stage) == {(2,): 3}, "what was given is taken back, not what would be given now"


def test_check_demotes_random_threshold_below_stage(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    made = numbers.threshold(lambda n: random.randrange(1, 1 << 40))
    stage = session.stage("some", made.group_by("n").count())
    numbers.insert([(n,) for n in range(5)])
    with pytest.warns(UserWarning, match="'some' is not deterministic: threshold returned"):
        commit_until_audited(session)
    numbers.remove([(n,) for n in range(5)])
    session.commit()
    assert stage.rows() == []


LOOPS: dict[str, Any] = {
    "reduce": lambda v: (
        v.group_by("k")
        .reduce(lambda k, r: [(r[0].n % 5 + random.random() * 1e-6,)], "n double")
        .select("k", "cast(n as int) AS n")
    ),
    "map": lambda v: (
        v.distinct()
        .map(lambda row: (row.k, row.n % 5 + random.random() * 1e-6), "k int, n double")
        .select("k", "cast(n as int) AS n")
    ),
    "threshold": lambda v: v.threshold(lambda n: random.randrange(1, 1 << 30)).distinct(),
}


@pytest.mark.parametrize("what", LOOPS)
def test_check_warns_of_functions_inside_loop(session: Session, what: str) -> None:
    numbers = session.input("numbers", "k int, n int")
    session.stage("looped", numbers.distinct().iterate(LOOPS[what]))
    numbers.insert([(k, k) for k in range(9)])
    with pytest.warns(
        UserWarning, match=f"'looped' is not deterministic: inside its loop .*{what}"
    ):
        commit_until_audited(session)
    assert session.stages.keys() == {"looped"}
    assert catalog_of(session)["looped"].version == 1


def test_check_that_cannot_demote_reports_reason(session: Session) -> None:
    numbers = session.input("numbers", "n int, tag bigint")
    tags = numbers.map(undeclared_random, "n int, tag bigint")
    body = tags.iterate(lambda v: v.map(lambda row: tuple(row), "n int, tag bigint").distinct())
    session.stage("looped", body)
    numbers.insert([(n, 0) for n in range(9)])
    with pytest.warns(
        UserWarning, match=r"'looped' is not deter.* continues unchanged, because .*loop"
    ):
        commit_until_audited(session)
    assert catalog_of(session)["looped"].version == 1


def test_check_skips_large_groups(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(determinism_check, "GROUP_ROWS_MAX", 5)
    asked = tmp_path / "asked"

    def size(key: Any, rows: list[Any]) -> list[Any]:
        with asked.open("a") as file:
            file.write(f"{len(rows)} ")
        return [(len(rows),)]

    numbers = session.input("numbers", "k int, n int")
    session.stage("sizes", numbers.group_by("k").reduce(size, "n int"))
    numbers.insert([(1, n) for n in range(5)] + [(2, n) for n in range(6)])
    session.commit()
    asked.write_text("")
    for _ in range(30):
        assert services_of(session).determinism_checks.audit() == []
    assert set(asked.read_text().split()) == {"5"}


@pytest.mark.fault(37)
@given(st.data(), random_programs.programs(["a", "b"], depth=4))
def test_check_accepts_any_deterministic_program(
    data: st.DataObject, program: random_programs.Program
) -> None:
    kinds = {"a": ("int", "int"), "b": ("int", "int")}
    history = data.draw(histories(kinds, pools=dict.fromkeys(kinds, random_programs.ROWS)))

    def ends(key: Any, rows: list[Any]) -> list[Any]:
        return [(rows[0].c1, len(rows))]

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(File, "sync", lambda file: None)
        patch.setattr(Files, "sync_folder", lambda files, path: None)
        with nosync_nb.open(f"{folder}/log") as session:
            inputs = {name: session.input(name, random_programs.COLUMNS) for name in kinds}
            made = random_programs.build(program, inputs)
            session.stage("made", made)
            session.stage("groups", made.group_by("c0").reduce(ends, "c1 int, n int"))
            session.stage("half", made.threshold(lambda n: n // 2))
            session.stage(
                "looped",
                made.iterate(
                    lambda v: (
                        v.concat(made)
                        .group_by("c0")
                        .reduce(lambda key, rows: [(min(r.c1 or 0 for r in rows),)], "c1 int")
                    )
                ),
            )
            for epoch in history:
                for name, calls in epoch.calls.items():
                    for change in calls:
                        getattr(inputs[name], "insert" if change.insert else "remove")(change.rows)
                session.commit()
                assert services_of(session).determinism_checks.audit() == []
