"""A lost Spark session: stages without Spark continue, the others get one or report an error.

Each test runs in its own process, because no other test can use a killed JVM.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from machines.ports import free_port

import nosync_nb

NO_JAVA = """
import sys
import pyarrow as pa
import nosync_nb
from nosync_nb import NosyncError

session = nosync_nb.open(sys.argv[1], spark_rows=1000)
said = []
session.on_notice(said.append)
big = session.input("big", "g int, s string")
def rows(start, stop):
    numbers = range(start, stop)
    groups = pa.array([i % 7 for i in numbers], pa.int32())
    return pa.table({"g": groups, "s": [str(i) for i in numbers]})

big.insert(rows(0, 5000))
session.commit()
session.define({"counts": big.group_by("g").agg(n="count(*)")})
assert sum(row.n for row in session["counts"].rows()) == 5000
big.insert(rows(5000, 7000))
session.commit()
told = [each for each in said if "cannot be started" in each]
assert len(told) == 1, said
assert "stage 'counts' needs Spark" in told[0] and "run in this process" in told[0], told
for make in (
    lambda: session.define({"forced": big.group_by("s").agg(n="count(*)")}, on="spark"),
    lambda: session.define({"masked": big.filter("mask(s) = 'A000'")}),
):
    try:
        make()
    except NosyncError as error:
        assert "Java 17" in error.hint, error.hint
        assert "needs Spark, but Spark cannot be started" in str(error), error
    else:
        raise AssertionError("this truly needs Spark")
big.insert([(3, "b")])
session.commit()
print("rows", sum(row.n for row in session["counts"].rows()))
"""

WITHOUT = """
from nosync_nb import NosyncError

def refused(call, *texts):
    try:
        call()
    except NosyncError as error:
        told = str(error) + " " + str(error.hint)
        assert all(text in told for text in texts), told
    else:
        raise AssertionError(texts)

def goes_on():
    'What needs no Spark, beside a DataFrame that is gone; leaves rows that need it.'
    session.define({"small": others.filter("i > 1")}, on="local")
    session.rename("small", "few")
    session.define({"gone": others.filter("i > 2")})
    session.drop("gone")
    others.insert([(5,)])
    session.commit()
    assert session["few"].rows() == [(5,)]
    refused(lambda: others.insert(frame), "input 'others'", "create the DataFrame again")
    names.insert([("Rupert",), ("Anna",)])
"""

KILLED = (
    WITHOUT
    + """
import os, sys
import nosync_nb

session = nosync_nb.open(sys.argv[1])
session.spark_conf.update({"spark.master": "local[1]", "spark.log.level": "OFF"})
names, others = session.input("names", "s string"), session.input("others", "i int")
sounds = session.stage("sounds", names.select("mask(s) AS code"))
names.insert([("Robert",)])
session.commit()

def kill():
    from pyspark import SparkContext
    process = SparkContext._gateway.proc
    process.kill()
    process.wait()

# what is ours is for us alone
ours = session.spark
folder = ours.conf.get("spark.local.dir")
assert ours.conf.get("spark.authenticate") == "true"
assert os.stat(folder).st_mode & 0o777 == 0o700
assert any("blockmgr" in name for name in os.listdir(folder)), os.listdir(folder)
assert ours.table("sounds").count() == 1
ours.sql("create table made as select 1 as i")
assert os.listdir(os.path.join(folder, "warehouse")) == ["made"]
assert "spark-warehouse" not in os.listdir(), os.listdir()
frame = ours.range(3).selectExpr("cast(id as int) AS i")

# our JVM dies
kill()
goes_on()
session.commit()
assert sorted(session["sounds"].rows()) == [("Xxxx",), ("Xxxxxx",), ("Xxxxxx",)]
new = session.spark
assert new is not ours
assert new.table("sounds").count() == 3

# it is stopped, and the user makes another: views follow
new.stop()
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.log.level", "OFF")
builder = builder.config("spark.ui.enabled", "false")
users = builder.getOrCreate()
others.insert([(7,)])
session.commit()
assert session.spark is users
tables = users.conf.get("spark.sql.warehouse.dir")
assert tables.endswith(f"{os.getcwd()}/spark-warehouse"), tables
assert users.table("few").count() == 2
assert users.table("sounds").count() == 3

# the JVM of the user's session dies
kill()
others.insert([(9,)])
session.commit()
session.define({"more": others.filter("i > 8")})
names.insert([("Bob",)])
for _ in range(2):
    refused(session.commit, "JVM of the Spark session has died", "create your Spark session again")
assert session.pending
again = builder.getOrCreate()
session.commit()
assert session.spark is again
assert again.table("sounds").count() == 4
session.close()
print("folder", folder)
"""
)

SERVER = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
builder.config("spark.connect.grpc.binding.port", sys.argv[1]).getOrCreate()
print("ready", flush=True)
sys.stdin.read()
"""

CONNECT = (
    WITHOUT
    + """
import os, signal, socket, subprocess, sys, threading
import nosync_nb
from pyspark.sql import SparkSession

folder, server, port = sys.argv[1:]
env = dict(os.environ)  # PySpark puts what a client needs into this one's

def serve():
    process = subprocess.Popen(
        [sys.executable, "-c", server, port], env=env, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )
    assert process.stdout.readline() == "ready\\n"
    return process

def kill(process):
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()  # ends when the JVM does, which has the pipe too
    try:
        socket.create_connection(("localhost", int(port))).close()
    except ConnectionRefusedError:
        return
    raise AssertionError("the server is still there")

first = serve()
builder = SparkSession.builder.remote(f"sc://localhost:{port}")
users = builder.getOrCreate()
session = nosync_nb.open(folder)
names, others = session.input("names", "s string"), session.input("others", "i int")
session.stage("sounds", names.select("mask(s) AS code"))
names.insert([("Robert",)])
session.commit()
assert session.spark is users
frame = users.range(3).selectExpr("cast(id as int) AS i")

begun, never = folder + ".begun", folder + ".never"
for pipe in (begun, never):
    os.mkfifo(pipe)
held = [os.open(pipe, os.O_RDWR) for pipe in (begun, never)]

def blocked(records):
    import os
    os.write(os.open(begun, os.O_WRONLY), b"!")
    os.read(os.open(never, os.O_RDONLY), 1)  # until the test ends
    yield from records

errors, policies = [], users.client.get_retry_policies()
def load():
    try:
        others.insert(frame.mapInArrow(blocked, "i int"))
    except nosync_nb.NosyncError as error:
        errors.append(str(error))
loading = threading.Thread(target=load)
loading.start()
os.read(held[0], 1)  # an executor is at work

kill(first)
loading.join()
assert "input 'others': the JVM of the Spark session has died" in errors[0], errors
assert "nothing was applied" in errors[0]
assert users.client.get_retry_policies() == policies
goes_on()
for _ in range(2):
    refused(session.commit, "JVM of the Spark session has died", "create your Spark session again")
assert session.pending

second = serve()
again = builder.getOrCreate()
assert again is not users
session.commit()
assert session.spark is again
assert again.table("sounds").count() == 3
users.stop()  # at once, though its server has died
session.close()
again.stop()
kill(second)
print("all is well")
"""
)


def run_python(code: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    tests = Path(nosync_nb.__file__).parent.parent
    kept = {k: v for k, v in os.environ.items() if k != "SPARK_CONF_DIR"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**kept, "PYTHONPATH": str(tests), "PYTHONWARNINGS": "ignore", **env},
        cwd=arguments[0] and str(Path(arguments[0]).parent),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def run(code: str, *arguments: str, **env: str) -> str:
    done = run_python(code, *arguments, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_stages_run_in_process_without_java_and_say_so(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    assert "rows 7001" in run(NO_JAVA, str(tmp_path / "log"), JAVA_HOME=str(tmp_path / "none"))


@pytest.mark.fault(3)
@pytest.mark.spark
@pytest.mark.slow
def test_killed_jvm_loses_no_rows(tmp_path: Path) -> None:
    told = run(KILLED, str(tmp_path / "log"))
    folder = told.partition("folder ")[2].strip()
    assert folder
    assert not Path(folder).exists()


@pytest.mark.fault(3)
@pytest.mark.spark
@pytest.mark.slow
def test_killed_connect_server_loses_no_rows(tmp_path: Path) -> None:
    assert "all is well" in run(CONNECT, str(tmp_path / "log"), SERVER, str(free_port()))


QUIET = """
import sys
import nosync_nb

session = nosync_nb.open(sys.argv[1])
names = session.input("names", "name string")
names.insert([("ann",)])
session.commit()
session.stage("sounds", names.select("mask(name) as sound"))
print(session["sounds"].rows()[0].sound, "by Spark: mask(name)" in session["sounds"].explain())
"""


@pytest.mark.spark
def test_session_started_by_nosync_prints_nothing(tmp_path: Path) -> None:
    done = run_python(QUIET, str(tmp_path / "log"))
    assert (done.stdout, done.stderr) == ("xxx True\n", "")


def test_failed_start_of_jvm_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'no room for a heap' >&2\nexit 1\n")
    java.chmod(0o755)
    done = run_python(QUIET, str(tmp_path / "log"), JAVA_HOME=str(tmp_path / "java"))
    assert done.returncode == 1
    assert "Spark cannot be started" in done.stderr
    assert "(no room for a heap)" in done.stderr
