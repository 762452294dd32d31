"""A call of each function and operator of the table, varied by the type of each argument.

Spark casts an argument of another type implicitly, or refuses the call. Its answers are recorded:
for each argument the types that it refuses, those that need Spark, and a digest of the other
results. Run as a program, it asks Spark again, compares all values, and records the answers.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import Expression, SqlSettings, compile_expression
from nosync_nb.rows import Column, Schema
from nosync_nb.rows.arrow import to_python_values
from nosync_nb.rows.ddl import INTERVALS
from sql_cases.edge_cases import caught
from sql_cases.expression_cases import VALUES, column_of
from sql_cases.expression_frames import Mask, evaluated
from sql_cases.function_cases import MATHEMATICS

RECORD = Path(__file__).parents[2] / "data" / "expressions_implicit.json"
ROWS = 32

CALLS: list[str] = list(json.loads(RECORD.read_text()))
"""The calls of the record. Each argument stands in braces, as a type that needs no cast."""


SCALARS = (
    *("tinyint", "smallint", "int", "bigint", "float", "double", "decimal(10,2)", "decimal(38,10)"),
    *("string", "boolean", "date", "timestamp", "timestamp_ntz", "binary"),
)
_ELEMENTS = ("bigint", "string", "double", "decimal(10,2)", "date")
NESTED: dict[str, tuple[str, ...]] = {
    "array<int>": ("array<int>", *(f"array<{each}>" for each in _ELEMENTS)),
    "array<string>": ("array<int>", *(f"array<{each}>" for each in _ELEMENTS)),
    "array<array<int>>": ("array<array<int>>",),
    "map<string,int>": ("map<string,int>", "map<int,string>"),
    "map<int,string>": ("map<string,int>", "map<int,string>"),
}
_OWN = ("decimal(16,6)", "decimal(18,6)")
_WHOLE = ("0", "1", "-1", "2", "12", "59", "60")
_TEXTS = ["5", "-1", " 12 ", "12.7", "2147483648", "2013-01-01", "2013-01-01 10:00:00", "true"]
_ITEMS: dict[str, list[Any]] = {
    "int": [1, 2, 3, -7, None],
    "bigint": [1, 2**40, 3, None],
    "string": ["a", "b", None, "1"],
    "double": [1.0, 2.5, None, 1e20],
    "decimal(10,2)": [Decimal("1.50"), None, Decimal("2.00")],
    "date": [0, 19782, None],
}


class Variation(NamedTuple):
    """A call with another type in the place of one argument."""

    call: str
    place: int
    type: str
    sql: str


def variations() -> Iterator[Variation]:
    """Every call with every type in the place of every argument, once."""
    for call in CALLS:
        parts = re.split(r"\{([^}]*)\}", call)
        own = parts[1::2]
        for place, natural in enumerate(own):
            for type_ in NESTED.get(natural, SCALARS):
                types = [*own[:place], type_, *own[place + 1 :]]
                named = [f"c{i}_{_label(each)}" for i, each in enumerate(types)]
                sql = "".join(part if i % 2 == 0 else named[i // 2] for i, part in enumerate(parts))
                yield Variation(call, place, type_, sql)


def _label(type_: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", type_).strip("_")


_MANY, _BEYOND = 300, 2**32


def _values(type_: str) -> list[Any]:
    """Values of a type, without numbers that make large results, as in `repeat`."""
    if type_ == "string":
        return [text for text in (None, *_TEXTS, *VALUES[type_]) if not _makes_many(text)]
    if type_ in VALUES:
        timed = type_ in ("date", "timestamp", "timestamp_ntz", "boolean", "binary")
        more = [_BEYOND] if type_ == "bigint" else []
        return [each for each in (*VALUES[type_], *more) if timed or not _makes_many(each)]
    if type_ in _OWN:
        return [None, *(Decimal(text).quantize(Decimal("0.000001")) for text in _WHOLE)]
    if type_ == "array<array<int>>":
        return [None, [[1, 2], [3]], [], [None, [4]]]
    if type_ == "map<string,int>":
        return [None, [], [("a", 1), ("b", None)], [("1", 5)]]
    if type_ == "map<int,string>":
        return [None, [], [(1, "a"), (2, None)]]
    items = _ITEMS[type_[len("array<") : -1]]
    return [None, [], items, items[:1], items[::-1], items + items]


def _makes_many(value: Any) -> bool:
    """Returns True for a large number that is an int."""
    try:
        number = float(value or 0)
    except (ValueError, OverflowError):
        return False
    return _MANY < abs(number) < _BEYOND


class Frame:
    """Columns of each type for each argument position."""

    def __init__(self) -> None:
        types = (*SCALARS, *NESTED, *(f"array<{each}>" for each in _ELEMENTS), *_OWN)
        fields, self.columns = [], []
        for type_ in dict.fromkeys(types):
            for place in range(6):
                fields.append((f"c{place}_{_label(type_)}", type_))
                self.columns.append(self._column(place, type_))
        self.schema = Schema(fields)

    def _column(self, place: int, type_: str) -> Column:
        chosen, values = random.Random(f"{place} {type_}"), _values(type_)
        first = values[:ROWS] if place == 0 else []
        made = [*first, *(chosen.choice(values) for _ in range(ROWS - len(first)))]
        if type_ == "float":
            made = [None if each is None else float(np.float32(each)) for each in made]
        return column_of(made, type_)

    def compiled(self, sql: str, *, ansi: bool = True) -> Expression | None:
        settings = SqlSettings("UTC", ansi)
        try:
            return compile_expression(
                sql, self.schema, types=lambda *_: ["string"], settings=settings
            )
        except ExpressionError:
            return None

    def row(self, e: Expression, i: int) -> dict[str, Any]:
        return {self.schema.names[c]: self.columns[c][i] for c in e.columns}


@cache
def frame() -> Frame:
    return Frame()


def summed(call: str, done: Sequence[tuple[str, Expression]]) -> str:
    """A digest of the types, values and refused rows of expressions, by the type of an argument."""
    own, texts = frame(), []
    for type_, e in done:
        column, fine = evaluated(e, own.columns, ROWS)
        kept = None if fine is None else fine.tolist()
        values = to_python_values(column, e.type)
        if call.partition("(")[0] in MATHEMATICS:
            values = [each is None for each in values]
        texts.append(repr((type_, e.type, values, kept)))
    return blake2b("\n".join(texts).encode(), digest_size=6).hexdigest()


Computed = tuple[Variation, Expression, Column, Mask | None]


class Asked:
    """Spark's types of variations, and comparisons of their values."""

    def __init__(self, spark: Any) -> None:
        from nosync_nb.spark.spark_session import frame_of

        self._spark = spark
        own = frame()
        typed = zip(own.columns, own.schema.types, strict=True)
        arrays = [rows.to_arrow(column, type_) for column, type_ in typed]
        table = pa.Table.from_arrays(arrays, schema=own.schema.arrow)
        self._numbered = table.append_column("row", pa.array(np.arange(ROWS)))
        self._schema = Schema([*own.schema.fields, ("row", "bigint")])
        self._frame = frame_of(spark, self._numbered, self._schema)
        self._of = lambda table, schema: frame_of(spark, table, schema)

    def type(self, sql: str) -> str | None:
        try:
            field = self._frame.selectExpr(f"({sql}) as r").schema.fields[0]
        except Exception:
            return None
        return str(field.dataType.simpleString())

    def disagreements(self, some: Sequence[Variation]) -> Iterator[str]:
        """The values and errors that differ between Spark and this process."""
        own, computed = frame(), []
        for each in some:
            e = own.compiled(each.sql)
            if e is not None and e.local:
                computed.append((each, e, *evaluated(e, own.columns, ROWS)))
        yield from self._values(computed)
        yield from self._refusals(computed)

    def _values(self, some: Sequence[Computed]) -> Iterator[str]:
        if len(some) > 40:
            for start in range(0, len(some), 40):
                yield from self._values(some[start : start + 40])
            return
        selected, table, fields = [], self._numbered, list(self._schema.fields)
        for k, (each, _, _, fine) in enumerate(some):
            if fine is None:
                selected.append(f"({each.sql}) as r{k}")
                continue
            table = table.append_column(f"m{k}", pa.array(fine))
            fields.append((f"m{k}", "boolean"))
            selected.append(f"case when m{k} then ({each.sql}) end as r{k}")
        try:
            asked = self._of(table, Schema(fields)).selectExpr(*selected, "row")
            given = asked.orderBy("row").toArrow()
        except Exception as error:
            if len(some) == 1:
                yield f"only Spark raises: {some[0][0].sql}: {str(error)[:200]}"
            else:
                yield from self._values(some[: len(some) // 2])
                yield from self._values(some[len(some) // 2 :])
            return
        for k, (each, e, column, _) in enumerate(some):
            answer = given.column(f"r{k}").combine_chunks()
            if e.type not in INTERVALS and rows.spark_type(answer.type) != e.type:
                yield f"{each.sql} is a {answer.type} in Spark, not {e.type}"
                continue
            theirs = rows.from_arrow(answer, e.type)
            same = rows.equal(theirs, column, e.type)
            if e.type == "double" and each.call.partition("(")[0] in MATHEMATICS:
                same |= np.isclose(
                    rows.to_arrow(theirs, "double"),
                    rows.to_arrow(column, "double"),
                    rtol=1e-15,
                    atol=0,
                )
            for i in np.flatnonzero(~same)[:1].tolist():
                both = [
                    to_python_values(rows.slice_(c, i, i + 1), e.type)[0] for c in (theirs, column)
                ]
                yield f"{each.sql} on {frame().row(e, i)}: Spark {both[0]}, here {both[1]}"

    def _refusals(self, some: Sequence[Computed]) -> Iterator[str]:
        """The rows that only this process refuses; invalid UTF-8 is excepted."""
        from pyspark.sql.functions import coalesce, is_valid_utf8, lit

        refusing = [
            (each, e, fine)
            for each, e, _, fine in some
            if fine is not None and not each.call.startswith("sequence(")  # Spark has no memory
        ]
        for start in range(0, len(refusing), 40):
            part, columns = refusing[start : start + 40], []
            for k, (each, e, _) in enumerate(part):
                tried = caught(self._spark, each.sql, f"r{k}", e.type)
                given = tried.isNotNull()
                if e.type == "string":
                    given &= coalesce(is_valid_utf8(tried.getField("v")), lit(True))
                columns.append(given.alias(f"r{k}"))
            answers = self._frame.select("row", *columns).toArrow().sort_by("row")
            for k, (each, e, fine) in enumerate(part):
                for i in np.flatnonzero(~fine & answers.column(f"r{k}").to_numpy()).tolist():
                    yield f"{each.sql} on {frame().row(e, i)}: only here an error"


def recorded() -> dict[str, list[dict[str, str]]]:
    """The recorded answers of each call, for each argument."""
    answers: dict[str, list[dict[str, str]]] = json.loads(RECORD.read_text())
    return answers


def _record(spark: Any) -> None:
    asked, own = Asked(spark), frame()
    every = list(variations())
    answers: dict[str, list[dict[str, str]]] = {call: [] for call in CALLS}
    for call in CALLS:
        mine = [each for each in every if each.call == call]
        for place in sorted({each.place for each in mine}):
            kinds: dict[str, list[str]] = {"refused": [], "spark": []}
            done = []
            for each in (each for each in mine if each.place == place):
                e = own.compiled(each.sql)
                if e is not None and e.local:
                    done.append((each.type, e))
                else:
                    kinds["refused" if asked.type(each.sql) is None else "spark"].append(each.type)
            texts = {kind: " ".join(types) for kind, types in kinds.items() if types}
            answers[call].append({**texts, "digest": summed(call, done)})
    wrong = list(asked.disagreements(every))
    if wrong:
        raise SystemExit("\n".join(wrong))
    RECORD.write_text(json.dumps(answers, indent=0, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    from nosync_nb.spark import spark_session

    slow = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    session = spark_session.require_session(conf={"spark.sql.session.timeZone": "UTC", **slow})
    session.sparkContext.setLogLevel("OFF")
    _record(session)
