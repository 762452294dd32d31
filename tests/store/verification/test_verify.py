"""`verify`: it names every damaged file, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checks.damaged_bytes import flipped
from internals import checkpoint_now, lease_of, log_of, settle_background, snapshot_of

import nosync_nb
from nosync_nb import Session
from nosync_nb.errors import DurabilityError, TrustError
from nosync_nb.files.filesystem import File, Files
from nosync_nb.session.maintenance import maintenance
from nosync_nb.store import store
from nosync_nb.store.log import segments, writer
from nosync_nb.store.verification import verify as verify_module
from nosync_nb.store.verification.report import DamagedRange, VerificationReport
from nosync_nb.store.verification.survey import LogSurvey, survey_log
from nosync_nb.store.verification.verify import verify

SPILL_ROWS = 40
EPOCHS = 24


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOSYNC_KEY_FILE", str(tmp_path_factory.mktemp("keys") / "key"))
        yield


def small_files(patch: pytest.MonkeyPatch) -> None:
    """Few rows make a part file, and few bytes a segment."""
    patch.setattr(store, "SPILL_ROWS", SPILL_ROWS)
    patch.setattr(maintenance, "SPILL_ROWS", SPILL_ROWS)
    patch.setattr(writer, "SEGMENT_BYTES_MAX", 2000)


def commit_epochs(session: Session, epochs: range) -> None:
    """Commits epochs of few rows, sometimes of many, with checkpoints."""
    edges = session.inputs["edges"]
    for epoch in epochs:
        count = 3 * SPILL_ROWS if epoch % 9 == 7 else 4
        edges.insert([(i % 11, epoch * 1000 + i) for i in range(count)])
        session.commit()
        if epoch % 10 == 9:
            settle_background(session)
            checkpoint_now(session)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, keys: None) -> Path:
    """A log of two checkpoints, several segments of two owners, parts and packs."""
    path = tmp_path_factory.mktemp("written") / "x.nosync"
    with pytest.MonkeyPatch.context() as patch:
        small_files(patch)
        with nosync_nb.open(path) as session:
            edges = session.input("edges", "src int, dst int")
            session.stage("degrees", edges.group_by("src").agg(n="count(*)"))
            session.stage("far", edges.filter("dst > 2000"))
            commit_epochs(session, range(1, EPOCHS - 3))
        with nosync_nb.open(path) as session:
            commit_epochs(session, range(EPOCHS - 3, EPOCHS + 1))
    return path


@pytest.fixture
def log(written: Path, tmp_path: Path) -> Path:
    """A copy of it that may be damaged."""
    return Path(shutil.copytree(written, tmp_path / "x.nosync"))


def files_of(log: Path) -> list[Path]:
    """All that holds frames, states and rows."""
    return sorted(p for p in log.rglob("*") if p.suffix in (".log", ".state", ".arrow", ".pack"))


def damaged_names(found: VerificationReport) -> set[str]:
    return {each.file for each in found.damage}


def test_intact_log_is_whole_and_read_completely(log: Path) -> None:
    found = verify(str(log))
    assert found.whole, found
    assert found.epoch == EPOCHS
    paths = files_of(log)
    kinds = [path.suffix for path in paths]
    assert kinds.count(".log") >= 3
    assert kinds.count(".state") == 2
    assert kinds.count(".arrow") >= 3
    assert kinds.count(".pack") >= 2
    assert found.files == len(paths)
    assert found.bytes >= sum(path.stat().st_size for path in paths)
    assert found.bytes <= 2 * sum(path.stat().st_size for path in paths)


def positions(size: int) -> set[int]:
    """Positions at the beginning and the end of a file, and some between."""
    ends = [*range(0, 56, 9), *range(size - 90, size, 7)]
    return {at for at in (*ends, *range(60, size, max(1, size // 9))) if 0 <= at < size}


@pytest.mark.fault(12)
def test_changed_byte_of_any_file_is_named(log: Path) -> None:
    for path in files_of(log):
        good = path.read_bytes()
        for at in sorted(positions(len(good))):
            path.write_bytes(flipped(good, at, at % 8))
            found = verify(str(log))
            assert damaged_names(found) == {path.name}, (at, len(good), found)
        path.write_bytes(good)
    assert verify(str(log)).whole


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def zeroed(data: bytes) -> bytes:
    return bytes(len(data))


def emptied(data: bytes) -> bytes:
    return b""


def zeros_inside(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(min(300, len(data) - middle)) + data[middle + 300 :]


@pytest.mark.fault(13, 15)
@pytest.mark.parametrize("spoil", [truncated, zeroed, emptied, zeros_inside])
def test_damaged_file_is_named(log: Path, spoil: Callable[[bytes], bytes]) -> None:
    for path in files_of(log):
        good = path.read_bytes()
        path.write_bytes(spoil(good))
        if path.read_bytes() != good:
            assert damaged_names(verify(str(log))) == {path.name}, (path, verify(str(log)))
        path.write_bytes(good)


@pytest.mark.fault(14, 15)
def test_deleted_file_is_named_unless_it_is_not_needed(log: Path, tmp_path: Path) -> None:
    paths = files_of(log)
    last = [path for path in paths if path.suffix == ".log"][-1]
    for path in paths:
        aside = path.rename(tmp_path / "aside")
        found = verify(str(log))
        if path.suffix == ".state":  # the other one and the later frames suffice
            assert found.whole, found
        elif path == last:
            assert len(found.damage) == 1, found
            assert "what follows it" in found.damage[0].what
        else:
            assert damaged_names(found) == {path.name}, found
        aside.rename(path)


@pytest.mark.fault(15)
@pytest.mark.parametrize("suffix", [".log", ".state", ".arrow", ".pack"])
def test_exchanged_files_are_both_named(log: Path, suffix: str) -> None:
    first, second = [path for path in files_of(log) if path.suffix == suffix][:2]
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    assert damaged_names(verify(str(log))) == {first.name, second.name}


def test_damage_names_stage_and_epochs(log: Path) -> None:
    with nosync_nb.open(log) as session:
        (layer,) = [
            layer for trace in snapshot_of(session).contents("far").layers[:1] for layer in [trace]
        ]
    assert layer.files
    path = log / "layers" / layer.files[0].path
    path.write_bytes(flipped(path.read_bytes(), 100, 2))
    (damage,) = verify(str(log)).damage
    assert damage.stage == "far"
    assert damage.epochs == range(layer.lower, layer.upper)
    assert f"stage 'far', epochs {layer.lower} to {layer.upper - 1}" in str(damage)


def test_damaged_frame_loses_only_its_epoch(log: Path) -> None:
    """Only the epoch of the damaged frame is named."""
    path = [each for each in files_of(log) if each.suffix == ".log"][-2]
    good = path.read_bytes()
    epochs = set()
    for at in range(140, len(good) - 40, 40):
        path.write_bytes(flipped(good, at, 4))
        (damage,) = verify(str(log)).damage
        assert damage.epochs is not None
        assert len(damage.epochs) == 1
        epochs.update(damage.epochs)
    assert len(epochs) > 1
    assert epochs <= set(range(1, EPOCHS + 1))


@pytest.mark.fault(10, 13)
def test_unsynced_torn_tail_is_only_a_note(log: Path) -> None:
    """After another boot the published offset is void, and frames prove the durable ones."""

    path = [each for each in files_of(log) if each.suffix == ".log"][-1]
    (log / "owner").unlink()  # without it the boot is unknown
    with path.open("ab") as file:
        file.write(b"\x89NSFtorn")
    found = verify(str(log))
    assert found.whole, found
    assert "never synced" in found.notes[0]
    path.write_bytes(path.read_bytes()[:-30])
    assert damaged_names(verify(str(log))) == {path.name}, "the frame was durable"


def test_unreferenced_files_are_ignored(log: Path) -> None:
    (log / "layers" / "stray-1-g1-ab.arrow").write_bytes(b"rubbish")
    (log / "notes.txt").write_text("mine")
    assert verify(str(log)).whole


def test_missing_log_or_link_cannot_be_verified(log: Path, tmp_path: Path) -> None:
    with pytest.raises(DurabilityError, match="no log"):
        verify(str(tmp_path / "nothing"))
    (tmp_path / "link").symlink_to(log)
    with pytest.raises(TrustError):
        verify(str(tmp_path / "link"))
    shutil.rmtree(log / "layers")
    (log / "layers").symlink_to(tmp_path)
    with pytest.raises(TrustError):
        verify(str(log))


class Unreadable(Files):
    """A disk with one unreadable file."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, path: str, *, write: bool = False):  # type: ignore[no-untyped-def]
        if os.path.basename(path) == self.name:
            raise DurabilityError("the device reports an error")
        return super().open(path, write=write)


@pytest.mark.fault(12)
def test_checkpoint_of_diverged_copy_is_damage(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "one") as session:
        session.input("edges", "src int, dst int")
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    for number, name in enumerate(("one", "other")):
        with nosync_nb.open(tmp_path / name) as session:
            session.inputs["edges"].insert([(number, number)])
            session.commit()
            checkpoint_now(session)
            session.inputs["edges"].insert([(2, 2)])
            session.commit()
    newest = max(path.name for path in (tmp_path / "one").glob("checkpoint-*"))
    shutil.copy(tmp_path / "one" / newest, tmp_path / "other" / newest)
    assert verify(str(tmp_path / "one")).whole
    assert damaged_names(verify(str(tmp_path / "other"))) == {newest}


@pytest.mark.fault(17)
def test_unreadable_file_is_damage(log: Path) -> None:
    for path in files_of(log):
        found = verify(str(log), files=Unreadable(path.name))
        assert damaged_names(found) == {path.name}, found
        assert "device" in found.damage[0].what


def test_concurrent_commits_and_merges_are_no_damage(
    tmp_path: Path, keys: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other work continues between reads; here it commits whole epochs."""
    small_files(monkeypatch)
    session = nosync_nb.open(tmp_path / "x.nosync")
    edges = session.input("edges", "src int, dst int")
    session.stage("degrees", edges.group_by("src").agg(n="count(*)"))
    commit_epochs(session, range(1, 12))
    ended = threading.Event()
    epochs = iter(range(12, 100_000))

    def go_on() -> None:
        while not ended.is_set():
            first = next(epochs)
            commit_epochs(session, range(first, first + 1))

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        rounds = []
        while len(rounds) < 12:
            found = session.verify()
            assert found.whole, found
            rounds.append(found.epoch)
    finally:
        ended.set()
        thread.join()
        session.close()
    assert rounds == sorted(rounds)
    assert rounds[-1] > rounds[0], "nothing was committed meanwhile"
    assert verify(str(tmp_path / "x.nosync")).epoch >= rounds[-1]


@pytest.mark.fault(41)
def test_file_deleted_after_survey_is_no_damage(
    tmp_path: Path, keys: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files(monkeypatch)
    with nosync_nb.open(tmp_path / "x.nosync") as session:
        edges = session.input("edges", "src int, dst int")
        session.stage("degrees", edges.group_by("src").agg(n="count(*)"))
        commit_epochs(session, range(1, 9))
        before = {path.name for path in files_of(tmp_path)}
        acts = iter([lambda: commit_epochs(session, range(9, 60))])

        def pause() -> None:
            act = next(acts, None)
            if act is not None:
                act()

        found = verify(session.path, pause=pause)
        assert before - {path.name for path in files_of(tmp_path)}, "nothing was deleted"
        assert found.whole, found
        assert found.epoch == 59


@pytest.mark.fault(41)
def test_segment_deleted_before_open_is_no_damage(
    tmp_path: Path, keys: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files(monkeypatch)
    with nosync_nb.open(tmp_path / "x.nosync") as session:
        edges = session.input("edges", "src int, dst int")
        session.stage("degrees", edges.group_by("src").agg(n="count(*)"))
        commit_epochs(session, range(1, 9))
        looks: list[str] = []

        class Meanwhile(Files):
            def open(self, path: str, *, write: bool = False) -> File:
                if path.endswith(".log") and path in looks and "gone" not in looks:
                    looks.append("gone")
                    commit_epochs(session, range(9, 60))
                    assert not os.path.exists(path), "it was not deleted"
                looks.append(path)
                return super().open(path, write=write)

        found = verify(session.path, files=Meanwhile())
        assert "gone" in looks
        assert found.whole, found
        assert found.epoch == 59


def test_unpublished_frame_is_not_verified(
    tmp_path: Path, keys: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the next segment exists and is empty, so that the last one is unknown."""
    with nosync_nb.open(tmp_path / "x.nosync") as session:
        session.input("edges", "src int, dst int")
        commit_epochs(session, range(1, 4))
        before = verify(session.path)
        lease, last = lease_of(log_of(session)), files_of(tmp_path)[-1]
        generation, number = map(int, last.stem.split("-")[1:])
        last.with_name(segments.file_name(generation, number + 1)).write_bytes(b"")
        publish, found = lease.publish, []

        def shown(offset: int) -> None:
            found.append(verify(session.path))
            publish(offset)

        monkeypatch.setattr(lease, "publish", shown)
        commit_epochs(session, range(4, 5))
        assert [(each.epoch, each.whole) for each in found] == [(before.epoch, True)]
        assert verify(session.path).epoch == before.epoch + 1


def test_second_survey_never_lowers_epoch(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[LogSurvey] = []

    def mixture(*given: Any) -> LogSurvey:
        """The first survey misses a merged file, the second one the last frames."""
        seen = survey_log(*given)
        looks.append(seen)
        gone = DamagedRange("gone.arrow", "it is missing")
        return seen._replace(damage=[gone]) if len(looks) == 1 else seen._replace(epoch=1)

    monkeypatch.setattr(verify_module, "survey_log", mixture)
    found = verify(str(log))
    assert (len(looks), found.epoch, found.whole) == (2, EPOCHS, True)


def test_verification_can_be_interrupted(log: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(str(log), pause=interrupt)
    with nosync_nb.open(log) as session:
        assert session.verify().whole


@pytest.mark.fault(43)
def test_verification_writes_and_runs_nothing(log: Path) -> None:
    def state() -> dict[str, tuple[bytes, int]]:
        every = [p for p in log.rglob("*") if p.is_file()]
        return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in every}

    before = state()
    assert verify(str(log)).whole
    assert state() == before
    code = (
        "import pickle, sys, nosync_nb.session.recovery.repair as c\n"
        "pickle.loads = pickle.load = pickle.Unpickler = None\n"
        f"assert c.main([{str(log)!r}]) == 0\n"
        "assert not {'pyspark', 'IPython'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def run_verify(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nosync_nb.verify", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("spoilt", "code"), [(False, 0), (True, 1)])
def test_command_exit_code_reports_damage(log: Path, *, spoilt: bool, code: int) -> None:
    path = next(each for each in files_of(log) if each.suffix == ".pack")
    if spoilt:
        path.write_bytes(truncated(path.read_bytes()))
    ran = run_verify(str(log))
    assert ran.returncode == code, ran
    assert (path.name in ran.stdout) is spoilt
    assert f"epoch {EPOCHS}" in ran.stdout


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["--what"], ["/nowhere/at/all"]])
def test_command_reports_invalid_arguments(arguments: list[str]) -> None:
    ran = run_verify(*arguments)
    assert ran.returncode == 2
    assert ran.stderr
    assert "Traceback" not in ran.stderr


def test_damage_escapes_hostile_text() -> None:
    damage = DamagedRange("x.arrow", "b\x1bad", "\u202estage", range(3, 4))
    assert str(damage) == "x.arrow (stage '\\u202estage', epoch 3): b\\x1bad"


@pytest.fixture
def sparse(tmp_path: Path, keys: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log with a frame in each segment; a stage reads a rarely changing input."""
    path = tmp_path / "sparse.nosync"
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 1)
    with nosync_nb.open(path) as session:
        edges, nodes = (
            session.input("edges", "src int, dst int"),
            session.input("nodes", "node int"),
        )
        for epoch in range(6):
            edges.insert([(epoch, epoch % 3)])
            if epoch in (0, 2):
                nodes.insert([(epoch,)])
            if epoch == 4:
                few = edges.join(nodes, on={"dst": "node"})
                session.define({"few": few}, replay=0)
            session.commit()
    return path


def test_log_that_begins_inside_definition_is_whole(sparse: Path, tmp_path: Path) -> None:
    before = tmp_path / "before"
    with nosync_nb.open(sparse) as session:
        for epoch in range(2):
            session.inputs["edges"].insert([(9 + epoch, 1)])
            session.commit()
            shutil.copytree(sparse, before, dirs_exist_ok=True)
            checkpoint_now(session)
    assert verify(str(sparse)).whole
    gone = [p for p in sorted(before.glob("*.log")) if not (sparse / p.name).exists()]
    assert len(gone) > 5
    read = verify(str(sparse)).bytes
    for segment in reversed(gone):
        shutil.copy(segment, sparse)
        found = verify(str(sparse))
        assert found.whole
        assert found.bytes > read
        read = found.bytes


@pytest.mark.fault(12)
def test_lost_frame_is_named_without_later_ones(sparse: Path) -> None:
    for path in sorted(sparse.glob("*.log")):
        good = path.read_bytes()
        path.write_bytes(flipped(good, -20))
        found = verify(str(sparse))
        assert damaged_names(found) <= {path.name}, found
        path.write_bytes(good)
    assert verify(str(sparse)).whole
