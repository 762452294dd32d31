"""Checks the Python workers of a Spark session, sends them this package, and speeds them up.

Our functions run in the Python interpreter that Spark starts. In local mode this is
`PYSPARK_PYTHON`, or the `python3` on the path; it may differ from the interpreter of this process.
On a cluster it is the interpreter of the cluster.
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
    """The properties of the workers of a Spark session.

    Attributes:
        python: the version and the path of their interpreter.
        pyarrow: the version of pyarrow.
        slots: the number of tasks that Spark runs at the same time by default.
    """

    python: str
    pyarrow: str
    slots: int


_known: WeakKeyDictionary[Any, Workers] = WeakKeyDictionary()


def check_workers(spark: Spark) -> Workers:
    """Returns the properties of a session's workers; probes them once, and updates the slots.

    The slots are updated because executors may join and leave.

    Raises:
        NosyncError: if the workers run another version of Python, or lack a package that our
            functions need.

    Cost: the first call runs a small job, which also starts the workers. Later calls make one call
    to the JVM; on Connect, they run a job without Python.
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
    """Returns the number of tasks that a session currently runs at the same time."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    try:
        # because a range has one partition per slot, unless the session sets another number
        return int(spark.range(PROBES).selectExpr("spark_partition_id()").distinct().count())
    except Exception as error:
        raise probe_error(error) from error


def task_slots(spark: Spark | None) -> int | None:
    """Returns the number of tasks that a session runs at the same time.

    Returns None if its workers were not probed yet. On Connect, the number is that of the last run.

    Cost: a call to the JVM; on Connect nothing.
    """
    known = None if spark is None else _known.get(spark)
    if known is None or is_connect(spark):
        return None if known is None else known.slots
    return _slots(spark)


def with_worker_gc_off(work: Work) -> Work:
    """Wraps a function so that workers exclude their modules from garbage collection.

    PySpark collects garbage after every task. Without this, each collection visits every module
    that the worker has imported, and takes 45 ms, which is longer than most tasks.
    """

    def run(records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _freeze_objects()
        yield from work(records)

    return run


@cache
def _freeze_objects() -> None:
    """Excludes all present objects of a worker from garbage collection, at its first task."""
    parallel.single_threaded()
    gc.collect()
    gc.freeze()


def _probe(spark: Spark) -> tuple[str, str, str, int]:
    """Asks the worker of each partition for its Python, its pyarrow and a missing module.

    Returns:
        the version of Python, that of pyarrow, the missing module (or empty), and the number of
        partitions.
    """
    frame = spark.range(PROBES).mapInArrow(_prober(), "python string, arrow string, lacks string")
    try:
        answers = frame.collect()
    except Exception as error:
        raise probe_error(error) from error
    first = answers[0]
    lacks = next((a["lacks"] for a in answers if a["lacks"]), "")
    return first["python"], first["arrow"], lacks, len(answers)


def _prober() -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Returns a function for workers that is pickled by value, as they may lack this module."""
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
    """Returns the error for workers that could not be probed."""
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
    """Sends this package to the workers as a zip file."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    files = Files()
    folder = os.environ.get("TMPDIR") or "/tmp"
    path = os.path.join(folder, f"nosync_nb-{uuid.uuid4().hex}.zip")
    file = files.create(path)
    # Deleted at exit, because a classic session serves the file to executors until it ends.
    atexit.register(files.unlink, path)
    file.append(package_zip(package))
    file.close()
    spark.addArtifacts(path, pyfile=True)


def package_zip(package: str) -> bytes:
    """Returns the modules of a package as a zip file from which Python can import them."""
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
