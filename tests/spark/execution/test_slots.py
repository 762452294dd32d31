"""Slots of a cluster: bulk runs are divided for the executors of that moment."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CODE = """
import sys, time
from pyspark.sql import SparkSession
from nosync_nb.spark import workers

conf = {
    "master": "local-cluster[3,1,1024]", "driver.host": "127.0.0.1",
    "driver.bindAddress": "127.0.0.1", "ui.enabled": "false", "log.level": "OFF",
    "executor.memory": "512m", "executor.cores": "1", "dynamicAllocation.enabled": "true",
    "dynamicAllocation.shuffleTracking.enabled": "true",
    "dynamicAllocation.initialExecutors": "1", "dynamicAllocation.minExecutors": "1",
    "dynamicAllocation.maxExecutors": "3", "dynamicAllocation.executorIdleTimeout": "300s",
}
builder = SparkSession.builder
for key, value in conf.items():
    builder = builder.config(f"spark.{key}", value)
spark = builder.getOrCreate()
before = workers.check_workers(spark).slots
assert workers.task_slots(spark) == before == spark.sparkContext.defaultParallelism, before
busy = spark.range(6, numPartitions=6).selectExpr(
    "reflect('java.lang.Thread', 'sleep', bigint(3000))"
)
deadline = time.monotonic() + 120
while spark.sparkContext.defaultParallelism == before and time.monotonic() < deadline:
    busy.collect()  # Spark requests executors for tasks that wait
now = spark.sparkContext.defaultParallelism
assert now > before, (before, now)
assert workers.check_workers(spark).slots == workers.task_slots(spark) == now
spark.stop()
print("all slots are used")
"""


def test_executors_that_join_later_are_used() -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK", "SPARK"))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(CODE)],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.stdout.strip().endswith("all slots are used"), done.stdout + done.stderr[-4000:]
