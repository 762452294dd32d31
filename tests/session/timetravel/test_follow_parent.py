"""`follow`: each later epoch of the parent once, also after rewinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from internals import checkpoint_now, drain_background

import nosync_nb
from nosync_nb import SchemaError, Session, StageError, TimeError
from nosync_nb.files.filesystem import Files


@pytest.fixture
def session(session: Session) -> Session:
    session.input("x", "a bigint")
    session.stage("total", session["x"].group_by().agg(n="count(*)", total="sum(a)"))
    load(session, range(1, 6))
    return session


def load(session: Session, values: range | list[int]) -> None:
    for value in values:
        session.inputs["x"].insert([(value,)], once=f"d{value}")
        session.commit(label=f"L{value}")


def values_of(session: Session) -> list[int]:
    rows = sorted(row.a for row in session["x"].rows())
    ((n, total),) = session["total"].rows()
    assert (n, total or 0) == (len(rows), sum(rows))
    return rows


@pytest.mark.parametrize(("at", "to"), [(2, 3), (4, 1)], ids=["taken epochs", "before the fork"])
def test_follow_of_a_parent_that_was_rewound_too_far_is_refused(
    session: Session, at: int, to: int
) -> None:
    with session.branch("b", at=at) as branch:
        if to > at:
            branch.follow(session)
        before = values_of(branch)
        session.rewind(to=to)
        for values in ([], [400, 500, 600]):
            load(session, values)
            with pytest.raises(StageError, match=f"rewound to before epoch {to + 1}") as raised:
                branch.follow(session)
            assert f"session.rewind(to={to})" in str(raised.value.hint)
        assert values_of(branch) == before == [1, 2, 3, 4, 5][: 5 if to > at else at]
        branch.rewind(to=to)
        branch.follow(session)
        assert values_of(branch) == values_of(session) == [*range(1, to + 1), 400, 500, 600]


def test_follow_after_parent_was_rewound_to_a_taken_epoch(session: Session) -> None:
    with session.branch("b", at=2) as branch:
        branch.follow(session, upto=3)
        session.rewind(to=3)
        load(session, [400])
        branch.follow(session)
        assert values_of(branch) == [1, 2, 3, 400]


def test_follow_after_branch_was_rewound_before_its_fork(session: Session) -> None:
    with session.branch("b", at=4) as branch:
        branch.rewind(to=1)
        branch.inputs["x"].insert([(7,)])
        branch.commit()
        branch.follow(session)
        assert values_of(branch) == [1, 2, 3, 4, 5, 7]
        assert branch.follow(session) == branch.now


@pytest.mark.parametrize("reopened", [False, True])
def test_load_with_a_key_of_the_branch_is_not_taken_twice(session: Session, reopened: bool) -> None:
    branch = session.branch("b", at=2)
    load(branch, [3])
    if reopened:
        branch.close()
        branch = nosync_nb.open(branch.path)
    branch.follow(session)
    assert values_of(branch) == [1, 2, 3, 4, 5]
    for value in range(1, 6):
        branch.inputs["x"].insert([(value,)], once=f"d{value}")
    assert not branch.pending
    assert [each.label for each in branch.epochs()][1:] == ["L1", "L2", "L3", None, "L4", "L5"]
    branch.close()


def test_epoch_with_a_key_of_the_branch_is_not_taken_twice(session: Session) -> None:
    def day(on: Session) -> None:
        with on.epoch(once="day") as epoch:
            if not epoch.skipped:
                on.inputs["x"].insert([(6,)])

    with session.branch("b") as branch:
        day(branch)
        day(session)
        load(session, [7])
        branch.follow(session)
        branch.follow(session)
        assert values_of(branch) == [1, 2, 3, 4, 5, 6, 7]


def test_load_beside_other_rows_of_its_input_is_reported(session: Session) -> None:
    with session.branch("b") as branch:
        load(branch, [6])
        session.inputs["x"].insert([(6,)], once="d6")
        session.inputs["x"].insert([(7,)])
        session.commit()
        with pytest.raises(StageError, match="epoch 6 of the parent has rows") as raised:
            branch.follow(session)
        assert "upto=5" in str(raised.value.hint)
        assert values_of(branch) == [1, 2, 3, 4, 5, 6]
        branch.rewind(to=5)
        branch.follow(session)
        assert values_of(branch) == [1, 2, 3, 4, 5, 6, 7]


def test_load_retracted_in_its_epoch_adds_nothing_to_the_branch(session: Session) -> None:
    with session.branch("b") as branch:
        load(branch, [6])
        session.inputs["x"].insert([(6,)], once="d6")
        session.inputs["x"].remove([(6,)])
        session.commit()
        load(session, [7])
        branch.follow(session)
        assert values_of(branch) == [1, 2, 3, 4, 5, 6, 7]


def test_follow_of_epochs_thinned_in_the_parent_is_refused(session: Session) -> None:
    session.retain = 5
    with session.branch("b") as branch:
        for values in (range(6, 106), range(106, 206)):
            load(session, values)
            drain_background(session)
            checkpoint_now(session)
        with pytest.raises(TimeError, match="not readable"):
            branch.follow(session)
        assert values_of(branch) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("at", [2, 5])
def test_input_declared_again_in_the_parent_is_another_input(session: Session, at: int) -> None:
    with session.branch("b", at=at) as branch:
        session.drop("x", cascade=True)
        session.input("x", "a bigint")
        load(session, [900])
        with pytest.raises(SchemaError, match="has dropped the input 'x'"):
            branch.follow(session)
        assert values_of(branch) == list(range(1, at + 1))


@pytest.mark.parametrize("at", [2, 5])
def test_new_input_of_the_parent_must_be_declared(session: Session, at: int) -> None:
    with session.branch("b", at=at) as branch:
        for values in ([1], [2]):
            session.input("y", "b bigint").insert([(value,) for value in values])
            session.commit()
        with pytest.raises(SchemaError, match="has a new input 'y'") as raised:
            branch.follow(session)
        assert "session.input('y', 'b bigint')" in str(raised.value.hint)
        assert branch.follow(session, upto=5) == 5
        branch.input("y", "b bigint")
        branch.input("own", "c bigint").insert([(7,)])
        branch.commit()
        branch.follow(session)
        assert sorted(row.b for row in branch["y"].rows()) == [1, 2]
        assert len(branch["own"]) == 1


def test_input_dropped_in_the_branch_is_left_out(session: Session) -> None:
    session.input("y", "b bigint")
    session.commit()
    with session.branch("b") as branch:
        branch.drop("y")
        session.inputs["y"].insert([(1,)])
        load(session, [6])
        branch.follow(session)
        assert values_of(branch) == [1, 2, 3, 4, 5, 6]
        assert "y" not in branch


def test_follow_of_reader_continues_after_a_merged_file_is_deleted(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is deleted between the snapshot of the reader and its first read."""
    checkpoint_now(session)
    session.branch("b", at=2).close()
    (pack,) = Path(session.path, "history").iterdir()
    mapped, missed = Files.mapped, []

    def miss_first(files: Files, path: str, **options: Any) -> Any:
        if path != str(pack) or missed:
            return mapped(files, path, **options)
        missed.append(path)
        away = pack.rename(f"{pack}.away")
        try:
            return mapped(files, path, **options)
        finally:
            away.rename(pack)

    with (
        nosync_nb.open(session.path, mode="r") as reader,
        nosync_nb.open(Path(session.path, "branches", "b")) as branch,
    ):
        monkeypatch.setattr(Files, "mapped", miss_first)
        assert branch.follow(reader) == 5
        assert missed
        assert values_of(branch) == values_of(session)
