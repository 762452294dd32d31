"""`branch`: a session continues from an epoch of another one, which is unchanged."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults.faults import Crash, FaultyFiles, HastyFiles, Phase, opener
from internals import checkpoint_now, drain_background, store_of

import nosync_nb
from nosync_nb import (
    DurabilityError,
    FencedError,
    SchemaError,
    Session,
    StageError,
    TimeError,
    TrustError,
)
from nosync_nb.files.filesystem import Files
from nosync_nb.session.maintenance import maintenance
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.store import point_in_time, store
from nosync_nb.store.log import Log, writer
from nosync_nb.store.timetravel import branches

Rows = list[tuple[Any, ...]]


pytestmark = pytest.mark.usefixtures("own_key")


def described(session: Session) -> None:
    """Inputs and stages with what operators remember: accumulators, a join, a part of no name."""
    edges = session.input("edges", "src long, dst long")
    nodes = session.input("nodes", "node long, label string", key="node")
    joined = edges.filter("src != 3").join(nodes, on={"dst": "node"})
    session.stage("labels", joined.group_by("label").agg(n="count(*)", most="max(src)"))
    session.stage("pairs", edges.distinct())
    session.stage("busy", session["labels"].filter("n > 2"))


@pytest.fixture
def session(session: Session) -> Session:
    described(session)
    return session


def committed(session: Session, count: int) -> None:
    """Commits epochs of rows that come and go."""
    edges, nodes = session.inputs["edges"], session.inputs["nodes"]
    for i in range(session.now + 1, session.now + count + 1):
        nodes.upsert([(k, f"n{k if k % 3 else i % 2}") for k in range(7)])
        edges.insert([(i % 7, i % 5), ((3 * i) % 7, (2 * i) % 5)])
        if i > 3:
            edges.remove([((i - 2) % 7, (i - 2) % 5)])
        assert session.commit() == i


STAGES = ("edges", "nodes", "labels", "pairs", "busy")


def contents(session: Session, at: int | None = None) -> dict[str, Rows]:
    return {name: [tuple(row) for row in session[name].rows(at=at)] for name in STAGES}


def digests(folder: Path) -> dict[str, str]:
    """Every file of a log but those of its branches, and how far it is synced by now."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "branches" not in path.relative_to(folder).parts
        if path.name != "generation"
    }


# -- what a branch is ------------------------------------------------------------------------------


def test_both_sides_go_on_and_know_nothing_of_each_other(session: Session, tmp_path: Path) -> None:
    committed(session, 9)
    before, files = contents(session), digests(tmp_path / "log")
    branch = session.branch("other")
    assert digests(tmp_path / "log") == files
    assert branch.now == 9
    assert contents(branch) == before
    committed(branch, 3)
    assert contents(session) == before
    assert session.now == 9
    theirs = contents(branch)
    committed(session, 5)
    assert contents(branch) == theirs
    assert [contents(branch, at) for at in (4, 9)] == [contents(session, at) for at in (4, 9)]
    branch.close()
    assert session.verify().whole


@pytest.fixture(params=["frames", "no frames"])
def frames(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether frames tell what was changed since an epoch, or are not kept any more."""
    kept = request.param == "frames"
    if not kept:
        monkeypatch.setattr(point_in_time, "EPOCHS_MAX", -(1 << 40))
    return kept


@pytest.mark.usefixtures("frames")
@pytest.mark.parametrize("checkpoint", [None, 7, 14])
@pytest.mark.parametrize("at", [0, 1, 6, 8, 14, 15])
def test_a_branch_at_any_epoch_is_what_was_there_and_goes_on_right(
    session: Session, at: int, checkpoint: int | None
) -> None:
    """What operators remember is right: the next epochs are those that the parent had."""
    for _ in range(15):
        committed(session, 1)
        if session.now == checkpoint:
            checkpoint_now(session)
    with session.branch("past", at=at) as branch:
        assert branch.now == at
        assert contents(branch) == contents(session, at)
        for epoch in range(at + 1, 16):
            committed(branch, 1)
            assert contents(branch) == contents(session, epoch), epoch
        assert [contents(branch, e) for e in range(16)] == [contents(session, e) for e in range(16)]
    with nosync_nb.open(os.path.join(session.path, "branches", "past")) as again:
        assert again.recovery.clean
        assert contents(again) == contents(session, 15)
        assert again.verify().whole


def test_a_branch_of_a_branch_and_a_reopened_parent(session: Session, tmp_path: Path) -> None:
    committed(session, 8)
    was = contents(session, 3)
    with session.branch("one", at=6) as one:
        committed(one, 2)
        with one.branch("two", at=3) as two:
            assert contents(two) == was
            assert list(one.branches) == ["two"]
    session.close()
    with nosync_nb.open(tmp_path / "log") as again, again.branch("three", at=3) as three:
        assert contents(three) == was
        committed(three, 5)
        assert contents(three) == contents(again)


def test_times_labels_and_keys_of_loads_are_those_up_to_the_epoch(session: Session) -> None:
    for i in range(1, 6):
        with session.epoch(once=f"day {i}", label=f"label {i}"):
            session.inputs["edges"].insert([(i, i)])
    with session.branch("past", at="label 3") as branch:
        assert [e.label for e in branch.epochs()] == [None, "label 1", "label 2", "label 3"]
        assert list(branch.epochs()) == list(session.epochs())[:4]
        with branch.epoch(once="day 3") as third:
            branch.inputs["edges"].insert([(3, 3)])
        with branch.epoch(once="day 4") as fourth:
            branch.inputs["edges"].insert([(4, 4)])
        assert third.skipped
        assert fourth.number == 4


def test_a_stage_that_was_defined_later_is_computed_from_what_it_reads(session: Session) -> None:
    committed(session, 6)
    late = session["pairs"].group_by("dst").agg(n="count(*)")
    over = late.filter("n > 1")
    session.replay_rows = 0
    session.stage("late", session["pairs"].group_by("dst").agg(n="count(*)"))
    session.stage("over", session["late"].filter("n > 1"))
    more = session.input("more", "x long")
    more.insert([(1,)])
    committed(session, 4)
    with session.branch("past", at=4) as branch:
        assert branch.recovery.stages["late"] == branch.recovery.stages["over"] == "recompute"
        assert branch["more"].rows() == []
        assert branch["late"].rows() == late.rows(at=4)
        assert branch["over"].rows() == over.rows(at=4)
        with pytest.raises(TimeError):
            branch["late"].rows(at=3)
        committed(branch, 1)
        assert branch["late"].rows() == late.rows(at=5)
        branch.inputs["more"].insert([(2,)])
        branch.commit()
        assert branch["more"].rows() == [(2,)]
    with nosync_nb.open(os.path.join(session.path, "branches", "past")) as again:
        assert again.recovery.stages["late"] == "read"
        assert again["late"].rows() == late.rows(at=5)


def test_who_only_reads_a_branch_is_told_what_was_never_computed(session: Session) -> None:
    committed(session, 6)
    session.replay_rows = 0
    session.stage("late", session["pairs"].group_by("dst").agg(n="count(*)"))
    path = session.fork("past", 4)
    with nosync_nb.open(path, mode="r") as reader:
        assert reader["pairs"].rows() == session["pairs"].rows(at=4)
        with pytest.raises(TimeError):
            reader["late"].rows()


def test_what_gave_something_else_each_time_is_read_and_waits_for_its_cell(
    session: Session, frames: bool
) -> None:
    """What its functions gave at an epoch is in its rows alone, not what they were given."""
    drawn = session["edges"].with_columns(id="uuid()")
    session.stage("drawn", drawn, nondeterministic=True)
    committed(session, 6)
    with session.branch("now") as now:
        committed(now, 1)
        assert now["drawn"].rows(at=6) == session["drawn"].rows()
        assert not now.stale
    stopped = 0
    for at in range(1, 6):
        was = session["drawn"].rows(at=at)
        with session.branch(f"at_{at}", at=at) as past:
            assert past["drawn"].rows() == was
            past.inputs["edges"].clear()
            past.commit()
            if past.stale:
                stopped += 1
                assert "run the stage's cell" in past.stale["drawn"]
            else:
                assert past["drawn"].rows() == []  # each is taken back as it was given
            assert past["drawn"].rows(at=at) == was
    assert bool(stopped) is not frames


def test_stages_in_memory_and_stages_that_stopped_come_along(session: Session) -> None:
    session.stage("here", session["pairs"].group_by("src").agg(n="count(*)"), persist="memory")
    session.stage("base", session["edges"].with_columns(twice="src * 2"))
    session.stage("reads", session["base"].filter("twice > 4"))
    committed(session, 4)
    session.stage("base", session["edges"].with_columns(thrice="src * 3"))
    assert "reads" in session.stale
    committed(session, 4)
    for at in (3, 6, 8):
        with session.branch(f"at_{at}", at=at) as branch:
            assert branch["here"].rows() == session["here"].rows(at=at)
            assert branch["reads"].rows(at=3) == session["reads"].rows(at=3)
            assert "reads" in branch.stale
            committed(branch, 1)
            if at < 8:
                assert branch["here"].rows() == session["here"].rows(at=at + 1)


def test_functions_of_the_user_come_along_in_another_process(
    session: Session, tmp_path: Path
) -> None:
    above = 3
    session.stage("mine", session["edges"].filter(lambda row: row.src > above))
    committed(session, 6)
    path = session.fork("past", 4)
    code = (
        f"import nosync_nb; s = nosync_nb.open({path!r}); assert not s.stale, s.stale;"
        "s.inputs['edges'].insert([(6, 6), (1, 1)]); s.commit(); print(s['mine'].rows())"
    )
    env = {**os.environ, "NOSYNC_KEY_FILE": str(tmp_path / "key")}
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    expected = [*session["mine"].rows(at=4), (6, 6)]
    assert said.stdout.decode().count("Row(") == len(expected)
    assert session.branches["past"].now == 5


# -- files -----------------------------------------------------------------------------------------


@pytest.fixture
def large(session: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session that writes nearly everything to files."""
    for place in (store, maintenance):
        monkeypatch.setattr(place, "SPILL_ROWS", 4)
    monkeypatch.setattr(store, "SPILL_BYTES", 64)
    monkeypatch.setattr(store, "SETTLED_BYTES", 64)
    return session


def load(session: Session, count: int) -> None:
    for i in range(session.now + 1, session.now + count + 1):
        session.inputs["edges"].insert([(i, k % 6) for k in range(12)])
        session.commit()
        drain_background(session)


def test_files_are_shared_and_none_is_copied(large: Session, tmp_path: Path) -> None:
    load(large, 6)
    checkpoint_now(large)
    branch = large.branch("other")
    for inner in ("layers", "history"):
        here = tmp_path / "log" / inner
        there = tmp_path / "log" / "branches" / "other" / inner
        names = [each.name for each in there.iterdir()]
        assert names
        assert all((here / name).samefile(there / name) for name in names)
    branch.close()


def test_a_file_lives_as_long_as_one_side_needs_it(large: Session, tmp_path: Path) -> None:
    load(large, 8)
    checkpoint_now(large)
    was, early = contents(large, 5), contents(large, 2)
    branch = large.branch("past", at=5)
    large.drop("busy", "labels", "pairs")
    large.inputs["edges"].clear()
    for _ in range(4):
        load(large, 2)
        checkpoint_now(large)
    assert contents(branch) == was
    assert contents(branch, 2) == early
    load(branch, 3)
    for _ in range(3):
        checkpoint_now(branch)
        load(branch, 1)
    branch.close()
    with nosync_nb.open(tmp_path / "log" / "branches" / "past") as again:
        assert contents(again, 5) == was
        assert again.verify().whole
    rows = large["edges"].rows()
    large.drop_branch("past")
    assert large["edges"].rows() == rows
    assert large.verify().whole


def test_what_is_read_from_the_past_later_is_kept_when_the_past_is_thinned_out(
    session: Session, tmp_path: Path
) -> None:
    for _ in range(3):
        committed(session, 20)
        checkpoint_now(session)
    was = contents(session, 47)  # with it a group of 16 epochs ends
    with session.branch("past", at=47) as branch:
        branch.retain = 4
        for _ in range(4):
            for _ in range(16):
                branch.inputs["edges"].insert([(1, 1)])
                branch.commit()
            checkpoint_now(branch)
        with pytest.raises(TimeError):
            branch["nodes"].rows(at=41)
        assert [tuple(row) for row in branch["nodes"].rows()] == was["nodes"]
        assert branch["pairs"].count() == len({*was["pairs"], (1, 1)})
    with nosync_nb.open(tmp_path / "log" / "branches" / "past") as again:
        assert [tuple(row) for row in again["nodes"].rows()] == was["nodes"]
        assert again["edges"].count() == len(was["edges"]) + 64


# -- the list, and its end -------------------------------------------------------------------------


def test_branches_are_listed_with_where_they_forked_and_who_has_them(session: Session) -> None:
    assert dict(session.branches) == {}
    committed(session, 5)
    one = session.branch("one", at=3)
    committed(one, 4)
    assert one.path == session.branches["one"].path
    assert [(b.name, b.at, b.now) for b in session.branches.values()] == [("one", 3, 7)]
    assert str(os.getpid()) in str(session.branches["one"].owner)
    assert nosync_nb.open(one.path) is one
    one.close()
    assert session.branches["one"].owner is None


def test_of_whom_a_branch_may_be_open_in_this_process_is_asked_once(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two", "three"):
        session.fork(name)
    list(session.branches)
    asked, read = list[str](), Files.read

    def reads(files: Files, path: str, **more: Any) -> bytes:
        asked.append(path)
        return read(files, path, **more)

    monkeypatch.setattr(Files, "read", reads)
    assert [each.owner for each in session.branches.values()] == [None] * 3
    assert asked
    assert not [path for path in asked if path.startswith("/proc")]


@pytest.mark.parametrize("back", ["branch", "rewind"])
def test_what_operators_remember_is_had_again_and_nothing_of_the_past_is_said_twice(
    session: Session, back: str
) -> None:
    """A stage in memory is run over all of the past, and a loop beside it for its state alone."""
    x = session.input("x", "a long, b long")
    capped = x.iterate(lambda r: r.select("a", "least(b, 3) AS b").distinct())
    session.stage("capped", capped)
    session.stage("counts", x.group_by("a").agg(n="count(*)"), persist="memory")
    for i in range(40):
        x.insert([(i % 7, i % 5)])
        session.commit()
    drain_background(session)
    checkpoint_now(session)
    names, epoch = ("x", "capped", "counts"), session.now - 20
    before = {(n, e): session[n].rows(at=e) for n in names for e in range(1, epoch + 1)}
    if back == "rewind":
        session.rewind(to=epoch)
        session.close()
    path = session.path if back == "rewind" else session.branch("b", at=epoch).path
    with nosync_nb.open(path) as again:
        again.inputs["x"].insert([(9, 9)])
        again.commit()
        assert {key: again[key[0]].rows(at=key[1]) for key in before} == before


def test_a_branch_that_is_damaged_is_listed_as_such_beside_the_others(
    session: Session, tmp_path: Path
) -> None:
    session.branch("one").close()
    session.branch("two").close()
    (state,) = (tmp_path / "log" / "branches" / "two").glob("checkpoint-*")
    data = bytearray(state.read_bytes())
    data[-1] ^= 1
    state.write_bytes(data)
    (tmp_path / "log" / "branches" / "notes.txt").write_text("mine")
    listed = session.branches
    assert listed["one"].damaged == ""
    assert "checksum" in listed["two"].damaged or "not a branch" in listed["two"].damaged
    assert listed["notes.txt"].damaged
    session.drop_branch("two")
    assert "two" not in session.branches


def test_a_dropped_branch_is_gone_and_its_name_free(session: Session, tmp_path: Path) -> None:
    committed(session, 5)
    session.branch("one", at=3).close()
    session.drop_branch("one")
    assert os.listdir(tmp_path / "log" / "branches") == []
    with session.branch("one", at=2) as again:
        assert again.now == 2


def test_a_branch_that_is_open_or_has_branches_is_not_dropped(session: Session) -> None:
    committed(session, 3)
    one = session.branch("one")
    with pytest.raises(FencedError, match=r"branch 'one' is open: .*this process") as raised:
        session.drop_branch("one")
    assert "close it where it is open" in str(raised.value.hint)
    one.branch("two").close()
    one.close()
    with pytest.raises(SchemaError, match="branches of its own: two"):
        session.drop_branch("one")
    with nosync_nb.open(one.path) as again:
        again.drop_branch("two")
    session.drop_branch("one")
    assert not session.branches


def test_a_branch_of_a_branch_that_was_dropped_is_refused_and_nothing_is_made(
    session: Session, tmp_path: Path
) -> None:
    committed(session, 3)
    outer = session.branch("outer")
    outer.branch("inner").close()
    inner = os.path.join(outer.path, "branches", "inner")
    outer.drop_branch("inner")
    outer.close()
    session.drop_branch("outer")
    with pytest.raises(DurabilityError, match="the session is closed") as closed:
        outer.branch("late")
    assert "open it again" in str(closed.value.hint)
    for path in (outer.path, inner):
        with pytest.raises(SchemaError, match="there is no branch 'outer'") as gone:
            nosync_nb.open(path)
        assert "branches: none" in str(gone.value.hint)
        with pytest.raises(SchemaError, match="there is no branch 'outer'"):
            nosync_nb.open(path, mode="r")
    with pytest.raises(SchemaError, match="there is no branch 'outer/inner'"):
        branches.set_notebook_branch(Files(), session.path, "outer/inner")
    assert os.listdir(tmp_path / "log" / "branches") == []


@pytest.mark.parametrize("letter", ["x", "\u00e4"])
def test_every_name_that_can_be_made_can_be_dropped(session: Session, letter: str) -> None:
    longest = 246 // len(letter.encode()) * letter
    session.branch(longest).close()
    session.drop_branch(longest)
    with pytest.raises(SchemaError, match="bytes is too long") as raised:
        session.branch(longest + letter)
    assert "at most 246 bytes" in str(raised.value.hint)
    assert session.branches == {}


def test_names_and_epochs_that_cannot_be_are_refused_and_nothing_is_left(
    session: Session, tmp_path: Path
) -> None:
    committed(session, 3)
    session.branch("taken").close()
    for name in ("", "no name", "2nd", "../up", "class", ".making-x", None):
        with pytest.raises(SchemaError, match="must be an identifier"):
            session.branch(name)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="branch 'taken' exists already"):
        session.branch("taken")
    for at in (4, -4, 99):
        with pytest.raises(TimeError, match="is not readable"):
            session.branch("late", at=at)
    with pytest.raises(TimeError, match="no epoch is labelled"):
        session.branch("late", at="never")
    with pytest.raises(SchemaError, match="there is no branch 'late'"):
        session.drop_branch("late")
    assert os.listdir(tmp_path / "log" / "branches") == ["taken"]
    session.close()
    with nosync_nb.open(tmp_path / "log", mode="r") as reader:
        assert list(reader.branches) == ["taken"]
        with pytest.raises(FencedError, match="open for reading"):
            reader.branch("mine")


def test_no_branch_is_made_of_what_another_key_has_signed(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(session, 3)
    session.close()
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "strangers"))
    with nosync_nb.open(tmp_path / "log") as foreign:
        with pytest.raises(TrustError, match="signed with another key"):
            foreign.branch("mine")
        assert not foreign.branches


# -- a process that dies, and a disk that fails ----------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "open", partial(Log.open, background=False))


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Files], Session]:
    """Opens the log of the test on another disk."""
    return opener(monkeypatch, tmp_path / "log")


def prepared(session: Session) -> None:
    described(session)
    committed(session, 4)
    checkpoint_now(session)
    committed(session, 3)


def steps_of(disk: FaultyFiles, act: Callable[[], Any]) -> int:
    before = len(disk.steps)
    act()
    return len(disk.steps) - before


def _made_and_dropped(session: Session) -> None:
    session.fork("trial", 3)
    session.drop_branch("trial")


@pytest.mark.usefixtures("small")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("phase", ["before", "inside", "after"])
def test_a_process_that_dies_leaves_a_branch_whole_or_none(
    on: Callable[[Files], Session], tmp_path: Path, phase: Phase
) -> None:
    with on(HastyFiles()) as session:
        prepared(session)
        was, then = contents(session), contents(session, 3)
    disk = FaultyFiles()
    session = on(disk)
    _made_and_dropped(session)
    making = steps_of(disk, lambda: session.fork("trial", 3))
    dropping = steps_of(disk, lambda: session.drop_branch("trial"))
    session.close()
    assert making > 20
    made = 0
    for at in range(1, making + dropping + 1):
        disk = FaultyFiles(seed=at)
        session = on(disk)
        disk.crash_in(at, phase)
        with pytest.raises(Crash):
            _made_and_dropped(session)
        disk.go_on()
        session.close()
        with on(HastyFiles()) as again:
            assert contents(again) == was, at
            assert list(again.branches) in ([], ["trial"]), at
            for branch in again.branches.values():
                made += 1
                with nosync_nb.open(branch.path) as past:
                    assert contents(past) == then, at
                again.drop_branch("trial")
            again.fork("trial", 3)  # what was left half made does not hinder
            again.drop_branch("trial")
        assert os.listdir(tmp_path / "log" / "branches") == [], at
    assert 0 < made < making + dropping


@pytest.mark.usefixtures("small")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_disk_that_fails_leaves_no_branch_and_the_parent_as_it_was(
    on: Callable[[Files], Session], tmp_path: Path
) -> None:
    with on(HastyFiles()) as session:
        prepared(session)
        was = contents(session)
    disk = FaultyFiles()
    with on(disk) as session:
        _made_and_dropped(session)
        making = steps_of(disk, lambda: session.fork("trial", 3))
        session.drop_branch("trial")
        for at in range(1, making + 1):
            disk.refuse(at, 1, 28)
            try:
                session.fork("trial", 3)
            except DurabilityError:
                disk.go_on()
                assert not session.branches, at
                assert os.listdir(tmp_path / "log" / "branches") == [], at
            else:
                disk.go_on()
                session.drop_branch("trial")
            assert contents(session) == was, at
        committed(session, 2)


@pytest.mark.usefixtures("small")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_power_that_fails_while_a_branch_is_made_leaves_it_whole_or_none(
    on: Callable[[Files], Session], tmp_path: Path
) -> None:
    with on(HastyFiles()) as session:
        prepared(session)
        was, then = contents(session), contents(session, 3)
    disk, steps, made = FaultyFiles(), 1, 0
    with on(disk) as session:
        _made_and_dropped(session)
        steps = steps_of(disk, lambda: session.fork("trial", 3))
        session.drop_branch("trial")
    for at in range(1, steps + 1, 2):
        disk = FaultyFiles(seed=at)
        session = on(disk)
        disk.crash_in(at, "after")
        with suppress(Crash):
            session.fork("trial", 3)
        disk.lose_power(str(tmp_path / "log"))
        disk.go_on()
        session.close()
        with on(HastyFiles()) as again:
            assert contents(again) == was, at
            for branch in again.branches.values():
                made += 1
                with nosync_nb.open(branch.path) as past:
                    assert contents(past) == then, at
                again.drop_branch("trial")
    assert made < steps


@pytest.mark.usefixtures("small")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", range(3))
def test_power_that_fails_leaves_a_branch_whole_or_none(
    on: Callable[[Files], Session], tmp_path: Path, seed: int
) -> None:
    disk = FaultyFiles(seed=seed)
    session = on(disk)
    prepared(session)
    session.sync()
    was, then = contents(session), contents(session, 3)
    path = session.fork("trial", 3)
    session.close()
    disk.lose_power(str(tmp_path / "log"))
    with on(HastyFiles()) as again:
        assert contents(again) == was
        with nosync_nb.open(path) as past:
            assert contents(past) == then


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("phase", ["before", "inside", "after"])
@pytest.mark.parametrize("power", [False, True])
def test_a_switch_that_is_cut_short_is_made_or_not(
    on: Callable[[Files], Session], tmp_path: Path, phase: Phase, power: bool
) -> None:
    with on(HastyFiles()) as session:
        prepared(session)
        for name in ("one", "another"):
            session.fork(name, 3)
    log, found = str(tmp_path / "log"), set()
    steps = FaultyFiles()
    branches.set_notebook_branch(steps, log, "one")
    for at in range(1, len(steps.steps) + 1):
        branches.set_notebook_branch(Files(), log, "one")
        disk = FaultyFiles(seed=at)
        disk.crash_in(at, phase)
        with pytest.raises(Crash):
            branches.set_notebook_branch(disk, log, "another")
        if power:
            disk.lose_power(os.path.join(log, "branches"))
        found.add(branches.notebook_branch(Files(), log))
        assert found <= {"one", "another"}, at
    assert found == {"one", "another"}
    branches.set_notebook_branch(Files(), log, None)
    assert branches.notebook_branch(Files(), log) is None


def test_a_disk_without_hard_links_is_told(
    large: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    load(large, 3)

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(95, os.strerror(95))

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(DurabilityError, match="the file system has no hard links") as told:
        large.branch("other")
    assert "local disk" in str(told.value.hint)
    assert os.listdir(tmp_path / "log" / "branches") == []
    load(large, 1)


# -- what the parent got since ---------------------------------------------------------------------


def test_a_branch_follows_its_parent_through_other_stages(session: Session) -> None:
    committed(session, 5)
    branch = session.branch("what_if", at=2)
    branch.stage("busy", branch["labels"].filter("n > 1"))
    with session.epoch(once="late load", label="late") as late:
        session.inputs["edges"].insert([(1, 1), (2, 2), (6, 1)])
        session.inputs["nodes"].delete([(4,)])
    committed(session, 3)
    assert branch.follow(session, upto=4) == 4
    assert branch["edges"].rows() == session["edges"].rows(at=4)
    assert branch.follow(session) == session.now
    for name in ("edges", "nodes", "labels", "pairs"):
        for at in range(session.now + 1):
            assert branch[name].rows(at=at) == session[name].rows(at=at), (name, at)
    assert branch["busy"].rows() == session["labels"].filter("n > 1").rows()
    assert branch["edges"].rows(at="late") == session["edges"].rows(at=late.number)
    with branch.epoch(once="late load") as again:
        branch.inputs["edges"].insert([(1, 1), (2, 2), (6, 1)])
    assert again.skipped
    assert branch.follow(session) == session.now  # nothing is taken twice
    branch.close()


def test_following_goes_on_where_it_ended_and_beside_epochs_of_its_own(session: Session) -> None:
    committed(session, 6)
    with session.branch("mine", at=3) as branch:
        branch.follow(session, upto=4)
        branch.inputs["edges"].insert([(6, 0)])
        assert branch.commit() == 5
        branch.inputs["nodes"].upsert([(3, "mine")])
        branch.commit()
    with nosync_nb.open(os.path.join(session.path, "branches", "mine")) as again:
        assert again.follow(session) == 8
        assert sorted(again["edges"].rows()) == sorted([*session["edges"].rows(), (6, 0)])
        assert again["nodes"].rows() == session["nodes"].rows()


def test_whom_a_branch_cannot_follow_is_told_and_nothing_is_taken(
    session: Session, tmp_path: Path
) -> None:
    committed(session, 4)
    with session.branch("one", at=2) as one, one.branch("two") as two:
        with pytest.raises(SchemaError, match="is not a branch of"):
            two.follow(session)
        with pytest.raises(SchemaError, match="is not a branch of"):
            session.follow(one)
        with pytest.raises(TimeError, match="is not readable"):
            one.follow(session, upto=9)
        one.inputs["edges"].insert([(1, 1)])
        with pytest.raises(StageError, match="1 rows are pending"):
            one.follow(session)
        one.discard()
        session.drop("edges", cascade=True)
        session.input("edges", "src string")
        with pytest.raises(SchemaError, match="in the parent"):
            one.follow(session)
        assert one.now == 2
    with nosync_nb.open(tmp_path / "log", mode="r") as reader:
        assert reader.now == 4


def test_a_branch_follows_a_parent_that_is_only_read_here(session: Session, tmp_path: Path) -> None:
    committed(session, 3)
    path = session.fork("mine", 1)
    session.close()
    with nosync_nb.open(tmp_path / "log", mode="r") as parent, nosync_nb.open(path) as branch:
        branch.follow(parent)
        assert contents(branch) == contents(parent)


# -- copies elsewhere ------------------------------------------------------------------------------


def test_a_branch_is_kept_at_the_replicas_of_its_parent_and_comes_back_from_them(
    tmp_path: Path,
) -> None:
    url = f"file://{tmp_path / 'copy'}"
    with nosync_nb.open(tmp_path / "log", replicas=[url]) as session:
        described(session)
        committed(session, 5)
        checkpoint_now(session)
        committed(session, 2)
        then = contents(session, 4)
        with session.branch("past", at=4) as branch:
            branch.inputs["edges"].insert([(6, 6)])
            branch.commit(wait="replicas", timeout=60)
            assert branch.recovery_frontier("disk") == 5
            was, path = contents(branch), branch.path
        session.sync("replicas", timeout=60)
        assert (tmp_path / "copy" / "branches" / "past").is_dir()
    shutil.rmtree(path)
    copies = [f"{url}/branches/past"]
    with nosync_nb.open(path, replicas=copies) as again:
        assert contents(again) == was
        assert contents(again, 4) == then
        committed(again, 1)
    with nosync_nb.open(tmp_path / "log") as session:
        assert [(b.name, b.at, b.now) for b in session.branches.values()] == [("past", 4, 6)]
        assert contents(session, 4) == then


def test_a_branch_that_was_made_and_not_opened_goes_to_the_replicas_when_it_is(
    tmp_path: Path,
) -> None:
    url = f"file://{tmp_path / 'copy'}"
    with nosync_nb.open(tmp_path / "log", replicas=[url]) as session:
        described(session)
        committed(session, 5)
        path = session.fork("made", 4)
        told = session.rewind(to=3)
        assert not (tmp_path / "copy" / "branches").exists()
        for name, folder in (("made", path), (told.branch, told.path)):
            with nosync_nb.open(folder) as branch:
                (note,) = (text for text in branch.recovery.notes if "replicated to" in text)
                assert note.endswith(f"is now replicated to {url}/branches/{name}")
                branch.inputs["edges"].insert([(6, 6)])
                branch.commit(wait="replicas", timeout=60)
                was = contents(branch)
            shutil.rmtree(folder)
            with nosync_nb.open(folder, replicas=[f"{url}/branches/{name}"]) as again:
                assert contents(again) == was
                assert not [text for text in again.recovery.notes if "this disk only" in text]


def test_replicas_that_are_away_keep_nobody_from_a_branch_and_are_prepared_when_they_are_back(
    tmp_path: Path,
) -> None:
    url, away = f"file://{tmp_path / 'disk' / 'copy'}", tmp_path / "away"
    (tmp_path / "disk").mkdir()
    with nosync_nb.open(tmp_path / "log", replicas=[url]) as session:
        described(session)
        committed(session, 3)
        session.sync("replicas", timeout=60)
        (tmp_path / "disk").rename(away)
        path = session.fork("made", 2)
        with nosync_nb.open(path) as branch:
            assert [text for text in branch.recovery.notes if "on this disk only" in text]
            committed(branch, 1)
            assert not (tmp_path / "disk").exists()
        away.rename(tmp_path / "disk")
        with nosync_nb.open(path) as branch:
            branch.sync("replicas", timeout=60)
            assert branch.recovery_frontier("disk") == 3


def test_the_first_epoch_near_now_touches_what_it_changes_and_runs_nothing_anew(
    session: Session, frames: bool
) -> None:
    edges = session.inputs["edges"]
    edges.insert([(i % 7, i % 5) for i in range(3000)])
    session.commit()
    committed(session, 12)
    with session.branch("near", at=7) as branch:
        branch.inputs["edges"].insert([(1, 1)])
        branch.commit()
        assert (branch.stats["touched"] < 40) is frames
        assert branch["edges"].count() == len(session["edges"].rows(at=7)) + 1


@pytest.mark.usefixtures("frames")
def test_a_branch_of_what_went_back_is_of_the_epochs_that_followed(session: Session) -> None:
    """Frames that were left behind by a rewind tell of no epoch, whatever its number is."""
    committed(session, 9)
    session.rewind(to=5)
    for i in range(4):
        session.inputs["edges"].insert([(i, i)] * 2)
        session.commit()
    was = [contents(session, at) for at in range(session.now + 1)]
    for at in range(session.now + 1):
        with session.branch(f"at_{at}", at=at) as branch:
            assert contents(branch) == was[at], at
            if at > 2:
                branch.rewind(to=at - 2)
                assert contents(branch) == was[at - 2], at
            branch.inputs["edges"].clear()
            branch.commit()
            assert branch["labels"].rows() == []


def test_frames_before_the_epoch_of_a_branch_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But those of its segment; and these tell what all of them do."""
    monkeypatch.setattr(BackgroundWorker, "submit", lambda *_, **__: False)
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 16 << 10)
    with nosync_nb.open(tmp_path / "many") as session:
        described(session)
        committed(session, 150)
        ats = (session.now - 5, session.now - 60)
        was = {at: contents(session, at) for at in ats}
        files, log = store_of(session).files, store_of(session).log
        every = len(point_in_time.recent_frames(files, log, 0, session.now, ()))
        read = {at: len(point_in_time.recent_frames(files, log, at, session.now, ())) for at in ats}
        for at in ats:
            with session.branch(f"at_{at}", at=at) as branch:
                assert contents(branch) == was[at]
                branch.inputs["edges"].clear()
                branch.commit()
                assert branch["labels"].rows() == []
    assert every > 150
    assert 5 < read[ats[0]] < every / 3
    assert 60 < read[ats[1]] < every


def test_a_damaged_frame_of_the_past_makes_a_branch_dearer_and_nothing_else(
    session: Session, tmp_path: Path
) -> None:
    committed(session, 6)
    checkpoint_now(session)
    committed(session, 4)
    was = contents(session, 8)
    session.sync()
    (segment,) = (tmp_path / "log").glob("segment-*")
    data = bytearray(segment.read_bytes())
    data[400] ^= 1
    segment.write_bytes(data)
    with session.branch("past", at=8) as branch:
        assert contents(branch) == was
        committed(branch, 1)
        assert contents(branch) == contents(session, 9)


@pytest.mark.usefixtures("small")
def test_a_branch_is_synced_as_a_whole_before_it_has_its_name(
    on: Callable[[Files], Session],
) -> None:
    disk = FaultyFiles()
    with on(disk) as session:
        prepared(session)
        _made_and_dropped(session)
        before = len(disk.steps)
        session.fork("trial", 3)
        steps = disk.steps[before:]
    named = [(step.action, step.name) for step in steps].index(("rename", "trial"))
    syncs = [at for at, step in enumerate(steps) if step.action.startswith("sync")]
    *all_of_it, name = syncs
    assert all_of_it[-1] < named < name
    assert all_of_it == list(range(all_of_it[0], named))
    twice = Counter((steps[at].action, steps[at].name) for at in all_of_it)
    assert set(twice.values()) == {1}


@pytest.mark.parametrize(("what", "waits"), [("branch", 6), ("rewind", 3)])
def test_near_now_the_disk_is_waited_for_that_often(
    session: Session, monkeypatch: pytest.MonkeyPatch, what: str, waits: int
) -> None:
    """Each wait is most of what a branch or a rewind takes; this thread makes so many.

    For a branch with one pack five files and two folders at once, then that of all branches; for
    who opens it the owner's file, the promise, a segment and their names. A rewind has its frame
    on disk instead: what it leaves is not opened.
    """
    committed(session, 5)
    session.branch("before").close()  # makes the folder of branches
    session.sync()
    me, counted = threading.get_ident(), 0

    def watched(sync: Callable[[int], None]) -> Callable[[int], None]:
        def seen(fd: int) -> None:
            nonlocal counted
            counted += threading.get_ident() == me
            sync(fd)

        return seen

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", watched(os.fsync))
        patch.setattr(os, "fdatasync", watched(os.fdatasync))
        if what == "branch":
            branch = session.branch("next")
        else:
            session.rewind(to=4)
    assert counted == waits
    if what == "branch":
        branch.close()
