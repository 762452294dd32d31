"""`stream`: each micro-batch of Spark is one epoch, once."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from internals import services_of

import nosync_nb
from nosync_nb import Session
from nosync_nb.errors import DurabilityError, NosyncError, SchemaError, StageError
from nosync_nb.session.writes.commit import CommitService

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("own_key")]

DDL = "id bigint, carrier string"

KILLED = """
import os, signal, sys
import nosync_nb
from nosync_nb.session.writes.commit import CommitService
from nosync_nb.spark import launch

path, source, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
spark = launch.start_session({"spark.master": "local[2]", "spark.log.level": "OFF"})
sync = CommitService.sync
synced = []

def killed(self, *args):
    if len(synced) == at:
        os.kill(os.getpid(), signal.SIGKILL)  # the epoch is durable, and Spark gets no confirmation
    synced.append(1)
    sync(self, *args)

with nosync_nb.open(path, spark=spark) as session:
    flights = session.input("flights", "id bigint, carrier string")
    if at >= 0:
        CommitService.sync = killed
    frame = spark.readStream.schema("id bigint, carrier string").option("maxFilesPerTrigger", 1)
    session.stream(frame.parquet(source), into=flights).catch_up()
    print(session.recovery.recomputed, session.now, sorted(row.id for row in flights.rows()))
"""


class DurableFiles:
    """The durable state of some folders: synced names, and synced bytes of files.

    Unsynced files are missing or empty after a loss of power; both are tried.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._refused: str | None = None
        self._names: dict[int, list[str]] = {}
        self._bytes: dict[int, bytes] = {}
        self._system = os.fsync, os.fdatasync
        patch.setattr(os, "fsync", lambda fd: self._sync(fd, self._system[0]))
        patch.setattr(os, "fdatasync", lambda fd: self._sync(fd, self._system[1]))

    def _sync(self, fd: int, call: Callable[[int], None]) -> None:
        if self._refused is not None and re.search(
            self._refused, os.readlink(f"/proc/self/fd/{fd}")
        ):
            raise OSError(errno.EIO, "the disk refuses")
        call(fd)
        number = os.fstat(fd).st_ino
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            self._names[number] = os.listdir(fd)
        else:
            with open(f"/proc/self/fd/{fd}", "rb") as file:
                self._bytes[number] = file.read()

    def refuse(self, place: str) -> None:
        """Makes syncs below a path fail."""
        self._refused = place

    def cut(self, folder: Path, *, empty: bool, but: str = "") -> None:
        """Loses power in a folder and its subfolders."""
        names = self._names.get(folder.stat().st_ino, [])
        for path in sorted(folder.iterdir()):
            if path.name == but:
                continue
            if path.is_dir() and path.name in names:
                self.cut(path, empty=empty)
            elif path.is_dir():
                shutil.rmtree(path)
            elif path.stat().st_ino in self._bytes and path.name in names:
                path.write_bytes(self._bytes[path.stat().st_ino])
            elif empty:
                path.write_bytes(b"")
            else:
                path.unlink()


def lose_confirmations(patch: pytest.MonkeyPatch, at: int) -> None:
    """From some batch on epochs are committed and Spark gets no confirmation."""
    sync, taken = CommitService.sync, [1] * at

    def stopped(commits: CommitService, *given: str) -> None:
        sync(commits, *given)
        taken.pop()
        if not taken:
            raise DurabilityError("the power goes")

    patch.setattr(CommitService, "sync", stopped)


class Source:
    """A folder of files, each of which is a micro-batch."""

    def __init__(self, spark: Any, folder: Path) -> None:
        folder.mkdir()
        self._spark, self._folder = spark, folder

    def put(self, *rows: tuple[int, str]) -> None:
        frame = self._spark.createDataFrame(list(rows), DDL).coalesce(1)
        frame.write.mode("append").parquet(str(self._folder))

    @property
    def frame(self) -> Any:
        """Reads one file per batch."""
        reader = self._spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self._folder))

    @property
    def at_once(self) -> Any:
        """Reads all new files in one batch."""
        return self._spark.readStream.schema(DDL).parquet(str(self._folder))


@pytest.fixture
def source(spark: Any, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "source")


@pytest.fixture
def opened(spark: Any, tmp_path: Path) -> Callable[[], Session]:
    """Opens the log, with an input and a stage that counts its rows."""

    def again() -> Session:
        session = nosync_nb.open(tmp_path / "x.nosync", spark=spark)
        flights = session.input("flights", DDL)
        session.stage("counts", flights.group_by("carrier").agg(n="count(*)"))
        return session

    return again


def test_each_batch_is_one_epoch_across_restarts(
    spark: Any, source: Source, opened: Callable[[], Session]
) -> None:
    source.put((1, "UA"), (2, "AA"))
    source.put((3, "UA"))
    with opened() as session:
        feed = session.stream(source.frame, into=session.inputs["flights"])
        before = session.now
        assert feed.catch_up() == before + feed.epochs == before + 2
        assert session["counts"].rows() == [("AA", 1), ("UA", 2)]
        assert session.spark is spark  # and not the copy that batches belong to
        assert spark.table("counts").count() == 2
        assert feed.running
        source.put((4, "AA"))
        assert feed.catch_up() == before + 3
        assert not session.verify().damage
    assert not feed.running
    assert not feed.query.isActive
    source.put((5, "DL"))
    with opened() as session:
        epochs = session.now
        with session.stream(source.frame, into=session.inputs["flights"]) as feed:
            assert feed.catch_up() == epochs + 1
            assert "running stream into 'flights': 1 epoch>" in repr(feed)
        assert session["counts"].rows() == [("AA", 2), ("DL", 1), ("UA", 2)]
        assert "stopped" in repr(feed)


def test_state_of_stream_is_bounded_and_saved_with_each_epoch(
    source: Source, opened: Callable[[], Session]
) -> None:
    with opened() as session:
        feed = session.stream(source.frame, into=session.inputs["flights"])
        ledger = services_of(session).publisher.ledger
        for number in range(5):
            source.put((number, "UA"))
            last = feed.catch_up()
            assert last is not None
            noted = ledger.saved(last - 1)[0]["loads"].values()
            assert max(map(int, filter(str.isdecimal, noted)), default=-1) == number - 1
        assert len(ledger.saved()[0]["once"]) == 3  # two of the last batches, and the first one


def test_batch_unconfirmed_to_spark_is_repeated_and_skipped(
    source: Source, opened: Callable[[], Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    source.put((1, "UA"))

    def refuse(*_: object) -> None:
        raise DurabilityError("the disk refuses")

    with opened() as session:
        with monkeypatch.context() as patch:
            patch.setattr(CommitService, "sync", refuse)
            feed = session.stream(source.frame, into=session.inputs["flights"])
            with pytest.raises(DurabilityError, match="the disk refuses"):
                feed.catch_up()
            assert not feed.running
            assert "failed" in repr(feed)
        epoch = session.now
        assert session["counts"].rows() == [("UA", 1)]
        with pytest.warns(UserWarning, match="batch 0 was not inserted: the disk refuses"):
            feed.stop()
        again = session.stream(source.frame, into=session.inputs["flights"])
        assert again.catch_up() is None
        assert session.now == epoch
        source.put((2, "UA"))
        assert again.catch_up() == epoch + 1
        assert session["counts"].rows() == [("UA", 2)]


@pytest.mark.slow
@pytest.mark.fault(1)
def test_kernel_killed_before_spark_checkpoint_commits_each_batch_once(
    source: Source, tmp_path: Path
) -> None:
    for number in range(4):
        source.put((number, "UA"))

    def run(at: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", KILLED, tmp_path / "log", tmp_path / "source", str(at)],
            capture_output=True,
            text=True,
            check=False,
        )

    assert run(2).returncode == -signal.SIGKILL
    ended = run(-1)
    assert ended.stdout.split(maxsplit=2) == ["0", "4", "[0, 1, 2, 3]\n"], ended.stderr[-2000:]


@pytest.mark.fault(2)
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("empty", [False, True])
def test_power_cut_leaves_batches_as_logged(
    source: Source,
    opened: Callable[[], Session],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    named: bool,
    empty: bool,
) -> None:
    place = str(tmp_path / "far" / "off 100%20 #1?") if named else None
    for number in range(4):
        source.put((number, "UA"))
    with monkeypatch.context() as patch:
        durable = DurableFiles(patch)
        lose_confirmations(patch, 3)
        with opened() as session:
            feed = session.stream(source.frame, into=session.inputs["flights"], checkpoint=place)
            with pytest.raises(DurabilityError, match="the power goes"):
                feed.catch_up()
            with pytest.warns(UserWarning, match="batch 2 was not inserted"):
                feed.stop()
    source.put((4, "AA"))
    durable.cut(tmp_path / "far" if named else tmp_path / "x.nosync" / "streams", empty=empty)
    with opened() as session:
        flights = session.inputs["flights"]
        feed = session.stream(source.at_once, into=flights, checkpoint=place)
        feed.catch_up()
        assert feed.epochs == 1  # of batch 3; that would be one with batch 2 if Spark could choose
        assert sorted(row[0] for row in flights.rows()) == [0, 1, 2, 3, 4]


def test_failed_sync_of_spark_checkpoint_commits_no_epoch(
    source: Source, opened: Callable[[], Session], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source.put((1, "UA"))
    durable = DurableFiles(monkeypatch)
    with opened() as session:
        before, flights = session.now, session.inputs["flights"]
        durable.refuse("streams/")
        feed = session.stream(source.frame, into=flights)
        with pytest.raises(DurabilityError, match=r"streams/.*EIO"):
            feed.catch_up()
        assert session.now == before
        with pytest.warns(UserWarning, match="batch 0 was not inserted"):
            feed.stop()
        durable.refuse("offsets/0$")  # not what is written in its place
        assert session.stream(source.frame, into=flights).catch_up() == before + 1
        session.close()
    durable.cut(tmp_path / "x.nosync" / "streams", empty=True)
    source.put((2, "UA"))
    with opened() as session:
        flights = session.inputs["flights"]
        session.stream(source.at_once, into=flights).catch_up()
        assert flights.rows() == [(1, "UA"), (2, "UA")]


@pytest.mark.fault(1)
@pytest.mark.parametrize("rows", [3, 3000])
def test_state_of_spark_query_continues_after_skipped_batch(
    source: Source,
    opened: Callable[[], Session],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    rows: int,
) -> None:
    def put(first: int) -> None:
        source.put(*[(number, "UA") for number in range(first, first + rows)])

    put(0)
    put(rows // 2)
    with opened() as session, monkeypatch.context() as patch:
        lose_confirmations(patch, 2)
        flights = session.inputs["flights"]
        feed = session.stream(source.frame.dropDuplicates(["id"]), into=flights)
        with pytest.raises(DurabilityError, match="the power goes"):
            feed.catch_up()
        with pytest.warns(UserWarning, match="batch 1 was not inserted"):
            feed.stop()
    durable = DurableFiles(monkeypatch)
    for first in (rows, rows + rows // 2):
        put(first)
        with opened() as session:
            flights = session.inputs["flights"]
            session.stream(source.frame.dropDuplicates(["id"]), into=flights).catch_up()
            assert sorted(row.id for row in flights.rows()) == list(range(first + rows))
        folder = next((tmp_path / "x.nosync" / "streams").iterdir())
        durable.cut(folder, empty=False, but="commits")  # the worst state for Spark


def test_batch_refused_by_stage_changes_nothing_and_is_repeated(
    source: Source, opened: Callable[[], Session]
) -> None:
    source.put((1, "UA"))
    source.put((0, "AA"))
    with opened() as session:
        flights = session.inputs["flights"]
        parts = flights.map(lambda row: (10 // row.id,), "part bigint")
        session.stage("parts", parts)
        feed = session.stream(source.frame, into=flights)
        with pytest.raises(StageError, match="'parts'"):
            feed.catch_up()
        stands = session.now
        assert session["counts"].rows() == [("UA", 1)]
        with pytest.warns(
            UserWarning, match="(?s)batch 1 was not inserted.*start the stream again"
        ):
            session.commit()
        session.drop("parts")
        assert session.stream(source.frame, into=flights).catch_up() == session.now > stands
        assert session["counts"].rows() == [("AA", 1), ("UA", 1)]


def test_lost_checkpoint_needs_anew(
    source: Source, opened: Callable[[], Session], tmp_path: Path
) -> None:
    source.put((1, "UA"))
    with opened() as session:
        session.stream(source.frame, into=session.inputs["flights"]).catch_up()
        session.close()
    shutil.rmtree(tmp_path / "x.nosync" / "streams")
    with opened() as session:
        flights, epoch = session.inputs["flights"], session.now
        with pytest.raises(StageError, match="its checkpoint is missing") as error:
            session.stream(source.frame, into=flights)
        assert "anew=True" in str(error.value.__notes__)
        elsewhere = str(tmp_path / "elsewhere")
        first = session.stream(source.frame, into=flights, checkpoint=elsewhere)
        first.catch_up()
        first.stop()
        assert session["counts"].rows() == [("UA", 2)]
        shutil.rmtree(elsewhere)  # only Spark can read it
        lost = session.stream(source.frame, into=flights, checkpoint=elsewhere)
        with pytest.raises(StageError, match="its checkpoint is missing"):
            lost.catch_up()
        with pytest.warns(UserWarning, match="batch 0 was not inserted"):
            lost.stop()
        assert session.now == epoch + 1
        assert session.stream(source.frame, into=flights, anew=True).catch_up() == epoch + 2
        assert session["counts"].rows() == [("UA", 3)]


def test_failing_source_stops_stream_with_error(
    spark: Any, opened: Callable[[], Session], tmp_path: Path
) -> None:
    broken = tmp_path / "source"
    broken.mkdir()
    with opened() as session:
        frame = spark.readStream.schema(DDL).parquet(str(broken))
        feed = session.stream(frame, into=session.inputs["flights"])
        feed.catch_up()
        (broken / "part.parquet").write_bytes(b"no file of Parquet")
        with pytest.raises(NosyncError, match=r"part\.parquet"):
            feed.catch_up()
        assert not feed.running
        with pytest.warns(UserWarning, match="stream into 'flights' has ended"):
            feed.stop()


def test_keyed_input_is_upserted_under_each_trigger(
    source: Source, opened: Callable[[], Session]
) -> None:
    source.put((1, "UA"))
    source.put((1, "AA"), (2, "DL"))
    with opened() as session:
        keyed = session.input("keyed", DDL, key="id")
        feed = session.stream(source.frame, into=keyed, availableNow=True)
        assert feed.query.awaitTermination(120)
        assert feed.epochs == 2
        assert keyed.rows() == [(1, "AA"), (2, "DL")]
        again = session.stream(source.frame, into=keyed, processingTime="1 second")
        assert not feed.query.isActive
        source.put((2, "UA"))
        again.catch_up()
        assert keyed.rows() == [(1, "AA"), (2, "UA")]


def test_recreated_input_is_not_fed(source: Source, opened: Callable[[], Session]) -> None:
    source.put((1, "UA"))
    with opened() as session:
        feed = session.stream(source.frame, into=session.inputs["flights"])
        feed.catch_up()
        session.drop("flights", cascade=True)
        again = session.input("flights", DDL)
        source.put((2, "AA"))
        with pytest.raises(StageError, match="the input was dropped, and another one has its name"):
            feed.catch_up()
        assert again.count() == 0
        with pytest.warns(UserWarning, match="batch 1 was not inserted"):
            feed.stop()
        last = session.stream(source.frame, into=again)
        last.catch_up()
        assert again.count() == 2
        session.drop("flights")
        source.put((3, "AA"))
        with pytest.raises(StageError, match="flights"):
            last.catch_up()
        with pytest.warns(UserWarning, match="was not inserted"):
            last.stop()
        with pytest.raises(StageError, match="flights"):
            session.stream(source.frame, into=again)


def test_invalid_streams_are_refused(
    spark: Any, source: Source, opened: Callable[[], Session], tmp_path: Path
) -> None:
    with opened() as session:
        flights = session.inputs["flights"]
        with pytest.raises(SchemaError, match="not a streaming DataFrame"):
            session.stream(spark.createDataFrame([(1, "UA")], DDL), into=flights)
        with pytest.raises(SchemaError, match="not a streaming DataFrame"):
            session.stream([(1, "UA")], into=flights)
        with pytest.raises(StageError, match="is not an input"):
            session.stream(source.frame, into=session["counts"])  # type: ignore[arg-type]
        with nosync_nb.open(tmp_path / "another", spark=spark) as another:
            others = another.input("flights", DDL)
            with pytest.raises(StageError, match="is not an input of this session"):
                session.stream(source.frame, into=others)
        with pytest.raises(StageError, match=r"stream\(checkpoint=3\) is not a folder"):
            session.stream(source.frame, into=flights, checkpoint=3)
        with pytest.raises(NosyncError, match='scheme "nowhere"'):
            session.stream(source.frame, into=flights, checkpoint="nowhere://x/y")
        with pytest.raises(SchemaError, match="'carrier' is missing"):
            session.stream(source.frame.select("id"), into=flights)
        with pytest.raises(SchemaError, match="no trigger 'every'"):
            session.stream(source.frame, into=flights, every=3)
        with pytest.raises(NosyncError, match="parsecs"):
            session.stream(source.frame, into=flights, processingTime="5 parsecs")
        assert not services_of(session).subscriptions.subscribers
    with pytest.raises(NosyncError, match="closed"):
        session.stream(source.frame, into=flights)
