"""The variable `spark` in a notebook: it works again after a kill and after a lost disk."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from jupyter.kernels import Kernel

EAGER = '%config NoSync.spark = "eager"'
OWN = (
    "import sys\n"
    "from pyspark.sql import SparkSession\n"
    "spark = (SparkSession.builder.master('local[2]').config('spark.ui.enabled', 'false')\n"
    "         .config('spark.driver.host', '127.0.0.1')\n"
    "         .config('spark.hadoop.fs.s3a.secret.key', 'hunter2')\n"
    "         .config('spark.hadoop.fs.azure.account.key.x', 'hunter2')\n"
    "         .config('spark.pyspark.python', sys.executable)\n"
    "         .config('spark.sql.shuffle.partitions', '3').getOrCreate())\n"
    "spark.conf.set('spark.sql.session.timeZone', 'Asia/Tokyo')"
)
LOAD = (
    'moments = nosync.input("moments", "k bigint, t timestamp")\n'
    "moments.insert(spark.range(40).selectExpr('id % 4 AS k', 'timestamp_seconds(id * 3600) AS t'))"
)
STAGES = (
    "%%dd\n"
    'counts = moments.group_by("k").agg(n="count(*)")\n'
    'hours = moments.with_columns(h="hour(t)").group_by("h").agg(n="count(*)")'
)
ASKED = (
    "print(tuple(spark.sql('select (select n from counts where k = 3),'\n"
    "                      ' (select n from hours where h = 9)').collect()[0]))"
)
VALUES = "(11, 2)"
EVERY = (
    "log = nosync.session()\n"
    "names = [*log.inputs, *log.stages]\n"
    "print(len(names), all(spark.table(n).count() == log[n].count(at=2) for n in names))"
)
WORK = (
    "print(nosync.session().stats['executed'], 'stages',"
    " nosync.session().recovery.recomputed, 'epochs')"
)
JOBS = "print('jobs', spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())"


@pytest.mark.spark
@pytest.mark.fault(1, 33)
def test_spark_variable_reads_all_stages_after_kill_and_lost_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "keys" / "key"))
    with closing(Kernel(tmp_path)) as kernel:
        for cell in (f"%dd replicas add file://{tmp_path}/copies", OWN, LOAD, STAGES):
            assert kernel.run(cell, timeout=240).status == "ok"
        assert kernel.run("moments.insert([(3, None)])").status == "ok"
        assert VALUES in kernel.run(ASKED, timeout=240)
        assert kernel.run("%dd sync replicas").status == "ok"

        kernel.kill()
        shown = kernel.run(JOBS, timeout=240)
        assert "recovered at epoch 2" in shown
        assert "starts again with its settings when a cell needs it, with 2 views" in shown
        assert "spark —" not in shown
        assert "jobs 0" in shown
        assert VALUES in kernel.run(ASKED, timeout=240)
        assert "3 True" in kernel.run(EVERY, timeout=240)
        set_up = "print([spark.conf.get('spark.sql.' + each) for each in {}])"
        shown = kernel.run(set_up.format("('session.timeZone', 'shuffle.partitions')"))
        assert "['Asia/Tokyo', '3']" in shown
        assert "0 stages 0 epochs" in kernel.run(WORK)
        for path in (tmp_path / ".nosync").rglob("*"):
            assert not path.is_file() or b"hunter2" not in path.read_bytes(), path

        kernel.kill(before=lambda: shutil.rmtree(tmp_path / ".nosync"))
        assert "its replicas have it: `%dd recover`" in kernel.run("1 + 1")
        assert "restored from" in kernel.run("nosync.session().now")
        assert "jobs 0" in kernel.run(JOBS, timeout=240), "the log tells that Spark was there"
        assert "['Asia/Tokyo']" in kernel.run(set_up.format("('session.timeZone',)"))
        assert VALUES in kernel.run(ASKED, timeout=240)
        assert "3 True" in kernel.run(EVERY, timeout=240)
        assert "4" in kernel.run("counts.to_spark().count()", timeout=240)
        assert "0 stages 0 epochs" in kernel.run(WORK)


@pytest.mark.spark
def test_cell_waits_for_spark_started_in_background(tmp_path: Path) -> None:
    with closing(Kernel(tmp_path)) as kernel:
        kernel.run(EAGER)
        assert "3" in kernel.run("spark.range(3).count()", timeout=240)
