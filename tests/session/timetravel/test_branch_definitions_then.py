"""`definitions="then"`: a branch with the stages of its epoch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from internals import checkpoint_now

import nosync_nb
from nosync_nb import SchemaError, Session, TimeError, TrustError

pytestmark = pytest.mark.usefixtures("own_key")


@pytest.fixture
def session(session: Session) -> Session:
    rows = session.input("rows", "k long, v long")
    names = session.input("names", "k long, name string", key="k")
    session.stage("sums", rows.filter("v > 2").group_by("k").agg(n="count(*)", most="max(v)"))
    session.stage("named", rows.join(names, on="k").group_by("name").agg(n="count(*)"))
    session.stage("few", session["sums"].filter("n < 3"))
    return session


def commit_epochs(session: Session, upto: int) -> None:
    """Commits epochs that insert and remove rows, the same in every log."""
    for i in range(session.now + 1, upto + 1):
        session.inputs["rows"].insert([(i % 3, i % 7), (i % 2, i % 5)])
        session.inputs["names"].upsert([(i % 3, f"n{i % 2}")])
        if i > 2:
            session.inputs["rows"].remove([((i - 1) % 3, (i - 1) % 7)])
        assert session.commit() == i


def contents(session: Session, at: int | None = None) -> dict[str, list[tuple[object, ...]]]:
    return {name: [tuple(r) for r in session[name].rows(at=at)] for name in session.stages}


def test_branch_with_old_definitions_undoes_edits_and_drops(session: Session) -> None:
    commit_epochs(session, 6)
    then = contents(session)
    session.stage("sums", session["rows"].filter("v > 4").group_by("k").agg(n="count(*)"))
    session.drop("named")
    session.stage("later", session["rows"].distinct())
    commit_epochs(session, 9)
    now = contents(session)
    branch = session.branch("undone", at=5, definitions="then")
    assert [*branch.stages] == ["sums", "named", "few"]
    assert branch["sums"].schema.names == ("k", "n", "most")
    commit_epochs(branch, 6)
    assert contents(branch) == then
    assert contents(session) == now
    assert [*session.stages] == ["sums", "few", "later"]
    branch.close()
    with nosync_nb.open(branch.path) as again:
        assert contents(again) == then
        assert again.verify().whole


def test_unchanged_stages_are_read_and_not_recomputed(session: Session) -> None:
    session.inputs["rows"].insert([(i % 7, i % 5) for i in range(3000)])
    session.commit()
    commit_epochs(session, 20)
    session.stage("later", session["rows"].distinct())
    commit_epochs(session, 22)
    branch = session.branch("near", at=20, definitions="then")
    assert set(branch.recovery.stages.values()) == {"read"}
    branch.inputs["rows"].insert([(1, 6)])
    branch.commit()
    assert branch.stats["touched"] < 40
    assert len(branch["rows"].rows()) == len(session["rows"].rows(at=20)) + 1


def test_renamed_stage_has_its_old_name_and_its_past(session: Session) -> None:
    commit_epochs(session, 3)
    then = contents(session)["named"]
    session.rename("named", "by_name")
    commit_epochs(session, 5)
    branch = session.branch("before", at=3, definitions="then")
    assert "by_name" not in branch
    assert [tuple(row) for row in branch["named"].rows()] == then
    assert branch.recovery.stages["named"] == "read"


def test_definition_after_an_epoch_belongs_to_the_next_epoch(session: Session) -> None:
    assert [*session.branch("empty", definitions="then").stages] == ["sums", "named", "few"]
    commit_epochs(session, 3)
    session.stage("late", session["rows"].filter("v = 1"))
    assert "late" not in session.branch("undone", definitions="then")
    commit_epochs(session, 4)
    session.drop("late")
    assert "late" not in session.branch("three", at=3, definitions="then")
    assert "late" in session.branch("four", at=4, definitions="then")
    assert "late" in session.branch("latest", definitions="then")
    assert [*session.branch("first", at=0, definitions="then").stages] == ["sums", "named", "few"]


def test_rewind_counts_as_definition_after_its_epoch(session: Session) -> None:
    commit_epochs(session, 4)
    session.stage("late", session["rows"].filter("v = 1"))
    commit_epochs(session, 6)
    session.rewind(to=2)
    assert "late" not in session.branch("now", definitions="then")
    commit_epochs(session, 5)
    assert "late" in session.branch("after", at=3, definitions="then")
    assert "late" not in session.branch("before", at=2, definitions="then")
    session.rewind(to=0)
    assert "late" in session.branch("anew", definitions="then")


@pytest.mark.parametrize("replay_rows", [0, 1 << 20], ids=["in one step", "epoch by epoch"])
def test_stage_stale_at_that_epoch_is_readable_until_it_stopped(
    session: Session, replay_rows: int
) -> None:
    session.replay_rows = replay_rows
    with_n = session["rows"].filter("v > 2").group_by("k").agg(n="count(*)", most="max(v)")
    commit_epochs(session, 3)
    stood = [tuple(row) for row in session["few"].rows()]
    session.stage("sums", session["rows"].group_by("k").agg(m="count(*)"))
    assert "few" in session.stale
    commit_epochs(session, 6)
    other = [tuple(row) for row in session["sums"].rows(at=5)]
    session.stage("sums", with_n)
    commit_epochs(session, 9)
    assert not session.stale
    branch = session.branch("mine", at=5, definitions="then")
    commit_epochs(branch, 6)
    assert "few" in branch.stale
    assert [tuple(row) for row in branch["sums"].rows(at=5)] == other
    assert [tuple(row) for row in branch["few"].rows(at=3)] == stood
    with pytest.raises(TimeError):
        branch["few"].rows(at=5)
    rows = branch["rows"].filter("v > 2")
    branch.stage("sums", rows.group_by("k").agg(n="count(*)", most="max(v)"))
    commit_epochs(branch, 9)
    assert contents(branch) == contents(session)


def test_definitions_signed_with_another_key_are_refused(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_epochs(session, 3)
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "other"))
    session.close()
    with nosync_nb.open(session.path) as back:
        back.drop("sums", "few", "named", cascade=True)
        back.stage("late", back["rows"].filter("v = 1"))
    with nosync_nb.open(session.path) as back:
        commit_epochs(back, 5)
        with pytest.raises(TrustError, match=r"at epoch 0 cannot be used: .* signed with key"):
            back.branch("theirs", at=2, definitions="then")
        assert back.branches == {}
        assert "late" in back.branch("mine", at=4, definitions="then")


def test_old_user_functions_run_in_another_process(session: Session) -> None:
    commit_epochs(session, 3)
    least = 3
    session.stage("mapped", session["rows"].map(lambda r: (r.k, r.v + least), "k long, v long"))
    commit_epochs(session, 4)
    then = contents(session)["mapped"]
    session.drop("mapped")
    commit_epochs(session, 5)
    branch = session.branch("mapping", at=4, definitions="then")
    assert [tuple(row) for row in branch["mapped"].rows()] == then
    branch.close()
    code = (
        "import sys, nosync_nb; s = nosync_nb.open(sys.argv[1]);"
        "s.inputs['rows'].insert([(9, 9)]); s.commit(); print(s['mapped'].rows()[-1], s.stale)"
    )
    output = subprocess.run(
        [sys.executable, "-c", code, branch.path], capture_output=True, text=True, check=True
    )
    assert "Row(k=9, v=12) {}" in output.stdout


def test_branch_has_the_old_durability_levels(session: Session) -> None:
    commit_epochs(session, 2)
    more = session["sums"].filter("n > 1")
    session.stage("quick", session["rows"].distinct(), persist="memory")
    session.stage("local", more, persist="disk")
    commit_epochs(session, 5)
    then = contents(session)
    session.drop("local")
    session.stage("quick", session["rows"].distinct(), persist="disk")
    commit_epochs(session, 7)
    branch = session.branch("levels", at=4, definitions="then")
    commit_epochs(branch, 5)
    assert contents(branch) == then
    branch.close()
    with nosync_nb.open(branch.path) as again:
        assert contents(again) == then


@pytest.mark.parametrize("definitions", ["Then", None, 1])
def test_unknown_definitions_argument_is_refused(session: Session, definitions: object) -> None:
    with pytest.raises(SchemaError, match=r"definitions=.* is unknown"):
        session.branch("no", definitions=definitions)  # type: ignore[arg-type]
    assert session.branches == {}


def test_input_dropped_since_is_reported_and_no_branch_made(session: Session) -> None:
    commit_epochs(session, 2)
    session.drop("names", cascade=True)
    session.input("names", "k long, name string", key="k")
    with pytest.raises(
        TimeError, match="input 'names', which existed at that epoch, was dropped later"
    ):
        session.branch("no", at=1, definitions="then")
    assert session.branches == {}
    commit_epochs(session, 3)
    assert "named" not in session.branch("yes", at=3, definitions="then")


def test_epochs_without_frames_name_the_oldest_with_definitions(session: Session) -> None:
    commit_epochs(session, 4)
    branch = session.branch("fork", at=3)
    with pytest.raises(TimeError, match="no longer stored") as raised:
        branch.branch("no", at=2, definitions="then")
    assert "those of epoch 3 and later are" in str(raised.value.hint)
    assert branch.branches == {}
    assert "few" in branch.branch("yes", at=3, definitions="then")
    for upto in (5, 6, 7):
        session.stage("few", session["sums"].filter(f"n < {upto}"))
        commit_epochs(session, upto)
        checkpoint_now(session)
    assert "few" in session.branch("kept", at=5, definitions="then")
