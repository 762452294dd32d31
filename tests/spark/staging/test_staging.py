"""The staging area: executors that do not see the log's folder."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from internals import log_of, parts_folder
from machines.object_server import ObjectServer, with_bucket
from machines.other_host import run
from pyarrow import fs
from pyspark.sql.datasource import InputPartition

import nosync_nb
from nosync_nb import Session
from nosync_nb.errors import DurabilityError, NosyncError, SchemaError
from nosync_nb.spark.staging import location, staging
from nosync_nb.spark.staging.location import StagingArea
from nosync_nb.store.replication.remote_call import CallPolicy, RemoteTimeoutError
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange
from nosync_nb.trace.parts import part_file

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("own_key")]

ROWS = 4000

HIDDEN = """
import os, sys
import nosync_nb
from nosync_nb.spark import launch
from nosync_nb.spark.staging import staging

top = sys.argv[1]
log, shared = top + "/log", top + "/shared"
for folder in (log, shared):
    os.mkdir(folder)
python = top + "/python"
with open(python, "w") as file:
    file.write(f'''#!/bin/sh
exec unshare --mount sh -c 'mount -t tmpfs none {log} && exec {sys.executable} "$@"' sh "$@"
''')
os.chmod(python, 0o700)
os.environ["PYSPARK_PYTHON"] = python
spark = launch.start_session({"spark.master": "local[2]", "spark.log.level": "OFF"})
staging.is_local = lambda spark: False  # they are here, and see less than others that are

def use(path, bulk):
    with nosync_nb.open(path, spark=spark, spark_rows=100, bulk=bulk) as session:
        given = session.input("given", "x bigint")
        odd = session.stage("odd", given.with_columns(k="x % 7").group_by("k").agg(n="count(*)"))
        given.insert(spark.range(1400).selectExpr("id as x"))
        session.commit()
        assert [row.n for row in odd.rows()] == [200] * 7
        assert "Spark" in odd.explain(), odd.explain()
        assert sorted(row.n for row in odd.to_spark().collect()) == [200] * 7

use(log + "/a", "file://" + shared)
for bulk in (None, "file://" + log + "/b"):
    try:
        use(log + "/c", bulk)
    except nosync_nb.errors.NosyncError as error:
        print(str(error))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    with with_bucket() as running:
        yield running


@pytest.fixture(params=["folder", "bucket"])
def url(request: pytest.FixtureRequest, spark: Any, tmp_path: Path) -> Iterator[str]:
    """The URL of a staging area that executors can use."""
    if request.param == "folder":
        yield f"file://{tmp_path}/a%20place"
        return
    server = request.getfixturevalue("server")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setitem(spark.sparkContext.environment, name, value)
        yield f"s3://bucket/{tmp_path.name}"


@pytest.fixture
def opened(spark: Any, tmp_path: Path) -> Callable[..., Session]:
    """Opens a log in a folder that no executor sees."""

    def again(url: str | None, name: str = "log") -> Session:
        session = nosync_nb.open(tmp_path / name, spark=spark, spark_rows=1000, bulk=url)
        staging.assume_shared(spark, parts_folder(session), shared=False)
        return session

    return again


def file_names(url: str) -> list[str]:
    """The names of the files at a location."""
    from pyarrow import fs

    if url.startswith("file:"):
        system: Any = fs.LocalFileSystem()
        path = url.removeprefix("file://").replace("%20", " ")
    else:
        system, path = fs.FileSystem.from_uri(url)
    selector = fs.FileSelector(path, recursive=True, allow_not_found=True)
    infos = system.get_file_info(selector)
    return sorted(info.base_name for info in infos if info.type == fs.FileType.File)


def counted(session: Session) -> Any:
    """An input, and a stage that runs on executors."""
    given = session.input("given", "k bigint, x bigint")
    return given, session.stage("counts", given.group_by("k").agg(n="count(*)", most="max(x)"))


def test_rows_of_dataframes_pass_through_staging(
    spark: Any, url: str, opened: Callable[..., Session]
) -> None:
    with opened(url) as session:
        given, counts = counted(session)
        joined = session.stage("joined", given.join(counts, on="k"))
        for first in range(0, 3 * ROWS, ROWS):
            frame = spark.range(first, first + ROWS).selectExpr("id % 50 as k", "id as x")
            given.insert(frame)
            session.commit()
            assert "Spark" in counts.explain()
        given.remove(spark.range(2 * ROWS).selectExpr("id % 50 as k", "id as x"))
        session.commit()
        wanted = [(k, ROWS // 50, 3 * ROWS - 50 + k) for k in range(50)]
        assert counts.rows() == wanted
        assert counts.rows(at=session.now - 1)[0].n == 3 * ROWS // 50
        assert joined.to_spark().count() == ROWS
        assert given.to_spark().where("k = 7").count() == ROWS // 50
        assert not session.verify().damage
        assert file_names(url), "files go through it"


def test_rows_of_driver_pass_through_staging(
    spark: Any, url: str, opened: Callable[..., Session]
) -> None:
    few, many = np.arange(50_000), np.arange(50_000, 200_000)
    with opened(url) as session:
        given, counts = counted(session)
        for rows in (few, many):
            given.insert(pa.table({"k": rows % 50, "x": rows}))
            session.commit()
            assert "Spark" in counts.explain()
        assert counts.rows()[0] == (0, 4000, 199_950)
    with opened(url) as session:
        frame = session.inputs["given"].to_spark()
        assert frame.count() == 200_000
        assert frame.where("k = 7").count() == 4000


def test_log_needs_no_staging_location_when_reopened(
    spark: Any, url: str, opened: Callable[..., Session], session: Session
) -> None:
    with opened(url) as session:
        given, counts = counted(session)
        given.insert(spark.range(ROWS).selectExpr("id % 50 as k", "id as x"))
        session.commit()
        wanted = counts.rows()
    assert not file_names(url)
    assert len(wanted) == 50
    assert session["counts"].rows() == wanted
    assert session.recovery.recomputed == 0


def test_unneeded_files_are_deleted_with_next_run(
    spark: Any, url: str, opened: Callable[..., Session]
) -> None:
    with opened(url) as session:
        given, counts = counted(session)
        useless: set[str] = set()
        for number in range(8):
            given.set(spark.range(ROWS).selectExpr("id % 50 as k", f"id + {number} as x"))
            session.commit()
            there = set(file_names(url))
            assert not there & useless, "what the log has let go of goes with the next run"
            useless = there - set(os.listdir(parts_folder(session)))
        assert counts.rows()[0] == (0, ROWS // 50, ROWS - 50 + 7)


def test_files_of_killed_owner_are_deleted_by_next_owner(
    spark: Any, url: str, opened: Callable[..., Session]
) -> None:
    with opened(url) as session:
        own = log_of(session).id.hex()
        left = location.location_of(location.url_below(url, own, "0"))
        left.make()
        (path,) = _files(session, 1)
        left.upload(parts_folder(session), path)
        assert path in file_names(url)
        given, counts = counted(session)
        given.insert(spark.range(ROWS).selectExpr("id % 50 as k", "id as x"))
        session.commit()
        assert counts.count() == 50
        assert path not in file_names(url)


def _files(session: Session, count: int) -> list[str]:
    """Creates unreferenced files in the folder of a session."""
    made = [f"left{number}.arrow" for number in range(count)]
    for name in made:
        (Path(parts_folder(session)) / name).write_bytes(b"some")
    return made


@pytest.mark.parametrize("reads", ["the driver", "an executor"])
def test_changed_file_is_refused(
    spark: Any,
    url: str,
    opened: Callable[..., Session],
    monkeypatch: pytest.MonkeyPatch,
    reads: str,
) -> None:
    kind = type(location.location_of(location.url_below(url, "x")))
    download, upload = kind.download, kind.upload

    def changed(folder: str, name: str) -> None:
        path = Path(folder) / name
        data = bytearray(path.read_bytes())
        if data:  # else it is there to be seen
            data[len(data) // 2] ^= 1
            path.write_bytes(data)

    def got(place: Any, name: str, folder: str) -> None:
        download(place, name, folder)
        changed(folder, name)

    def sent(place: Any, folder: str, name: str) -> None:
        held = (Path(folder) / name).read_bytes()
        if kind is location.RemoteLocation:
            changed(folder, name)
        upload(place, folder, name)
        if kind is location.SharedFolderLocation:
            changed(place.folder, name)
        (Path(folder) / name).write_bytes(held)

    if reads == "an executor":
        with opened(url) as session:
            given, _ = counted(session)
            given.insert(spark.range(ROWS).selectExpr("id % 50 as k", "-id as x"))
            session.commit()
    with opened(url) as session:
        given, counts = counted(session)
        frame = spark.range(ROWS).selectExpr("id % 50 as k", "id as x")
        epoch = session.now
        with monkeypatch.context() as patch:
            if reads == "the driver":
                patch.setattr(kind, "download", got)
            else:
                patch.setattr(kind, "upload", sent)
            with pytest.raises(DurabilityError, match="staging area"), session.epoch():
                given.insert(frame)
        assert session.now == epoch
        given.insert(frame)
        session.commit()
        assert counts.rows()[0].n == (1 + (reads == "an executor")) * ROWS // 50
        assert not session.verify().damage


def test_unreachable_location_is_reported_and_nothing_is_lost(
    spark: Any, opened: Callable[..., Session], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    with opened(f"file://{tmp_path}/file/within") as session:
        given, counts = counted(session)
        frame = spark.range(ROWS).selectExpr("id % 50 as k", "id as x")
        with pytest.raises(DurabilityError, match="within"):
            given.insert(frame)
        assert not session.pending
        given.insert(pa.table({"k": np.arange(5), "x": np.arange(5)}))
        session.commit()
        assert counts.count() == 5
        assert nosync_nb.open(session.path, bulk=f"file://{tmp_path}/other") is session
        given.insert(frame)
        session.commit()
        assert counts.rows()[0].n == ROWS // 50 + 1
    assert os.listdir(tmp_path / "other")
    with pytest.raises(SchemaError, match="is not a valid URL"):
        nosync_nb.open(tmp_path / "log", bulk="somewhere")


def test_lost_location_leaves_in_process_work_possible(
    spark: Any, opened: Callable[..., Session], tmp_path: Path
) -> None:
    place = tmp_path / "place"
    with opened(f"file://{place}") as session:
        given, counts = counted(session)
        given.insert(spark.range(ROWS).selectExpr("id % 50 as k", "id as x"))
        session.commit()
        place.rename(tmp_path / "moved")
        place.write_text("no folder")
        many = np.arange(ROWS, 3 * ROWS)
        given.insert(pa.table({"k": many % 50, "x": many}))
        with pytest.raises(DurabilityError, match="place"):
            session.commit()
        assert session.pending
        with pytest.warns(UserWarning, match="operators run in this process instead of on Spark"):
            session.commit()
        assert counts.rows()[0] == (0, 3 * ROWS // 50, 3 * ROWS - 50)
        with pytest.raises(DurabilityError, match="place"):
            given.insert(spark.range(ROWS).selectExpr("id % 50 as k", "id as x"))
        place.unlink()
        given.insert(pa.table({"k": many % 50, "x": many}))
        session.commit()
        assert "Spark" in counts.explain()
        assert counts.rows()[0].n == 5 * ROWS // 50


@pytest.mark.parametrize(
    ("bulk", "said"),
    [
        ("", "is not a valid URL"),
        ("/mnt/shared", "is not a valid URL"),
        ("file:", "is not a valid URL"),
        ("file:mnt/shared", "is not an absolute folder"),
        (3, "is not a valid URL"),
        ("s3://me:secret@bucket/x", "not contain a user or password"),
        ("file://host/mnt", "is not an absolute folder"),
        ("http://[", "is not a valid URL"),
    ],
)
def test_invalid_location_is_refused_before_log_is_created(
    tmp_path: Path, bulk: Any, said: str
) -> None:
    with pytest.raises(SchemaError, match=said) as error:
        nosync_nb.open(tmp_path / "log", bulk=bulk)
    assert "secret" not in str(error.value)
    assert not (tmp_path / "log").exists()


def test_reader_is_refused_bulk_option(tmp_path: Path) -> None:
    nosync_nb.open(tmp_path / "log").close()
    with pytest.raises(SchemaError, match="bulk is set by the log's owner"):
        nosync_nb.open(tmp_path / "log", bulk="file:///mnt/shared", mode="r")


def test_unknown_scheme_is_reported_at_first_use(
    spark: Any, opened: Callable[..., Session]
) -> None:
    with opened("nowhere://x/y") as session:
        given, _ = counted(session)
        with pytest.raises(SchemaError, match="nowhere"):
            given.insert(spark.range(ROWS).selectExpr("id % 50 as k", "id as x"))


def test_cache_of_bucket_is_bounded(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/local,{tmp_path}/other")
    monkeypatch.setattr(location, "FETCHED_BYTES", 3000)
    place = location.location_of(f"s3://bucket/{tmp_path.name}-kept")
    place.make()
    for number in range(6):
        (tmp_path / f"f{number}.arrow").write_bytes(bytes(1000))
        place.upload(str(tmp_path), f"f{number}.arrow")
        assert place.exists(f"f{number}.arrow")
    assert not place.exists("g.arrow")
    place.ready()
    for number in range(6):
        assert place.ensure_local(f"f{number}.arrow", 1000)
        assert not place.ensure_local(f"f{number}.arrow", 1000)
        assert len(os.listdir(place.folder)) <= 3
    for number in range(6, 12):
        (Path(place.folder) / f"f{number}.arrow").write_bytes(bytes(1000))
        place.upload(place.folder, f"f{number}.arrow")
        assert len(os.listdir(place.folder)) <= 3
    assert place.folder.startswith(f"{tmp_path}/local/")
    assert stat.S_IMODE(os.stat(place.folder).st_mode) == 0o700
    with pytest.raises(DurabilityError, match="staging area 's3://bucket/"):
        place.ensure_local("g.arrow", 1)
    assert not [name for name in os.listdir(place.folder) if name.startswith("fetched")]


@pytest.mark.fault(41)
def test_file_deleted_by_another_worker_is_fetched_again(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, layout = tmp_path / "folder", Layout(("bigint",))
    folder.mkdir()
    rows = arrange(layout, Updates([np.arange(100)], np.ones(100, np.int64)))
    depot = StagingArea(str(folder), f"s3://bucket/{tmp_path.name}-again")
    place = location.location_of(depot.url)
    (ref,) = depot.write_parts([rows], "a")
    opens, gone = part_file.open_part, [ref.path]

    def opened(there: str, *given: Any, **more: Any) -> Batch:
        if gone:
            (Path(there) / gone.pop()).unlink()
        return opens(there, *given, **more)

    monkeypatch.setattr(part_file, "open_part", opened)
    assert len(depot.part(ref, layout)) == 100
    assert not gone
    place.delete(ref.path)
    (Path(place.folder) / ref.path).unlink()
    with pytest.raises(DurabilityError, match="staging area"):
        depot.part(ref, layout)
    loose = depot.write_updates(rows.updates, layout.types, "b")
    (Path(place.folder) / loose.path).unlink()
    assert len(depot.updates(loose, layout.types).diff) == 100
    with pytest.raises(DurabilityError, match="its columns are"):
        depot.updates(loose, ("string",))


def test_hanging_location_does_not_block_close(
    spark: Any, opened: Callable[..., Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(staging, "END", CallPolicy(silent_s=0.5))
    with opened(f"file://{tmp_path}/place") as session:
        given, _ = counted(session)
        given.insert(spark.range(ROWS).selectExpr("id % 50 as k", "id as x"))
        session.commit()
        monkeypatch.setattr(location.SharedFolderLocation, "clear", lambda *_: hangs.wait(60))
    assert session.closed
    hangs.set()


def test_hanging_cleanup_does_not_block_later_runs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, ended = threading.Event(), threading.Event()

    def clear(*_: object) -> None:
        hangs.wait(60)
        ended.set()

    monkeypatch.setattr(staging, "END", CallPolicy(silent_s=0.5))
    monkeypatch.setattr(location.SharedFolderLocation, "clear", clear)
    folder = tmp_path / "folder"
    folder.mkdir()
    staging.assume_shared(spark, str(folder), shared=False)
    mine = staging.StagingService(str(folder), ("log", "1"), f"file://{tmp_path}/place")
    first = mine.required(spark, "this")
    mine.doubt(first, DurabilityError("the place is away"))
    second = mine.required(spark, "this")
    assert second.url != first.url
    mine.doubt(first, DurabilityError("a run that began earlier has failed as well"))
    assert mine.required(spark, "this").url == second.url
    assert location.location_of(second.url).exists("")
    mine.name(f"file://{tmp_path}/other")
    assert "other" in mine.required(spark, "this").url
    assert not ended.is_set()
    hangs.set()
    assert ended.wait(60)
    mine.close()


def test_view_on_remote_executor_names_remedy(spark: Any, tmp_path: Path) -> None:
    from nosync_nb.spark.views.data_source import StageReader

    reader = StageReader(str(tmp_path / "elsewhere"), "odd", None, None)
    with pytest.raises(NosyncError, match="stage 'odd': Spark's executors cannot read") as error:
        list(reader.read(InputPartition((0, 1))))
    assert "session['odd'].to_spark()" in str(error.value.__notes__)


@pytest.mark.slow
def test_executors_in_other_mount_namespace_write_through_folder(tmp_path: Path) -> None:
    said = run("--mount", HIDDEN, str(tmp_path)).splitlines()
    assert "executors cannot read the session's folder" in said[0]
    assert f"bulk='file://{tmp_path}/log/b': Spark's executors cannot read" in said[1]


@pytest.mark.parametrize("way", ["upload", "download"])
def test_hanging_location_is_abandoned_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A pipe without another end hangs in the system call that opens it."""
    monkeypatch.setattr(location, "STAGING", CallPolicy(silent_s=0.2))
    local, remote = tmp_path / "local", tmp_path / "remote"
    local.mkdir()
    remote.mkdir()
    pipe, rows = remote / "a.arrow", b"rows"
    os.mkfifo(pipe)
    place = location.RemoteLocation(f"pipe://{way}", fs.LocalFileSystem(), str(remote))
    if way == "upload":
        (local / pipe.name).write_bytes(rows)
    before = os.listdir(local)
    calls = {
        "upload": lambda: place.upload(str(local), pipe.name),
        "download": lambda: place.download(pipe.name, str(local)),
    }
    with pytest.raises(RemoteTimeoutError, match=f"staging area 'pipe://{way}' has not answered"):
        calls[way]()
    if way == "upload":
        pipe.read_bytes()
    else:
        with suppress(BrokenPipeError):  # the reader may have closed the pipe already
            pipe.write_bytes(rows)
    for thread in threading.enumerate():
        if thread.name == f"ask staging area 'pipe://{way}'":
            thread.join(60)
    assert os.listdir(local) == before
