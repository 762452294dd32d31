"""The Spark of the tests: its Java compiles less, and both find their classes where they were left.

A JVM that starts Spark reads and verifies some 15 000 classes out of 200 archives, which takes more
than what most tests ask of it. `make test` has one leave them beside the packages, once, as Java
maps them (class data sharing); where that file is missing or of another Java, all is as without.

A Python that Spark starts imports PySpark from a zip, which holds no compiled modules: each one
compiles them again, for longer than a small job runs. So the tests have a home of Spark without
that zip, and the PySpark of the environment is imported. One test of Connect has neither, as most
users do.
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
VARIABLE = "JDK_JAVA_OPTIONS"
"""What every `java` takes options from, also one that a kernel or a server starts."""


def classes() -> Path:
    """Where the classes are left: in this environment, by the Java that left them."""
    java = hashlib.sha256(os.environ.get("JAVA_HOME", "").encode()).hexdigest()[:8]
    return home() / f"classes-{java}.jsa"


def home() -> Path:
    """Where the home of Spark is made, in this environment."""
    return Path(sys.prefix) / "spark-home"


def environment() -> dict[str, str]:
    """What every process of the tests has in its environment, for the Spark that it may start."""
    made = {"SPARK_HOME": str(home())} if home().exists() else {}
    return {VARIABLE: options(), **made}


def options() -> str:
    """The options of every JVM of the tests; the user's own come last, and a worker has them."""
    given = os.environ.get(VARIABLE, "")
    if QUICK in given:
        return given
    path = classes()
    shared = f"-XX:SharedArchiveFile={path} -Xlog:disable" if path.exists() else ""
    return " ".join(filter(None, (QUICK, shared, given)))


def make_home() -> None:
    """Makes a home of Spark of what PySpark brings, but for its Python."""
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
    """Starts Spark once, does a little of everything, and leaves the classes that it loaded."""
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
