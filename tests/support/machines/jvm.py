"""The Spark of the tests: its JVM loads shared classes, and its Python loads compiled modules.

A JVM that starts Spark reads and verifies some 15 000 classes out of 200 archives, which takes
longer than most tests. `make test` starts one JVM that writes them to a class data archive beside
the packages, once. Without that file, or with another Java, Spark starts as usual.

Spark's Python imports PySpark from a zip without compiled modules, and compiles each one in every
process. The tests therefore use a Spark home without that zip and the PySpark of the environment.
One test of Connect uses neither, as most users do.
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
VARIABLE = "JDK_JAVA_OPTIONS"
"""The variable from which every `java` reads options, also one that a kernel or a server starts."""


def classes() -> Path:
    """The class data archive of this environment and Java."""
    java = hashlib.sha256(os.environ.get("JAVA_HOME", "").encode()).hexdigest()[:8]
    return home() / f"classes-{java}.jsa"


def home() -> Path:
    """The folder of the Spark home of this environment."""
    return Path(sys.prefix) / "spark-home"


def environment() -> dict[str, str]:
    """The environment of every test process, for the Spark that it may start."""
    made = {"SPARK_HOME": str(home())} if home().exists() else {}
    return {VARIABLE: options(), **made}


def options() -> str:
    """The options of every JVM of the tests; those of the user come last."""
    given = os.environ.get(VARIABLE, "")
    if QUICK in given:
        return given
    path = classes()
    shared = f"-XX:SharedArchiveFile={path} -Xlog:disable" if path.exists() else ""
    return " ".join(filter(None, (QUICK, shared, given)))


def make_home() -> None:
    """Makes a Spark home from PySpark without its zipped Python."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    home().mkdir(exist_ok=True)
    for name in ("bin", "jars", "sbin"):
        link, there = home() / name, Path(found.origin).parent / name
        if not link.exists():
            link.unlink(missing_ok=True)  # one that leads nowhere any more
            link.symlink_to(there)


def leave(path: Path) -> None:
    """Starts Spark once, runs typical work, and writes the class data archive."""
    made = path.with_suffix(f".{os.getpid()}")
    leaving = f"-XX:ArchiveClassesAtExit={made} -Xlog:disable"
    from pyspark import SparkContext

    from nosync_nb.spark import launch

    spark = launch.start_session(
        {
            "spark.master": "local[2]",
            # Not by the variable: Spark has a JVM print the command of the one it starts.
            "spark.driver.extraJavaOptions": f"{QUICK} {leaving}",
            "spark.log.level": "OFF",
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.port": "0",
            "spark.sql.shuffle.partitions": "2",
        }
    )
    frame = spark.range(100).selectExpr("id % 7 AS k", "mask(string(id)) AS s")
    frame = frame.repartition(2, "k").mapInArrow(lambda records: records, "k bigint, s string")
    frame.groupBy("k").agg({"s": "max", "*": "count"}).createTempView("counted")
    assert spark.sql("select count(*) n from counted").collect()[0].n == 7
    process = SparkContext._gateway.proc
    spark.stop()
    SparkContext._gateway.shutdown()
    process.stdin.close()  # which ends it
    if process.wait() == 0 and made.exists():
        made.replace(path)


if __name__ == "__main__":
    make_home()
    os.environ["SPARK_HOME"] = str(home())
    if not classes().exists():
        leave(classes())
