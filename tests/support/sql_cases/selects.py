"""SELECT statements with the answers of Spark: cases, tables, and the script that asks Spark.

The statements are files of SQL in tests/data/selects, one for each part of the language. In a
statement `{a|b}` stands for one statement with `a` and one with `b`. Lines at the start of a file
choose the oracle: `-- oracle: duckdb` where Spark refuses the statement, and `-- ansi: both` for
statements that are also run with ANSI mode off. `-- refused` before a statement says that it is
refused although Spark accepts it: its result depends on the order of rows.

The answers are in a JSON file beside each file of SQL: names and types of columns and the rows, or
the condition of the error. `python tests/support/sql_cases/selects.py [NAME...]` asks Spark and
DuckDB again and writes them.
"""

from __future__ import annotations

import datetime
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[2] / "data" / "selects"
PENDING = FOLDER / "pending.json"
"""The cases that do not pass yet, each with the reason."""
NEEDS_SPARK = FOLDER / "needs_spark.json"
"""The cases that ask for a Spark session; all others start no JVM."""

_DAY = datetime.date
_TIME = datetime.datetime


class Table(NamedTuple):
    """A table: its rows, and rows that come and are removed before the end."""

    ddl: str
    rows: list[tuple[Any, ...]]
    passing: list[tuple[Any, ...]]


TABLES = {
    "t": Table(
        "a int, b string, c double",
        [
            (1, "x", 1.5),
            (2, "y", 2.5),
            (2, "y", 3.5),
            (3, None, 4.0),
            (None, "q", 1.0),
            (1, "x", 1.5),
            (None, None, None),
            (4, "z", -2.0),
        ],
        [(1, "w", 0.5), (2, None, 9.0), (None, "x", 2.0), (2, "y", 2.5)],
    ),
    "u": Table(
        "a int, d int",
        [(1, 10), (2, 20), (2, 21), (5, 50), (None, 7), (1, 10), (3, None)],
        [(2, 99), (7, 3), (None, None), (1, 10)],
    ),
    "e": Table("a int, b string", [], [(9, "x")]),
    "m": Table(
        "id bigint, n decimal(10,2), day date, at timestamp, ok boolean, s smallint, f float",
        [
            (1, Decimal("1.50"), _DAY(2024, 1, 1), _TIME(2024, 1, 1, 8), True, 1, 1.5),
            (2, Decimal("2.25"), _DAY(2024, 1, 20), _TIME(2024, 1, 1, 20, 30), False, 2, 2.5),
            (3, None, _DAY(2024, 2, 29), _TIME(2024, 1, 3, 0, 0, 0, 5), True, None, -0.5),
            (4, Decimal("-3.75"), None, _TIME(2023, 12, 31, 23, 59), None, 4, None),
            (5, Decimal("100.00"), _DAY(2024, 1, 20), None, True, 5, 4.0),
            (6, Decimal("2.25"), _DAY(2023, 6, 1), _TIME(2024, 1, 2, 12), False, -6, 2.5),
        ],
        [(90, Decimal("7.00"), _DAY(2025, 1, 1), _TIME(2025, 1, 1), None, 9, 9.0)],
    ),
    "emp": Table(
        "id int, name string, dept string, boss int, pay int, hired date",
        [
            (1, "Ann", "board", None, 300, _DAY(2019, 3, 1)),
            (2, "Bob", "ops", 1, 120, _DAY(2020, 1, 15)),
            (3, "Cid", "ops", 2, 100, _DAY(2020, 1, 20)),
            (4, "Dan", "ops", 2, 100, _DAY(2021, 7, 1)),
            (5, "Eve", "dev", 1, 150, _DAY(2019, 3, 1)),
            (6, "Fay", "dev", 5, 130, _DAY(2020, 12, 31)),
            (7, "Gus", "dev", 5, 130, _DAY(2022, 2, 28)),
            (8, "Hal", None, 5, 110, _DAY(2022, 3, 15)),
            (9, "Ida", "ops", 3, 95, _DAY(2022, 3, 20)),
        ],
        [(90, "Zed", "dev", 5, 131, _DAY(2021, 1, 1)), (91, "Yan", None, 2, 99, _DAY(2018, 1, 1))],
    ),
    "edge": Table("src int, dst int", [(1, 2), (2, 3), (3, 1), (3, 4), (5, 6)], [(4, 5), (6, 1)]),
    "sales": Table(
        "year int, quarter string, region string, amount decimal(8,2)",
        [
            (2023, "Q1", "north", Decimal("10.50")),
            (2023, "Q1", "south", Decimal("20.00")),
            (2023, "Q2", "north", Decimal("5.25")),
            (2024, "Q1", "north", Decimal("30.00")),
            (2024, "Q2", "south", None),
            (2024, "Q3", "south", Decimal("7.75")),
            (2024, "Q3", "south", Decimal("7.75")),
        ],
        [(2023, "Q2", "south", Decimal("99.00")), (2022, "Q1", "north", Decimal("1.00"))],
    ),
    "wide": Table(
        "id int, q1 int, q2 int, q3 int",
        [(1, 10, 20, None), (2, None, None, None), (3, 5, 6, 7)],
        [(4, 1, 2, 3), (1, 10, 20, None)],
    ),
    "nested": Table(
        "id int, xs array<int>, kv map<string,int>, p struct<x:int,y:string>",
        [
            (1, [1, 2, 2], {"k": 1}, (1, "x")),
            (2, [], {}, (2, None)),
            (3, None, None, None),
            (4, [None, 5], {"k": 4, "l": 7}, (1, "x")),
        ],
        [(9, [3], {"z": 3}, (3, "z"))],
    ),
    "ev": Table(
        "k string, t int, v int",
        [
            ("a", 1, 10),
            ("a", 3, 20),
            ("a", 3, 30),
            ("a", 9, 40),
            ("b", 2, 50),
            ("b", 20, None),
            ("b", 24, 70),
            ("c", 22, 5),
        ],
        [("a", 4, 99), ("b", 3, 1), ("d", 23, 2)],
    ),
}


def epochs() -> Iterator[Mapping[str, tuple[list[Any], list[Any]]]]:
    """Rows to insert and to remove in each of three epochs; `rows` of the tables remain."""
    yield {name: (t.rows[::2] + t.passing, []) for name, t in TABLES.items()}
    yield {name: (t.rows[1::2], t.passing + t.rows[:1]) for name, t in TABLES.items()}
    yield {name: (t.rows[:1], []) for name, t in TABLES.items()}


class Case(NamedTuple):
    """A statement, with ANSI mode on or off."""

    sql: str
    ansi: bool
    refused: bool

    @property
    def key(self) -> str:
        return self.sql if self.ansi else f"{self.sql} -- ansi off"


class Answer(NamedTuple):
    """Spark's answer: the columns with their types and the rows, or the condition of an error."""

    schema: str
    rows: list[list[Any]]
    error: str

    @property
    def text(self) -> str:
        if self.error:
            return f"fails with {self.error}"
        return f"({self.schema}) {[*map(str, ordered(self.rows))]}"


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.sql"))


def cases(name: str) -> list[Case]:
    """The statements of a file."""
    text = (FOLDER / f"{name}.sql").read_text()
    both = text.startswith("-- ansi: both")
    found = []
    for statement in re.split(r";\n", re.sub(r"\A(-- \w+: \w+\n)+", "", text)):
        if sql := statement.strip():
            refused = sql.startswith("-- refused\n")
            for one in _expanded(sql.removeprefix("-- refused\n")):
                found += [Case(one, ansi, refused) for ansi in ((True, False) if both else (True,))]
    return found


def oracle(name: str) -> str:
    return "duckdb" if (FOLDER / f"{name}.sql").read_text().startswith("-- oracle: duckdb") else ""


def _expanded(sql: str) -> Iterator[str]:
    """The statements for which one with `{a|b}` stands."""
    parts = re.split(r"\{([^{}]*\|[^{}]*)\}", sql)
    choices = [part.split("|") if i % 2 else [part] for i, part in enumerate(parts)]
    yield from map("".join, itertools.product(*choices))


def recorded(name: str) -> dict[str, Answer]:
    """The answers to the statements of a file, by the key of the case."""
    held = json.loads((FOLDER / f"{name}.json").read_text())
    return {
        key: Answer(a.get("schema", ""), a.get("rows", []), a.get("error", ""))
        for key, a in held.items()
    }


def pending() -> dict[str, dict[str, str]]:
    """The cases that do not pass yet with the reason, by file."""
    found: dict[str, dict[str, str]] = json.loads(PENDING.read_text())
    return found


def needs_spark() -> dict[str, list[str]]:
    """The cases that ask for a Spark session, by file."""
    found: dict[str, list[str]] = json.loads(NEEDS_SPARK.read_text())
    return found


# -- values ----------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A value as JSON has it; the types of the columns tell the rest."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if value != value or abs(value) == float("inf") else float(f"{value:.12g}")
        case datetime.datetime():
            return value.replace(tzinfo=None).isoformat(" ")
        case datetime.date() | Decimal() | datetime.timedelta():
            return str(value)
        case bytes() | bytearray():
            return value.hex()
        case tuple() if hasattr(value, "asDict"):  # a struct of Spark
            return plain(value.asDict())
        case dict():
            return sorted(([plain(k), plain(v)] for k, v in value.items()), key=repr)
        case _ if isinstance(value, Iterable):
            return [plain(each) for each in value]
    return str(value)


def ordered(rows: list[list[Any]]) -> list[list[Any]]:
    return sorted(rows, key=repr)


# -- asking Spark and DuckDB -----------------------------------------------------------------------


def ask_spark(spark: Any, sql: str) -> dict[str, Any]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        frame = spark.sql(sql)
        fields = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in frame.schema.fields)
        return {"schema": fields, "rows": ordered([plain(tuple(r)) for r in frame.collect()])}
    except PySparkException as error:
        condition = error.getCondition() if hasattr(error, "getCondition") else None
        return {"error": condition or type(error).__name__}
    except Py4JError as error:  # one of the JVM that PySpark does not convert
        cause = getattr(error, "java_exception", None)
        while cause is not None and not (hasattr(cause, "getCondition") and cause.getCondition()):
            cause = cause.getCause()
        return {"error": cause.getCondition() if cause is not None else type(error).__name__}


def duck() -> Any:
    """A database with the tables that have neither maps nor structs."""
    import duckdb

    db = duckdb.connect()
    for name, table in TABLES.items():
        if name != "nested":
            ddl = re.sub(r"(\w+) (\w+(\([\d,]+\))?)", r'"\1" \2', table.ddl)
            db.execute(f"create table {name} ({ddl})")
            for row in table.rows:
                db.execute(f"insert into {name} values ({', '.join('?' * len(row))})", row)
    return db


def ask_duckdb(db: Any, sql: str) -> dict[str, Any]:
    """The rows; without the types, which are DuckDB's."""
    import duckdb

    try:
        return {"schema": "", "rows": ordered([plain(row) for row in db.execute(sql).fetchall()])}
    except duckdb.Error as error:
        return {"error": f"{type(error).__name__}: {error}"}


def record(spark: Any, name: str) -> None:
    """Asks for the answers to the statements of a file, and writes them."""
    db = duck() if oracle(name) else None
    found = {}
    for case in cases(name):
        spark.conf.set("spark.sql.ansi.enabled", str(case.ansi).lower())
        found[case.key] = ask_duckdb(db, case.sql) if db else ask_spark(spark, case.sql)
    lines = (f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in found.items())
    (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    from nosync_nb.spark import launch

    started = launch.start_session(
        {
            "spark.master": "local[2]",
            "spark.log.level": "OFF",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.adaptive.enabled": "false",
        }
    )
    for table_name, table_ in TABLES.items():
        held_rows = started.createDataFrame(table_.rows, table_.ddl).coalesce(1).cache()
        held_rows.createOrReplaceTempView(table_name)
    for each_name in sys.argv[1:] or names():
        record(started, each_name)
    launch.stop_session(started)
