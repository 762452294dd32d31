"""The examples of Spark's own list of functions, and variants of them.

Spark documents its functions with examples (`SHOW FUNCTIONS`, `DESCRIBE FUNCTION EXTENDED`). An
example is an expression over literals. A variant has columns in place of some literals, with the
value of the example and other values of the type. Nothing is recorded: each run asks Spark.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import Expression, SqlSettings, compile_expression
from nosync_nb.expressions.syntax.parser import Word, tokens
from nosync_nb.rows import Column, Schema
from nosync_nb.rows.arrow import to_python_values
from nosync_nb.spark import interval_transport
from nosync_nb.spark.spark_session import frame_of, spark_type_text
from sql_cases.expression_cases import column_of
from sql_cases.function_cases import MATHEMATICS
from sql_cases.nested_frames import evaluated

ROWS = 14
_EXAMPLE = re.compile(r"^\s*> SELECT\s+(.*?);\s*$", re.MULTILINE | re.DOTALL)
_OWN_WORLD = re.compile(  # of the session, the moment, the file or of chance
    r"current_|curdate|now\(|local|user\(|session_|rand|uuid|uniform|shuffle|version\(|reflect"
    r"|java_method|input_file|partition_id|monotonic|unix_timestamp\(\)|catalog|collation"
    r"|aes_encrypt",
    re.IGNORECASE,
)


class Example(NamedTuple):
    """A call of a function over columns with values."""

    function: str
    sql: str
    schema: Schema
    values: list[list[Any]]  # of each column

    @property
    def columns(self) -> list[Column]:
        typed = zip(self.values, self.schema.types, strict=True)
        return [column_of(list(values), type_) for values, type_ in typed]


def functions(spark: Any) -> list[str]:
    """The names of Spark's functions."""
    return [name for (name,) in spark.sql("show system functions").collect()]


def documented(spark: Any, name: str) -> list[str]:
    """The deterministic examples of a function that are expressions of one row."""
    text = "\n".join(line for (line,) in spark.sql(f"desc function extended `{name}`").collect())
    found = [sql.strip() for sql in _EXAMPLE.findall(text)]
    plain = [sql for sql in found if not re.search(r"\bfrom\s+(values|\()", sql, re.IGNORECASE)]
    return [sql for sql in plain if not _OWN_WORLD.search(sql) and readable(sql)]


def readable(sql: str) -> bool:
    """Returns True for an expression of one row, which aggregates and generators are not."""
    try:
        compile_expression(sql, _ONE, types=lambda *_: ["int"])
    except ExpressionError:
        return False
    return True


_ONE = Schema.parse("row int")


def plain(function: str, sql: str) -> Example:
    """An example as documented."""
    return Example(function, sql, _ONE, [[0]])


def variants(function: str, sql: str) -> list[Example]:
    """The example with columns for each literal, and for all of them."""
    found = _literals(sql)
    some = [[each] for each in found]
    if len(found) > 1:
        some.append(found)
    return [made for chosen in some if (made := _varied(function, sql, chosen)) is not None]


class _Literal(NamedTuple):
    start: int
    end: int
    type: str
    value: Any


_NUMBERS = {"l": "bigint", "s": "smallint", "y": "tinyint", "d": "double", "f": "float"}


def _literals(sql: str) -> list[_Literal]:
    """The literals that a column may replace."""
    words = tokens(sql)
    found = []
    for before, word in zip((None, *words), words, strict=False):
        kind = before.text.lower() if before is not None and before.kind == "word" else ""
        if kind in ("interval", "time", "timestamp", "timestamp_ltz", "timestamp_ntz"):
            continue
        made = _literal(word)
        if kind == "date" and made is not None and before is not None:
            days = np.datetime64(made[1], "D").astype(int).item()
            found.append(_Literal(before.start, word.end, "date", days))
        elif made is not None:
            found.append(_Literal(word.start, word.end, *made))
    return found


def _literal(word: Word) -> tuple[str, Any] | None:
    text = word.text
    if word.kind == "word" and text.lower() in ("true", "false"):
        return "boolean", text.lower() == "true"
    if word.kind == "string":
        inner = text[1:-1]
        fits = text[0] in "'\"" and not set("\\'\"") & set(inner)
        return ("string", inner) if fits else None
    if word.kind != "number":
        return None
    suffix = _NUMBERS.get(text[-1].lower())
    if suffix in ("double", "float") or (suffix is None and "e" in text.lower()):
        return suffix or "double", float(text[:-1] if suffix else text)
    if suffix is not None:
        return suffix, int(text[:-1])
    if not re.fullmatch(r"[0-9]*\.?[0-9]*", text):
        return None
    if "." not in text:
        return ("int" if int(text) < 2**31 else "bigint"), int(text)
    digits, places = text.replace(".", "").lstrip("0"), len(text.split(".")[1])
    return f"decimal({max(len(digits), places)},{places})", Decimal(text)


_OTHERS: dict[str, list[Any]] = {
    "tinyint": [0, 1, -1, 127, -128, 3],
    "smallint": [0, 1, -1, 32767, -32768, 5],
    "int": [0, 1, -1, 2, 7, 64, 2**31 - 1, -(2**31)],
    "bigint": [0, 1, -1, 2**63 - 1, -(2**63), 2**31],
    "float": [0.0, 1.5, -2.5, np.inf, np.nan],
    "double": [0.0, 1.5, -2.5, 0.1, 1e300, -np.inf, np.nan],
    "boolean": [True, False],
    "date": [0, -719162, -141427, 2932896, 16860, 19782],
    "string": [
        *("", " ", "a", "-1", " 7 ", "2.5e1", "é", "\U0001f600b", "a,b,,c", "A-b_C.d", "%", "NaN"),
        *("2016-02-29", "2016-03-31 23:59:59.5", '{"a":[1,{"b":null}],"é":"x"}', "zz zZ", "true"),
    ],
}


_LENGTHS = frozenset(("repeat", "lpad", "rpad", "space", "sequence", "array_repeat", "randstr"))
"""Functions that make two gigabytes of a length of two billion, in Spark too."""


def _others(function: str, literal: _Literal) -> list[Any]:
    if literal.type.startswith("decimal"):
        return [-literal.value, Decimal(0).quantize(literal.value)]
    if function in _LENGTHS and literal.type == "int":
        return [0, 1, -1, 2, 7, 64]
    return _OTHERS[literal.type]


def _varied(function: str, sql: str, chosen: Sequence[_Literal]) -> Example | None:
    """The example with columns in place of some literals; the first row has their values."""
    mark = crc32(f"{sql} {chosen}".encode())  # many are asked in one frame
    names = [f"c{mark}_{place}" for place in range(len(chosen))]
    text, end = [], 0
    for name, literal in zip(names, chosen, strict=True):
        text += [sql[end : literal.start], f" {name} "]
        end = literal.end
    made = "".join((*text, sql[end:]))
    schema = Schema([(n, literal.type) for n, literal in zip(names, chosen, strict=True)])
    draw = random.Random(made)
    columns = []
    for literal in chosen:
        others = [*_others(function, literal), literal.value, None]
        if len(chosen) == 1:
            draw.shuffle(others)
            drawn = others[: ROWS - 1]
        else:
            own = [literal.value for _ in range(ROWS - 1)]  # half of them: the others count
            drawn = [draw.choice((draw.choice(others), mine)) for mine in own]
        columns.append([literal.value, *drawn])
    try:
        compile_expression(made, schema, types=lambda *_: ["int"])
    except ExpressionError:
        return None
    return Example(function, made, schema, columns)


class Answer(NamedTuple):
    """The values of an expression, and a flag for each row that does not raise."""

    e: Expression
    values: list[Any]
    fine: list[bool]


def here(example: Example, *, ansi: bool) -> Answer | None:
    """The answer of this process; None if Spark is needed."""
    settings = SqlSettings("UTC", ansi)
    e = compile_expression(example.sql, example.schema, types=lambda *_: ["int"], settings=settings)
    if not e.local:
        return None
    return Answer(e, *evaluated(e, example.columns, len(example.values[0])))


Tried = tuple[Example, Answer]


def differences(spark: Any, some: Sequence[Tried]) -> dict[str, str]:
    """The differences from Spark's answers by expression.

    Many expressions are evaluated at once, and each alone if that fails.
    """
    asked = [(example, answer) for example, answer in some if any(answer.fine)]
    found: dict[str, str] = {}
    for example, answer in some:
        if not all(answer.fine):
            told = _not_raising(spark, example, answer.fine.index(False))
            if told:
                found[example.sql] = told
    try:
        columns = _asked(spark, asked)
    except Exception:
        if len(asked) > 1:
            half = len(asked) // 2
            return found | differences(spark, asked[:half]) | differences(spark, asked[half:])
        return found | {asked[0][0].sql: _told(spark, *asked[0])}
    for (example, answer), (type_, theirs) in zip(asked, columns, strict=True):
        told = _compared(example, answer, type_, theirs)
        if told:
            found[example.sql] = told
    return found


def _told(spark: Any, example: Example, answer: Answer) -> str:
    """The error of Spark for an expression that does not raise in process."""
    try:
        _asked(spark, [(example, answer)])
    except Exception as error:
        return f"in Spark {str(error)[:200]!r}, here {answer.values}"
    return "an error in Spark that does not come again"


def _not_raising(spark: Any, example: Example, row: int) -> str | None:
    """Spark's value for a row that raises in process; None if Spark raises too."""
    one = Example(*example[:3], [[values[row]] for values in example.values])
    try:
        ((_, theirs),) = _asked(spark, [(one, None)])
    except Exception:
        return None
    return f"of {_row(example, row)} in Spark {theirs}, here an error"


def _row(example: Example, row: int) -> list[Any]:
    return [values[row] for values in example.values]


def _compared(example: Example, answer: Answer, there: str, theirs: Any) -> str | None:
    type_ = answer.e.type
    if there != type_:
        return f"in Spark a {there}, here a {type_}"
    column = rows.from_arrow(theirs, type_)
    same = rows.equal(column, column_of(list(answer.values), type_), type_).tolist()
    expected = to_python_values(column, type_)
    near = example.function in MATHEMATICS
    for row, (want, got) in enumerate(zip(expected, answer.values, strict=True)):
        if not same[row] and not (near and _close(want, got)):
            return f"of {_row(example, row)} in Spark {want!r}, here {got!r}"
    return None


def _close(want: Any, got: Any) -> bool:
    """Returns True if doubles differ in the last places only."""
    if not isinstance(want, float) or not isinstance(got, float):
        return False
    return bool(abs(want - got) <= 2 * np.spacing(abs(want)))


def _asked(spark: Any, some: Sequence[tuple[Example, Answer | None]]) -> list[tuple[str, Any]]:
    """Spark's types and values, as Arrow; null on rows that raise in process."""
    fields, arrays, texts = [("row", "int")], [], []
    size = max(len(example.values[0]) for example, _ in some)
    arrays.append(pa.array(range(size), pa.int32()))
    for k, (example, answer) in enumerate(some):
        typed = zip(example.columns, example.schema.names, example.schema.types, strict=True)
        for column, name, type_ in typed:
            if name != "row":
                array = rows.to_arrow(column, type_)
                fields.append((name, type_))
                arrays.append(pa.concat_arrays([array, pa.nulls(size - len(array), array.type)]))
        sql = example.sql
        fine = [True] if answer is None else [*answer.fine]
        fine += [False] * (size - len(fine))
        if not all(fine):
            fields.append((f"m_{k}", "boolean"))
            arrays.append(pa.array(fine))
            sql = f"case when m_{k} then ({sql}) end"
        texts.append(f"({sql}) as r{k}")
    schema = Schema(fields)
    frame = frame_of(spark, pa.Table.from_arrays(arrays, schema=schema.arrow), schema)
    frame = frame.selectExpr("row", *texts)
    types = [spark_type_text(field.dataType) for field in frame.schema.fields[1:]]
    passed = [
        f"{interval_transport.sql_to_transport(f'r{k}', type_)} AS r{k}"
        for k, type_ in enumerate(types)
    ]
    table = frame.selectExpr("row", *passed).toArrow().sort_by("row")
    sizes = [len(example.values[0]) for example, _ in some]
    found = zip(types, table.columns[1:], sizes, strict=True)
    return [(type_, column.combine_chunks().slice(0, n)) for type_, column, n in found]
