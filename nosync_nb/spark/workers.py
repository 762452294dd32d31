"""Checks a session's Python workers once, sends them our package if needed, and speeds them up.

Our functions run in the interpreter that Spark starts. In local mode that is `PYSPARK_PYTHON`, or
the `python3` on the path, which may differ from this one; on a cluster it is the cluster's.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import pyarrow as pa

from nosync_nb.errors import NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.rows import parallel
from nosync_nb.spark.error_translation import spark_error_summary
from nosync_nb.spark.launch import Spark, is_connect

PROBES = 1024
_NEEDED = ("numpy", "xxhash", "sqlglot", "nosync_nb", "nosync_nb.spark.execution.tasks")

Work: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""The function argument of `mapInArrow`."""


class Workers(NamedTuple):
    """The properties of a session's workers.

    `slots` is the number of tasks that Spark runs at a time by default.
    """

    python: str
    pyarrow: str
    slots: int


_known: WeakKeyDictionary[Any, Workers] = WeakKeyDictionary()


def check_workers(spark: Spark) -> Workers:
    """Returns the properties of a session's workers; probes them once, and updates the slots.

    Executors may join and leave, so each bulk run is split for the current number of slots.

    Raises:
        NosyncError: if the workers run another Python, or lack a package that our functions need.

    Cost: one small job the first time, which also starts the workers. Later calls make one call of
    the JVM; on Connect, a job without Python.
    """
    workers = _known.get(spark)
    if workers is None:
        python, arrow, problem, slots = _probe(spark)
        if problem == "nosync_nb":
            _send_package(spark)
            python, arrow, problem, slots = _probe(spark)
        if problem:
            raise NosyncError(
                f"Spark's Python workers ({python}) cannot import"
                f" {problem.replace('nosync_nb', 'nosync')}",
                hint="install nosync where the workers run, or start Spark with"
                f" PYSPARK_PYTHON={sys.executable}",
            )
        workers = _known[spark] = Workers(python, arrow, slots)
        return workers
    current = _slots(spark)
    if current != workers.slots:
        workers = _known[spark] = workers._replace(slots=current)
    return workers


def _slots(spark: Spark) -> int:
    """The number of tasks that a session currently runs at a time."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    try:
        # A range has as many partitions, unless the session sets another number.
        return int(spark.range(PROBES).selectExpr("spark_partition_id()").distinct().count())
    except Exception as error:
        raise probe_error(error) from error


def task_slots(spark: Spark | None) -> int | None:
    """The number of tasks that a session runs at a time; None if its workers were not probed yet.

    Cost: a call of the JVM; on Connect nothing: the answer is that of the last bulk run.
    """
    known = None if spark is None else _known.get(spark)
    if known is None or is_connect(spark):
        return None if known is None else known.slots
    return _slots(spark)


def with_worker_gc_off(work: Work) -> Work:
    """Wraps a function so that workers exclude their modules from garbage collection.

    PySpark collects garbage after every task, over every module that the worker has ever imported:
    some 45 ms, more than most tasks take.
    """

    def run(records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _freeze_objects()
        yield from work(records)

    return run


@cache
def _freeze_objects() -> None:
    """Freezes all objects of a worker at its first task of ours."""
    parallel.single_threaded()
    gc.collect()
    gc.freeze()


def _probe(spark: Spark) -> tuple[str, str, str, int]:
    """Asks every default partition for its Python, its pyarrow, and the modules that it lacks."""
    frame = spark.range(PROBES).mapInArrow(_prober(), "python string, arrow string, lacks string")
    try:
        answers = frame.collect()
    except Exception as error:
        raise probe_error(error) from error
    first = answers[0]
    lacks = next((a["lacks"] for a in answers if a["lacks"]), "")
    return first["python"], first["arrow"], lacks, len(answers)


def _prober() -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function that is pickled by value, for workers that do not have this module."""
    needed = _NEEDED

    def probe(records: Iterator[Any]) -> Iterator[Any]:
        import importlib
        import sys

        import pyarrow as pa

        for _ in records:
            pass
        lacks = ""
        for name in needed:
            try:
                importlib.import_module(name)
            except ImportError as error:
                lacks = name if name == "nosync_nb" else f"{name}: {error}"
                break
        python = f"Python {sys.version_info[0]}.{sys.version_info[1]}, {sys.executable}"
        yield pa.RecordBatch.from_pydict(
            {"python": [python], "arrow": [pa.__version__], "lacks": [lacks]}
        )

    return probe


def probe_error(error: Exception) -> NosyncError:
    """The error of workers that could not be probed."""
    text = str(error)
    wanted = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if "PYTHON_VERSION_MISMATCH" in text:
        reason = f"run another version of Python than this process, which runs {wanted}"
    elif "No module named 'pyarrow'" in text:
        reason = "do not have pyarrow"
    else:
        reason = f"cannot be checked: {spark_error_summary(error)[1]}"
    return NosyncError(
        f"Spark's Python workers {reason}",
        hint=f"start Spark with PYSPARK_PYTHON={sys.executable}, or install Python {wanted} with"
        " nosync where the workers run",
    )


def _send_package(spark: Spark) -> None:
    """Sends a copy of this package to the workers."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    files = Files()
    folder = os.environ.get("TMPDIR") or "/tmp"
    path = os.path.join(folder, f"nosync_nb-{uuid.uuid4().hex}.zip")
    file = files.create(path)
    # A classic session serves the file to executors until it ends, so it is deleted only at exit.
    atexit.register(files.unlink, path)
    file.append(package_zip(package))
    file.close()
    spark.addArtifacts(path, pyfile=True)


def package_zip(package: str) -> bytes:
    """The modules of a package as a zip that Python can import from."""
    sink = io.BytesIO()
    top = os.path.dirname(package)
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder, folders, names in os.walk(package):
            folders[:] = sorted(f for f in folders if f != "__pycache__")
            for name in sorted(names):
                if name.endswith((".py", ".typed")):
                    path = os.path.join(folder, name)
                    archive.write(path, os.path.relpath(path, top))
    return sink.getvalue()
