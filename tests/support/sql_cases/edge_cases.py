"""Every function that is computed in process, over values at the edges of every type.

The expressions are built from the table of functions: each name is called with columns of each
type, with columns of two types, and with literals at the edges; unknown expressions are skipped.
Run as a program, it records Spark's answers for the tests without Spark:

    scripts/run python tests/support/sql_cases/edge_cases.py
"""

from __future__ import annotations

import json
import lzma
import math
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from nosync_nb import rows
from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import Expression, compile_expression
from nosync_nb.expressions.functions.registry import FUNCTIONS, OPERATORS
from nosync_nb.rows import Column, Schema
from nosync_nb.rows.arrow import to_python_values
from sql_cases.expression_cases import INTEGERS, column_of, label

RECORD = Path(__file__).parents[2] / "data" / "edge_answers.json.xz"
RAISES = "raises"
REFUSED, FAILS = "refused", "fails"
"""The types of expressions that Spark refuses, and of those that fail before Spark reads a row."""
_SECOND = 1_000_000
_LAST = 253_402_300_799 * _SECOND + 999_999
_FIRST = -62_135_596_800 * _SECOND
_LEAP = 1_709_251_199_500_000  # 2024-02-29 23:59:59.5
_NAN, _INF = math.nan, math.inf


def _single(value: float) -> float:
    return float(np.float32(value))


_TIMES = [None, 0, -1, _LEAP, _FIRST, _LAST]
VALUES: dict[str, list[Any]] = {
    "boolean": [None, True, False],
    "tinyint": [None, 0, 1, -1, 5, 127, -128],
    "smallint": [None, 0, 1, -1, 32767, -32768],
    "int": [None, 0, 1, -1, 25, 2**31 - 1, -(2**31)],
    "bigint": [None, 0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63)],
    "float": [
        *(None, 0.0, 1.0, 0.5, -2.5, _single(1.005), _single(0.1), _INF, -_INF, _NAN),
        *(_single(3.4028235e38), _single(1.4e-45), 16777217.0 - 1),
    ],
    "double": [
        *(None, 0.0, 1.0, 0.5, -2.5, 1.005, 0.1, _INF, -_INF, _NAN, 1.7976931348623157e308),
        *(5e-324, 2.675, 9007199254740993.0, 1e22),
    ],
    "decimal(10,2)": [None, *map(Decimal, ("0", "0.5", "-2.5", "99999999.99", "-99999999.99"))],
    "decimal(38,18)": [
        None,
        *map(Decimal, ("0", "1E-18", "-0.5", "2.5", "9" * 20 + "." + "9" * 18)),
    ],
    "string": [
        *(None, "", " ", "a", "é😀", "NaN", "-0.0", "1.005", "2147483648", "2024-02-29"),
        *("2024-02-29 23:59:59.999999", "true", "Infinity", "AbC"),
    ],
    "binary": [None, b"", b"\0", b"\xff", b"a"],
    "date": [None, 0, -1, 19782, -719162, 2932896],
    "timestamp": _TIMES,
    "timestamp_ntz": _TIMES,
    "interval day to second": [None, 0, 1, -1, 86_400 * _SECOND, 2**63 - 1],
    "interval year to month": [None, 0, 1, -13, 2**31 - 1],
    "array<double>": [None, [], [None], [_NAN, 1.0, _NAN], [0.0, _INF, None, -_INF], [0.1, 5e-324]],
    "array<int>": [None, [], [None], [2**31 - 1, None, -(2**31)], [1, 1, 0]],
    "array<string>": [None, [], [None], ["", None, "é😀"], ["b", "a", "b"]],
    "map<string,double>": [None, [], [("a", _NAN)], [("", None), ("a", 1.0)]],
    "struct<a:int,b:double>": [None, (None, None), (2**31 - 1, _NAN), (0, 0.0)],
}
"""For each type null, zero, the bounds, NaN, empty values, halves, inexact texts.

Negative zero is missing, because it is stored as zero; some expressions compute it.
"""
_LITERALS: dict[str, list[str]] = {
    "int": ["0", "1", "-1", "2", "2147483647"], "bigint": ["9223372036854775807L"],
    "float": ["float('NaN')", "1.005f", "-0.0f"],
    "double": ["double('NaN')", "1.005D", "-0.0D", "double('Infinity')"], "decimal(10,2)": ["2.5"],
    "string": ["''", "'a'", "'1.005'"], "date": ["date'2024-02-29'"], "boolean": ["true"],
}  # fmt: skip
_SIZE = max(map(len, VALUES.values()))
PAIRS = [(i, j) for i in range(_SIZE) for j in range(_SIZE)]


@cache
def frame() -> tuple[Schema, list[Column]]:
    """The columns `x_<type>` and `y_<type>`, which run through all pairs of values."""
    fields, made = [], []
    for side, name in enumerate("xy"):
        for type_, values in VALUES.items():
            fields.append((f"{name}_{label(type_)}", type_))
            made.append(column_of([values[pair[side] % len(values)] for pair in PAIRS], type_))
    return Schema(fields), made


Answer = tuple[str, list[str | None]]
"""The type of an expression, and its answer for each row."""


class Edge(NamedTuple):
    """An expression, and the positions of its rows."""

    name: str
    sql: str
    places: tuple[int, ...]


# -- the expressions -------------------------------------------------------------------------------

MOST = 12
"""The number of expressions per function."""
OWN_WORLD = frozenset(("rand", "randn", "random", "uuid", "now", "curdate", "current_timezone"))
OWN_WORLD |= frozenset(("current_date", "current_timestamp", "localtimestamp", "uniform"))
OWN_WORLD |= frozenset(("shuffle", "randstr"))
"""Functions of the moment or of chance."""
_SIGNS = {
    "neg": "-{0}", "not": "not {0}", "is true": "{0} is true", "is false": "{0} is not false",
    "~": "~ {0}", "in": "{0} in ({1}, {2})", "like": "{0} like {1}", "ilike": "{0} ilike {1}",
}  # fmt: skip
_WRITTEN = {
    "in": [
        "x_{t} in ({l}, y_{t})", "x_{t} in ({l}, null)", "x_{t} not in ({l})",
        "x_{t} not in ({l}, y_{t})", "case x_{t} when {l} then 1 when y_{t} then 2 else 3 end",
        "exists(array(x_{t}, y_{t}), v -> v in ({l}))",
        "filter(array(x_{t}, y_{t}), v -> v not in ({l}))", "x_{t} between {l} and y_{t}",
        "if(x_{t} in ({l}), 1, 2)", "transform(array(x_{t}), v -> nullif(v, {l}))",
    ],
    "round": ["round(x_{t}, {k})", "bround(x_{t}, {k})", "round(-x_{t}, {k})"],
}  # fmt: skip
_LAMBDAS = """
transform(x_array_double, v -> v * 2)
transform(x_array_double, (v, i) -> v + i)
transform(x_array_double, v -> round(v, 1))
transform(x_array_double, v -> cast(v as string))
transform(x_array_int, v -> try_add(v, 1))
filter(x_array_double, v -> v > 0)
filter(x_array_double, v -> v = double('NaN'))
filter(x_array_double, v -> v <> 1)
exists(x_array_double, v -> v >= double('Infinity'))
exists(x_array_double, v -> v in (double('NaN'), 2D))
forall(x_array_double, v -> v <= double('NaN'))
forall(x_array_string, v -> v in ('', 'a', 'b'))
aggregate(x_array_double, 0D, (s, v) -> s + coalesce(v, 0))
aggregate(x_array_double, 0D, (s, v) -> greatest(s, v))
reduce(x_array_double, 1D, (s, v) -> least(s, v), s -> s * 2)
zip_with(x_array_double, x_array_int, (a, b) -> a = b)
map_filter(x_map_string_double, (k, v) -> v = double('NaN'))
transform_values(x_map_string_double, (k, v) -> v in (double('NaN')))
transform_keys(x_map_string_double, (k, v) -> k || '!')
array_sort(x_array_double, (a, b) -> case when a < b then 1 when a > b then -1 else 0 end)
map_zip_with(x_map_string_double, x_map_string_double, (k, a, b) -> a <=> b)
x_map_string_double['a']
x_struct_a_int_b_double.b
x_array_double[0]
named_struct('q', x_double, 'r', y_float)
"""


def _literal_of(type_: str) -> list[str]:
    return _LITERALS.get(type_, [])


def _column(side: str, type_: str) -> str:
    return f"{side}_{label(type_)}"


def _arguments() -> Iterator[tuple[str, ...]]:
    """Arguments to try each function with."""
    yield ()
    for type_ in VALUES:
        yield (_column("x", type_),)
    for type_ in ("double", "float"):
        yield (f"-{_column('x', type_)}",)
        for literal in _literal_of(type_):
            yield (literal,)
    for type_ in VALUES:
        x, y = _column("x", type_), _column("y", type_)
        yield x, y
        for literal in _literal_of(type_):
            yield x, literal
            yield literal, y
    for type_ in ("double", "float"):
        x = _column("x", type_)
        yield f"-{x}", _column("y", type_)
        yield _column("x", "double" if type_ == "float" else "float"), _column("y", type_)
    for type_ in VALUES:
        x = _column("x", type_)
        for other in ("int", "double", "string", "bigint", "date", "decimal(10,2)"):
            if other != type_:
                yield x, _column("y", other)
                yield _column("x", other), _column("y", type_)
        yield x, "2"
    for element in ("double", "int", "string"):
        array = _column("x", f"array<{element}>")
        yield array, _column("y", element)
        for literal in _literal_of(element):
            yield array, literal
        yield array, _column("y", "int"), _column("y", element)
        yield array, _column("y", f"array<{element}>")
        yield array, "'-'"
        yield array, "1", "2"
    yield _column("x", "map<string,double>"), "'a'"
    yield ("array(x_array_double, y_array_double)",)
    yield ("array(x_array_string, y_array_string)",)
    yield "x_string", "'999.999'"
    yield "x_string", "'S9999999999'"
    for unit in ("'year'", "'quarter'", "'month'", "'week'", "'day'", "'hour'", "'second'"):
        for time in ("date", "timestamp", "timestamp_ntz"):
            yield _column("x", time), unit
            yield unit, _column("x", time)
    for pattern in ("'yyyy-MM-dd'", "'yyyy-MM-dd HH:mm:ss'"):
        for time in ("date", "timestamp", "string"):
            yield _column("x", time), pattern
    for type_ in VALUES:
        x, y = _column("x", type_), _column("y", type_)
        yield x, y, x
        yield "x_boolean", x, y
        for literal in _literal_of(type_)[:1]:
            yield x, literal, y
    yield "x_string", "y_int", "x_int"
    yield "x_string", "1", "y_string"
    yield "x_string", "y_string", "'q'"
    yield "x_string", "'a'", "2"
    yield "x_string", "5", "'xy'"
    yield "'a'", "x_string", "y_int"
    yield "x_int", "y_int", "1"
    yield "x_int", "y_int", "1", "2", "3", "x_decimal_10_2"
    yield "x_int", "y_int", "1", "2", "3", "4.5"
    yield "x_int", "y_int", "1", "2"
    yield "x_string", "'[a-z]'"
    yield "x_string", "'([0-9]+)'", "1"
    yield "x_string", "'[0-9]'", "'#'"
    yield "x_string", "'$.a'"
    yield "x_string", "'a double'"
    yield "'q'", "x_double", "'r'", "y_string"
    yield "'%s|%s'", "x_double", "y_string"
    yield "'%5d'", "x_int"
    yield "x_string", "256"
    yield "year", "x_int", "y_timestamp"
    yield "day", "x_int", "y_timestamp"
    yield "month", "x_timestamp", "y_timestamp"
    yield "'UTC'", "'Europe/Berlin'", "x_timestamp_ntz"
    yield "x_timestamp", "'Europe/Berlin'"
    yield "x_date", "'TU'"
    yield "x_binary", "'utf-8'"
    yield "x_double", "0.0D", "10.0D", "5"


def _written(name: str, arguments: Sequence[str]) -> str | None:
    """A call or an operator with arguments; None for another number of arguments."""
    if name in FUNCTIONS:
        return f"{name}({', '.join(arguments)})"
    pattern = _SIGNS.get(name)
    if pattern is None:
        pattern = f"{{0}} {name} {{1}}"
    count = sum(f"{{{i}}}" in pattern for i in range(3))
    return pattern.format(*arguments) if len(arguments) == count else None


def _places(arguments: str) -> tuple[int, ...]:
    """All pairs, or each value once if an expression reads one column."""
    both = "y_" in arguments
    return tuple(k for k, (i, j) in enumerate(PAIRS) if both or j == (i + 1) % _SIZE)


def compiled(sql: str) -> Expression | None:
    """The expression, if it is computed in process."""
    try:
        made = compile_expression(sql, frame()[0], types=lambda *_: ["int"])
    except ExpressionError:
        return None
    return made if made.local and not made.is_column else None


_LENGTHS = frozenset(("repeat", "lpad", "rpad", "space", "sequence", "array_repeat"))
_LONG = re.compile(r"[xy]_(int|bigint|decimal|double|float|string)|2147483647")
"""Arguments that as a length give two gigabytes."""


def _of(name: str) -> list[str]:
    """Expressions of one function: a sample of each number and kind of arguments."""
    found: dict[str, int] = {}
    for arguments in _arguments():
        sql = _written(name, arguments)
        if sql is not None and name in _LENGTHS and _LONG.search(sql):
            continue
        if sql is not None and sql not in found and compiled(sql) is not None:
            real = any(word in sql for word in ("double", "float", "D"))
            found[sql] = crc32(sql.encode()) // (4 if real else 1)
    return sorted(sorted(found, key=found.__getitem__)[:MOST])


def _templates() -> Iterator[tuple[str, str]]:
    for type_ in VALUES:
        literals = _literal_of(type_)
        for pattern in _WRITTEN["in"] if literals else ():
            listed = ", ".join(literals[:2])
            yield "in", pattern.format(t=label(type_), l=listed if "between" not in pattern
                                       and "when" not in pattern and "nullif" not in pattern
                                       else literals[0])  # fmt: skip
        if literals and type_ in ("double", "float", "int", "bigint"):
            many = ", ".join([*literals, *map(str, range(3, 15))])
            yield "in", f"x_{label(type_)} in ({many})"
    for type_ in (*INTEGERS, "float", "double", "decimal(10,2)", "decimal(38,18)"):
        for pattern in _WRITTEN["round"]:
            for places in (-39, -2, -1, 0, 1, 2, 7, 40):
                yield "round", pattern.format(t=label(type_), k=places)
    for source in VALUES:
        for target in VALUES:
            if source != target:
                yield "cast", f"cast({_column('x', source)} as {target})"
                yield "cast", f"try_cast({_column('x', source)} as {target})"
    for type_ in ("double", "float"):
        yield "cast", f"cast(-x_{type_} as string)"
        yield "cast", f"cast(-x_{type_} as decimal(10,2))"
    for line in _LAMBDAS.split("\n"):
        yield "lambda", line.strip()


@cache
def edges() -> list[Edge]:
    named = [
        (name, sql) for name in sorted({*FUNCTIONS, *OPERATORS} - OWN_WORLD) for sql in _of(name)
    ]
    named += [(name, sql) for name, sql in _templates() if compiled(sql) is not None]
    return [Edge(name, sql, _places(sql)) for sql, name in {s: n for n, s in named}.items()]


# -- answers ---------------------------------------------------------------------------------------


def plain(value: Any) -> str | None:
    """A value as text; floats are in their stored form, where zero has no sign."""
    if value is None:
        return None
    return repr(_unsigned(value))


def _unsigned(value: Any) -> Any:
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, list | tuple):
        return type(value)(map(_unsigned, value))
    return value


def here(edge: Edge, *, together: bool = True) -> Answer:
    """The type and the answers of an expression in process.

    Args:
        together: evaluate all rows at once, if none raises.
    """
    e = compiled(edge.sql)
    assert e is not None, edge
    at = np.array(edge.places)
    columns = [
        rows.take(column, at) if c in e.columns else column for c, column in enumerate(frame()[1])
    ]
    if together:
        try:
            return e.type, [
                plain(v) for v in to_python_values(e.evaluate(columns, len(at)), e.type)
            ]
        except ExpressionError:
            pass
    answers: list[str | None] = []
    known: dict[str, str | None] = {}
    for i in range(len(at)):
        one = [
            rows.slice_(columns[c], i, i + 1) if c in e.columns else columns[c]
            for c in range(len(columns))
        ]
        row = repr([to_python_values(one[c], frame()[0].types[c]) for c in e.columns])
        if row not in known:
            try:
                known[row] = plain(to_python_values(e.evaluate(one, 1), e.type)[0])
            except ExpressionError:
                known[row] = RAISES
        answers.append(known[row])
    return e.type, answers


@cache
def recorded() -> list[tuple[Edge, Answer]]:
    data = json.loads(lzma.decompress(RECORD.read_bytes()))
    texts = data["texts"]
    return [
        (Edge(name, sql, _places(sql)), (type_, [texts[number] for number in numbers]))
        for sql, (name, type_, numbers) in data["answers"].items()
    ]


def write(some: Sequence[Edge], answers: dict[str, Answer]) -> None:
    """Records answers, each different text once."""
    texts: dict[str | None, int] = {}
    made = {}
    for edge in some:
        type_, listed = answers[edge.sql]
        numbers = [texts.setdefault(answer, len(texts)) for answer in listed]
        made[edge.sql] = (edge.name, type_, numbers)
    text = json.dumps({"texts": list(texts), "answers": made}, separators=(",", ":"))
    RECORD.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


_TOGETHER = 25


def caught(spark: Any, sql: str, name: str, type_: str) -> Any:
    """Returns a column of Spark: a struct with the value `v`, null where Spark raises."""
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import functions

    from nosync_nb.spark import interval_transport

    jvm = spark.sparkContext._gateway.jvm
    utils = jvm.org.apache.spark.sql.classic.ExpressionUtils
    value = interval_transport.sql_to_transport(f"({sql})", type_)
    value = f"if(row < 0, null, {value})"  # nullable for PySpark
    struct = functions.expr(f"named_struct('v', {value})")
    inner = utils.expression(getattr(struct, "_jc"))  # noqa: B009  (PySpark has no public way)
    tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(inner)
    return SparkColumn(utils.column(tried)).alias(name)


def asked(spark: Any, some: Sequence[Edge]) -> dict[str, Answer]:
    """Spark's answers: a type, and one for each row."""
    import pyarrow as pa

    from nosync_nb.spark.spark_session import frame_of, spark_type_text

    schema, columns = frame()
    arrays = [rows.to_arrow(c, t) for c, t in zip(columns, schema.types, strict=True)]
    arrays.append(pa.array(range(len(PAIRS)), pa.int32()))
    whole = Schema([*((f.name, f.type) for f in schema.fields), ("row", "int")])
    frame_ = frame_of(spark, pa.Table.from_arrays(arrays, schema=whole.arrow), whole).cache()
    answers: dict[str, Answer] = {}
    types: dict[str, str] = {}

    def examine(part: Sequence[Edge]) -> None:
        """Reads the types of many expressions at once, and of each alone if one is refused."""
        texts = [f"({e.sql}) as r{i}" for i, e in enumerate(part)]
        try:
            fields = frame_.selectExpr(*texts).schema.fields
        except Exception:
            if len(part) == 1:
                answers[part[0].sql] = (REFUSED, [])
                return
            half = len(part) // 2
            examine(part[:half])
            examine(part[half:])
            return
        types.update(
            {e.sql: spark_type_text(f.dataType) for e, f in zip(part, fields, strict=True)}
        )

    def given(array: Any, k: int, type_: str) -> str | None:
        """One value; invalid UTF-8 is refused in process."""
        try:
            return plain(to_python_values(rows.from_arrow(array.slice(k, 1), type_), type_)[0])
        except UnicodeDecodeError:
            return RAISES

    def run(part: Sequence[Edge]) -> None:
        if not part:
            return
        chosen = [caught(spark, e.sql, f"r{i}", types[e.sql]) for i, e in enumerate(part)]
        try:
            table = frame_.select("row", *chosen).toArrow().sort_by("row")
        except Exception:
            if len(part) == 1:
                answers[part[0].sql] = (FAILS, [])
                return
            half = len(part) // 2
            run(part[:half])
            run(part[half:])
            return
        for i, edge in enumerate(part):
            structs = table[f"r{i}"].combine_chunks()
            type_ = types[edge.sql]
            raised = structs.is_null().to_pylist()
            listed = [
                RAISES if raised[k] else given(structs.field(0), k, type_) for k in edge.places
            ]
            answers[edge.sql] = (type_, listed)

    for start in range(0, len(some), _TOGETHER):
        examine(some[start : start + _TOGETHER])
    known = [edge for edge in some if edge.sql in types]
    for start in range(0, len(known), _TOGETHER):
        run(known[start : start + _TOGETHER])
    frame_.unpersist()
    return answers


if __name__ == "__main__":
    from nosync_nb.spark import launch

    found = launch.start_session(
        {
            "spark.master": "local[2]",
            "spark.log.level": "OFF",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "1",
        }
    )
    write(edges(), asked(found, edges()))
    launch.stop_session(found)
