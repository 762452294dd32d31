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


def define_stages(session: Session) -> None:
    """Defines inputs and stages with operator state: aggregates, a join, an unnamed node."""
    edges = session.input("edges", "src long, dst long")
    nodes = session.input("nodes", "node long, label string", key="node")
    joined = edges.filter("src != 3").join(nodes, on={"dst": "node"})
    session.stage("labels", joined.group_by("label").agg(n="count(*)", most="max(src)"))
    session.stage("pairs", edges.distinct())
    session.stage("busy", session["labels"].filter("n > 2"))


@pytest.fixture
def session(session: Session) -> Session:
    define_stages(session)
    return session


def commit_epochs(session: Session, count: int) -> None:
    """Commits epochs that insert and remove rows."""
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


def file_digests(folder: Path) -> dict[str, str]:
    """The hash of every file of a log, without its branches and its control block."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "branches" not in path.relative_to(folder).parts
        if path.name != "generation"
    }


# -- contents of a branch --------------------------------------------------------------------------


def test_branch_and_parent_are_independent(session: Session, tmp_path: Path) -> None:
    commit_epochs(session, 9)
    before, files = contents(session), file_digests(tmp_path / "log")
    branch = session.branch("other")
    assert file_digests(tmp_path / "log") == files
    assert branch.now == 9
    assert contents(branch) == before
    commit_epochs(branch, 3)
    assert contents(session) == before
    assert session.now == 9
    of_branch = contents(branch)
    commit_epochs(session, 5)
    assert contents(branch) == of_branch
    assert [contents(branch, at) for at in (4, 9)] == [contents(session, at) for at in (4, 9)]
    branch.close()
    assert session.verify().whole


@pytest.fixture(params=["frames", "no frames"])
def frames_retained(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """True if frames record the changes since an epoch, False if they are no longer retained."""
    retained = request.param == "frames"
    if not retained:
        monkeypatch.setattr(point_in_time, "EPOCHS_MAX", -(1 << 40))
    return retained


@pytest.mark.usefixtures("frames_retained")
@pytest.mark.parametrize("checkpoint", [None, 7, 14])
@pytest.mark.parametrize("at", [0, 1, 6, 8, 14, 15])
def test_branch_at_any_epoch_equals_parent_and_continues_alike(
    session: Session, at: int, checkpoint: int | None
) -> None:
    """Operator state is right as well: the next epochs equal those of the parent."""
    for _ in range(15):
        commit_epochs(session, 1)
        if session.now == checkpoint:
            checkpoint_now(session)
    with session.branch("past", at=at) as branch:
        assert branch.now == at
        assert contents(branch) == contents(session, at)
        for epoch in range(at + 1, 16):
            commit_epochs(branch, 1)
            assert contents(branch) == contents(session, epoch), epoch
        assert [contents(branch, e) for e in range(16)] == [contents(session, e) for e in range(16)]
    with nosync_nb.open(os.path.join(session.path, "branches", "past")) as again:
        assert again.recovery.clean
        assert contents(again) == contents(session, 15)
        assert again.verify().whole


def test_branch_of_branch_and_branch_of_reopened_parent(session: Session, tmp_path: Path) -> None:
    commit_epochs(session, 8)
    expected = contents(session, 3)
    with session.branch("one", at=6) as one:
        commit_epochs(one, 2)
        with one.branch("two", at=3) as two:
            assert contents(two) == expected
            assert list(one.branches) == ["two"]
    session.close()
    with nosync_nb.open(tmp_path / "log") as again, again.branch("three", at=3) as three:
        assert contents(three) == expected
        commit_epochs(three, 5)
        assert contents(three) == contents(again)


def test_branch_has_times_labels_and_load_keys_up_to_its_epoch(session: Session) -> None:
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


def test_stage_defined_after_the_branch_epoch_is_computed_from_its_inputs(session: Session) -> None:
    commit_epochs(session, 6)
    late = session["pairs"].group_by("dst").agg(n="count(*)")
    over = late.filter("n > 1")
    session.replay_rows = 0
    session.stage("late", session["pairs"].group_by("dst").agg(n="count(*)"))
    session.stage("over", session["late"].filter("n > 1"))
    more = session.input("more", "x long")
    more.insert([(1,)])
    commit_epochs(session, 4)
    with session.branch("past", at=4) as branch:
        assert branch.recovery.stages["late"] == branch.recovery.stages["over"] == "recompute"
        assert branch["more"].rows() == []
        assert branch["late"].rows() == late.rows(at=4)
        assert branch["over"].rows() == over.rows(at=4)
        with pytest.raises(TimeError):
            branch["late"].rows(at=3)
        commit_epochs(branch, 1)
        assert branch["late"].rows() == late.rows(at=5)
        branch.inputs["more"].insert([(2,)])
        branch.commit()
        assert branch["more"].rows() == [(2,)]
    with nosync_nb.open(os.path.join(session.path, "branches", "past")) as again:
        assert again.recovery.stages["late"] == "read"
        assert again["late"].rows() == late.rows(at=5)


def test_reader_of_branch_gets_time_error_for_stage_never_computed(session: Session) -> None:
    commit_epochs(session, 6)
    session.replay_rows = 0
    session.stage("late", session["pairs"].group_by("dst").agg(n="count(*)"))
    path = session.fork("past", 4)
    with nosync_nb.open(path, mode="r") as reader:
        assert reader["pairs"].rows() == session["pairs"].rows(at=4)
        with pytest.raises(TimeError):
            reader["late"].rows()


def test_nondeterministic_stage_in_branch_is_read_or_stale(
    session: Session, frames_retained: bool
) -> None:
    """A past epoch retains the results of its functions only, not their inputs."""
    drawn = session["edges"].with_columns(id="uuid()")
    session.stage("drawn", drawn, nondeterministic=True)
    commit_epochs(session, 6)
    with session.branch("now") as now:
        commit_epochs(now, 1)
        assert now["drawn"].rows(at=6) == session["drawn"].rows()
        assert not now.stale
    stopped = 0
    for at in range(1, 6):
        expected = session["drawn"].rows(at=at)
        with session.branch(f"at_{at}", at=at) as past:
            assert past["drawn"].rows() == expected
            past.inputs["edges"].clear()
            past.commit()
            if past.stale:
                stopped += 1
                assert "run the stage's cell" in past.stale["drawn"]
            else:
                assert past["drawn"].rows() == []  # each removal retracts the memoised result
            assert past["drawn"].rows(at=at) == expected
    assert bool(stopped) is not frames_retained


def test_memory_stages_and_stale_stages_are_in_a_branch(session: Session) -> None:
    session.stage("here", session["pairs"].group_by("src").agg(n="count(*)"), persist="memory")
    session.stage("base", session["edges"].with_columns(twice="src * 2"))
    session.stage("reads", session["base"].filter("twice > 4"))
    commit_epochs(session, 4)
    session.stage("base", session["edges"].with_columns(thrice="src * 3"))
    assert "reads" in session.stale
    commit_epochs(session, 4)
    for at in (3, 6, 8):
        with session.branch(f"at_{at}", at=at) as branch:
            assert branch["here"].rows() == session["here"].rows(at=at)
            assert branch["reads"].rows(at=3) == session["reads"].rows(at=3)
            assert "reads" in branch.stale
            commit_epochs(branch, 1)
            if at < 8:
                assert branch["here"].rows() == session["here"].rows(at=at + 1)


def test_user_functions_run_in_a_branch_of_another_process(
    session: Session, tmp_path: Path
) -> None:
    above = 3
    session.stage("mine", session["edges"].filter(lambda row: row.src > above))
    commit_epochs(session, 6)
    path = session.fork("past", 4)
    code = (
        f"import nosync_nb; s = nosync_nb.open({path!r}); assert not s.stale, s.stale;"
        "s.inputs['edges'].insert([(6, 6), (1, 1)]); s.commit(); print(s['mine'].rows())"
    )
    env = {**os.environ, "NOSYNC_KEY_FILE": str(tmp_path / "key")}
    output = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    expected = [*session["mine"].rows(at=4), (6, 6)]
    assert output.stdout.decode().count("Row(") == len(expected)
    assert session.branches["past"].now == 5


# -- files -----------------------------------------------------------------------------------------


@pytest.fixture
def spilling_session(session: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session that writes nearly everything to files."""
    for place in (store, maintenance):
        monkeypatch.setattr(place, "SPILL_ROWS", 4)
    monkeypatch.setattr(store, "SPILL_BYTES", 64)
    monkeypatch.setattr(store, "SETTLED_BYTES", 64)
    return session


def load_epochs(session: Session, count: int) -> None:
    for i in range(session.now + 1, session.now + count + 1):
        session.inputs["edges"].insert([(i, k % 6) for k in range(12)])
        session.commit()
        drain_background(session)


def test_branch_links_files_instead_of_copying_them(
    spilling_session: Session, tmp_path: Path
) -> None:
    load_epochs(spilling_session, 6)
    checkpoint_now(spilling_session)
    branch = spilling_session.branch("other")
    for inner in ("layers", "history"):
        files = tmp_path / "log" / inner
        linked = tmp_path / "log" / "branches" / "other" / inner
        names = [each.name for each in linked.iterdir()]
        assert names
        assert all((files / name).samefile(linked / name) for name in names)
    branch.close()


def test_file_exists_until_neither_parent_nor_branch_references_it(
    spilling_session: Session, tmp_path: Path
) -> None:
    load_epochs(spilling_session, 8)
    checkpoint_now(spilling_session)
    expected, early = contents(spilling_session, 5), contents(spilling_session, 2)
    branch = spilling_session.branch("past", at=5)
    spilling_session.drop("busy", "labels", "pairs")
    spilling_session.inputs["edges"].clear()
    for _ in range(4):
        load_epochs(spilling_session, 2)
        checkpoint_now(spilling_session)
    assert contents(branch) == expected
    assert contents(branch, 2) == early
    load_epochs(branch, 3)
    for _ in range(3):
        checkpoint_now(branch)
        load_epochs(branch, 1)
    branch.close()
    with nosync_nb.open(tmp_path / "log" / "branches" / "past") as again:
        assert contents(again, 5) == expected
        assert again.verify().whole
    rows = spilling_session["edges"].rows()
    spilling_session.drop_branch("past")
    assert spilling_session["edges"].rows() == rows
    assert spilling_session.verify().whole


def test_lazily_read_epoch_survives_retention_in_a_branch(session: Session, tmp_path: Path) -> None:
    for _ in range(3):
        commit_epochs(session, 20)
        checkpoint_now(session)
    expected = contents(session, 47)  # with it a group of 16 epochs ends
    with session.branch("past", at=47) as branch:
        branch.retain = 4
        for _ in range(4):
            for _ in range(16):
                branch.inputs["edges"].insert([(1, 1)])
                branch.commit()
            checkpoint_now(branch)
        with pytest.raises(TimeError):
            branch["nodes"].rows(at=41)
        assert [tuple(row) for row in branch["nodes"].rows()] == expected["nodes"]
        assert branch["pairs"].count() == len({*expected["pairs"], (1, 1)})
    with nosync_nb.open(tmp_path / "log" / "branches" / "past") as again:
        assert [tuple(row) for row in again["nodes"].rows()] == expected["nodes"]
        assert again["edges"].count() == len(expected["edges"]) + 64


# -- listing and dropping --------------------------------------------------------------------------


def test_branches_lists_fork_epoch_path_and_owner(session: Session) -> None:
    assert dict(session.branches) == {}
    commit_epochs(session, 5)
    one = session.branch("one", at=3)
    commit_epochs(one, 4)
    assert one.path == session.branches["one"].path
    assert [(b.name, b.at, b.now) for b in session.branches.values()] == [("one", 3, 7)]
    assert str(os.getpid()) in str(session.branches["one"].owner)
    assert nosync_nb.open(one.path) is one
    one.close()
    assert session.branches["one"].owner is None


def test_branches_reads_no_process_table_for_each_owner(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two", "three"):
        session.fork(name)
    list(session.branches)
    paths, read = list[str](), Files.read

    def reads(files: Files, path: str, **more: Any) -> bytes:
        paths.append(path)
        return read(files, path, **more)

    monkeypatch.setattr(Files, "read", reads)
    assert [each.owner for each in session.branches.values()] == [None] * 3
    assert paths
    assert not [path for path in paths if path.startswith("/proc")]


@pytest.mark.parametrize("back", ["branch", "rewind"])
def test_operator_state_is_rebuilt_and_past_rows_are_not_repeated(
    session: Session, back: str
) -> None:
    """A memory stage is recomputed over the whole past, a loop beside it only for its state."""
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


def test_damaged_branch_is_listed_as_damaged_beside_the_others(
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


def test_dropped_branch_frees_its_name(session: Session, tmp_path: Path) -> None:
    commit_epochs(session, 5)
    session.branch("one", at=3).close()
    session.drop_branch("one")
    assert os.listdir(tmp_path / "log" / "branches") == []
    with session.branch("one", at=2) as again:
        assert again.now == 2


def test_branch_that_is_open_or_has_branches_is_not_dropped(session: Session) -> None:
    commit_epochs(session, 3)
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


def test_branch_of_dropped_branch_is_refused_and_nothing_created(
    session: Session, tmp_path: Path
) -> None:
    commit_epochs(session, 3)
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
def test_longest_branch_name_can_be_created_and_dropped(session: Session, letter: str) -> None:
    longest = 246 // len(letter.encode()) * letter
    session.branch(longest).close()
    session.drop_branch(longest)
    with pytest.raises(SchemaError, match="bytes is too long") as raised:
        session.branch(longest + letter)
    assert "at most 246 bytes" in str(raised.value.hint)
    assert session.branches == {}


def test_invalid_branch_names_and_epochs_are_refused_and_leave_nothing(
    session: Session, tmp_path: Path
) -> None:
    commit_epochs(session, 3)
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


def test_log_signed_with_another_key_cannot_be_branched(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_epochs(session, 3)
    session.close()
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "strangers"))
    with nosync_nb.open(tmp_path / "log") as foreign:
        with pytest.raises(TrustError, match="signed with another key"):
            foreign.branch("mine")
        assert not foreign.branches


# -- crashes, disk errors and power loss -----------------------------------------------------------


@pytest.fixture
def single_threaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "open", partial(Log.open, background=False))


@pytest.fixture
def open_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Files], Session]:
    """Opens the log of the test on another disk."""
    return opener(monkeypatch, tmp_path / "log")


def prepare_log(session: Session) -> None:
    define_stages(session)
    commit_epochs(session, 4)
    checkpoint_now(session)
    commit_epochs(session, 3)


def steps_of(disk: FaultyFiles, act: Callable[[], Any]) -> int:
    before = len(disk.steps)
    act()
    return len(disk.steps) - before


def fork_and_drop(session: Session) -> None:
    session.fork("trial", 3)
    session.drop_branch("trial")


@pytest.mark.usefixtures("single_threaded")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("phase", ["before", "inside", "after"])
def test_crash_while_branching_or_dropping_leaves_all_or_nothing(
    open_on: Callable[[Files], Session], tmp_path: Path, phase: Phase
) -> None:
    with open_on(HastyFiles()) as session:
        prepare_log(session)
        was, then = contents(session), contents(session, 3)
    disk = FaultyFiles()
    session = open_on(disk)
    fork_and_drop(session)
    making = steps_of(disk, lambda: session.fork("trial", 3))
    dropping = steps_of(disk, lambda: session.drop_branch("trial"))
    session.close()
    assert making > 20
    made = 0
    for at in range(1, making + dropping + 1):
        disk = FaultyFiles(seed=at)
        session = open_on(disk)
        disk.crash_in(at, phase)
        with pytest.raises(Crash):
            fork_and_drop(session)
        disk.go_on()
        session.close()
        with open_on(HastyFiles()) as again:
            assert contents(again) == was, at
            assert list(again.branches) in ([], ["trial"]), at
            for branch in again.branches.values():
                made += 1
                with nosync_nb.open(branch.path) as past:
                    assert contents(past) == then, at
                again.drop_branch("trial")
            again.fork("trial", 3)  # an incomplete branch does not prevent the next one
            again.drop_branch("trial")
        assert os.listdir(tmp_path / "log" / "branches") == [], at
    assert 0 < made < making + dropping


@pytest.mark.usefixtures("single_threaded")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_disk_error_while_branching_leaves_parent_and_no_branch(
    open_on: Callable[[Files], Session], tmp_path: Path
) -> None:
    with open_on(HastyFiles()) as session:
        prepare_log(session)
        was = contents(session)
    disk = FaultyFiles()
    with open_on(disk) as session:
        fork_and_drop(session)
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
        commit_epochs(session, 2)


@pytest.mark.usefixtures("single_threaded")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_power_loss_while_branching_leaves_all_or_nothing(
    open_on: Callable[[Files], Session], tmp_path: Path
) -> None:
    with open_on(HastyFiles()) as session:
        prepare_log(session)
        was, then = contents(session), contents(session, 3)
    complete, at, crashes = False, 1, 0
    while not complete:
        disk = FaultyFiles(seed=at)
        session = open_on(disk)
        disk.crash_in(at, "after")
        with suppress(Crash):
            session.fork("trial", 3)
            complete = True
        crashes += not complete
        disk.lose_power(str(tmp_path / "log"))
        disk.go_on()
        session.close()
        with open_on(HastyFiles()) as again:
            assert contents(again) == was, at
            assert "trial" in again.branches or not complete
            for branch in again.branches.values():
                with nosync_nb.open(branch.path) as past:
                    assert contents(past) == then, at
                again.drop_branch("trial")
        at += 2
    assert crashes > 10


@pytest.mark.usefixtures("single_threaded")
@pytest.mark.parametrize("phase", ["before", "inside", "after"])
@pytest.mark.parametrize("power", [False, True])
def test_crash_or_power_loss_while_switching_branches_leaves_old_or_new(
    open_on: Callable[[Files], Session], tmp_path: Path, phase: Phase, power: bool
) -> None:
    with open_on(HastyFiles()) as session:
        prepare_log(session)
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


def test_branch_without_hard_links_reports_the_file_system(
    spilling_session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    load_epochs(spilling_session, 3)

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(95, os.strerror(95))

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(DurabilityError, match="the file system has no hard links") as raised:
        spilling_session.branch("other")
    assert "local disk" in str(raised.value.hint)
    assert os.listdir(tmp_path / "log" / "branches") == []
    load_epochs(spilling_session, 1)


# -- later epochs of the parent --------------------------------------------------------------------


def test_follow_takes_parent_epochs_through_other_stages(session: Session) -> None:
    commit_epochs(session, 5)
    branch = session.branch("what_if", at=2)
    branch.stage("busy", branch["labels"].filter("n > 1"))
    with session.epoch(once="late load", label="late") as late:
        session.inputs["edges"].insert([(1, 1), (2, 2), (6, 1)])
        session.inputs["nodes"].delete([(4,)])
    commit_epochs(session, 3)
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
    assert branch.follow(session) == session.now  # no epoch is taken twice
    branch.close()


def test_follow_continues_where_it_ended_beside_own_epochs(session: Session) -> None:
    commit_epochs(session, 6)
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


def test_follow_of_a_log_that_is_not_the_parent_is_refused(
    session: Session, tmp_path: Path
) -> None:
    commit_epochs(session, 4)
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


# -- replicas --------------------------------------------------------------------------------------


def test_branch_is_replicated_with_its_parent_and_restored(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'copy'}"
    with nosync_nb.open(tmp_path / "log", replicas=[url]) as session:
        define_stages(session)
        commit_epochs(session, 5)
        checkpoint_now(session)
        commit_epochs(session, 2)
        then = contents(session, 4)
        with session.branch("past", at=4) as branch:
            branch.inputs["edges"].insert([(6, 6)])
            branch.commit(wait="replicas", timeout=60)
            assert branch.recovery_frontier("disk") == 5
            expected, path = contents(branch), branch.path
        session.sync("replicas", timeout=60)
        assert (tmp_path / "copy" / "branches" / "past").is_dir()
    shutil.rmtree(path)
    copies = [f"{url}/branches/past"]
    with nosync_nb.open(path, replicas=copies) as again:
        assert contents(again) == expected
        assert contents(again, 4) == then
        commit_epochs(again, 1)
    with nosync_nb.open(tmp_path / "log") as session:
        assert [(b.name, b.at, b.now) for b in session.branches.values()] == [("past", 4, 6)]
        assert contents(session, 4) == then


def test_branch_made_unopened_is_replicated_when_opened(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'copy'}"
    with nosync_nb.open(tmp_path / "log", replicas=[url]) as session:
        define_stages(session)
        commit_epochs(session, 5)
        path = session.fork("made", 4)
        rewound = session.rewind(to=3)
        assert not (tmp_path / "copy" / "branches").exists()
        for name, folder in (("made", path), (rewound.branch, rewound.path)):
            with nosync_nb.open(folder) as branch:
                (note,) = (text for text in branch.recovery.notes if "replicated to" in text)
                assert note.endswith(f"is now replicated to {url}/branches/{name}")
                branch.inputs["edges"].insert([(6, 6)])
                branch.commit(wait="replicas", timeout=60)
                expected = contents(branch)
            shutil.rmtree(folder)
            with nosync_nb.open(folder, replicas=[f"{url}/branches/{name}"]) as again:
                assert contents(again) == expected
                assert not [text for text in again.recovery.notes if "this disk only" in text]


def test_branch_needs_no_replica_and_catches_up_when_replicas_return(tmp_path: Path) -> None:
    url, away = f"file://{tmp_path / 'disk' / 'copy'}", tmp_path / "away"
    (tmp_path / "disk").mkdir()
    with nosync_nb.open(tmp_path / "log", replicas=[url]) as session:
        define_stages(session)
        commit_epochs(session, 3)
        session.sync("replicas", timeout=60)
        (tmp_path / "disk").rename(away)
        path = session.fork("made", 2)
        with nosync_nb.open(path) as branch:
            assert [text for text in branch.recovery.notes if "on this disk only" in text]
            commit_epochs(branch, 1)
            assert not (tmp_path / "disk").exists()
        away.rename(tmp_path / "disk")
        with nosync_nb.open(path) as branch:
            branch.sync("replicas", timeout=60)
            assert branch.recovery_frontier("disk") == 3


def test_first_epoch_near_the_present_touches_only_its_changes(
    session: Session, frames_retained: bool
) -> None:
    edges = session.inputs["edges"]
    edges.insert([(i % 7, i % 5) for i in range(3000)])
    session.commit()
    commit_epochs(session, 12)
    with session.branch("near", at=7) as branch:
        branch.inputs["edges"].insert([(1, 1)])
        branch.commit()
        assert (branch.stats["touched"] < 40) is frames_retained
        assert branch["edges"].count() == len(session["edges"].rows(at=7)) + 1


@pytest.mark.usefixtures("frames_retained")
def test_branch_after_rewind_has_only_current_epochs(session: Session) -> None:
    """Frames that a rewind has undone are ignored, although they have the same epoch numbers."""
    commit_epochs(session, 9)
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


def test_branch_reads_no_frames_before_its_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except those in the same segment; the contents are equal to those from all frames."""
    monkeypatch.setattr(BackgroundWorker, "submit", lambda *_, **__: False)
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 16 << 10)
    with nosync_nb.open(tmp_path / "many") as session:
        define_stages(session)
        commit_epochs(session, 150)
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


def test_branch_survives_damaged_frame_of_the_past(session: Session, tmp_path: Path) -> None:
    commit_epochs(session, 6)
    checkpoint_now(session)
    commit_epochs(session, 4)
    expected = contents(session, 8)
    session.sync()
    (segment,) = (tmp_path / "log").glob("segment-*")
    data = bytearray(segment.read_bytes())
    data[400] ^= 1
    segment.write_bytes(data)
    with session.branch("past", at=8) as branch:
        assert contents(branch) == expected
        commit_epochs(branch, 1)
        assert contents(branch) == contents(session, 9)


@pytest.mark.usefixtures("single_threaded")
def test_branch_is_synced_once_before_it_is_renamed(open_on: Callable[[Files], Session]) -> None:
    disk = FaultyFiles()
    with open_on(disk) as session:
        prepare_log(session)
        fork_and_drop(session)
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
def test_branch_and_rewind_near_the_present_sync_a_fixed_number_of_times(
    session: Session, monkeypatch: pytest.MonkeyPatch, what: str, waits: int
) -> None:
    """Waiting for the disk is most of the time of a branch or a rewind.

    Counts the waits of the calling thread. A branch with one pack syncs five files and two folders
    at once, then the folder of branches; opening it syncs the owner file, the fencing record, a
    segment and their names. A rewind syncs its frame instead, because the backup branch is not
    opened.
    """
    commit_epochs(session, 5)
    session.branch("before").close()  # makes the folder of branches
    session.sync()
    me, counted = threading.get_ident(), 0

    def counting_sync(sync: Callable[[int], None]) -> Callable[[int], None]:
        def counting(fd: int) -> None:
            nonlocal counted
            counted += threading.get_ident() == me
            sync(fd)

        return counting

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", counting_sync(os.fsync))
        patch.setattr(os, "fdatasync", counting_sync(os.fdatasync))
        if what == "branch":
            branch = session.branch("next")
        else:
            session.rewind(to=4)
    assert counted == waits
    if what == "branch":
        branch.close()
