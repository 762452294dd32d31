"""Evaluates expressions over the values of expression_cases.py, in process and in Spark.

Run as a program, it records the results of this process for the tests without Spark. Pass
vs_spark/test_functions.py before, which compares the same values with Spark.
"""

from __future__ import annotations

import copy
import json
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import Expression, compile_expression
from sql_cases.expression_cases import Case, all_cases, all_pairs, columns
from sql_cases.function_cases import NEAR

Mask = np.ndarray[Any, Any]


class Values:
    """The values: columns in object form, and as one Arrow table."""

    def __init__(self) -> None:
        pairs = all_pairs()
        self.n = len(pairs)
        self.schema, self.columns = columns(pairs)
        typed = zip(self.columns, self.schema.types, strict=True)
        self.arrays = [rows.to_arrow(column, type_) for column, type_ in typed]
        self.table = pa.Table.from_arrays(self.arrays, schema=self.schema.arrow)

    def drawn(self, count: int, seed: int) -> Values:
        """A sample of the rows, equal for equal seeds."""
        at = np.sort(np.random.default_rng(seed).choice(self.n, count, replace=False))
        part = copy.copy(self)
        part.n, part.columns = count, [rows.take(column, at) for column in self.columns]
        part.arrays = [array.take(pa.array(at)) for array in self.arrays]
        part.table = self.table.take(pa.array(at))
        return part

    def row(self, e: Expression, i: int) -> dict[str, Any]:
        """Returns the values that an expression reads in a row, for messages."""
        return {self.schema.names[c]: self.columns[c][i] for c in e.columns}

    def spark_values(self, spark: Any, named: dict[str, tuple[str, Mask | None]]) -> pa.Table:
        """Evaluates name -> (SQL, mask) in Spark; null where the mask is false."""
        table = self.table.append_column("row", pa.array(np.arange(self.n)))
        selected = []
        for name, (sql, mask) in named.items():
            if mask is None:
                selected.append(f"({sql}) as {name}")
                continue
            table = table.append_column(f"m_{name}", pa.array(mask))
            selected.append(f"case when m_{name} then ({sql}) end as {name}")
        frame = spark.createDataFrame(table)
        for name in ("x_timestamp_ntz", "y_timestamp_ntz"):  # taken for timestamps
            frame = frame.withColumn(name, frame[name].cast("timestamp_ntz"))
        return frame.selectExpr(*selected, "row").orderBy("row").toArrow()


@cache
def values() -> Values:
    return Values()


@cache
def local_cases() -> list[tuple[Case, Expression]]:
    schema = values().schema
    pairs = [(c, compile_expression(c.sql, schema, types=lambda *_: ["int"])) for c in all_cases()]
    return [(case, expression) for case, expression in pairs if expression.local]


def evaluated(e: Expression, cols: list[Any], n: int) -> tuple[Any, Mask | None]:
    """Returns the values, null on rows that raise, and the mask of the others if some do."""
    try:
        return e.evaluate(cols, n), None
    except ExpressionError:
        fine = _fine_rows(e, cols)
    kept = e.evaluate([rows.mask(c, fine) for c in cols], int(fine.sum()))
    at = pa.array(np.cumsum(fine) - 1, mask=~fine)
    return rows.from_arrow(rows.to_arrow(kept, e.type).take(at), e.type), fine


@cache
def results() -> list[tuple[Case, Expression, Any, Mask | None]]:
    """Returns the local cases with their values on columns in object form."""
    own = values()
    return [(case, e, *evaluated(e, own.columns, own.n)) for case, e in local_cases()]


def _fine_rows(e: Expression, cols: list[Any]) -> Mask:
    """Returns True for each row that does not raise; equal rows are evaluated once."""
    known: dict[str, bool] = {}
    listed = [cols[c].tolist() for c in e.columns or (0,)]
    seen = [repr(row) for row in zip(*listed, strict=True)]
    for i, row in enumerate(seen):
        if row not in known:
            try:
                e.evaluate([rows.slice_(c, i, i + 1) for c in cols], 1)
                known[row] = True
            except ExpressionError:
                known[row] = False
    return np.array([known[row] for row in seen])


def null_mask(column: Any, n: int) -> Mask:
    mask = rows.null_mask(column)
    return np.zeros(n, np.bool_) if mask is None else mask


def same_numbers(expected: list[Any], found: list[Any], read: Any) -> list[bool]:
    """Compares texts as numbers, because their digits depend on the version of Java."""
    pairs = zip(expected, found, strict=True)
    return [a == b or (len(a) >= len(b) and read(a) == read(b)) for a, b in pairs]


RECORD = Path(__file__).parents[2] / "data" / "expressions.json"


def digests() -> dict[str, str]:
    """The type of each case, and a digest of its values and of the rows that raise."""
    digests = {case.sql: "left to Spark" for case in all_cases()}
    exact = (result for result in results() if result[0].sql not in NEAR)  # places of processors
    return digests | {case.sql: digest(e, column, fine) for case, e, column, fine in exact}


def digest(e: Expression, column: Any, fine: Mask | None) -> str:
    """The type of an expression, and a digest of its values and of the rows that raise."""
    array = rows.to_arrow(column, e.type)
    if pa.types.is_temporal(array.type):  # years beyond Python's are among them
        array = array.view(pa.int32() if pa.types.is_date32(array.type) else pa.int64())
    text = repr((array.to_pylist(), None if fine is None else np.flatnonzero(~fine).tolist()))
    return f"{e.type} {blake2b(text.encode(), digest_size=6).hexdigest()}"


if __name__ == "__main__":
    RECORD.write_text(json.dumps(digests(), indent=0, ensure_ascii=False) + "\n")
