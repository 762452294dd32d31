"""Spark Connect: the same results as with classic Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CODE = """
import sys
import warnings
warnings.simplefilter("ignore")
from pyspark.sql import SparkSession
from nosync_nb.trace.batch import Layout
from nosync_nb.expressions import compile_aggregates, compile_expression
from nosync_nb.operators import Aggregate
from nosync_nb.rows import Schema
from nosync_nb.errors import NosyncError
from nosync_nb.spark import fallback, ingest, spark_session, streaming, workers
from nosync_nb.spark.execution import bulk_run
from nosync_nb.spark.views import name_lookups, views
from nosync_nb.spark.staging.staging import StagingService
from nosync_nb.spark.views.snapshot_server import StageSnapshot
from nosync_nb.spark.execution.tasks import PlanPayload
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace.parts.part_file import open_part

folder = sys.argv[1]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert spark_session.is_connect(spark)
assert spark_session.is_alive(spark)
assert spark_session.find_session() is spark
assert workers.check_workers(spark).slots == 2
assert workers.check_workers(spark).slots == workers.task_slots(spark) == 2

schema = Schema.parse("k bigint, s string")
frame = spark.range(1000).selectExpr("id % 10 as k", "'s' || id as s")
layout = Layout(schema.types, (0,))
staging = StagingService(folder)
(refs,) = ingest.ingest(spark, frame, schema, [layout], staging, name="input").outputs
assert sum(ref.rows for ref in refs) == 1000

found = compile_aggregates({"n": "count(*)"}, schema, ["k"])
operator = Aggregate(schema, (0,), found.calls, found.outputs, found.inner)
own = Layout(operator.types)
result = bulk_run.run_bulk(
    spark, operator, [bulk_run.BulkInput(refs, schema.types, layout)],
    [Trace(s) for s in operator.state], [own], StagingService(folder), stage="counts", first=True,
)
assert result.rows == 10
assert result.jobs.text == "Spark"
parts = tuple(open_part(folder, ref, own) for ref in result.outputs[0])
trace = Trace(own, (Layer(0, 1, parts, tuple(result.outputs[0])),))
counts = Schema.parse("k bigint, n bigint")
rows = views.to_spark(spark, trace, counts, PlanPayload.local(folder, "view")).collect()
assert sorted((row.k, row.n) for row in rows) == [(k, 100) for k in range(10)]

types = lambda sqls, schema: [fallback.analysed(spark, sql, schema)[0] for sql in sqls]
odd = compile_expression("hash(k)", schema, types=types)
columns = [parts[0].columns[0], None]
(values,) = fallback.evaluate_in_spark(spark, [odd], schema, columns, len(parts[0]))
assert len(values) == len(parts[0])

spark.udf.register("plus", lambda k: k + 1, "bigint")
try:
    fallback.analysed(spark, "plus(k)", schema)
except NosyncError as error:
    assert "Spark Connect does not reveal the function 'plus'" in str(error)
    assert "map(lambda row: (*row, plus(row.x))" in error.hint
else:
    raise AssertionError("a function is taken that cannot be identified")
assert fallback.analysed(spark, "soundex(s) rlike ('x')", schema)[0] == "boolean"

made = views.Views(spark, folder, lambda stage, at: StageSnapshot(0, counts, trace, folder))
assert made.create("counts", counts)
assert spark.sql("select sum(n) t from counts").collect()[0].t == 1000
made.close()
assert not spark.catalog.tableExists("counts")

class Watching:
    def __init__(self):
        self.names = []

    def note(self, names):
        self.names.append(names)

watching = Watching()
name_lookups.watch(spark, watching.note)
spark.sql("select 1 as late")
assert not spark.catalog.tableExists("values_of_late")
spark.catalog.listTables()
assert watching.names == [{"select", "1", "as", "late"}, {"values_of_late"}, None]
name_lookups.unwatch(watching.note)
spark.sql("select 2")
assert len(watching.names) == 3
workers._send_package(spark)

def path(records):
    import sys
    import pyarrow as pa
    list(records)
    yield pa.RecordBatch.from_pydict({"path": [str(sys.path)]})

assert "nosync_nb-" in spark.range(1).mapInArrow(path, "path string").collect()[0].path
try:
    streaming.check_stream(spark.readStream.format("rate").load(), counts, "flights", {})
except NosyncError as error:
    assert "Spark Connect processes batches at its server" in str(error)
else:
    raise AssertionError("a stream is taken")
with spark_session.job_tag(spark, "cell"):
    assert "cell" in spark.getTags()
spark_session.cancel_jobs(spark, "cell")
spark.stop()
assert not spark_session.is_alive(spark)
print("all is well")
"""


def test_connect_has_all_features_of_classic_spark(tmp_path: Path) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK", "SPARK"))}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CODE), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**kept, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.stdout.strip().endswith("all is well"), done.stdout + done.stderr[-4000:]
