"""The Spark session in use: whose it is, the names of jobs, cancellation."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import nosync_nb
from nosync_nb.errors import NosyncError
from nosync_nb.spark import launch, spark_session, workers

pytestmark = pytest.mark.spark


def test_session_of_user_is_found_and_never_stopped(second_spark_session: Any) -> None:
    other = second_spark_session
    assert spark_session.find_session(other) is other
    assert spark_session.find_session(None, {"spark": other}) is other
    assert spark_session.find_session(None, {"spark": "a string"}) is not None
    assert spark_session.require_session() is not None
    assert spark_session.is_session(other)
    assert not spark_session.is_connect(other)
    launch.stop_session(other)
    assert spark_session.is_alive(other)
    with pytest.raises(TypeError, match="must be a SparkSession, not int"):
        spark_session.find_session(3)


def test_other_thread_finds_session(spark: Any) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(spark_session.find_session()))
    thread.start()
    thread.join()
    assert found[0] is not None
    assert spark_session.is_alive(found[0])


def test_sql_settings_are_read_from_session(spark: Any) -> None:
    assert spark_session.sql_settings_of(spark) == spark_session.SqlSettings("UTC", True)


def test_worker_gc_skips_objects_of_modules(spark: Any) -> None:
    def counts(records: Any) -> Any:
        import gc

        list(records)
        counts = {"apart": [gc.get_freeze_count()], "looked_at": [len(gc.get_objects())]}
        yield pa.RecordBatch.from_pydict({"pid": [os.getpid()], **counts})

    frame = spark.range(0, 1, 1, 1).mapInArrow(
        workers.with_worker_gc_off(counts), "pid bigint, apart bigint, looked_at bigint"
    )
    seen: dict[int, int] = {}
    while (task := frame.collect()[0]).pid not in seen:  # Spark has some workers, not many
        assert 2 * task.looked_at < task.apart  # modules outnumber what tasks make
        seen[task.pid] = task.apart
        assert len(seen) < 20
    assert task.apart <= seen[task.pid]  # nothing made later; what is not used any more goes


def test_jobs_are_named_and_counted(spark: Any) -> None:
    context = spark.sparkContext
    context.setJobDescription("the user's")
    with spark_session.job_description(spark, "slow", "join") as jobs:
        text = context.getLocalProperty("spark.job.description")
        spark.range(10).repartition(2).count()
    assert text == "nosync: stage 'slow': join"
    assert context.getLocalProperty("spark.job.description") == "the user's"
    assert jobs.ids
    assert jobs.text == f"Spark jobs {jobs.ids[0]}-{jobs.ids[-1]}"
    context.setLocalProperty("spark.job.description", None)


@contextmanager
def endless_job(spark: Any, folder: Path, tag: str) -> Iterator[list[str]]:
    """Runs a job in another thread that ends only when cancelled; yields its errors."""
    errors: list[str] = []
    begun, never = str(folder / "begun"), str(folder / "never")
    os.mkfifo(begun)
    os.mkfifo(never)  # a pipe without writer

    def work() -> None:
        def slow(records: Any) -> Any:
            for record in records:
                open(begun, "w").close()
                open(never).close()
                yield record

        with spark_session.job_tag(spark, tag):
            try:
                spark.range(4).mapInArrow(slow, "id bigint").collect()
            except Exception as error:
                errors.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    with open(begun):
        yield errors
    thread.join()


def test_tag_cancels_jobs_of_another_thread(spark: Any, tmp_path: Path) -> None:
    with endless_job(spark, tmp_path, "a cell") as errors:
        spark_session.cancel_jobs(spark, "a cell")
    assert len(errors) == 1
    assert "a cell" not in spark.getTags()


def test_interrupt_cancels_jobs_if_close_of_connection_fails(spark: Any, tmp_path: Path) -> None:
    def interrupted() -> None:
        with spark_session.job_tag(spark, "a cell"):
            try:
                raise KeyboardInterrupt
            finally:
                raise OSError("the socket is not connected")

    with endless_job(spark, tmp_path, "a cell") as errors, pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(errors) == 1


def test_workers_are_checked_once(spark: Any) -> None:
    found = workers.check_workers(spark)
    assert workers.check_workers(spark) == found
    assert found.slots == 2
    assert found.python.startswith("Python 3.")


def test_workers_without_module_are_refused(spark: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(workers, "_NEEDED", ("no_such_module",))
    monkeypatch.setattr(workers, "_known", {})
    with pytest.raises(NosyncError, match="cannot import no_such_module") as caught:
        workers.check_workers(spark)
    assert "PYSPARK_PYTHON=" in str(caught.value.hint)


def test_package_travels_as_zip(tmp_path: Path) -> None:
    path = tmp_path / "nosync_nb.zip"
    path.write_bytes(workers.package_zip(str(Path(nosync_nb.__file__).parent)))
    code = f"import sys; sys.path.insert(0, {str(path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import nosync_nb.spark.execution.tasks as t; print(t)"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert str(path) in done.stdout, done.stderr
